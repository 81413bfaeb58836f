/*
 * dropout.h - keeping some elements.  Threads: pure functions.
 */
#ifndef TM_KERNEL_DROPOUT_H
#define TM_KERNEL_DROPOUT_H

#include <stddef.h>
#include <stdint.h>

/* mask[i] = element i of the stream, uniform in [0, 1), is not below rate. */
void tm_k_keep_mask(uint8_t *mask, size_t n, uint64_t key, uint64_t stream,
                    double rate);
/* o[i] = mask[i] ? x[i] * scale : 0; o may be x. */
void tm_k_masked_f32(float *o, const float *x, const uint8_t *mask, size_t n,
                     float scale);
void tm_k_masked_f64(double *o, const double *x, const uint8_t *mask, size_t n,
                     double scale);

#endif
