/*
 * philox.h - Philox4x32-10 counter-based random numbers (Salmon et al., SC'11).
 *
 * A number depends only on (key, counter): the same on every machine, in any order
 * and sharding.  Element i of a stream comes from counter i/4, lane i%4.
 *
 * Threads: pure functions.
 */
#ifndef TM_BASE_PHILOX_H
#define TM_BASE_PHILOX_H

#include <stdint.h>

/* The four 32-bit words of block `counter` of the stream (key, stream). */
void tm_philox(uint64_t key, uint64_t stream, uint64_t counter, uint32_t out[4]);

/* A sequential reader, for shuffles and the like. */
typedef struct tm_rng {
  uint64_t key, stream, counter;
  uint32_t block[4];
  uint32_t used; /* words of block already given; 4 = none left */
} tm_rng;

void tm_rng_init(tm_rng *r, uint64_t key, uint64_t stream);
uint32_t tm_rng_u32(tm_rng *r);
uint64_t tm_rng_u64(tm_rng *r);
/* Uniform in 0..n-1, n > 0, without bias. */
uint64_t tm_rng_below(tm_rng *r, uint64_t n);

#endif
