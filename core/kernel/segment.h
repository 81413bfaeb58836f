/*
 * segment.h - sums and maxima of rows by segment.
 *
 * Rows are (n, width); seg[i] names the row of out that row i goes to, negative: none.
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_SEGMENT_H
#define TM_KERNEL_SEGMENT_H

#include <stdint.h>

#define TM_K_SEGMENT(S, T)                                                        \
  /* out (segments, width) = sums, zero where a segment is empty */               \
  void tm_k_segment_sum_##S(T *out, const T *rows, const int64_t *seg, int64_t n, \
                            int64_t segments, int64_t width);                     \
  /* out = maxima, `empty` where a segment is empty */                            \
  void tm_k_segment_max_##S(T *out, const T *rows, const int64_t *seg, int64_t n, \
                            int64_t segments, int64_t width, T empty);            \
  /* row i of out = row seg[i] of x, zeros where seg[i] is negative */            \
  void tm_k_segment_spread_##S(T *out, const T *x, const int64_t *seg, int64_t n, \
                               int64_t width);

TM_K_SEGMENT(f32, float)
TM_K_SEGMENT(f64, double)
TM_K_SEGMENT(i32, int32_t)
TM_K_SEGMENT(i64, int64_t)
TM_K_SEGMENT(u8, uint8_t)

/* Rows by the number of rows of their segment: out[s] /= max(count[s], 1). */
void tm_k_segment_divide_f32(float *out, const int64_t *count, int64_t segments,
                             int64_t width);
void tm_k_segment_divide_f64(double *out, const int64_t *count, int64_t segments,
                             int64_t width);
void tm_k_segment_count(int64_t *count, const int64_t *seg, int64_t n,
                        int64_t segments);

/* Gradient of the maximum: dy goes to the elements equal to it, in equal parts.  parts
 * (segments, width) is scratch. */
void tm_k_segment_max_grad_f32(float *dx, const float *x, const float *y,
                               const float *dy, const int64_t *seg, int64_t n,
                               int64_t segments, int64_t width, int32_t *parts);
void tm_k_segment_max_grad_f64(double *dx, const double *x, const double *y,
                               const double *dy, const int64_t *seg, int64_t n,
                               int64_t segments, int64_t width, int32_t *parts);

#endif
