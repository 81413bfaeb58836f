#include "kernel/strided.h"

#include <stdbool.h>
#include <string.h>

#include "kernel/kernel.h"

/*
 * Design.  The walk is first made small: axes of size 1 go, and two axes that the
 * strided side walks like one are joined.  What remains is a counter over the outer
 * axes and one inner loop: a memcpy, a fill, or single elements.  Where the inner axis
 * jumps and the one outside it does not (a transpose), squares of 16 x 16 are turned,
 * so that each cache line is used while it is there.
 *
 * Types may alias whatever lies there: these loops move bytes, they do not compute.
 */
typedef uint8_t elem1;
typedef uint32_t __attribute__((may_alias)) elem4;
typedef uint64_t __attribute__((may_alias)) elem8;
typedef struct elem16 {
  uint64_t a, b;
} __attribute__((may_alias)) elem16;

enum { TILE = 16 };

/* Returns the number of elements. */
static int64_t walk_compact(const tm_k_walk *w, tm_k_walk *c) {
  int64_t n = 1;
  c->rank = 0;
  for (int32_t i = 0; i < w->rank; i++) {
    n *= w->dim[i];
    if (w->dim[i] == 1) continue;
    int32_t p = c->rank - 1;
    if (p >= 0 && c->step[p] == w->dim[i] * w->step[i]) {
      c->dim[p] *= w->dim[i];
      c->step[p] = w->step[i];
    } else {
      c->dim[c->rank] = w->dim[i];
      c->step[c->rank++] = w->step[i];
    }
  }
  while (c->rank < 2) { /* at least two axes: the loops need an inner and an outer */
    for (int32_t i = c->rank; i > 0; i--) {
      c->dim[i] = c->dim[i - 1];
      c->step[i] = c->step[i - 1];
    }
    c->dim[0] = 1;
    c->step[0] = 0;
    c->rank++;
  }
  return n;
}

/* Next position of the axes before the last `skip`; false after the last one. */
static bool walk_next(const tm_k_walk *w, int32_t skip, int64_t *at, int64_t *off) {
  for (int32_t i = w->rank - skip - 1; i >= 0; i--) {
    *off += w->step[i];
    if (++at[i] < w->dim[i]) return true;
    *off -= w->dim[i] * w->step[i];
    at[i] = 0;
  }
  return false;
}

#define STRIDED(S, T)                                                              \
  static void read_row_##S(T *restrict out, const T *restrict in, int64_t n,       \
                           int64_t step) {                                         \
    if (step == 1) {                                                               \
      memcpy(out, in, (size_t)n * sizeof *out);                                    \
    } else if (step == 0) {                                                        \
      T x = in[0];                                                                 \
      for (int64_t i = 0; i < n; i++) out[i] = x;                                  \
    } else {                                                                       \
      for (int64_t i = 0; i < n; i++) out[i] = in[i * step];                       \
    }                                                                              \
  }                                                                                \
  static void write_row_##S(T *restrict out, const T *restrict in, int64_t n,      \
                            int64_t step) {                                        \
    if (step == 1)                                                                 \
      memcpy(out, in, (size_t)n * sizeof *out);                                    \
    else                                                                           \
      for (int64_t i = 0; i < n; i++) out[i * step] = in[i];                       \
  }                                                                                \
  /* out (rows, cols) dense = in[r * 1 + c * step] */                              \
  static void read_turned_##S(T *restrict out, const T *restrict in, int64_t rows, \
                              int64_t cols, int64_t step) {                        \
    for (int64_t r0 = 0; r0 < rows; r0 += TILE)                                    \
      for (int64_t c0 = 0; c0 < cols; c0 += TILE) {                                \
        int64_t r1 = r0 + TILE < rows ? r0 + TILE : rows;                          \
        int64_t c1 = c0 + TILE < cols ? c0 + TILE : cols;                          \
        for (int64_t r = r0; r < r1; r++)                                          \
          for (int64_t c = c0; c < c1; c++) out[r * cols + c] = in[r + c * step];  \
      }                                                                            \
  }                                                                                \
  static void read_##S(T *out, const T *in, const tm_k_walk *w) {                  \
    int64_t at[TM_K_RANK] = {0}, off = 0, inner = w->dim[w->rank - 1];             \
    int64_t step = w->step[w->rank - 1], outer = w->dim[w->rank - 2];              \
    if (step != 1 && step != 0 && w->step[w->rank - 2] == 1) {                     \
      do {                                                                         \
        read_turned_##S(out, in + off, outer, inner, step);                        \
        out += outer * inner;                                                      \
      } while (walk_next(w, 2, at, &off));                                         \
      return;                                                                      \
    }                                                                              \
    do {                                                                           \
      read_row_##S(out, in + off, inner, step);                                    \
      out += inner;                                                                \
    } while (walk_next(w, 1, at, &off));                                           \
  }                                                                                \
  static void write_##S(T *out, const T *in, const tm_k_walk *w) {                 \
    int64_t at[TM_K_RANK] = {0}, off = 0, inner = w->dim[w->rank - 1];             \
    do {                                                                           \
      write_row_##S(out + off, in, inner, w->step[w->rank - 1]);                   \
      in += inner;                                                                 \
    } while (walk_next(w, 1, at, &off));                                           \
  }

STRIDED(1, elem1)
STRIDED(4, elem4)
STRIDED(8, elem8)
STRIDED(16, elem16)

void tm_k_read_strided(void *out, const void *in, const tm_k_walk *w, size_t elem) {
  tm_k_walk c;
  if (walk_compact(w, &c) == 0) return;
  switch (elem) {
    case 1:
      read_1(out, in, &c);
      break;
    case 4:
      read_4(out, in, &c);
      break;
    case 8:
      read_8(out, in, &c);
      break;
    default:
      read_16(out, in, &c);
  }
}

void tm_k_write_strided(void *out, const void *in, const tm_k_walk *w, size_t elem) {
  tm_k_walk c;
  if (walk_compact(w, &c) == 0) return;
  switch (elem) {
    case 1:
      write_1(out, in, &c);
      break;
    case 4:
      write_4(out, in, &c);
      break;
    case 8:
      write_8(out, in, &c);
      break;
    default:
      write_16(out, in, &c);
  }
}

#define ADD_STRIDED(S, T)                                                  \
  TM_KERNEL static void add_row_##S(T *restrict out, const T *restrict in, \
                                    int64_t n) {                           \
    for (int64_t i = 0; i < n; i++) out[i] += in[i];                       \
  }                                                                        \
  void tm_k_add_strided_##S(T *out, const T *in, const tm_k_walk *w) {     \
    tm_k_walk c;                                                           \
    if (walk_compact(w, &c) == 0) return;                                  \
    int64_t at[TM_K_RANK] = {0}, off = 0, inner = c.dim[c.rank - 1];       \
    int64_t step = c.step[c.rank - 1];                                     \
    do {                                                                   \
      if (step == 1)                                                       \
        add_row_##S(out + off, in, inner);                                 \
      else                                                                 \
        for (int64_t i = 0; i < inner; i++) out[off + i * step] += in[i];  \
      in += inner;                                                         \
    } while (walk_next(&c, 1, at, &off));                                  \
  }

ADD_STRIDED(f32, float)
ADD_STRIDED(f64, double)

/* Rows of embeddings are short: known sizes make memcpy a few moves. */
TM_INLINE void copy_row(char *restrict to, const char *restrict from, size_t n) {
  if (n == 64)
    memcpy(to, from, 64);
  else if (n == 32)
    memcpy(to, from, 32);
  else
    memcpy(to, from, n);
}

void tm_k_put_columns(void *out, size_t pitch, const void *in, int64_t rows,
                      size_t bytes) {
  char *to = out;
  const char *from = in;
  for (int64_t r = 0; r < rows; r++, to += pitch, from += bytes)
    copy_row(to, from, bytes);
}

void tm_k_get_columns(void *out, const void *in, size_t pitch, int64_t rows,
                      size_t bytes) {
  char *to = out;
  const char *from = in;
  for (int64_t r = 0; r < rows; r++, to += bytes, from += pitch)
    copy_row(to, from, bytes);
}
