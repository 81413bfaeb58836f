#include "kernel/kernel.h"
#include "kernel/reduce.h"
#include "kernel/vmath.h"

/*
 * Design.  Built from the sums of reduce.c and blocks that stay in the first cache.
 * A row whose maximum is infinite is its own logsumexp: inf - inf would be NaN.
 */
enum { BLOCK = 512 };

#define MOMENTS(S, T, K, IS_FINITE)                                                  \
  TM_KERNEL static void moments_shift_##S(T *restrict e, const T *restrict x, T by,  \
                                          size_t n) {                                \
    for (size_t i = 0; i < n; i++) e[i] = x[i] - by;                                 \
  }                                                                                  \
  TM_KERNEL static void moments_square_##S(T *restrict e, const T *restrict x, T by, \
                                           size_t n) {                               \
    for (size_t i = 0; i < n; i++) e[i] = (x[i] - by) * (x[i] - by);                 \
  }                                                                                  \
  static T moments_exp_sum_##S(const T *x, T by, size_t n) {                         \
    T e[BLOCK], part, sum = 0;                                                       \
    for (size_t i = 0; i < n; i += BLOCK) {                                          \
      size_t m = n - i < BLOCK ? n - i : BLOCK;                                      \
      moments_shift_##S(e, x + i, by, m);                                            \
      tm_k_exp_##S(e, e, m);                                                         \
      tm_k_sum[K](&part, e, 1, m, 1);                                                \
      sum += part;                                                                   \
    }                                                                                \
    return sum;                                                                      \
  }                                                                                  \
  void tm_k_logsumexp_##S(T *o, const T *x, size_t rows, size_t n) {                 \
    for (size_t r = 0; r < rows; r++, x += n) {                                      \
      T top = -(T)INFINITY;                                                          \
      if (n) tm_k_max[K](&top, x, 1, n, 1);                                          \
      o[r] = top;                                                                    \
      if (!IS_FINITE(top)) continue;                                                 \
      T sum = moments_exp_sum_##S(x, top, n);                                        \
      tm_k_log_##S(&sum, &sum, 1);                                                   \
      o[r] = top + sum;                                                              \
    }                                                                                \
  }                                                                                  \
  void tm_k_var_##S(T *o, const T *x, size_t rows, size_t n) {                       \
    for (size_t r = 0; r < rows; r++, x += n) {                                      \
      T e[BLOCK], part, sum = 0, mean;                                               \
      tm_k_sum[K](&mean, x, 1, n, 1);                                                \
      mean /= (T)n;                                                                  \
      for (size_t i = 0; i < n; i += BLOCK) {                                        \
        size_t m = n - i < BLOCK ? n - i : BLOCK;                                    \
        moments_square_##S(e, x + i, mean, m);                                       \
        tm_k_sum[K](&part, e, 1, m, 1);                                              \
        sum += part;                                                                 \
      }                                                                              \
      o[r] = sum / (T)n;                                                             \
    }                                                                                \
  }                                                                                  \
  void tm_k_prod_others_##S(T *restrict o, const T *restrict x, size_t rows,         \
                            size_t n) {                                              \
    for (size_t r = 0; r < rows; r++, x += n, o += n) {                              \
      T before = 1, after = 1;                                                       \
      for (size_t i = 0; i < n; i++) {                                               \
        o[i] = before;                                                               \
        before *= x[i];                                                              \
      }                                                                              \
      for (size_t i = n; i-- > 0;) {                                                 \
        o[i] *= after;                                                               \
        after *= x[i];                                                               \
      }                                                                              \
    }                                                                                \
  }

/* As prod_others, of dual numbers x + e h: what is wanted is the part of e. */
#define DUAL(S, T)                                                             \
  void tm_k_prod_others_grad_##S(T *restrict o, const T *restrict h,           \
                                 const T *restrict x, size_t rows, size_t n) { \
    for (size_t r = 0; r < rows; r++, x += n, h += n, o += n)                  \
      for (size_t j = 0; j < n; j++) {                                         \
        T p = 1, d = 0;                                                        \
        for (size_t i = 0; i < n; i++) {                                       \
          if (i == j) continue;                                                \
          d = d * x[i] + p * h[i];                                             \
          p *= x[i];                                                           \
        }                                                                      \
        o[j] = d;                                                              \
      }                                                                        \
  }
DUAL(f32, float)
DUAL(f64, double)

#define FINITE_F32(v) (fabsf(v) <= 3.402823466e+38F)
#define FINITE_F64(v) (fabs(v) <= 1.7976931348623157e308)
MOMENTS(f32, float, TM_K_F32, FINITE_F32)
MOMENTS(f64, double, TM_K_F64, FINITE_F64)
