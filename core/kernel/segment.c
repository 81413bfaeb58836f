#include "kernel/segment.h"

#include <string.h>

#include "kernel/kernel.h"

/*
 * Design.  One pass over the rows in order, so a sum has one order whatever the
 * segments; within a row the elements are independent and vectorise.
 */

#define SEGMENT(S, T, U)                                                              \
  TM_KERNEL void tm_k_segment_sum_##S(T *out, const T *rows, const int64_t *seg,      \
                                      int64_t n, int64_t segments, int64_t width) {   \
    memset(out, 0, (size_t)(segments * width) * sizeof *out);                         \
    for (int64_t i = 0; i < n; i++) {                                                 \
      if (seg[i] < 0) continue;                                                       \
      T *restrict to = out + seg[i] * width;                                          \
      const T *restrict from = rows + i * width;                                      \
      for (int64_t j = 0; j < width; j++) to[j] = (T)((U)to[j] + (U)from[j]);         \
    }                                                                                 \
  }                                                                                   \
  TM_KERNEL void tm_k_segment_max_##S(T *out, const T *rows, const int64_t *seg,      \
                                      int64_t n, int64_t segments, int64_t width,     \
                                      T empty) {                                      \
    for (int64_t i = 0; i < segments * width; i++) out[i] = empty;                    \
    for (int64_t i = 0; i < n; i++) {                                                 \
      if (seg[i] < 0) continue;                                                       \
      T *restrict to = out + seg[i] * width;                                          \
      const T *restrict from = rows + i * width;                                      \
      for (int64_t j = 0; j < width; j++) to[j] = from[j] <= to[j] ? to[j] : from[j]; \
    }                                                                                 \
  }                                                                                   \
  void tm_k_segment_spread_##S(T *out, const T *x, const int64_t *seg, int64_t n,     \
                               int64_t width) {                                       \
    size_t bytes = (size_t)width * sizeof *out;                                       \
    if (bytes == 0) return;                                                           \
    for (int64_t i = 0; i < n; i++)                                                   \
      if (seg[i] < 0)                                                                 \
        memset(out + i * width, 0, bytes);                                            \
      else                                                                            \
        memcpy(out + i * width, x + seg[i] * width, bytes);                           \
  }

#define X(S, T, U) SEGMENT(S, T, U)
TM_K_NUMBERS(X)
#undef X

void tm_k_segment_count(int64_t *count, const int64_t *seg, int64_t n,
                        int64_t segments) {
  memset(count, 0, (size_t)segments * sizeof *count);
  for (int64_t i = 0; i < n; i++)
    if (seg[i] >= 0) count[seg[i]]++;
}

#define SEGMENT_FLOAT(S, T)                                                       \
  void tm_k_segment_divide_##S(T *out, const int64_t *count, int64_t segments,    \
                               int64_t width) {                                   \
    for (int64_t s = 0; s < segments; s++) {                                      \
      T d = (T)(count[s] > 1 ? count[s] : 1);                                     \
      for (int64_t j = 0; j < width; j++) out[s * width + j] /= d;                \
    }                                                                             \
  }                                                                               \
  void tm_k_segment_max_grad_##S(T *dx, const T *x, const T *y, const T *dy,      \
                                 const int64_t *seg, int64_t n, int64_t segments, \
                                 int64_t width, int32_t *parts) {                 \
    memset(parts, 0, (size_t)(segments * width) * sizeof *parts);                 \
    for (int64_t i = 0; i < n; i++)                                               \
      for (int64_t j = 0; seg[i] >= 0 && j < width; j++)                          \
        parts[seg[i] * width + j] += x[i * width + j] == y[seg[i] * width + j];   \
    for (int64_t i = 0; i < n; i++)                                               \
      for (int64_t j = 0; j < width; j++) {                                       \
        int64_t at = i * width + j, to = seg[i] * width + j;                      \
        dx[at] = seg[i] >= 0 && x[at] == y[to] ? dy[to] / (T)parts[to] : 0;       \
      }                                                                           \
  }

SEGMENT_FLOAT(f32, float)
SEGMENT_FLOAT(f64, double)
