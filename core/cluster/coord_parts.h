/*
 * coord_parts.h - inside of the coordinator.  Included by coord*.c only.
 *
 *   coordinator.c      schedule, join, done; making and ending one
 *   coord_dispatch.c   handing closures out, taking completions
 *   coord_args.c       closures whose arguments are not there yet
 *   coord_workers.c    the life of a worker: lost, away, back, removed
 *   coord_resources.c  what lives on every worker
 *   coord_deal.c       which elements of a dataset each closure gets
 *   coord_barrier.c    moments without UPDATEs
 *   coord_rounds.c     modes: who may train now; rounds
 *
 * Threads: everything here is guarded by the coordinator's mu, which the functions
 *          below expect to be held unless they say otherwise.
 */
#ifndef TM_CLUSTER_COORD_PARTS_H
#define TM_CLUSTER_COORD_PARTS_H

#include <pthread.h>

#include "base/map.h"
#include "cluster/coord_queue.h"
#include "cluster/coordinator.h"

enum { COORD_WINDOW_MIN = 2, COORD_WINDOW_MAX = 256 };

typedef enum coord_state {
  COORD_READY, /* has a link that works */
  COORD_LOST,  /* its link broke and is to be closed */
  COORD_AWAY,  /* no link: it is to be reached */
  COORD_GONE   /* no link, for good */
} coord_state;

typedef struct coord_worker {
  tm_coordinator *owner;
  int32_t index;
  coord_state state;
  bool met;       /* was reached once */
  bool draining;  /* gets no more closures */
  bool removing;  /* by the user: gone once nothing is out */
  bool unrefused; /* the incarnation before may still send UPDATEs */
  bool keeping;   /* a thread looks after it */
  bool kept;      /* that thread has ended and is to be joined */
  pthread_t keeper;
  pthread_cond_t wake; /* for the keeper */
  tm_cancel cancel;    /* ends what the keeper waits for */
  tm_worker_link *link;
  int32_t pins; /* calls into link that are made without mu */
  char task[48];
  tm_err why;      /* it was lost, or cannot be reached */
  coord_queue out; /* handed out, in order */
  coord_queue own; /* for this worker only, not handed out */
  size_t window;
  double rate; /* closures a second, smoothed */
  int64_t last_ns;
  int64_t recall_ns; /* closures were recalled from it last */
  int64_t there_ns;  /* its link was attached */
  int64_t pause_ns;  /* before the next try to reach it */
  uint64_t gated;    /* under gate_mu: the last number that it told */
  int64_t held;      /* closures out that apply gradients */
  int64_t clock;     /* ssp: such closures that it has done */
  coord_item *share; /* sync: the one that it holds, perhaps of an earlier round */
  uint64_t shared;   /* sync: the last round that it did its share of */
  tm_worker_stats stats;
} coord_worker;

/* Where an iterator is on one worker: behind its last completed closure. */
typedef struct coord_place {
  tm_iter_place at;
  bool sought; /* it was sent there while the worker was away: it begins there */
} coord_place;

typedef struct coord_accounts coord_accounts; /* of elements that are dealt out */

typedef struct coord_resource {
  uint64_t uid;
  uint64_t made; /* how many were made so far, this one included */
  /* An iterator: */
  tm_dataset *ds; /* NULL: variables */
  uint64_t seed;
  bool dealt;         /* see accounts */
  bool resume;        /* it goes on where it was on a worker that comes back */
  coord_place *place; /* by index of worker */
  int32_t nplace;
  coord_accounts *accounts; /* NULL: each worker goes through all of it by itself */
  /* Variables of each worker: */
  int32_t n;
  tm_var_info **info;
  tm_graph *graph;
} coord_resource;

/* Closures that apply gradients, where the mode is not async. */
typedef struct coord_rounds {
  coord_queue queue; /* they wait for a worker */
  tm_map *known;     /* hash of a graph: 1, it does not train; 2, it does and may */
  /* Of sync: */
  uint64_t number, shares;  /* the round under way, from 1; shares handed out so far */
  uint64_t asked;           /* somebody waits for closures up to this one */
  coord_queue done, ending; /* its shares that are done; those that are committed now */
  bool ends;                /* ... without mu, by the thread */
  bool threaded;
  pthread_t thread;
  pthread_cond_t ready;
} coord_rounds;

struct tm_coordinator {
  pthread_mutex_t mu;
  pthread_cond_t changed; /* room, completion, error, the end of a keeper */
  pthread_cond_t work;    /* for the janitor */
  pthread_t janitor;
  bool closing, suspended;
  coord_queue queue;
  coord_rounds rounds;
  tm_map *apart; /* number of a closure to a list of those that wait for its result */
  size_t napart;
  tm_remote_hub *hub;
  uint64_t next_id, draws;  /* draws: closures without a deal, and iterators with one */
  int64_t running, owned;   /* closures that are out; in `own` queues */
  bool failed, lost, quiet; /* quiet: the failure is nobody's error */
  tm_err failure, lost_why;
  int32_t nworker, max_worker, last_lost;
  coord_worker **worker;
  bool armed; /* the janitor looks for closures that wait behind a straggler */
  int64_t alone_ns, told_ns; /* work waits and no worker is ready since; 0: not so */
  uint64_t made;             /* resources so far */
  coord_resource *resource;  /* in order of making */
  int32_t nresource, max_resource;
  tm_map *calls;           /* of coord_deal.c; may be NULL */
  uint64_t gate, barriers; /* the one whose gates are closed, or 0; so far */
  uint64_t out_upto;       /* the highest closure that was handed out */
  uint64_t half_upto;      /* the highest closure that a lost worker had */
  pthread_mutex_t gate_mu; /* may be taken while mu is held */
  pthread_cond_t gated;
  tm_coordinator_options opt;
  tm_coordinator_stats stats;
};

/* --- coord_dispatch.c --- */

void coord_item_free(coord_item *it);
void coord_cancel_item(tm_coordinator *c, coord_item *it);
/* Put it where it waits for a worker. */
void coord_requeue(tm_coordinator *c, coord_item *it);
/* Cancel what waits for w only: it is gone for good. */
void coord_drop_own(tm_coordinator *c, coord_worker *w);
bool coord_idle(const tm_coordinator *c); /* nothing queued, nothing out */
/* The lowest unfinished closure; that was not run to its end. */
uint64_t coord_lowest(const tm_coordinator *c);
uint64_t coord_lowest_open(const tm_coordinator *c);
bool coord_full(const tm_coordinator *c);
int64_t coord_waiting(const tm_coordinator *c); /* closures that are not out */
/* Hand out what fits. */
void coord_dispatch(tm_coordinator *c);
/* The first error is kept; what is queued is cancelled, what runs is stopped. */
void coord_fail(tm_coordinator *c, const tm_err *err);
/* A worker's closures go back to their places, and on to others. */
void coord_take_back(tm_coordinator *c, coord_worker *w);
/* A worker has nothing to do, nothing is queued, and another holds closures that it has
 * not started. */
bool coord_uneven(const tm_coordinator *c);
/* Such closures come back from one worker that has completed none for a while; false:
 * there is none.  Lets go of mu. */
bool coord_recall_one(tm_coordinator *c);
/* All that w has not started comes back.  Lets go of mu. */
void coord_recall(tm_coordinator *c, coord_worker *w, int32_t keep);
/* Of links; mu not held. */
void coord_on_done(void *ud, const tm_completion *d, int32_t n);

/* It is done, by w; outputs are borrowed. */
void coord_succeed(tm_coordinator *c, coord_worker *w, coord_item *it,
                   tm_tensor *const *out, int32_t nout);
/* Remember the first error; coord_fail does what follows from it. */
void coord_note_failure(tm_coordinator *c, const tm_err *err);

/* --- coord_rounds.c --- */

TM_CHECKED tm_status
coord_rounds_init(tm_coordinator *c);         /* mu held: its thread waits */
void coord_rounds_release(tm_coordinator *c); /* nobody else is there */
void coord_rounds_join(tm_coordinator *c);    /* closing is set; mu not held */
/* May this function run in this mode, and does it apply gradients (as far as the mode
 * wants to know)? */
TM_CHECKED tm_status coord_rounds_admit(tm_coordinator *c, const tm_graph *g,
                                        bool *trains, tm_err *err);
/* A worker is there, or there again. */
void coord_rounds_attach(coord_worker *w);
/* May w get a closure that trains? */
bool coord_rounds_may(tm_coordinator *c, coord_worker *w);
/* The worker that gets the next one; NULL: none may. */
coord_worker *coord_rounds_pick(tm_coordinator *c);
void coord_rounds_mark(tm_coordinator *c, coord_item *it); /* before it is handed out */
void coord_rounds_out(tm_coordinator *c, coord_worker *w, coord_item *it); /* it was */
void coord_rounds_off(coord_worker *w, coord_item *it, bool done);
/* It was run to its end: true, it is kept until its round ends. */
bool coord_rounds_keep(tm_coordinator *c, coord_worker *w, coord_item *it,
                       const tm_completion *d);
/* The round under way is void: what was done for it is cancelled, or (again) to be done
 * again. */
void coord_rounds_void(tm_coordinator *c, bool again);
void coord_rounds_look(tm_coordinator *c); /* has it enough? */
/* Somebody waits for closures up to this one. */
void coord_rounds_await(tm_coordinator *c, uint64_t upto);

/* --- coord_args.c --- */

TM_CHECKED tm_status coord_args_check(const tm_coordinator *c, const tm_carg *arg,
                                      int32_t narg, tm_err *err);
TM_CHECKED tm_status coord_wants_take(coord_item *it, const tm_carg *arg, int32_t narg);
void coord_wants_free(coord_item *it);
/* A new closure: to its place, or apart.  It may fail (see failed). */
void coord_args_enter(tm_coordinator *c, coord_item *it);
/* The value of closure `id` is set: those that wait for it go on, or fail. */
void coord_args_done(tm_coordinator *c, uint64_t id);
void coord_args_cancel(tm_coordinator *c);

/* --- coord_deal.c --- */

/* TM_EINVAL: the dataset is not the same on all workers. */
TM_CHECKED tm_status coord_accounts_new(const tm_dataset *ds, coord_accounts **out,
                                        tm_err *err);
void coord_accounts_free(coord_accounts *a); /* a may be NULL */
/* What is drawn at its elements depends on this number. */
void coord_accounts_draw(coord_accounts *a, uint64_t draw);
/* A new closure: note how many elements of what it takes. */
TM_CHECKED tm_status coord_deal_ask(tm_coordinator *c, coord_item *it, tm_err *err);
/* It is handed out: it gets them now, if it has none.  TM_ERANGE: no data are left. */
TM_CHECKED tm_status coord_deal_out(tm_coordinator *c, coord_item *it);
/* It will not run; or what it had counts as used. */
void coord_deal_back(tm_coordinator *c, coord_item *it);
void coord_deal_spend(tm_coordinator *c, coord_item *it);
/* It is finished.  True: it found that the data end, which is no error. */
bool coord_deal_settle(tm_coordinator *c, coord_item *it, const tm_completion *d);
/* Then: others handed back what it may take instead. */
bool coord_deal_may_go(tm_coordinator *c, const coord_item *it);

/* --- coord_workers.c --- */

bool coord_of_ps(const tm_err *err); /* it came from a ps */

TM_CHECKED tm_status coord_worker_new(tm_coordinator *c, int32_t index,
                                      coord_worker **out);
void coord_worker_free(coord_worker *w);
void coord_attach(coord_worker *w, tm_worker_link *link);
/* Its link is of no use any more: what is out of it will run elsewhere. */
void coord_lose_worker(coord_worker *w, const tm_err *why);
/* Wait until nobody calls into w's link, take it away; NULL when there is none. */
tm_worker_link *coord_detach(tm_coordinator *c, coord_worker *w);
void *coord_janitor(void *c); /* a thread; mu not held */
/* End all keepers and wait for them. */
void coord_end_keepers(tm_coordinator *c);

/* --- coord_barrier.c --- */

/* A link that comes during a barrier finds its gate closed. */
void coord_gate_attach(tm_coordinator *c, coord_worker *w);
/* Of links; mu may be held. */
void coord_on_gated(void *ud, uint64_t number);

/* --- coord_resources.c --- */

/* A completion of `it` on w tells what was taken from iterators. */
void coord_resources_took(tm_coordinator *c, const coord_worker *w,
                          const coord_item *it, const tm_completion *d);
/* Make all of them on the link of w, which nobody else uses yet.  Lets go of mu
 * meanwhile: large datasets take long. */
TM_CHECKED tm_status coord_resources_send(tm_coordinator *c, const coord_worker *w,
                                          tm_worker_link *l, tm_err *err);
void coord_resources_free(tm_coordinator *c);
coord_resource *coord_resource_find(tm_coordinator *c, uint64_t uid); /* or NULL */
/* Make an iterator anew on all workers.  Lets go of mu. */
TM_CHECKED tm_status coord_resource_again(tm_coordinator *c, uint64_t uid,
                                          uint64_t seed, const tm_iter_place *place,
                                          int32_t n, tm_err *err);

#endif
