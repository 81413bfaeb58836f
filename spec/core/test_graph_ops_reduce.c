/* Ops of the groups reduce, cum and create against NumPy; random numbers; checks. */
#include "base/log.h"
#include "graph_cases.h"

static const struct graph_case reduce_cases[] = {
#include "../fixtures/graph_ops_reduce.inc"
};

static const struct graph_case cum_cases[] = {
#include "../fixtures/graph_ops_cum.inc"
};

static const struct graph_case create_cases[] = {
#include "../fixtures/graph_ops_create.inc"
};

static const double some[64] = {5, -1, (double)NAN};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }
#define BOOL(rank, ...) \
  { TM_BOOL, rank, {__VA_ARGS__}, some + 4, NULL }

static const struct bad_case bad[] = {
    {"reduce_mean", "", 1, {I64(1, 2)}, TM_EINVAL, "is int64; convert it with cast"},
    {"reduce_max", "axis=0", 1, {F32(2, 0, 2)}, TM_EINVAL, "axis 1 of x is empty"},
    {"reduce_sum", "axis=2", 1, {F32(2, 2, 2)}, TM_EINVAL, "axis 3 is not an axis"},
    {"reduce_sum", "axis=0,-2", 1, {F32(2, 2, 2)}, TM_EINVAL, "axis 1 is named twice"},
    {"reduce_any", "", 1, {F32(1, 2)}, TM_EINVAL, "x must hold bools"},
    {"argmax", "axis=0", 1, {F32(1, 0)}, TM_EINVAL, "axis 1 of x is empty"},
    {"argmax", "output_type=uint8", 1, {F32(1, 2)}, TM_EINVAL, "int64 or int32"},
    {"argmax", "", 1, {F32(0, 0)}, TM_EINVAL, "a scalar, which has none"},
    {"cumsum", "axis=-2", 1, {F32(1, 2)}, TM_EINVAL, "axis -2 is not an axis"},
    {"sum_like", "", 2, {F32(1, 2), F32(1, 3)}, TM_EINVAL, "do not broadcast"},
    {"unreduce", "axis=0", 2, {F32(1, 2), F32(2, 2, 3)}, TM_EINVAL, "no reduction"},
    {"fill", "shape=2,-1;value=1", 0, {{0}}, TM_EINVAL, "axis 2 of shape is negative"},
    {"fill", "shape=2;value=1;dtype=string", 0, {{0}}, TM_EINVAL, "not string"},
    {"zeros", "shape=4000000000,4000000000", 0, {{0}}, TM_EINVAL, "is too large"},
    {"range", "start=0;stop=1;step=0", 0, {{0}}, TM_EINVAL, "step must not be 0"},
    {"range", "start=1e300", 0, {{0}}, TM_EINVAL, "is too long"},
    {"linspace", "start=0;stop=1;num=0", 0, {{0}}, TM_EINVAL, "num must be at least 1"},
    {"eye", "rows=-1", 0, {{0}}, TM_EINVAL, "must not be negative"},
    {"random.uniform", "shape=2;minval=2", 0, {{0}}, TM_EINVAL, "below maxval"},
    {"random.uniform", "shape=2;dtype=int64", 0, {{0}}, TM_EINVAL, "maxval is needed"},
    {"random.normal", "shape=2;dtype=int64", 0, {{0}}, TM_EINVAL, "must be a float"},
    {"random.bernoulli", "shape=2;p=1.5", 0, {{0}}, TM_EINVAL, "p must be in 0..1"},
    {"random.categorical",
     "num_samples=1",
     1,
     {F32(2, 1, 3)},
     TM_EINVAL,
     "logits of row 0 have no finite maximum"},
    {"random.shuffle", "", 1, {F32(0, 0)}, TM_EINVAL, "x is a scalar"},
    {"check_numerics",
     "message=loss",
     1,
     {F32(1, 3)},
     TM_EINVAL,
     "loss: element 2 is NaN"},
    {"assert_true", "message=no luck", 1, {BOOL(1, 2)}, TM_EINVAL, "no luck"},
    {"sleep", "seconds=-1", 0, {{0}}, TM_EINVAL, "seconds must be in"},
};

static void ops_of_reduce_agree_with_numpy(void **state) {
  (void)state;
  case_run_all(reduce_cases, TM_COUNT(reduce_cases));
}

static void ops_of_cum_agree_with_numpy(void **state) {
  (void)state;
  case_run_all(cum_cases, TM_COUNT(cum_cases));
}

static void ops_of_create_agree_with_numpy(void **state) {
  (void)state;
  case_run_all(create_cases, TM_COUNT(create_cases));
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

/* --- random numbers --- */

static tm_value *draw(tm_scope *sc, const char *op, const char *attrs, tm_value *in) {
  struct graph_case c = {.op = op, .attrs = attrs, .nin = in != NULL};
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(case_apply(sc, &c, &in, out, &nout, &err), &err);
  return help_keep(out[0]);
}
static bool same(const tm_value *a, const tm_value *b) {
  return memcmp(a->t->v.data, b->t->v.data, tm_view_bytes(&a->t->v)) == 0;
}

static void a_seed_repeats_its_numbers_and_none_goes_on(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  const char *op = "random.normal";
  tm_value *a = draw(sc, op, "shape=100;seed=5", NULL);
  assert_true(same(a, draw(sc, op, "shape=100;seed=5", NULL)));
  assert_false(same(a, draw(sc, op, "shape=100;seed=6", NULL)));
  a = draw(sc, op, "shape=100", NULL);
  assert_false(same(a, draw(sc, op, "shape=100", NULL)));
  tm_value *u = draw(sc, "random.uniform", "shape=1000;maxval=7;dtype=int32", NULL);
  int seen[7] = {0};
  for (int i = 0; i < 1000; i++) {
    int32_t v = ((int32_t *)u->t->v.data)[i];
    assert_in_range(v, 0, 6);
    seen[v]++;
  }
  for (int i = 0; i < 7; i++) assert_in_range(seen[i], 90, 200);
  u = draw(sc, "random.bernoulli", "shape=1000;p=0.25;dtype=bool", NULL);
  int ones = 0;
  for (int i = 0; i < 1000; i++) ones += ((uint8_t *)u->t->v.data)[i];
  assert_in_range(ones, 190, 310);
  help_drop();
  tm_scope_free(sc);
}

static void categorical_draws_by_its_logits(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  const double logits[] = {0, log(3), -(double)INFINITY, 5, -(double)INFINITY, 5};
  struct case_tensor c = {TM_F32, 2, {2, 3}, logits, NULL};
  tm_value *x = help_keep(help_value(case_tensor_of(&c)));
  const int64_t *id = draw(sc, "random.categorical", "num_samples=4000", x)->t->v.data;
  int count[2][3] = {{0}};
  for (int i = 0; i < 8000; i++) count[i / 4000][id[i]]++;
  assert_in_range(count[0][0], 850, 1150);
  assert_int_equal(count[0][2], 0);
  assert_in_range(count[1][0], 1850, 2150);
  assert_int_equal(count[1][1], 0);
  help_drop();
  tm_scope_free(sc);
}

static void shuffle_keeps_every_row_once(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  double rows[200];
  bool seen[100] = {false};
  int moved = 0;
  for (int i = 0; i < 200; i++) rows[i] = i;
  struct case_tensor c = {TM_I64, 2, {100, 2}, rows, NULL};
  tm_value *x = help_keep(help_value(case_tensor_of(&c)));
  const int64_t *y = draw(sc, "random.shuffle", "seed=1", x)->t->v.data;
  for (int i = 0; i < 100; i++) {
    assert_int_equal(y[2 * i + 1], y[2 * i] + 1);
    assert_false(seen[y[2 * i] / 2]);
    seen[y[2 * i] / 2] = true;
    moved += y[2 * i] != 2 * i;
  }
  assert_true(moved > 80);
  help_drop();
  tm_scope_free(sc);
}

/* --- print --- */

static char printed[200];
static void catch (void *ud, const char *line) {
  (void)ud;
  snprintf(printed, sizeof printed, "%s", line);
}

static void print_writes_one_line_a_call(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  tm_print_sink(catch, NULL);
  static const double two[] = {1.5, -2};
  static const char *const word[] = {"loss"};
  struct case_tensor s = {TM_STRING, 0, {0}, NULL, word},
                     v = {TM_F32, 1, {2}, two, NULL};
  struct graph_case c = {.op = "print", .attrs = "", .nin = 2};
  tm_value *out[TM_MAX_OUTPUTS], *in[] = {help_keep(help_value(case_tensor_of(&s))),
                                          help_keep(help_value(case_tensor_of(&v)))};
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(case_apply(sc, &c, in, out, &nout, &err), &err);
  assert_int_equal(nout, 0);
  assert_string_equal(printed, "loss [1.5, -2]\n");
  tm_print_sink(NULL, NULL);
  help_drop();
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_reduce_agree_with_numpy),
      cmocka_unit_test(ops_of_cum_agree_with_numpy),
      cmocka_unit_test(ops_of_create_agree_with_numpy),
      cmocka_unit_test(mistakes_are_named),
      cmocka_unit_test(a_seed_repeats_its_numbers_and_none_goes_on),
      cmocka_unit_test(categorical_draws_by_its_logits),
      cmocka_unit_test(shuffle_keeps_every_row_once),
      cmocka_unit_test(print_writes_one_line_a_call),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
