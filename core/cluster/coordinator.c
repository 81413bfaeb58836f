#include "cluster/coordinator.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "cluster/coord_queue.h"
#include "cluster/remote_value.h"

/*
 * Design.  One mutex guards everything; no thread hands work on: schedule dispatches in
 * the caller's thread, completions refill their worker in the worker's thread.  A small
 * thread of its own (the janitor) looks after lost workers, because that may block.
 *
 * Invariants:
 *   (1) A closure is queued, or in the `out` table of one worker, or finished.
 *   (2) While `failed` is set nothing is queued and nothing is dispatched; it is raised
 *       when no closure is out, once, and cleared.  After `lost` it is never cleared.
 *   (3) links' submit, cancel and add functions neither block nor call back.
 *   (4) outstanding closures of a worker <= window <= COORD_WINDOW_MAX.
 */
enum { COORD_WINDOW_MIN = 2, COORD_WINDOW_MAX = 256 };
static const double COORD_AHEAD_S = 0.002; /* work that a worker may hold */

typedef struct coord_worker {
  tm_worker_link *link;
  tm_coordinator *owner;
  int32_t index;
  bool up, lost; /* lost: the janitor has not dealt with it yet */
  tm_err why;
  coord_queue out; /* handed out, in order */
  size_t window;
  double rate; /* closures a second, smoothed */
  int64_t last_ns;
  tm_worker_stats stats;
} coord_worker;

struct tm_coordinator {
  pthread_mutex_t mu;
  pthread_cond_t changed; /* room, completion, error */
  pthread_cond_t work;    /* for the janitor */
  pthread_t janitor;
  bool closing;
  coord_queue queue;
  tm_remote_hub *hub;
  uint64_t next_id;
  uint64_t iterators; /* made so far */
  int64_t running;
  bool failed, lost;
  tm_err failure, lost_why;
  int32_t nworker, last_lost;
  coord_worker *worker;
  tm_coordinator_options opt;
  tm_coordinator_stats stats;
};

/* --- dispatch (mu held) --- */

static void coord_item_free(coord_item *it) {
  for (int32_t i = 0; i < it->narg; i++) tm_tensor_unref(it->arg[i].t);
  tm_free(it->arg, (size_t)it->narg * sizeof *it->arg);
  tm_graph_unref(it->graph);
  tm_remote_value_unref(it->value);
  tm_free(it, sizeof *it);
}

static coord_worker *coord_pick(tm_coordinator *c) {
  coord_worker *best = NULL;
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = &c->worker[i];
    if (!w->up || w->out.n >= w->window) continue;
    if (!best || w->out.n < best->out.n ||
        (w->out.n == best->out.n && w->rate > best->rate * 1.5))
      best = w;
  }
  return best;
}

static bool coord_any_up(const tm_coordinator *c) {
  for (int32_t i = 0; i < c->nworker; i++)
    if (c->worker[i].up || c->worker[i].lost) return true;
  return false;
}

/* The lowest unfinished closure: queues are in order. */
static uint64_t coord_lowest(const tm_coordinator *c) {
  const coord_item *head = coord_queue_head(&c->queue);
  uint64_t low = head ? head->id : c->next_id;
  for (int32_t i = 0; i < c->nworker; i++) {
    head = coord_queue_head(&c->worker[i].out);
    if (head && head->id < low) low = head->id;
  }
  return low;
}

static void coord_cancel_item(coord_item *it) {
  tm_err err;
  tm_err_clear(&err);
  tm_fail(&err, TM_ECANCELLED, "the function was cancelled; schedule it again");
  err.step = (int64_t)it->id;
  if (it->value) tm_remote_value_fail(it->value, &err);
  coord_item_free(it);
}

static void coord_fail(tm_coordinator *c, const tm_err *err) {
  if (!c->failed) {
    c->failed = true;
    c->failure = *err;
  }
  coord_item *it;
  while ((it = coord_queue_pop(&c->queue))) coord_cancel_item(it);
  for (int32_t i = 0; i < c->nworker; i++)
    if (c->worker[i].up) c->worker[i].link->cancel(c->worker[i].link, c->next_id - 1);
  pthread_cond_broadcast(&c->changed);
}

/* Hand `it` to w.  On failure the closure goes back to the front. */
static bool coord_hand_out(tm_coordinator *c, coord_worker *w, coord_item *it,
                           uint64_t lowest) {
  tm_closure cl = {it->id,   lowest,  it->graph,
                   it->narg, it->arg, it->value && tm_remote_value_wanted(it->value)};
  tm_err err;
  tm_err_clear(&err);
  tm_status s = w->link->submit(w->link, &cl, 1, &err);
  if (s == TM_OK && (s = coord_queue_push(&w->out, it)) == TM_OK) {
    c->running++;
    return true;
  }
  coord_queue_push_front(&c->queue, it);
  if (s != TM_EAGAIN && s != TM_EUNAVAILABLE) {
    if (err.code == TM_OK)
      tm_fail(&err, s, "closure %" PRIu64 " cannot be sent", it->id);
    coord_fail(c, &err);
  }
  return false;
}

static void coord_dispatch(tm_coordinator *c) {
  coord_worker *w;
  if (!coord_queue_head(&c->queue) || !(w = coord_pick(c))) return;
  uint64_t lowest = coord_lowest(c);
  do {
    if (!coord_hand_out(c, w, coord_queue_pop(&c->queue), lowest)) return;
  } while (coord_queue_head(&c->queue) && (w = coord_pick(c)));
}

/* --- completions (a worker's thread) --- */

static void coord_pace(coord_worker *w, int32_t n) {
  int64_t now = tm_now_ns();
  double dt = (double)(now - w->last_ns) * 1e-9;
  w->last_ns = now;
  double rate = (double)n / (dt > 1e-7 ? dt : 1e-7);
  w->rate = w->rate > 0 ? 0.8 * w->rate + 0.2 * rate : rate;
  double want = w->rate * COORD_AHEAD_S;
  w->window = want < COORD_WINDOW_MIN   ? COORD_WINDOW_MIN
              : want > COORD_WINDOW_MAX ? COORD_WINDOW_MAX
                                        : (size_t)want;
}

static void coord_account(tm_coordinator *c, coord_worker *w, const tm_completion *d) {
  w->stats.reads += d->count.reads;
  w->stats.updates += d->count.updates;
  c->stats.reads += d->count.reads;
  c->stats.updates += d->count.updates;
  c->stats.bytes_read += d->count.bytes_read;
  c->stats.bytes_updated += d->count.bytes_updated;
  if (d->status) return;
  w->stats.steps++;
  c->stats.steps++;
}

static void coord_finish(tm_coordinator *c, coord_worker *w, const tm_completion *d) {
  coord_item *it = coord_queue_remove(&w->out, d->id);
  if (!it) return; /* it was taken back when the worker was thought lost */
  c->running--;
  coord_account(c, w, d);
  if (d->status == TM_OK) {
    if (it->value) tm_remote_value_set(it->value, d->out, d->nout);
  } else {
    if (it->value) tm_remote_value_fail(it->value, &d->err);
    if (!(d->status == TM_ECANCELLED && c->failed)) coord_fail(c, &d->err);
  }
  coord_item_free(it);
}

static void coord_on_done(void *ud, const tm_completion *d, int32_t n) {
  coord_worker *w = ud;
  tm_coordinator *c = w->owner;
  pthread_mutex_lock(&c->mu);
  coord_pace(w, n);
  for (int32_t i = 0; i < n; i++) coord_finish(c, w, &d[i]);
  if (!c->failed) coord_dispatch(c);
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->mu);
}

static void coord_on_down(void *ud, const tm_err *why) {
  coord_worker *w = ud;
  tm_coordinator *c = w->owner;
  pthread_mutex_lock(&c->mu);
  w->up = false;
  w->lost = true;
  w->stats.state = "down";
  w->why = *why;
  c->last_lost = w->index;
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->mu);
}

/* --- the janitor --- */

/* A lost worker's closures go to the front, in order (mu held). */
static void coord_take_back(tm_coordinator *c, coord_worker *w) {
  c->running -= (int64_t)w->out.n;
  c->stats.retries += w->out.n;
  coord_queue_give_back(&c->queue, &w->out);
}

static tm_status coord_no_worker(const tm_coordinator *c, tm_err *err) {
  const coord_worker *w = &c->worker[c->last_lost];
  if (err && !err->task[0]) memcpy(err->task, w->link->task, sizeof err->task);
  return tm_fail(err, TM_EUNAVAILABLE, "no worker is left; the last one ended: %s",
                 w->why.msg);
}

static void coord_bury(tm_coordinator *c, coord_worker *w) {
  tm_err err;
  tm_err_clear(&err);
  tm_log(TM_LOG_WARN, "%s is lost: %s", w->link->task, w->why.msg);
  pthread_mutex_unlock(&c->mu);
  tm_status s = c->opt.refuse ? c->opt.refuse(c->opt.ud, w->index, &err) : TM_OK;
  pthread_mutex_lock(&c->mu);
  w->lost = false;
  coord_take_back(c, w);
  if (s) {
    coord_fail(c, &err);
  } else if (c->failed) {
    coord_fail(c, &c->failure);
  } else if (!coord_any_up(c)) {
    tm_err all;
    tm_err_clear(&all);
    if (coord_no_worker(c, &all)) coord_fail(c, &all);
  } else {
    coord_dispatch(c);
  }
  pthread_cond_broadcast(&c->changed);
}

static void *coord_janitor(void *p) {
  tm_coordinator *c = p;
  pthread_mutex_lock(&c->mu);
  while (!c->closing) {
    coord_worker *lost = NULL;
    for (int32_t i = 0; i < c->nworker && !lost; i++)
      if (c->worker[i].lost) lost = &c->worker[i];
    if (lost) {
      coord_bury(c, lost);
    } else {
      pthread_cond_wait(&c->work, &c->mu);
    }
  }
  pthread_mutex_unlock(&c->mu);
  return NULL;
}

/* --- construction --- */

static void coord_release(tm_coordinator *c) {
  coord_item *it;
  for (int32_t i = 0; i < c->nworker; i++)
    coord_queue_give_back(&c->queue, &c->worker[i].out);
  while ((it = coord_queue_pop(&c->queue))) coord_cancel_item(it);
  tm_free(c->worker, (size_t)c->nworker * sizeof *c->worker);
  tm_remote_hub_unref(c->hub);
  pthread_mutex_destroy(&c->mu);
  pthread_cond_destroy(&c->changed);
  pthread_cond_destroy(&c->work);
  tm_free(c, sizeof *c);
}

static void coord_attach(tm_coordinator *c, tm_worker_link *const *link) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = &c->worker[i];
    w->link = link[i];
    w->owner = c;
    w->index = i;
    w->up = true;
    w->window = COORD_WINDOW_MIN;
    w->stats.state = "ready";
    w->link->ud = w;
    w->link->on_done = coord_on_done;
    w->link->on_down = coord_on_down;
  }
}

tm_status tm_coordinator_new(const tm_coordinator_options *opt,
                             tm_worker_link *const *link, int32_t n,
                             tm_coordinator **out, tm_err *err) {
  *out = NULL;
  if (opt->queue_size < 1)
    return tm_fail(err, TM_EINVAL, "queue_size must be positive, it is %" PRId64,
                   opt->queue_size);
  tm_coordinator *c = tm_calloc(1, sizeof *c);
  if (!c) return tm_nomem(err, "a coordinator");
  pthread_mutex_init(&c->mu, NULL);
  tm_cond_init_monotonic(&c->changed);
  tm_cond_init_monotonic(&c->work);
  c->opt = *opt;
  c->next_id = 1;
  coord_queue_init(&c->queue, (size_t)opt->queue_size);
  c->worker = tm_calloc((size_t)n, sizeof *c->worker);
  if (!c->worker) goto fail;
  c->nworker = n;
  if (tm_remote_hub_new(&c->hub)) goto fail;
  for (int32_t i = 0; i < n; i++) coord_queue_init(&c->worker[i].out, COORD_WINDOW_MAX);
  if (pthread_create(&c->janitor, NULL, coord_janitor, c)) goto fail;
  coord_attach(c, link);
  *out = c;
  return TM_OK;

fail:
  coord_release(c);
  return tm_nomem(err, "a coordinator");
}

void tm_coordinator_free(tm_coordinator *c) {
  if (!c) return;
  pthread_mutex_lock(&c->mu);
  c->closing = true;
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->mu);
  pthread_join(c->janitor, NULL);
  for (int32_t i = 0; i < c->nworker; i++) c->worker[i].link->close(c->worker[i].link);
  coord_release(c);
}

/* --- schedule, join, done --- */

/* Raise the pending error once nothing runs (mu held). */
static tm_status coord_raise(tm_coordinator *c, int64_t deadline_ns, tm_cancel *cancel,
                             tm_err *err) {
  if (!c->failed) return TM_OK;
  while (c->running > 0) {
    tm_status s = tm_cond_wait_until(&c->changed, &c->mu, deadline_ns, cancel);
    if (s) return tm_fail(err, s, "waiting for functions that are being cancelled");
  }
  tm_status s = c->failure.code;
  if (err) *err = c->failure;
  c->failed = c->lost;
  c->failure = c->lost_why;
  return s;
}

static tm_status coord_item_new(tm_coordinator *c, tm_graph *g, const tm_carg *arg,
                                int32_t narg, coord_item **out) {
  coord_item *it = tm_calloc(1, sizeof *it);
  if (!it) return TM_ENOMEM;
  it->graph = tm_graph_ref(g);
  it->narg = narg;
  if (narg) it->arg = tm_calloc((size_t)narg, sizeof *it->arg);
  if (narg && !it->arg) it->narg = 0;
  for (int32_t i = 0; i < it->narg; i++) {
    it->arg[i].t = arg[i].kind == TM_CARG_TENSOR ? tm_tensor_ref(arg[i].t) : NULL;
    it->arg[i].iterator = arg[i].resource;
  }
  if (it->narg == narg && tm_remote_value_new(c->hub, &it->value) == TM_OK) {
    *out = it;
    return TM_OK;
  }
  coord_item_free(it);
  return TM_ENOMEM;
}

static tm_status coord_check_args(const tm_graph *g, const tm_carg *arg, int32_t narg,
                                  tm_err *err) {
  if (narg != g->narg)
    return tm_fail(err, TM_EINVAL, "%s takes %d arguments, got %d", g->name, g->narg,
                   narg);
  for (int32_t i = 0; i < narg; i++)
    if (g->arg[i].iterator != (arg[i].kind == TM_CARG_PER_WORKER))
      return tm_fail(err, TM_EINVAL, "%s: argument %d must be %s", g->name, i + 1,
                     g->arg[i].iterator ? "a per-worker iterator" : "a tensor");
  return TM_OK;
}

tm_status tm_coordinator_schedule(tm_coordinator *c, tm_graph *g, const tm_carg *arg,
                                  int32_t narg, tm_remote_value **value, tm_err *err) {
  coord_item *it = NULL;
  if (value) *value = NULL;
  TM_TRY(coord_check_args(g, arg, narg, err));
  pthread_mutex_lock(&c->mu);
  tm_status s = coord_raise(c, -1, NULL, err);
  if (s == TM_OK && coord_queue_full(&c->queue)) s = TM_EAGAIN;
  if (s == TM_OK && !coord_any_up(c)) s = coord_no_worker(c, err);
  if (s == TM_OK && coord_item_new(c, g, arg, narg, &it))
    s = tm_nomem(err, "a closure");
  if (s == TM_OK) {
    it->id = c->next_id++;
    tm_remote_value_set_step(it->value, it->id);
    if (value) {
      *value = tm_remote_value_ref(it->value);
    } else {
      tm_remote_value_unref(it->value);
      it->value = NULL;
    }
    s = coord_queue_push(&c->queue, it);
    TM_DCHECK(s == TM_OK);
    coord_dispatch(c);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

static int64_t coord_deadline(int64_t timeout_ns) {
  return timeout_ns < 0 ? -1 : tm_now_ns() + timeout_ns;
}

static bool coord_idle(const tm_coordinator *c) {
  return c->running == 0 && !coord_queue_head(&c->queue);
}

static tm_status coord_wait(tm_coordinator *c, bool for_room, int64_t timeout_ns,
                            tm_cancel *cancel, tm_err *err) {
  int64_t deadline = coord_deadline(timeout_ns);
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  while (!c->failed && (for_room ? coord_queue_full(&c->queue) : !coord_idle(c))) {
    s = tm_cond_wait_until(&c->changed, &c->mu, deadline, cancel);
    if (s == TM_OK) continue;
    s = tm_fail(
        err, s,
        s == TM_ETIMEOUT ? "%s: time is up; %" PRId64 " functions run, %zu wait"
                         : "%s: interrupted; %" PRId64 " functions run, %zu wait",
        for_room ? "schedule" : "join", c->running, coord_queue_count(&c->queue));
    break;
  }
  if (s == TM_OK) s = coord_raise(c, deadline, cancel, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_wait_room(tm_coordinator *c, int64_t timeout_ns,
                                   tm_cancel *cancel, tm_err *err) {
  return coord_wait(c, true, timeout_ns, cancel, err);
}

tm_status tm_coordinator_join(tm_coordinator *c, int64_t timeout_ns, tm_cancel *cancel,
                              tm_err *err) {
  return coord_wait(c, false, timeout_ns, cancel, err);
}

tm_status tm_coordinator_done(tm_coordinator *c, bool *done, tm_err *err) {
  pthread_mutex_lock(&c->mu);
  tm_status s = coord_raise(c, -1, NULL, err);
  *done = coord_idle(c);
  pthread_mutex_unlock(&c->mu);
  return s;
}

void tm_coordinator_lose(tm_coordinator *c, const tm_err *why) {
  pthread_mutex_lock(&c->mu);
  if (!c->lost) {
    c->lost = true;
    c->lost_why = *why;
    coord_fail(c, why);
  }
  pthread_mutex_unlock(&c->mu);
}

/* --- resources, variables, counters --- */

tm_status tm_coordinator_add_iterator(tm_coordinator *c, uint64_t uid, tm_dataset *ds,
                                      uint64_t seed, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  seed = tm_mix64(seed + c->iterators++); /* each iterator shuffles in its own way */
  for (int32_t i = 0; i < c->nworker && s == TM_OK; i++) {
    tm_worker_link *l = c->worker[i].link;
    if (c->worker[i].up) s = l->add_iterator(l, uid, ds, seed, err);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

void tm_coordinator_drop(tm_coordinator *c, uint64_t uid) {
  for (int32_t i = 0; i < c->nworker; i++) {
    tm_worker_link *l = c->worker[i].link;
    pthread_mutex_lock(&c->mu);
    bool up = c->worker[i].up;
    pthread_mutex_unlock(&c->mu);
    if (up && l->drop(l, uid))
      continue; /* a worker that is going down drops it anyway */
  }
}

tm_status tm_coordinator_add_variable(tm_coordinator *c, tm_var_info *v, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  for (int32_t i = 0; i < c->nworker && s == TM_OK; i++) {
    tm_worker_link *l = c->worker[i].link;
    if (c->worker[i].up) s = l->add_variable(l, v, err);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

void tm_coordinator_get_stats(tm_coordinator *c, tm_coordinator_stats *out,
                              tm_worker_stats *workers, int32_t max) {
  pthread_mutex_lock(&c->mu);
  *out = c->stats;
  out->queued = (int64_t)coord_queue_count(&c->queue);
  out->running = c->running;
  out->nworker = c->nworker;
  for (int32_t i = 0; i < c->nworker && i < max; i++) workers[i] = c->worker[i].stats;
  pthread_mutex_unlock(&c->mu);
}
