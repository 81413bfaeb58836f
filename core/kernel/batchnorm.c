#include "kernel/batchnorm.h"

#include <math.h>
#include <string.h>

#include "kernel/kernel.h"

/*
 * Design.  Columns go in blocks whose sums stay in the first cache; rows in runs, each
 * summed by itself and then added to the rest, so that long sums of float32 keep their
 * digits.  The order depends on the shape alone.
 */
enum { BLOCK = 64, RUN = 128 };

#define EACH_BLOCK(at, n)                      \
  for (int64_t at = 0, n; at < c; at += BLOCK) \
    if ((n = c - at < BLOCK ? c - at : BLOCK) > 0)

#define BATCHNORM(S, T, SQRT)                                                          \
  /* sum (n) += the sum over rows of x, of its square distance, of its product with    \
   * dy. */                                                                            \
  TM_KERNEL static void batch_sum_##S(T *restrict sum, const T *restrict x,            \
                                      int64_t rows, int64_t n, int64_t c) {            \
    for (int64_t r = 0; r < rows; r++, x += c)                                         \
      for (int64_t k = 0; k < n; k++) sum[k] += x[k];                                  \
  }                                                                                    \
  TM_KERNEL static void batch_square_##S(T *restrict sum, const T *restrict x,         \
                                         const T *restrict mean, int64_t rows,         \
                                         int64_t n, int64_t c) {                       \
    for (int64_t r = 0; r < rows; r++, x += c)                                         \
      for (int64_t k = 0; k < n; k++) sum[k] += (x[k] - mean[k]) * (x[k] - mean[k]);   \
  }                                                                                    \
  TM_KERNEL static void batch_dot_##S(T *restrict sum, const T *restrict x,            \
                                      const T *restrict dy, const T *restrict mean,    \
                                      int64_t rows, int64_t n, int64_t c) {            \
    for (int64_t r = 0; r < rows; r++, x += c, dy += c)                                \
      for (int64_t k = 0; k < n; k++) sum[k] += dy[k] * (x[k] - mean[k]);              \
  }                                                                                    \
  static void batch_add_##S(T *to, T *part, int64_t n) {                               \
    for (int64_t k = 0; k < n; k++) to[k] += part[k];                                  \
    memset(part, 0, (size_t)n * sizeof *part);                                         \
  }                                                                                    \
  /* 1 / sqrt(var + eps) of n columns, times gamma where it is given. */               \
  static void batch_scale_##S(T *o, const T *var, const T *gamma, T eps, int64_t n) {  \
    for (int64_t k = 0; k < n; k++)                                                    \
      o[k] = (gamma ? gamma[k] : 1) / SQRT(var[k] + eps);                              \
  }                                                                                    \
  void tm_k_batch_stats_##S(T *mean, T *var, const T *x, int64_t rows, int64_t c) {    \
    T part[BLOCK] = {0};                                                               \
    memset(mean, 0, (size_t)c * sizeof *mean);                                         \
    memset(var, 0, (size_t)c * sizeof *var);                                           \
    if (rows == 0) return;                                                             \
    EACH_BLOCK(at, n) {                                                                \
      for (int64_t r = 0; r < rows; r += RUN) {                                        \
        batch_sum_##S(part, x + r * c + at, rows - r < RUN ? rows - r : RUN, n, c);    \
        batch_add_##S(mean + at, part, n);                                             \
      }                                                                                \
      for (int64_t k = 0; k < n; k++) mean[at + k] /= (T)rows;                         \
      for (int64_t r = 0; r < rows; r += RUN) {                                        \
        batch_square_##S(part, x + r * c + at, mean + at,                              \
                         rows - r < RUN ? rows - r : RUN, n, c);                       \
        batch_add_##S(var + at, part, n);                                              \
      }                                                                                \
      for (int64_t k = 0; k < n; k++) var[at + k] /= (T)rows;                          \
    }                                                                                  \
  }                                                                                    \
  TM_KERNEL static void batch_apply_##S(                                               \
      T *restrict y, const T *restrict x, const T *restrict mean, const T *restrict a, \
      const T *restrict b, int64_t rows, int64_t n, int64_t c) {                       \
    for (int64_t r = 0; r < rows; r++, x += c, y += c)                                 \
      for (int64_t k = 0; k < n; k++) y[k] = (x[k] - mean[k]) * a[k] + b[k];           \
  }                                                                                    \
  void tm_k_batch_norm_##S(T *y, const T *x, const T *mean, const T *var,              \
                           const T *gamma, const T *beta, T eps, int64_t rows,         \
                           int64_t c) {                                                \
    T a[BLOCK];                                                                        \
    EACH_BLOCK(at, n) {                                                                \
      batch_scale_##S(a, var + at, gamma + at, eps, n);                                \
      batch_apply_##S(y + at, x + at, mean + at, a, beta + at, rows, n, c);            \
    }                                                                                  \
  }                                                                                    \
  void tm_k_batch_sums_##S(T *dgamma, T *dbeta, const T *dy, const T *x,               \
                           const T *mean, const T *var, T eps, int64_t rows,           \
                           int64_t c) {                                                \
    T part[BLOCK] = {0}, a[BLOCK];                                                     \
    memset(dgamma, 0, (size_t)c * sizeof *dgamma);                                     \
    memset(dbeta, 0, (size_t)c * sizeof *dbeta);                                       \
    EACH_BLOCK(at, n) {                                                                \
      for (int64_t r = 0; r < rows; r += RUN) {                                        \
        int64_t m = rows - r < RUN ? rows - r : RUN, i = r * c + at;                   \
        batch_sum_##S(part, dy + i, m, n, c);                                          \
        batch_add_##S(dbeta + at, part, n);                                            \
        batch_dot_##S(part, x + i, dy + i, mean + at, m, n, c);                        \
        batch_add_##S(dgamma + at, part, n);                                           \
      }                                                                                \
      batch_scale_##S(a, var + at, NULL, eps, n);                                      \
      for (int64_t k = 0; k < n; k++) dgamma[at + k] *= a[k];                          \
    }                                                                                  \
  }                                                                                    \
  TM_KERNEL static void batch_back_##S(                                                \
      T *restrict dx, const T *restrict dy, const T *restrict x,                       \
      const T *restrict mean, const T *restrict a, const T *restrict b,                \
      const T *restrict d, int64_t rows, int64_t n, int64_t c) {                       \
    for (int64_t r = 0; r < rows; r++, x += c, dx += c, dy += c)                       \
      for (int64_t k = 0; k < n; k++)                                                  \
        dx[k] = a[k] * (dy[k] - b[k] - (x[k] - mean[k]) * d[k]);                       \
  }                                                                                    \
  void tm_k_batch_norm_dx_##S(T *dx, const T *dy, const T *x, const T *mean,           \
                              const T *var, const T *gamma, const T *dgamma,           \
                              const T *dbeta, T eps, int64_t rows, int64_t c) {        \
    T a[BLOCK], b[BLOCK], d[BLOCK];                                                    \
    EACH_BLOCK(at, n) {                                                                \
      batch_scale_##S(d, var + at, NULL, eps, n);                                      \
      for (int64_t k = 0; k < n; k++) {                                                \
        a[k] = gamma[at + k] * d[k];                                                   \
        b[k] = dbeta[at + k] / (T)rows;                                                \
        d[k] *= dgamma[at + k] / (T)rows;                                              \
      }                                                                                \
      batch_back_##S(dx + at, dy + at, x + at, mean + at, a, b, d, rows, n, c);        \
    }                                                                                  \
  }

BATCHNORM(f32, float, sqrtf)
BATCHNORM(f64, double, sqrt)
