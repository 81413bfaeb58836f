/*
 * accum.h - add to and subtract from memory in place.  Integers wrap.
 *
 * Threads: pure functions on the caller's memory.
 */
#ifndef TM_KERNEL_ACCUM_H
#define TM_KERNEL_ACCUM_H

#include "kernel/kernel.h"

/* x[i] += y[i], x[i] -= y[i]; x and y do not overlap. */
#define X(S, T, U)                                     \
  void tm_k_accum_add_##S(T *x, const T *y, size_t n); \
  void tm_k_accum_sub_##S(T *x, const T *y, size_t n);
TM_K_NUMBERS(X)
#undef X

#endif
