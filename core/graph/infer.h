/*
 * infer.h - what most infer functions and kernels say: reading attributes, checking
 * dtypes, naming the argument that is wrong.
 *
 *     static tm_status infer_tanh(tm_infer *c) {
 *       TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
 *       return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
 *     }
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_INFER_H
#define TM_GRAPH_INFER_H

#include "graph/op.h"

/* --- attributes by position --- */

static inline bool tm_at_has(const tm_attrs *a, int32_t i) {
  return i < a->n && a->a[i].kind != TM_ATTR_NONE;
}
static inline bool tm_at_bool(const tm_attrs *a, int32_t i) { return a->a[i].u.b; }
static inline int64_t tm_at_int(const tm_attrs *a, int32_t i) { return a->a[i].u.i; }
static inline double tm_at_float(const tm_attrs *a, int32_t i) { return a->a[i].u.f; }
static inline const char *tm_at_str(const tm_attrs *a, int32_t i) {
  return a->a[i].u.s;
}
static inline tm_dtype tm_at_dtype(const tm_attrs *a, int32_t i) {
  return (tm_dtype)a->a[i].u.i;
}

/* --- infer --- */

/* What dtypes an input may have: a sum of these. */
enum {
  TM_WANT_FLOAT = 1,
  TM_WANT_INT = 2,
  TM_WANT_NUMBER = 3,
  TM_WANT_BOOL = 4,
  TM_WANT_STRING = 8
};

/* Name of input i as the signature declares it ("xs[2]" in a list, from 1). */
const char *tm_infer_name(const tm_infer *c, int32_t i, char *buf, size_t cap);
/* Input i has one of the wanted dtypes, or an error that names cast. */
TM_CHECKED tm_status tm_infer_want(tm_infer *c, int32_t i, unsigned want);
/* Inputs i and j have the same dtype, or an error that names cast. */
TM_CHECKED tm_status tm_infer_same_dtype(tm_infer *c, int32_t i, int32_t j);
/* Inputs i and j have the same shape, as far as it is known. */
TM_CHECKED tm_status tm_infer_same_shape(tm_infer *c, int32_t i, int32_t j);
/* Input i has this rank. */
TM_CHECKED tm_status tm_infer_rank(tm_infer *c, int32_t i, int32_t rank);
/* One output more; returns TM_OK for use in a return. */
tm_status tm_infer_out(tm_infer *c, tm_dtype t, const tm_shape *s);
/* A SHAPE attribute as a shape without unknown sizes. */
TM_CHECKED tm_status tm_infer_shape_attr(const tm_infer *c, int32_t attr,
                                         tm_shape *out);
/* Axes of an AXES attribute as a bit set over shape's axes; absent: all of them.
 * An axis named twice is an error. */
TM_CHECKED tm_status tm_axes_mask(const tm_attrs *a, int32_t attr, const tm_shape *s,
                                  uint32_t *mask, tm_err *err);

#endif
