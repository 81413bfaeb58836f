/*
 * batchnorm.h - normalization by the statistics of the batch: x (rows, c) has a mean
 * and a variance for each of c columns.
 *
 *     tm_k_batch_stats_f32(mean, var, x, rows, c);
 *     tm_k_batch_norm_f32(y, x, mean, var, gamma, beta, 1e-3F, rows, c);
 *
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_BATCHNORM_H
#define TM_KERNEL_BATCHNORM_H

#include <stdint.h>

#define TM_K_BATCHNORM(S, T)                                                       \
  /* Mean and mean of (x - mean)^2 of each column; 0 of no rows. */                \
  void tm_k_batch_stats_##S(T *mean, T *var, const T *x, int64_t rows, int64_t c); \
  /* y = (x - mean) / sqrt(var + eps) * gamma + beta. */                           \
  void tm_k_batch_norm_##S(T *y, const T *x, const T *mean, const T *var,          \
                           const T *gamma, const T *beta, T eps, int64_t rows,     \
                           int64_t c);                                             \
  /* dgamma = sum of dy (x - mean) / sqrt(var + eps), dbeta = sum of dy. */        \
  void tm_k_batch_sums_##S(T *dgamma, T *dbeta, const T *dy, const T *x,           \
                           const T *mean, const T *var, T eps, int64_t rows,       \
                           int64_t c);                                             \
  /* The gradient by x, through the statistics too; sums are those above. */       \
  void tm_k_batch_norm_dx_##S(T *dx, const T *dy, const T *x, const T *mean,       \
                              const T *var, const T *gamma, const T *dgamma,       \
                              const T *dbeta, T eps, int64_t rows, int64_t c);
TM_K_BATCHNORM(f32, float)
TM_K_BATCHNORM(f64, double)
#undef TM_K_BATCHNORM

#endif
