#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/session_remote.h"

/*
 * The workers of a session: who they are, and what the coordinator asks of the session
 * when one is lost, comes back, or is new.
 *
 * Invariant: the coordinator asks for one worker from one thread at a time, and refuses
 * an incarnation before it reaches the worker anew; so `incarnation` needs no lock.
 */
#define WORKERS_FIRST_NS 3000000000
#define WORKERS_PAUSE_NS 10000000

/* One above those that are there: names may have gaps. */
static int32_t workers_next_number(const tm_session *s) {
  int32_t next = 0;
  for (int32_t i = 0; i < s->nworker; i++) {
    const char *at = strrchr(s->worker[i]->task, ':');
    int32_t k = at ? (int32_t)strtol(at + 1, NULL, 10) : 0;
    if (k >= next) next = k + 1;
  }
  return next;
}

tm_status tm_session_note_worker(tm_session *s, const char *address, const char *task,
                                 tm_err *err) {
  if (s->nworker >= TM_MAX_TASKS)
    return tm_fail(err, TM_EEXHAUSTED,
                   "a strategy has at most %d workers, removed ones counted",
                   (int)TM_MAX_TASKS);
  session_worker *w = tm_calloc(1, sizeof *w);
  if (!w) return tm_nomem(err, "a worker");
  snprintf(w->address, sizeof w->address, "%s", address ? address : "");
  if (task)
    snprintf(w->task, sizeof w->task, "%s", task);
  else
    snprintf(w->task, sizeof w->task, "/job:worker/task:%d", workers_next_number(s));
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
  session_worker fresh = {.incarnation = tm_random_id()}; /* `removed` is the host's */
  memcpy(fresh.task, w->task, sizeof fresh.task);
  memcpy(fresh.address, w->address, sizeof fresh.address);
  TM_TRY(s->reach(s, index, &fresh, cancel, out, err));
  w->incarnation = fresh.incarnation;
  return TM_OK;
}

static bool workers_not_there(tm_status s) {
  return s == TM_EUNAVAILABLE || s == TM_ETIMEOUT;
}

/* Try worker i until it is there, or the time is up. */
static tm_status workers_first(tm_session *s, int32_t i, tm_cancel *cancel,
                               int64_t deadline, tm_err *err) {
  tm_cancel none = {0};
  for (;;) {
    tm_err_clear(err);
    tm_status st = workers_reach(s, i, cancel ? cancel : &none, &s->link[i], err);
    if (!workers_not_there(st) || tm_cancelled(cancel) || tm_now_ns() > deadline)
      return st;
    tm_sleep_ns(WORKERS_PAUSE_NS);
  }
}

tm_status tm_session_first_links(tm_session *s, const tm_session_options *opt,
                                 tm_err *err) {
  int64_t begun = tm_now_ns();
  double all = opt->connect_timeout > 0 ? opt->connect_timeout : 60;
  bool any = false;
  tm_err why;
  for (int32_t i = 0; i < s->nlink; i++) {
    bool last = i + 1 == s->nlink;
    int64_t patience = last && !any ? (int64_t)(all * 1e9) : WORKERS_FIRST_NS;
    tm_status st = workers_first(s, i, opt->cancel, begun + patience, &why);
    if (st && (!workers_not_there(st) || tm_cancelled(opt->cancel) || (last && !any))) {
      if (err) *err = why;
      return st;
    }
    any = any || st == TM_OK;
    if (st) tm_log(TM_LOG_WARN, "%s is not there yet: %s", s->worker[i]->task, why.msg);
  }
  return TM_OK;
}

/* --- adding and removing --- */

/* host:port, and nothing else. */
static bool workers_is_address(const char *a) {
  const char *colon = strrchr(a, ':');
  size_t digits = colon ? strspn(colon + 1, "0123456789") : 0;
  if (!colon || colon == a || digits < 1 || digits > 5 || colon[1 + digits])
    return false;
  if (strcspn(a, " \t\r\n\"") < (size_t)(colon - a)) return false;
  long port = strtol(colon + 1, NULL, 10);
  return port >= 1 && port <= 65535;
}

static tm_status workers_check(const tm_session *s, const char *address, tm_err *err) {
  if (!s->coordinator)
    return tm_fail(err, TM_EPRECOND, "workers are added to a coordinator");
  if (strlen(address) >= sizeof s->worker[0]->address)
    return tm_fail(err, TM_EINVAL, "add_worker: \"%.60s...\" is too long", address);
  if (!s->remote) return TM_OK;
  if (!workers_is_address(address))
    return tm_fail(err, TM_EINVAL, "add_worker: \"%s\" is not like \"host:port\"",
                   address);
  for (int32_t i = 0; i < s->nps; i++)
    if (strcmp(s->remote->address[i], address) == 0)
      return tm_fail(err, TM_EEXISTS, "add_worker: %s is %s already", address,
                     s->remote->ps[i].task);
  for (int32_t i = 0; i < s->nworker; i++)
    if (!s->worker[i]->removed && strcmp(s->worker[i]->address, address) == 0)
      return tm_fail(err, TM_EEXISTS, "add_worker: %s is %s already", address,
                     s->worker[i]->task);
  return TM_OK;
}

/* The name that a worker at this address had when it was removed: its process still
 * calls itself so. */
static const char *workers_name(const tm_session *s, const char *address) {
  for (int32_t i = 0; s->remote && i < s->nworker; i++)
    if (s->worker[i]->removed && strcmp(s->worker[i]->address, address) == 0)
      return s->worker[i]->task;
  return NULL;
}

tm_status tm_session_add_worker(tm_session *s, const char *address, int32_t *index,
                                tm_err *err) {
  TM_TRY(workers_check(s, address, err));
  TM_TRY(tm_session_note_worker(s, address, workers_name(s, address), err));
  tm_status st = tm_coordinator_add_worker(s->coordinator,
                                           s->worker[s->nworker - 1]->task, index, err);
  TM_DCHECK(st || *index == s->nworker - 1);
  if (st) tm_free(s->worker[--s->nworker], sizeof(session_worker));
  return st;
}

const char *tm_session_worker_task(const tm_session *s, int32_t index) {
  return s->worker[index]->task;
}

tm_status tm_session_remove_worker(tm_session *s, int32_t index, tm_err *err) {
  if (!s->coordinator)
    return tm_fail(err, TM_EPRECOND, "workers are removed from a coordinator");
  TM_TRY(tm_coordinator_remove_worker(s->coordinator, index, err));
  s->worker[index]->removed = true;
  return TM_OK;
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

static const char *workers_task(void *ud, int32_t index) {
  return tm_session_worker_task(ud, index);
}

void tm_session_worker_options(tm_session *s, tm_coordinator_options *opt) {
  opt->refuse = workers_refuse;
  opt->revive = workers_revive;
  opt->furnish = workers_furnish;
  opt->task = workers_task;
  opt->ud = s;
}
