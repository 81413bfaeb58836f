#include "kernel/accum.h"

#define X(S, T, U)                                                                  \
  TM_KERNEL void tm_k_accum_add_##S(T *restrict x, const T *restrict y, size_t n) { \
    for (size_t i = 0; i < n; i++) x[i] = (T)((U)x[i] + (U)y[i]);                   \
  }                                                                                 \
  TM_KERNEL void tm_k_accum_sub_##S(T *restrict x, const T *restrict y, size_t n) { \
    for (size_t i = 0; i < n; i++) x[i] = (T)((U)x[i] - (U)y[i]);                   \
  }
TM_K_NUMBERS(X)
#undef X
