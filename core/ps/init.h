/*
 * init.h - how a shard starts: by name, so that no values travel; numbers are drawn by
 * global element index, so any sharding gives the same values.
 *
 * Kinds: "zeros", "ones", "constant"(a), "uniform"(a = lo, b = hi),
 * "normal"(a = mean, b = stddev), "truncated_normal"(a, b; redrawn beyond 2 stddev),
 * "value" (the tensor is the shard's content).
 */
#ifndef TM_PS_INIT_H
#define TM_PS_INIT_H

#include "tensor/tensor.h"

typedef struct tm_init {
  char kind[24];
  double a, b;
  uint64_t seed;
  tm_tensor *value; /* "value": borrowed */
} tm_init;

/* Fill dst, whose first element is global element `first` of the variable. */
TM_CHECKED tm_status tm_init_fill(const tm_init *in, int64_t first, tm_view *dst,
                                  tm_err *err);

#endif
