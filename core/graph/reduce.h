/*
 * reduce.h - laying out a reduction over any set of axes as (rows, n, inner).
 *
 *     tm_reduce_plan p;
 *     tm_reduce_layout(&p, &x->shape, mask);
 *     const void *data = tm_reduce_data(&p, x, scratch);
 *     tm_k_sum[t](out, data, p.rows, p.n, p.inner);
 *
 * Reduced axes that do not lie together are brought together by a copy into scratch.
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_REDUCE_H
#define TM_GRAPH_REDUCE_H

#include "tensor/tensor.h"

typedef struct tm_reduce_plan {
  size_t rows, n, inner; /* kept, reduced, kept */
  bool gather;           /* a copy of x is needed, (rows, n) then */
  uint32_t mask;         /* reduced axes */
} tm_reduce_plan;

/* rows_only: the kernel wants inner = 1, so columns are copied too. */
void tm_reduce_layout(tm_reduce_plan *p, const tm_shape *s, uint32_t mask,
                      bool rows_only);
/* x's elements in the planned order: its own, or copied to scratch. */
const void *tm_reduce_data(const tm_reduce_plan *p, const tm_view *x, void *scratch);
/* Put (rows, n) elements back to the order of shape s, when the plan gathers. */
void tm_reduce_scatter(const tm_reduce_plan *p, const tm_view *out, const void *from);
/* Shape of the result. */
void tm_reduce_shape(const tm_shape *s, uint32_t mask, bool keepdims, tm_shape *out);
/* Axes of `from` that must be summed to give `to`, from which it was broadcast. */
uint32_t tm_reduce_unbroadcast(const tm_shape *from, const tm_shape *to);

#endif
