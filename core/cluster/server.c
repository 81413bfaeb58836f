#include "cluster/server.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/control.h"
#include "cluster/ps_service.h"
#include "cluster/term.h"
#include "cluster/worker_service.h"
#include "net/loop.h"

/*
 * Design.  One listener; frames go to the service of the role.  A chief is whoever has
 * started this task over a control connection; while there is one, join waits.
 *
 * Invariants:
 *   (1) `chief` is the connection of the last chief that started this task, or NULL;
 *       when it ends the clock of chief_timeout starts.
 *   (2) `granted` is the term of the last start and only grows; whoever comes with a
 *       lower one is refused (aborted), and whom it replaces is told so.
 *   (3) A connection to a ps belongs to the start in whose time it was made (its user
 *       pointer is the number of that); after the next start it is answered no more, so
 *       a late UPDATE of a lost cluster never meets the variables of the next.
 *   (4) Once `leaving` no chief can start this task any more.
 */
#define SERVER_SILENCE_NS 60000000000 /* until the chief's start says otherwise */
#define SERVER_MAX_FRAME  ((uint64_t)1 << 40)
#define SERVER_ALONE_S    600.0 /* until a chief says otherwise */

struct tm_server {
  tm_server_options opt;
  tm_hello self;
  tm_netloop *loop;
  tm_ps_service *ps;
  tm_worker_service *worker;
  uint16_t port;
  atomic_uintptr_t starts;  /* how many there were */
  pthread_mutex_t starting; /* held from a grant to what it begins; before mu */
  pthread_mutex_t mu;
  tm_conn *chief;       /* under mu: a reference */
  tm_term granted;      /* under mu */
  bool stop, had_one;   /* under mu */
  int64_t alone_since;  /* under mu */
  double chief_timeout; /* under mu: seconds; <= 0: never */
  bool leaving;         /* under mu; never reset */
  int64_t leave_by;     /* under mu: the end of the grace period */
};

/* --- terms --- */

/* TM_EABORTED: t is an earlier term than the one that was granted last.
 * TM_EUNAVAILABLE: a later one. */
static tm_status server_check_term(tm_server *s, const tm_term *t, tm_err *err) {
  pthread_mutex_lock(&s->mu);
  tm_term granted = s->granted;
  pthread_mutex_unlock(&s->mu);
  int order = tm_term_order(t, &granted);
  if (order < 0) return tm_term_refuse(s->self.task, t, &granted, err);
  if (order == 0) return TM_OK;
  if (err && !err->task[0]) memcpy(err->task, s->self.task, sizeof err->task);
  return tm_fail(err, TM_EUNAVAILABLE, "%s was not started by this chief (yet)",
                 s->self.task);
}

/* The chief before is told who took over, and its connection ends. */
static void server_depose(tm_server *s, tm_conn *old, const tm_term *granted) {
  const tm_term *t = &tm_conn_peer(old)->term;
  tm_err err;
  tm_err_clear(&err);
  bool same = tm_term_order(t, granted) == 0; /* it came again: nothing new to it */
  tm_status st =
      same ? TM_EUNAVAILABLE : tm_term_refuse(s->self.task, t, granted, &err);
  if (!same && tm_conn_send_error(old, 0, &err)) st = TM_ENOMEM;
  tm_conn_close(old, st, same ? "the chief started this task anew" : err.msg);
  tm_conn_unref(old);
}

/* c becomes the chief's connection, unless its term is lower than another's. */
static tm_status server_grant(tm_server *s, tm_conn *c, const tm_start *start,
                              tm_err *err) {
  const tm_term *t = &tm_conn_peer(c)->term;
  tm_conn *old = NULL;
  pthread_mutex_lock(&s->mu);
  tm_term granted = s->granted;
  bool ok = tm_term_order(t, &granted) >= 0;
  if (ok && s->chief != c) {
    old = s->chief;
    s->chief = tm_conn_ref(c);
  }
  if (ok) {
    s->granted = *t;
    s->had_one = true;
    if (s->opt.chief_timeout < 0)
      s->chief_timeout = (double)start->chief_timeout_ns * 1e-9;
  }
  pthread_mutex_unlock(&s->mu);
  if (!ok) return tm_term_refuse(s->self.task, t, &granted, err);
  if (old) server_depose(s, old, t);
  return TM_OK;
}

static void server_answer_claim(tm_server *s, tm_conn *c, tm_message *m) {
  tm_buf b = TM_BUF_INIT(64);
  tm_packer w;
  tm_frame f = {.kind = TM_F_GRANT, .id = m->f.id};
  pthread_mutex_lock(&s->mu);
  tm_term granted = s->granted;
  pthread_mutex_unlock(&s->mu);
  tm_pack_init(&w, &b);
  tm_term_pack(&w, &granted);
  tm_status st = w.status ? w.status : tm_conn_send(c, &f, &b, NULL, 0, NULL, NULL);
  tm_buf_release(&b);
  if (st) tm_conn_close(c, st, "a claim cannot be answered");
}

/* --- starts --- */

static tm_status server_start_ps(tm_server *s, tm_conn *c, const tm_start *start,
                                 uint64_t id, tm_err *err) {
  tm_conn_limits lim = {SERVER_MAX_FRAME, start->heartbeat_ns, start->silence_ns};
  tm_frame f = {.kind = TM_F_OK, .id = id};
  tm_conn_set_limits(c, &lim);
  uintptr_t starts = atomic_load(&s->starts);
  if (!start->resume) starts = atomic_fetch_add(&s->starts, 1) + 1;
  tm_conn_set_user(c, (void *)starts);
  if (!start->resume &&
      tm_ps_service_reset(s->ps, start->replicas ? -1 : start->index, starts))
    return tm_nomem(err, "a store");
  if (tm_conn_send(c, &f, NULL, NULL, 0, NULL, NULL))
    tm_conn_close(c, TM_EUNAVAILABLE, "the start cannot be answered");
  return TM_OK;
}

static tm_status server_stays(tm_server *s, tm_err *err) {
  pthread_mutex_lock(&s->mu);
  bool leaving = s->leaving;
  pthread_mutex_unlock(&s->mu);
  if (!leaving) return TM_OK;
  return tm_fail(err, TM_EUNAVAILABLE,
                 "%s is leaving: wait for the one that replaces it", s->self.task);
}

/* A chief starts this task anew. */
static void server_start(tm_server *s, tm_conn *c, tm_message *m) {
  tm_start start;
  tm_err err;
  tm_err_clear(&err);
  tm_status st = tm_start_unpack(m->meta, m->f.meta_bytes, &start, &err);
  if (st == TM_OK) st = server_stays(s, &err);
  /* Who only lost the connection must be the one who started this ps. */
  if (st == TM_OK && start.resume)
    st = server_check_term(s, &tm_conn_peer(c)->term, &err);
  pthread_mutex_lock(&s->starting);
  if (st == TM_OK) st = server_grant(s, c, &start, &err);
  if (st == TM_OK && s->ps) st = server_start_ps(s, c, &start, m->f.id, &err);
  pthread_mutex_unlock(&s->starting);
  if (st == TM_OK && s->worker) (void)tm_worker_service_message(s->worker, c, m);
  tm_start_release(&start);
  if (st == TM_OK) return;
  if (st != TM_EUNAVAILABLE) tm_log(TM_LOG_WARN, "%s: %s", s->self.task, err.msg);
  if (tm_conn_send_error(c, m->f.id, &err))
    tm_conn_close(c, st, "the start cannot be answered");
}

void tm_server_stop(tm_server *s) {
  pthread_mutex_lock(&s->mu);
  s->stop = true;
  pthread_mutex_unlock(&s->mu);
}

void tm_server_leave(tm_server *s, const char *why, double grace) {
  pthread_mutex_lock(&s->mu);
  bool first = !s->leaving;
  tm_conn *chief = first && s->chief ? tm_conn_ref(s->chief) : NULL;
  if (first) s->leave_by = tm_now_ns() + (int64_t)(grace * 1e9);
  s->leaving = true;
  pthread_mutex_unlock(&s->mu);
  if (!first) return;
  if (chief)
    tm_log(TM_LOG_INFO, "%s leaves, within %g s: %s", s->self.task, grace, why);
  if (chief && tm_leaving_send(chief, why))
    tm_conn_close(chief, TM_EUNAVAILABLE, "it cannot be told that this task leaves");
  tm_conn_unref(chief);
  if (s->worker) tm_worker_service_leave(s->worker, why);
}

/* Messages on a connection of an earlier term (2) or start (3). */
static bool server_refuse_old(tm_server *s, tm_conn *c, const tm_message *m,
                              bool control) {
  tm_err err;
  if (control ? m->f.kind == TM_F_CLAIM
              : (uintptr_t)tm_conn_user(c) == atomic_load(&s->starts))
    return false;
  tm_err_clear(&err);
  tm_status st = server_check_term(s, &tm_conn_peer(c)->term, &err);
  if (control && st != TM_EABORTED) return false;
  if (st == TM_OK)
    tm_fail(&err, TM_EUNAVAILABLE, "%s was started anew meanwhile", s->self.task);
  if (tm_conn_send_error(c, m->f.id, &err)) tm_conn_close(c, err.code, err.msg);
  return true;
}

static void server_message(void *ud, tm_conn *c, tm_message *m) {
  tm_server *s = ud;
  bool control = strcmp(tm_conn_peer(c)->purpose, "control") == 0;
  if (server_refuse_old(s, c, m, control)) return;
  if (control && m->f.kind == TM_F_STOP) {
    tm_server_stop(s);
  } else if (control && m->f.kind == TM_F_CLAIM) {
    server_answer_claim(s, c, m);
  } else if (control && m->f.kind == TM_F_START) {
    server_start(s, c, m);
  } else if (control && s->worker && tm_worker_service_message(s->worker, c, m)) {
    return;
  } else if (!s->ps || !tm_ps_service_message(s->ps, c, m)) {
    tm_log(TM_LOG_WARN, "%s: %s sent a frame of kind %u, which has no place here",
           s->self.task, tm_conn_peer(c)->task, (unsigned)m->f.kind);
    tm_conn_close(c, TM_EINVAL, "a frame that has no place here");
  }
}

static void server_closed(void *ud, tm_conn *c, const tm_err *why) {
  tm_server *s = ud;
  (void)why;
  if (s->worker) tm_worker_service_closed(s->worker, c);
  if (s->ps) tm_ps_service_closed(s->ps, c);
  pthread_mutex_lock(&s->mu);
  bool mine = s->chief == c;
  if (mine) {
    s->chief = NULL;
    s->alone_since = tm_now_ns();
  }
  pthread_mutex_unlock(&s->mu);
  if (mine) tm_conn_unref(c);
}

static tm_status server_hello(void *ud, tm_conn *c, const tm_hello *peer, tm_err *err) {
  tm_server *s = ud;
  if (strcmp(peer->purpose, "control") == 0) return TM_OK;
  if (s->worker)
    return tm_fail(err, TM_EINVAL, "%s is a worker: it holds no variables",
                   s->self.task);
  uintptr_t starts = atomic_load(&s->starts);
  TM_TRY(server_check_term(s, &peer->term, err));
  tm_conn_set_user(c, (void *)starts);
  return TM_OK;
}

static tm_status server_listen(tm_server *s, const tm_server_options *opt,
                               tm_err *err) {
  int threads = opt->threads;
  if (threads < 1) threads = s->worker ? 1 : sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 2 : 1;
  if (threads > 64) threads = 64;
  if (tm_netloop_new(threads, &s->loop)) return tm_nomem(err, "a server");
  tm_listen_options o = {.address = opt->address,
                         .self = s->self,
                         .data = {SERVER_MAX_FRAME, 0, SERVER_SILENCE_NS},
                         .control = {SERVER_MAX_FRAME, 1000000000, SERVER_SILENCE_NS},
                         .events = {server_hello, server_message, server_closed, s}};
  return tm_netloop_listen(s->loop, &o, &s->port, err);
}

static tm_status server_service(tm_server *s, const char *job, tm_err *err) {
  tm_status st = TM_OK;
  if (strcmp(job, "ps") == 0)
    st = tm_ps_service_new(s->self.task, &s->ps);
  else if (strcmp(job, "worker") == 0)
    st = tm_worker_service_new(&s->self, &s->worker);
  else
    return tm_fail(err, TM_EINVAL, "job \"%.40s\" does not serve: worker and ps do",
                   job);
  return st ? tm_nomem(err, "a server") : TM_OK;
}

tm_status tm_server_start(const tm_server_options *opt, tm_server **out, tm_err *err) {
  *out = NULL;
  TM_TRY(tm_ops_init(err));
  tm_server *s = tm_calloc(1, sizeof *s);
  if (!s) return tm_nomem(err, "a server");
  pthread_mutex_init(&s->mu, NULL);
  pthread_mutex_init(&s->starting, NULL);
  s->opt = *opt;
  s->chief_timeout = opt->chief_timeout < 0 ? SERVER_ALONE_S : opt->chief_timeout;
  s->alone_since = tm_now_ns();
  s->self.incarnation = tm_random_id();
  snprintf(s->self.task, sizeof s->self.task, "/job:%s/task:%d", opt->job, opt->index);
  snprintf(s->self.cluster, sizeof s->self.cluster, "%s",
           opt->cluster_id ? opt->cluster_id : "");
  tm_status st = server_service(s, opt->job, err);
  if (st == TM_OK) st = server_listen(s, opt, err);
  if (st) {
    if (err && !err->task[0]) memcpy(err->task, s->self.task, sizeof err->task);
    tm_server_free(s);
    return st;
  }
  *out = s;
  return TM_OK;
}

uint16_t tm_server_port(const tm_server *s) { return s->port; }
const char *tm_server_task(const tm_server *s) { return s->self.task; }

/* What join ends with now; TM_EAGAIN: it goes on. */
static tm_status server_look(tm_server *s, tm_cancel *cancel, tm_err *err) {
  pthread_mutex_lock(&s->mu);
  bool stop = s->stop, alone = s->chief == NULL, gone = alone && s->had_one;
  double seconds = (double)(tm_now_ns() - s->alone_since) * 1e-9;
  double most = s->chief_timeout;
  bool leaving = s->leaving, late = leaving && tm_now_ns() >= s->leave_by;
  pthread_mutex_unlock(&s->mu);
  if (stop || (gone && s->opt.once) || (leaving && alone)) return TM_OK;
  if (late && s->ps) return TM_OK;
  if (late)
    return tm_fail(err, TM_ETIMEOUT, "%s did not finish within its grace period",
                   s->self.task);
  if (tm_cancelled(cancel))
    return tm_fail(err, TM_ECANCELLED, "%s was cancelled", s->self.task);
  if (alone && most > 0 && seconds > most)
    return tm_fail(err, TM_ETIMEOUT, "%s: no chief came for %g s", s->self.task, most);
  return TM_EAGAIN;
}

tm_status tm_server_join(tm_server *s, tm_cancel *cancel, tm_err *err) {
  tm_status st;
  while ((st = server_look(s, cancel, err)) == TM_EAGAIN) tm_sleep_ns(20000000);
  return st;
}

tm_status tm_server_wait(tm_server *s, int64_t timeout_ns, tm_cancel *cancel,
                         tm_err *err) {
  int64_t until = tm_now_ns() + timeout_ns;
  tm_status st;
  while ((st = server_look(s, cancel, err)) == TM_EAGAIN && tm_now_ns() < until)
    tm_sleep_ns(timeout_ns < 20000000 ? timeout_ns : 20000000);
  return st;
}

void tm_server_free(tm_server *s) {
  if (!s) return;
  if (s->ps) tm_ps_service_stop(s->ps);
  tm_netloop_free(s->loop);
  tm_worker_service_free(s->worker);
  tm_ps_service_free(s->ps);
  pthread_mutex_destroy(&s->mu);
  pthread_mutex_destroy(&s->starting);
  tm_free(s, sizeof *s);
}
