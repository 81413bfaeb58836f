/*
 * softmax.h - softmax of rows, its logarithm, its cross entropies and gradients.
 *
 * Arrays are dense (rows, n).  Sums of a row run in TM_LANES lanes.  An output may be
 * an input of the same shape.
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_SOFTMAX_H
#define TM_KERNEL_SOFTMAX_H

#include <stddef.h>
#include <stdint.h>

#define TM_K_SOFTMAX(S, T)                                                            \
  void tm_k_softmax_##S(T *o, const T *x, int64_t rows, int64_t n);                   \
  void tm_k_log_softmax_##S(T *o, const T *x, int64_t rows, int64_t n);               \
  /* of y = softmax(x) */                                                             \
  void tm_k_softmax_grad_##S(T *o, const T *dy, const T *y, int64_t rows, int64_t n); \
  /* of y = log_softmax(x) */                                                         \
  void tm_k_log_softmax_grad_##S(T *o, const T *dy, const T *y, int64_t rows,         \
                                 int64_t n);                                          \
  /* o (rows) = -sum of labels * log_softmax(x) */                                    \
  void tm_k_softmax_xent_##S(T *o, const T *labels, const T *x, int64_t rows,         \
                             int64_t n);                                              \
  /* o = dy (rows) * (softmax(x) * sum of labels - labels) */                         \
  void tm_k_softmax_xent_grad_##S(T *o, const T *dy, const T *labels, const T *x,     \
                                  int64_t rows, int64_t n);                           \
  /* The same with one label a row, in 0..n-1. */                                     \
  void tm_k_sparse_xent_##S(T *o, const int64_t *label, const T *x, int64_t rows,     \
                            int64_t n);                                               \
  void tm_k_sparse_xent_grad_##S(T *o, const T *dy, const int64_t *label, const T *x, \
                                 int64_t rows, int64_t n);

TM_K_SOFTMAX(f32, float)
TM_K_SOFTMAX(f64, double)

#endif
