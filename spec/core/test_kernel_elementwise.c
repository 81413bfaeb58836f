#include <math.h>

#include "kernel/elementwise.h"
#include "kernel/vmath.h"
#include "test.h"

/*
 * Every elementwise kernel against a plain loop, at every length 0..300, for arrays and
 * single numbers, into a fresh array and in place.
 */
enum { MOST = 300 };

#define RING 23
static const double values[RING] = {0,   1,     -1,    2.5, -2.5, 3,   7,   -7,
                                    100, 0.125, -0.75, 1e3, -4,   255, 128, 17,
                                    -33, 0.001, 2e9,   -65, 41,   5,   -6};

/* One numeric type: arrays, a reference loop for each op, the comparison. */
#define TYPE(S, T, K, IS_INT)                                                          \
  static T a_##S[MOST + 1], b_##S[MOST + 1], o_##S[MOST + 1], want_##S[MOST + 1];      \
  static void fill_##S(bool positive, bool small) {                                    \
    for (int i = 0; i <= MOST; i++) {                                                  \
      double x = values[i % RING], y = values[(i * 7 + 3) % RING];                     \
      if (sizeof(T) == 1 || positive) x = fabs(x), y = fabs(y);                        \
      if (small) y = fmod(fabs(y), 5);                                                 \
      if (sizeof(T) == 1) x = fmod(x, 256), y = fmod(y, 256);                          \
      a_##S[i] = (T)x;                                                                 \
      b_##S[i] = (T)y;                                                                 \
      if (b_##S[i] == 0 && !small) b_##S[i] = 3;                                       \
    }                                                                                  \
  }                                                                                    \
  static void check_##S(const char *name, size_t n, const void *o) {                   \
    if (n && memcmp(o, want_##S, n * sizeof(T)) != 0)                                  \
      fail_msg("%s_%s differs at length %zu", name, #S, n);                            \
  }                                                                                    \
  static void binary_##S(const char *name, tm_k_binary *f, T (*ref)(T, T)) {           \
    for (size_t n = 0; n <= MOST; n++) {                                               \
      for (int m = TM_K_VV; m <= TM_K_SV; m++) {                                       \
        for (size_t i = 0; i < n; i++)                                                 \
          want_##S[i] = ref(a_##S[m == TM_K_SV ? 0 : i], b_##S[m == TM_K_VS ? 0 : i]); \
        o_##S[n] = 77;                                                                 \
        f(o_##S, a_##S, b_##S, n, (tm_k_mode)m);                                       \
        check_##S(name, n, o_##S);                                                     \
        assert_true(o_##S[n] == 77);                                                   \
        memcpy(o_##S, m == TM_K_SV ? b_##S : a_##S, sizeof o_##S);                     \
        if (m == TM_K_SV)                                                              \
          f(o_##S, a_##S, o_##S, n, TM_K_SV);                                          \
        else                                                                           \
          f(o_##S, o_##S, b_##S, n, (tm_k_mode)m);                                     \
        check_##S(name, n, o_##S);                                                     \
      }                                                                                \
    }                                                                                  \
  }                                                                                    \
  static void unary_##S(const char *name, tm_k_unary *f, T (*ref)(T)) {                \
    for (size_t n = 0; n <= MOST; n++) {                                               \
      for (size_t i = 0; i < n; i++) want_##S[i] = ref(a_##S[i]);                      \
      f(o_##S, a_##S, n);                                                              \
      check_##S(name, n, o_##S);                                                       \
      memcpy(o_##S, a_##S, sizeof o_##S);                                              \
      f(o_##S, o_##S, n);                                                              \
      check_##S(name, n, o_##S);                                                       \
    }                                                                                  \
  }                                                                                    \
  static void compare_##S(const char *name, tm_k_binary *f, bool (*ref)(T, T)) {       \
    uint8_t o[MOST + 1];                                                               \
    for (size_t n = 0; n <= MOST; n++)                                                 \
      for (int m = TM_K_VV; m <= TM_K_SV; m++) {                                       \
        f(o, a_##S, b_##S, n, (tm_k_mode)m);                                           \
        for (size_t i = 0; i < n; i++)                                                 \
          if (o[i] != ref(a_##S[m == TM_K_SV ? 0 : i], b_##S[m == TM_K_VS ? 0 : i]))   \
            fail_msg("%s_%s differs at length %zu", name, #S, n);                      \
      }                                                                                \
  }                                                                                    \
  static bool ref_equal_##S(T x, T y) { return x == y; }                               \
  static bool ref_not_equal_##S(T x, T y) { return x != y; }                           \
  static bool ref_less_##S(T x, T y) { return x < y; }                                 \
  static bool ref_less_equal_##S(T x, T y) { return x <= y; }                          \
  static T ref_min_##S(T x, T y) { return y < x ? y : x; }                             \
  static T ref_max_##S(T x, T y) { return y > x ? y : x; }                             \
  static void comparisons_##S(void) {                                                  \
    fill_##S(false, true);                                                             \
    compare_##S("equal", tm_k_equal[K], ref_equal_##S);                                \
    compare_##S("not_equal", tm_k_not_equal[K], ref_not_equal_##S);                    \
    compare_##S("less", tm_k_less[K], ref_less_##S);                                   \
    compare_##S("less_equal", tm_k_less_equal[K], ref_less_equal_##S);                 \
    binary_##S("minimum", tm_k_minimum[K], ref_min_##S);                               \
    binary_##S("maximum", tm_k_maximum[K], ref_max_##S);                               \
  }
TYPE(f32, float, TM_K_F32, 0)
TYPE(f64, double, TM_K_F64, 0)
TYPE(i32, int32_t, TM_K_I32, 1)
TYPE(i64, int64_t, TM_K_I64, 1)
TYPE(u8, uint8_t, TM_K_U8, 1)

#define FLOAT_REFS(S, T, F)                                         \
  static T ref_add_##S(T x, T y) { return x + y; }                  \
  static T ref_sub_##S(T x, T y) { return x - y; }                  \
  static T ref_mul_##S(T x, T y) { return x * y; }                  \
  static T ref_div_##S(T x, T y) { return x / y; }                  \
  static T ref_floordiv_##S(T x, T y) { return F(floor)(x / y); }   \
  static T ref_mod_##S(T x, T y) {                                  \
    T m = F(fmod)(x, y);                                            \
    if (m == 0) return F(copysign)(0, y);                           \
    return (m < 0) != (y < 0) ? m + y : m;                          \
  }                                                                 \
  static T ref_neg_##S(T x) { return -x; }                          \
  static T ref_abs_##S(T x) { return F(fabs)(x); }                  \
  static T ref_sign_##S(T x) { return x > 0 ? 1 : x < 0 ? -1 : x; } \
  static T ref_square_##S(T x) { return x * x; }                    \
  static T ref_sqrt_##S(T x) { return F(sqrt)(x); }                 \
  static T ref_rsqrt_##S(T x) { return 1 / F(sqrt)(x); }            \
  static T ref_reciprocal_##S(T x) { return 1 / x; }                \
  static T ref_floor_##S(T x) { return F(floor)(x); }               \
  static T ref_ceil_##S(T x) { return F(ceil)(x); }                 \
  static T ref_round_##S(T x) { return F(rint)(x); }
#define SINGLE(fn) fn##f
#define DOUBLE(fn) fn
FLOAT_REFS(f32, float, SINGLE)
FLOAT_REFS(f64, double, DOUBLE)

#define INT_REFS(S, T, U)                                                         \
  static T ref_add_##S(T x, T y) { return (T)((U)x + (U)y); }                     \
  static T ref_sub_##S(T x, T y) { return (T)((U)x - (U)y); }                     \
  static T ref_mul_##S(T x, T y) { return (T)((U)x * (U)y); }                     \
  static T ref_floordiv_##S(T x, T y) { return (T)floor((double)x / (double)y); } \
  static T ref_mod_##S(T x, T y) {                                                \
    return (T)((double)x - floor((double)x / (double)y) * (double)y);             \
  }                                                                               \
  static T ref_pow_##S(T x, T y) {                                                \
    U r = 1;                                                                      \
    for (T i = 0; i < y; i++) r = (U)(r * (U)x);                                  \
    return (T)r;                                                                  \
  }                                                                               \
  static T ref_neg_##S(T x) { return (T)(0 - (U)x); }                             \
  static T ref_abs_##S(T x) { return (double)x < 0 ? (T)(0 - (U)x) : x; }         \
  static T ref_sign_##S(T x) { return (T)(((double)x > 0) - ((double)x < 0)); }   \
  static T ref_square_##S(T x) { return (T)((U)x * (U)x); }
INT_REFS(i32, int32_t, uint32_t)
INT_REFS(i64, int64_t, uint64_t)
INT_REFS(u8, uint8_t, uint8_t)

#define B(n, S, K) binary_##S(#n, tm_k_##n[K], ref_##n##_##S);
#define U(n, S, K) unary_##S(#n, tm_k_##n[K], ref_##n##_##S);
#define COMMON(S, K) \
  B(add, S, K)       \
  B(sub, S, K)       \
  B(mul, S, K)       \
  B(floordiv, S, K) B(mod, S, K) U(neg, S, K) U(abs, S, K) U(sign, S, K) U(square, S, K)
#define FLOATS(S, K)                                                              \
  fill_##S(false, false);                                                         \
  COMMON(S, K)                                                                    \
  B(div, S, K) U(floor, S, K) U(ceil, S, K) U(round, S, K) fill_##S(true, false); \
  U(sqrt, S, K) U(rsqrt, S, K) U(reciprocal, S, K)
#define INTS(S, K)        \
  fill_##S(false, false); \
  COMMON(S, K)            \
  fill_##S(false, true);  \
  B(pow, S, K)

static void arithmetic_is_that_of_a_plain_loop(void **state) {
  (void)state;
  FLOATS(f32, TM_K_F32)
  FLOATS(f64, TM_K_F64)
  INTS(i32, TM_K_I32)
  INTS(i64, TM_K_I64)
  INTS(u8, TM_K_U8)
}

static void comparisons_are_those_of_a_plain_loop(void **state) {
  (void)state;
  comparisons_f32();
  comparisons_f64();
  comparisons_i32();
  comparisons_i64();
  comparisons_u8();
}

static void integers_wrap_and_division_rounds_down(void **state) {
  (void)state;
  int32_t a[] = {INT32_MAX, INT32_MIN, -7, 7}, b[] = {1, -1, 2, -2}, o[4];
  tm_k_add[TM_K_I32](o, a, b, 4, TM_K_VV);
  assert_int_equal(o[0], INT32_MIN);
  tm_k_floordiv[TM_K_I32](o, a, b, 4, TM_K_VV);
  assert_int_equal(o[1], INT32_MIN); /* wraps */
  assert_int_equal(o[2], -4);
  assert_int_equal(o[3], -4);
  tm_k_mod[TM_K_I32](o, a, b, 4, TM_K_VV);
  assert_int_equal(o[1], 0);
  assert_int_equal(o[2], 1);
  assert_int_equal(o[3], -1);
}

static void extremes_pass_nan_on(void **state) {
  (void)state;
  float a[] = {NAN, 1, NAN}, b[] = {1, NAN, NAN}, o[3];
  tm_k_minimum[TM_K_F32](o, a, b, 3, TM_K_VV);
  for (int i = 0; i < 3; i++) assert_true(isnan(o[i]));
  tm_k_maximum[TM_K_F32](o, a, b, 3, TM_K_VV);
  for (int i = 0; i < 3; i++) assert_true(isnan(o[i]));
}

static void casts_cut_clamp_and_wrap(void **state) {
  (void)state;
  float x[] = {NAN, INFINITY, -INFINITY, 2.9F, -2.9F, 3e9F, 300, -1};
  int32_t i32[8];
  int64_t i64[8];
  uint8_t u8[8], b[8];
  tm_k_cast(i32, TM_K_I32, x, TM_K_F32, 8);
  const int32_t want32[] = {0, INT32_MAX, INT32_MIN, 2, -2, INT32_MAX, 300, -1};
  assert_memory_equal(i32, want32, sizeof i32);
  tm_k_cast(i64, TM_K_I64, x, TM_K_F32, 8);
  const int64_t want64[] = {0, INT64_MAX, INT64_MIN, 2, -2, 3000000000, 300, -1};
  assert_memory_equal(i64, want64, sizeof i64);
  tm_k_cast(u8, TM_K_U8, x, TM_K_F32, 8);
  const uint8_t want8[] = {0, 255, 0, 2, 0, 255, 255, 0};
  assert_memory_equal(u8, want8, sizeof u8);
  tm_k_cast(u8, TM_K_U8, i32, TM_K_I32, 8); /* wraps */
  assert_int_equal(u8[6], 300 - 256);
  tm_k_cast(b, TM_K_TYPES, x, TM_K_F32, 8);
  const uint8_t wantb[] = {1, 1, 1, 1, 1, 1, 1, 1};
  assert_memory_equal(b, wantb, sizeof b);
}

/* --- transcendental functions --- */

#define X(f) extern float Sleef_cinz_##f##f1_u10purec(float);
TM_VMATH_MAP(X)
#undef X

static void vmath_one(const char *name, void (*f)(float *, const float *, size_t),
                      void (*f64)(double *, const double *, size_t),
                      float (*plain)(float), double (*libm)(double), bool positive) {
  float x[MOST], all[MOST], o[MOST + 1];
  double x64[MOST], o64[MOST];
  for (int i = 0; i < MOST; i++) {
    x[i] = (float)(i - (positive ? -1 : MOST / 2)) * 0.037F;
    x64[i] = (double)x[i];
  }
  f(all, x, MOST);
  f64(o64, x64, MOST);
  for (int i = 0; i < MOST; i++) {
    float one = plain(x[i]);
    if (memcmp(&one, &all[i], sizeof one) != 0)
      fail_msg("%s(%g) is not SLEEF's plain one", name, (double)x[i]);
    double want = libm((double)x[i]), near = 1.2e-7 * fabs(want) + 1e-30;
    if (fabs((double)all[i] - want) > near ||
        fabs(o64[i] - want) > 1e-15 * fabs(want) + 1e-300)
      fail_msg("%s(%g) = %.9g, not %.9g", name, (double)x[i], (double)all[i], want);
  }
  for (size_t n = 0; n <= MOST; n++) {
    o[n] = 5;
    memcpy(o, x, n * sizeof *o);
    f(o, o, n);
    if (n && memcmp(o, all, n * sizeof *o) != 0)
      fail_msg("%s differs at length %zu", name, n);
    assert_true(o[n] == 5.0F);
  }
}

static void vector_functions_are_exact_and_the_same_everywhere(void **state) {
  (void)state;
#define ONE(f, positive)                                                        \
  vmath_one(#f, tm_k_##f##_f32, tm_k_##f##_f64, Sleef_cinz_##f##f1_u10purec, f, \
            positive);
  ONE(exp, false)
  ONE(expm1, false)
  ONE(log, true)
  ONE(log1p, true)
  ONE(sin, false)
  ONE(cos, false)
  ONE(tan, false)
  ONE(sinh, false)
  ONE(cosh, false)
  ONE(tanh, false)
  ONE(erf, false)
#undef ONE
}

static void sigmoid_and_softplus_do_not_overflow(void **state) {
  (void)state;
  float x[] = {-200, -1, 0, 1, 200, NAN}, o[6];
  tm_k_sigmoid_f32(o, x, 6);
  assert_true(o[0] == 0.0F && o[2] == 0.5F && o[4] == 1.0F && isnan(o[5]));
  assert_true(fabs((double)o[1] - 0.26894142136999512) < 3e-8);
  tm_k_softplus_f32(o, x, 6);
  assert_true(o[0] == 0.0F && o[4] == 200.0F && isnan(o[5]));
  assert_true(fabs((double)o[2] - 0.69314718055994531) < 6e-8);
}

static void powers_of_floats_match_pow(void **state) {
  (void)state;
  double a[300], b[300], o[300];
  for (int i = 0; i < 300; i++) {
    a[i] = 0.1 + i * 0.05;
    b[i] = (i % 13) - 6;
  }
  for (int m = TM_K_VV; m <= TM_K_SV; m++) {
    tm_k_pow[TM_K_F64](o, a, b, 300, (tm_k_mode)m);
    for (int i = 0; i < 300; i++) {
      double want = pow(a[m == TM_K_SV ? 0 : i], b[m == TM_K_VS ? 0 : i]);
      assert_true(fabs(o[i] - want) <= 1e-14 * want);
    }
  }
}

static void where_takes_each_element_from_its_side(void **state) {
  (void)state;
  uint8_t c[MOST];
  int64_t a[MOST], b[MOST], o[MOST];
  for (int i = 0; i < MOST; i++) {
    c[i] = i % 3 == 0;
    a[i] = i;
    b[i] = -i - 1;
  }
  for (size_t n = 0; n < MOST; n++)
    for (int bits = 0; bits < 8; bits++) {
      tm_k_steps s = {bits & 1, bits >> 1 & 1, bits >> 2 & 1};
      tm_k_where(o, c, a, b, n, sizeof *o, s);
      for (size_t i = 0; i < n; i++)
        assert_int_equal(o[i], c[s.c ? i : 0] ? a[s.a ? i : 0] : b[s.b ? i : 0]);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arithmetic_is_that_of_a_plain_loop),
      cmocka_unit_test(comparisons_are_those_of_a_plain_loop),
      cmocka_unit_test(integers_wrap_and_division_rounds_down),
      cmocka_unit_test(extremes_pass_nan_on),
      cmocka_unit_test(casts_cut_clamp_and_wrap),
      cmocka_unit_test(vector_functions_are_exact_and_the_same_everywhere),
      cmocka_unit_test(sigmoid_and_softplus_do_not_overflow),
      cmocka_unit_test(powers_of_floats_match_pow),
      cmocka_unit_test(where_takes_each_element_from_its_side),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
