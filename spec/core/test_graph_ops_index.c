/* Ops of the groups index, sparse, segment, strings against NumPy and PyTorch. */
#include "graph_cases.h"

static const struct graph_case index_cases[] = {
#include "../fixtures/graph_ops_index.inc"
};

static const struct graph_case sparse_cases[] = {
#include "../fixtures/graph_ops_sparse.inc"
};

static const struct graph_case segment_cases[] = {
#include "../fixtures/graph_ops_segment.inc"
};

static const struct graph_case strings_cases[] = {
#include "../fixtures/graph_ops_strings.inc"
};

static const double some[64] = {5, -1, 2};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }
#define STR(...)                                                   \
  {                                                                \
    TM_STRING, 1, {1}, NULL, (const char *const[]) { __VA_ARGS__ } \
  }

static const struct bad_case bad[] = {
    {"gather",
     "",
     2,
     {F32(2, 3, 2), I64(1, 1)},
     TM_EINVAL,
     "id 5 at position 1 of indices does not exist: params has 3 rows"},
    {"gather", "", 2, {F32(2, 8, 2), I64(1, 2)}, TM_EINVAL, "id -1 at position 2"},
    {"gather",
     "",
     2,
     {F32(2, 8, 2), F32(1, 2)},
     TM_EINVAL,
     "indices must hold integers"},
    {"gather", "", 2, {F32(0, 0), I64(1, 2)}, TM_EINVAL, "scalar"},
    {"unique", "", 1, {I64(2, 1, 1)}, TM_EINVAL, "1 axes"},
    {"boolean_mask", "", 2, {F32(1, 2), F32(1, 2)}, TM_EINVAL, "mask must hold bools"},
    {"densify", "shape=5,2", 2, {I64(1, 1), F32(2, 1, 2)}, TM_EINVAL, "id 5"},
    {"densify", "shape=9,2", 2, {I64(1, 1), F32(2, 1, 3)}, TM_EINVAL, "do not fit"},
    {"sum_by_row", "", 2, {I64(1, 2), F32(2, 1, 3)}, TM_EINVAL, "rows of shape (1, 3)"},
    {"segment_sum", "", 2, {F32(1, 2), I64(1, 2)}, TM_EINVAL, "must not fall"},
    {"unsorted_segment_sum",
     "num_segments=3",
     2,
     {F32(1, 2), I64(1, 2)},
     TM_EINVAL,
     "id 5"},
    {"unsorted_segment_mean",
     "num_segments=-1",
     2,
     {F32(1, 2), I64(1, 2)},
     TM_EINVAL,
     "num_segments is -1"},
    {"strings.to_number",
     "",
     1,
     {STR("x1")},
     TM_EINVAL,
     "\"x1\" at position 1 of x is no float32"},
    {"strings.to_number",
     "dtype=int32",
     1,
     {STR("3000000000")},
     TM_EINVAL,
     "is no int32"},
    {"strings.to_hash_bucket",
     "num_buckets=0",
     1,
     {STR("x1")},
     TM_EINVAL,
     "at least 1"},
    {"strings.lower", "", 1, {F32(1, 2)}, TM_EINVAL, "x must hold strings"},
    {"bucketize", "boundaries=2,1", 1, {F32(1, 2)}, TM_EINVAL, "boundaries[2]"},
    {"lookup_table",
     "",
     1,
     {I64(1, 8)},
     TM_EINVAL,
     "key 0 at position 5 is there twice"},
};

static void ops_of_index_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(index_cases, TM_COUNT(index_cases));
}

static void ops_of_sparse_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(sparse_cases, TM_COUNT(sparse_cases));
}

static void ops_of_segment_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(segment_cases, TM_COUNT(segment_cases));
}

static void ops_of_strings_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(strings_cases, TM_COUNT(strings_cases));
}

/* --- lookup tables --- */

static tm_value *strings(int64_t n, const char *const *s) {
  struct case_tensor c = {TM_STRING, 1, {n}, NULL, s};
  return help_keep(help_value(case_tensor_of(&c)));
}

/* lookup of x in the table, with num_oov numbers from 100 on, or strictly. */
static tm_status lookup(tm_scope *sc, tm_value *x, tm_value *const *table,
                        int64_t num_oov, bool strict, tm_value **out, tm_err *err) {
  tm_attrs a = {.n = 6};
  int32_t nout;
  tm_attr_set_tensor(&a.a[0], table[0]->t);
  tm_attr_set_tensor(&a.a[1], table[1]->t);
  tm_attr_set_int(&a.a[3], TM_ATTR_INT, num_oov);
  tm_attr_set_int(&a.a[4], TM_ATTR_INT, 100);
  tm_attr_set_bool(&a.a[5], strict);
  tm_status s = tm_apply(sc, tm_op_find("lookup"), &x, 1, &a, out, &nout, err);
  tm_attrs_release(&a);
  if (!s) help_keep(out[0]);
  return s;
}

static void lookup_table(tm_scope *sc, tm_value *keys, tm_value *values,
                         tm_value **out) {
  tm_value *in[2] = {keys, values};
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(tm_apply(sc, tm_op_find("lookup_table"), in, values ? 2 : 1, NULL, out,
                         &nout, &err),
                &err);
  assert_int_equal(nout, 2);
  help_keep(out[0]);
  help_keep(out[1]);
}

static void words_are_looked_up(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value *table[TM_MAX_OUTPUTS], *out[TM_MAX_OUTPUTS];
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  const char *const words[] = {"avenger", "ironman", "batman", "hulk", ""};
  lookup_table(sc, strings(5, words), NULL, table);
  tm_value *x = strings(4, (const char *const[]){"hulk", "", "nobody", "avenger"});
  assert_ok_err(lookup(sc, x, table, 0, false, out, &err), &err);
  const int64_t *y = out[0]->t->v.data;
  assert_int_equal(y[0], 3);
  assert_int_equal(y[1], 4);
  assert_int_equal(y[2], -1);
  assert_int_equal(y[3], 0);
  assert_ok_err(lookup(sc, x, table, 7, false, out, &err), &err);
  assert_in_range(((int64_t *)out[0]->t->v.data)[2], 100, 106);
  assert_int_equal(lookup(sc, x, table, 0, true, out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "\"nobody\" at position 3 is not in the vocabulary"));
  help_drop();
  tm_scope_free(sc);
}

static void numbers_are_looked_up(void **state) {
  (void)state;
  enum { N = 1000 };
  tm_scope *sc;
  tm_value *table[TM_MAX_OUTPUTS], *out[TM_MAX_OUTPUTS];
  int64_t key[N], value[N];
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  for (int64_t i = 0; i < N; i++) {
    key[i] = (i - 500) * 1024;
    value[i] = 2 * i;
  }
  lookup_table(sc, help_keep(help_value(help_ids(N, key))),
               help_keep(help_value(help_ids(N, value))), table);
  assert_ok_err(
      lookup(sc, help_keep(help_value(help_ids(N, key))), table, 0, true, out, &err),
      &err);
  assert_memory_equal(out[0]->t->v.data, value, sizeof value);
  help_drop();
  tm_scope_free(sc);
}

/* --- who owns the bytes of strings --- */

static const int64_t backwards[] = {1, 0};
static const char *const long_words[] = {"a string too long for luck",
                                         "and another one"};

static void gather_strings(tm_scope *sc, tm_value *x, tm_value **out) {
  tm_value *in[2] = {x, help_keep(help_value(help_ids(2, backwards)))};
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(tm_apply(sc, tm_op_find("gather"), in, 2, NULL, out, &nout, &err),
                &err);
}

static void check_gathered(const tm_tensor *t) {
  const tm_str *s = t->v.data;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(s[i].n, strlen(long_words[1 - i]));
    assert_memory_equal(s[i].p, long_words[1 - i], s[i].n);
  }
}

static void moved_strings_outlive_their_source(void **state) {
  (void)state;
  struct case_tensor c = {TM_STRING, 1, {2}, NULL, long_words};
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS];
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  tm_value *x = help_value(case_tensor_of(&c));
  gather_strings(sc, x, out);
  tm_value_unref(x);
  check_gathered(out[0]->t);
  tm_value_unref(out[0]);
  help_drop();
  tm_scope_free(sc);
}

static void results_of_a_function_outlive_its_arguments(void **state) {
  (void)state;
  struct case_tensor c = {TM_STRING, 1, {2}, NULL, long_words};
  tm_type type = {TM_STRING, tm_shape_of(1, &(int64_t){-1})};
  tm_scope *sc;
  tm_trace *tr;
  tm_value *x, *out[TM_MAX_OUTPUTS];
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  assert_ok_err(tm_trace_begin(sc, "f", &tr, &err), &err);
  assert_ok_err(tm_trace_arg(tr, &type, &x, &err), &err);
  gather_strings(sc, x, out);
  tm_graph *g = help_end(sc, tr, out, 1);
  tm_value_unref(x);
  tm_value_unref(out[0]);
  tm_program *p = help_program(g);
  for (int i = 0; i < 3; i++) {
    tm_tensor *t = case_tensor_of(&c), *y;
    assert_ok_err(
        tm_program_run(p, &(tm_arg_value){t, 0}, 1, NULL, &help_env, &y, &err), &err);
    tm_tensor_unref(t);
    check_gathered(y);
    tm_tensor_unref(y);
  }
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_index_agree_with_the_reference),
      cmocka_unit_test(ops_of_sparse_agree_with_the_reference),
      cmocka_unit_test(ops_of_segment_agree_with_the_reference),
      cmocka_unit_test(ops_of_strings_agree_with_the_reference),
      cmocka_unit_test(words_are_looked_up),
      cmocka_unit_test(numbers_are_looked_up),
      cmocka_unit_test(moved_strings_outlive_their_source),
      cmocka_unit_test(results_of_a_function_outlive_its_arguments),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
