/*
 * strided.h - moving elements between a dense array and a strided one.
 *
 * Transpose, slice, reverse, broadcast, tile and pad are one loop: the dense side is
 * walked in order, the other side by a signed step an axis.
 *
 *     tm_k_walk w = {2, {3, 2}, {1, 3}};             -- transpose of (2, 3)
 *     tm_k_read_strided(out, in, &w, sizeof(float)); -- out (3, 2), dense
 *
 * Elements are moved as bytes: sizes 1, 4, 8 and 16 are known.
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_STRIDED_H
#define TM_KERNEL_STRIDED_H

#include <stddef.h>
#include <stdint.h>

enum { TM_K_RANK = 16 };

typedef struct tm_k_walk {
  int32_t rank;
  int64_t dim[TM_K_RANK];  /* of the dense side, >= 0 */
  int64_t step[TM_K_RANK]; /* of the other side, in elements; may be 0 or negative */
} tm_k_walk;

/* out[i] (dense) = in[sum of i_k * step_k]. */
void tm_k_read_strided(void *out, const void *in, const tm_k_walk *w, size_t elem);
/* out[sum of i_k * step_k] = in[i] (dense). */
void tm_k_write_strided(void *out, const void *in, const tm_k_walk *w, size_t elem);
/* out[sum of i_k * step_k] += in[i] (dense). */
void tm_k_add_strided_f32(float *out, const float *in, const tm_k_walk *w);
void tm_k_add_strided_f64(double *out, const double *in, const tm_k_walk *w);

/* out (outer rows of n * bytes, `pitch` bytes apart) from dense rows, and back. */
void tm_k_put_columns(void *out, size_t pitch, const void *in, int64_t rows,
                      size_t bytes);
void tm_k_get_columns(void *out, const void *in, size_t pitch, int64_t rows,
                      size_t bytes);

#endif
