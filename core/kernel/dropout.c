#include "kernel/dropout.h"

#include "kernel/kernel.h"
#include "kernel/random.h"

/* Design.  24 bits of a word against the rate times 2^24, as the uniform numbers. */
enum { PART = 1024 };

TM_KERNEL static void keep_words(uint8_t *restrict mask, const uint32_t *restrict w,
                                 size_t n, uint32_t limit) {
  for (size_t i = 0; i < n; i++) mask[i] = (w[i] >> 8) >= limit;
}

void tm_k_keep_mask(uint8_t *mask, size_t n, uint64_t key, uint64_t stream,
                    double rate) {
  uint32_t w[PART], limit = (uint32_t)ceil(rate * 0x1p24);
  for (size_t at = 0; at < n; at += PART) {
    size_t m = n - at < PART ? n - at : PART;
    tm_k_random_words(w, m, key, stream, at);
    keep_words(mask + at, w, m, limit);
  }
}

#define MASKED(S, T)                                                              \
  TM_KERNEL void tm_k_masked_##S(T *o, const T *x, const uint8_t *mask, size_t n, \
                                 T scale) {                                       \
    TM_IVDEP                                                                      \
    for (size_t i = 0; i < n; i++) {                                              \
      T y = x[i] * scale;                                                         \
      o[i] = mask[i] ? y : 0;                                                     \
    }                                                                             \
  }

MASKED(f32, float)
MASKED(f64, double)
