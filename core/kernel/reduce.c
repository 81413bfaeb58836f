#include "kernel/reduce.h"

#include "kernel/kernel.h"

/*
 * Design.  Two shapes of loop: a row is summed in fixed lanes which then fold in
 * halves; a block of CHUNK columns is summed down the rows with its sums in
 * registers.  Every STRETCH steps the sums go to a second level, which keeps the
 * error of long sums small.  The second level of a row is outside of the vector loop:
 * gcc 12.2 makes wrong code of two arrays of sums in one function (SSE2, AVX2).  EXPR
 * combines x (so far) and y (next).
 */
enum { CHUNK = 64, STRETCH = 256, PART = STRETCH * TM_LANES };

#define REDUCE(NAME, S, T, INIT, EXPR)                                               \
  TM_INLINE T reduce_two_##NAME##_##S(T x, T y) { return (EXPR); }                   \
  TM_KERNEL static void reduce_part_##NAME##_##S(T *restrict o, const T *restrict x, \
                                                 size_t n) {                         \
    T acc[TM_LANES];                                                                 \
    size_t i = 0;                                                                    \
    for (size_t l = 0; l < TM_LANES; l++) acc[l] = (INIT);                           \
    for (; i + TM_LANES <= n; i += TM_LANES)                                         \
      for (size_t l = 0; l < TM_LANES; l++)                                          \
        acc[l] = reduce_two_##NAME##_##S(acc[l], x[i + l]);                          \
    for (size_t l = 0; i < n; i++, l++)                                              \
      acc[l] = reduce_two_##NAME##_##S(acc[l], x[i]);                                \
    for (size_t w = TM_LANES / 2; w > 0; w /= 2)                                     \
      for (size_t l = 0; l < w; l++)                                                 \
        acc[l] = reduce_two_##NAME##_##S(acc[l], acc[l + w]);                        \
    o[0] = acc[0];                                                                   \
  }                                                                                  \
  static void reduce_row_##NAME##_##S(T *o, const T *x, size_t n) {                  \
    T part, total = (INIT);                                                          \
    for (size_t i = 0; i < n; i += PART) {                                           \
      reduce_part_##NAME##_##S(&part, x + i, n - i < PART ? n - i : PART);           \
      total = i ? reduce_two_##NAME##_##S(total, part) : part;                       \
    }                                                                                \
    o[0] = total;                                                                    \
  }                                                                                  \
  TM_INLINE void reduce_block_##NAME##_##S(T *restrict o, const T *restrict x,       \
                                           size_t n, size_t inner, size_t width) {   \
    T acc[CHUNK], total[CHUNK];                                                      \
    for (size_t l = 0; l < width; l++) total[l] = (INIT);                            \
    for (size_t from = 0; from < n; from += STRETCH) {                               \
      size_t to = n - from < STRETCH ? n : from + STRETCH;                           \
      for (size_t l = 0; l < width; l++) acc[l] = (INIT);                            \
      for (size_t r = from; r < to; r++)                                             \
        for (size_t l = 0; l < width; l++)                                           \
          acc[l] = reduce_two_##NAME##_##S(acc[l], x[r * inner + l]);                \
      for (size_t l = 0; l < width; l++)                                             \
        total[l] = reduce_two_##NAME##_##S(total[l], acc[l]);                        \
    }                                                                                \
    for (size_t l = 0; l < width; l++) o[l] = total[l];                              \
  }                                                                                  \
  TM_KERNEL static void reduce_cols_##NAME##_##S(T *restrict o, const T *restrict x, \
                                                 size_t n, size_t inner) {           \
    size_t i = 0;                                                                    \
    for (; i + CHUNK <= inner; i += CHUNK)                                           \
      reduce_block_##NAME##_##S(o + i, x + i, n, inner, CHUNK);                      \
    for (; i + TM_LANES <= inner; i += TM_LANES)                                     \
      reduce_block_##NAME##_##S(o + i, x + i, n, inner, TM_LANES);                   \
    if (i < inner) reduce_block_##NAME##_##S(o + i, x + i, n, inner, inner - i);     \
  }                                                                                  \
  static void reduce_##NAME##_##S(void *op, const void *xp, size_t rows, size_t n,   \
                                  size_t inner) {                                    \
    T *o = op;                                                                       \
    const T *x = xp;                                                                 \
    for (size_t r = 0; r < rows; r++) {                                              \
      if (inner == 1)                                                                \
        reduce_row_##NAME##_##S(o + r, x + r * n, n);                                \
      else                                                                           \
        reduce_cols_##NAME##_##S(o + r * inner, x + r * n * inner, n, inner);        \
    }                                                                                \
  }

#define FLOATS(S, T, U)                                    \
  REDUCE(sum, S, T, 0, x + y)                              \
  REDUCE(prod, S, T, 1, x *y)                              \
  REDUCE(max, S, T, -(T)INFINITY, x > y || x != x ? x : y) \
  REDUCE(min, S, T, (T)INFINITY, x < y || x != x ? x : y)
TM_K_FLOATS(FLOATS)

#define INTS(S, T, U, LOW, HIGH)          \
  REDUCE(sum, S, T, 0, (T)((U)x + (U)y))  \
  REDUCE(prod, S, T, 1, (T)((U)x * (U)y)) \
  REDUCE(max, S, T, LOW, x > y ? x : y)   \
  REDUCE(min, S, T, HIGH, x < y ? x : y)
INTS(i32, int32_t, uint32_t, INT32_MIN, INT32_MAX)
INTS(i64, int64_t, uint64_t, INT64_MIN, INT64_MAX)
INTS(u8, uint8_t, uint8_t, 0, UINT8_MAX)

#define TABLE(NAME)                                                  \
  tm_k_reduce *const tm_k_##NAME[TM_K_TYPES] = {                     \
      reduce_##NAME##_f32, reduce_##NAME##_f64, reduce_##NAME##_i32, \
      reduce_##NAME##_i64, reduce_##NAME##_u8};
TABLE(sum)
TABLE(prod)
TABLE(max)
TABLE(min)
