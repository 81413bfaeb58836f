#include "kernel/rows.h"

#include <string.h>

#include "kernel/kernel.h"

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

TM_INLINE void rows_copy(char *restrict to, const char *restrict from, size_t bytes) {
  if (bytes == 64) /* 16 floats: a few moves instead of a call */
    memcpy(to, from, 64);
  else
    memcpy(to, from, bytes);
}

void tm_k_gather_rows(void *out, const void *params, const int64_t *ids, int64_t n,
                      size_t bytes) {
  char *to = out;
  const char *from = params;
  for (int64_t i = 0; i < n; i++, to += bytes)
    rows_copy(to, from + (size_t)ids[i] * bytes, bytes);
}

#define ROWS(S, T)                                                                  \
  TM_INLINE void rows_add_##S(T *restrict to, const T *restrict from, int64_t n) {  \
    for (int64_t j = 0; j < n; j++) to[j] += from[j];                               \
  }                                                                                 \
  TM_KERNEL void tm_k_sum_rows_##S(T *out, const T *rows, const int32_t *first,     \
                                   const int32_t *inv, int64_t n, int64_t width) {  \
    for (int64_t i = 0; i < n; i++) {                                               \
      T *to = out + inv[i] * width;                                                 \
      const T *from = rows + i * width;                                             \
      if (first[inv[i]] == i)                                                       \
        rows_copy((char *)to, (const char *)from, (size_t)width * sizeof *to);      \
      else                                                                          \
        rows_add_##S(to, from, width);                                              \
    }                                                                               \
  }                                                                                 \
  TM_KERNEL void tm_k_add_rows_##S(T *out, const T *rows, const int64_t *ids,       \
                                   int64_t n, int64_t width) {                      \
    for (int64_t i = 0; i < n; i++)                                                 \
      if (ids[i] >= 0) rows_add_##S(out + ids[i] * width, rows + i * width, width); \
  }

/* Wide rows are taken in blocks that stay in the first cache, since few distinct rows
 * are used again and again; up to four are added in one walk, from left to right. */
enum { ROWS_BLOCK = 256 };

#define LISTS(S, T)                                                                   \
  TM_INLINE void rows_set_##S(T *restrict to, const T *rows, const int32_t *list,     \
                              int64_t m, int64_t width, int64_t n) {                  \
    const T *restrict a = rows + list[0] * width;                                     \
    const T *restrict b = rows + list[m > 1] * width;                                 \
    const T *restrict c = rows + list[m > 2 ? 2 : 0] * width;                         \
    if (m == 1)                                                                       \
      for (int64_t i = 0; i < n; i++) to[i] = a[i];                                   \
    else if (m == 2)                                                                  \
      for (int64_t i = 0; i < n; i++) to[i] = a[i] + b[i];                            \
    else                                                                              \
      for (int64_t i = 0; i < n; i++) to[i] = (a[i] + b[i]) + c[i];                   \
  }                                                                                   \
  TM_INLINE void rows_add4_##S(T *restrict to, const T *rows, const int32_t *list,    \
                               int64_t width, int64_t n) {                            \
    const T *restrict a = rows + list[0] * width, *restrict b =                       \
                                                      rows + list[1] * width;         \
    const T *restrict c = rows + list[2] * width, *restrict d =                       \
                                                      rows + list[3] * width;         \
    for (int64_t i = 0; i < n; i++) to[i] = (((to[i] + a[i]) + b[i]) + c[i]) + d[i];  \
  }                                                                                   \
  TM_INLINE void rows_list_##S(T *restrict to, const T *rows, const int32_t *list,    \
                               int64_t m, int64_t width, int64_t n, T scale) {        \
    int64_t k = m < 3 ? m : 3;                                                        \
    if (m == 0)                                                                       \
      for (int64_t i = 0; i < n; i++) to[i] = 0;                                      \
    else                                                                              \
      rows_set_##S(to, rows, list, k, width, n);                                      \
    for (; k + 4 <= m; k += 4) rows_add4_##S(to, rows, list + k, width, n);           \
    for (; k < m; k++) rows_add_##S(to, rows + list[k] * width, n);                   \
    if (scale != 1)                                                                   \
      for (int64_t i = 0; i < n; i++) to[i] *= scale;                                 \
  }                                                                                   \
  TM_KERNEL void tm_k_sum_lists_##S(T *out, const T *rows, const int32_t *start,      \
                                    const int32_t *list, int64_t nout, int64_t width, \
                                    T scale) {                                        \
    for (int64_t c = 0; c < width; c += ROWS_BLOCK) {                                 \
      int64_t n = width - c < ROWS_BLOCK ? width - c : ROWS_BLOCK;                    \
      for (int64_t o = 0; o < nout; o++)                                              \
        rows_list_##S(out + o * width + c, rows + c, list + start[o],                 \
                      start[o + 1] - start[o], width, n, scale);                      \
    }                                                                                 \
  }

ROWS(f32, float)
ROWS(f64, double)
LISTS(f32, float)
LISTS(f64, double)
