/* Ops of the groups linalg, nn, norm, softmax, loss against NumPy and PyTorch. */
#include "graph_cases.h"

static const struct graph_case linalg_cases[] = {
#include "../fixtures/graph_ops_linalg.inc"
};

static const struct graph_case nn_cases[] = {
#include "../fixtures/graph_ops_nn.inc"
};

static const struct graph_case softmax_cases[] = {
#include "../fixtures/graph_ops_softmax.inc"
};

static const struct graph_case loss_cases[] = {
#include "../fixtures/graph_ops_loss.inc"
};

static const struct graph_case norm_cases[] = {
#include "../fixtures/graph_ops_norm.inc"
};

static const double some[64] = {5, -1, 2};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }

static const struct bad_case bad[] = {
    {"matmul",
     "",
     2,
     {F32(2, 2, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "inner sizes differ: a has shape (2, 3)"},
    {"matmul", "", 2, {F32(1, 2), F32(2, 2, 3)}, TM_EINVAL, "at least two axes"},
    {"matmul", "", 2, {F32(2, 2, 3), I64(2, 3, 2)}, TM_EINVAL, "b is int64"},
    {"matmul", "", 2, {F32(3, 2, 1, 3), F32(3, 3, 3, 1)}, TM_EINVAL, "batch axes"},
    {"nn.relu", "", 1, {I64(1, 2)}, TM_EINVAL, "x must hold floats"},
    {"nn.bias_add", "", 2, {F32(2, 2, 3), F32(1, 2)}, TM_EINVAL, "bias has 2 elements"},
    {"nn.dropout", "rate=1", 1, {F32(1, 2)}, TM_EINVAL, "rate is 1"},
    {"norm", "ord=3", 1, {F32(1, 2)}, TM_EUNIMPL, "ord is 3"},
    {"nn.softmax", "", 1, {F32(0, 0)}, TM_EINVAL, "logits is a scalar"},
    {"nn.softmax", "axis=3", 1, {F32(1, 2)}, TM_EINVAL, "axis 4"},
    {"nn.sigmoid_cross_entropy_with_logits",
     "",
     2,
     {F32(1, 2), F32(1, 3)},
     TM_EINVAL,
     "labels of shape (2) and logits of shape (3)"},
    {"nn.sparse_softmax_cross_entropy_with_logits",
     "",
     2,
     {I64(1, 1), F32(2, 1, 3)},
     TM_EINVAL,
     "label 5 at index 0 is outside 0..2"},
    {"nn.sparse_softmax_cross_entropy_with_logits",
     "",
     2,
     {I64(1, 2), F32(2, 1, 3)},
     TM_EINVAL,
     "labels of shape (2)"},
    {"nn.sparse_softmax_cross_entropy_with_logits",
     "",
     2,
     {F32(1, 1), F32(2, 1, 3)},
     TM_EINVAL,
     "labels must hold integers"},
};

static void ops_of_linalg_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(linalg_cases, TM_COUNT(linalg_cases));
}

static void ops_of_nn_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(nn_cases, TM_COUNT(nn_cases));
}

static void ops_of_softmax_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(softmax_cases, TM_COUNT(softmax_cases));
}

static void ops_of_loss_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(loss_cases, TM_COUNT(loss_cases));
}

static void ops_of_norm_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(norm_cases, TM_COUNT(norm_cases));
}

/* --- dropout --- */

static void dropout(tm_scope *sc, tm_value *x, double rate, int64_t seed,
                    tm_value **out) {
  tm_attrs a = {.n = 2};
  int32_t nout;
  tm_err err = {0};
  tm_attr_set_float(&a.a[0], rate);
  if (seed >= 0) tm_attr_set_int(&a.a[1], TM_ATTR_INT, seed);
  assert_ok_err(tm_apply(sc, tm_op_find("nn.dropout"), &x, 1, &a, out, &nout, &err),
                &err);
  assert_int_equal(nout, 2);
  help_keep(out[0]);
  help_keep(out[1]);
}

static tm_value *ramp(int64_t n) {
  tm_shape s = tm_shape_of(1, &n);
  tm_tensor *t;
  assert_ok(tm_tensor_new(TM_F32, &s, &t, NULL));
  for (int64_t i = 0; i < n; i++) ((float *)t->v.data)[i] = (float)(i + 1);
  return help_keep(help_value(t));
}

static void dropout_scales_what_it_keeps(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS];
  assert_ok(tm_scope_new(&sc));
  tm_value *x = ramp(20000);
  dropout(sc, x, 0.25, 7, out);
  const float *y = out[0]->t->v.data;
  const uint8_t *mask = out[1]->t->v.data;
  int64_t kept = 0;
  for (int64_t i = 0; i < 20000; i++) {
    kept += mask[i];
    float want = mask[i] ? (float)(i + 1) / 0.75F : 0;
    assert_true(fabsf(y[i] - want) <= 1e-6F * want);
  }
  assert_in_range(kept, 14700, 15300); /* 5 standard deviations are 306 */
  help_drop();
  tm_scope_free(sc);
}

/* The first dropout of a scope. */
static tm_value *first_dropout(int64_t seed) {
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS];
  assert_ok(tm_scope_new(&sc));
  dropout(sc, ramp(1000), 0.5, seed, out);
  tm_scope_free(sc);
  return out[0];
}

static void dropout_of_one_seed_repeats(void **state) {
  (void)state;
  const float *a = first_dropout(3)->t->v.data;
  assert_memory_equal(first_dropout(3)->t->v.data, a, 4000);
  assert_memory_not_equal(first_dropout(4)->t->v.data, a, 4000);
  help_drop();
}

static void the_gradient_of_dropout_uses_the_same_mask(void **state) {
  (void)state;
  tm_scope *sc;
  tm_tape *tp;
  tm_value *out[TM_MAX_OUTPUTS];
  tm_grad g;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_value *x = ramp(500);
  assert_ok(tm_tape_begin(sc, false, &tp));
  tm_tape_watch(tp, x);
  dropout(sc, x, 0.5, -1, out);
  tm_source src = {x, 0};
  assert_ok_err(tm_tape_gradient(tp, out[0], NULL, &src, 1, &g, &err), &err);
  for (int64_t i = 0; i < 500; i++)
    assert_true(((float *)g.dense->t->v.data)[i] ==
                (((uint8_t *)out[1]->t->v.data)[i] ? 2.0F : 0.0F));
  tm_grad_release(&g);
  tm_tape_unref(tp);
  help_drop();
  tm_scope_free(sc);
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_linalg_agree_with_the_reference),
      cmocka_unit_test(ops_of_nn_agree_with_the_reference),
      cmocka_unit_test(ops_of_softmax_agree_with_the_reference),
      cmocka_unit_test(ops_of_loss_agree_with_the_reference),
      cmocka_unit_test(ops_of_norm_agree_with_the_reference),
      cmocka_unit_test(dropout_scales_what_it_keeps),
      cmocka_unit_test(dropout_of_one_seed_repeats),
      cmocka_unit_test(the_gradient_of_dropout_uses_the_same_mask),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
