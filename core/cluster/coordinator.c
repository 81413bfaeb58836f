#include "cluster/coordinator.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  One mutex guards everything.  schedule dispatches in the caller's thread.
 *
 * Invariants:
 *   (1) A pending error (`failed`) is raised when no closure is out, once, and cleared.
 *       After `lost` it is never cleared.
 *   (2) links' submit, cancel, recall and add functions neither block nor call back.
 */

/* --- construction --- */

static void coord_release(tm_coordinator *c) {
  coord_item *it;
  for (int32_t i = 0; i < c->nworker; i++)
    coord_queue_give_back(&c->queue, &c->worker[i]->out);
  while ((it = coord_queue_pop(&c->queue))) coord_cancel_item(c, it);
  while ((it = coord_queue_pop(&c->rounds.queue))) coord_cancel_item(c, it);
  coord_rounds_void(c, false);
  coord_args_cancel(c);
  for (int32_t i = 0; i < c->nworker; i++) coord_drop_own(c, c->worker[i]);
  tm_map_free(c->apart);
  for (int32_t i = 0; i < c->nworker; i++) coord_worker_free(c->worker[i]);
  tm_free(c->worker, (size_t)c->max_worker * sizeof *c->worker);
  coord_resources_free(c);
  tm_map_free(c->calls);
  coord_rounds_release(c);
  tm_remote_hub_unref(c->hub);
  pthread_mutex_destroy(&c->mu);
  pthread_cond_destroy(&c->changed);
  pthread_cond_destroy(&c->work);
  pthread_mutex_destroy(&c->gate_mu);
  pthread_cond_destroy(&c->gated);
  tm_free(c, sizeof *c);
}

static tm_status coord_make_workers(tm_coordinator *c, int32_t n) {
  c->worker = tm_calloc((size_t)n, sizeof *c->worker);
  if (!c->worker) return TM_ENOMEM;
  c->max_worker = n;
  for (; c->nworker < n; c->nworker++)
    TM_TRY(coord_worker_new(c, c->nworker, &c->worker[c->nworker]));
  return TM_OK;
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
  pthread_mutex_init(&c->gate_mu, NULL);
  tm_cond_init_monotonic(&c->gated);
  c->opt = *opt;
  c->next_id = 1;
  coord_queue_init(&c->queue, (size_t)opt->queue_size);
  coord_queue_init(&c->rounds.queue, (size_t)opt->queue_size);
  coord_queue_init(&c->rounds.done, SIZE_MAX);
  coord_queue_init(&c->rounds.ending, SIZE_MAX);
  c->rounds.number = 1;
  tm_cond_init_monotonic(&c->rounds.ready);
  if (tm_map_new(&c->apart) || coord_make_workers(c, n) || tm_remote_hub_new(&c->hub))
    goto fail;
  pthread_mutex_lock(&c->mu); /* the janitor finds workers with links */
  if (coord_rounds_init(c)) {
    pthread_mutex_unlock(&c->mu);
    goto fail;
  }
  if (pthread_create(&c->janitor, NULL, coord_janitor, c)) {
    c->closing = true;
    pthread_cond_signal(&c->rounds.ready);
    pthread_mutex_unlock(&c->mu);
    coord_rounds_join(c);
    goto fail;
  }
  for (int32_t i = 0; i < n; i++) {
    if (link[i])
      coord_attach(c->worker[i], link[i]);
    else
      strncpy(c->worker[i]->task, opt->task(opt->ud, i), sizeof c->worker[i]->task - 1);
  }
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->mu);
  for (int32_t i = 0; i < n; i++)
    if (link[i] && link[i]->start) link[i]->start(link[i]);
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
  pthread_cond_signal(&c->rounds.ready);
  pthread_mutex_unlock(&c->mu);
  pthread_join(c->janitor, NULL);
  coord_rounds_join(c);
  pthread_mutex_lock(&c->mu);
  coord_end_keepers(c);
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->keeping) pthread_join(w->keeper, NULL);
    tm_worker_link *l = coord_detach(c, w);
    w->state = COORD_GONE;
    pthread_mutex_unlock(&c->mu);
    if (l) l->close(l);
    pthread_mutex_lock(&c->mu);
  }
  pthread_mutex_unlock(&c->mu);
  coord_release(c);
}

/* --- schedule, join, done --- */

/* Raise the pending error once nothing runs (mu held). */
static tm_status coord_raise(tm_coordinator *c, int64_t deadline_ns, tm_cancel *cancel,
                             tm_err *err) {
  if (!c->failed) return TM_OK;
  while (c->running > 0 || c->rounds.ends) {
    tm_status s = tm_cond_wait_until(&c->changed, &c->mu, deadline_ns, cancel);
    if (s) return tm_fail(err, s, "waiting for functions that are being cancelled");
  }
  const tm_err *why = c->quiet ? &c->lost_why : &c->failure;
  tm_status s = c->quiet && !c->lost ? TM_OK : why->code;
  if (s && err) *err = *why;
  c->failed = c->lost;
  c->failure = c->lost_why;
  c->quiet = false;
  return s;
}

/* Without what is only waited for. */
static int32_t coord_count_args(const tm_carg *arg, int32_t all) {
  while (all > 0 && arg[all - 1].kind == TM_CARG_AFTER) all--;
  return all;
}

static tm_status coord_item_new(tm_coordinator *c, tm_graph *g, const tm_carg *arg,
                                int32_t all, coord_item **out) {
  int32_t narg = coord_count_args(arg, all);
  coord_item *it = tm_calloc(1, sizeof *it);
  if (!it) return TM_ENOMEM;
  it->only = -1;
  it->graph = tm_graph_ref(g);
  it->narg = narg;
  if (narg) it->arg = tm_calloc((size_t)narg, sizeof *it->arg);
  if (narg && !it->arg) it->narg = 0;
  for (int32_t i = 0; i < it->narg; i++) {
    it->arg[i].t = arg[i].kind == TM_CARG_TENSOR ? tm_tensor_ref(arg[i].t) : NULL;
    it->arg[i].iterator = arg[i].resource;
  }
  if (it->narg == narg && coord_wants_take(it, arg, all) == TM_OK &&
      tm_remote_value_new(c->hub, &it->value) == TM_OK) {
    *out = it;
    return TM_OK;
  }
  coord_item_free(it);
  return TM_ENOMEM;
}

static tm_status coord_check_args(const tm_graph *g, const tm_carg *arg, int32_t all,
                                  tm_err *err) {
  int32_t narg = coord_count_args(arg, all);
  if (narg != g->narg)
    return tm_fail(err, TM_EINVAL, "%s takes %d arguments, got %d", g->name, g->narg,
                   narg);
  for (int32_t i = 0; i < narg; i++)
    if (g->arg[i].iterator != (arg[i].kind == TM_CARG_PER_WORKER))
      return tm_fail(err, TM_EINVAL, "%s: argument %d must be %s", g->name, i + 1,
                     g->arg[i].iterator ? "a per-worker iterator" : "a tensor");
  return TM_OK;
}

/* There is such a worker, and room for a closure. */
static tm_status coord_room(const tm_coordinator *c, int32_t only, tm_err *err) {
  if (only < 0) return coord_full(c) ? TM_EAGAIN : TM_OK;
  if (only >= c->nworker || c->worker[only]->state == COORD_GONE)
    return tm_fail(err, TM_ENOTFOUND, "there is no worker %d (any more)", only);
  return coord_queue_full(&c->worker[only]->own) ? TM_EAGAIN : TM_OK;
}

/* A new closure gets its number and goes where it waits. */
static void coord_enter(tm_coordinator *c, coord_item *it, tm_remote_value **value) {
  it->id = c->next_id++;
  if (!it->deal) it->draw = ++c->draws;
  tm_remote_value_set_step(it->value, it->id);
  if (it->trains || it->nwant) tm_remote_value_set_rounds(it->value);
  if (value) {
    *value = tm_remote_value_ref(it->value);
  } else {
    tm_remote_value_unref(it->value);
    it->value = NULL;
  }
  coord_args_enter(c, it);
  if (c->failed)
    coord_fail(c, &c->failure);
  else
    coord_dispatch(c);
  if (c->running == 0) pthread_cond_signal(&c->work); /* is anybody there? */
}

tm_status tm_coordinator_schedule_on(tm_coordinator *c, int32_t only, tm_graph *g,
                                     const tm_carg *arg, int32_t narg,
                                     tm_remote_value **value, tm_err *err) {
  coord_item *it = NULL;
  bool trains = false;
  if (value) *value = NULL;
  TM_TRY(coord_check_args(g, arg, narg, err));
  pthread_mutex_lock(&c->mu);
  bool ending = c->running > 0 || c->rounds.ends;
  tm_status s = c->failed && ending ? TM_EAGAIN : coord_raise(c, 0, NULL, err);
  if (s == TM_OK) s = coord_args_check(c, arg, narg, err);
  if (s == TM_OK) s = coord_room(c, only, err);
  if (s == TM_OK) s = coord_rounds_admit(c, g, &trains, err);
  if (s == TM_OK && coord_item_new(c, g, arg, narg, &it))
    s = tm_nomem(err, "a closure");
  if (s == TM_OK && (s = coord_deal_ask(c, it, err))) coord_item_free(it);
  if (s == TM_OK) {
    it->only = only;
    it->trains = trains;
    coord_enter(c, it, value);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_schedule(tm_coordinator *c, tm_graph *g, const tm_carg *arg,
                                  int32_t narg, tm_remote_value **value, tm_err *err) {
  return tm_coordinator_schedule_on(c, -1, g, arg, narg, value, err);
}

static int64_t coord_deadline(int64_t timeout_ns) {
  return timeout_ns < 0 ? -1 : tm_now_ns() + timeout_ns;
}

/* Until at most `most` closures are not finished; < 0: until the queue has room.  all:
 * nobody brings more meanwhile. */
static tm_status coord_wait(tm_coordinator *c, int64_t most, bool all,
                            int64_t timeout_ns, tm_cancel *cancel, tm_err *err) {
  int64_t deadline = coord_deadline(timeout_ns);
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  while (!c->failed &&
         (most < 0 ? coord_full(c) : c->running + coord_waiting(c) > most)) {
    if (all) coord_rounds_await(c, c->next_id - 1);
    s = tm_cond_wait_until(&c->changed, &c->mu, deadline, cancel);
    if (s == TM_OK) continue;
    s = tm_fail(err, s,
                s == TM_ETIMEOUT
                    ? "%s: time is up; %" PRId64 " functions run, %" PRId64 " wait"
                    : "%s: interrupted; %" PRId64 " functions run, %" PRId64 " wait",
                most ? "schedule" : "join", c->running, coord_waiting(c));
    break;
  }
  if (s == TM_OK) s = coord_raise(c, deadline, cancel, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_wait_room(tm_coordinator *c, int64_t timeout_ns,
                                   tm_cancel *cancel, tm_err *err) {
  return coord_wait(c, -1, false, timeout_ns, cancel, err);
}

tm_status tm_coordinator_wait_few(tm_coordinator *c, int64_t most, bool all,
                                  int64_t timeout_ns, tm_cancel *cancel, tm_err *err) {
  return coord_wait(c, most < 0 ? 0 : most, all, timeout_ns, cancel, err);
}

tm_status tm_coordinator_join(tm_coordinator *c, int64_t timeout_ns, tm_cancel *cancel,
                              tm_err *err) {
  return coord_wait(c, 0, true, timeout_ns, cancel, err);
}

tm_status tm_coordinator_done(tm_coordinator *c, bool *done, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  *done = coord_idle(c);
  if (!*done) coord_rounds_await(c, c->next_id - 1);
  if (*done) s = coord_raise(c, 0, NULL, err);
  pthread_mutex_unlock(&c->mu);
  return s;
}

tm_status tm_coordinator_cancel(tm_coordinator *c, int64_t timeout_ns, tm_err *err) {
  tm_err why;
  tm_err_clear(&why);
  tm_fail(&why, TM_ECANCELLED, "the function was cancelled");
  pthread_mutex_lock(&c->mu);
  if (!coord_idle(c)) coord_fail(c, &why);
  c->quiet = c->failed;
  tm_status s = coord_raise(c, coord_deadline(timeout_ns), NULL, err);
  pthread_mutex_unlock(&c->mu);
  return s == TM_ETIMEOUT ? TM_OK : s;
}

void tm_coordinator_lose(tm_coordinator *c, const tm_err *why) {
  pthread_mutex_lock(&c->mu);
  if (!c->lost) {
    c->lost = true;
    c->lost_why = *why;
    c->suspended = false; /* nobody will resume */
    coord_fail(c, why);
    pthread_cond_signal(&c->work);
  }
  pthread_mutex_unlock(&c->mu);
}

/* --- counters --- */

static const char *coord_state_text(const tm_coordinator *c, const coord_worker *w) {
  switch (w->state) {
    case COORD_READY:
      return w->draining ? "draining" : "ready";
    case COORD_GONE:
      return w->removing ? "removed" : "down";
    case COORD_AWAY:
      return c->suspended || !w->met ? "connecting" : "down";
    default:
      return "down";
  }
}

void tm_coordinator_get_stats(tm_coordinator *c, tm_coordinator_stats *out,
                              tm_worker_stats *workers, int32_t max) {
  pthread_mutex_lock(&c->mu);
  *out = c->stats;
  out->queued = coord_waiting(c);
  out->running = c->running;
  out->nworker = c->nworker;
  for (int32_t i = 0; i < c->nworker && i < max; i++) {
    workers[i] = c->worker[i]->stats;
    workers[i].state = coord_state_text(c, c->worker[i]);
  }
  pthread_mutex_unlock(&c->mu);
}
