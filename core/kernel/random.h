/*
 * random.h - random numbers indexed by element: element i of the stream (key, stream)
 * is the same number whoever draws it, on any machine, in any order and sharding.
 *
 * Each function fills o[0..n-1] with the elements first..first+n-1.
 *
 * A float32 takes one 32-bit word of tm_philox's stream, a float64 or an integer two;
 * normal numbers are made in pairs (2 k, 2 k + 1) by Box and Muller's method.
 *
 * Threads: pure functions.
 */
#ifndef TM_KERNEL_RANDOM_H
#define TM_KERNEL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Words first..first+n-1 of the stream; word i is lane i % 4 of block i / 4. */
void tm_k_random_words(uint32_t *o, size_t n, uint64_t key, uint64_t stream,
                       uint64_t first);

/* In [low, high). */
void tm_k_random_uniform_f32(float *o, size_t n, uint64_t key, uint64_t stream,
                             uint64_t first, float low, float high);
void tm_k_random_uniform_f64(double *o, size_t n, uint64_t key, uint64_t stream,
                             uint64_t first, double low, double high);
/* In low..low+range-1; range > 0. */
void tm_k_random_uniform_i64(int64_t *o, size_t n, uint64_t key, uint64_t stream,
                             uint64_t first, int64_t low, uint64_t range);
void tm_k_random_normal_f32(float *o, size_t n, uint64_t key, uint64_t stream,
                            uint64_t first, float mean, float stddev);
void tm_k_random_normal_f64(double *o, size_t n, uint64_t key, uint64_t stream,
                            uint64_t first, double mean, double stddev);
/* A normal distribution cut off at 2 standard deviations, by its inverse. */
void tm_k_random_truncated_f32(float *o, size_t n, uint64_t key, uint64_t stream,
                               uint64_t first, float mean, float stddev);
void tm_k_random_truncated_f64(double *o, size_t n, uint64_t key, uint64_t stream,
                               uint64_t first, double mean, double stddev);

#endif
