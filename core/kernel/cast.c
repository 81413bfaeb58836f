#include <string.h>

#include "kernel/elementwise.h"
#include "kernel/kernel.h"

/*
 * Design.  One loop a pair of types, from four expressions: float to integer (cut
 * and clamped), to bool, and plain conversions, in which integers wrap.
 */

#define LOOP(FS, F, TS, T, EXPR)                                               \
  TM_KERNEL static void cast_##FS##_##TS(void *op, const void *xp, size_t n) { \
    T *restrict o = op;                                                        \
    const F *restrict a = xp;                                                  \
    for (size_t i = 0; i < n; i++) {                                           \
      const F x = a[i];                                                        \
      o[i] = (EXPR);                                                           \
    }                                                                          \
  }
#define CLAMP(FS, F, TS, T, LOW, ABOVE, MIN, MAX) \
  LOOP(FS, F, TS, T, x != x ? 0 : x >= ABOVE ? MAX : x < LOW ? MIN : (T)x)

/* The bounds are powers of two (of u8: 0), exact in both float types. */
#define FROM_FLOAT(FS, F)                                                 \
  CLAMP(FS, F, i32, int32_t, (F)-0x1p31, (F)0x1p31, INT32_MIN, INT32_MAX) \
  CLAMP(FS, F, i64, int64_t, (F)-0x1p63, (F)0x1p63, INT64_MIN, INT64_MAX) \
  CLAMP(FS, F, u8, uint8_t, (F)0, (F)0x1p8, 0, UINT8_MAX)                 \
  LOOP(FS, F, bool, uint8_t, x != 0)
FROM_FLOAT(f32, float)
FROM_FLOAT(f64, double)
LOOP(f32, float, f64, double, (double)x)
LOOP(f64, double, f32, float, (float)x)

#define FROM_INT(FS, F)               \
  LOOP(FS, F, f32, float, (float)x)   \
  LOOP(FS, F, f64, double, (double)x) \
  LOOP(FS, F, bool, uint8_t, x != 0)
FROM_INT(i32, int32_t)
FROM_INT(i64, int64_t)
FROM_INT(u8, uint8_t)
LOOP(i32, int32_t, i64, int64_t, x)
LOOP(i32, int32_t, u8, uint8_t, (uint8_t)x)
LOOP(i64, int64_t, i32, int32_t, (int32_t)x)
LOOP(i64, int64_t, u8, uint8_t, (uint8_t)x)
LOOP(u8, uint8_t, i32, int32_t, x)
LOOP(u8, uint8_t, i64, int64_t, x)

/* Rows: from; columns: to; NULL: a plain copy.  Bools are read as u8. */
static tm_k_unary *const cast_table[TM_K_TYPES + 1][TM_K_TYPES + 1] = {
    {NULL, cast_f32_f64, cast_f32_i32, cast_f32_i64, cast_f32_u8, cast_f32_bool},
    {cast_f64_f32, NULL, cast_f64_i32, cast_f64_i64, cast_f64_u8, cast_f64_bool},
    {cast_i32_f32, cast_i32_f64, NULL, cast_i32_i64, cast_i32_u8, cast_i32_bool},
    {cast_i64_f32, cast_i64_f64, cast_i64_i32, NULL, cast_i64_u8, cast_i64_bool},
    {cast_u8_f32, cast_u8_f64, cast_u8_i32, cast_u8_i64, NULL, cast_u8_bool},
    {cast_u8_f32, cast_u8_f64, cast_u8_i32, cast_u8_i64, NULL, NULL},
};

void tm_k_cast(void *o, int to, const void *x, int from, size_t n) {
  static const size_t size[TM_K_TYPES + 1] = {4, 8, 4, 8, 1, 1};
  tm_k_unary *f = cast_table[from][to];
  if (f)
    f(o, x, n);
  else if (n)
    memcpy(o, x, n * size[to]);
}

TM_KERNEL static void fill_b4(uint32_t *o, uint32_t v, size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = v;
}
TM_KERNEL static void fill_b8(uint64_t *o, uint64_t v, size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = v;
}

void tm_k_fill(void *o, const void *value, size_t size, size_t n) {
  uint32_t v4;
  uint64_t v8;
  if (size == 4) {
    memcpy(&v4, value, sizeof v4);
    fill_b4(o, v4, n);
  } else if (size == 8) {
    memcpy(&v8, value, sizeof v8);
    fill_b8(o, v8, n);
  } else if (size == 1) {
    if (n) memset(o, *(const uint8_t *)value, n);
  } else {
    for (size_t i = 0; i < n; i++) memcpy((char *)o + i * size, value, size);
  }
}
