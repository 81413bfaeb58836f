/*
 * reduce.h - sums and the like over the middle axis of a (rows, n, inner) array.
 *
 * Sums and products run in TM_LANES fixed lanes when inner is 1, else row after row
 * by columns; the order depends on the shape alone, so every machine gives the same
 * bits.  Float32 sums are kept in float32.
 *
 *     tm_k_sum[TM_K_F32](out, x, rows, n, inner);     -- out is (rows, inner)
 *
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_REDUCE_H
#define TM_KERNEL_REDUCE_H

#include <stdbool.h>

#include "kernel/elementwise.h"

typedef void tm_k_reduce(void *o, const void *x, size_t rows, size_t n, size_t inner);

/* --- reduce.c --- */
extern tm_k_reduce *const tm_k_sum[TM_K_TYPES];  /* of n = 0: 0; integers wrap */
extern tm_k_reduce *const tm_k_prod[TM_K_TYPES]; /* of n = 0: 1 */
extern tm_k_reduce *const tm_k_max[TM_K_TYPES];  /* n > 0; NaN if one is NaN */
extern tm_k_reduce *const tm_k_min[TM_K_TYPES];

/* --- moments.c: floats, inner is 1 --- */
/* log(sum(exp(x))), without overflow; of n = 0: -inf. */
void tm_k_logsumexp_f32(float *o, const float *x, size_t rows, size_t n);
void tm_k_logsumexp_f64(double *o, const double *x, size_t rows, size_t n);
/* Mean of (x - mean)^2, in two passes. */
void tm_k_var_f32(float *o, const float *x, size_t rows, size_t n);
void tm_k_var_f64(double *o, const double *x, size_t rows, size_t n);
/* o[i] = product of all x of the row but x[i] (o and x are (rows, n), apart). */
void tm_k_prod_others_f32(float *o, const float *x, size_t rows, size_t n);
void tm_k_prod_others_f64(double *o, const double *x, size_t rows, size_t n);
/* Its gradient, given the gradient h of its result: o[j] = the sum over i != j of h[i]
 * times the product of all x but x[i] and x[j]. */
void tm_k_prod_others_grad_f32(float *o, const float *h, const float *x, size_t rows,
                               size_t n);
void tm_k_prod_others_grad_f64(double *o, const double *h, const double *x, size_t rows,
                               size_t n);

/* --- scan.c --- */
/* Place of the largest (or smallest) element, the first of equal ones; NaN is the
 * largest and the smallest.  n > 0. */
typedef void tm_k_arg(int64_t *o, const void *x, size_t rows, size_t n, size_t inner);
extern tm_k_arg *const tm_k_argmax[TM_K_TYPES];
extern tm_k_arg *const tm_k_argmin[TM_K_TYPES];
/* o[i] = x[0] + ... + x[i] along the middle axis (reverse: from the end;
 * exclusive: without x[i] itself).  o and x must not overlap. */
typedef void tm_k_scan(void *o, const void *x, size_t rows, size_t n, size_t inner,
                       bool exclusive, bool reverse);
extern tm_k_scan *const tm_k_cumsum[TM_K_TYPES];
extern tm_k_scan *const tm_k_cumprod[TM_K_TYPES];

#endif
