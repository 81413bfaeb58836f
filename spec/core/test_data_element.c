/* Elements by number, as iterators whose elements are dealt out take them. */
#include <unistd.h>

#include "datasets.h"

enum { MOST = 1024 };

/* First value of each element of an epoch, in order. */
static int64_t order_of(tm_dataset *ds, uint64_t epoch, int64_t *out) {
  tm_iter_env env = test_env;
  env.epoch = epoch;
  tm_iter *it = iterate(ds, &env);
  tm_tensor *t[2];
  int64_t n = 0;
  while (tm_iter_next(it, t, NULL) == TM_OK) {
    out[n++] = tm_view_get_i64(&t[0]->v, 0);
    for (int32_t k = 0; k < tm_dataset_width(ds); k++) tm_tensor_unref(t[k]);
  }
  tm_iter_free(it);
  return n;
}

static tm_status element(tm_iter *it, uint64_t epoch, int64_t number, int64_t *out,
                         tm_err *err) {
  tm_tensor *t[2];
  TM_TRY(tm_iter_element(it, epoch, number, t, err));
  *out = tm_view_get_i64(&t[0]->v, 0);
  int32_t n = tm_dataset_width(tm_iter_dataset(it));
  for (int32_t k = 0; k < n; k++) tm_tensor_unref(t[k]);
  return TM_OK;
}

static tm_dataset *chained(int which) {
  tm_dataset *ds = range_of(300), *out;
  if (which == 1) CHAIN(ds, tm_data_shuffle, 32, false, 0, true);
  if (which == 2) CHAIN(ds, tm_data_shuffle, 3, false, 0, true);
  if (which == 3) CHAIN(ds, tm_data_shuffle, 5000, true, 9, true);
  if (which == 4) {
    assert_ok(tm_data_cache(ds, &out, NULL));
    tm_dataset_unref(ds);
    ds = out;
  }
  if (which > 0) CHAIN(ds, tm_data_batch, 7, false);
  if (which > 1) CHAIN(ds, tm_data_prefetch, 2);
  return ds;
}

static void have_the_same_numbers_in_whichever_order_they_are_taken(void **state) {
  (void)state;
  for (int which = 0; which < 5; which++) {
    tm_dataset *ds = chained(which);
    tm_iter *it = iterate(ds, &test_env);
    int64_t want[MOST], got;
    tm_err err = {0};
    for (uint64_t epoch = 0; epoch < 5; epoch += epoch ? 2 : 1) { /* 0 1 3 */
      int64_t n = order_of(ds, epoch, want), at = 0;
      assert_int_equal(n, which ? 43 : 300);
      for (int i = 0; i < 200; i++) {
        at = i < 40 ? i : (at * 31 + i * 7 + 11) % n; /* in order, then not */
        assert_ok_err(element(it, epoch, at, &got, &err), &err);
        assert_int_equal(got, want[at]);
      }
      for (int64_t beyond = 0; beyond < 3; beyond++)
        assert_int_equal(element(it, epoch, n + beyond, &got, &err), TM_ERANGE);
      assert_ok_err(element(it, epoch, n - 1, &got, &err), &err);
      assert_int_equal(got, want[n - 1]);
    }
    assert_int_equal(element(it, 3, -1, &got, &err), TM_EINVAL);
    tm_iter_free(it);
    tm_dataset_unref(ds);
  }
}

/* Ids 0..19, the record of id 7 is bad; in batches of 3. */
static tm_dataset *with_a_bad_record(const char *path, const char *bad) {
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs("id\n", f);
  for (int i = 0; i < 20; i++) {
    if (i == 7)
      fprintf(f, "%s\n", bad);
    else
      fprintf(f, "%d\n", i);
  }
  fclose(f);
  const tm_csv_column column = {.name = "id", .dtype = TM_I64};
  tm_csv_options o;
  tm_csv_defaults(&o);
  o.files = &path;
  o.nfiles = 1;
  o.columns = &column;
  o.ncolumns = 1;
  o.header = true;
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_csv(&o, &ds, &err), &err);
  CHAIN(ds, tm_data_batch, 3, false);
  return ds;
}

/* What an iterator finds that takes every third element from `from` on. */
static void take_some(tm_dataset *ds, int64_t from, int64_t step, int64_t *found) {
  tm_iter *it = iterate(ds, &test_env);
  tm_err err = {0};
  int64_t x;
  for (int64_t k = from; k < 32; k += step) {
    tm_status s = element(it, 0, k, &x, &err);
    int64_t is = s == TM_OK ? x : (int64_t)s;
    if (found[k] == INT64_MIN) found[k] = is;
    assert_int_equal(found[k], is);
  }
  tm_iter_free(it);
}

/* A field that is no number is passed over by whoever does not take it; a record with
 * too many fields is not. */
static void that_fail_keep_their_numbers_for_all(void **state) {
  (void)state;
  const char *bad[] = {"x", "7,7"};
  for (size_t b = 0; b < TM_COUNT(bad); b++) {
    char path[] = "/tmp/tm_element_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    tm_dataset *ds = with_a_bad_record(path, bad[b]);
    int64_t found[32];
    int failed = 0;
    for (int i = 0; i < 32; i++) found[i] = INT64_MIN;
    for (int64_t step = 1; step < 5; step++)
      for (int64_t from = 0; from < step; from++) take_some(ds, from, step, found);
    for (int i = 0; i < 32; i++) failed += found[i] < 0 && found[i] != TM_ERANGE;
    assert_int_equal(failed, 1);
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 3);
    assert_int_equal(found[31], TM_ERANGE);
    tm_dataset_unref(ds);
    unlink(path);
  }
}

static tm_status without_memory(void *ud) {
  tm_iter *it;
  int64_t x;
  tm_err err = {0};
  TM_TRY(tm_dataset_iterate(ud, &test_env, &it, NULL));
  tm_status s = element(it, 0, 20, &x, &err);
  if (s == TM_OK) s = element(it, 0, 3, &x, &err);
  if (s == TM_OK) s = element(it, 1, 30, &x, &err);
  tm_iter_free(it);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  tm_dataset *ds = chained(2);
  test_torture(without_memory, ds);
  tm_dataset_unref(ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(have_the_same_numbers_in_whichever_order_they_are_taken),
      cmocka_unit_test(that_fail_keep_their_numbers_for_all),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
