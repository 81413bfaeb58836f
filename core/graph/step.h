/*
 * step.h - the inside of a step: a program's memory while it runs.  (Inside
 * core/graph.)
 *
 * Threads: one at a time.
 */
#ifndef TM_GRAPH_STEP_H
#define TM_GRAPH_STEP_H

#include "graph/program.h"

/* A plan laid out in this step's memory. */
typedef struct tm_bound {
  tm_plan *plan;                  /* a reference */
  tm_view *view;                  /* plan->nview */
  tm_kctx *call;                  /* plan->ncall */
  tm_tensor **made;               /* per view: what TM_RUN_MAKE kernels give */
  const uint8_t *arena, *scratch; /* where they stood when addresses were written */
  size_t scratch_bytes;
  int threads; /* of the environment that scratch was asked for */
} tm_bound;

struct tm_step {
  tm_program *p;
  bool owns; /* holds a reference to p (idle steps of p's own pool do not) */
  tm_run_env env;
  tm_tensor **own;    /* nval: what a TENSOR root or DYN value is bound to */
  uint64_t *iterator; /* nval: iterator values */
  int64_t *key;
  int32_t key_room;
  tm_bound bound[TM_MAX_PLANS];
  tm_bound *now;
  uint8_t *arena, *scratch;
  size_t arena_bytes, scratch_bytes;
  tm_read *rd;
  tm_update *up;
  int32_t room;        /* of rd and up */
  int32_t level;       /* the next to be computed */
  bool fetched, asked; /* READs of `level` were given out */
  uint64_t allocs;
};

/* --- memory of a step (bind.c) --- */
/* Lay the plan for the bound arguments and the batch out. */
TM_CHECKED tm_status tm_step_bind(tm_step *st, tm_err *err);
void tm_step_unbind(tm_bound *b);
/* Value v (a TENSOR root or DYN) is t now; takes the reference. */
void tm_step_set(tm_step *st, int32_t v, tm_tensor *t);
/* Make and set a tensor for the TENSOR root or DYN value v. */
TM_CHECKED tm_status tm_step_make(tm_step *st, int32_t v, const tm_type *type,
                                  tm_err *err);
/* Value v as a tensor, a new reference (v is not ARENA). */
TM_CHECKED tm_status tm_step_tensor(tm_step *st, int32_t v, tm_tensor **out,
                                    tm_err *err);
static inline const tm_view *tm_step_view(const tm_step *st, tm_ref r) {
  return &st->now->view[st->p->first[r.node] + r.out];
}

#endif
