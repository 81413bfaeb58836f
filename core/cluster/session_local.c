#include <stdio.h>
#include <unistd.h>

#include "base/mem.h"
#include "cluster/session_parts.h"
#include "kernel/gemm.h"

/* A cluster inside this process: stores, and workers with direct clients to them. */

static tm_status local_clients(tm_session *s, tm_ps_client **ps) {
  for (int32_t k = 0; k < s->nps; k++)
    if (tm_ps_client_local(s->store[k], &ps[k])) {
      while (k-- > 0) {
        ps[k]->close(ps[k]);
        ps[k] = NULL;
      }
      return TM_ENOMEM;
    }
  return TM_OK;
}

static tm_status local_vars(tm_session *s, tm_vars **out) {
  tm_catalog *catalog = NULL;
  size_t bytes = (size_t)s->nps * sizeof(tm_ps_client *);
  tm_ps_client **ps = tm_malloc(bytes);
  if (!ps) return TM_ENOMEM;
  tm_status st = tm_catalog_new(&catalog);
  if (st == TM_OK) st = local_clients(s, ps);
  if (st == TM_OK) {
    st = tm_vars_new(catalog, ps, s->nps, NULL, out);
    for (int32_t k = 0; st && k < s->nps; k++) ps[k]->close(ps[k]);
  }
  tm_catalog_unref(catalog);
  tm_free(ps, bytes);
  return st;
}

static tm_status local_worker(tm_session *s, int32_t i, const session_worker *w,
                              tm_cancel *cancel, tm_worker_link **out, tm_err *err) {
  tm_vars *vars = NULL;
  tm_resources *res = NULL;
  tm_worker_options opt = {i, s->nworker, s->threads, s->seed, w->incarnation};
  (void)cancel;
  tm_status st = local_vars(s, &vars);
  if (st == TM_OK) st = tm_resources_new(&res);
  if (st) st = tm_nomem(err, "a worker");
  if (st == TM_OK) st = tm_worker_local(&opt, vars, res, out, err);
  if (st) {
    tm_vars_free(vars);
    tm_resources_free(res);
    return st;
  }
  snprintf((*out)->task, sizeof(*out)->task, "%s", w->task);
  return TM_OK;
}

tm_status tm_session_start_local(tm_session *s, const tm_session_options *o,
                                 tm_err *err) {
  char task[48];
  (void)o;
  s->reach = local_worker;
  for (int32_t k = 0; k < s->nps; k++) {
    snprintf(task, sizeof task, "/job:ps/task:%d", k);
    if (tm_store_new(task, &s->store[k])) return tm_nomem(err, "a ps");
  }
  /* Workers compute side by side, so each product gets its share of the cores. */
  long cores = sysconf(_SC_NPROCESSORS_ONLN);
  tm_k_gemm_threads((int)(cores / s->nworker));
  if (local_clients(s, s->ps)) return tm_nomem(err, "a ps");
  return TM_OK;
}
