/*
 * broadcast.h - running elementwise kernels over inputs of different shapes.
 *
 * NumPy's rule: shapes are aligned at their last axis, sizes agree or are 1.
 *
 *     tm_broadcast_binary(&c->out[0], &c->in[0], &c->in[1], tm_k_add[TM_K_F32]);
 *
 * Shapes were checked by infer.  The output may be an input of its shape.
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_BROADCAST_H
#define TM_GRAPH_BROADCAST_H

#include "kernel/elementwise.h"
#include "tensor/tensor.h"

/* dtype as the kernels count; bool is TM_K_TYPES, strings are -1. */
int tm_k_type_of(tm_dtype t);

enum { TM_BCAST_MAX = 3 };

/* The loops that visit every output element: axes merged where all inputs go on in
 * even steps, so that the last axis is as long as can be. */
typedef struct tm_bcast {
  int32_t nin, rank;
  int64_t n[TM_MAX_RANK];
  int64_t step[TM_BCAST_MAX][TM_MAX_RANK]; /* in elements; last axis: 0 or 1 */
  int64_t at[TM_MAX_RANK];                 /* where the walk stands */
  int64_t pos[TM_BCAST_MAX];               /* element of each input */
  int64_t out;                             /* element of the output */
} tm_bcast;

void tm_bcast_init(tm_bcast *p, const tm_shape *out, const tm_view *const *in,
                   int32_t nin);
/* Length of a run along the last axis; runs start at pos[] and out. */
int64_t tm_bcast_run(const tm_bcast *p);
/* On to the next run; false after the last. */
bool tm_bcast_next(tm_bcast *p);

void tm_broadcast_binary(const tm_view *out, const tm_view *a, const tm_view *b,
                         tm_k_binary *f);
/* out = cond ? a : b */
void tm_broadcast_where(const tm_view *out, const tm_view *cond, const tm_view *a,
                        const tm_view *b);
/* Copy x into the larger out; any dtype, strings by reference. */
void tm_broadcast_copy(const tm_view *out, const tm_view *x);

#endif
