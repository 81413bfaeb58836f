#include <string.h>

#include "base/mem.h"
#include "cluster/session_parts.h"

/*
 * The end of a round (coord_rounds.h): every ps is told, all at once, by a thread of
 * the coordinator's over clients of its own.
 *
 * Invariant: after a failure the clients are closed, because a ps that began anew is
 * reached by new ones only.
 */
static void rounds_close(tm_session *s, int32_t k) {
  if (s->rounds[k]) s->rounds[k]->close(s->rounds[k]);
  s->rounds[k] = NULL;
}

void tm_session_rounds_release(tm_session *s) {
  for (int32_t k = 0; s->rounds && k < s->nps; k++) rounds_close(s, k);
  tm_free(s->rounds, (size_t)s->nps * sizeof *s->rounds);
  s->rounds = NULL;
}

static tm_status rounds_client(tm_session *s, int32_t k, tm_err *err) {
  if (s->rounds[k]) return TM_OK;
  if (s->round_client) return s->round_client(s, k, &s->rounds[k], err);
  return tm_ps_client_local(s->store[k], &s->rounds[k])
             ? tm_nomem(err, "the end of a round")
             : TM_OK;
}

static void rounds_note(tm_status *first, tm_status s, const tm_err *why, tm_err *err) {
  if (s == TM_OK || *first) return;
  *first = s;
  *err = *why;
  if (err->code == TM_OK) err->code = s;
}

tm_status tm_session_commit(void *ud, const tm_ps_commit *c, bool *any, tm_err *err) {
  tm_session *s = ud;
  tm_status first = TM_OK;
  tm_err why;
  *any = false;
  if (!s->rounds) s->rounds = tm_calloc((size_t)s->nps, sizeof *s->rounds);
  if (!s->rounds) return tm_nomem(err, "the end of a round");
  for (int32_t k = 0; k < s->nps; k++) {
    tm_err_clear(&why);
    tm_status st = rounds_client(s, k, &why);
    if (st == TM_OK) st = s->rounds[k]->commit(s->rounds[k], c, &why);
    rounds_note(&first, st, &why, err);
    if (st) rounds_close(s, k);
  }
  for (int32_t k = 0; k < s->nps; k++) {
    if (!s->rounds[k]) continue;
    tm_err_clear(&why);
    tm_status st = s->rounds[k]->committed(s->rounds[k], &why);
    if (st == TM_OK) *any = true;
    rounds_note(&first, st, &why, err);
    if (st) rounds_close(s, k);
  }
  return first;
}
