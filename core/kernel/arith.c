#include <stdbool.h>

#include "kernel/elementwise.h"
#include "kernel/kernel.h"
#include "kernel/vmath.h"

/*
 * Design.  BINARY writes the three loops of an op once; the expression speaks of x
 * and y.  Integers are computed in the unsigned type of the same size (U), where
 * overflow wraps.
 */
#define BINARY(NAME, S, T, EXPR)                                                     \
  TM_KERNEL static void arith_##NAME##_##S(void *op, const void *ap, const void *bp, \
                                           size_t n, tm_k_mode m) {                  \
    T *o = op;                                                                       \
    const T *a = ap, *b = bp;                                                        \
    if (m == TM_K_VV) {                                                              \
      TM_IVDEP                                                                       \
      for (size_t i = 0; i < n; i++) {                                               \
        const T x = a[i], y = b[i];                                                  \
        o[i] = (EXPR);                                                               \
      }                                                                              \
    } else if (m == TM_K_VS) {                                                       \
      const T y = b[0];                                                              \
      TM_IVDEP                                                                       \
      for (size_t i = 0; i < n; i++) {                                               \
        const T x = a[i];                                                            \
        o[i] = (EXPR);                                                               \
      }                                                                              \
    } else {                                                                         \
      const T x = a[0];                                                              \
      TM_IVDEP                                                                       \
      for (size_t i = 0; i < n; i++) {                                               \
        const T y = b[i];                                                            \
        o[i] = (EXPR);                                                               \
      }                                                                              \
    }                                                                                \
  }

TM_INLINE float arith_fmod_f32(float x, float y) {
  float m = fmodf(x, y);
  return m == 0 ? copysignf(0, y) : (m < 0) == (y < 0) ? m : m + y;
}
TM_INLINE double arith_fmod_f64(double x, double y) {
  double m = fmod(x, y);
  return m == 0 ? copysign(0, y) : (m < 0) == (y < 0) ? m : m + y;
}

#define FLOATS(S, T, U)                          \
  BINARY(add, S, T, x + y)                       \
  BINARY(sub, S, T, x - y)                       \
  BINARY(mul, S, T, x *y)                        \
  BINARY(div, S, T, x / y)                       \
  BINARY(minimum, S, T, x < y || x != x ? x : y) \
  BINARY(maximum, S, T, x > y || x != x ? x : y) \
  BINARY(mod, S, T, arith_fmod_##S(x, y))
TM_K_FLOATS(FLOATS)
BINARY(floordiv, f32, float, floorf(x / y))
BINARY(floordiv, f64, double, floor(x / y))

/* Signed: -1 alone overflows, so it is a negation that wraps. */
#define DIVISION(S, T, U)                                 \
  TM_INLINE T arith_quotient_##S(T x, T y) {              \
    if (y == (T)-1) return (T)((U)0 - (U)x);              \
    T q = (T)(x / y);                                     \
    return (T)(q - (x % y != 0 && (x < 0) != (y < 0)));   \
  }                                                       \
  TM_INLINE T arith_rest_##S(T x, T y) {                  \
    if (y == (T)-1) return 0;                             \
    T r = (T)(x % y);                                     \
    return (T)(r != 0 && (r < 0) != (y < 0) ? r + y : r); \
  }
DIVISION(i32, int32_t, uint32_t)
DIVISION(i64, int64_t, uint64_t)
TM_INLINE uint8_t arith_quotient_u8(uint8_t x, uint8_t y) { return (uint8_t)(x / y); }
TM_INLINE uint8_t arith_rest_u8(uint8_t x, uint8_t y) { return (uint8_t)(x % y); }

/* By squaring; 64 bits wide, the cut to T gives the wrapped result of any width. */
TM_INLINE uint64_t arith_power(uint64_t x, uint64_t y) {
  uint64_t r = 1;
  for (; y; y >>= 1, x *= x)
    if (y & 1) r *= x;
  return r;
}

#define INTS(S, T, U)                              \
  BINARY(add, S, T, (T)((U)x + (U)y))              \
  BINARY(sub, S, T, (T)((U)x - (U)y))              \
  BINARY(mul, S, T, (T)((U)x * (U)y))              \
  BINARY(minimum, S, T, x < y ? x : y)             \
  BINARY(maximum, S, T, x > y ? x : y)             \
  BINARY(floordiv, S, T, arith_quotient_##S(x, y)) \
  BINARY(mod, S, T, arith_rest_##S(x, y))          \
  BINARY(pow, S, T, (T)arith_power((uint64_t)x, (uint64_t)y))
TM_K_INTS(INTS)

/* --- powers of floats: vmath takes arrays, so one number is repeated by blocks --- */
enum { BLOCK = 256 };

#define POW(S, T)                                                                     \
  static void arith_pow_##S(void *op, const void *ap, const void *bp, size_t n,       \
                            tm_k_mode m) {                                            \
    T *o = op, one[BLOCK];                                                            \
    const T *a = ap, *b = bp;                                                         \
    if (m != TM_K_VV) tm_k_fill(one, m == TM_K_VS ? b : a, sizeof(T), BLOCK);         \
    for (size_t i = 0; i < n; i += BLOCK) {                                           \
      size_t k = n - i < BLOCK ? n - i : BLOCK;                                       \
      tm_k_pow_##S(o + i, m == TM_K_SV ? one : a + i, m == TM_K_VS ? one : b + i, k); \
    }                                                                                 \
  }
POW(f32, float)
POW(f64, double)

#define ALL(NAME)                                                                     \
  tm_k_binary *const tm_k_##NAME[TM_K_TYPES] = {                                      \
      arith_##NAME##_f32, arith_##NAME##_f64, arith_##NAME##_i32, arith_##NAME##_i64, \
      arith_##NAME##_u8};
ALL(add)
ALL(sub)
ALL(mul)
ALL(minimum)
ALL(maximum)
ALL(floordiv)
ALL(mod)
ALL(pow)
tm_k_binary *const tm_k_div[TM_K_TYPES] = {arith_div_f32, arith_div_f64};
