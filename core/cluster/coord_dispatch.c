#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"
#include "ps/tokens.h"

/*
 * Design.  No thread hands work on: schedule dispatches in the caller's thread,
 * completions refill their worker in the worker's thread.
 *
 * Invariants:
 *   (1) A closure is queued, or in the `out` list of one worker, or finished; `running`
 *       counts those that are out.
 *   (2) While `failed` is set nothing is queued and nothing is dispatched.
 *   (3) Closures that are out of a worker <= window <= COORD_WINDOW_MAX.
 *   (4) No closure is handed out TM_TOKENS_MAX or more above the lowest unfinished one:
 *       that is how many tokens a ps keeps.
 *   (5) A closure whose worker is lost stays out until every ps refuses that worker's
 *       incarnation; only then it is queued again.
 */
enum { COORD_TRIES = 64 }; /* workers that a closure may lose before it is to blame */
#define COORD_LATE_NS  2000000   /* without a completion for so long: a straggler */
#define COORD_AGAIN_NS 100000000 /* before it is asked again for the same */
static const double COORD_AHEAD_S = 0.002; /* work that a worker may hold */

void coord_item_free(coord_item *it) {
  coord_wants_free(it);
  for (int32_t i = 0; i < it->narg; i++) tm_tensor_unref(it->arg[i].t);
  tm_free(it->deal, it->deal ? (size_t)it->narg * sizeof *it->deal : 0);
  for (int32_t i = 0; i < it->nout; i++) tm_tensor_unref(it->out[i]);
  tm_free(it->out, (size_t)it->nout * sizeof *it->out);
  tm_free(it->arg, (size_t)it->narg * sizeof *it->arg);
  tm_graph_unref(it->graph);
  tm_remote_value_unref(it->value);
  tm_free(it, sizeof *it);
}

int64_t coord_waiting(const tm_coordinator *c) {
  const coord_rounds *r = &c->rounds;
  return (int64_t)(coord_queue_count(&c->queue) + coord_queue_count(&r->queue) +
                   coord_queue_count(&r->done) + coord_queue_count(&r->ending) +
                   c->napart) +
         c->owned;
}

bool coord_idle(const tm_coordinator *c) {
  return c->running == 0 && coord_waiting(c) == 0;
}

bool coord_full(const tm_coordinator *c) {
  return coord_queue_count(&c->queue) + coord_queue_count(&c->rounds.queue) +
             c->napart >=
         c->queue.max;
}

void coord_cancel_item(tm_coordinator *c, coord_item *it) {
  tm_err err = c->lost_why;
  if (!c->lost) {
    tm_err_clear(&err);
    tm_fail(&err, TM_ECANCELLED, "the function was cancelled; schedule it again");
  }
  err.step = (int64_t)it->id;
  if (it->value) tm_remote_value_fail(it->value, &err);
  coord_deal_back(c, it);
  coord_item_free(it);
}

void coord_requeue(tm_coordinator *c, coord_item *it) {
  it->round = 0;
  it->again = false;
  if (it->only < 0) {
    coord_queue_insert(it->trains ? &c->rounds.queue : &c->queue, it);
    return;
  }
  coord_queue_insert(&c->worker[it->only]->own, it);
  c->owned++;
}

void coord_drop_own(tm_coordinator *c, coord_worker *w) {
  coord_item *it;
  while ((it = coord_queue_pop(&w->own))) {
    uint64_t id = it->id;
    c->owned--;
    coord_cancel_item(c, it);
    coord_args_done(c, id);
  }
  pthread_cond_broadcast(&c->changed);
}

void coord_note_failure(tm_coordinator *c, const tm_err *err) {
  if (c->failed) return;
  c->failed = true;
  c->failure = *err;
}

void coord_fail(tm_coordinator *c, const tm_err *err) {
  coord_item *it;
  coord_note_failure(c, err);
  coord_args_cancel(c);
  while ((it = coord_queue_pop(&c->queue))) coord_cancel_item(c, it);
  while ((it = coord_queue_pop(&c->rounds.queue))) coord_cancel_item(c, it);
  coord_rounds_void(c, false);
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    coord_drop_own(c, w);
    if (w->state == COORD_READY) w->link->cancel(w->link, c->next_id - 1);
  }
  pthread_cond_broadcast(&c->changed);
}

/* --- handing out --- */

/* It was asked for closures back and has ended none since: it would only keep them. */
static bool coord_straggles(const coord_worker *w) {
  return w->out.n > 0 && w->recall_ns > w->last_ns;
}

static coord_worker *coord_pick(tm_coordinator *c) {
  coord_worker *best = NULL;
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state != COORD_READY || w->draining || w->out.n >= w->window) continue;
    if (coord_straggles(w)) continue;
    if (!best || w->out.n < best->out.n ||
        (w->out.n == best->out.n && w->rate > best->rate * 1.5))
      best = w;
  }
  return best;
}

/* Queues are in order. */
static uint64_t coord_lower(const coord_queue *q, uint64_t than) {
  const coord_item *head = coord_queue_head(q);
  return head && head->id < than ? head->id : than;
}

uint64_t coord_lowest_open(const tm_coordinator *c) {
  uint64_t low = coord_lower(&c->queue, c->next_id);
  low = coord_lower(&c->rounds.queue, low);
  for (int32_t i = 0; i < c->nworker; i++) {
    low = coord_lower(&c->worker[i]->out, low);
    low = coord_lower(&c->worker[i]->own, low);
  }
  return low;
}

uint64_t coord_lowest(const tm_coordinator *c) {
  uint64_t low = coord_lower(&c->rounds.done, coord_lowest_open(c));
  return coord_lower(&c->rounds.ending, low);
}

/* No data are left for it. */
static void coord_end_item(tm_coordinator *c, coord_item *it) {
  uint64_t id = it->id;
  if (it->value) tm_remote_value_end(it->value);
  coord_item_free(it);
  coord_args_done(c, id);
  pthread_cond_broadcast(&c->changed);
}

/* Hand `it` to w.  On failure the closure goes back to the front. */
static bool coord_hand_out(tm_coordinator *c, coord_worker *w, coord_item *it,
                           uint64_t lowest) {
  tm_err err;
  tm_err_clear(&err);
  tm_status s = coord_deal_out(c, it);
  if (s == TM_ERANGE) {
    coord_end_item(c, it);
    return true;
  }
  if (it->trains) coord_rounds_mark(c, it);
  tm_closure cl = {.id = it->id,
                   .draw = it->draw,
                   .lowest = lowest,
                   .graph = it->graph,
                   .narg = it->narg,
                   .arg = it->arg,
                   .deal = it->deal,
                   .want = it->value && tm_remote_value_wanted(it->value),
                   .round = it->round,
                   .share = it->share};
  if (s == TM_OK) s = w->link->submit(w->link, &cl, 1, &err);
  if (s == TM_OK && (s = coord_queue_push(&w->out, it)) == TM_OK) {
    c->running++;
    if (it->id > c->out_upto) c->out_upto = it->id;
    if (it->trains) coord_rounds_out(c, w, it);
    return true;
  }
  coord_requeue(c, it);
  if (s != TM_EAGAIN && s != TM_EUNAVAILABLE) {
    if (err.code == TM_OK)
      tm_fail(&err, s, "closure %" PRIu64 " cannot be sent", it->id);
    coord_fail(c, &err);
  }
  return false;
}

/* The head of q may go out. */
static bool coord_may_go(const coord_queue *q, uint64_t lowest) {
  const coord_item *head = coord_queue_head(q);
  return head && head->id - lowest < TM_TOKENS_MAX;
}

/* What waits for one worker only. */
static void coord_dispatch_own(tm_coordinator *c) {
  uint64_t lowest = coord_lowest(c);
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    while (w->state == COORD_READY && coord_may_go(&w->own, lowest) &&
           w->out.n < w->window &&
           (!coord_queue_head(&w->own)->trains || coord_rounds_may(c, w))) {
      c->owned--;
      if (!coord_hand_out(c, w, coord_queue_pop(&w->own), lowest)) break;
    }
  }
}

/* What applies gradients goes to whom the mode lets have it. */
static void coord_dispatch_training(tm_coordinator *c) {
  coord_worker *w;
  uint64_t lowest = coord_lowest(c);
  coord_queue *q = &c->rounds.queue;
  while (coord_may_go(q, lowest) && (w = coord_rounds_pick(c)))
    if (!coord_hand_out(c, w, coord_queue_pop(q), lowest)) return;
}

void coord_dispatch(tm_coordinator *c) {
  coord_worker *w;
  if (c->owned && !c->suspended) coord_dispatch_own(c);
  if (c->rounds.queue.head && !c->suspended) coord_dispatch_training(c);
  if (c->opt.mode == TM_MODE_SYNC) coord_rounds_look(c);
  if (c->suspended || !coord_queue_head(&c->queue) || !(w = coord_pick(c))) return;
  uint64_t lowest = coord_lowest(c);
  while (coord_may_go(&c->queue, lowest) && w) {
    if (!coord_hand_out(c, w, coord_queue_pop(&c->queue), lowest)) return;
    w = coord_pick(c);
  }
}

/* --- completions (a worker's thread) --- */

static void coord_pace(coord_worker *w, const tm_completion *d, int32_t all) {
  int32_t n = 0;
  for (int32_t i = 0; i < all; i++) n += d[i].status != TM_EAGAIN;
  if (n == 0) return;
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
}

/* A link that is being closed ends its closures as cancelled; they run again. */
static bool coord_counts(const coord_worker *w, const tm_completion *d) {
  return w->state == COORD_READY || d->status == TM_OK;
}

/* The worker cannot reach a ps: it is lost, or the way to it is; or the ps serves
 * another chief.  That is no error of the closure. */
static bool coord_cut_off(const tm_completion *d) {
  bool away = d->status == TM_EUNAVAILABLE || d->status == TM_EABORTED;
  return away && coord_of_ps(&d->err);
}

void coord_succeed(tm_coordinator *c, coord_worker *w, coord_item *it,
                   tm_tensor *const *out, int32_t nout) {
  w->stats.steps++;
  c->stats.steps++;
  if (it->value) {
    tm_remote_value_set_ran(it->value, w->index, w->last_ns);
    tm_remote_value_set(it->value, out, nout);
  }
  coord_args_done(c, it->id);
  coord_item_free(it);
}

/* It did nothing, and is handed out again, with other elements: unless what it did
 * before on a lost worker counts already. */
static void coord_finish_again(tm_coordinator *c, coord_item *it) {
  if (!it->half) coord_deal_back(c, it);
  if (c->failed)
    coord_cancel_item(c, it);
  else
    coord_requeue(c, it);
}

/* It ended with an error. */
static void coord_finish_failed(tm_coordinator *c, coord_item *it,
                                const tm_completion *d) {
  bool lost = c->lost && d->status == TM_ECANCELLED;
  if (it->value) tm_remote_value_fail(it->value, lost ? &c->lost_why : &d->err);
  bool late = d->status == TM_ECANCELLED && c->failed;
  coord_note_failure(c, &d->err);
  coord_args_done(c, it->id);
  if (!late) coord_fail(c, &d->err);
  coord_item_free(it);
}

/* The closure that a completion is about, not out any more; NULL: it was taken back
 * when the worker was thought lost, or is about to be. */
static coord_item *coord_finished(tm_coordinator *c, coord_worker *w,
                                  const tm_completion *d) {
  if (coord_cut_off(d)) coord_lose_worker(w, &d->err);
  coord_item *it = coord_counts(w, d) ? coord_queue_remove(&w->out, d->id) : NULL;
  if (!it) return NULL;
  if (it->again && d->status == TM_OK) {
    coord_queue_insert(&w->out, it);
    return NULL;
  }
  c->running--;
  if (it->trains) coord_rounds_off(w, it, d->status == TM_OK);
  coord_account(c, w, d);
  if (d->ntook) coord_resources_took(c, w, it, d);
  return it;
}

static void coord_finish(tm_coordinator *c, coord_worker *w, const tm_completion *d) {
  coord_item *it = coord_finished(c, w, d);
  if (!it) return;
  if (d->status == TM_OK && it->round && coord_rounds_keep(c, w, it, d)) return;
  bool ended = d->status != TM_EAGAIN && it->deal && coord_deal_settle(c, it, d);
  if (d->status == TM_EAGAIN || (ended && coord_deal_may_go(c, it)))
    coord_finish_again(c, it);
  else if (ended)
    coord_end_item(c, it);
  else if (d->status == TM_OK)
    coord_succeed(c, w, it, d->out, d->nout);
  else
    coord_finish_failed(c, it, d);
}

void coord_on_done(void *ud, const tm_completion *d, int32_t n) {
  coord_worker *w = ud;
  tm_coordinator *c = w->owner;
  pthread_mutex_lock(&c->mu);
  coord_pace(w, d, n);
  for (int32_t i = 0; i < n; i++) coord_finish(c, w, &d[i]);
  if (!c->failed) coord_dispatch(c);
  if (w->removing && w->out.n == 0) pthread_cond_signal(&c->work);
  if (w->out.n == 0 && !c->armed && coord_uneven(c)) {
    c->armed = true;
    pthread_cond_signal(&c->work);
  }
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->mu);
}

/* --- closures that wait behind a straggler --- */

bool coord_uneven(const tm_coordinator *c) {
  bool idle = false, held = false;
  if (coord_queue_head(&c->queue) || c->suspended || c->failed) return false;
  if (c->opt.mode == TM_MODE_SSP && coord_queue_head(&c->rounds.queue)) return false;
  for (int32_t i = 0; i < c->nworker; i++) {
    const coord_worker *w = c->worker[i];
    if (w->state != COORD_READY) continue;
    if (w->out.n == 0 && !w->draining) idle = true;
    if (w->out.n > 1 && w->link->recall) held = true;
  }
  return idle && held;
}

void coord_recall(tm_coordinator *c, coord_worker *w, int32_t keep) {
  tm_worker_link *l = w->link;
  if (w->state != COORD_READY || !l->recall) return;
  w->pins++;
  pthread_mutex_unlock(&c->mu);
  l->recall(l, keep);
  pthread_mutex_lock(&c->mu);
  w->pins--;
  pthread_cond_broadcast(&c->changed);
}

bool coord_recall_one(tm_coordinator *c) {
  int64_t now = tm_now_ns(), before = now - COORD_LATE_NS;
  if (!coord_uneven(c)) return false;
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state != COORD_READY || w->out.n < 2 || !w->link->recall) continue;
    if (w->last_ns > before) continue;
    if (w->recall_ns > w->last_ns && now - w->recall_ns < COORD_AGAIN_NS) continue;
    w->recall_ns = now;
    coord_recall(c, w, 1);
    return true;
  }
  return false;
}

/* --- closures of a lost worker --- */

/* The oldest one was running; one that ends every worker it meets is given up. */
static bool coord_is_poison(const coord_worker *w, tm_err *err) {
  coord_item *it = coord_queue_head(&w->out);
  if (!it || ++it->tries < COORD_TRIES) return false;
  tm_err_clear(err);
  memcpy(err->task, w->task, sizeof err->task);
  err->step = (int64_t)it->id;
  coord_deal_spend(w->owner, it);
  tm_fail(err, TM_EABORTED, "closure %" PRIu64 " (%s) lost its worker %d times: %s",
          it->id, it->graph->name, COORD_TRIES, w->why.msg);
  return true;
}

void coord_take_back(tm_coordinator *c, coord_worker *w) {
  tm_err err;
  bool poison = coord_is_poison(w, &err);
  c->running -= (int64_t)w->out.n;
  if (w->out.tail && w->out.tail->id > c->half_upto) c->half_upto = w->out.tail->id;
  c->stats.retries += w->out.n;
  for (coord_item *it; (it = coord_queue_pop(&w->out));) {
    it->half = true;
    if (it->trains) coord_rounds_off(w, it, false);
    coord_requeue(c, it);
  }
  if (poison)
    coord_fail(c, &err);
  else if (c->failed)
    coord_fail(c, &c->failure);
  else
    coord_dispatch(c);
  pthread_cond_broadcast(&c->changed);
}
