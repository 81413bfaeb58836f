/* Initial values. */
#include <math.h>

#include "ps/init.h"
#include "test.h"

static void fill(const char *kind, double a, double b, int64_t first, tm_dtype t,
                 void *data, int64_t n) {
  tm_init in = {.a = a, .b = b, .seed = 42};
  tm_err err = {0};
  strcpy(in.kind, kind);
  tm_view v = {t, {1, {n}}, data};
  assert_ok_err(tm_init_fill(&in, first, &v, &err), &err);
}

static void any_sharding_gives_the_same_values(void **state) {
  (void)state;
  const char *kinds[] = {"uniform", "normal", "truncated_normal"};
  for (size_t k = 0; k < TM_COUNT(kinds); k++) {
    float whole[101], parts[101];
    fill(kinds[k], -1, 2, 0, TM_F32, whole, 101);
    fill(kinds[k], -1, 2, 0, TM_F32, parts, 33);
    fill(kinds[k], -1, 2, 33, TM_F32, parts + 33, 1);
    fill(kinds[k], -1, 2, 34, TM_F32, parts + 34, 67);
    assert_memory_equal(whole, parts, sizeof whole);
  }
}

static void moments(const double *x, int n, double *mean, double *std) {
  double s = 0, q = 0;
  for (int i = 0; i < n; i++) s += x[i];
  *mean = s / n;
  for (int i = 0; i < n; i++) q += (x[i] - *mean) * (x[i] - *mean);
  *std = sqrt(q / n);
}

static void numbers_have_the_moments_of_their_distribution(void **state) {
  (void)state;
  enum { MANY = 40000 };
  static double x[MANY];
  double mean, std;
  fill("normal", 3, 2, 0, TM_F64, x, MANY);
  moments(x, MANY, &mean, &std);
  assert_true(fabs(mean - 3) < 0.04 && fabs(std - 2) < 0.04);
  fill("uniform", -2, 4, 0, TM_F64, x, MANY);
  moments(x, MANY, &mean, &std);
  assert_true(fabs(mean - 1) < 0.04 && fabs(std - 6 / sqrt(12.0)) < 0.04);
  for (int i = 0; i < MANY; i++) assert_true(x[i] >= -2 && x[i] < 4);
  fill("truncated_normal", 0, 1, 0, TM_F64, x, MANY);
  moments(x, MANY, &mean, &std);
  for (int i = 0; i < MANY; i++) assert_true(fabs(x[i]) <= 2);
  assert_true(fabs(mean) < 0.02 && fabs(std - 0.87962566) < 0.02);
}

static void constants_fill_every_dtype(void **state) {
  (void)state;
  int64_t i64[3];
  uint8_t u8[3];
  float f32[3];
  fill("ones", 0, 0, 0, TM_I64, i64, 3);
  fill("constant", 7, 0, 0, TM_U8, u8, 3);
  fill("zeros", 0, 0, 0, TM_F32, f32, 3);
  assert_int_equal(i64[2], 1);
  assert_int_equal(u8[1], 7);
  assert_true(fabsf(f32[0]) < 1e-30f);
  fill("ones", 0, 0, 0, TM_BOOL, u8, 3);
  assert_int_equal(u8[2], 1);
}

static void mistakes_are_named(void **state) {
  (void)state;
  float x[2];
  tm_err err = {0};
  tm_view v = {TM_F32, {1, {2}}, x};
  tm_init in = {.kind = "glorot"};
  assert_int_equal(tm_init_fill(&in, 0, &v, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "glorot"));
  strcpy(in.kind, "value");
  assert_int_equal(tm_init_fill(&in, 0, &v, &err), TM_EINVAL);
  strcpy(in.kind, "normal");
  v.dtype = TM_I32;
  assert_int_equal(tm_init_fill(&in, 0, &v, &err), TM_EINVAL);
  v.dtype = TM_STRING;
  assert_int_equal(tm_init_fill(&in, 0, &v, &err), TM_EINVAL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(any_sharding_gives_the_same_values),
      cmocka_unit_test(numbers_have_the_moments_of_their_distribution),
      cmocka_unit_test(constants_fill_every_dtype),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
