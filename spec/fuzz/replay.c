/*
 * replay.c - runs a fuzzer's entry without libFuzzer: on given files, and on changed
 * copies of them.  So `make test` tries every parser with plain gcc, the same way each
 * time.
 *
 *     replay TURNS FILE...        one TAP line
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LARGEST = 65536, SEEDS = 256 };

struct seed {
  uint8_t *data;
  size_t size;
};

static struct seed seeds[SEEDS];
static size_t nseeds;

static int load(const char *path) {
  static uint8_t bytes[LARGEST];
  FILE *f = fopen(path, "rb");
  if (!f || nseeds == SEEDS) return -1;
  struct seed *s = &seeds[nseeds++];
  s->size = fread(bytes, 1, sizeof bytes, f);
  s->data = malloc(s->size + 1);
  fclose(f);
  if (!s->data) return -1;
  memcpy(s->data, bytes, s->size);
  return 0;
}

/* A copy of exactly n bytes, so that a sanitizer sees a byte read too far. */
static void try_bytes(const uint8_t *data, size_t n) {
  uint8_t *copy = malloc(n + !n);
  if (!copy) return;
  if (n) memcpy(copy, data, n);
  LLVMFuzzerTestOneInput(copy, n);
  free(copy);
}

/* Change a few bytes, cut, repeat a piece, or splice another seed's end. */
static size_t change(tm_rng *r, uint8_t *p, size_t n) {
  uint64_t how = tm_rng_below(r, 6);
  size_t at = n ? (size_t)tm_rng_below(r, n) : 0;
  const struct seed *other = &seeds[tm_rng_below(r, nseeds)];
  if (how == 0) return at;
  if (how == 1) {
    size_t from = (size_t)tm_rng_below(r, other->size + 1);
    size_t len = other->size - from;
    if (len > LARGEST - at) len = LARGEST - at;
    if (len) memcpy(p + at, other->data + from, len);
    return at + len;
  }
  if (how == 2 && n > 0 && n < LARGEST) {
    memmove(p + at + 1, p + at, n - at);
    return n + 1;
  }
  static const uint8_t special[] = {0x00, 0xff, 0x7f, 0x80, 0xc1, 0xdb, 0xdd, 0xdf};
  for (uint64_t k = 1 + tm_rng_below(r, 4); k > 0 && n > 0; k--) {
    uint8_t v = (uint8_t)tm_rng_u32(r);
    p[tm_rng_below(r, n)] = how == 3 ? special[v % sizeof special] : v;
  }
  return n;
}

int main(int argc, char **argv) {
  static uint8_t bytes[LARGEST];
  long turns = argc > 1 ? atol(argv[1]) : 0;
  for (int i = 2; i < argc; i++)
    if (load(argv[i]) != 0) fprintf(stderr, "cannot read %s\n", argv[i]);
  if (nseeds == 0) nseeds = 1; /* one empty seed */

  for (size_t i = 0; i < nseeds; i++)
    for (size_t n = 0; n <= seeds[i].size; n += 1 + n / 256)
      try_bytes(seeds[i].data, n);
  tm_rng r;
  tm_rng_init(&r, 1, 1);
  for (long t = 0; t < turns; t++) {
    const struct seed *s = &seeds[tm_rng_below(&r, nseeds)];
    size_t n = s->size;
    if (n) memcpy(bytes, s->data, n);
    for (uint64_t k = 1 + tm_rng_below(&r, 3); k > 0; k--) n = change(&r, bytes, n);
    try_bytes(bytes, n);
  }
  for (size_t i = 0; i < nseeds; i++) free(seeds[i].data);
  printf("1..1\nok 1 - survives %zu seeds, their prefixes and %ld changed copies\n",
         nseeds, turns);
  return 0;
}
