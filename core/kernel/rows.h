/*
 * rows.h - rows of a table by id: making ids unique, summing and copying rows.
 *
 * The hot path of embeddings: a READ asks for each row once, and an UPDATE sends
 * the sum of a row's gradients once.
 *
 * Threads: pure functions on the caller's memory.
 */
#ifndef TM_KERNEL_ROWS_H
#define TM_KERNEL_ROWS_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of scratch that tm_k_unique_i64 needs for n ids. */
size_t tm_k_unique_scratch(int64_t n);

/* Distinct ids in order of first appearance: uniq[k] (room for n), first[k] = index of
 * its first occurrence, inv[i] = k for every i.  n < 2^31.  Returns their number. */
int64_t tm_k_unique_i64(int64_t *uniq, int32_t *first, int32_t *inv, const int64_t *ids,
                        int64_t n, void *scratch);

/* out (nu, width) = sums of rows (n, width) by inv, added in order of i. */
void tm_k_sum_rows_f32(float *out, const float *rows, const int32_t *first,
                       const int32_t *inv, int64_t n, int64_t width);
void tm_k_sum_rows_f64(double *out, const double *rows, const int32_t *first,
                       const int32_t *inv, int64_t n, int64_t width);

/* out (nout, width): row o is the sum of rows list[start[o]] .. list[start[o + 1] - 1],
 * in that order, times scale; an empty list gives zeros. */
void tm_k_sum_lists_f32(float *out, const float *rows, const int32_t *start,
                        const int32_t *list, int64_t nout, int64_t width, float scale);
void tm_k_sum_lists_f64(double *out, const double *rows, const int32_t *start,
                        const int32_t *list, int64_t nout, int64_t width, double scale);

/* out[i] = row ids[i] of params, rows of `bytes`. */
void tm_k_gather_rows(void *out, const void *params, const int64_t *ids, int64_t n,
                      size_t bytes);
/* Row ids[i] of out += row i of rows, in order of i; negative ids are passed over. */
void tm_k_add_rows_f32(float *out, const float *rows, const int64_t *ids, int64_t n,
                       int64_t width);
void tm_k_add_rows_f64(double *out, const double *rows, const int64_t *ids, int64_t n,
                       int64_t width);

#endif
