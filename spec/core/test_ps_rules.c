/* Update rules against tf-keras's legacy optimizers (dense) and a NumPy twin by rows:
 * spec/fixtures/optimizers.py. */
#include <math.h>

#include "kernel/rows.h"
#include "ps/rule.h"
#include "ps/store.h"
#include "test.h"

#include "../fixtures/optimizers.inc"

static void close_to(const char *what, const float *got, const float *want, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double tolerance = 2e-5 * fmax(1.0, fabs((double)want[i]));
    if (!(fabs((double)(got[i] - want[i])) <= tolerance))
      fail_msg("%s: element %zu is %.9g, not %.9g", what, i, (double)got[i],
               (double)want[i]);
  }
}

static tm_store *store_with(const float *x, const tm_shape *shape) {
  tm_store *s;
  tm_err err = {0};
  tm_view v = {TM_F32, *shape, (void *)(uintptr_t)x};
  tm_tensor *t;
  assert_ok(tm_tensor_copy(&v, &t, &err));
  assert_ok(tm_store_new("/job:ps/task:0", &s));
  tm_shard_spec sp = {.uid = 1, .dtype = TM_F32, .shape = *shape, .full_shape = *shape};
  strcpy(sp.init.kind, "value");
  sp.init.value = t;
  assert_ok_err(tm_store_create(s, &sp, &err), &err);
  tm_tensor_unref(t);
  return s;
}

static void handle(tm_store *s, const tm_ps_update *up, tm_ps_read *rd) {
  tm_ps_request rq = {.nup = up ? 1 : 0, .up = up, .nrd = rd ? 1 : 0, .rd = rd};
  assert_ok_err(tm_store_handle(s, &rq), &rq.err);
}

static void dense_steps_are_those_of_tf_keras(void **state) {
  (void)state;
  tm_shape shape = tm_shape_of(1, (const int64_t[]){N});
  for (size_t c = 0; c < TM_COUNT(dense_cases); c++) {
    tm_store *s = store_with(x0, &shape);
    for (int64_t t = 0; t < STEPS; t++) {
      tm_ps_update up = {.kind = TM_PS_APPLY,
                         .uid = 1,
                         .rule = dense_cases[c].rule,
                         .optimizer = 5,
                         .nhyper = dense_cases[c].nhyper,
                         .t = t + 1};
      memcpy(up.hyper, dense_cases[c].hyper, sizeof up.hyper);
      up.value = (tm_view){TM_F32, shape, (void *)(uintptr_t)(grads + t * N)};
      handle(s, &up, NULL);
    }
    float x[N];
    tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1, .dst = {TM_F32, shape, x}};
    handle(s, NULL, &rd);
    close_to(dense_cases[c].name, x, dense_cases[c].x, N);
    tm_store_free(s);
  }
}

static void float64_rules_agree_with_float32(void **state) {
  (void)state;
  for (size_t c = 0; c < TM_COUNT(dense_cases); c++) {
    const tm_rule *rule = tm_rule_find(dense_cases[c].rule);
    const char *name[TM_RULE_MAX_SLOTS];
    double start[TM_RULE_MAX_SLOTS], x[N], g[N], slot[TM_RULE_MAX_SLOTS][N];
    double *slots[TM_RULE_MAX_SLOTS];
    int32_t n = rule->slots(dense_cases[c].hyper, name, start);
    for (int i = 0; i < N; i++) x[i] = (double)x0[i];
    for (int32_t k = 0; k < n; k++) {
      slots[k] = slot[k];
      for (int i = 0; i < N; i++) slot[k][i] = start[k];
    }
    for (int64_t t = 0; t < STEPS; t++) {
      for (int i = 0; i < N; i++) g[i] = (double)grads[t * N + i];
      rule->apply_f64(x, g, slots, N, dense_cases[c].hyper, t + 1);
    }
    float got[N];
    for (int i = 0; i < N; i++) got[i] = (float)x[i];
    close_to(dense_cases[c].name, got, dense_cases[c].x, N);
  }
}

static void by_rows_repeated_ids_are_summed_and_other_rows_stay(void **state) {
  (void)state;
  tm_shape shape = tm_shape_of(2, (const int64_t[]){ROWS, WIDTH});
  for (size_t c = 0; c < TM_COUNT(row_cases); c++) {
    tm_store *s = store_with(table0, &shape);
    for (int64_t t = 0; t < ROW_STEPS; t++) {
      int64_t uniq[IDS];
      int32_t first[IDS], inv[IDS];
      float sum[IDS * WIDTH];
      uint64_t scratch[1024];
      assert_true(tm_k_unique_scratch(IDS) <= sizeof scratch);
      int64_t nu = tm_k_unique_i64(uniq, first, inv, row_ids + t * IDS, IDS, scratch);
      tm_k_sum_rows_f32(sum, row_grads + t * IDS * WIDTH, first, inv, IDS, WIDTH);
      tm_ps_update up = {.kind = TM_PS_APPLY_ROWS,
                         .uid = 1,
                         .rule = row_cases[c].rule,
                         .optimizer = 5,
                         .nhyper = row_cases[c].nhyper,
                         .t = t + 1};
      memcpy(up.hyper, row_cases[c].hyper, sizeof up.hyper);
      up.value = (tm_view){TM_F32, {2, {nu, WIDTH}}, sum};
      up.ids = (tm_view){TM_I64, {1, {nu}}, uniq};
      handle(s, &up, NULL);
    }
    float x[ROWS * WIDTH];
    tm_ps_read rd = {.kind = TM_PS_DENSE, .uid = 1, .dst = {TM_F32, shape, x}};
    handle(s, NULL, &rd);
    close_to(row_cases[c].rule, x, row_cases[c].x, ROWS * WIDTH);
    assert_memory_equal(x + (ROWS - 1) * WIDTH, table0 + (ROWS - 1) * WIDTH,
                        WIDTH * sizeof(float));
    tm_store_free(s);
  }
}

static void an_unknown_rule_is_not_found(void **state) {
  (void)state;
  assert_null(tm_rule_find("sgdd"));
  assert_null(tm_rule_find(""));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(dense_steps_are_those_of_tf_keras),
      cmocka_unit_test(float64_rules_agree_with_float32),
      cmocka_unit_test(by_rows_repeated_ids_are_summed_and_other_rows_stay),
      cmocka_unit_test(an_unknown_rule_is_not_found),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
