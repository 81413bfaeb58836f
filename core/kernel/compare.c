#include <string.h>

#include "kernel/elementwise.h"
#include "kernel/kernel.h"

/*
 * Design.  As arith.c, with bools as the output.  Of bytes (u8 and bool) the output
 * may be an input; other inputs are wider, so the output cannot be one.
 */
#define COMPARE(NAME, S, T, EXPR)                                                      \
  TM_KERNEL static void compare_##NAME##_##S(void *op, const void *ap, const void *bp, \
                                             size_t n, tm_k_mode m) {                  \
    uint8_t *o = op;                                                                   \
    const T *a = ap, *b = bp;                                                          \
    if (m == TM_K_VV) {                                                                \
      TM_IVDEP                                                                         \
      for (size_t i = 0; i < n; i++) {                                                 \
        const T x = a[i], y = b[i];                                                    \
        o[i] = (EXPR);                                                                 \
      }                                                                                \
    } else if (m == TM_K_VS) {                                                         \
      const T y = b[0];                                                                \
      TM_IVDEP                                                                         \
      for (size_t i = 0; i < n; i++) {                                                 \
        const T x = a[i];                                                              \
        o[i] = (EXPR);                                                                 \
      }                                                                                \
    } else {                                                                           \
      const T x = a[0];                                                                \
      TM_IVDEP                                                                         \
      for (size_t i = 0; i < n; i++) {                                                 \
        const T y = b[i];                                                              \
        o[i] = (EXPR);                                                                 \
      }                                                                                \
    }                                                                                  \
  }

#define ALL(S, T, U)               \
  COMPARE(equal, S, T, x == y)     \
  COMPARE(not_equal, S, T, x != y) \
  COMPARE(less, S, T, x < y)       \
  COMPARE(less_equal, S, T, x <= y)
TM_K_NUMBERS(ALL)

#define TABLE(NAME)                                                     \
  tm_k_binary *const tm_k_##NAME[TM_K_TYPES] = {                        \
      compare_##NAME##_f32, compare_##NAME##_f64, compare_##NAME##_i32, \
      compare_##NAME##_i64, compare_##NAME##_u8};
TABLE(equal)
TABLE(not_equal)
TABLE(less)
TABLE(less_equal)

COMPARE(and, bool, uint8_t, x &y)
COMPARE(or, bool, uint8_t, x | y)
COMPARE(xor, bool, uint8_t, x ^ y)

void tm_k_and(void *o, const void *a, const void *b, size_t n, tm_k_mode m) {
  compare_and_bool(o, a, b, n, m);
}
void tm_k_or(void *o, const void *a, const void *b, size_t n, tm_k_mode m) {
  compare_or_bool(o, a, b, n, m);
}
void tm_k_xor(void *o, const void *a, const void *b, size_t n, tm_k_mode m) {
  compare_xor_bool(o, a, b, n, m);
}

TM_KERNEL void tm_k_not(void *op, const void *xp, size_t n) {
  uint8_t *o = op;
  const uint8_t *x = xp;
  TM_IVDEP
  for (size_t i = 0; i < n; i++) o[i] = x[i] == 0;
}

/* --- kinds of floats --- */
#define KIND(NAME, S, T, EXPR)                                                     \
  TM_KERNEL static void compare_##NAME##_##S(void *op, const void *xp, size_t n) { \
    uint8_t *restrict o = op;                                                      \
    const T *restrict a = xp;                                                      \
    for (size_t i = 0; i < n; i++) {                                               \
      const T x = a[i];                                                            \
      o[i] = (EXPR);                                                               \
    }                                                                              \
  }
KIND(is_nan, f32, float, x != x)
KIND(is_nan, f64, double, x != x)
KIND(is_inf, f32, float, fabsf(x) > 3.402823466e+38F)
KIND(is_inf, f64, double, fabs(x) > 1.7976931348623157e308)
KIND(is_finite, f32, float, fabsf(x) <= 3.402823466e+38F)
KIND(is_finite, f64, double, fabs(x) <= 1.7976931348623157e308)

tm_k_unary *const tm_k_is_nan[TM_K_TYPES] = {compare_is_nan_f32, compare_is_nan_f64};
tm_k_unary *const tm_k_is_inf[TM_K_TYPES] = {compare_is_inf_f32, compare_is_inf_f64};
tm_k_unary *const tm_k_is_finite[TM_K_TYPES] = {compare_is_finite_f32,
                                                compare_is_finite_f64};

/* --- where: by the size of an element, whatever its type --- */
#define SELECT(S, T)                                                              \
  TM_INLINE void where_loop_##S(T *o, const uint8_t *c, const T *a, const T *b,   \
                                size_t n, size_t sc, size_t sa, size_t sb) {      \
    TM_IVDEP                                                                      \
    for (size_t i = 0; i < n; i++) {                                              \
      const T x = a[i * sa], y = b[i * sb];                                       \
      o[i] = c[i * sc] ? x : y;                                                   \
    }                                                                             \
  }                                                                               \
  TM_KERNEL static void where_##S(T *o, const uint8_t *c, const T *a, const T *b, \
                                  size_t n, tm_k_steps s) {                       \
    if (!s.c) {                                                                   \
      where_loop_##S(o, c, a, b, n, 0, (size_t)s.a, (size_t)s.b);                 \
    } else if (s.a && s.b) {                                                      \
      where_loop_##S(o, c, a, b, n, 1, 1, 1);                                     \
    } else if (s.a) {                                                             \
      const T y = b[0];                                                           \
      where_loop_##S(o, c, a, &y, n, 1, 1, 0);                                    \
    } else if (s.b) {                                                             \
      const T x = a[0];                                                           \
      where_loop_##S(o, c, &x, b, n, 1, 0, 1);                                    \
    } else {                                                                      \
      const T x = a[0], y = b[0];                                                 \
      where_loop_##S(o, c, &x, &y, n, 1, 0, 0);                                   \
    }                                                                             \
  }
SELECT(b1, uint8_t)
SELECT(b4, uint32_t)
SELECT(b8, uint64_t)

void tm_k_where(void *o, const uint8_t *c, const void *a, const void *b, size_t n,
                size_t size, tm_k_steps s) {
  if (size == 1) where_b1(o, c, a, b, n, s);
  if (size == 4) where_b4(o, c, a, b, n, s);
  if (size == 8) where_b8(o, c, a, b, n, s);
}
