#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/coord_parts.h"
#include "graph/training.h"

/*
 * Design.  Where the mode is not async, closures that apply gradients wait in a queue
 * of their own; all others are handed out as ever.
 *
 * ssp.  The clock of a worker counts such closures that it has done.  One that would
 * begin (clock + held) further than `staleness` above the lowest clock of those who
 * hold one waits.  Who holds none holds up nobody, but may not fall behind without end:
 * it begins at most `staleness` + 1 below the highest.
 *
 * sync.  A round has at most one share of each worker.  What a share applies is kept
 * aside by the ps (ps/rounds.h) and its closure is not done until the round ends: when
 * all workers but `backup_workers` did their share, or when somebody waits and nobody
 * is there to bring more.  A thread then has every ps apply the mean.  A share that
 * comes later is passed over by the ps, and its closure is done.  Each time that a
 * closure is handed out it is another share, so what a lost worker left aside never
 * counts.
 *
 * Invariants:
 *   (1) Shares in `done` are of round `number`; those in `ending` are of the round that
 *       is being ended while `ends` is set, and are not touched by others meanwhile.
 *   (2) No share is handed out while a round is being ended: READs of the next one see
 *       all of the mean.
 *   (3) Shares are handed out in order of closures to workers in order of index, so the
 *       same closures make the same rounds while no worker comes or goes.
 *   (4) No round ends while gates are closed, and a moment waits for one that does.
 *   (5) A closure whose worker was lost when its round ended runs again, whatever is
 *       still heard of it.
 */
enum {
  ROUNDS_KNOWN = 1024, /* graphs that are not looked at again */
  ROUNDS_TRIES = 500   /* to tell all ps; one that is lost ends it sooner */
};
#define ROUNDS_PAUSE_NS 20000000 /* between two of them */

static bool rounds_sync(const tm_coordinator *c) { return c->opt.mode == TM_MODE_SYNC; }

tm_status tm_coordinator_check(tm_coordinator *c, const tm_graph *g, tm_err *err) {
  return rounds_sync(c) ? tm_graph_check_round(g, err) : TM_OK;
}

tm_status coord_rounds_admit(tm_coordinator *c, const tm_graph *g, bool *trains,
                             tm_err *err) {
  coord_rounds *r = &c->rounds;
  if (c->opt.mode == TM_MODE_ASYNC) return TM_OK;
  uintptr_t known = (uintptr_t)tm_map_get(r->known, g->hash[0]);
  if (!known) {
    known = tm_graph_trains(g) ? 2 : 1;
    if (known == 2) TM_TRY(tm_coordinator_check(c, g, err));
    if (tm_map_count(r->known) < ROUNDS_KNOWN &&
        tm_map_put(r->known, g->hash[0], (void *)known))
      return tm_nomem(err, "a function");
  }
  *trains = known == 2;
  return TM_OK;
}

/* --- ssp --- */

static bool rounds_counts(const coord_worker *w) {
  return w->state == COORD_READY && w->held > 0;
}

/* w takes part with this clock. */
static int64_t ssp_clock(const tm_coordinator *c, const coord_worker *w) {
  int64_t high = 0;
  if (w->held > 0) return w->clock;
  for (int32_t i = 0; i < c->nworker; i++)
    if (c->worker[i]->state == COORD_READY && c->worker[i]->clock > high)
      high = c->worker[i]->clock;
  int64_t least = high - c->opt.staleness - 1;
  return w->clock > least ? w->clock : least;
}

static bool ssp_may(const tm_coordinator *c, const coord_worker *w) {
  int64_t mine = ssp_clock(c, w), low = mine;
  for (int32_t i = 0; i < c->nworker; i++)
    if (rounds_counts(c->worker[i]) && c->worker[i]->clock < low)
      low = c->worker[i]->clock;
  return mine + w->held <= low + c->opt.staleness;
}

/* It begins with the slowest. */
void coord_rounds_attach(coord_worker *w) {
  const tm_coordinator *c = w->owner;
  const coord_worker *low = NULL;
  for (int32_t i = 0; i < c->nworker; i++) {
    const coord_worker *k = c->worker[i];
    if (k != w && rounds_counts(k) && (!low || k->clock < low->clock)) low = k;
  }
  if (low && low->clock > w->clock) w->clock = low->clock;
}

/* The one that is furthest behind. */
static coord_worker *ssp_pick(tm_coordinator *c) {
  coord_worker *best = NULL;
  int64_t least = 0;
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (w->draining || !coord_rounds_may(c, w)) continue;
    int64_t at = ssp_clock(c, w) + w->held;
    if (best && at >= least) continue;
    best = w;
    least = at;
  }
  return best;
}

/* --- sync: handing out --- */

static bool sync_may(const tm_coordinator *c, const coord_worker *w) {
  const coord_rounds *r = &c->rounds;
  return !r->ends && !w->share && w->shared != r->number;
}

bool coord_rounds_may(tm_coordinator *c, coord_worker *w) {
  if (w->state != COORD_READY || coord_queue_full(&w->out)) return false;
  if (rounds_sync(c)) return sync_may(c, w);
  return w->out.n < w->window && ssp_may(c, w);
}

coord_worker *coord_rounds_pick(tm_coordinator *c) {
  if (!rounds_sync(c)) return ssp_pick(c);
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    if (!w->draining && coord_rounds_may(c, w)) return w;
  }
  return NULL;
}

void coord_rounds_mark(tm_coordinator *c, coord_item *it) {
  if (!rounds_sync(c)) return;
  it->round = c->rounds.number;
  it->share = ++c->rounds.shares;
}

void coord_rounds_out(tm_coordinator *c, coord_worker *w, coord_item *it) {
  if (c->opt.mode == TM_MODE_SSP) w->clock = ssp_clock(c, w);
  w->held++;
  if (it->round) w->share = it;
}

void coord_rounds_off(coord_worker *w, coord_item *it, bool done) {
  w->held--;
  w->clock += done;
  if (w->share == it) w->share = NULL;
}

/* --- sync: the end of a round --- */

/* Who of this round is still to be waited for: *busy of them run a share. */
static int32_t sync_missing(const tm_coordinator *c, int32_t *busy) {
  int32_t missing = 0;
  *busy = 0;
  for (int32_t i = 0; i < c->nworker; i++) {
    const coord_worker *w = c->worker[i];
    if (w->state != COORD_READY) continue;
    bool runs = w->share && w->share->round == c->rounds.number;
    bool idle = !runs && !w->draining && w->shared != c->rounds.number;
    missing += runs || idle;
    *busy += w->share != NULL;
  }
  return missing;
}

static bool sync_ready(const tm_coordinator *c) {
  const coord_rounds *r = &c->rounds;
  int32_t busy;
  if (!r->done.n || r->ends || c->suspended || c->gate || c->closing) return false;
  if (sync_missing(c, &busy) <= c->opt.backup_workers) return true;
  return busy == 0 && r->done.head->id <= r->asked;
}

void coord_rounds_look(tm_coordinator *c) {
  if (rounds_sync(c) && sync_ready(c)) pthread_cond_signal(&c->rounds.ready);
}

void coord_rounds_await(tm_coordinator *c, uint64_t upto) {
  if (upto > c->rounds.asked) c->rounds.asked = upto;
  coord_rounds_look(c);
}

void tm_coordinator_await(tm_coordinator *c, tm_remote_value *v) {
  if (!rounds_sync(c) || !tm_remote_value_rounds(v)) return;
  pthread_mutex_lock(&c->mu);
  coord_rounds_await(c, tm_remote_value_step(v));
  pthread_mutex_unlock(&c->mu);
}

/* Its results wait with it. */
static tm_status sync_hold(coord_item *it, const tm_completion *d) {
  if (d->nout == 0) return TM_OK;
  it->out = tm_calloc((size_t)d->nout, sizeof *it->out);
  if (!it->out) return TM_ENOMEM;
  it->nout = d->nout;
  for (int32_t i = 0; i < d->nout; i++) it->out[i] = tm_tensor_ref(d->out[i]);
  return TM_OK;
}

bool coord_rounds_keep(tm_coordinator *c, coord_worker *w, coord_item *it,
                       const tm_completion *d) {
  coord_rounds *r = &c->rounds;
  tm_err err;
  if (c->failed) { /* its round is void */
    uint64_t id = it->id;
    coord_cancel_item(c, it);
    coord_args_done(c, id);
    return true;
  }
  if (it->round != r->number || r->ends) {
    c->stats.late++;
    return false;
  }
  if (sync_hold(it, d)) {
    tm_err_clear(&err);
    tm_nomem(&err, "results");
    if (it->value) tm_remote_value_fail(it->value, &err);
    coord_item_free(it);
    coord_fail(c, &err);
    return true;
  }
  it->by = w->index;
  w->shared = r->number;
  coord_queue_insert(&r->done, it);
  return true;
}

static void sync_forget(coord_item *it) {
  for (int32_t i = 0; i < it->nout; i++) tm_tensor_unref(it->out[i]);
  tm_free(it->out, (size_t)it->nout * sizeof *it->out);
  it->out = NULL;
  it->nout = 0;
}

static void sync_give_back(tm_coordinator *c, coord_queue *q, bool again) {
  for (coord_item *it; (it = coord_queue_pop(q));) {
    sync_forget(it);
    if (again) {
      coord_requeue(c, it);
      continue;
    }
    uint64_t id = it->id;
    coord_cancel_item(c, it);
    coord_args_done(c, id);
  }
}

void coord_rounds_void(tm_coordinator *c, bool again) {
  if (!rounds_sync(c)) return;
  if (!c->rounds.ends) c->rounds.number++; /* else its end does so */
  sync_give_back(c, &c->rounds.done, again);
}

static bool sync_away(tm_status s) {
  return s == TM_EUNAVAILABLE || s == TM_ETIMEOUT || s == TM_ECANCELLED;
}

/* A ps that cannot be told now is told again, because others may have it: it is reached
 * (at once, where it began anew since the last round), or it is lost, which ends all
 * (mu held; lets go of it).  *any: some ps has it. */
static tm_status sync_commit(tm_coordinator *c, const tm_ps_commit *commit, bool *any,
                             tm_err *err) {
  tm_status s = TM_OK;
  *any = false;
  for (int tries = 0; tries < ROUNDS_TRIES; tries++) {
    bool some = false;
    if (tries > 1 && (c->suspended || c->lost || c->closing)) return s;
    pthread_mutex_unlock(&c->mu);
    if (tries > 1) tm_sleep_ns(ROUNDS_PAUSE_NS);
    tm_err_clear(err);
    s = c->opt.commit(c->opt.ud, commit, &some, err);
    pthread_mutex_lock(&c->mu);
    *any = *any || some;
    if (!sync_away(s)) return s;
  }
  return s;
}

/* All of the round is in, or it never will. */
static void sync_settle(tm_coordinator *c, tm_status s, bool any, const tm_err *err) {
  coord_rounds *r = &c->rounds;
  bool away = sync_away(s) && (c->suspended || c->lost || c->closing);
  coord_item *it;
  if (s == TM_OK || any) {
    c->stats.rounds++;
    while ((it = coord_queue_pop(&r->ending))) {
      if (it->deal) coord_deal_spend(c, it);
      coord_succeed(c, c->worker[it->by], it, it->out, it->nout);
    }
  } else {
    sync_give_back(c, &r->ending, away && !c->failed);
  }
  if (s && !away) coord_fail(c, err);
}

/* Closures of this round whose workers are lost run again. */
static void sync_leave_behind(tm_coordinator *c) {
  for (int32_t i = 0; i < c->nworker; i++) {
    coord_worker *w = c->worker[i];
    bool lost = w->state == COORD_LOST || w->state == COORD_AWAY;
    if (lost && w->share && w->share->round == c->rounds.number) w->share->again = true;
  }
}

/* mu held; lets go of it. */
static void sync_end(tm_coordinator *c) {
  coord_rounds *r = &c->rounds;
  tm_err err;
  tm_err_clear(&err);
  size_t n = r->done.n, i = 0;
  uint64_t *share = tm_malloc(n * sizeof *share);
  if (!share) {
    tm_nomem(&err, "the end of a round");
    coord_fail(c, &err);
    return;
  }
  for (coord_item *it = r->done.head; it; it = it->next) share[i++] = it->share;
  r->ending = r->done;
  coord_queue_init(&r->done, SIZE_MAX);
  r->ends = true;
  sync_leave_behind(c);
  tm_ps_commit commit = {r->number, share, (int32_t)n};
  bool any;
  tm_status s = sync_commit(c, &commit, &any, &err);
  tm_free(share, n * sizeof *share);
  sync_settle(c, s, any, &err);
  r->ends = false;
  r->number++;
  if (!c->failed) coord_dispatch(c);
  pthread_cond_signal(&c->work);
  pthread_cond_broadcast(&c->changed);
}

static void *sync_main(void *p) {
  tm_coordinator *c = p;
  pthread_mutex_lock(&c->mu);
  while (!c->closing) {
    if (sync_ready(c))
      sync_end(c);
    else
      pthread_cond_wait(&c->rounds.ready, &c->mu);
  }
  pthread_mutex_unlock(&c->mu);
  return NULL;
}

/* --- its life --- */

tm_status coord_rounds_init(tm_coordinator *c) {
  if (c->opt.mode != TM_MODE_ASYNC) TM_TRY(tm_map_new(&c->rounds.known));
  if (!rounds_sync(c)) return TM_OK;
  TM_DCHECK(c->opt.commit);
  c->rounds.threaded = pthread_create(&c->rounds.thread, NULL, sync_main, c) == 0;
  return c->rounds.threaded ? TM_OK : TM_EEXHAUSTED;
}

void coord_rounds_join(tm_coordinator *c) {
  if (c->rounds.threaded) pthread_join(c->rounds.thread, NULL);
  c->rounds.threaded = false;
}

void coord_rounds_release(tm_coordinator *c) {
  tm_map_free(c->rounds.known);
  pthread_cond_destroy(&c->rounds.ready);
}
