/* Variables of one worker: built late, told to who uses them, dropped at any time. */
#include "base/mem.h"
#include "cluster/locals.h"
#include "test.h"

typedef struct bench {
  tm_catalog *catalog;
  tm_vars *v;
  tm_locals *l;
} bench;

static const tm_run_env env = {.worker = 0, .threads = 1};

static tm_status bench_open(bench *b) {
  memset(b, 0, sizeof *b);
  TM_TRY(tm_catalog_new(&b->catalog));
  TM_TRY(tm_vars_new(b->catalog, NULL, 0, NULL, &b->v));
  return tm_locals_new(b->v, "/job:worker/task:0", &b->l);
}

static void bench_close(bench *b) {
  tm_vars_free(b->v);
  tm_locals_free(b->l);
  tm_catalog_unref(b->catalog);
}

static tm_status scalar_info(uint64_t uid, tm_dtype t, tm_var_info **out) {
  tm_shape s = tm_shape_scalar();
  TM_TRY(tm_var_info_new(uid, t, &s, "mine", true, 1, out));
  (*out)->shard[0] = (tm_shard_info){-1, 0, 1};
  return TM_OK;
}

/* n constants 10, 11, ... of int64. */
static tm_status constants(int32_t n, tm_graph **out) {
  tm_ref ref[8];
  tm_graph *g;
  TM_TRY(tm_graph_new("first", &g));
  tm_status s = TM_OK;
  for (int32_t i = 0; i < n && s == TM_OK; i++) {
    tm_tensor *t;
    s = tm_tensor_i64(10 + i, &t);
    if (s) break;
    ref[i].out = 0;
    s = tm_graph_add_const(g, t, &ref[i].node);
    tm_tensor_unref(t);
  }
  if (s == TM_OK) s = tm_graph_finish(g, ref, n);
  if (s) {
    tm_graph_unref(g);
    return s;
  }
  *out = g;
  return TM_OK;
}

/* Group `group` of variables uid and uid + 1, one of which may have a wrong type. */
static tm_status add(bench *b, uint64_t group, uint64_t uid, tm_dtype second) {
  tm_var_info *v[2] = {NULL, NULL};
  tm_graph *g = NULL;
  tm_status s = scalar_info(uid, TM_I64, &v[0]);
  if (s == TM_OK) s = scalar_info(uid + 1, second, &v[1]);
  if (s == TM_OK) s = constants(2, &g);
  if (s == TM_OK) s = tm_locals_add(b->l, group, v, 2, g);
  tm_graph_unref(g);
  for (int i = 0; i < 2; i++) tm_var_info_unref(v[i]);
  return s;
}

static tm_status read_one(bench *b, uint64_t uid, int64_t *out, tm_err *err) {
  tm_read rd = {.kind = TM_READ_DENSE, .uid = uid, .shard = -1};
  TM_TRY(b->v->state.exchange(&b->v->state, NULL, 0, &rd, 1, err));
  *out = tm_view_get_i64(&rd.out->v, 0);
  tm_tensor_unref(rd.out);
  return TM_OK;
}

static void a_group_is_built_before_the_next_closure(void **state) {
  (void)state;
  bench b;
  int64_t x = 0;
  tm_err err = {0};
  assert_ok(bench_open(&b));
  assert_ok(add(&b, 1, 100, TM_I64));
  assert_int_equal(read_one(&b, 100, &x, &err), TM_ENOTFOUND);
  tm_locals_build(b.l, &env);
  assert_ok_err(read_one(&b, 100, &x, &err), &err);
  assert_int_equal(x, 10);
  assert_ok_err(read_one(&b, 101, &x, &err), &err);
  assert_int_equal(x, 11);
  assert_int_equal(b.v->count.reads, 0); /* nothing went to a ps */
  assert_true(tm_locals_drop(b.l, 1));
  assert_false(tm_locals_drop(b.l, 1));
  assert_int_equal(read_one(&b, 100, &x, &err), TM_ENOTFOUND);
  bench_close(&b);
  assert_int_equal(tm_mem_live(), 0);
}

static void a_group_dropped_while_it_waits_is_never_built(void **state) {
  (void)state;
  bench b;
  int64_t x;
  tm_err err = {0};
  assert_ok(bench_open(&b));
  assert_ok(add(&b, 1, 100, TM_I64));
  assert_ok(add(&b, 2, 200, TM_I64));
  assert_true(tm_locals_drop(b.l, 1));
  tm_locals_build(b.l, &env);
  assert_int_equal(read_one(&b, 100, &x, &err), TM_ENOTFOUND);
  assert_ok(read_one(&b, 200, &x, &err));
  bench_close(&b);
  assert_int_equal(tm_mem_live(), 0);
}

static void nothing_is_built_after_stop(void **state) {
  (void)state;
  bench b;
  int64_t x;
  tm_err err = {0};
  assert_ok(bench_open(&b));
  assert_ok(add(&b, 1, 100, TM_I64));
  tm_locals_stop(b.l);
  tm_locals_build(b.l, &env);
  assert_int_equal(read_one(&b, 100, &x, &err), TM_ENOTFOUND);
  bench_close(&b);
}

static void groups_that_do_not_fit_their_graph_are_refused(void **state) {
  (void)state;
  bench b;
  tm_graph *g;
  tm_var_info *v;
  assert_ok(bench_open(&b));
  assert_ok(constants(2, &g));
  assert_ok(scalar_info(1, TM_I64, &v));
  assert_int_equal(tm_locals_add(b.l, 1, &v, 1, g), TM_EINVAL);
  tm_var_info_unref(v);
  tm_graph_unref(g);
  bench_close(&b);
}

static tm_status everything(void *ud) {
  bench b;
  int64_t x;
  tm_err err = {0};
  (void)ud;
  tm_status s = bench_open(&b);
  if (s == TM_OK) s = add(&b, 1, 100, TM_I64);
  if (s == TM_OK) {
    tm_locals_build(b.l, &env);
    s = read_one(&b, 101, &x, &err);
    if (s == TM_ENOTFOUND) s = TM_ENOMEM; /* that was why it was not built */
  }
  if (b.v)
    bench_close(&b);
  else
    tm_catalog_unref(b.catalog);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(everything, NULL) > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_group_is_built_before_the_next_closure),
      cmocka_unit_test(a_group_dropped_while_it_waits_is_never_built),
      cmocka_unit_test(nothing_is_built_after_stop),
      cmocka_unit_test(groups_that_do_not_fit_their_graph_are_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  if (tm_ops_init(NULL)) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
