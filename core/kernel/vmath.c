#include "kernel/vmath.h"

#include <stdatomic.h>
#include <string.h>

#include "kernel/kernel.h"

/*
 * Design.  SLEEF has each function for each vector width under its own name; the
 * "cinz" ones agree bit for bit.  A row of pointers a function, one driver a width,
 * and one question to the machine, asked once.  An incomplete last vector is padded
 * with ones, at which every function is defined.
 */

#if defined(__x86_64__)

typedef float v4f __attribute__((vector_size(16)));
typedef float v8f __attribute__((vector_size(32)));
typedef float v16f __attribute__((vector_size(64)));
typedef double v2d __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef double v8d __attribute__((vector_size(64)));

enum { ISA_UNKNOWN, ISA_SSE2, ISA_AVX, ISA_AVX512 };

static int vmath_isa(void) {
  static atomic_int known;
  int isa = atomic_load_explicit(&known, memory_order_relaxed);
  if (isa == ISA_UNKNOWN) {
    __builtin_cpu_init();
    isa = __builtin_cpu_supports("avx512f") ? ISA_AVX512
          : __builtin_cpu_supports("avx")   ? ISA_AVX
                                            : ISA_SSE2;
    atomic_store_explicit(&known, isa, memory_order_relaxed);
  }
  return isa;
}

struct vmath_f32 {
  v16f (*w16)(v16f);
  v8f (*w8)(v8f);
  v4f (*w4)(v4f);
};
struct vmath_f64 {
  v8d (*w16)(v8d);
  v4d (*w8)(v4d);
  v2d (*w4)(v2d);
};
struct vmath2_f32 {
  v16f (*w16)(v16f, v16f);
  v8f (*w8)(v8f, v8f);
  v4f (*w4)(v4f, v4f);
};
struct vmath2_f64 {
  v8d (*w16)(v8d, v8d);
  v4d (*w8)(v4d, v4d);
  v2d (*w4)(v2d, v2d);
};

/* One driver a width.  S: suffix, T: element, V: vector, W: pointer in the row. */
#define DRIVER(S, T, V, W, TARGET)                                            \
  TARGET static void vmath_##S##_##W(T *o, const T *x, size_t n,              \
                                     const struct vmath_##S *f) {             \
    enum { WIDTH = sizeof(V) / sizeof(T) };                                   \
    size_t i = 0;                                                             \
    V v;                                                                      \
    for (; i + WIDTH <= n; i += WIDTH) {                                      \
      memcpy(&v, x + i, sizeof v);                                            \
      v = f->W(v);                                                            \
      memcpy(o + i, &v, sizeof v);                                            \
    }                                                                         \
    if (i == n) return;                                                       \
    for (size_t l = 0; l < WIDTH; l++) v[l] = 1;                              \
    memcpy(&v, x + i, (n - i) * sizeof(T));                                   \
    v = f->W(v);                                                              \
    memcpy(o + i, &v, (n - i) * sizeof(T));                                   \
  }                                                                           \
  TARGET static void vmath2_##S##_##W(T *o, const T *a, const T *b, size_t n, \
                                      const struct vmath2_##S *f) {           \
    enum { WIDTH = sizeof(V) / sizeof(T) };                                   \
    size_t i = 0;                                                             \
    V v, w;                                                                   \
    for (; i + WIDTH <= n; i += WIDTH) {                                      \
      memcpy(&v, a + i, sizeof v);                                            \
      memcpy(&w, b + i, sizeof w);                                            \
      v = f->W(v, w);                                                         \
      memcpy(o + i, &v, sizeof v);                                            \
    }                                                                         \
    if (i == n) return;                                                       \
    for (size_t l = 0; l < WIDTH; l++) v[l] = w[l] = 1;                       \
    memcpy(&v, a + i, (n - i) * sizeof(T));                                   \
    memcpy(&w, b + i, (n - i) * sizeof(T));                                   \
    v = f->W(v, w);                                                           \
    memcpy(o + i, &v, (n - i) * sizeof(T));                                   \
  }

#define ON_AVX512 __attribute__((target("avx512f")))
#define ON_AVX    __attribute__((target("avx")))
DRIVER(f32, float, v16f, w16, ON_AVX512)
DRIVER(f32, float, v8f, w8, ON_AVX)
DRIVER(f32, float, v4f, w4, )
DRIVER(f64, double, v8d, w16, ON_AVX512)
DRIVER(f64, double, v4d, w8, ON_AVX)
DRIVER(f64, double, v2d, w4, )

#define PICK(DRV, ...)        \
  switch (vmath_isa()) {      \
    case ISA_AVX512:          \
      DRV##_w16(__VA_ARGS__); \
      break;                  \
    case ISA_AVX:             \
      DRV##_w8(__VA_ARGS__);  \
      break;                  \
    default:                  \
      DRV##_w4(__VA_ARGS__);  \
  }

#define SLEEF(f, w, isa) Sleef_cinz_##f##w##_u10##isa
#define X(f)                                                               \
  extern v16f SLEEF(f, f16, avx512fnofma)(v16f);                           \
  extern v8f SLEEF(f, f8, avx)(v8f);                                       \
  extern v4f SLEEF(f, f4, sse2)(v4f);                                      \
  extern v8d SLEEF(f, d8, avx512fnofma)(v8d);                              \
  extern v4d SLEEF(f, d4, avx)(v4d);                                       \
  extern v2d SLEEF(f, d2, sse2)(v2d);                                      \
  static const struct vmath_f32 vmath_##f##_f32 = {                        \
      SLEEF(f, f16, avx512fnofma), SLEEF(f, f8, avx), SLEEF(f, f4, sse2)}; \
  static const struct vmath_f64 vmath_##f##_f64 = {                        \
      SLEEF(f, d8, avx512fnofma), SLEEF(f, d4, avx), SLEEF(f, d2, sse2)};  \
  void tm_k_##f##_f32(float *o, const float *x, size_t n) {                \
    PICK(vmath_f32, o, x, n, &vmath_##f##_f32)                             \
  }                                                                        \
  void tm_k_##f##_f64(double *o, const double *x, size_t n) {              \
    PICK(vmath_f64, o, x, n, &vmath_##f##_f64)                             \
  }
TM_VMATH_MAP(X)
#undef X

extern v16f SLEEF(pow, f16, avx512fnofma)(v16f, v16f);
extern v8f SLEEF(pow, f8, avx)(v8f, v8f);
extern v4f SLEEF(pow, f4, sse2)(v4f, v4f);
extern v8d SLEEF(pow, d8, avx512fnofma)(v8d, v8d);
extern v4d SLEEF(pow, d4, avx)(v4d, v4d);
extern v2d SLEEF(pow, d2, sse2)(v2d, v2d);

void tm_k_pow_f32(float *o, const float *a, const float *b, size_t n) {
  static const struct vmath2_f32 f = {SLEEF(pow, f16, avx512fnofma),
                                      SLEEF(pow, f8, avx), SLEEF(pow, f4, sse2)};
  PICK(vmath2_f32, o, a, b, n, &f)
}

void tm_k_pow_f64(double *o, const double *a, const double *b, size_t n) {
  static const struct vmath2_f64 f = {SLEEF(pow, d8, avx512fnofma), SLEEF(pow, d4, avx),
                                      SLEEF(pow, d2, sse2)};
  PICK(vmath2_f64, o, a, b, n, &f)
}

#else /* other machines: SLEEF's plain C, the same bits */

#define X(f)                                                                 \
  extern float Sleef_cinz_##f##f1_u10purec(float);                           \
  extern double Sleef_cinz_##f##d1_u10purec(double);                         \
  void tm_k_##f##_f32(float *o, const float *x, size_t n) {                  \
    for (size_t i = 0; i < n; i++) o[i] = Sleef_cinz_##f##f1_u10purec(x[i]); \
  }                                                                          \
  void tm_k_##f##_f64(double *o, const double *x, size_t n) {                \
    for (size_t i = 0; i < n; i++) o[i] = Sleef_cinz_##f##d1_u10purec(x[i]); \
  }
TM_VMATH_MAP(X)
#undef X

extern float Sleef_cinz_powf1_u10purec(float, float);
extern double Sleef_cinz_powd1_u10purec(double, double);

void tm_k_pow_f32(float *o, const float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = Sleef_cinz_powf1_u10purec(a[i], b[i]);
}

void tm_k_pow_f64(double *o, const double *a, const double *b, size_t n) {
  for (size_t i = 0; i < n; i++) o[i] = Sleef_cinz_powd1_u10purec(a[i], b[i]);
}

#endif

/* --- composed functions: exp of -|x| by blocks that stay in the first cache --- */

enum { BLOCK = 512 };

#define COMPOSED(S, T, ABS)                                                         \
  TM_KERNEL static void vmath_neg_abs_##S(T *restrict e, const T *restrict x,       \
                                          size_t n) {                               \
    for (size_t i = 0; i < n; i++) e[i] = -ABS(x[i]);                               \
  }                                                                                 \
  TM_KERNEL static void vmath_sigmoid_##S(T *o, const T *x, const T *restrict e,    \
                                          size_t n) {                               \
    TM_IVDEP                                                                        \
    for (size_t i = 0; i < n; i++) o[i] = (x[i] < 0 ? e[i] : (T)1) / ((T)1 + e[i]); \
  }                                                                                 \
  TM_KERNEL static void vmath_add_max0_##S(T *o, const T *x, const T *restrict e,   \
                                           size_t n) {                              \
    TM_IVDEP                                                                        \
    for (size_t i = 0; i < n; i++) o[i] = (x[i] < 0 ? (T)0 : x[i]) + e[i];          \
  }                                                                                 \
  void tm_k_sigmoid_##S(T *o, const T *x, size_t n) {                               \
    T e[BLOCK];                                                                     \
    for (size_t i = 0; i < n; i += BLOCK) {                                         \
      size_t m = n - i < BLOCK ? n - i : BLOCK;                                     \
      vmath_neg_abs_##S(e, x + i, m);                                               \
      tm_k_exp_##S(e, e, m);                                                        \
      vmath_sigmoid_##S(o + i, x + i, e, m);                                        \
    }                                                                               \
  }                                                                                 \
  void tm_k_softplus_##S(T *o, const T *x, size_t n) {                              \
    T e[BLOCK];                                                                     \
    for (size_t i = 0; i < n; i += BLOCK) {                                         \
      size_t m = n - i < BLOCK ? n - i : BLOCK;                                     \
      vmath_neg_abs_##S(e, x + i, m);                                               \
      tm_k_exp_##S(e, e, m);                                                        \
      tm_k_log1p_##S(e, e, m);                                                      \
      vmath_add_max0_##S(o + i, x + i, e, m);                                       \
    }                                                                               \
  }

COMPOSED(f32, float, fabsf)
COMPOSED(f64, double, fabs)
