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
      cmocka_unit_test(mistakes_are_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
