/*
 * gemm.h - matrix products: OpenBLAS, and plain loops where a call costs more.
 *
 *     tm_k_gemm_f32(out, a, b, &(tm_k_gemm){.m = 2, .n = 3, .k = 4, .tb = true});
 *
 * All matrices are dense and row-major.
 * Threads: any; OpenBLAS itself runs with the threads that tm_k_gemm_threads set.
 */
#ifndef TM_KERNEL_GEMM_H
#define TM_KERNEL_GEMM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tm_k_gemm {
  int64_t m, n, k; /* each < 2^31 */
  bool ta;         /* a is stored (k, m), not (m, k) */
  bool tb;         /* b is stored (n, k), not (k, n) */
  bool add;        /* to what is in out */
} tm_k_gemm;

/* out (m, n) = a (m, k) times b (k, n); zeros when k is 0.  With add it is added to
 * out. */
void tm_k_gemm_f32(float *out, const float *a, const float *b, const tm_k_gemm *g);
void tm_k_gemm_f64(double *out, const double *a, const double *b, const tm_k_gemm *g);

/* Threads of one product, in the whole process; called when a program starts. */
void tm_k_gemm_threads(int n);

#endif
