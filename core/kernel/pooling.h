/*
 * pooling.h - the largest or the mean of each window of an image, channel by channel.
 *
 *     tm_k_max_pool_f32(out, x, &g, 0, g.n * g.oh * g.ow);
 *
 * x is (n, h, w, c), the output (n, oh, ow, c).  What lies outside the image does not
 * count.  Functions take output pixels first .. first + rows - 1.
 *
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_POOLING_H
#define TM_KERNEL_POOLING_H

#include <stdint.h>

typedef struct tm_k_pool {
  int64_t n, h, w, c;
  int64_t kh, kw; /* the window */
  int64_t oh, ow;
  int64_t sh, sw;    /* strides */
  int64_t top, left; /* of the first window, outside the image */
} tm_k_pool;

#define TM_K_POOL(S, T)                                                            \
  void tm_k_max_pool_##S(T *out, const T *x, const tm_k_pool *g, int64_t first,    \
                         int64_t rows);                                            \
  /* dx at the first maximum of each window += dy. */                              \
  void tm_k_max_pool_dx_##S(T *dx, const T *dy, const T *x, const tm_k_pool *g,    \
                            int64_t first, int64_t rows);                          \
  /* out: of v, what stands where x has its first maximum. */                      \
  void tm_k_max_pool_pick_##S(T *out, const T *v, const T *x, const tm_k_pool *g,  \
                              int64_t first, int64_t rows);                        \
  void tm_k_avg_pool_##S(T *out, const T *x, const tm_k_pool *g, int64_t first,    \
                         int64_t rows);                                            \
  /* dx += the share of dy. */                                                     \
  void tm_k_avg_pool_dx_##S(T *dx, const T *dy, const tm_k_pool *g, int64_t first, \
                            int64_t rows);
TM_K_POOL(f32, float)
TM_K_POOL(f64, double)
#undef TM_K_POOL

#endif
