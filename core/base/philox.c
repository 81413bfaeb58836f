#include "base/philox.h"

#include "base/check.h"

/*
 * Philox4x32-10 of Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3" (SC'11), with their constants.  The 128-bit counter is (counter,
 * stream), low word first.
 */
enum { PHILOX_ROUNDS = 10 };

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u /* golden ratio */
#define PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */

void tm_philox(uint64_t key, uint64_t stream, uint64_t counter, uint32_t out[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = (uint32_t)counter, c1 = (uint32_t)(counter >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  for (int i = 0; i < PHILOX_ROUNDS; i++) {
    uint64_t a = (uint64_t)PHILOX_M0 * c0, b = (uint64_t)PHILOX_M1 * c2;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b;
    c3 = (uint32_t)a;
    k0 += PHILOX_W0;
    k1 += PHILOX_W1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

void tm_rng_init(tm_rng *r, uint64_t key, uint64_t stream) {
  *r = (tm_rng){.key = key, .stream = stream, .used = 4};
}

uint32_t tm_rng_u32(tm_rng *r) {
  if (r->used == 4) {
    tm_philox(r->key, r->stream, r->counter++, r->block);
    r->used = 0;
  }
  return r->block[r->used++];
}

uint64_t tm_rng_u64(tm_rng *r) {
  uint64_t low = tm_rng_u32(r);
  return low | ((uint64_t)tm_rng_u32(r) << 32);
}

/* Lemire's method: the high half of a 128-bit product, thrown again in the few
 * cases that would favour some results. */
uint64_t tm_rng_below(tm_rng *r, uint64_t n) {
  TM_DCHECK(n > 0);
  uint64_t reject = (0 - n) % n;
  for (;;) {
    unsigned __int128 m = (unsigned __int128)tm_rng_u64(r) * n;
    if ((uint64_t)m >= reject) return (uint64_t)(m >> 64);
  }
}
