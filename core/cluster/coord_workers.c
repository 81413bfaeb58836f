#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  A worker that is away has a thread, its keeper: it tells every ps to refuse
 * the incarnation that is gone, gives its closures back, closes the link, and tries to
 * reach the task until that succeeds.  So one worker's recovery never waits for
 * another's, and a cluster without trouble has no such threads.  The janitor starts and
 * joins keepers, retires removed workers by one, and counts how long work has waited
 * without any worker.
 *
 * Invariants:
 *   (1) link is set exactly in the states READY and LOST (and while suspend waits for
 *       the pins of one that is AWAY already).
 *   (2) Whoever closes a link has detached it under mu when no call was pinned to it,
 *       and closes it without mu; nothing calls back after that.
 *   (3) A worker has at most one keeper.  Its state leaves LOST and AWAY only in its
 *       keeper, or in suspend when it has none.
 *   (4) While suspended no keeper runs and no worker is READY, once suspend returned.
 *   (5) unrefused is set from the loss of a link (or its closing with closures out)
 *       until every ps refuses that incarnation; out is not given back before.
 */
#define COORD_PAUSE_MIN_NS 20000000
#define COORD_PAUSE_MAX_NS 250000000
#define COORD_STAYS_NS     1000000000 /* gone again sooner: the pause grows on */
#define COORD_LOOK_NS      2000000
#define COORD_TELL_NS      10000000000

static bool coord_may_keep(const tm_coordinator *c, const coord_worker *w) {
  return !c->closing && !c->suspended && w->state != COORD_GONE;
}

static bool coord_may_reach(const tm_coordinator *c, const coord_worker *w) {
  return w->state == COORD_AWAY && coord_may_keep(c, w) && !c->lost && !w->unrefused &&
         !w->removing;
}

/* --- links --- */

void coord_lose_worker(coord_worker *w, const tm_err *why) {
  tm_coordinator *c = w->owner;
  if (w->state != COORD_READY) return;
  w->state = COORD_LOST;
  w->unrefused = true;
  w->why = *why;
  c->last_lost = w->index;
  coord_rounds_look(c);
  pthread_cond_signal(&c->work);
}

static void coord_on_down(void *ud, const tm_err *why) {
  coord_worker *w = ud;
  pthread_mutex_lock(&w->owner->mu);
  coord_lose_worker(w, why);
  pthread_mutex_unlock(&w->owner->mu);
}

static void coord_on_leave(void *ud, const char *why) {
  coord_worker *w = ud;
  tm_coordinator *c = w->owner;
  tm_log(TM_LOG_INFO, "%s will leave: %s", w->task, why);
  pthread_mutex_lock(&c->mu);
  w->draining = true;
  coord_recall(c, w, 0);
  coord_rounds_look(c);
  pthread_mutex_unlock(&c->mu);
  if (c->opt.leaving) c->opt.leaving(c->opt.ud, w->index, why);
}

void coord_attach(coord_worker *w, tm_worker_link *link) {
  w->link = link;
  w->state = COORD_READY;
  w->met = true;
  w->draining = w->removing;
  w->window = COORD_WINDOW_MIN;
  w->rate = 0;
  w->last_ns = w->there_ns = tm_now_ns();
  memcpy(w->task, link->task, sizeof w->task);
  link->ud = w;
  link->on_done = coord_on_done;
  link->on_down = coord_on_down;
  link->on_leave = coord_on_leave;
  coord_rounds_attach(w);
  coord_gate_attach(w->owner, w);
}

tm_worker_link *coord_detach(tm_coordinator *c, coord_worker *w) {
  while (w->pins > 0) pthread_cond_wait(&c->changed, &c->mu);
  tm_worker_link *l = w->link;
  w->link = NULL;
  return l;
}

static void coord_close(tm_coordinator *c, tm_worker_link *l) {
  if (!l) return;
  pthread_mutex_unlock(&c->mu);
  l->close(l);
  pthread_mutex_lock(&c->mu);
}

tm_status coord_worker_new(tm_coordinator *c, int32_t index, coord_worker **out) {
  coord_worker *w = *out = tm_calloc(1, sizeof *w);
  if (!w) return TM_ENOMEM;
  w->owner = c;
  w->index = index;
  w->state = COORD_AWAY;
  tm_err_clear(&w->why);
  coord_queue_init(&w->out, COORD_WINDOW_MAX);
  coord_queue_init(&w->own, COORD_WINDOW_MAX);
  w->pause_ns = COORD_PAUSE_MIN_NS;
  tm_cond_init_monotonic(&w->wake);
  return TM_OK;
}

void coord_worker_free(coord_worker *w) {
  if (!w) return;
  pthread_cond_destroy(&w->wake);
  tm_free(w, sizeof *w);
}

/* --- the keeper: burying --- */

static void coord_pause(tm_coordinator *c, coord_worker *w, int64_t *pause_ns) {
  int64_t until = tm_now_ns() + *pause_ns;
  *pause_ns = *pause_ns * 2 < COORD_PAUSE_MAX_NS ? *pause_ns * 2 : COORD_PAUSE_MAX_NS;
  bool goes = w->removing;
  while (coord_may_keep(c, w) && !c->lost && w->removing == goes && tm_now_ns() < until)
    if (tm_cond_wait_until(&w->wake, &c->mu, until, NULL)) return;
}

static bool coord_may_pass(tm_status s) {
  return s == TM_EUNAVAILABLE || s == TM_ETIMEOUT || s == TM_ECANCELLED;
}

/* Another chief is in charge. */
static void coord_yield(tm_coordinator *c, const tm_err *why) {
  if (c->lost) return;
  c->lost = true;
  c->lost_why = *why;
  coord_fail(c, why);
}

bool coord_of_ps(const tm_err *err) { return strncmp(err->task, "/job:ps/", 8) == 0; }

/* Until every ps refuses the incarnation.  A ps that cannot be told now is told later,
 * or it is lost, which then is what all hear. */
static void coord_refuse(tm_coordinator *c, coord_worker *w) {
  int64_t pause = COORD_PAUSE_MIN_NS;
  tm_err err;
  while (w->unrefused && coord_may_keep(c, w) && !c->lost) {
    tm_err_clear(&err);
    tm_status s = TM_OK;
    pthread_mutex_unlock(&c->mu);
    if (c->opt.refuse) s = c->opt.refuse(c->opt.ud, w->index, &err);
    pthread_mutex_lock(&c->mu);
    if (s && coord_may_pass(s)) {
      coord_pause(c, w, &pause);
      continue;
    }
    w->unrefused = false;
    if (s == TM_EABORTED)
      coord_yield(c, &err);
    else if (s)
      coord_fail(c, &err);
  }
}

/* What it was sent ended it: that is an error of the program.  What a ps answered to it
 * with `aborted`, the ps answers to the chief too, if it is so. */
static void coord_blame(tm_coordinator *c, const coord_worker *w) {
  tm_status s = w->why.code;
  if (s == TM_EABORTED && coord_of_ps(&w->why)) return;
  if (s == TM_EABORTED)
    coord_yield(c, &w->why);
  else if (s != TM_OK && !coord_may_pass(s))
    coord_fail(c, &w->why);
}

static void coord_bury(tm_coordinator *c, coord_worker *w) {
  if (w->state == COORD_LOST) {
    tm_log(TM_LOG_WARN, "%s is lost: %s", w->task, w->why.msg);
    coord_blame(c, w);
  }
  coord_refuse(c, w);
  if (!w->unrefused || c->lost) coord_take_back(c, w);
  if (w->state != COORD_LOST) return;
  tm_worker_link *l = coord_detach(c, w);
  w->state = COORD_AWAY;
  coord_close(c, l);
}

/* --- the keeper: reaching --- */

/* The new link gets all resources and variables before its first closure. */
static tm_status coord_welcome(tm_coordinator *c, coord_worker *w, tm_worker_link *l,
                               tm_err *err) {
  bool back = w->met;
  TM_TRY(coord_resources_send(c, w, l, err));
  if (!coord_may_reach(c, w)) return TM_ECANCELLED;
  if (c->opt.furnish) TM_TRY(c->opt.furnish(c->opt.ud, l, err));
  coord_attach(w, l);
  tm_log(TM_LOG_INFO, "%s is %s", w->task, back ? "back" : "there");
  if (!c->failed) coord_dispatch(c);
  pthread_cond_broadcast(&c->changed);
  pthread_cond_signal(&c->work);
  return TM_OK;
}

/* One try; true when it was reached. */
static bool coord_reach(tm_coordinator *c, coord_worker *w) {
  tm_worker_link *l = NULL;
  tm_err err;
  tm_err_clear(&err);
  pthread_mutex_unlock(&c->mu);
  tm_status s = c->opt.revive(c->opt.ud, w->index, &w->cancel, &l, &err);
  pthread_mutex_lock(&c->mu);
  if (s == TM_OK) s = coord_welcome(c, w, l, &err);
  if (s == TM_OK) {
    pthread_mutex_unlock(&c->mu);
    if (l->start) l->start(l);
    pthread_mutex_lock(&c->mu);
    return true;
  }
  coord_close(c, l);
  bool told = w->why.code == err.code;
  if (s != TM_OK && !coord_may_pass(s) && strcmp(w->why.msg, err.msg) != 0)
    tm_log(TM_LOG_WARN, "%s cannot be reached: %s", w->task, err.msg);
  if (err.code != TM_OK) w->why = err;
  /* A worker that was never ours may have been another cluster's: that says nothing. */
  if (s == TM_EABORTED && w->met && coord_may_keep(c, w)) coord_yield(c, &err);
  if (s == TM_EABORTED && !w->met && !told)
    tm_log(TM_LOG_WARN, "%s cannot be had: %s", w->task, err.msg);
  return false;
}

static void coord_retire(tm_coordinator *c, coord_worker *w) {
  tm_worker_link *l = coord_detach(c, w);
  w->state = COORD_GONE;
  coord_drop_own(c, w);
  coord_close(c, l);
  tm_log(TM_LOG_INFO, "%s is removed", w->task);
}

static void *coord_keeper(void *p) {
  coord_worker *w = p;
  tm_coordinator *c = w->owner;
  pthread_mutex_lock(&c->mu);
  bool flees = w->met && tm_now_ns() - w->there_ns < COORD_STAYS_NS;
  if (!flees) w->pause_ns = COORD_PAUSE_MIN_NS;
  if (w->state == COORD_READY) {
    coord_retire(c, w);
  } else {
    coord_bury(c, w);
    if (w->state == COORD_AWAY && (w->removing || !c->opt.revive) && !w->unrefused)
      w->state = COORD_GONE;
    if (w->state == COORD_GONE) coord_drop_own(c, w);
  }
  if (flees) coord_pause(c, w, &w->pause_ns);
  while (coord_may_reach(c, w) && !coord_reach(c, w)) coord_pause(c, w, &w->pause_ns);
  w->kept = true;
  pthread_cond_broadcast(&c->changed);
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->mu);
  return NULL;
}

/* --- the janitor --- */

static bool coord_wants_keeper(const tm_coordinator *c, const coord_worker *w) {
  if (w->keeping || c->closing || c->suspended) return false;
  switch (w->state) {
    case COORD_READY:
      return w->removing && w->out.n == 0 && w->own.n == 0;
    case COORD_LOST:
      return true;
    case COORD_AWAY:
      return !c->lost || w->out.n > 0 || w->removing;
    default:
      return false;
  }
}

/* One keeper that has ended; false: there is none.  Lets go of mu. */
static bool coord_join_one(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (!w->kept) continue;
    pthread_mutex_unlock(&c->mu);
    pthread_join(w->keeper, NULL);
    pthread_mutex_lock(&c->mu);
    w->keeping = w->kept = false;
    return true;
  }
  return false;
}

/* False: threads were short. */
static bool coord_start_keepers(tm_coordinator *c) {
  bool all = true;
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (!coord_wants_keeper(c, w)) continue;
    w->keeping = pthread_create(&w->keeper, NULL, coord_keeper, w) == 0;
    all = all && w->keeping;
  }
  return all;
}

static bool coord_alone(const tm_coordinator *c) {
  if (c->suspended || c->lost || coord_idle(c)) return false;
  for (int32_t i = 0; i < c->nworker; i++)
    if (c->worker[i]->state == COORD_READY && !c->worker[i]->draining) return false;
  return true;
}

static bool coord_can_tell(const coord_worker *w) {
  return w->why.code != TM_OK && !w->removing;
}

/* One that is missed, and why it is away; NULL: none is, all were removed. */
static const coord_worker *coord_last(const tm_coordinator *c) {
  const coord_worker *w = c->worker[c->last_lost];
  for (int32_t i = 0; i < c->nworker && !coord_can_tell(w); i++)
    if (coord_can_tell(c->worker[i]) || w->removing) w = c->worker[i];
  return w->removing ? NULL : w;
}

static const char coord_none_left[] = "all were removed: add_worker brings a new one";

static void coord_give_up_waiting(tm_coordinator *c) {
  tm_err err;
  const coord_worker *w = coord_last(c);
  tm_err_clear(&err);
  if (w) memcpy(err.task, w->task, sizeof err.task);
  tm_fail(&err, TM_EUNAVAILABLE, "no worker was there for %.3g s (worker_timeout): %s",
          (double)c->opt.worker_timeout_ns * 1e-9, w ? w->why.msg : coord_none_left);
  c->alone_ns = c->told_ns = 0;
  coord_fail(c, &err);
}

/* Work waits without any worker: say so, in the end give up.  When to look again. */
static int64_t coord_watch(tm_coordinator *c) {
  int64_t now = tm_now_ns();
  if (!coord_alone(c)) {
    c->alone_ns = c->told_ns = 0;
    return -1;
  }
  if (c->alone_ns == 0) c->alone_ns = c->told_ns = now;
  int64_t limit = c->opt.worker_timeout_ns;
  if (limit > 0 && now - c->alone_ns >= limit) {
    coord_give_up_waiting(c);
    return -1;
  }
  if (now - c->told_ns >= COORD_TELL_NS) {
    const coord_worker *w = coord_last(c);
    tm_log(TM_LOG_WARN,
           "no worker is there for %.0f s, %" PRId64 " functions wait; %s%s%s",
           (double)(now - c->alone_ns) * 1e-9, coord_waiting(c) + c->running,
           w ? w->task : "", w ? ": " : "", w ? w->why.msg : coord_none_left);
    c->told_ns = now;
  }
  int64_t next = c->told_ns + COORD_TELL_NS;
  return limit > 0 && c->alone_ns + limit < next ? c->alone_ns + limit : next;
}

void *coord_janitor(void *p) {
  tm_coordinator *c = p;
  pthread_mutex_lock(&c->mu);
  while (!c->closing) {
    if (coord_join_one(c)) continue;
    bool all = coord_start_keepers(c);
    int64_t until = coord_watch(c);
    if (!all) until = tm_now_ns() + COORD_PAUSE_MAX_NS;
    if (coord_recall_one(c)) continue;
    c->armed = coord_uneven(c);
    if (c->armed) until = tm_now_ns() + COORD_LOOK_NS;
    if (tm_cond_wait_until(&c->work, &c->mu, until, NULL)) continue;
  }
  pthread_mutex_unlock(&c->mu);
  return NULL;
}

/* --- adding and removing --- */

static tm_status coord_room(tm_coordinator *c) {
  if (c->nworker < c->max_worker) return TM_OK;
  int32_t max = 2 * c->max_worker;
  coord_worker **a =
      tm_realloc(c->worker, (size_t)c->max_worker * sizeof *a, (size_t)max * sizeof *a);
  if (!a) return TM_ENOMEM;
  c->worker = a;
  c->max_worker = max;
  return TM_OK;
}

tm_status tm_coordinator_add_worker(tm_coordinator *c, const char *task, int32_t *index,
                                    tm_err *err) {
  coord_worker *w;
  if (!c->opt.revive)
    return tm_fail(err, TM_EPRECOND, "this coordinator cannot reach other workers");
  pthread_mutex_lock(&c->mu);
  tm_status s = coord_room(c);
  if (s == TM_OK) s = coord_worker_new(c, c->nworker, &w);
  if (s == TM_OK) {
    strncpy(w->task, task, sizeof w->task - 1);
    *index = c->nworker;
    c->worker[c->nworker++] = w;
    pthread_cond_signal(&c->work);
  }
  pthread_mutex_unlock(&c->mu);
  return s ? tm_nomem(err, "a worker") : TM_OK;
}

tm_status tm_coordinator_remove_worker(tm_coordinator *c, int32_t index, tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&c->mu);
  coord_worker *w = index >= 0 && index < c->nworker ? c->worker[index] : NULL;
  if (!w || w->removing) {
    s = tm_fail(err, TM_ENOTFOUND, "there is no worker %d (any more)", index);
  } else {
    w->removing = w->draining = true;
    tm_cancel_set(&w->cancel);
    pthread_cond_signal(&w->wake);
    coord_recall(c, w, 0);
    coord_rounds_look(c);
    pthread_cond_signal(&c->work);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}

/* --- suspending --- */

static void coord_wake_keepers(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nworker; i++) {
    tm_cancel_set(&c->worker[i]->cancel);
    pthread_cond_signal(&c->worker[i]->wake);
  }
}

void coord_end_keepers(tm_coordinator *c) {
  coord_wake_keepers(c);
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    while (w->keeping && !w->kept) pthread_cond_wait(&c->changed, &c->mu);
  }
}

/* The link of one worker that has one, closed; false: none has. */
static bool coord_suspend_one(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (!w->link) continue;
    w->state = COORD_AWAY;
    w->unrefused = true;
    tm_worker_link *l = coord_detach(c, w);
    coord_close(c, l);
    return true;
  }
  return false;
}

void tm_coordinator_suspend(tm_coordinator *c, const char *why) {
  pthread_mutex_lock(&c->mu);
  if (!c->suspended) tm_log(TM_LOG_INFO, "training pauses: %s", why);
  c->suspended = true;
  coord_end_keepers(c);
  while (coord_suspend_one(c)) continue;
  while (c->rounds.ends) pthread_cond_wait(&c->changed, &c->mu);
  coord_rounds_void(c, true);
  pthread_mutex_unlock(&c->mu);
}

void tm_coordinator_resume(tm_coordinator *c) {
  pthread_mutex_lock(&c->mu);
  c->suspended = false;
  for (int32_t i = 0; i < c->nworker; i++) tm_cancel_reset(&c->worker[i]->cancel);
  pthread_cond_signal(&c->work);
  pthread_mutex_unlock(&c->mu);
}
