#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cluster/session_parts.h"

/*
 * The workers of a session: who they are, and what the coordinator asks of the session
 * when one is lost, comes back, or is new.
 *
 * Invariant: the coordinator asks for one worker from one thread at a time, and refuses
 * an incarnation before it reaches the worker anew; so `incarnation` needs no lock.
 */
tm_status tm_session_note_worker(tm_session *s, const char *address, const char *task,
                                 tm_err *err) {
  if (s->nworker >= TM_MAX_TASKS)
    return tm_fail(err, TM_EEXHAUSTED, "a cluster has at most %d workers",
                   (int)TM_MAX_TASKS);
  session_worker *w = tm_calloc(1, sizeof *w);
  if (!w) return tm_nomem(err, "a worker");
  snprintf(w->address, sizeof w->address, "%s", address ? address : "");
  if (task)
    snprintf(w->task, sizeof w->task, "%s", task);
  else
    snprintf(w->task, sizeof w->task, "/job:worker/task:%d", s->nworker);
  s->worker[s->nworker++] = w;
  return TM_OK;
}

void tm_session_forget_workers(tm_session *s) {
  for (int32_t i = 0; s->worker && i < s->nworker; i++)
    tm_free(s->worker[i], sizeof *s->worker[i]);
  tm_free(s->worker, TM_MAX_TASKS * sizeof *s->worker);
}

static tm_status workers_reach(tm_session *s, int32_t index, tm_cancel *cancel,
                               tm_worker_link **out, tm_err *err) {
  session_worker *w = s->worker[index];
  session_worker fresh = *w;
  fresh.incarnation = tm_random_id();
  TM_TRY(s->reach(s, index, &fresh, cancel, out, err));
  w->incarnation = fresh.incarnation;
  return TM_OK;
}

tm_status tm_session_first_link(tm_session *s, int32_t index, tm_err *err) {
  return workers_reach(s, index, NULL, &s->link[index], err);
}

/* --- for the coordinator --- */

static tm_status workers_refuse(void *ud, int32_t index, tm_err *err) {
  tm_session *s = ud;
  return s->refuse ? s->refuse(s, s->worker[index], err) : TM_OK;
}

static tm_status workers_revive(void *ud, int32_t index, tm_cancel *cancel,
                                tm_worker_link **out, tm_err *err) {
  return workers_reach(ud, index, cancel, out, err);
}

typedef struct workers_furnishing {
  tm_worker_link *link;
} workers_furnishing;

static tm_status workers_tell(void *ud, tm_var_info *v, tm_err *err) {
  tm_worker_link *l = ((workers_furnishing *)ud)->link;
  return l->add_variable(l, v, err);
}

static tm_status workers_furnish(void *ud, tm_worker_link *link, tm_err *err) {
  tm_session *s = ud;
  workers_furnishing f = {link};
  return tm_catalog_each(s->vars->catalog, workers_tell, &f, err);
}

void tm_session_worker_options(tm_session *s, tm_coordinator_options *opt) {
  opt->refuse = workers_refuse;
  opt->revive = workers_revive;
  opt->furnish = workers_furnish;
  opt->ud = s;
}
