/*
 * worker.h - the worker: one compute thread that runs closures in order.
 *
 * The thread looks one closure ahead: after it has sent READ n (with UPDATE n-1) it
 * fetches the batch of n+1 while it waits or computes, so UPDATE n and READ n+1 go in
 * one frame when the batch is there (an UPDATE never waits for it).  It needs no Lua.
 *
 * The coordinator drives a worker through a tm_worker_link: the local one calls
 * straight into tm_worker, the remote one (cluster/remote.h) sends messages.
 *
 * Threads: link functions may be called from any one thread at a time; on_done and
 * on_down come from the worker's (or the network's) thread, or that of recall, and must
 * not block.
 */
#ifndef TM_CLUSTER_WORKER_H
#define TM_CLUSTER_WORKER_H

#include "cluster/vars.h"
#include "graph/exec.h"

typedef struct tm_closure {
  uint64_t id;     /* number of the closure, from 1 */
  uint64_t draw;   /* random numbers are drawn by this one, see tm_env */
  uint64_t lowest; /* lowest unfinished one at dispatch */
  tm_graph *graph; /* optimised */
  int32_t narg;
  tm_arg_value *arg; /* tensors referenced; iterators by resource uid */
  const tm_deal
      *deal;      /* NULL: none; else one an argument, of iterators that are dealt */
  bool want;      /* somebody holds the remote value */
  uint64_t round; /* see tm_ps_token; 0: of none */
  uint64_t share;
} tm_closure;

enum { TM_MAX_TOOK = 16 };
typedef struct tm_took {
  uint32_t given, failed; /* elements; of a dealt iterator `failed` is 1 where its data
                             were found to end behind those given */
} tm_took;

typedef struct tm_completion {
  uint64_t id;
  tm_status status;
  tm_err err;
  int32_t nout; /* 0 when not wanted */
  tm_tensor **out;
  tm_vars_counters count; /* what this closure cost */
  /* What it took from each of its first TM_MAX_TOOK iterators, in order of arguments.
   */
  int32_t ntook;
  tm_took took[TM_MAX_TOOK];
} tm_completion;

typedef struct tm_worker_link tm_worker_link;
struct tm_worker_link {
  /* set by the coordinator before start: */
  void (*on_done)(void *ud, const tm_completion *c,
                  int32_t n);                   /* takes nothing: refs
                                                  outs if it keeps them */
  void (*on_down)(void *ud, const tm_err *why); /* once; nothing comes after it */
  void (*on_gated)(void *ud, uint64_t number);  /* see gate */
  void (*on_leave)(void *ud, const char *why);  /* it will end soon; text is borrowed */
  void *ud;
  char task[48]; /* "/job:worker/task:0" */
  /* functions: */
  void (*start)(tm_worker_link *l); /* the callbacks are set: before it none is called,
                                       and what happened before is told by it.  NULL:
                                       not needed */
  tm_status (*submit)(tm_worker_link *l, const tm_closure *c, int32_t n, tm_err *err);
  tm_status (*add_variable)(tm_worker_link *l, tm_var_info *v, tm_err *err);
  /* Begins behind `from`.  One that cannot be made fails who uses it.  dealt: the same
   * on all workers; closures say which elements they take. */
  tm_status (*add_iterator)(tm_worker_link *l, uint64_t uid, tm_dataset *ds,
                            uint64_t seed, tm_iter_place from, bool dealt, tm_err *err);
  /* Variables of this worker alone (cluster/locals.h). */
  tm_status (*add_locals)(tm_worker_link *l, uint64_t uid, tm_var_info *const *v,
                          int32_t n, tm_graph *init, tm_err *err);
  tm_status (*drop)(tm_worker_link *l, uint64_t uid); /* a resource */
  void (*cancel)(tm_worker_link *l, uint64_t upto);   /* closures with id <= upto end as
                                                         cancelled, at their next op */
  /* Closures that were not started (their READ not sent) come back, the newest first,
   * until at most `keep` are held: as completions with status TM_EAGAIN, which may come
   * from within the call.  What they fetched ahead is the next batch again.  May be
   * called beside the other functions; NULL: not possible. */
  void (*recall)(tm_worker_link *l, int32_t keep);
  /* closed: no UPDATE starts until the gate is opened; on_gated(number) is called once
   * none is under way, perhaps from here.  READs pass, unless they ride with one. */
  void (*gate)(tm_worker_link *l, uint64_t number, bool closed);
  void (*close)(tm_worker_link *l); /* stops, joins, frees; on_down is not called */
};

typedef struct tm_worker_options {
  int32_t index; /* task index */
  int32_t nworker;
  int threads;   /* for kernels, >= 1 */
  uint64_t seed; /* global seed */
  uint64_t incarnation;
} tm_worker_options;

/* A worker in this process; takes `vars` and `resources`. */
TM_CHECKED tm_status tm_worker_local(const tm_worker_options *opt, tm_vars *vars,
                                     tm_resources *resources, tm_worker_link **out,
                                     tm_err *err);

#endif
