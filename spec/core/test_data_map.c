/* map, filter and shard run graphs; prefetch runs everything on a thread. */
#include "base/clock.h"
#include "datasets.h"
#include "graph_help.h"

/* A graph traced from one op: f(args...) = op(arg 0, c) or so, by a builder. */
typedef tm_value *(*build_fn)(tm_scope *sc, tm_value **arg);

static tm_value *apply(tm_scope *sc, const char *op, tm_value *a, tm_value *b) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  tm_value *in[] = {a, b};
  assert_ok_err(tm_apply(sc, tm_op_find(op), in,
                         b   ? 2
                         : a ? 1
                             : 0,
                         NULL, out, &n, &err),
                &err);
  return out[0];
}

static tm_value *number(int64_t x) {
  tm_tensor *t;
  tm_value *v;
  assert_ok(tm_tensor_i64(x, &t));
  assert_ok(tm_value_of_tensor(t, &v));
  tm_tensor_unref(t);
  return v;
}

static tm_graph *traced(const tm_dataset *ds, build_fn build) {
  tm_scope *sc;
  tm_trace *tr;
  tm_graph *g;
  tm_value *arg[8];
  tm_err err = {0};
  int32_t n = ds ? tm_dataset_width(ds) : 0;
  assert_ok(tm_scope_new(&sc));
  assert_ok_err(tm_trace_begin(sc, "f", &tr, &err), &err);
  for (int32_t i = 0; i < n; i++)
    assert_ok_err(tm_trace_arg(tr, &tm_dataset_types(ds)[i], &arg[i], &err), &err);
  tm_value *out = build(sc, arg);
  assert_ok_err(tm_trace_end(sc, tr, &out, 1, &g, &err), &err);
  tm_value_unref(out);
  for (int32_t i = 0; i < n; i++) tm_value_unref(arg[i]);
  tm_trace_unref(tr);
  tm_scope_free(sc);
  return g;
}

static tm_dataset *mapped(tm_dataset *ds, build_fn build) {
  tm_graph *g = traced(ds, build);
  CHAIN(ds, tm_data_map, g);
  tm_graph_unref(g);
  return ds;
}

static tm_value *binary(tm_scope *sc, const char *op, tm_value *a, int64_t x) {
  tm_value *c = number(x), *out = apply(sc, op, a, c);
  tm_value_unref(c);
  return out;
}

static tm_value *times_ten(tm_scope *sc, tm_value **arg) {
  return binary(sc, "mul", arg[0], 10);
}
static tm_value *below_three(tm_scope *sc, tm_value **arg) {
  return binary(sc, "less", arg[0], 3);
}
static tm_value *twelve_over(tm_scope *sc, tm_value **arg) {
  tm_value *c = number(3), *x = apply(sc, "equal", arg[0], c);
  tm_value *ok = apply(sc, "logical_not", x, NULL);
  tm_attrs attrs;
  memset(&attrs, 0, sizeof attrs);
  const tm_op *op = tm_op_find("assert_true");
  attrs.n = tm_op_sig(op)->nattr;
  assert_ok(tm_attr_set_str(&attrs.a[tm_op_attr_index(op, "message")], "three", 5));
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  assert_ok_err(tm_apply(sc, op, &ok, 1, &attrs, out, &n, &err), &err);
  for (int32_t i = 0; i < n; i++) tm_value_unref(out[i]);
  tm_attrs_release(&attrs);
  tm_value_unref(ok);
  tm_value_unref(x);
  tm_value_unref(c);
  return tm_value_ref(arg[0]);
}
static tm_value *worker(tm_scope *sc, tm_value **arg) {
  (void)arg;
  return apply(sc, "worker_index", NULL, NULL);
}

static void map_runs_its_graph_for_each_element(void **state) {
  (void)state;
  tm_dataset *ds = mapped(range_of(4), times_ten);
  assert_int_equal(tm_dataset_cardinality(ds), 4);
  assert_int_equal(tm_dataset_types(ds)->dtype, TM_I64);
  assert_values(ds, 0, 10, 20, 30);
  CHAIN(ds, tm_data_shuffle, 4, true, 1, true);
  CHAIN(ds, tm_data_batch, 4, true);
  ds = mapped(ds, times_ten);
  int64_t got[4], sum = 0;
  assert_int_equal(values(ds, got, 4), 4);
  for (int i = 0; i < 4; i++) sum += got[i];
  assert_int_equal(sum, 600);
  tm_dataset_unref(ds);
}

static void filter_keeps_what_is_true(void **state) {
  (void)state;
  tm_dataset *ds = range_of(10);
  tm_graph *g = traced(ds, below_three), *not_bool = traced(ds, times_ten);
  tm_dataset *out;
  assert_int_equal(tm_data_filter(ds, not_bool, &out, NULL), TM_EINVAL);
  CHAIN(ds, tm_data_filter, g);
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_UNKNOWN);
  assert_values(ds, 0, 1, 2);
  CHAIN(ds, tm_data_rep, 2);
  assert_values(ds, 0, 1, 2, 0, 1, 2);
  tm_dataset_unref(ds);
  tm_graph_unref(g);
  tm_graph_unref(not_bool);
}

static void a_function_of_other_arguments_is_refused(void **state) {
  (void)state;
  tm_dataset *ds = range_of(3), *batch, *out;
  tm_graph *g = traced(ds, times_ten);
  tm_err err = {0};
  assert_ok(tm_data_batch(ds, 2, false, &batch, NULL));
  assert_int_equal(tm_data_map(batch, g, &out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "argument 1"));
  tm_dataset *two[] = {ds, ds}, *zip;
  assert_ok(tm_data_zip(two, 2, &zip, NULL));
  assert_int_equal(tm_data_map(zip, g, &out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "takes 1 tensors, elements have 2"));
  tm_dataset_unref(zip);
  tm_dataset_unref(batch);
  tm_dataset_unref(ds);
  tm_graph_unref(g);
}

static void an_error_belongs_to_one_element(void **state) {
  (void)state;
  for (int prefetch = 0; prefetch < 2; prefetch++) {
    tm_dataset *ds = mapped(range_of(6), twelve_over);
    if (prefetch) CHAIN(ds, tm_data_prefetch, 2);
    tm_iter *it = iterate(ds, &test_env);
    tm_dataset_unref(ds);
    int64_t got[6];
    tm_tensor *t;
    for (int i = 0; i < 3; i++) {
      assert_ok(tm_iter_next(it, &t, NULL));
      tm_tensor_unref(t);
    }
    assert_next_fails(it, TM_EINVAL, "three", "");
    assert_int_equal(drain(it, got, 6), 2);
    assert_int_equal(got[0], 4);
    assert_next_fails(it, TM_ERANGE, "ended", "");
    tm_iter_free(it);
  }
}

static void a_shard_index_may_be_computed(void **state) {
  (void)state;
  tm_graph *g = traced(NULL, worker);
  tm_dataset *ds = range_of(6);
  CHAIN(ds, tm_data_shard, 3, 0, g);
  tm_graph_unref(g);
  assert_int_equal(tm_dataset_cardinality(ds), 2);
  for (int64_t w = 0; w < 3; w++) {
    tm_iter_env env = {w, 3, 0, 0, NULL};
    int64_t got[6];
    assert_int_equal(values_env(ds, &env, got, 6), 2);
    assert_int_equal(got[0], w);
  }
  tm_iter_env env = {5, 6, 0, 0, NULL};
  tm_iter *it;
  tm_err err = {0};
  assert_int_equal(tm_dataset_iterate(ds, &env, &it, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "index 5 is not in 0..2"));
  tm_dataset_unref(ds);
}

/* --- codec with graphs --- */
static void graphs_travel_with_the_description(void **state) {
  (void)state;
  tm_dataset *ds = range_of(5), *back;
  tm_graph *g = traced(ds, below_three), *w = traced(NULL, worker);
  tm_err err = {0};
  CHAIN(ds, tm_data_filter, g);
  ds = mapped(ds, times_ten);
  CHAIN(ds, tm_data_shard, 2, 0, w);
  tm_buf b = TM_BUF_INIT(1 << 20);
  assert_ok_err(tm_dataset_pack(ds, &b, &err), &err);
  assert_ok_err(tm_dataset_unpack(b.data, b.len, &back, &err), &err);
  assert_values(back, 0, 20);
  tm_dataset_unref(back);
  for (size_t n = 0; n < b.len; n++)
    assert_true(tm_dataset_unpack(b.data, n, &back, NULL));
  tm_buf_release(&b);
  tm_dataset_unref(ds);
  tm_graph_unref(g);
  tm_graph_unref(w);
}

/* --- prefetch --- */
static void prefetch_changes_no_element(void **state) {
  (void)state;
  const int64_t n[] = {1, 2, 7, 1000};
  for (int i = 0; i < 4; i++) {
    int64_t a[200], b[200];
    tm_dataset *ds = range_of(100);
    CHAIN(ds, tm_data_shuffle, 10, false, 0, true);
    assert_int_equal(values(ds, a, 200), 100);
    CHAIN(ds, tm_data_prefetch, n[i]);
    CHAIN(ds, tm_data_prefetch, 3);
    assert_int_equal(values(ds, b, 200), 100);
    assert_memory_equal(a, b, 100 * sizeof *a);
    CHAIN(ds, tm_data_rep, 2); /* halts and starts the threads again */
    assert_int_equal(values(ds, b, 200), 200);
    assert_memory_equal(a, b, 100 * sizeof *a);
    tm_dataset_unref(ds);
  }
  tm_dataset *ds = range_of(1), *out;
  assert_int_equal(tm_data_prefetch(ds, 0, &out, NULL), TM_EINVAL);
  assert_int_equal(tm_data_prefetch(ds, 1 << 20, &out, NULL), TM_EINVAL);
  tm_dataset_unref(ds);
}

static void a_prefetch_that_nobody_empties_is_freed_at_once(void **state) {
  (void)state;
  int64_t live = tm_mem_live();
  tm_dataset *ds = range_of(1000);
  CHAIN(ds, tm_data_rep, -1);
  CHAIN(ds, tm_data_prefetch, 4);
  CHAIN(ds, tm_data_batch, 8, false);
  CHAIN(ds, tm_data_prefetch, 2);
  double start = tm_now_s();
  for (int i = 0; i < 50; i++) {
    tm_iter *it = iterate(ds, &test_env);
    tm_tensor *t;
    for (int k = 0; k < i % 4; k++) {
      assert_ok(tm_iter_next(it, &t, NULL));
      tm_tensor_unref(t);
    }
    tm_iter_free(it);
  }
  assert_true(tm_now_s() - start < 10.0);
  tm_dataset_unref(ds);
  assert_int_equal(tm_mem_live(), live);
}

static tm_value *none(tm_scope *sc, tm_value **arg) {
  return binary(sc, "less", arg[0], -1);
}

static void waiting_stops_when_cancelled(void **state) {
  (void)state;
  tm_cancel cancel = {0};
  for (int prefetch = 0; prefetch < 2; prefetch++) {
    tm_dataset *ds = range_of(3);
    CHAIN(ds, tm_data_rep, -1);
    tm_graph *g = traced(ds, none); /* lets nothing through, for ever */
    CHAIN(ds, tm_data_filter, g);
    tm_graph_unref(g);
    if (prefetch) CHAIN(ds, tm_data_prefetch, 2);
    tm_iter_env env = {-1, 1, 0, 0, &cancel};
    tm_iter *it = iterate(ds, &env);
    tm_dataset_unref(ds);
    tm_cancel_set(&cancel);
    assert_next_fails(it, TM_ECANCELLED, "cancelled", "");
    tm_iter_free(it);
    tm_cancel_reset(&cancel);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(map_runs_its_graph_for_each_element),
      cmocka_unit_test(filter_keeps_what_is_true),
      cmocka_unit_test(a_function_of_other_arguments_is_refused),
      cmocka_unit_test(an_error_belongs_to_one_element),
      cmocka_unit_test(a_shard_index_may_be_computed),
      cmocka_unit_test(graphs_travel_with_the_description),
      cmocka_unit_test(prefetch_changes_no_element),
      cmocka_unit_test(a_prefetch_that_nobody_empties_is_freed_at_once),
      cmocka_unit_test(waiting_stops_when_cancelled),
  };
  tm_err err = {0};
  if (tm_ops_init(&err) != TM_OK) return 1;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
