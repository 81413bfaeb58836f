/*
 * stream.h - where a random op's numbers come from.
 *
 * A number depends on (key, stream, element).  With a seed: key = seed, stream =
 * number of the closure (random.* ops drop it: a seed is all they depend on; dropout
 * keeps it, for another mask each step).  Without: key = global seed, stream from the
 * op's place and the closure's number, so a closure that runs again repeats its
 * numbers.
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_STREAM_H
#define TM_GRAPH_STREAM_H

#include "base/map.h"
#include "graph/infer.h"

typedef struct tm_random_stream {
  uint64_t key, stream;
} tm_random_stream;

static inline tm_random_stream tm_random_stream_of(const tm_kctx *c,
                                                   int32_t seed_attr) {
  tm_random_stream s = {c->env->seed,
                        tm_mix64(c->place ^ tm_mix64(c->env->closure + 1))};
  if (tm_at_has(c->attrs, seed_attr)) {
    s.key = (uint64_t)tm_at_int(c->attrs, seed_attr);
    s.stream = c->env->closure;
  }
  return s;
}

#endif
