#include "kernel/conv.h"

#include <stdbool.h>
#include <string.h>

#include "kernel/gemm.h"
#include "kernel/kernel.h"

/*
 * Design.  Im2col: what the filters see from a piece of output pixels is copied into
 * the rows of a matrix (pixels, kh kw c / groups), and the matrix is multiplied with
 * the filters.  The gradient by the filters multiplies the same matrix with dy; that
 * by x goes the other way: dy times the filters, and each row is added where it came
 * from.  A piece is so large that its matrix stays in the second cache and the product
 * still has rows enough to be fast.
 *
 * Three cases need less: a filter of one pixel sees x itself; one channel a group
 * (depthwise) is a sum of products along the channels; a row of neighbours that is
 * inside the image is one copy, in moves of 16 elements: what a move brings too much is
 * overwritten by the next row, so the scratch memory ends in room for one move.
 */
enum {
  CACHED = 256 * 1024, /* elements of the matrix */
  MIN_ROWS = 384,
  MOVE = 16 /* elements that are copied at once */
};

static const double MOST_WORK = 2e9; /* multiplications of one piece */

/* x itself is the matrix. */
static bool conv_is_plain(const tm_k_conv *g) {
  return g->kh == 1 && g->kw == 1 && g->sh == 1 && g->sw == 1 && g->groups == 1 &&
         g->top == 0 && g->left == 0 && g->oh == g->h && g->ow == g->w;
}

static bool conv_is_depthwise(const tm_k_conv *g) {
  return g->groups == g->c && g->groups > 1;
}

/* Columns of the matrix of one group. */
static int64_t conv_k(const tm_k_conv *g) {
  return g->kh * g->kw * (g->groups ? g->c / g->groups : 0);
}

static int64_t conv_co(const tm_k_conv *g) { return g->groups ? g->co / g->groups : 0; }

int64_t tm_k_conv_pixels(const tm_k_conv *g) { return g->n * g->oh * g->ow; }

int64_t tm_k_conv_step(const tm_k_conv *g) {
  int64_t k = conv_k(g), rows = k > 0 ? CACHED / k : CACHED;
  if (conv_is_plain(g)) rows *= 16; /* nothing is copied */
  if (rows < MIN_ROWS) rows = MIN_ROWS;
  double work = (double)k * (double)conv_co(g); /* multiplications a pixel */
  if (work * (double)rows > MOST_WORK) rows = (int64_t)(MOST_WORK / work) + 1;
  int64_t all = tm_k_conv_pixels(g);
  return rows < all ? rows : all > 0 ? all : 1;
}

size_t tm_k_conv_scratch(const tm_k_conv *g) {
  if (conv_is_plain(g) || conv_is_depthwise(g)) return 0;
  int64_t rows = tm_k_conv_step(g), k = conv_k(g), co = conv_co(g);
  return (size_t)(rows * k + MOVE + (g->groups > 1 ? rows * co + k * co : 0));
}

/* A place in the output: pixel (y, x) of image n. */
struct conv_at {
  int64_t n, y, x;
};

static struct conv_at conv_at(const tm_k_conv *g, int64_t pixel) {
  struct conv_at a = {pixel / (g->oh * g->ow), pixel / g->ow % g->oh, pixel % g->ow};
  return a;
}

static void conv_next(const tm_k_conv *g, struct conv_at *a) {
  if (++a->x < g->ow) return;
  a->x = 0;
  if (++a->y < g->oh) return;
  a->y = 0;
  a->n++;
}

/* What of a filter's row lies inside the image: neighbours first .. last - 1 of those
 * at `at`, `at + dw`, ... */
struct conv_span {
  int64_t at, first, last;
};

TM_INLINE struct conv_span conv_span(const tm_k_conv *g, int64_t x) {
  struct conv_span s = {x * g->sw - g->left, 0, g->kw};
  if (g->dw == 1) { /* no division */
    if (s.at < 0) s.first = -s.at;
    if (s.at + g->kw > g->w) s.last = g->w - s.at;
  } else {
    if (s.at < 0) s.first = (-s.at + g->dw - 1) / g->dw;
    int64_t inside = g->w > s.at ? (g->w - s.at + g->dw - 1) / g->dw : 0;
    if (inside < s.last) s.last = inside;
  }
  if (s.first > g->kw) s.first = g->kw;
  if (s.last < s.first) s.last = s.first;
  return s;
}

#define S f32
#define T float
#include "kernel/conv.inc"
#undef S
#undef T
#define S f64
#define T double
#include "kernel/conv.inc"
#undef S
#undef T
