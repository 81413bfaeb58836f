/*
 * program.h - the inside of programs and plans.  (Inside core/graph; users see exec.h.)
 *
 * Vocabulary: a value is an output of a node; value v of node i is first[i] + output.
 * The order lists nodes level by level (fetch stage first); within a level READs, then
 * kernels in program order, then UPDATEs.
 *
 * Threads: programs and plans are immutable once made, but for the locked caches.
 */
#ifndef TM_GRAPH_PROGRAM_H
#define TM_GRAPH_PROGRAM_H

#include <pthread.h>

#include "graph/exec.h"
#include "graph/nodes.h"

enum { TM_MAX_PLANS = 16, TM_MAX_IDLE_STEPS = 4 };

/* Positions in order[]: READs from, kernels from, UPDATEs from, end. */
typedef struct tm_level {
  int32_t read, run, update, end;
} tm_level;

typedef struct tm_plan tm_plan;

struct tm_program {
  atomic_int refs;
  tm_graph *g;
  int32_t nval;
  int32_t *first;        /* nnode + 1 */
  tm_node_kind *kind;    /* nnode */
  int32_t *level;        /* nnode; -1: fetch stage, constants, arguments */
  tm_program *(*sub)[2]; /* nnode; programs of a control node */
  int32_t *order;        /* norder */
  int32_t norder;
  int32_t nlevel;
  tm_level *at;  /* nlevel + 1: at[0] is the fetch stage, at[k + 1] level k */
  int32_t *next; /* nnext: iterator_next nodes of the fetch stage, in order */
  int32_t nnext;
  bool has_state; /* needs a tm_state */

  pthread_mutex_t mu;
  tm_plan *plan[TM_MAX_PLANS];      /* guarded by mu, most recently used first */
  tm_step *idle[TM_MAX_IDLE_STEPS]; /* guarded by mu */
};

/* Levels (levels.c): fills level, order, at, next. */
TM_CHECKED tm_status tm_program_place(tm_program *p);

/* --- plans (plan.c) --- */

typedef enum tm_val_kind {
  TM_VAL_NONE,   /* an iterator */
  TM_VAL_ARENA,  /* at a fixed place of the arena */
  TM_VAL_TENSOR, /* a tensor of known shape, bound while running */
  TM_VAL_DYN     /* a tensor, shape known only while running */
} tm_val_kind;

typedef struct tm_val {
  tm_type type;
  tm_val_kind kind; /* of the root */
  int32_t root;     /* the value whose memory this is */
  int32_t last;     /* position of the last use, of a root: by all that share it */
  bool escape;      /* of a root: outlives the step, so it is a tensor of its own */
  size_t offset;    /* ARENA roots */
} tm_val;

typedef enum tm_run_mode {
  TM_RUN_NOTHING, /* argument, constant, view; requests are made elsewhere */
  TM_RUN_KERNEL,
  TM_RUN_MAKE, /* the kernel makes its outputs, of known shape */
  TM_RUN_DYN,  /* shapes are not known */
  TM_RUN_NEXT,
  TM_RUN_CONTROL
} tm_run_mode;

/* How the node at a position of the order runs. */
typedef struct tm_item {
  tm_run_mode mode;
  bool own;     /* some output is a tensor made just before (escapes) */
  int32_t call; /* KERNEL, MAKE: index of its kernel call */
  int32_t view; /* its inputs' views begin here, its outputs' follow */
} tm_item;

struct tm_plan {
  atomic_int refs;
  int32_t nkey;
  int64_t *key;      /* shapes of arguments and fetched elements */
  tm_val *val;       /* nval */
  tm_item *item;     /* norder */
  int32_t nview;     /* nval views of values, then those of kernel calls */
  int32_t *view_val; /* nview: the value that a view shows */
  int32_t ncall;
  /* Views of TENSOR root v: user[user_at[v]] .. user[user_at[v + 1] - 1]. */
  int32_t *user_at, *user;
  /* Dense READs that nobody uses after a level: drop[drop_at[l + 1]] .. are those of
   * level l. */
  int32_t *drop_at, *drop;
  size_t arena_bytes;
  int32_t nval, norder, nlevel;
};

/* A reference to the plan for this key (made when new). */
TM_CHECKED tm_status tm_plan_get(tm_program *p, const int64_t *key, int32_t nkey,
                                 tm_plan **out, tm_err *err);
void tm_plan_unref(tm_plan *pl);
/* Was it made for this key?  key may be NULL when nkey is 0. */
bool tm_plan_is(const tm_plan *pl, const int64_t *key, int32_t nkey);

#endif
