/* Ops of the groups math and compare against NumPy. */
#include "graph_cases.h"

static const struct graph_case math_cases[] = {
#include "../fixtures/graph_ops_math.inc"
};

static const struct graph_case compare_cases[] = {
#include "../fixtures/graph_ops_compare.inc"
};

static const double some[64] = {5, -1, 2};
static const char *const text[] = {"a", "b"};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }
#define ZERO(rank, ...) \
  { TM_I32, rank, {__VA_ARGS__}, some + 3, NULL }
#define I32(rank, ...) \
  { TM_I32, rank, {__VA_ARGS__}, some, NULL }
#define BOOL(rank, ...) \
  { TM_BOOL, rank, {__VA_ARGS__}, some, NULL }
#define STR(rank, ...) \
  { TM_STRING, rank, {__VA_ARGS__}, NULL, text }

static const struct bad_case bad[] = {
    {"add", "", 2, {F32(2, 2, 3), F32(1, 2)}, TM_EINVAL, "(2, 3) and (2) do not"},
    {"add", "", 2, {F32(1, 2), I64(1, 2)}, TM_EINVAL, "convert one with cast"},
    {"add", "", 1, {F32(1, 2)}, TM_EINVAL, "takes 2 tensors, got 1"},
    {"add", "", 2, {BOOL(1, 2), BOOL(1, 2)}, TM_EINVAL, "a must hold numbers"},
    {"div", "", 2, {I64(1, 2), I64(1, 2)}, TM_EINVAL, "use floordiv, or cast"},
    {"floordiv", "", 2, {I32(1, 2), ZERO(1, 2)}, TM_EINVAL, "division by zero"},
    {"mod", "", 2, {I32(1, 2), ZERO(0, 0)}, TM_EINVAL, "division by zero"},
    {"pow", "", 2, {I64(1, 2), I64(1, 2)}, TM_EINVAL, "negative power"},
    {"exp", "", 1, {I64(1, 2)}, TM_EINVAL, "x must hold floats, but is int64; convert"},
    {"exp", "", 1, {STR(1, 2)}, TM_EINVAL, "x must hold floats, but is string"},
    {"cast", "dtype=float32", 1, {STR(1, 2)}, TM_EINVAL, "strings.to_number"},
    {"cast", "", 1, {F32(1, 2)}, TM_EINVAL, "argument \"dtype\" (dtype) is missing"},
    {"add_n", "", 2, {F32(1, 2), F32(1, 3)}, TM_EINVAL, "xs[2] (3)"},
    {"clip_by_value",
     "",
     3,
     {F32(1, 2), F32(2, 3, 2), F32(0, 0)},
     TM_EINVAL,
     "min of shape (3, 2) is larger than x"},
    {"less", "", 2, {BOOL(1, 2), BOOL(1, 2)}, TM_EINVAL, "a must hold numbers"},
    {"logical_and", "", 2, {F32(1, 2), F32(1, 2)}, TM_EINVAL, "a must hold bools"},
    {"where",
     "",
     3,
     {F32(1, 2), F32(1, 2), F32(1, 2)},
     TM_EINVAL,
     "condition must hold bools"},
    {"is_nan", "", 1, {I64(1, 2)}, TM_EINVAL, "x must hold floats"},
};

static void ops_of_math_agree_with_numpy(void **state) {
  (void)state;
  case_run_all(math_cases, TM_COUNT(math_cases));
}

static void ops_of_compare_agree_with_numpy(void **state) {
  (void)state;
  case_run_all(compare_cases, TM_COUNT(compare_cases));
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

static tm_value *big(int64_t rows, int64_t columns, double scale) {
  tm_shape s = tm_shape_of(2, (int64_t[]){rows, columns});
  tm_tensor *t;
  assert_ok(tm_tensor_new(TM_F32, &s, &t, NULL));
  for (int64_t i = 0; i < rows * columns; i++)
    ((float *)t->v.data)[i] = (float)((double)(i % 997) * scale);
  return help_keep(help_value(t));
}

static void large_tensors_broadcast_in_every_way(void **state) {
  (void)state;
  enum { R = 301, C = 403 };
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  tm_value *x = big(R, C, 0.5), *row = big(1, C, 1), *column = big(R, 1, 2);
  const float *a = x->t->v.data;
  const float *by_row = help_op(sc, "add", x, row)->t->v.data;
  const float *by_column = help_op(sc, "sub", column, x)->t->v.data;
  const float *outer = help_op(sc, "mul", column, row)->t->v.data;
  for (int64_t i = 0; i < R * C; i++) {
    float r = (float)(i % C), c = (float)(i / C) * 2;
    assert_true(by_row[i] == a[i] + r && by_column[i] == c - a[i] && outer[i] == c * r);
  }
  help_drop();
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_math_agree_with_numpy),
      cmocka_unit_test(ops_of_compare_agree_with_numpy),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(large_tensors_broadcast_in_every_way),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
