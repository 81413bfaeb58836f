#include "kernel/kernel.h"
#include "kernel/reduce.h"

/*
 * Design.  The place of an extreme is found in two passes over a row, of which the
 * first (reduce.c) is as fast as memory: what is the extreme, where is it first.
 * Scans go down the middle axis with a whole inner row at a time.
 */
#define ARG(NAME, REDUCE, S, T, K, EXPR)                                             \
  static size_t scan_first_##NAME##_##S(const T *x, size_t n, size_t step, T best) { \
    for (size_t i = 0; i < n; i++)                                                   \
      if (x[i * step] == best) return i;                                             \
    for (size_t i = 0; i < n; i++)                                                   \
      if (x[i * step] != x[i * step]) return i; /* best is NaN */                    \
    return 0;                                                                        \
  }                                                                                  \
  static void scan_##NAME##_##S(int64_t *o, const void *xp, size_t rows, size_t n,   \
                                size_t inner) {                                      \
    const T *x = xp;                                                                 \
    for (size_t r = 0; r < rows; r++, x += n * inner) {                              \
      for (size_t k = 0; k < inner; k++) {                                           \
        T best = x[k];                                                               \
        if (inner == 1)                                                              \
          REDUCE[K](&best, x, 1, n, 1);                                              \
        else                                                                         \
          for (size_t i = 1; i < n; i++) {                                           \
            T y = x[i * inner + k];                                                  \
            best = (EXPR) ? best : y;                                                \
          }                                                                          \
        *o++ = (int64_t)scan_first_##NAME##_##S(x + k, n, inner, best);              \
      }                                                                              \
    }                                                                                \
  }
#define ARGS(S, T, K)                                      \
  ARG(argmax, tm_k_max, S, T, K, best > y || best != best) \
  ARG(argmin, tm_k_min, S, T, K, best < y || best != best)
ARGS(f32, float, TM_K_F32)
ARGS(f64, double, TM_K_F64)
ARGS(i32, int32_t, TM_K_I32)
ARGS(i64, int64_t, TM_K_I64)
ARGS(u8, uint8_t, TM_K_U8)

#define SCAN(NAME, S, T, INIT, EXPR)                                              \
  TM_KERNEL static void scan_step_##NAME##_##S(                                   \
      T *restrict o, const T *restrict before, const T *restrict add, size_t n) { \
    for (size_t i = 0; i < n; i++) {                                              \
      const T x = before[i], y = add[i];                                          \
      o[i] = (EXPR);                                                              \
    }                                                                             \
  }                                                                               \
  static void scan_line_##NAME##_##S(T *o, const T *a, size_t n, bool exclusive,  \
                                     bool reverse) {                              \
    T x = INIT;                                                                   \
    for (size_t i = 0; i < n; i++) {                                              \
      size_t at = reverse ? n - 1 - i : i;                                        \
      const T y = a[at], next = (EXPR);                                           \
      o[at] = exclusive ? x : next;                                               \
      x = next;                                                                   \
    }                                                                             \
  }                                                                               \
  static void scan_##NAME##_##S(void *op, const void *xp, size_t rows, size_t n,  \
                                size_t inner, bool exclusive, bool reverse) {     \
    T *o = op;                                                                    \
    const T *a = xp, first = INIT;                                                \
    for (size_t r = 0; r < rows; r++, o += n * inner, a += n * inner) {           \
      if (inner == 1) {                                                           \
        scan_line_##NAME##_##S(o, a, n, exclusive, reverse);                      \
        continue;                                                                 \
      }                                                                           \
      for (size_t i = 0; i < n; i++) {                                            \
        size_t at = (reverse ? n - 1 - i : i) * inner;                            \
        size_t last = reverse ? at + inner : at - inner;                          \
        if (i > 0)                                                                \
          scan_step_##NAME##_##S(o + at, o + last, a + (exclusive ? last : at),   \
                                 inner);                                          \
        else if (exclusive)                                                       \
          tm_k_fill(o + at, &first, sizeof first, inner);                         \
        else                                                                      \
          for (size_t k = 0; k < inner; k++) o[at + k] = a[at + k];               \
      }                                                                           \
    }                                                                             \
  }
#define FLOATS(S, T, U)        \
  SCAN(cumsum, S, T, 0, x + y) \
  SCAN(cumprod, S, T, 1, x *y)
#define INTS(S, T, U)                     \
  SCAN(cumsum, S, T, 0, (T)((U)x + (U)y)) \
  SCAN(cumprod, S, T, 1, (T)((U)x * (U)y))
TM_K_FLOATS(FLOATS)
TM_K_INTS(INTS)

#define ROW(NAME)                                                               \
  {                                                                             \
    scan_##NAME##_f32, scan_##NAME##_f64, scan_##NAME##_i32, scan_##NAME##_i64, \
        scan_##NAME##_u8                                                        \
  }
tm_k_arg *const tm_k_argmax[TM_K_TYPES] = ROW(argmax);
tm_k_arg *const tm_k_argmin[TM_K_TYPES] = ROW(argmin);
tm_k_scan *const tm_k_cumsum[TM_K_TYPES] = ROW(cumsum);
tm_k_scan *const tm_k_cumprod[TM_K_TYPES] = ROW(cumprod);
