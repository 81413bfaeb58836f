#include "cluster/worker.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cluster/gate.h"
#include "cluster/locals.h"
#include "cluster/programs.h"

/*
 * Design.  One compute thread; `pend` is a closure whose last UPDATEs are not sent yet,
 * `next` one whose batch is fetched.  Each turn sends UPDATE(pend) and READ(next) in
 * one exchange, fetches the batch of the closure after that while the answer is under
 * way, then completes pend and computes next, which becomes pend.
 *
 * Invariants:
 *   (1) Closures start, and complete, in the order in which they were submitted
 *       (cancelled ones may be told earlier).
 *   (2) A closure fetched ahead has not started: what it took from iterators is marked,
 *       committed when it starts and rolled back when it is cancelled or recalled.
 *       There is at most one: `ahead`, 0 when there is none.
 *   (3) Every submitted closure is told to on_done exactly once (not after close).
 *   (4) The queue is a ring of fixed size; submit on a full one is TM_EAGAIN.
 */
enum { WORKER_QUEUE = 1024, WORKER_BATCH = 64 };
static const int64_t WORKER_FLUSH_NS = 500000; /* how long a completion may wait */

typedef struct worker_run {
  tm_closure c; /* owns graph and arguments */
  tm_program_slot *slot;
  tm_step *step;
  tm_update *up;
  int32_t nup;
  tm_vars_counters count;
  int32_t ntook;
  tm_took took[TM_MAX_TOOK]; /* of dealt iterators since the fetch, others at the end */
  uint32_t turn;             /* exchanges with UPDATEs so far */
  tm_status fetched; /* how the fetch stage ended; told when the closure starts */
  tm_err fetch_err;
  bool busy;     /* in use */
  bool started;  /* counted in started */
  bool recalled; /* told already */
} worker_run;

typedef struct worker {
  tm_worker_link link; /* first */
  tm_worker_options opt;
  tm_vars *vars;
  tm_resources *resources;
  tm_locals *locals;
  tm_programs *programs;
  tm_run_env env;
  tm_cancel cancel; /* of the closure that runs */
  pthread_t thread;
  pthread_mutex_t mu;
  pthread_cond_t more;
  tm_gate gate;
  bool stop;             /* guarded by mu */
  uint64_t running;      /* guarded by mu: id of the closure that runs, 0 = none */
  uint64_t cancel_upto;  /* guarded by mu */
  uint64_t ahead;        /* guarded by mu: taken from the ring, not started; 0 = none */
  bool recalled;         /* guarded by mu: `ahead` was told to come back */
  int32_t started;       /* guarded by mu: started and not completed */
  tm_closure *ring;      /* guarded by mu; WORKER_QUEUE */
  uint32_t head, queued; /* guarded by mu */
  worker_run run[3];     /* compute thread only, as all below */
  tm_completion done[WORKER_BATCH];
  int32_t ndone;
  int64_t oldest_ns;
} worker;

static void worker_closure_release(tm_closure *c) {
  for (int32_t i = 0; i < c->narg; i++) tm_tensor_unref(c->arg[i].t);
  tm_free(c->arg, (size_t)c->narg * sizeof *c->arg);
  if (c->deal) tm_free((void *)c->deal, (size_t)c->narg * sizeof *c->deal);
  tm_graph_unref(c->graph);
  memset(c, 0, sizeof *c);
}

/* --- completions --- */

static void worker_flush(worker *w) {
  if (w->ndone == 0) return;
  w->link.on_done(w->link.ud, w->done, w->ndone);
  for (int32_t i = 0; i < w->ndone; i++) {
    tm_completion *d = &w->done[i];
    for (int32_t k = 0; k < d->nout; k++) tm_tensor_unref(d->out[k]);
    tm_free(d->out, (size_t)d->nout * sizeof *d->out);
  }
  w->ndone = 0;
}

static void worker_say(worker *w, const tm_closure *c, const tm_vars_counters *count,
                       tm_status s, const tm_err *err) {
  if (w->ndone == 0) w->oldest_ns = tm_now_ns();
  tm_completion *d = &w->done[w->ndone++];
  d->id = c->id;
  d->status = s;
  d->nout = 0;
  d->out = NULL;
  d->count = *count;
  d->ntook = 0;
  tm_err_clear(&d->err);
  if (s == TM_OK) return;
  if (err) d->err = *err;
  d->err.code = s;
  d->err.step = (int64_t)c->id;
  if (!d->err.task[0]) memcpy(d->err.task, w->link.task, sizeof d->err.task);
  if (!d->err.msg[0])
    snprintf(d->err.msg, sizeof d->err.msg,
             "the function was cancelled; schedule it again");
}

static void worker_say_took(worker *w, const worker_run *r) {
  tm_completion *d = &w->done[w->ndone - 1];
  d->ntook = r->ntook;
  if (r->ntook) memcpy(d->took, r->took, (size_t)r->ntook * sizeof *d->took);
}

/* Outputs go with the completion when somebody wants them. */
static tm_status worker_take_outputs(worker *w, worker_run *r, tm_err *err) {
  tm_completion *d = &w->done[w->ndone - 1];
  int32_t n = r->c.graph->nout;
  if (!r->c.want || n == 0) return TM_OK;
  tm_tensor **out = tm_calloc((size_t)n, sizeof *out);
  if (!out) return tm_nomem(err, "results");
  tm_status s = tm_step_outputs(r->step, out, err);
  if (s) {
    tm_free(out, (size_t)n * sizeof *out);
    return s;
  }
  d->out = out;
  d->nout = n;
  return TM_OK;
}

static void worker_put_run(worker *w, worker_run *r) {
  if (r->started) {
    pthread_mutex_lock(&w->mu);
    w->started--;
    pthread_mutex_unlock(&w->mu);
  }
  if (r->step) tm_programs_give_step(w->programs, r->slot, r->step);
  worker_closure_release(&r->c);
  memset(r, 0, sizeof *r);
}

/* An error is told at once: what is queued need not run. */
static void worker_complete(worker *w, worker_run *r, tm_status s, tm_err *err) {
  tm_err late;
  worker_say(w, &r->c, &r->count, s, err);
  worker_say_took(w, r);
  if (s == TM_OK) {
    tm_err_clear(&late);
    s = worker_take_outputs(w, r, &late);
    if (s) {
      w->ndone--;
      worker_say(w, &r->c, &r->count, s, &late);
      worker_say_took(w, r);
    }
  }
  worker_put_run(w, r);
  if ((s && s != TM_ECANCELLED) || w->ndone == WORKER_BATCH ||
      tm_now_ns() - w->oldest_ns > WORKER_FLUSH_NS)
    worker_flush(w);
}

/* Completions do not wait for a closure that takes long, or when none follows. */
static void worker_flush_before(worker *w, const worker_run *next) {
  if (w->ndone == 0) return;
  int64_t cost = next && next->slot ? tm_programs_cost(next->slot) : WORKER_FLUSH_NS;
  if (cost >= WORKER_FLUSH_NS || tm_now_ns() - w->oldest_ns + cost > WORKER_FLUSH_NS)
    worker_flush(w);
}

/* --- taking closures --- */

/* `ahead` is taken up or dropped: it can be recalled no more.  *recalled: it was. */
static void worker_settle(worker *w, bool *recalled) {
  *recalled = w->recalled;
  w->ahead = 0;
  w->recalled = false;
}

/* The closure just popped was cancelled. */
static bool worker_is_cancelled(worker *w, worker_run *r) {
  pthread_mutex_lock(&w->mu);
  bool yes = r->c.id <= w->cancel_upto;
  if (yes) worker_settle(w, &r->recalled);
  pthread_mutex_unlock(&w->mu);
  return yes;
}

/* The next closure, waiting for one if `wait`; false: none, or stopping. */
static bool worker_pop(worker *w, bool wait, tm_closure *out) {
  bool got = false;
  pthread_mutex_lock(&w->mu);
  if (wait && w->queued == 0 && w->ndone) {
    pthread_mutex_unlock(&w->mu);
    worker_flush(w);
    pthread_mutex_lock(&w->mu);
  }
  while (wait && w->queued == 0 && !w->stop) pthread_cond_wait(&w->more, &w->mu);
  if (w->queued && !w->stop) {
    *out = w->ring[w->head];
    memset(&w->ring[w->head], 0, sizeof *out);
    w->head = (w->head + 1) % WORKER_QUEUE;
    w->queued--;
    w->ahead = out->id;
    got = true;
    /* What was cancelled has ended: its flag is not this one's. */
    if (w->running == 0) tm_cancel_reset(&w->cancel);
  }
  pthread_mutex_unlock(&w->mu);
  return got;
}

static worker_run *worker_free_run(worker *w) {
  for (size_t i = 0; i < TM_COUNT(w->run); i++)
    if (!w->run[i].busy) return &w->run[i];
  TM_DCHECK(!"three runs are in use");
  return NULL;
}

static bool worker_is_dealt(const tm_closure *c, int32_t arg) {
  return c->deal && c->deal[arg].count;
}

static void worker_deal(worker *w, const tm_closure *c) {
  for (int32_t i = 0; c->deal && i < c->narg; i++)
    if (c->deal[i].count)
      tm_resources_deal(w->resources, c->arg[i].iterator, &c->deal[i]);
}

/* The fetch stage took what there is of its deals. */
static void worker_dealt(worker *w, worker_run *r) {
  for (int32_t i = 0, k = 0; r->c.deal && i < r->c.narg && k < TM_MAX_TOOK; i++) {
    if (r->c.arg[i].t) continue;
    if (worker_is_dealt(&r->c, i)) {
      bool end;
      int32_t n = tm_resources_dealt(w->resources, r->c.arg[i].iterator, &end);
      r->took[k] = (tm_took){(uint32_t)n, end};
    }
    k++;
  }
}

/* Bind arguments and run the fetch stage.  What it takes from iterators is marked. */
static tm_status worker_fetch(worker *w, worker_run *r, tm_err *err) {
  tm_locals_build(w->locals, &w->env);
  TM_TRY(tm_locals_check(w->locals, r->c.graph, err));
  TM_TRY(tm_programs_get(w->programs, r->c.graph, &r->slot, err));
  TM_TRY(tm_programs_take_step(w->programs, r->slot, &r->step, err));
  w->env.closure = r->c.draw;
  TM_TRY(tm_step_begin(r->step, r->c.arg, r->c.narg, &w->env, err));
  tm_resources_mark(w->resources);
  worker_deal(w, &r->c);
  tm_status s = tm_step_fetch(r->step, &w->vars->state, err);
  worker_dealt(w, r);
  if (s) tm_resources_rollback(w->resources);
  return s;
}

/* It does not run: it was cancelled, or recalled and told so already. */
static void worker_skip(worker *w, worker_run *r) {
  if (r->recalled)
    worker_put_run(w, r);
  else
    worker_complete(w, r, TM_ECANCELLED, NULL);
}

/* Take a closure and fetch its batch.  NULL: none. */
static worker_run *worker_ahead(worker *w, bool wait) {
  tm_closure c;
  while (worker_pop(w, wait, &c)) {
    worker_run *r = worker_free_run(w);
    r->busy = true;
    r->c = c;
    if (worker_is_cancelled(w, r)) {
      worker_skip(w, r);
      continue;
    }
    tm_err_clear(&r->fetch_err);
    r->fetched = worker_fetch(w, r, &r->fetch_err);
    return r;
  }
  return NULL;
}

/* --- running --- */

/* next starts: its batch counts as used; false when it was cancelled or recalled. */
static bool worker_start(worker *w, worker_run *next) {
  pthread_mutex_lock(&w->mu);
  worker_settle(w, &next->recalled);
  bool go = !next->recalled && next->c.id > w->cancel_upto;
  if (go) {
    w->running = next->c.id;
    w->started++;
    next->started = true;
    if (!w->stop) tm_cancel_reset(&w->cancel);
  }
  pthread_mutex_unlock(&w->mu);
  if (next->fetched) return go; /* rolled back when it failed */
  if (go) {
    tm_resources_commit(w->resources);
  } else {
    tm_resources_rollback(w->resources);
  }
  return go;
}

static void worker_end(worker *w) {
  pthread_mutex_lock(&w->mu);
  w->running = 0;
  pthread_mutex_unlock(&w->mu);
}

/* Requests from here on are r's. */
static void worker_token(worker *w, const worker_run *r) {
  w->vars->token = (tm_ps_token){.incarnation = w->opt.incarnation,
                                 .closure = r->c.id,
                                 .turn = r->turn,
                                 .lowest = r->c.lowest,
                                 .round = r->c.round,
                                 .share = r->c.share};
}

static void worker_count(tm_vars_counters *to, const tm_vars_counters *before,
                         const tm_vars_counters *after, bool up, bool rd) {
  if (up) {
    to->updates += after->updates - before->updates;
    to->bytes_updated += after->bytes_updated - before->bytes_updated;
  }
  if (rd) {
    to->reads += after->reads - before->reads;
    to->bytes_read += after->bytes_read - before->bytes_read;
  }
}

/* --- the gate: whatever has UPDATEs passes it --- */

static void worker_leave_gate(worker *w) {
  uint64_t number = tm_gate_leave(&w->gate);
  if (number && w->link.on_gated) w->link.on_gated(w->link.ud, number);
}

/* An exchange that is waited for. */
static tm_status worker_send(worker *w, const tm_update *up, int32_t nup, tm_read *rd,
                             int32_t nrd, tm_err *err) {
  if (nup) tm_gate_enter(&w->gate);
  tm_status s = w->vars->state.exchange(&w->vars->state, up, nup, rd, nrd, err);
  if (nup) worker_leave_gate(w);
  return s;
}

/* Levels after the READ of level 0 is in.  TM_OK: r->up are its last UPDATEs. */
static tm_status worker_levels(worker *w, worker_run *r, tm_err *err) {
  bool done = false;
  for (;;) {
    TM_TRY(tm_step_compute(r->step, &w->vars->state, &r->up, &r->nup, &done, err));
    if (done) return TM_OK;
    tm_read *rd;
    int32_t nrd;
    TM_TRY(tm_step_reads(r->step, &rd, &nrd, err));
    if (nrd == 0 && r->nup == 0) continue;
    TM_TRY(worker_send(w, r->up, r->nup, rd, nrd, err));
    r->nup = 0;
  }
}

/* What the closure that ends now took from iterators. */
static void worker_took(worker *w, worker_run *r) {
  for (int32_t i = 0; i < r->c.narg && r->ntook < TM_MAX_TOOK; i++) {
    if (r->c.arg[i].t) continue;
    tm_took *t = &r->took[r->ntook++];
    if (worker_is_dealt(&r->c, i)) continue;
    tm_iter_place p = tm_resources_took(w->resources, r->c.arg[i].iterator);
    *t = (tm_took){(uint32_t)p.given, (uint32_t)p.failed};
  }
}

/* Compute `next`, whose READ was answered with rd_status.  Returns it when it has
 * UPDATEs to send, else NULL after completing it. */
static worker_run *worker_compute(worker *w, worker_run *next, tm_status rd_status,
                                  tm_err *err) {
  tm_vars_counters before = w->vars->count;
  worker_token(w, next);
  tm_status s = rd_status ? rd_status : worker_levels(w, next, err);
  worker_count(&next->count, &before, &w->vars->count, true, true);
  worker_took(w, next);
  next->turn = w->vars->token.turn;
  worker_end(w);
  if (s == TM_OK && next->nup) return next;
  worker_complete(w, next, s, err);
  return NULL;
}

/* `next` does not start: pend's UPDATEs still go out. */
static void worker_turn_back(worker *w, worker_run *pend, worker_run *next) {
  tm_err err;
  tm_err_clear(&err);
  if (pend) {
    tm_vars_counters before = w->vars->count;
    worker_token(w, pend);
    tm_status s = worker_send(w, pend->up, pend->nup, NULL, 0, &err);
    worker_count(&pend->count, &before, &w->vars->count, true, false);
    worker_complete(w, pend, s, &err);
  }
  worker_skip(w, next);
}

/* What is sent, and how both parts ended. */
typedef struct worker_parts {
  tm_update *up;
  int32_t nup, nrd;
  tm_read *rd;
  tm_status us, rs;
  tm_err up_err, rd_err;
} worker_parts;

static void worker_gather(worker_run *pend, worker_run *next, worker_parts *p) {
  memset(p, 0, sizeof *p);
  tm_err_clear(&p->up_err);
  tm_err_clear(&p->rd_err);
  if (pend) {
    p->up = pend->up;
    p->nup = pend->nup;
  }
  if (!next) return;
  p->rs = next->fetched;
  p->rd_err = next->fetch_err;
  if (p->rs == TM_OK) p->rs = tm_step_reads(next->step, &p->rd, &p->nrd, &p->rd_err);
  if (p->rs) p->nrd = 0;
}

/* One failure that hits whatever parts were asked for. */
static void worker_parts_fail(worker_parts *p, tm_status up, tm_status rd) {
  if (p->nup) p->us = up;
  if (p->nrd == 0 || rd == TM_OK) return;
  p->rs = rd;
  p->rd_err = p->up_err;
}

static bool worker_may_look_ahead(const worker_run *next) {
  return !next || !next->slot || !tm_programs_late_next(next->slot);
}

/* What cannot be asked for (a bad id) is the fault of one closure: ask for each part by
 * itself, so that the other's stands. */
static void worker_exchange_apart(worker *w, worker_run *pend, worker_parts *p) {
  tm_status us, rs;
  tm_err err;
  worker_token(w, pend);
  p->us = w->vars->state.exchange(&w->vars->state, p->up, p->nup, NULL, 0, &p->up_err);
  tm_err_clear(&err);
  rs = tm_vars_begin(w->vars, NULL, 0, p->rd, p->nrd, &err);
  if (rs == TM_OK && tm_vars_wait(w->vars, &us, &rs, &err) == TM_OK) return;
  p->rs = rs;
  p->rd_err = err;
}

/* UPDATE(pend) and READ(next) in one exchange; *ahead is fetched meanwhile. */
static void worker_exchange_both(worker *w, worker_run *pend, worker_run *next,
                                 worker_run **ahead, worker_parts *p) {
  worker_gather(pend, next, p);
  bool any = p->nup + p->nrd > 0;
  tm_status sent = TM_OK;
  uint32_t turn = pend ? pend->turn : 0;
  if (any) {
    worker_token(w, pend ? pend : next);
    sent = tm_vars_begin(w->vars, p->up, p->nup, p->rd, p->nrd, &p->up_err);
  }
  if (worker_may_look_ahead(next)) *ahead = worker_ahead(w, false);
  if (!any) return;
  if (sent && p->nup && p->nrd && w->vars->token.turn == turn) {
    tm_err_clear(&p->up_err); /* nothing went out yet */
    worker_exchange_apart(w, pend, p);
    return;
  }
  if (sent) {
    worker_parts_fail(p, sent, sent);
    return;
  }
  tm_status up, rd;
  if (tm_vars_wait(w->vars, &up, &rd, &p->up_err)) worker_parts_fail(p, up, rd);
}

static void worker_exchange(worker *w, worker_run *pend, worker_run *next,
                            worker_run **ahead, worker_parts *p) {
  if (pend) tm_gate_enter(&w->gate);
  worker_exchange_both(w, pend, next, ahead, p);
  if (pend) worker_leave_gate(w);
}

static void worker_turn(worker *w, worker_run **pend_at, worker_run **next_at) {
  worker_run *pend = *pend_at, *next = *next_at, *ahead = NULL;
  worker_parts p;
  *pend_at = *next_at = NULL;
  if (next && !worker_start(w, next)) {
    worker_turn_back(w, pend, next);
    return;
  }
  worker_flush_before(w, next);
  tm_vars_counters before = w->vars->count;
  int64_t start = tm_now_ns();
  worker_exchange(w, pend, next, &ahead, &p);
  if (pend) worker_count(&pend->count, &before, &w->vars->count, true, false);
  if (next) worker_count(&next->count, &before, &w->vars->count, false, true);
  if (pend) worker_complete(w, pend, p.us, &p.up_err);
  if (next) {
    tm_program_slot *slot = next->slot;
    worker_flush_before(w, next);
    *pend_at = worker_compute(w, next, p.rs, &p.rd_err);
    if (slot) tm_programs_took(slot, tm_now_ns() - start);
  }
  *next_at = ahead;
}

static void *worker_main(void *p) {
  worker *w = p;
  worker_run *pend = NULL, *next = NULL;
  for (;;) {
    if (!pend && !next) {
      next = worker_ahead(w, true);
      if (!next) break;
    }
    worker_turn(w, &pend, &next);
  }
  worker_flush(w);
  return NULL;
}

/* --- the link --- */

static tm_status worker_copy(const tm_closure *from, tm_closure *to, tm_err *err) {
  *to = *from;
  to->arg = NULL;
  to->deal = NULL;
  if (from->deal) {
    size_t size = (size_t)from->narg * sizeof *to->deal;
    void *deal = tm_malloc(size);
    if (!deal) return tm_nomem(err, "arguments");
    to->deal = memcpy(deal, from->deal, size);
  }
  if (from->narg) {
    to->arg = tm_malloc((size_t)from->narg * sizeof *to->arg);
    if (!to->arg) {
      if (to->deal) tm_free((void *)to->deal, (size_t)from->narg * sizeof *to->deal);
      return tm_nomem(err, "arguments");
    }
    memcpy(to->arg, from->arg, (size_t)from->narg * sizeof *to->arg);
    for (int32_t i = 0; i < to->narg; i++)
      if (to->arg[i].t) tm_tensor_ref(to->arg[i].t);
  }
  tm_graph_ref(to->graph);
  return TM_OK;
}

static tm_status worker_submit(tm_worker_link *l, const tm_closure *c, int32_t n,
                               tm_err *err) {
  worker *w = (worker *)l;
  tm_status s = TM_OK;
  pthread_mutex_lock(&w->mu);
  if (w->queued + (uint32_t)n > WORKER_QUEUE) s = TM_EAGAIN;
  for (int32_t i = 0; i < n && s == TM_OK; i++) {
    s = worker_copy(&c[i], &w->ring[(w->head + w->queued) % WORKER_QUEUE], err);
    if (s == TM_OK) w->queued++;
  }
  pthread_cond_signal(&w->more);
  pthread_mutex_unlock(&w->mu);
  return s;
}

static tm_status worker_add_variable(tm_worker_link *l, tm_var_info *v, tm_err *err) {
  worker *w = (worker *)l;
  return tm_catalog_add(w->vars->catalog, v) ? tm_nomem(err, "a variable's entry")
                                             : TM_OK;
}

static tm_status worker_add_iterator(tm_worker_link *l, uint64_t uid, tm_dataset *ds,
                                     uint64_t seed, tm_iter_place from, bool dealt,
                                     tm_err *err) {
  worker *w = (worker *)l;
  tm_iter *it = NULL;
  tm_iter_env env = {w->opt.index, w->opt.nworker, seed, 0, NULL};
  if (dealt) {
    env.worker = -1; /* no difference between workers */
    env.cancel = &w->cancel;
  }
  tm_err why;
  tm_err_clear(&why);
  tm_status s = tm_dataset_iterate(ds, &env, &it, &why);
  if (s == TM_OK) s = tm_iter_seek(it, from, &why);
  if (s) {
    tm_iter_free(it);
    it = NULL;
  }
  s = tm_resources_add(w->resources, uid, it, &why);
  if (s == TM_OK) return TM_OK;
  tm_iter_free(it);
  return tm_fail(err, s, "iterator: cannot be added to the worker");
}

static tm_status worker_add_locals(tm_worker_link *l, uint64_t uid,
                                   tm_var_info *const *v, int32_t n, tm_graph *init,
                                   tm_err *err) {
  tm_status s = tm_locals_add(((worker *)l)->locals, uid, v, n, init);
  if (s == TM_OK) return s;
  return tm_fail(err, s, "variables of a worker cannot be added to it");
}

static tm_status worker_drop(tm_worker_link *l, uint64_t uid) {
  worker *w = (worker *)l;
  if (!tm_locals_drop(w->locals, uid)) tm_resources_del(w->resources, uid);
  return TM_OK;
}

static void worker_cancel(tm_worker_link *l, uint64_t upto) {
  worker *w = (worker *)l;
  pthread_mutex_lock(&w->mu);
  if (upto > w->cancel_upto) w->cancel_upto = upto;
  if (w->running && w->running <= w->cancel_upto) tm_cancel_set(&w->cancel);
  pthread_mutex_unlock(&w->mu);
}

/* The newest closure that has not started goes back; 0: none may. */
static uint64_t worker_take_back(worker *w, int32_t keep) {
  bool ahead = w->ahead && !w->recalled;
  if (w->started + (int32_t)w->queued + ahead <= keep) return 0;
  if (w->queued) {
    tm_closure *c = &w->ring[(w->head + --w->queued) % WORKER_QUEUE];
    uint64_t id = c->id;
    worker_closure_release(c);
    return id;
  }
  if (!ahead) return 0;
  w->recalled = true;
  return w->ahead;
}

/* In the caller's thread: the compute thread may be busy for long. */
static void worker_recall(tm_worker_link *l, int32_t keep) {
  worker *w = (worker *)l;
  tm_completion d[8];
  int32_t n;
  do {
    uint64_t id;
    pthread_mutex_lock(&w->mu);
    for (n = 0; n < (int32_t)TM_COUNT(d) && (id = worker_take_back(w, keep)); n++) {
      d[n] = (tm_completion){.id = id, .status = TM_EAGAIN};
      tm_fail(&d[n].err, TM_EAGAIN, "it was recalled before it started");
    }
    pthread_mutex_unlock(&w->mu);
    if (n) w->link.on_done(w->link.ud, d, n);
  } while (n == (int32_t)TM_COUNT(d));
}

static void worker_free(worker *w) {
  for (size_t i = 0; i < TM_COUNT(w->run); i++) {
    worker_run *r = &w->run[i];
    if (!r->busy) continue;
    if (r->step) tm_programs_give_step(w->programs, r->slot, r->step);
    worker_closure_release(&r->c);
  }
  for (; w->queued; w->queued--, w->head = (w->head + 1) % WORKER_QUEUE)
    worker_closure_release(&w->ring[w->head]);
  tm_programs_free(w->programs);
  tm_resources_free(w->resources);
  tm_vars_free(w->vars);
  tm_locals_free(w->locals);
  pthread_mutex_destroy(&w->mu);
  pthread_cond_destroy(&w->more);
  tm_gate_release(&w->gate);
  tm_free(w->ring, WORKER_QUEUE * sizeof *w->ring);
  tm_free(w, sizeof *w);
}

static void worker_gate(tm_worker_link *l, uint64_t number, bool closed) {
  worker *w = (worker *)l;
  if (tm_gate_set(&w->gate, number, closed) && l->on_gated) l->on_gated(l->ud, number);
}

static void worker_close(tm_worker_link *l) {
  worker *w = (worker *)l;
  tm_gate_end(&w->gate);
  pthread_mutex_lock(&w->mu);
  w->stop = true;
  w->cancel_upto = UINT64_MAX;
  tm_cancel_set(&w->cancel);
  tm_locals_stop(w->locals);
  pthread_cond_signal(&w->more);
  pthread_mutex_unlock(&w->mu);
  pthread_join(w->thread, NULL);
  worker_free(w);
}

static void worker_no_done(void *ud, const tm_completion *c, int32_t n) {
  (void)ud;
  (void)c;
  (void)n;
}

tm_status tm_worker_local(const tm_worker_options *opt, tm_vars *vars,
                          tm_resources *resources, tm_worker_link **out, tm_err *err) {
  *out = NULL;
  worker *w = tm_calloc(1, sizeof *w);
  if (!w) return tm_nomem(err, "a worker");
  w->ring = tm_calloc(WORKER_QUEUE, sizeof *w->ring);
  if (!w->ring || tm_programs_new(&w->programs)) goto fail;
  w->opt = *opt;
  w->link = (tm_worker_link){.on_done = worker_no_done,
                             .submit = worker_submit,
                             .add_variable = worker_add_variable,
                             .add_iterator = worker_add_iterator,
                             .add_locals = worker_add_locals,
                             .drop = worker_drop,
                             .cancel = worker_cancel,
                             .recall = worker_recall,
                             .gate = worker_gate,
                             .close = worker_close};
  snprintf(w->link.task, sizeof w->link.task, "/job:worker/task:%d", opt->index);
  if (tm_locals_new(vars, w->link.task, &w->locals)) goto fail;
  w->env = (tm_run_env){.seed = opt->seed,
                        .worker = opt->index,
                        .cancel = &w->cancel,
                        .threads = opt->threads};
  pthread_mutex_init(&w->mu, NULL);
  pthread_cond_init(&w->more, NULL);
  tm_gate_init(&w->gate);
  w->vars = vars;
  w->resources = resources;
  vars->resources = resources;
  if (pthread_create(&w->thread, NULL, worker_main, w) == 0) {
    *out = &w->link;
    return TM_OK;
  }
  vars->local->close(vars->local); /* they stay the caller's */
  vars->local = NULL;
  w->vars = NULL;
  w->resources = NULL;
  worker_free(w);
  return tm_fail(err, TM_EEXHAUSTED, "a worker's thread cannot be started");

fail:
  tm_programs_free(w->programs);
  tm_free(w->ring, WORKER_QUEUE * sizeof *w->ring);
  tm_free(w, sizeof *w);
  return tm_nomem(err, "a worker");
}
