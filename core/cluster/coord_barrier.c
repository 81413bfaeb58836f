#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"

/*
 * Design.  The gates of all workers are closed; each says when no UPDATE of its own is
 * under way, at once or from its thread.  A worker that comes meanwhile finds its gate
 * closed.
 *
 * An UPDATE is in on all ps or on none only if nobody died between two ps.  What a lost
 * worker had is run again with the same tokens, which completes it; so a moment counts
 * only when every ps refuses the lost ones and what they had is finished.  Without any
 * worker nobody can finish it: then the moment is taken as it is, and the log says so.
 *
 * Invariants:
 *   (1) `gate` is the number of the barrier whose gates are closed, 0 while there is
 *       none; it is changed under mu.
 *   (2) `gated` of a worker is the last number that it told; under gate_mu, taken while
 *       mu is held, because a link may tell from inside of gate().
 *   (3) half_upto is the highest closure that a lost worker had.
 */
#define BARRIER_LOOK_NS 2000000 /* how soon losses are noticed */

void coord_on_gated(void *ud, uint64_t number) {
  coord_worker *w = ud;
  tm_coordinator *c = w->owner;
  pthread_mutex_lock(&c->gate_mu);
  w->gated = number;
  pthread_cond_broadcast(&c->gated);
  pthread_mutex_unlock(&c->gate_mu);
}

void coord_gate_attach(tm_coordinator *c, coord_worker *w) {
  w->link->on_gated = coord_on_gated;
  if (c->gate && w->link->gate) w->link->gate(w->link, c->gate, true);
}

static bool barrier_told(tm_coordinator *c, coord_worker *w) {
  pthread_mutex_lock(&c->gate_mu);
  bool told = w->gated == c->gate;
  pthread_mutex_unlock(&c->gate_mu);
  return told;
}

/* What lost workers may have left half in is finished, or nobody is there to do it. */
static bool barrier_whole(tm_coordinator *c) {
  bool any = false;
  for (int32_t i = 0; i < c->nworker; i++) {
    const coord_worker *w = c->worker[i];
    if (w->state == COORD_LOST || w->unrefused) return false;
    any = any || w->state == COORD_READY;
  }
  return !any || coord_lowest_open(c) > c->half_upto;
}

/* There will be no moment: a ps is lost, for good or until it is restored, or nobody
 * wants it any more. */
static bool barrier_in_vain(const tm_coordinator *c, tm_cancel *cancel) {
  return c->lost || c->suspended || tm_cancelled(cancel);
}

static tm_status barrier_why(const tm_coordinator *c, tm_err *err) {
  if (!c->lost && !c->suspended)
    return tm_fail(err, TM_ECANCELLED,
                   "the wait for a moment without updates was cancelled");
  if (!c->lost)
    return tm_fail(err, TM_EUNAVAILABLE, "training pauses until a ps is restored");
  if (err) *err = c->lost_why;
  return c->lost_why.code;
}

static bool barrier_all_told(tm_coordinator *c) {
  if (c->rounds.ends) return false; /* the end of a round is an UPDATE too */
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state == COORD_READY && w->link->gate && !barrier_told(c, w)) return false;
  }
  return true;
}

static void barrier_set(tm_coordinator *c, uint64_t number, bool closed) {
  c->gate = closed ? number : 0;
  if (!closed) coord_rounds_look(c); /* no round ends meanwhile */
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state == COORD_READY && w->link->gate)
      w->link->gate(w->link, number, closed);
  }
}

/* A turn of waiting, without mu. */
static void barrier_pause(tm_coordinator *c, int64_t deadline) {
  int64_t until = tm_now_ns() + BARRIER_LOOK_NS;
  pthread_mutex_unlock(&c->mu);
  pthread_mutex_lock(&c->gate_mu);
  tm_status s = tm_cond_wait_until(&c->gated, &c->gate_mu,
                                   until < deadline ? until : deadline, NULL);
  (void)s; /* whoever waits looks again either way */
  pthread_mutex_unlock(&c->gate_mu);
  pthread_mutex_lock(&c->mu);
}

static tm_status barrier_late(tm_coordinator *c, tm_err *err) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->state != COORD_READY || !w->link->gate || barrier_told(c, w)) continue;
    if (err) memcpy(err->task, w->task, sizeof err->task);
    return tm_fail(err, TM_ETIMEOUT, "%s did not finish its update in time", w->task);
  }
  return tm_fail(err, TM_ETIMEOUT,
                 "what a lost worker was doing was not finished in time");
}

/* Why there is no moment yet; TM_OK: there may be one, try again. */
static tm_status barrier_outcome(tm_coordinator *c, int64_t deadline, tm_cancel *cancel,
                                 tm_err *err) {
  if (barrier_in_vain(c, cancel)) return barrier_why(c, err);
  return tm_now_ns() >= deadline ? barrier_late(c, err) : TM_OK;
}

/* May gates be closed, or stay so? */
static bool barrier_holds(tm_coordinator *c, tm_cancel *cancel) {
  return !barrier_in_vain(c, cancel) && barrier_whole(c);
}

/* Close the gates and wait; mu is held, gates stay closed on success. */
static tm_status barrier_close(tm_coordinator *c, int64_t deadline, tm_cancel *cancel,
                               tm_err *err) {
  for (;;) {
    while (!barrier_in_vain(c, cancel) && !barrier_whole(c) && tm_now_ns() < deadline)
      barrier_pause(c, deadline);
    uint64_t number = ++c->barriers;
    bool closed = barrier_holds(c, cancel);
    if (closed) barrier_set(c, number, true);
    while (closed && barrier_holds(c, cancel) && !barrier_all_told(c) &&
           tm_now_ns() < deadline)
      barrier_pause(c, deadline);
    if (closed && barrier_holds(c, cancel) && barrier_all_told(c)) return TM_OK;
    tm_status s = barrier_outcome(c, deadline, cancel, err);
    if (closed) barrier_set(c, number, false);
    if (s) return s;
  }
}

/* --- what is unfinished --- */

/* Closures of a queue that may have sent something, into id (NULL: only count). */
static int32_t unfinished_of(const tm_coordinator *c, const coord_queue *q,
                             uint64_t *id) {
  int32_t n = 0;
  for (const coord_item *it = q->head; it && it->id <= c->out_upto; it = it->next) {
    if (id) id[n] = it->id;
    n++;
  }
  return n;
}

static int32_t unfinished_all(const tm_coordinator *c, uint64_t *id) {
  const coord_queue *q[] = {&c->queue, &c->rounds.queue, &c->rounds.done,
                            &c->rounds.ending};
  int32_t n = 0;
  for (size_t i = 0; i < TM_COUNT(q); i++)
    n += unfinished_of(c, q[i], id ? id + n : NULL);
  for (int32_t i = 0; i < c->nworker; i++) {
    n += unfinished_of(c, &c->worker[i]->out, id ? id + n : NULL);
    n += unfinished_of(c, &c->worker[i]->own, id ? id + n : NULL);
  }
  return n;
}

static int unfinished_order(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

tm_status tm_coordinator_unfinished(tm_coordinator *c, uint64_t *done, uint64_t **id,
                                    int32_t *n, tm_err *err) {
  pthread_mutex_lock(&c->mu);
  *done = c->stats.steps;
  *n = unfinished_all(c, NULL);
  *id = *n ? tm_malloc((size_t)*n * sizeof **id) : NULL;
  bool ok = *n == 0 || *id;
  if (*id) unfinished_all(c, *id);
  pthread_mutex_unlock(&c->mu);
  if (!ok) return tm_nomem(err, "a list of closures");
  if (*id) qsort(*id, (size_t)*n, sizeof **id, unfinished_order);
  return TM_OK;
}

static void rounds_of(const coord_queue *q, const uint64_t *id, int32_t n, bool *yes) {
  for (const coord_item *it = q->head; it; it = it->next) {
    if (!it->trains) continue;
    const uint64_t *at = bsearch(&it->id, id, (size_t)n, sizeof *id, unfinished_order);
    if (at) yes[at - id] = true;
  }
}

void tm_coordinator_in_rounds(tm_coordinator *c, const uint64_t *id, int32_t n,
                              bool *yes) {
  if (c->opt.mode != TM_MODE_SYNC || n == 0) return;
  pthread_mutex_lock(&c->mu);
  const coord_queue *q[] = {&c->rounds.queue, &c->rounds.done, &c->rounds.ending};
  for (size_t i = 0; i < TM_COUNT(q); i++) rounds_of(q[i], id, n, yes);
  for (int32_t i = 0; i < c->nworker; i++) {
    rounds_of(&c->worker[i]->out, id, n, yes);
    rounds_of(&c->worker[i]->own, id, n, yes);
  }
  pthread_mutex_unlock(&c->mu);
}

tm_status tm_coordinator_barrier(tm_coordinator *c, int64_t timeout_ns,
                                 tm_cancel *cancel,
                                 tm_status (*fn)(void *ud, tm_err *err), void *ud,
                                 tm_err *err) {
  pthread_mutex_lock(&c->mu);
  tm_status s = barrier_close(c, tm_now_ns() + timeout_ns, cancel, err);
  if (s == TM_OK) {
    uint64_t number = c->gate;
    if (coord_lowest_open(c) <= c->half_upto)
      tm_log(TM_LOG_WARN,
             "what lost workers were doing may be half in, and no worker "
             "is there to finish it");
    pthread_mutex_unlock(&c->mu);
    s = fn(ud, err);
    pthread_mutex_lock(&c->mu);
    barrier_set(c, number, false);
  }
  pthread_mutex_unlock(&c->mu);
  return s;
}
