#include "kernel/random.h"

#include <string.h>

#include "kernel/kernel.h"
#include "kernel/vmath.h"

/*
 * Design.  Blocks of PART elements, starting at a multiple of 4 words, so that whole
 * Philox blocks are drawn; TM_LANES of them at once in arrays that vectorise.  A part
 * that begins or ends within a block is made in a buffer and copied.
 */
enum { PART = 256, ROUNDS = 10 };

/* As tm_philox (base/philox.c), for TM_LANES counters in a row. */
TM_KERNEL static void random_blocks(uint32_t *restrict o, uint64_t key, uint64_t stream,
                                    uint64_t counter) {
  uint32_t c0[TM_LANES], c1[TM_LANES], c2[TM_LANES], c3[TM_LANES];
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (uint32_t l = 0; l < TM_LANES; l++) {
    c0[l] = (uint32_t)(counter + l);
    c1[l] = (uint32_t)((counter + l) >> 32);
    c2[l] = (uint32_t)stream;
    c3[l] = (uint32_t)(stream >> 32);
  }
  for (int r = 0; r < ROUNDS; r++) {
    for (size_t l = 0; l < TM_LANES; l++) {
      uint64_t a = UINT64_C(0xD2511F53) * c0[l], b = UINT64_C(0xCD9E8D57) * c2[l];
      c0[l] = (uint32_t)(b >> 32) ^ c1[l] ^ k0;
      c2[l] = (uint32_t)(a >> 32) ^ c3[l] ^ k1;
      c1[l] = (uint32_t)b;
      c3[l] = (uint32_t)a;
    }
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  for (size_t l = 0; l < TM_LANES; l++) {
    o[4 * l] = c0[l];
    o[4 * l + 1] = c1[l];
    o[4 * l + 2] = c2[l];
    o[4 * l + 3] = c3[l];
  }
}

enum { DRAWN = 4 * TM_LANES }; /* words of one call */

/* n words from block `counter` on; n is a multiple of DRAWN. */
static void random_run(uint32_t *o, size_t n, uint64_t key, uint64_t stream,
                       uint64_t counter) {
  for (size_t i = 0; i < n; i += DRAWN)
    random_blocks(o + i, key, stream, counter + i / 4);
}

void tm_k_random_words(uint32_t *o, size_t n, uint64_t key, uint64_t stream,
                       uint64_t first) {
  uint32_t w[DRAWN];
  size_t skip = (size_t)(first % 4);
  uint64_t counter = first / 4;
  while (n > 0) {
    size_t m = DRAWN - skip < n ? DRAWN - skip : n;
    random_blocks(w, key, stream, counter);
    memcpy(o, w + skip, m * sizeof *o);
    o += m;
    n -= m;
    skip = 0;
    counter += TM_LANES;
  }
}

/* --- from words to numbers --- */

/* [0, 1), and (0, 1] for logarithms. */
TM_INLINE float random_unit_f32(uint32_t w) { return (float)(w >> 8) * 0x1p-24F; }
TM_INLINE float random_above0_f32(uint32_t w) {
  return (float)((w >> 8) + 1) * 0x1p-24F;
}
TM_INLINE double random_unit_f64(const uint32_t *w) {
  uint64_t u = (uint64_t)w[0] | (uint64_t)w[1] << 32;
  return (double)(int64_t)(u >> 11) * 0x1p-53;
}
TM_INLINE double random_above0_f64(const uint32_t *w) {
  return random_unit_f64(w) + 0x1p-53;
}

TM_KERNEL static void random_units_f32(float *restrict o, const uint32_t *restrict w,
                                       size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = random_unit_f32(w[i]);
}
TM_KERNEL static void random_units_f64(double *restrict o, const uint32_t *restrict w,
                                       size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = random_unit_f64(w + 2 * i);
}
/* Radius and angle of pairs: half of PART of each. */
TM_KERNEL static void random_polar_f32(float *restrict r, float *restrict a,
                                       const uint32_t *restrict w, size_t pairs) {
  for (size_t i = 0; i < pairs; i++) {
    r[i] = random_above0_f32(w[2 * i]);
    a[i] = random_unit_f32(w[2 * i + 1]) * 6.28318530717958647693F;
  }
}
TM_KERNEL static void random_polar_f64(double *restrict r, double *restrict a,
                                       const uint32_t *restrict w, size_t pairs) {
  for (size_t i = 0; i < pairs; i++) {
    r[i] = random_above0_f64(w + 4 * i);
    a[i] = random_unit_f64(w + 4 * i + 2) * 6.28318530717958647693;
  }
}

/* Inverse of the error function for |x| < 0.96: the central branch of M. Giles,
 * "Approximating the erfinv function" (2011); `l` is log(1 - x^2). */
#define ERFINV(S, T)                                                                 \
  TM_INLINE T random_erfinv_##S(T x, T l) {                                          \
    static const T c[] = {(T)3.43273939e-07, (T)-3.5233877e-06, (T)-4.39150654e-06,  \
                          (T)0.00021858087,  (T)-0.00125372503, (T)-0.00417768164,   \
                          (T)0.246640727,    (T)1.50140941};                         \
    T w = -l - (T)2.5, p = (T)2.81022636e-08;                                        \
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) p = p * w + c[i];            \
    return p * x;                                                                    \
  }                                                                                  \
  TM_KERNEL static void random_stretch_##S(T *restrict x, T *restrict l, size_t n) { \
    /* erf(2 / sqrt(2)) */                                                           \
    for (size_t i = 0; i < n; i++) {                                                 \
      x[i] = (2 * x[i] - 1) * (T)0.95449973610364158;                                \
      l[i] = 1 - x[i] * x[i];                                                        \
    }                                                                                \
  }                                                                                  \
  TM_KERNEL static void random_invert_##S(T *restrict x, const T *restrict l,        \
                                          size_t n) {                                \
    for (size_t i = 0; i < n; i++)                                                   \
      x[i] = random_erfinv_##S(x[i], l[i]) * (T)1.41421356237309504880;              \
  }
ERFINV(f32, float)
ERFINV(f64, double)

/* One PART of standard numbers from words: [0, 1), normal, truncated normal. */
#define PARTS(S, T, SQRT)                                                            \
  TM_KERNEL static void random_radius_##S(T *r, size_t n) {                          \
    for (size_t i = 0; i < n; i++) r[i] = SQRT(-2 * r[i]);                           \
  }                                                                                  \
  static void random_part_uniform_##S(T *o, const uint32_t *w) {                     \
    random_units_##S(o, w, PART);                                                    \
  }                                                                                  \
  static void random_part_normal_##S(T *o, const uint32_t *w) {                      \
    T r[PART / 2], a[PART / 2], s[PART / 2];                                         \
    random_polar_##S(r, a, w, PART / 2);                                             \
    tm_k_log_##S(r, r, PART / 2);                                                    \
    random_radius_##S(r, PART / 2);                                                  \
    tm_k_sin_##S(s, a, PART / 2);                                                    \
    tm_k_cos_##S(a, a, PART / 2);                                                    \
    for (size_t i = 0; i < PART / 2; i++) {                                          \
      o[2 * i] = r[i] * a[i];                                                        \
      o[2 * i + 1] = r[i] * s[i];                                                    \
    }                                                                                \
  }                                                                                  \
  static void random_part_truncated_##S(T *o, const uint32_t *w) {                   \
    T l[PART];                                                                       \
    random_units_##S(o, w, PART);                                                    \
    random_stretch_##S(o, l, PART);                                                  \
    tm_k_log_##S(l, l, PART);                                                        \
    random_invert_##S(o, l, PART);                                                   \
  }                                                                                  \
  TM_KERNEL static void random_scale_##S(T *restrict o, const T *restrict x, T add,  \
                                         T mul, size_t n) {                          \
    for (size_t i = 0; i < n; i++) o[i] = x[i] * mul + add;                          \
  }                                                                                  \
  static void random_fill_##S(T *o, size_t n, uint64_t key, uint64_t stream,         \
                              uint64_t first, T add, T mul,                          \
                              void (*part)(T *, const uint32_t *)) {                 \
    enum { WORDS = sizeof(T) / 4 };                                                  \
    uint32_t w[PART * WORDS];                                                        \
    T x[PART];                                                                       \
    size_t skip = (size_t)(first % 4);                                               \
    uint64_t at = first - skip;                                                      \
    while (n > 0) {                                                                  \
      size_t m = PART - skip < n ? PART - skip : n;                                  \
      random_run(w, PART *WORDS, key, stream, at / 4 * WORDS);                       \
      part(x, w);                                                                    \
      random_scale_##S(o, x + skip, add, mul, m);                                    \
      o += m;                                                                        \
      n -= m;                                                                        \
      at += PART;                                                                    \
      skip = 0;                                                                      \
    }                                                                                \
  }                                                                                  \
  void tm_k_random_normal_##S(T *o, size_t n, uint64_t key, uint64_t stream,         \
                              uint64_t first, T mean, T stddev) {                    \
    random_fill_##S(o, n, key, stream, first, mean, stddev, random_part_normal_##S); \
  }                                                                                  \
  void tm_k_random_truncated_##S(T *o, size_t n, uint64_t key, uint64_t stream,      \
                                 uint64_t first, T mean, T stddev) {                 \
    random_fill_##S(o, n, key, stream, first, mean, stddev,                          \
                    random_part_truncated_##S);                                      \
  }                                                                                  \
  void tm_k_random_uniform_##S(T *o, size_t n, uint64_t key, uint64_t stream,        \
                               uint64_t first, T low, T high) {                      \
    random_fill_##S(o, n, key, stream, first, low, high - low,                       \
                    random_part_uniform_##S);                                        \
    /* Rounding may reach the bound, which does not belong. */                       \
    for (size_t i = 0; i < n; i++)                                                   \
      if (o[i] >= high && high > low) o[i] = low;                                    \
  }
PARTS(f32, float, sqrtf)
PARTS(f64, double, sqrt)

void tm_k_random_uniform_i64(int64_t *o, size_t n, uint64_t key, uint64_t stream,
                             uint64_t first, int64_t low, uint64_t range) {
  uint32_t w[DRAWN];
  for (size_t i = 0; i < n;) {
    size_t m = n - i < DRAWN / 2 ? n - i : DRAWN / 2;
    tm_k_random_words(w, 2 * m, key, stream, 2 * (first + i));
    for (size_t k = 0; k < m; k++, i++) {
      uint64_t u = (uint64_t)w[2 * k] | (uint64_t)w[2 * k + 1] << 32;
      unsigned __int128 p = (unsigned __int128)u * range;
      o[i] = (int64_t)((uint64_t)low + (uint64_t)(p >> 64));
    }
  }
}
