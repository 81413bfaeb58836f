#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "kernel/gemm.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel/kernel.h"

/*
 * Design.  Three cases beside the general one: nothing to sum (zeros), one term to sum
 * (an outer product, which only writes), and one column or row (a matrix times a
 * vector).  Products of a few hundred terms are done here: a BLAS call alone costs as
 * much.  The lanes run along n, so each sum adds its terms in order.
 */
enum { SMALL = 512 };

/*
 * A processor that is newer than the OpenBLAS gets the loops of 2004 ("Prescott"),
 * which are 5 times slower than those it could run; OpenBLAS 0.3.21 of Debian 12 knows
 * no Intel Xeon after 2021.  Then the choice is made again by what the processor can
 * do.  It happens when the program is loaded, before anybody can be in OpenBLAS or
 * change the environment; a choice that the user made in OPENBLAS_CORETYPE stands.
 */
#if defined(__x86_64__)
#define CORETYPE "OPENBLAS_CORETYPE"

/* Absent where OpenBLAS was built for one processor. */
extern void gotoblas_dynamic_init(void) __attribute__((weak));
extern void gotoblas_dynamic_quit(void) __attribute__((weak));

static const char *gemm_best_core(void) {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell"
                                                                         : NULL;
}

__attribute__((constructor)) static void gemm_choose_core(void) {
  __builtin_cpu_init();
  const char *core = gemm_best_core();
  if (!core || getenv(CORETYPE) || strcmp(openblas_get_corename(), "Prescott") != 0)
    return;
  if (!gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  if (setenv(CORETYPE, core, 1)) return;
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
  unsetenv(CORETYPE);
}
#endif

/*
 * OpenBLAS maps a buffer of its own for each thread and, where memory is limited, asks
 * for it without end (0.3.21: blas_memory_alloc).  So a thread's first product asks
 * first; without room products are summed here, slowly and rightly.
 */
enum { BLAS_BUFFER = 160 << 20 };

static bool gemm_has_room(void) {
  static _Thread_local int known; /* 0: not asked yet, 1: yes, 2: no */
  if (known == 1) return true;
  void *p = mmap(NULL, BLAS_BUFFER, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  known = p == MAP_FAILED ? 2 : 1;
  if (known == 1) munmap(p, BLAS_BUFFER);
  return known == 1;
}

void tm_k_gemm_threads(int n) { openblas_set_num_threads(n < 1 ? 1 : n); }

#define GEMM(S, T, B)                                                                  \
  TM_KERNEL static void outer_##S(T *restrict out, const T *restrict a,                \
                                  const T *restrict b, const tm_k_gemm *g) {           \
    for (int64_t i = 0; i < g->m; i++, out += g->n)                                    \
      if (g->add)                                                                      \
        for (int64_t j = 0; j < g->n; j++) out[j] += a[i] * b[j];                      \
      else                                                                             \
        for (int64_t j = 0; j < g->n; j++) out[j] = a[i] * b[j];                       \
  }                                                                                    \
  static void small_##S(T *restrict out, const T *restrict a, const T *restrict b,     \
                        const tm_k_gemm *g) {                                          \
    int64_t ai = g->ta ? 1 : g->k, ak = g->ta ? g->m : 1;                              \
    int64_t bk = g->tb ? 1 : g->n, bj = g->tb ? g->k : 1;                              \
    for (int64_t i = 0; i < g->m; i++)                                                 \
      for (int64_t j = 0; j < g->n; j++) {                                             \
        T sum = 0;                                                                     \
        for (int64_t p = 0; p < g->k; p++)                                             \
          sum += a[i * ai + p * ak] * b[p * bk + j * bj];                              \
        out[i * g->n + j] = g->add ? out[i * g->n + j] + sum : sum;                    \
      }                                                                                \
  }                                                                                    \
  /* out (rows) = matrix times x; the matrix is (rows, cols), or (cols, rows) when t   \
   */                                                                                  \
  static void vector_##S(T *out, const T *matrix, const T *x, int64_t rows,            \
                         int64_t cols, bool t, bool add) {                             \
    int r = (int)(t ? cols : rows), c = (int)(t ? rows : cols);                        \
    cblas_##B##gemv(CblasRowMajor, t ? CblasTrans : CblasNoTrans, r, c, 1, matrix, c,  \
                    x, 1, add, out, 1);                                                \
  }                                                                                    \
  void tm_k_gemm_##S(T *out, const T *a, const T *b, const tm_k_gemm *g) {             \
    int64_t m = g->m, n = g->n, k = g->k;                                              \
    if (m == 0 || n == 0) return;                                                      \
    if (k == 0) {                                                                      \
      if (!g->add) memset(out, 0, (size_t)m *(size_t)n * sizeof *out);                 \
    } else if (k == 1) {                                                               \
      outer_##S(out, a, b, g);                                                         \
    } else if ((m * n <= SMALL && m * n * k <= SMALL) || !gemm_has_room()) {           \
      small_##S(out, a, b, g);                                                         \
    } else if (n == 1) {                                                               \
      vector_##S(out, a, b, m, k, g->ta, g->add);                                      \
    } else if (m == 1) {                                                               \
      vector_##S(out, b, a, n, k, !g->tb, g->add);                                     \
    } else {                                                                           \
      cblas_##B##gemm(CblasRowMajor, g->ta ? CblasTrans : CblasNoTrans,                \
                      g->tb ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, 1, a, \
                      (int)(g->ta ? m : k), b, (int)(g->tb ? k : n), g->add, out,      \
                      (int)n);                                                         \
    }                                                                                  \
  }

GEMM(f32, float, s)
GEMM(f64, double, d)
