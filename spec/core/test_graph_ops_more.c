/* Ops of the groups einsum, sort, nd against NumPy. */
#include "graph_cases.h"

static const struct graph_case einsum_cases[] = {
#include "../fixtures/graph_ops_einsum.inc"
};

static const struct graph_case sort_cases[] = {
#include "../fixtures/graph_ops_sort.inc"
};

static const struct graph_case nd_cases[] = {
#include "../fixtures/graph_ops_nd.inc"
};

static const double some[64] = {5, -1, 2};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }

static const struct bad_case bad[] = {
    {"einsum",
     "equation=ij,jk->ik",
     2,
     {F32(2, 2, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "size 3 in one place and 2 in another"},
    {"einsum",
     "equation=ij,jk->ik",
     1,
     {F32(2, 2, 3)},
     TM_EINVAL,
     "is not for 1 tensor"},
    {"einsum",
     "equation=ij->i",
     2,
     {F32(2, 2, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "is not for 2 tensors"},
    {"einsum", "equation=ijk->i", 1, {F32(2, 2, 3)}, TM_EINVAL, "names 3 axes"},
    {"einsum", "equation=ij->k", 1, {F32(2, 2, 3)}, TM_EINVAL, "no tensor has"},
    {"einsum", "equation=ij->ii", 1, {F32(2, 2, 3)}, TM_EINVAL, "twice"},
    {"einsum", "equation=i1->i", 1, {F32(2, 2, 3)}, TM_EINVAL, "\"1\" in the equation"},
    {"einsum", "equation=", 1, {F32(2, 2, 3)}, TM_EINVAL, "names 0 axes"},
    {"einsum",
     "equation=ij",
     3,
     {F32(2, 2, 3), F32(2, 2, 3), F32(2, 2, 3)},
     TM_EUNIMPL,
     "two at a time"},
    {"tensordot",
     "axes_a=0;axes_b=0,1",
     2,
     {F32(2, 2, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "1 axes of a and 2 of b"},
    {"tensordot",
     "axes_a=0;axes_b=1",
     2,
     {F32(2, 2, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "axis 1 of a has size 2"},
    {"sort", "direction=UP", 1, {F32(1, 3)}, TM_EINVAL, "direction is \"UP\""},
    {"top_k", "k=4", 1, {F32(1, 3)}, TM_EINVAL, "k is 4"},
    {"bincount", "", 1, {I64(1, 3)}, TM_EINVAL, "x has -1 at position 2"},
    {"gather_nd",
     "",
     2,
     {F32(2, 2, 3), I64(2, 1, 2)},
     TM_EINVAL,
     "index 5 at position 1 is outside axis 1 of size 2"},
    {"gather_nd", "", 2, {F32(2, 2, 3), I64(2, 1, 3)}, TM_EINVAL, "name more axes"},
    {"scatter_nd",
     "shape=9",
     2,
     {I64(2, 2, 1), F32(1, 3)},
     TM_EINVAL,
     "should have shape (2)"},
};

static void ops_of_einsum_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(einsum_cases, TM_COUNT(einsum_cases));
}

static void ops_of_sort_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(sort_cases, TM_COUNT(sort_cases));
}

static void ops_of_nd_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(nd_cases, TM_COUNT(nd_cases));
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_einsum_agree_with_the_reference),
      cmocka_unit_test(ops_of_sort_agree_with_the_reference),
      cmocka_unit_test(ops_of_nd_agree_with_the_reference),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
