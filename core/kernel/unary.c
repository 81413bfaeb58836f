#include "kernel/elementwise.h"
#include "kernel/kernel.h"
#include "kernel/vmath.h"

/* Design.  As arith.c, with one input: the expression speaks of x. */
#define UNARY(NAME, S, T, EXPR)                                                  \
  TM_KERNEL static void unary_##NAME##_##S(void *op, const void *xp, size_t n) { \
    T *o = op;                                                                   \
    const T *a = xp;                                                             \
    TM_IVDEP                                                                     \
    for (size_t i = 0; i < n; i++) {                                             \
      const T x = a[i];                                                          \
      o[i] = (EXPR);                                                             \
    }                                                                            \
  }

#define FLOATS(S, T, F)                         \
  UNARY(neg, S, T, -x)                          \
  UNARY(abs, S, T, F(fabs)(x))                  \
  UNARY(sign, S, T, x > 0 ? 1 : x < 0 ? -1 : x) \
  UNARY(square, S, T, x *x)                     \
  UNARY(sqrt, S, T, F(sqrt)(x))                 \
  UNARY(rsqrt, S, T, 1 / F(sqrt)(x))            \
  UNARY(reciprocal, S, T, 1 / x)                \
  UNARY(floor, S, T, F(floor)(x))               \
  UNARY(ceil, S, T, F(ceil)(x))                 \
  UNARY(round, S, T, F(rint)(x))
#define SINGLE(fn) fn##f
#define DOUBLE(fn) fn
FLOATS(f32, float, SINGLE)
FLOATS(f64, double, DOUBLE)

#define INTS(S, T, U)                            \
  UNARY(neg, S, T, (T)((U)0 - (U)x))             \
  UNARY(abs, S, T, x < 0 ? (T)((U)0 - (U)x) : x) \
  UNARY(sign, S, T, (T)((x > 0) - (x < 0)))      \
  UNARY(square, S, T, (T)((U)x * (U)x))
INTS(i32, int32_t, uint32_t)
INTS(i64, int64_t, uint64_t)
UNARY(neg, u8, uint8_t, (uint8_t)(0 - x))
UNARY(abs, u8, uint8_t, x)
UNARY(sign, u8, uint8_t, x > 0)
UNARY(square, u8, uint8_t, (uint8_t)(x *x))

#define VMATH(NAME)                                                  \
  static void unary_##NAME##_f32(void *o, const void *x, size_t n) { \
    tm_k_##NAME##_f32(o, x, n);                                      \
  }                                                                  \
  static void unary_##NAME##_f64(void *o, const void *x, size_t n) { \
    tm_k_##NAME##_f64(o, x, n);                                      \
  }
TM_VMATH_MAP(VMATH)
VMATH(sigmoid)

#define OF_FLOATS(NAME) \
  tm_k_unary *const tm_k_##NAME[TM_K_TYPES] = {unary_##NAME##_f32, unary_##NAME##_f64};
#define OF_ALL(NAME)                                                                   \
  tm_k_unary *const tm_k_##NAME[TM_K_TYPES] = {unary_##NAME##_f32, unary_##NAME##_f64, \
                                               unary_##NAME##_i32, unary_##NAME##_i64, \
                                               unary_##NAME##_u8};
OF_ALL(neg)
OF_ALL(abs)
OF_ALL(sign)
OF_ALL(square)
OF_FLOATS(sqrt)
OF_FLOATS(rsqrt)
OF_FLOATS(reciprocal)
OF_FLOATS(floor)
OF_FLOATS(ceil)
OF_FLOATS(round)
TM_VMATH_MAP(OF_FLOATS)
OF_FLOATS(sigmoid)
