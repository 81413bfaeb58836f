/* Ops of the groups linalg, nn, softmax, loss against NumPy and PyTorch. */
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
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
