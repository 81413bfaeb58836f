#include "cluster/moment.h"

#include <string.h>

#include "base/mem.h"
#include "cluster/session_remote.h"

/*
 * Design.  `lost` of the session counts, for each ps, the closures whose changes there
 * went back; done - lost is what its values have.  A moment notes both.
 *
 * Invariants:
 *   (1) A closure that is unfinished in the moment has all of a turn in the checkpoint,
 *       on every ps, or nothing of it: the moment is inside of a barrier.
 *       A closure of a round (mode sync) that was unfinished then has not applied its
 *       gradients: if it is done later, they are lost, though it has a turn.
 *   (2) `pending` is what the restoring that goes on will add to `lost`.
 */
struct tm_moment {
  uint64_t serial; /* of the coordinator */
  uint64_t done;
  int32_t n, nps;
  uint64_t *closure; /* n, rising: unfinished then */
  uint64_t *turns;   /* n of each ps */
  bool *rounds;      /* n: what it applies waits for the end of a round */
  uint64_t *lost;    /* nps */
};

static size_t moment_turns(const tm_moment *m) {
  return ((size_t)m->n * (size_t)m->nps + 1) * sizeof *m->turns;
}

void tm_moment_free(tm_moment *m) {
  if (!m) return;
  tm_free(m->closure, (size_t)m->n * sizeof *m->closure);
  tm_free(m->turns, moment_turns(m));
  tm_free(m->rounds, ((size_t)m->n + 1) * sizeof *m->rounds);
  tm_free(m->lost, (size_t)m->nps * sizeof *m->lost);
  tm_free(m, sizeof *m);
}

tm_status tm_moment_note(tm_session *s, tm_moment **out, tm_err *err) {
  session_remote *r = s->remote;
  *out = NULL;
  if (!s->coordinator) return TM_OK;
  bool counts = r && r->lost;
  if (!counts && !tm_coordinator_deals_out(s->coordinator)) return TM_OK;
  tm_moment *m = tm_calloc(1, sizeof *m);
  if (!m) return tm_nomem(err, "a checkpoint");
  if (counts) m->serial = r->serial;
  m->nps = s->nps;
  tm_status st =
      tm_coordinator_unfinished(s->coordinator, &m->done, &m->closure, &m->n, err);
  m->turns = tm_calloc(1, moment_turns(m));
  m->lost = tm_calloc((size_t)m->nps, sizeof *m->lost);
  m->rounds = tm_calloc((size_t)m->n + 1, sizeof *m->rounds);
  if (st == TM_OK && (!m->turns || !m->lost || !m->rounds))
    st = tm_nomem(err, "a checkpoint");
  if (st) {
    tm_moment_free(m);
    return st;
  }
  tm_coordinator_in_rounds(s->coordinator, m->closure, m->n, m->rounds);
  if (counts) memcpy(m->lost, r->lost, (size_t)m->nps * sizeof *m->lost);
  *out = m;
  return TM_OK;
}

tm_token_list tm_moment_tokens(tm_moment *m, int32_t k) {
  return (tm_token_list){m->closure, m->turns + (size_t)k * (size_t)m->n, m->n};
}

/* What it changes is in (of a round: gradients, which were not). */
static bool moment_has(const tm_moment *m, int32_t i) {
  if (m->rounds[i]) return false;
  for (int32_t k = 0; k < m->nps; k++)
    if (m->turns[(size_t)k * (size_t)m->n + (size_t)i]) return true;
  return false;
}

tm_status tm_moment_deals(const tm_moment *m, tm_session *s, tm_err *err) {
  size_t bytes = ((size_t)m->n + 1) * sizeof *m->closure;
  uint64_t *in = tm_malloc(bytes);
  if (!in) return tm_nomem(err, "a checkpoint");
  int32_t n = 0;
  for (int32_t i = 0; i < m->n; i++)
    if (moment_has(m, i)) in[n++] = m->closure[i];
  tm_status st = tm_coordinator_note_deals(s->coordinator, in, n, err);
  tm_free(in, bytes);
  return st;
}

/* --- going back to one --- */

typedef struct rewind_now {
  uint64_t done;
  uint64_t *open; /* nopen, rising: unfinished */
  int32_t nopen;
} rewind_now;

static bool rewind_is_open(const rewind_now *now, uint64_t closure) {
  int32_t lo = 0, hi = now->nopen;
  while (lo < hi) {
    int32_t mid = lo + (hi - lo) / 2;
    if (now->open[mid] < closure)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo < now->nopen && now->open[lo] == closure;
}

/* Closures that were in then and done later: they are not lost. */
static uint64_t rewind_kept(const tm_moment *m, const rewind_now *now) {
  uint64_t kept = 0;
  for (int32_t i = 0; m && i < m->n; i++)
    kept += moment_has(m, i) && !rewind_is_open(now, m->closure[i]);
  return kept;
}

/* Those that will be run again; they had so many turns on ps k. */
static tm_status rewind_tell(tm_session *s, const tm_moment *m, const rewind_now *now,
                             int32_t k, tm_err *err) {
  tm_ps_client *c = s->vars->ps[k];
  if (m->n == 0 || !c->tokens) return TM_OK;
  size_t bytes = (size_t)m->n * sizeof(uint64_t);
  tm_token_list q = {tm_malloc(bytes), tm_malloc(bytes), 0};
  const uint64_t *turns = m->turns + (size_t)k * (size_t)m->n;
  for (int32_t i = 0; q.closure && q.turns && i < m->n; i++) {
    if (!turns[i] || !rewind_is_open(now, m->closure[i])) continue;
    q.closure[q.n] = m->closure[i];
    q.turns[q.n++] = turns[i];
  }
  tm_status st = TM_OK;
  if (!q.closure || !q.turns)
    st = tm_nomem(err, "tokens of a checkpoint");
  else if (q.n)
    st = c->tokens(c, &q, err);
  tm_free(q.closure, bytes);
  tm_free(q.turns, bytes);
  return st;
}

static tm_status rewind_all(tm_session *s, const tm_moment *m, const bool *fresh,
                            const rewind_now *now, uint64_t *lost, tm_err *err) {
  session_remote *r = s->remote;
  uint64_t kept = rewind_kept(m, now);
  for (int32_t k = 0; k < s->nps; k++) {
    if (!fresh[k]) continue;
    uint64_t has = now->done - r->lost[k];
    uint64_t had = m ? m->done - m->lost[k] + kept : 0;
    r->pending[k] = has > had ? has - had : 0;
    if (r->pending[k] > *lost) *lost = r->pending[k];
    if (m) TM_TRY(rewind_tell(s, m, now, k, err));
  }
  return TM_OK;
}

tm_status tm_session_rewind(tm_session *s, const tm_moment *m, const bool *fresh,
                            uint64_t *lost, tm_err *err) {
  session_remote *r = s->remote;
  rewind_now now = {0, NULL, 0};
  *lost = 0;
  if (!r || !r->lost || !s->coordinator) return TM_OK;
  if (m && m->serial != r->serial) m = NULL;
  memset(r->pending, 0, (size_t)s->nps * sizeof *r->pending);
  TM_TRY(
      tm_coordinator_unfinished(s->coordinator, &now.done, &now.open, &now.nopen, err));
  tm_status st = rewind_all(s, m, fresh, &now, lost, err);
  tm_free(now.open, (size_t)now.nopen * sizeof *now.open);
  return st;
}
