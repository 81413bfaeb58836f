/* Text to numbers agrees with the C library and takes nothing else. */
#include "data/number.h"

#include <inttypes.h>
#include <math.h>

#include "base/philox.h"
#include "test.h"

static bool i64_is(const char *s, int64_t want) {
  int64_t v;
  return tm_text_i64(s, strlen(s), &v) && v == want;
}

static void integers_are_read_to_their_limits(void **state) {
  (void)state;
  int64_t v;
  assert_true(i64_is("0", 0));
  assert_true(i64_is("+12", 12));
  assert_true(i64_is("-007", -7));
  assert_true(i64_is("9223372036854775807", INT64_MAX));
  assert_true(i64_is("-9223372036854775808", INT64_MIN));
  const char *bad[] = {
      "",    "-",  "+", "9223372036854775808", "-9223372036854775809", "1.", "1e3",
      "0x1", " 1", "1 "};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    assert_false(tm_text_i64(bad[i], strlen(bad[i]), &v));
}

static void assert_number(const char *s) {
  double d = 0;
  float f = 0;
  assert_true(tm_text_f64(s, strlen(s), &d));
  assert_true(tm_text_f32(s, strlen(s), &f));
  double wd = strtod(s, NULL);
  float wf = strtof(s, NULL);
  if (memcmp(&d, &wd, sizeof d) != 0 && !(isnan(d) && isnan(wd)))
    fail_msg("%s: %.17g instead of %.17g", s, d, wd);
  if (memcmp(&f, &wf, sizeof f) != 0 && !(isnan(f) && isnan(wf)))
    fail_msg("%s: %.9g instead of %.9g", s, (double)f, (double)wf);
}

static void floats_are_rounded_as_strtod_does(void **state) {
  (void)state;
  const char *some[] = {"0",
                        "-0",
                        "1",
                        "0.1",
                        ".5",
                        "5.",
                        "1e5",
                        "1E-5",
                        "+2.5e+3",
                        "1e22",
                        "1e23",
                        "16777217",
                        "16777219",
                        "0.000001",
                        "123456789012345678901234567890",
                        "1e400",
                        "-1e-400",
                        "4.9e-324",
                        "2.2250738585072011e-308",
                        "1e999999999999",
                        "9007199254740993",
                        "0.30000000000000004",
                        "inf",
                        "-Infinity",
                        "NaN",
                        "1.17549435e-38",
                        "3.4028236e38",
                        "0.000000000000000000000000000000000012345678"};
  for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) assert_number(some[i]);
  tm_rng r;
  tm_rng_init(&r, 1, 2);
  for (int i = 0; i < 20000; i++) {
    char s[64];
    int digits = (int)tm_rng_below(&r, 20);
    snprintf(s, sizeof s, "%s%" PRIu64 ".%0*" PRIu64 "e%d", i % 3 ? "" : "-",
             tm_rng_below(&r, i % 2 ? 100 : 1000000000000ull), digits,
             tm_rng_below(&r, 1000000000), (int)tm_rng_below(&r, 80) - 40);
    assert_number(s);
    snprintf(s, sizeof s, "%.3f", (double)tm_rng_below(&r, 10000000) / 1000.0);
    assert_number(s);
  }
}

static void what_is_no_number_is_refused(void **state) {
  (void)state;
  const char *bad[] = {"",    ".",    "-",    "e5", "1e", "1e+", "0x10",  "1.2.3",
                       "1,5", "nana", "inff", " 1", "1 ", "--1", "1e5.0", "?"};
  double d;
  float f;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (tm_text_f64(bad[i], strlen(bad[i]), &d)) fail_msg("took \"%s\"", bad[i]);
    if (tm_text_f32(bad[i], strlen(bad[i]), &f)) fail_msg("took \"%s\"", bad[i]);
  }
}

static void truth_is_true_false_1_or_0(void **state) {
  (void)state;
  bool b = false;
  assert_true(tm_text_bool("TRUE", 4, &b) && b);
  assert_true(tm_text_bool("1", 1, &b) && b);
  assert_true(tm_text_bool("false", 5, &b) && !b);
  assert_true(tm_text_bool("0", 1, &b) && !b);
  assert_false(tm_text_bool("yes", 3, &b));
  assert_false(tm_text_bool("", 0, &b));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(integers_are_read_to_their_limits),
      cmocka_unit_test(floats_are_rounded_as_strtod_does),
      cmocka_unit_test(what_is_no_number_is_refused),
      cmocka_unit_test(truth_is_true_false_1_or_0),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
