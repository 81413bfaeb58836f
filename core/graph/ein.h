/*
 * ein.h - sums of products by labelled axes: what einsum and tensordot have in common.
 *
 * Each axis of each operand has a label; axes of one label have one size (or 1, which
 * is repeated).  The labels fall into groups, and with them every sum of products of
 * two operands is a batch of matrix products:
 *
 *     batch  in a, b, out       m  in a, out       n  in b, out
 *     k      in a, b            ka only in a       kb only in b
 *
 * Threads: plain values.
 */
#ifndef TM_GRAPH_EIN_H
#define TM_GRAPH_EIN_H

#include "graph/op.h"

enum { TM_EIN_LABELS = 16 };

typedef struct tm_ein_axes {
  int32_t n;
  int8_t label[TM_MAX_RANK];
} tm_ein_axes;

typedef struct tm_ein_group {
  int32_t n;
  int8_t label[TM_EIN_LABELS];
} tm_ein_group;

typedef struct tm_ein {
  int32_t nin; /* 1 or 2 */
  int32_t nlabel;
  int64_t size[TM_EIN_LABELS]; /* -1: not known yet */
  tm_ein_axes in[2], out;
  tm_ein_group batch, m, n, k, only[2]; /* only: ka, kb */
} tm_ein;

/* Read "ij,jk->ik" (blanks are skipped; without "->" the labels that appear once, in
 * alphabetical order; "..." stands for any axes) for operands of these shapes. */
TM_CHECKED tm_status tm_ein_parse(const char *equation, const tm_shape *in, int32_t nin,
                                  tm_ein *e, tm_err *err);
/* The axes of a and b to sum over, pair by pair; the others in order. */
TM_CHECKED tm_status tm_ein_tensordot(const tm_attr *axes_a, const tm_attr *axes_b,
                                      const tm_shape *in, tm_ein *e, tm_err *err);
tm_shape tm_ein_shape(const tm_ein *e, const tm_ein_axes *axes);

/* Bytes of scratch for running and for gradients; 0 on overflow, which tm_ein_check
 * has found. */
size_t tm_ein_scratch(const tm_ein *e, size_t elem);
/* Sizes are within what one product can do. */
TM_CHECKED tm_status tm_ein_check(const tm_ein *e, tm_err *err);

/* out = the sum of products; float32 or float64. */
void tm_ein_run(const tm_ein *e, const tm_view *in, tm_view *out, void *scratch);
/* dx = the gradient by in[which], of dy shaped like the result. */
void tm_ein_grad(const tm_ein *e, const tm_view *in, const tm_view *dy, int32_t which,
                 tm_view *dx, void *scratch);

#endif
