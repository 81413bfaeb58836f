#include "kernel/pooling.h"

#include <math.h>

#include "kernel/kernel.h"

/*
 * Design.  Loops run over a window's pixels, inside over channels, which lie side by
 * side.  Where the place of a maximum is wanted, channels go in blocks whose places
 * stay in registers or the first cache: `at` is the number of the pixel in the image,
 * -1 where there is none.  A NaN is larger than everything.
 */
enum { BLOCK = 64 };

/* The pixels of the image under a window: y0 <= y < y1, x0 <= x < x1, of image n. */
struct pool_box {
  int64_t n, y0, y1, x0, x1;
};

TM_INLINE struct pool_box pool_box(const tm_k_pool *g, int64_t pixel) {
  int64_t y = pixel / g->ow % g->oh * g->sh - g->top;
  int64_t x = pixel % g->ow * g->sw - g->left;
  struct pool_box b = {pixel / (g->oh * g->ow), y, y + g->kh, x, x + g->kw};
  if (b.y0 < 0) b.y0 = 0;
  if (b.x0 < 0) b.x0 = 0;
  if (b.y1 > g->h) b.y1 = g->h;
  if (b.x1 > g->w) b.x1 = g->w;
  return b;
}

#define EACH_PIXEL(b, i)                                                               \
  for (int64_t y_ = (b).y0, i; y_ < (b).y1; y_++)                                      \
    for (int64_t x_ = (b).x0; x_ < (b).x1 && (i = ((b).n * g->h + y_) * g->w + x_, 1); \
         x_++)

#define S f32
#define T float
#define I int32_t
#include "kernel/pooling.inc"
#undef S
#undef T
#undef I
#define S f64
#define T double
#define I int64_t
#include "kernel/pooling.inc"
#undef S
#undef T
#undef I
