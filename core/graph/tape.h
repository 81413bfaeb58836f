/*
 * tape.h - the inside of a tape, for the backward walk.  (Inside core/graph; users see
 * grad.h.)
 *
 * Threads: that of the scope.
 */
#ifndef TM_GRAPH_TAPE_H
#define TM_GRAPH_TAPE_H

#include "base/map.h"
#include "graph/grad.h"

struct tape_entry {
  const tm_op *op;
  tm_attrs attrs;
  int32_t nin, nout;
  tm_value **v; /* inputs, then outputs; a reference each */
};

struct tm_tape {
  atomic_int refs;
  tm_scope *sc;
  bool persistent, paused, walking;
  bool nomem; /* a watch failed */
  tm_map *active;
  struct tape_entry *entry;
  int32_t n, cap;
};

/* The gradients themselves (backward.c). */
TM_CHECKED tm_status tm_backward(tm_tape *tp, tm_value *target, tm_value *seed,
                                 const tm_source *src, int32_t n, tm_grad *out,
                                 tm_err *err);
/* Gradient of a cond node (control_grad.c): as a rule, and gradients of the variables
 * that its branches read go to `var` (n of them, by uid; NULL where none). */
TM_CHECKED tm_status tm_cond_backward(tm_gctx *c, const uint64_t *uid, int32_t nuid,
                                      tm_value **var);

#endif
