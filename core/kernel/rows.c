#include "kernel/rows.h"

#include <string.h>

/*
 * Design.  Uniqueness by an open-addressed table of int32 slots (0 = empty, else
 * k + 1), at most half full, so a probe is short; the keys themselves are uniq[].
 */
static size_t rows_slots(int64_t n) {
  size_t cap = 16;
  while (cap < (size_t)n * 2) cap *= 2;
  return cap;
}

size_t tm_k_unique_scratch(int64_t n) { return rows_slots(n) * sizeof(int32_t); }

static inline uint64_t rows_hash(int64_t id) {
  uint64_t x = (uint64_t)id * UINT64_C(0x9E3779B97F4A7C15);
  return x ^ (x >> 32);
}

int64_t tm_k_unique_i64(int64_t *uniq, int32_t *first, int32_t *inv, const int64_t *ids,
                        int64_t n, void *scratch) {
  size_t mask = rows_slots(n) - 1;
  int32_t *slot = scratch;
  int64_t count = 0;
  memset(slot, 0, (mask + 1) * sizeof *slot);
  for (int64_t i = 0; i < n; i++) {
    size_t h = (size_t)rows_hash(ids[i]) & mask;
    while (slot[h] && uniq[slot[h] - 1] != ids[i]) h = (h + 1) & mask;
    if (!slot[h]) {
      uniq[count] = ids[i];
      first[count] = (int32_t)i;
      slot[h] = (int32_t)++count;
    }
    inv[i] = slot[h] - 1;
  }
  return count;
}

void tm_k_sum_rows_f32(float *out, const float *rows, const int32_t *first,
                       const int32_t *inv, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; i++) {
    float *restrict to = out + inv[i] * width;
    const float *restrict from = rows + i * width;
    if (first[inv[i]] == i) {
      memcpy(to, from, (size_t)width * sizeof *to);
    } else {
      for (int64_t j = 0; j < width; j++) to[j] += from[j];
    }
  }
}

void tm_k_sum_rows_f64(double *out, const double *rows, const int32_t *first,
                       const int32_t *inv, int64_t n, int64_t width) {
  for (int64_t i = 0; i < n; i++) {
    double *restrict to = out + inv[i] * width;
    const double *restrict from = rows + i * width;
    if (first[inv[i]] == i) {
      memcpy(to, from, (size_t)width * sizeof *to);
    } else {
      for (int64_t j = 0; j < width; j++) to[j] += from[j];
    }
  }
}
