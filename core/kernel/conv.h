/*
 * conv.h - convolutions of images by matrix products, a piece of output pixels at a
 * time.
 *
 *     int64_t step = tm_k_conv_step(&g), n = tm_k_conv_pixels(&g);
 *     for (int64_t at = 0; at < n; at += step)
 *       tm_k_conv_f32(out, x, filters, &g, scratch, at, MIN(step, n - at));
 *
 * x is (n, h, w, c), filters are (kh, kw, c / groups, co), the output is (n, oh, ow,
 * co); group k makes its share of the output channels from its share of the input's.
 * What lies outside the image counts as zero.  A depthwise filter (kh, kw, c, m) has
 * the same bytes as one of c groups with c m outputs.
 *
 * Threads: pure functions; the scratch memory is the caller's.
 */
#ifndef TM_KERNEL_CONV_H
#define TM_KERNEL_CONV_H

#include <stddef.h>
#include <stdint.h>

typedef struct tm_k_conv {
  int64_t n, h, w, c;
  int64_t kh, kw, co;
  int64_t oh, ow;
  int64_t sh, sw;    /* strides */
  int64_t dh, dw;    /* pixels between neighbours under a filter, 1: none is left out */
  int64_t top, left; /* zeros before the image */
  int64_t groups;
} tm_k_conv;

/* Pixels of the output. */
int64_t tm_k_conv_pixels(const tm_k_conv *g);
/* As many of them make one piece; the order of sums depends on it. */
int64_t tm_k_conv_step(const tm_k_conv *g);
/* Elements of scratch memory. */
size_t tm_k_conv_scratch(const tm_k_conv *g);

#define TM_K_CONV(S, T)                                                              \
  /* out: pixels first .. first + rows - 1 of the output. */                         \
  void tm_k_conv_##S(T *out, const T *x, const T *f, const tm_k_conv *g, T *scratch, \
                     int64_t first, int64_t rows);                                   \
  /* dx += what the gradient dy of those pixels gives. */                            \
  void tm_k_conv_dx_##S(T *dx, const T *dy, const T *f, const tm_k_conv *g,          \
                        T *scratch, int64_t first, int64_t rows);                    \
  /* df += what they give. */                                                        \
  void tm_k_conv_df_##S(T *df, const T *x, const T *dy, const tm_k_conv *g,          \
                        T *scratch, int64_t first, int64_t rows);
TM_K_CONV(f32, float)
TM_K_CONV(f64, double)
#undef TM_K_CONV

#endif
