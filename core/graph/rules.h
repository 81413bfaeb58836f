/*
 * rules.h - what gradient rules and kernels of several op groups share.
 *
 * Threads: those of the callers.
 */
#ifndef TM_GRAPH_RULES_H
#define TM_GRAPH_RULES_H

#include "graph/grad.h"
#include "kernel/strided.h"

/* Apply an op whose attributes are declared like those of the node (position by
 * position): they are copied.  Borrowed, as of tm_gn. */
tm_value *tm_g_same(tm_gctx *c, const char *op, tm_value *const *in, int32_t nin,
                    int32_t nth);
/* The commonest rule: din[i] = op(dout[0], x) with the node's attributes. */
tm_status tm_g_set_same(tm_gctx *c, int32_t i, const char *op, tm_value *x);
/* All outputs of an op with several; attrs are released by the call.  The references
 * in out (room for TM_MAX_OUTPUTS) are the caller's. */
TM_CHECKED tm_status tm_g_multi(tm_gctx *c, const char *op, tm_value *const *in,
                                int32_t nin, tm_attrs *attrs, tm_value **out,
                                int32_t *nout);
/* dout[i], or zeros where nothing flows. */
tm_value *tm_g_dout(tm_gctx *c, int32_t i);

/* Steps of a dense array of this shape, in elements. */
void tm_dense_steps(const tm_shape *s, int64_t *step);
/* Product of the sizes of axes first..last-1. */
int64_t tm_shape_part(const tm_shape *s, int32_t first, int32_t last);
/* The product of the same axes; -1 when one of them is unknown. */
int64_t tm_shape_part_or_unknown(const tm_shape *s, int32_t first, int32_t last);

/* An axis attribute as 0..rank-1, when infer has checked it. */
int32_t tm_axis_of(int64_t axis, int32_t rank);

#endif
