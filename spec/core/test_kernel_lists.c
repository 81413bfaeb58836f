/* Sums of listed rows against the plain loop, at widths around the block size. */
#include <math.h>

#include "kernel/rows.h"
#include "test.h"

enum { ROWS = 5, OUTS = 7, MOST = 600 };

static void listed_rows_sum_as_a_plain_loop_does(void **state) {
  (void)state;
  static float rows[ROWS * MOST], out[OUTS * MOST];
  /* 0 to 11 rows each, repeated ones too */
  static const int32_t start[OUTS + 1] = {0, 0, 1, 3, 6, 10, 15, 26};
  int32_t list[26];
  for (int i = 0; i < 26; i++) list[i] = i * 7 % ROWS;
  for (int i = 0; i < ROWS * MOST; i++) rows[i] = (float)(i * 37 % 101) / 8;
  static const int widths[] = {0, 1, 3, 16, 255, 256, 257, 512, 600};
  for (size_t w = 0; w < TM_COUNT(widths); w++) {
    int width = widths[w];
    tm_k_sum_lists_f32(out, rows, start, list, OUTS, width, 0.5F);
    for (int o = 0; o < OUTS; o++)
      for (int c = 0; c < width; c++) {
        float sum = 0;
        for (int k = start[o]; k < start[o + 1]; k++) sum += rows[list[k] * width + c];
        assert_true(out[o * width + c] == sum * 0.5F);
      }
  }
}

static void float64_does_the_same(void **state) {
  (void)state;
  static const int32_t start[] = {0, 2, 7}, list[] = {0, 1, 1, 1, 0, 0, 1};
  const double rows[] = {1, 2, 10, 20};
  double out[4];
  tm_k_sum_lists_f64(out, rows, start, list, 2, 2, 1);
  assert_true(out[0] == 11 && out[1] == 22 && out[2] == 32 && out[3] == 64);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(listed_rows_sum_as_a_plain_loop_does),
      cmocka_unit_test(float64_does_the_same),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
