/* Ops of the groups shape, slice, pack, encode against NumPy and PyTorch. */
#include "graph_cases.h"

static const struct graph_case shape_cases[] = {
#include "../fixtures/graph_ops_shape.inc"
};

static const struct graph_case slice_cases[] = {
#include "../fixtures/graph_ops_slice.inc"
};

static const struct graph_case pack_cases[] = {
#include "../fixtures/graph_ops_pack.inc"
};

static const struct graph_case encode_cases[] = {
#include "../fixtures/graph_ops_encode.inc"
};

static const double some[64] = {5, -1, 2};
#define F32(rank, ...) \
  { TM_F32, rank, {__VA_ARGS__}, some, NULL }
#define I64(rank, ...) \
  { TM_I64, rank, {__VA_ARGS__}, some, NULL }

static const struct bad_case bad[] = {
    {"reshape",
     "shape=4",
     1,
     {F32(1, 3)},
     TM_EINVAL,
     "(3) has not the elements of shape (4)"},
    {"reshape", "shape=-1,-1", 1, {F32(1, 3)}, TM_EINVAL, "one size open only"},
    {"reshape", "shape=0,-1", 1, {F32(1, 0)}, TM_EINVAL, "has not the elements"},
    {"squeeze", "axis=1", 1, {F32(2, 1, 3)}, TM_EINVAL, "axis 2 of x has size 3"},
    {"transpose", "perm=0,0", 1, {F32(2, 1, 3)}, TM_EINVAL, "axis 1 twice"},
    {"transpose", "perm=0", 1, {F32(2, 1, 3)}, TM_EINVAL, "perm names 1 axes"},
    {"broadcast_to",
     "shape=2",
     1,
     {F32(1, 3)},
     TM_EINVAL,
     "does not broadcast to shape (2)"},
    {"expand_dims", "axis=3", 1, {F32(1, 3)}, TM_EINVAL, "axis 4"},
    {"tile", "multiples=-1", 1, {F32(1, 3)}, TM_EINVAL, "multiples[1] is -1"},
    {"select",
     "axis=0;index=8",
     1,
     {F32(1, 3)},
     TM_ERANGE,
     "position 9 of axis 1 is outside"},
    {"select", "axis=0;index=-4", 1, {F32(1, 3)}, TM_ERANGE, "position -4"},
    {"narrow",
     "axis=0;first=1;length=3",
     1,
     {F32(1, 3)},
     TM_ERANGE,
     "reach past the 3"},
    {"slice", "first=3;last=0;step=1;kind=4", 1, {F32(1, 3)}, TM_ERANGE, "position 4"},
    {"slice",
     "first=3;last=0;step=0;kind=1",
     1,
     {F32(1, 3)},
     TM_EINVAL,
     "step along axis 1 is 0"},
    {"pad", "paddings=1", 1, {F32(1, 3)}, TM_EINVAL, "paddings has 1 numbers"},
    {"pad", "paddings=1,-1", 1, {F32(1, 3)}, TM_EINVAL, "negative"},
    {"concat",
     "axis=1",
     2,
     {F32(2, 1, 3), F32(2, 2, 3)},
     TM_EINVAL,
     "xs[2] of shape (2, 3)"},
    {"concat",
     "",
     2,
     {F32(1, 1), I64(1, 1)},
     TM_EINVAL,
     "xs[2] is int64 but xs[1] is float32"},
    {"concat", "", 1, {F32(0, 0)}, TM_EINVAL, "scalar"},
    {"stack", "", 2, {F32(1, 1), F32(1, 2)}, TM_EINVAL, "xs[2] has shape (2)"},
    {"split",
     "num_or_size_splits=2",
     1,
     {F32(1, 3)},
     TM_EINVAL,
     "does not split into 2"},
    {"split", "num_or_size_splits=2,2", 1, {F32(1, 3)}, TM_EINVAL, "part 2 of size 2"},
    {"one_hot", "depth=3", 1, {F32(1, 3)}, TM_EINVAL, "indices must hold integers"},
    {"one_hot", "depth=-3", 1, {I64(1, 3)}, TM_EINVAL, "depth is -3"},
};

static void ops_of_shape_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(shape_cases, TM_COUNT(shape_cases));
}

static void ops_of_slice_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(slice_cases, TM_COUNT(slice_cases));
}

static void ops_of_pack_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(pack_cases, TM_COUNT(pack_cases));
}

static void ops_of_encode_agree_with_the_reference(void **state) {
  (void)state;
  case_run_all(encode_cases, TM_COUNT(encode_cases));
}

static void mistakes_are_named(void **state) {
  (void)state;
  bad_run_all(bad, TM_COUNT(bad));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ops_of_shape_agree_with_the_reference),
      cmocka_unit_test(ops_of_slice_agree_with_the_reference),
      cmocka_unit_test(ops_of_pack_agree_with_the_reference),
      cmocka_unit_test(ops_of_encode_agree_with_the_reference),
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
