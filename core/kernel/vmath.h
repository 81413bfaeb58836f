/*
 * vmath.h - transcendental functions over arrays, within 1 ulp, with the same bits
 * on every machine.
 *
 * They are SLEEF's deterministic variants without fused multiply-add, for the widest
 * vectors that the machine has.
 *
 *     tm_k_exp_f32(out, x, n);
 *
 * out may be x itself (or, of pow, either input).
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_VMATH_H
#define TM_KERNEL_VMATH_H

#include <stddef.h>

/* Names of the functions of one argument. */
#define TM_VMATH_MAP(X) \
  X(exp) X(expm1) X(log) X(log1p) X(sin) X(cos) X(tan) X(sinh) X(cosh) X(tanh) X(erf)

#define X(f)                                               \
  void tm_k_##f##_f32(float *o, const float *x, size_t n); \
  void tm_k_##f##_f64(double *o, const double *x, size_t n);
TM_VMATH_MAP(X)
#undef X

void tm_k_pow_f32(float *o, const float *a, const float *b, size_t n);
void tm_k_pow_f64(double *o, const double *a, const double *b, size_t n);

/* 1 / (1 + exp(-x)), without overflow. */
void tm_k_sigmoid_f32(float *o, const float *x, size_t n);
void tm_k_sigmoid_f64(double *o, const double *x, size_t n);
/* log(1 + exp(x)), without overflow. */
void tm_k_softplus_f32(float *o, const float *x, size_t n);
void tm_k_softplus_f64(double *o, const double *x, size_t n);

#endif
