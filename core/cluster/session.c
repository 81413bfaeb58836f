#include "cluster/session.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cluster/session_parts.h"

/* Invariant: until a coordinator takes them the links are the session's. */
static void session_free(tm_session *s) {
  tm_recipes_release(&s->recipes);
  tm_vars_free(s->vars);
  for (int32_t i = 0; s->link && i < s->nlink; i++)
    if (s->link[i]) s->link[i]->close(s->link[i]);
  for (int32_t i = 0; s->ps && i < s->nps; i++)
    if (s->ps[i]) s->ps[i]->close(s->ps[i]);
  if (s->stop_remote) s->stop_remote(s);
  for (int32_t i = 0; s->store && i < s->nps; i++) tm_store_free(s->store[i]);
  tm_free(s->link, (size_t)s->nlink * sizeof(tm_worker_link *));
  tm_free(s->ps, (size_t)s->nps * sizeof(tm_ps_client *));
  tm_free(s->store, (size_t)s->nps * sizeof(tm_store *));
  tm_session_forget_workers(s);
  tm_free(s, sizeof *s);
}

static tm_status session_check_options(const tm_session_options *o, tm_err *err) {
  if (o->nps < 1) return tm_fail(err, TM_EINVAL, "There must be at least one ps.");
  if (o->nworker < 1)
    return tm_fail(err, TM_EINVAL, "There must be at least one worker.");
  if (o->replicas < 0 || o->replicas > 1 ||
      (o->replicas && o->ps_address && o->nps < 2))
    return tm_fail(err, TM_EINVAL,
                   "replicas = %d: it is 0, or 1 where there are two ps or more",
                   o->replicas);
  if (o->staleness < 0 || o->backup_workers < 0)
    return tm_fail(err, TM_EINVAL, "staleness and backup_workers count from 0");
  if (o->nps > TM_MAX_TASKS || o->nworker > TM_MAX_TASKS)
    return tm_fail(err, TM_EINVAL, "a job may have at most %d tasks", TM_MAX_TASKS);
  return TM_OK;
}

static tm_status session_make_vars(tm_session *s) {
  tm_catalog *catalog;
  TM_TRY(tm_catalog_new(&catalog));
  tm_status st = tm_vars_new(catalog, s->ps, s->nps, NULL, &s->vars);
  tm_catalog_unref(catalog);
  if (st == TM_OK) s->vars->session = s;
  if (st == TM_OK) s->vars->guard = s->guard;
  if (st == TM_OK) memset(s->ps, 0, (size_t)s->nps * sizeof(tm_ps_client *));
  return st;
}

static tm_status session_note_workers(tm_session *s, const tm_session_options *o,
                                      tm_err *err) {
  for (int32_t i = 0; i < o->nworker; i++)
    TM_TRY(tm_session_note_worker(s, o->worker_address ? o->worker_address[i] : NULL,
                                  o->worker_task ? o->worker_task[i] : NULL, err));
  return TM_OK;
}

tm_status tm_session_open(const tm_session_options *opt, tm_session **out,
                          tm_err *err) {
  *out = NULL;
  TM_TRY(session_check_options(opt, err));
  tm_session *s = tm_calloc(1, sizeof *s);
  if (!s) return tm_nomem(err, "a session");
  s->nlink = opt->nworker;
  s->nps = opt->nps;
  s->threads = opt->threads;
  s->seed = opt->seed;
  s->worker_timeout_ns = (int64_t)(opt->worker_timeout * 1e9);
  s->mode = opt->mode;
  s->staleness = opt->staleness;
  s->backup_workers = opt->backup_workers;
  s->link = tm_calloc((size_t)s->nlink, sizeof(tm_worker_link *));
  s->worker = tm_calloc(TM_MAX_TASKS, sizeof *s->worker);
  s->keep_recipes = opt->ps_address && opt->on_ps_failure != TM_PS_RAISE;
  s->ps = tm_calloc((size_t)s->nps, sizeof(tm_ps_client *));
  s->store = tm_calloc((size_t)s->nps, sizeof(tm_store *));
  tm_status st = TM_OK;
  if (!s->link || !s->ps || !s->store || !s->worker) st = tm_nomem(err, "a session");
  if (st == TM_OK) st = session_note_workers(s, opt, err);
  if (st == TM_OK)
    st = opt->ps_address ? tm_session_start_remote(s, opt, err)
                         : tm_session_start_local(s, opt, err);
  if (st == TM_OK) st = tm_session_first_links(s, opt, err);
  if (st == TM_OK && session_make_vars(s)) st = tm_nomem(err, "a session");
  if (st) {
    session_free(s);
    return st;
  }
  *out = s;
  return TM_OK;
}

void tm_session_stop_tasks(tm_session *s) {
  if (s->stop_tasks) s->stop_tasks(s, NULL);
}

void tm_session_stop_task(tm_session *s, const char *task) {
  if (s->stop_tasks) s->stop_tasks(s, task);
}

void tm_session_close(tm_session *s) {
  if (!s) return;
  TM_DCHECK(!s->coordinator);
  session_free(s);
}

tm_vars *tm_session_vars(tm_session *s) { return s->vars; }
int32_t tm_session_workers(const tm_session *s) { return s->nworker; }
int32_t tm_session_ps(const tm_session *s) { return s->nps; }

static tm_status session_tell_workers(tm_session *s, tm_var_info *v, tm_err *err) {
  if (s->coordinator) return tm_coordinator_add_variable(s->coordinator, v, err);
  for (int32_t i = 0; i < s->nlink; i++) {
    if (!s->link[i]) continue;
    tm_status st = s->link[i]->add_variable(s->link[i], v, err);
    /* The coordinator hears of a worker that is gone, and tells it all when it is back.
     */
    if (st && st != TM_EUNAVAILABLE) return st;
  }
  return TM_OK;
}

uint64_t tm_session_bytes(const tm_var_info *v) {
  return (uint64_t)tm_shape_count(&v->shape) * tm_dtype_size(v->dtype);
}

tm_status tm_session_create(tm_session *s, tm_var_info *info, const tm_init *init,
                            tm_tensor *const *piece, tm_err *err) {
  if (s->excuse) s->excuse(s, tm_session_bytes(info));
  tm_status st = piece ? tm_vars_create_pieces(s->vars, info, piece, err)
                       : tm_vars_create(s->vars, info, init, err);
  if (s->excuse) s->excuse(s, 0);
  if (st == TM_OK && s->keep_recipes &&
      tm_recipes_add(&s->recipes, s->vars->catalog, info, init, piece))
    st = tm_nomem(err, "how a variable was made");
  return st ? st : session_tell_workers(s, info, err);
}

tm_status tm_session_coordinator(tm_session *s, int64_t queue_size,
                                 tm_coordinator **out, tm_err *err) {
  if (s->had_coordinator)
    return tm_fail(err, TM_EEXISTS, "this strategy has a coordinator already");
  tm_coordinator_options opt = {.queue_size = queue_size,
                                .mode = s->mode,
                                .staleness = s->staleness,
                                .backup_workers = s->backup_workers,
                                .commit = tm_session_commit,
                                .worker_timeout_ns = s->worker_timeout_ns};
  tm_session_worker_options(s, &opt);
  TM_TRY(tm_coordinator_new(&opt, s->link, s->nlink, out, err));
  memset(s->link, 0, (size_t)s->nlink * sizeof(tm_worker_link *));
  s->coordinator = *out;
  s->had_coordinator = true;
  if (s->watch) s->watch(s, *out);
  return TM_OK;
}

void tm_session_coordinator_close(tm_session *s) {
  if (s->watch) s->watch(s, NULL);
  if (s->hurry) s->hurry(s);
  tm_coordinator_free(s->coordinator);
  tm_session_rounds_release(s);
  s->coordinator = NULL;
}

tm_status tm_session_foreign(tm_session *s, const tm_graph *g, uint64_t *uid,
                             tm_err *err) {
  uint64_t *all;
  size_t n;
  *uid = 0;
  if (tm_graph_variables(g, &all, &n)) return tm_nomem(err, "variables of a function");
  for (size_t i = 0; i < n && !*uid; i++) {
    tm_var_info *v = tm_catalog_get(s->vars->catalog, all[i]);
    bool ours = v || (s->coordinator && tm_coordinator_holds(s->coordinator, all[i]));
    if (!ours) *uid = all[i];
    tm_var_info_unref(v);
  }
  tm_free(all, n * sizeof *all);
  return TM_OK;
}

const char *tm_session_ps_state(tm_session *s, int32_t ps, bool *copied) {
  *copied = false;
  return s->ps_state ? s->ps_state(s, ps, copied) : "ready";
}

tm_status tm_session_ps_stats(tm_session *s, int32_t ps, tm_store_stats *out,
                              tm_err *err) {
  tm_ps_client *c = s->vars->ps[ps];
  return c->stats(c, out, err);
}
