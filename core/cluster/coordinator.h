/*
 * coordinator.h - the closure queue and its dispatcher.
 *
 * schedule puts a closure into a bounded queue and returns a remote value at once;
 * the dispatcher hands closures out in order, several in a message, to workers with
 * room.  First error wins: what is queued is cancelled, what runs is stopped and
 * awaited, the error is raised once (the loss of a ps each time).
 *
 * Ownership: the coordinator owns its links.  Remote values are refcounted.
 * Threads:   schedule, join, done, fetch may be called from any thread; completions
 *            come from workers' threads.
 */
#ifndef TM_CLUSTER_COORDINATOR_H
#define TM_CLUSTER_COORDINATOR_H

#include "cluster/remote_value.h"
#include "cluster/worker.h"

typedef struct tm_coordinator tm_coordinator;

/* Who may run closures that apply gradients, and when (coord_rounds.c). */
typedef enum tm_mode {
  TM_MODE_ASYNC, /* who has room */
  TM_MODE_SYNC,  /* each worker one a round; their mean is applied */
  TM_MODE_SSP    /* who is not too far ahead of the slowest */
} tm_mode;

typedef struct tm_coordinator_options {
  int64_t queue_size; /* closures that may wait, >= 1 */
  tm_mode mode;
  int64_t staleness;      /* ssp: closures that a worker may be ahead */
  int32_t backup_workers; /* sync: workers that a round does not wait for */
  /* sync: end a round on every ps; from a thread of the coordinator's own, may block,
   * may be said again.  *any: some ps has ended it. */
  tm_status (*commit)(void *ud, const tm_ps_commit *c, bool *any, tm_err *err);
  /* Tell every ps to refuse UPDATEs of the incarnation of worker `index`; called from
   * the coordinator's own thread, may block.  NULL: nothing to tell. */
  tm_status (*refuse)(void *ud, int32_t index, tm_err *err);
  /* Reach worker `index` anew, one try: called from a thread of that worker's own, ends
   * soon after `cancel` is set.  TM_EABORTED: another chief is in charge, never try
   * again.  NULL: lost workers stay lost. */
  tm_status (*revive)(void *ud, int32_t index, tm_cancel *cancel, tm_worker_link **out,
                      tm_err *err);
  /* Tell a new link all variables; under the coordinator's lock, does not block. */
  tm_status (*furnish)(void *ud, tm_worker_link *link, tm_err *err);
  /* The name of worker `index`: of one that has no link at first. */
  const char *(*task)(void *ud, int32_t index);
  /* Worker `index` said that it will end; may be NULL. */
  void (*leaving)(void *ud, int32_t index, const char *why);
  int64_t worker_timeout_ns; /* without any worker for so long: TM_EUNAVAILABLE; <= 0:
                                wait for ever, with a line in the log every 10 s */
  void *ud;
} tm_coordinator_options;

/* Takes the links (not the array); NULL among them: one that is not there yet, which
 * `revive` will reach. */
TM_CHECKED tm_status tm_coordinator_new(const tm_coordinator_options *opt,
                                        tm_worker_link *const *link, int32_t n,
                                        tm_coordinator **out, tm_err *err);
/* Cancels, awaits, closes the links, joins the dispatcher. */
void tm_coordinator_free(tm_coordinator *c);

/* An argument of a closure. */
typedef enum tm_carg_kind {
  TM_CARG_TENSOR,
  TM_CARG_PER_WORKER,
  TM_CARG_REMOTE,
  TM_CARG_AFTER /* no argument, last: a result that is only waited for */
} tm_carg_kind;
typedef struct tm_carg {
  tm_carg_kind kind;
  tm_tensor *t;           /* TENSOR: borrowed */
  uint64_t resource;      /* PER_WORKER iterator: the same uid on each worker */
  tm_remote_value *value; /* REMOTE: borrowed; the closure waits for it */
  int32_t out;            /* ... and takes this one of its results, from 0 */
  const char *name;       /* ... for messages: "[1].x" */
} tm_carg;

/* TM_EAGAIN, nothing queued: wait for room (the queue is full, or what runs is being
 * cancelled).  A pending error is raised here.  value may be NULL: nobody wants the
 * result.  A closure whose argument failed fails with that error's code. */
TM_CHECKED tm_status tm_coordinator_schedule(tm_coordinator *c, tm_graph *g,
                                             const tm_carg *arg, int32_t narg,
                                             tm_remote_value **value, tm_err *err);
/* The same for one worker alone (index from 0), before what waits for any; it waits
 * while that worker is away and is cancelled when it goes for good.  TM_ENOTFOUND. */
TM_CHECKED tm_status tm_coordinator_schedule_on(tm_coordinator *c, int32_t worker,
                                                tm_graph *g, const tm_carg *arg,
                                                int32_t narg, tm_remote_value **value,
                                                tm_err *err);
/* Wait until the queue has room / everything is done.  timeout_ns < 0: for ever.
 * cancel (may be NULL) ends the wait with TM_ECANCELLED.  TM_ETIMEOUT: time is up. */
TM_CHECKED tm_status tm_coordinator_wait_room(tm_coordinator *c, int64_t timeout_ns,
                                              tm_cancel *cancel, tm_err *err);
/* The same until at most `most` closures are not finished.  all: that is all there is
 * to do, so a round that gets no more shares ends with what it has; else more come. */
TM_CHECKED tm_status tm_coordinator_wait_few(tm_coordinator *c, int64_t most, bool all,
                                             int64_t timeout_ns, tm_cancel *cancel,
                                             tm_err *err);
TM_CHECKED tm_status tm_coordinator_join(tm_coordinator *c, int64_t timeout_ns,
                                         tm_cancel *cancel, tm_err *err);
/* Somebody waits for this value: a round that gets no more shares ends with what it has
 * if that brings it (sync; join and done say so of all). */
void tm_coordinator_await(tm_coordinator *c, tm_remote_value *v);
/* TM_EINVAL: such a function cannot run in this mode. */
TM_CHECKED tm_status tm_coordinator_check(tm_coordinator *c, const tm_graph *g,
                                          tm_err *err);
/* *done: nothing queued, nothing running; then a pending error is raised. */
TM_CHECKED tm_status tm_coordinator_done(tm_coordinator *c, bool *done, tm_err *err);

/* Cancel what waits, stop what runs, and wait for that; nothing is raised for it, nor
 * an error that was pending.  What still runs after the timeout is left to stop:
 * functions are handed out again afterwards.  Raises the loss of a ps. */
TM_CHECKED tm_status tm_coordinator_cancel(tm_coordinator *c, int64_t timeout_ns,
                                           tm_err *err);

/* What all need (a ps) is gone for good: what runs and waits fails with `why`, and so
 * does every later schedule, join and done. */
void tm_coordinator_lose(tm_coordinator *c, const tm_err *why);

/* One more worker (its index is the next one): it is reached by `revive`. */
TM_CHECKED tm_status tm_coordinator_add_worker(tm_coordinator *c, const char *task,
                                               int32_t *index, tm_err *err);
/* It gets no more closures, finishes what it has, and is closed. */
TM_CHECKED tm_status tm_coordinator_remove_worker(tm_coordinator *c, int32_t index,
                                                  tm_err *err);

/* Stop everything without failing anything: no closure is handed out, those that were
 * go back to the queue, all links are closed.  Returns when that is done.  resume
 * reaches every worker anew.  For the restoring of a lost ps. */
void tm_coordinator_suspend(tm_coordinator *c, const char *why);
void tm_coordinator_resume(tm_coordinator *c);

/* A moment without UPDATEs: closes the gates of all workers, calls fn when no UPDATE is
 * under way, opens them again.  READs and computing go on.  TM_ETIMEOUT: a worker did
 * not come to the gate in time (fn was not called; try again later). */
TM_CHECKED tm_status tm_coordinator_barrier(tm_coordinator *c, int64_t timeout_ns,
                                            tm_cancel *cancel,
                                            tm_status (*fn)(void *ud, tm_err *err),
                                            void *ud, tm_err *err);

/* At one moment: how many closures are done, and which of those that were handed out
 * are not, rising.  tm_free(*id, *n * sizeof **id). */
TM_CHECKED tm_status tm_coordinator_unfinished(tm_coordinator *c, uint64_t *done,
                                               uint64_t **id, int32_t *n, tm_err *err);

/* Which of these closures (rising) apply gradients in rounds, so that what they apply
 * is not in before they are done. */
void tm_coordinator_in_rounds(tm_coordinator *c, const uint64_t *id, int32_t n,
                              bool *yes);

/* Resources on every worker, made again on a worker that comes back: an iterator, which
 * then starts at its first element, or with `resume` behind the last closure that the
 * worker completed ... */
TM_CHECKED tm_status tm_coordinator_add_iterator(tm_coordinator *c, uint64_t uid,
                                                 tm_dataset *ds, uint64_t seed,
                                                 bool resume, tm_err *err);
/* ... and variables (cluster/locals.h), whose first values are outputs of a graph. */
TM_CHECKED tm_status tm_coordinator_add_locals(tm_coordinator *c, uint64_t uid,
                                               tm_var_info *const *v, int32_t n,
                                               tm_graph *init, tm_err *err);
/* Is this variable one of these? */
bool tm_coordinator_holds(tm_coordinator *c, uint64_t variable);

/* Where an iterator is on each worker, behind its last completed closure: up to max
 * places; *n: how many workers there are.  *seed: of its order.  TM_ENOTFOUND. */
TM_CHECKED tm_status tm_coordinator_places(tm_coordinator *c, uint64_t uid,
                                           uint64_t *seed, tm_iter_place *place,
                                           int32_t max, int32_t *n);
/* Send it there; workers without a place start at the first element.  TM_EPRECOND:
 * while functions are queued or run, unless it is suspended. */
TM_CHECKED tm_status tm_coordinator_seek(tm_coordinator *c, uint64_t uid, uint64_t seed,
                                         const tm_iter_place *place, int32_t n,
                                         tm_err *err);
void tm_coordinator_drop(tm_coordinator *c, uint64_t uid);

/* --- iterators whose elements are dealt out: each is used by one closure --- */

/* A closure that takes such an argument gets as many elements as its function calls
 * next, when it is handed out first, and keeps them until it is finished; one that
 * finds no data left ends quietly (tm_remote_value_ended).  What is left for a
 * cancelled one goes to the next.  schedule says TM_EINVAL to functions that call next
 * in a branch or loop. TM_EINVAL: the dataset depends on the worker. */
TM_CHECKED tm_status tm_coordinator_add_dealt(tm_coordinator *c, uint64_t uid,
                                              tm_dataset *ds, uint64_t seed,
                                              tm_err *err);
/* The next pass: a new order of shuffles, all elements again.  TM_EPRECOND: closures
 * that take from it are not finished. */
TM_CHECKED tm_status tm_coordinator_start_pass(tm_coordinator *c, uint64_t uid,
                                               tm_err *err);
typedef struct tm_progress {
  uint64_t pass;
  int64_t dealt,
      done;      /* elements: of closures that were handed out; of finished ones */
  int64_t left;  /* for others; -1: not known */
  int64_t steps; /* closures with data in this pass; without those that were undone */
  int64_t deals; /* how often a closure was given some, ever */
  bool endless;
} tm_progress;
TM_CHECKED tm_status tm_coordinator_progress(tm_coordinator *c, uint64_t uid,
                                             tm_progress *out, tm_err *err);
/* What is done in a pass: all elements below `next` but for the ranges `undone`, in
 * order. */
typedef struct tm_range {
  int64_t first, n;
} tm_range;
typedef struct tm_deals {
  uint64_t seed, pass;
  int64_t next;
  tm_range *undone;
  int32_t n, room;
} tm_deals;
/* Now, or as tm_coordinator_note_deals noted it (if it did since this was asked last).
 */
TM_CHECKED tm_status tm_coordinator_deals(tm_coordinator *c, uint64_t uid, bool noted,
                                          tm_deals *out, tm_err *err);
/* Of all such iterators, for a checkpoint of this moment (inside of a barrier), which
 * has the UPDATEs of some closures that are not finished: n numbers, rising. */
TM_CHECKED tm_status tm_coordinator_note_deals(tm_coordinator *c, const uint64_t *in,
                                               int32_t n, tm_err *err);
bool tm_coordinator_deals_out(tm_coordinator *c); /* is there such an iterator? */
void tm_deals_release(tm_deals *d);
/* Go on from there.  Closures that wait keep what they have of that pass.  TM_EPRECOND:
 * while functions are queued or run, unless it is suspended. */
TM_CHECKED tm_status tm_coordinator_redeal(tm_coordinator *c, uint64_t uid,
                                           const tm_deals *to, tm_err *err);
TM_CHECKED tm_status tm_coordinator_add_variable(tm_coordinator *c, tm_var_info *v,
                                                 tm_err *err);

typedef struct tm_worker_stats {
  uint64_t steps, reads, updates;
  const char *state; /* static text: "ready" "down" ... */
} tm_worker_stats;
typedef struct tm_coordinator_stats {
  uint64_t steps, reads, updates, bytes_read, bytes_updated, retries;
  uint64_t rounds, late; /* rounds that ended; closures that came too late for theirs */
  int64_t queued, running;
  int32_t nworker;
} tm_coordinator_stats;
void tm_coordinator_get_stats(tm_coordinator *c, tm_coordinator_stats *out,
                              tm_worker_stats *workers, int32_t max);

#endif
