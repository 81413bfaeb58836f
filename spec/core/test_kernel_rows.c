/* Kernels of rows, strides, softmax and products against plain loops. */
#include <math.h>

#include "kernel/act.h"
#include "kernel/gemm.h"
#include "kernel/rows.h"
#include "kernel/segment.h"
#include "kernel/softmax.h"
#include "kernel/strided.h"
#include "test.h"

static uint64_t seed = 88172645463325252;
static uint64_t draw(uint64_t n) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed % n;
}
static double number(void) { return (double)draw(2001) / 500 - 2; }

static void near(double got, double want, double tol, const char *what, int64_t n) {
  if (!(fabs(got - want) <= tol * fmax(1, fabs(want))))
    fail_msg("%s, n = %d: %.9g, not %.9g", what, (int)n, got, want);
}

/* --- strided --- */

static int64_t place(const tm_k_walk *w, int64_t i) {
  int64_t at = 0;
  for (int32_t k = w->rank - 1; k >= 0; k--) {
    at += i % w->dim[k] * w->step[k];
    i /= w->dim[k];
  }
  return at;
}

enum { AREA = 200000, MIDDLE = 100000 };

/* A walk of random sizes and steps; *n is its number of elements. */
static tm_k_walk random_walk(int64_t *n) {
  tm_k_walk w = {.rank = (int32_t)draw(5)};
  int64_t dense = 1;
  *n = 1;
  for (int32_t k = w.rank - 1; k >= 0; k--) {
    w.dim[k] = (int64_t)draw(k == 0 ? 40 : 7);
    w.step[k] = draw(2) ? dense : (int64_t)draw(41) - 20;
    dense *= w.dim[k];
    *n *= w.dim[k];
  }
  return w;
}

static void strided_reads_go_where_the_walk_says(void **state) {
  (void)state;
  static const size_t sizes[] = {1, 4, 8, 16};
  char *in = malloc(AREA * 16), *out = malloc(AREA * 16);
  for (size_t i = 0; i < AREA * 16; i++) in[i] = (char)draw(256);
  for (int round = 0; round < 2000; round++) {
    int64_t n;
    tm_k_walk w = random_walk(&n);
    size_t elem = sizes[draw(4)];
    const char *from = in + MIDDLE * elem;
    if (n > 60000) continue;
    tm_k_read_strided(out, from, &w, elem);
    for (int64_t i = 0; i < n; i++)
      assert_memory_equal(out + (size_t)i * elem, from + place(&w, i) * (int64_t)elem,
                          elem);
  }
  free(in);
  free(out);
}

static void strided_writes_undo_reads(void **state) {
  (void)state;
  float *in = malloc(AREA * sizeof *in), *out = malloc(AREA * sizeof *out);
  for (int64_t a = 0; a < 40; a++)
    for (int64_t b = 1; b < 40; b += 7) {
      tm_k_walk w = {2, {a, b}, {1, a}};
      for (int64_t i = 0; i < a * b; i++) in[i] = (float)number();
      tm_k_read_strided(out, in, &w, sizeof *in);
      tm_k_write_strided(out + a * b, out, &w, sizeof *in);
      if (a) assert_memory_equal(out + a * b, in, (size_t)(a * b) * sizeof *in);
    }
  free(in);
  free(out);
}

/* --- rows --- */

static void unique_finds_each_id_once(void **state) {
  (void)state;
  enum { MOST = 300 };
  int64_t ids[MOST], uniq[MOST];
  int32_t first[MOST], inv[MOST];
  void *scratch = malloc(tm_k_unique_scratch(MOST));
  for (int64_t n = 0; n <= MOST; n++) {
    for (int64_t i = 0; i < n; i++) ids[i] = (int64_t)draw(50) - 25;
    int64_t count = tm_k_unique_i64(uniq, first, inv, ids, n, scratch), seen = 0;
    for (int64_t i = 0; i < n; i++) {
      assert_int_equal(uniq[inv[i]], ids[i]);
      if (inv[i] == seen) assert_int_equal(first[seen++], i);
    }
    assert_int_equal(seen, count);
    for (int64_t i = 0; i < count; i++)
      for (int64_t k = 0; k < i; k++) assert_int_not_equal(uniq[i], uniq[k]);
  }
  free(scratch);
}

static void rows_are_summed_by_id(void **state) {
  (void)state;
  enum { N = 40, MOST = 70 };
  static float rows[N * MOST], out[N * MOST], added[N * MOST];
  int64_t ids[N], uniq[N];
  int32_t first[N], inv[N];
  char scratch[2048];
  assert_true(tm_k_unique_scratch(N) <= sizeof scratch);
  for (int64_t width = 0; width <= MOST; width++) {
    for (int64_t i = 0; i < N; i++) ids[i] = (int64_t)draw(9);
    for (int64_t i = 0; i < N * width; i++) rows[i] = (float)number();
    int64_t count = tm_k_unique_i64(uniq, first, inv, ids, N, scratch);
    tm_k_sum_rows_f32(out, rows, first, inv, N, width);
    memset(added, 0, sizeof added);
    tm_k_add_rows_f32(added, rows, ids, N, width);
    for (int64_t k = 0; k < count; k++)
      for (int64_t j = 0; j < width; j++) {
        double want = 0;
        for (int64_t i = 0; i < N; i++)
          if (ids[i] == uniq[k]) want += (double)rows[i * width + j];
        near((double)out[k * width + j], want, 1e-5, "sum_rows", width);
        near((double)added[uniq[k] * width + j], want, 1e-5, "add_rows", width);
      }
  }
}

static void segments_count_and_divide(void **state) {
  (void)state;
  int64_t seg[] = {1, -1, 1, 0}, count[3];
  double sum[] = {6, 6, 6};
  tm_k_segment_count(count, seg, 4, 3);
  assert_int_equal(count[0], 1);
  assert_int_equal(count[1], 2);
  assert_int_equal(count[2], 0);
  tm_k_segment_divide_f64(sum, count, 3, 1);
  near(sum[0], 6, 0, "mean", 1);
  near(sum[1], 3, 0, "mean", 2);
  near(sum[2], 6, 0, "mean", 0);
}

/* --- softmax --- */

static void softmax_of_every_length(void **state) {
  (void)state;
  enum { ROWS = 7, MOST = 300 };
  static float x[ROWS * MOST], z[ROWS * MOST], o[ROWS * MOST], loss[ROWS], sparse[ROWS];
  int64_t label[ROWS];
  for (int64_t n = 1; n <= MOST; n++) {
    for (int64_t i = 0; i < ROWS * n; i++) x[i] = (float)number() * 4;
    for (int64_t i = 0; i < ROWS * n; i++) z[i] = (float)draw(10) / 10;
    for (int64_t r = 0; r < ROWS; r++) label[r] = (int64_t)draw((uint64_t)n);
    tm_k_softmax_f32(o, x, ROWS, n);
    tm_k_softmax_xent_f32(loss, z, x, ROWS, n);
    tm_k_sparse_xent_f32(sparse, label, x, ROWS, n);
    for (int64_t r = 0; r < ROWS; r++) {
      double sum = 0, want = 0;
      for (int64_t i = 0; i < n; i++) sum += exp((double)x[r * n + i]);
      for (int64_t i = 0; i < n; i++) {
        double p = exp((double)x[r * n + i]) / sum;
        near((double)o[r * n + i], p, 2e-6, "softmax", n);
        want -= (double)z[r * n + i] * log(p);
      }
      near((double)loss[r], want, 2e-5, "cross entropy", n);
      near((double)sparse[r], log(sum) - (double)x[r * n + label[r]], 1e-5, "sparse",
           n);
    }
  }
}

static void an_output_may_be_the_input(void **state) {
  (void)state;
  static float x[3 * 300], y[3 * 300];
  for (int64_t n = 1; n <= 300; n += 13) {
    for (int64_t i = 0; i < 3 * n; i++) x[i] = (float)number();
    tm_k_log_softmax_f32(y, x, 3, n);
    tm_k_log_softmax_f32(x, x, 3, n);
    assert_memory_equal(x, y, (size_t)(3 * n) * sizeof *x);
    for (int k = 0; k <= TM_K_ACT_SOFTSIGN; k++) {
      tm_k_act[k].f32(y, x, (size_t)(3 * n), 1);
      tm_k_act[k].f32(x, x, (size_t)(3 * n), 1);
      assert_memory_equal(x, y, (size_t)(3 * n) * sizeof *x);
    }
  }
}

/* --- products --- */

static void products_of_small_matrices(void **state) {
  (void)state;
  enum { MOST = 20 };
  static double a[MOST * MOST], b[MOST * MOST], o[MOST * MOST];
  for (int round = 0; round < 3000; round++) {
    tm_k_gemm g = {(int64_t)draw(MOST), (int64_t)draw(MOST), (int64_t)draw(MOST),
                   draw(2) == 1,        draw(2) == 1,        false};
    for (int64_t i = 0; i < MOST * MOST; i++) {
      a[i] = number();
      b[i] = number();
      o[i] = (double)NAN;
    }
    tm_k_gemm_f64(o, a, b, &g);
    for (int64_t i = 0; i < g.m; i++)
      for (int64_t j = 0; j < g.n; j++) {
        double want = 0;
        for (int64_t p = 0; p < g.k; p++)
          want +=
              a[g.ta ? p * g.m + i : i * g.k + p] * b[g.tb ? j * g.k + p : p * g.n + j];
        near(o[i * g.n + j], want, 1e-12, "gemm", g.k);
      }
  }
}

static void a_bias_goes_along_the_rows(void **state) {
  (void)state;
  static float x[5 * 600], bias[600], o[5 * 600], sum[600];
  for (int64_t n = 0; n <= 600; n += n < 40 ? 1 : 37) {
    for (int64_t i = 0; i < 5 * n; i++) x[i] = (float)number();
    for (int64_t i = 0; i < n; i++) bias[i] = (float)number();
    tm_k_bias_add_f32(o, x, bias, 5, n);
    tm_k_sum_columns_f32(sum, x, 5, n);
    for (int64_t i = 0; i < n; i++) {
      double want = 0;
      for (int64_t r = 0; r < 5; r++) {
        assert_true(o[r * n + i] == x[r * n + i] + bias[i]);
        want += (double)x[r * n + i];
      }
      near((double)sum[i], want, 1e-6, "columns", n);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(strided_reads_go_where_the_walk_says),
      cmocka_unit_test(strided_writes_undo_reads),
      cmocka_unit_test(unique_finds_each_id_once),
      cmocka_unit_test(rows_are_summed_by_id),
      cmocka_unit_test(segments_count_and_divide),
      cmocka_unit_test(softmax_of_every_length),
      cmocka_unit_test(an_output_may_be_the_input),
      cmocka_unit_test(products_of_small_matrices),
      cmocka_unit_test(a_bias_goes_along_the_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
