#include "cluster/session.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cluster/session_parts.h"

/*
 * Design.  The chief sees ps k of a session as lane base + k of its tm_vars; workers,
 * which know one cluster only, see ps k.  So a variable has two infos that differ in
 * the ps numbers of its shards.
 *
 * Invariants:
 *   (1) Lanes are never renumbered: a closed session leaves empty lanes behind.
 *   (2) Until a coordinator takes them the links are the session's.
 */
static tm_var_info *session_shifted(const tm_var_info *info, int32_t by) {
  tm_var_info *v;
  if (tm_var_info_new(info->uid, info->dtype, &info->shape, info->name, info->user,
                      info->nshard, &v))
    return NULL;
  memcpy(v->shard, info->shard, (size_t)info->nshard * sizeof *info->shard);
  for (int32_t k = 0; k < v->nshard; k++) v->shard[k].ps += by;
  return v;
}

static void session_free(tm_session *s) {
  for (int32_t i = 0; s->link && i < s->nworker; i++)
    if (s->link[i]) s->link[i]->close(s->link[i]);
  for (int32_t i = 0; s->ps && i < s->nps; i++)
    if (s->ps[i]) s->ps[i]->close(s->ps[i]);
  for (int32_t i = 0; s->store && i < s->nps; i++) tm_store_free(s->store[i]);
  tm_free(s->link, (size_t)s->nworker * sizeof(tm_worker_link *));
  tm_free(s->ps, (size_t)s->nps * sizeof(tm_ps_client *));
  tm_free(s->store, (size_t)s->nps * sizeof(tm_store *));
  tm_free(s->incarnation, (size_t)s->nworker * sizeof(uint64_t));
  tm_free(s, sizeof *s);
}

static tm_status session_check_options(const tm_session_options *o, tm_err *err) {
  if (o->nps < 1) return tm_fail(err, TM_EINVAL, "There must be at least one ps.");
  if (o->nworker < 1)
    return tm_fail(err, TM_EINVAL, "There must be at least one worker.");
  if (o->nps > TM_MAX_TASKS || o->nworker > TM_MAX_TASKS)
    return tm_fail(err, TM_EINVAL, "a job may have at most %d tasks", TM_MAX_TASKS);
  return TM_OK;
}

tm_status tm_session_open(tm_chief *chief, const tm_session_options *opt,
                          tm_session **out, tm_err *err) {
  *out = NULL;
  TM_TRY(session_check_options(opt, err));
  tm_session *s = tm_calloc(1, sizeof *s);
  if (!s) return tm_nomem(err, "a session");
  s->chief = chief;
  s->nworker = opt->nworker;
  s->nps = opt->nps;
  s->link = tm_calloc((size_t)s->nworker, sizeof(tm_worker_link *));
  s->ps = tm_calloc((size_t)s->nps, sizeof(tm_ps_client *));
  s->store = tm_calloc((size_t)s->nps, sizeof(tm_store *));
  s->incarnation = tm_calloc((size_t)s->nworker, sizeof(uint64_t));
  tm_status st = TM_OK;
  if (!s->link || !s->ps || !s->store || !s->incarnation)
    st = tm_nomem(err, "a session");
  if (st == TM_OK)
    st = opt->ps_address ? tm_session_start_remote(s, opt, err)
                         : tm_session_start_local(s, opt, err);
  if (st == TM_OK)
    st = tm_vars_add_lanes(tm_chief_vars(chief), s->ps, s->nps, &s->base);
  if (st) {
    if (err && err->code == TM_OK) st = tm_nomem(err, "a session");
    session_free(s);
    return st;
  }
  memset(s->ps, 0, (size_t)s->nps * sizeof(tm_ps_client *)); /* they are lanes now */
  *out = s;
  return TM_OK;
}

void tm_session_close(tm_session *s) {
  if (!s) return;
  TM_DCHECK(!s->coordinator);
  for (int32_t i = 0; s->link && i < s->nworker; i++)
    if (s->link[i]) {
      s->link[i]->close(s->link[i]);
      s->link[i] = NULL;
    }
  tm_vars_close_lanes(tm_chief_vars(s->chief), s->base, s->nps);
  session_free(s);
}

int32_t tm_session_workers(const tm_session *s) { return s->nworker; }
int32_t tm_session_ps(const tm_session *s) { return s->nps; }

static tm_status session_tell_workers(tm_session *s, tm_var_info *v, tm_err *err) {
  if (s->coordinator) return tm_coordinator_add_variable(s->coordinator, v, err);
  for (int32_t i = 0; i < s->nworker; i++)
    TM_TRY(s->link[i]->add_variable(s->link[i], v, err));
  return TM_OK;
}

tm_status tm_session_create(tm_session *s, tm_var_info *info, const tm_init *init,
                            tm_tensor *const *piece, tm_err *err) {
  tm_var_info *here = session_shifted(info, s->base);
  if (!here) return tm_nomem(err, "a variable");
  tm_vars *v = tm_chief_vars(s->chief);
  tm_status st = piece ? tm_vars_create_pieces(v, here, piece, err)
                       : tm_vars_create(v, here, init, err);
  tm_var_info_unref(here);
  return st ? st : session_tell_workers(s, info, err);
}

static tm_status session_refuse(void *ud, int32_t index, tm_err *err) {
  tm_session *s = ud;
  return s->refuse ? s->refuse(s, index, err) : TM_OK;
}

tm_status tm_session_coordinator(tm_session *s, int64_t queue_size,
                                 tm_coordinator **out, tm_err *err) {
  if (s->coordinator || !s->link[0])
    return tm_fail(err, TM_EEXISTS, "this strategy has a coordinator already");
  tm_coordinator_options opt = {queue_size, session_refuse, s};
  TM_TRY(tm_coordinator_new(&opt, s->link, s->nworker, out, err));
  memset(s->link, 0, (size_t)s->nworker * sizeof(tm_worker_link *));
  s->coordinator = *out;
  return TM_OK;
}

void tm_session_coordinator_close(tm_session *s) {
  tm_coordinator_free(s->coordinator);
  s->coordinator = NULL;
}

tm_status tm_session_check(tm_session *s, const tm_graph *g, tm_err *err) {
  uint64_t *uid;
  size_t n;
  tm_status st = TM_OK;
  if (tm_graph_variables(g, &uid, &n)) return tm_nomem(err, "variables of a function");
  for (size_t i = 0; i < n && st == TM_OK; i++) {
    tm_var_info *v = tm_catalog_get(tm_chief_vars(s->chief)->catalog, uid[i]);
    int32_t ps = v ? v->shard[0].ps : -1;
    if (ps < s->base || ps >= s->base + s->nps)
      st = tm_fail(err, TM_EINVAL,
                   "%s: variable \"%s\" (%" PRIu64
                   ") belongs to the chief alone or to another strategy; create it in "
                   "strategy:scope",
                   g->name, v ? v->name : "?", uid[i]);
    tm_var_info_unref(v);
  }
  tm_free(uid, n * sizeof *uid);
  return st;
}

tm_status tm_session_ps_stats(tm_session *s, int32_t ps, tm_store_stats *out,
                              tm_err *err) {
  tm_ps_client *c = tm_chief_vars(s->chief)->ps[s->base + ps];
  if (!c) return tm_fail(err, TM_EPRECOND, "the strategy is closed");
  return c->stats(c, out, err);
}
