/* Places in datasets: seek, cancelled and failing ways there, states as text. */
#include "datasets.h"

static void chain_cache(tm_dataset **ds) {
  tm_dataset *out;
  assert_ok(tm_data_cache(*ds, &out, NULL));
  tm_dataset_unref(*ds);
  *ds = out;
}

static void a_seek_goes_on_behind_the_place(void **state) {
  (void)state;
  int64_t want[256], got[256];
  tm_dataset *ds = range_of(50);
  CHAIN(ds, tm_data_shuffle, 7, false, 0, true);
  CHAIN(ds, tm_data_rep, 3);
  size_t n = values(ds, want, 256);
  assert_int_equal(n, 150);
  for (int64_t at = 0; at <= 150; at += 3) {
    tm_iter *it = iterate(ds, &test_env);
    assert_ok(tm_iter_seek(it, (tm_iter_place){at, 0}, NULL));
    assert_int_equal(tm_iter_position(it), at);
    assert_int_equal(drain(it, got, 256), n - (size_t)at);
    assert_memory_equal(got, want + at, (n - (size_t)at) * sizeof *got);
    tm_iter_free(it);
  }
  tm_dataset_unref(ds);
}

static void a_cancelled_way_is_made_again(void **state) {
  (void)state;
  tm_cancel cancel = {0};
  tm_iter_env env = test_env;
  tm_tensor *t;
  env.cancel = &cancel;
  tm_dataset *ds = range_of(1000);
  chain_cache(&ds);
  CHAIN(ds, tm_data_batch, 10, false);
  tm_iter *it = iterate(ds, &env);
  assert_ok(tm_iter_seek(it, (tm_iter_place){50, 0}, NULL));
  tm_cancel_set(&cancel);
  assert_int_equal(tm_iter_settle(it, NULL), TM_ECANCELLED);
  assert_int_equal(tm_iter_next(it, &t, NULL), TM_ECANCELLED);
  tm_cancel_reset(&cancel);
  assert_ok(tm_iter_next(it, &t, NULL));
  assert_int_equal(tm_view_get_i64(&t->v, 0), 500);
  tm_tensor_unref(t);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void a_place_behind_the_end_is_data_loss(void **state) {
  (void)state;
  tm_err err = {0};
  tm_dataset *ds = range_of(5);
  tm_iter *it = iterate(ds, &test_env);
  assert_ok(tm_iter_seek(it, (tm_iter_place){6, 0}, NULL));
  assert_int_equal(tm_iter_settle(it, &err), TM_EDATALOSS);
  assert_non_null(strstr(err.msg, "after 5 elements"));
  assert_int_equal(tm_iter_seek(it, (tm_iter_place){-1, 0}, NULL), TM_EINVAL);
  assert_ok(tm_iter_seek(it, (tm_iter_place){5, 0}, NULL));
  assert_next_fails(it, TM_ERANGE, "ended", "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void a_state_of_another_dataset_is_refused(void **state) {
  (void)state;
  tm_err err = {0};
  tm_buf b = TM_BUF_INIT(4096);
  tm_dataset *x = range_of(5), *y = range_of(6);
  tm_iter *a = iterate(x, &test_env), *c = iterate(y, &test_env);
  assert_ok(tm_iter_save(a, &b, NULL));
  assert_ok(tm_iter_restore(a, (const char *)b.data, b.len, NULL));
  assert_int_equal(tm_iter_restore(c, (const char *)b.data, b.len, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "step 1, range"));
  for (size_t n = 0; n < b.len; n++) /* cut anywhere */
    assert_int_equal(tm_iter_restore(a, (const char *)b.data, n, NULL), TM_EINVAL);
  tm_buf_release(&b);
  tm_iter_free(a);
  tm_iter_free(c);
  tm_dataset_unref(x);
  tm_dataset_unref(y);
}

static tm_status everything(void *ud) {
  tm_dataset *ds = ud;
  tm_iter *it = NULL, *back = NULL;
  tm_tensor *out[4];
  tm_buf b = TM_BUF_INIT(4096);
  tm_status s = tm_dataset_iterate(ds, &test_env, &it, NULL);
  if (s == TM_OK) s = tm_iter_seek(it, (tm_iter_place){17, 0}, NULL);
  if (s == TM_OK) s = tm_iter_next(it, out, NULL);
  for (int32_t i = 0; s == TM_OK && i < tm_dataset_width(ds); i++)
    tm_tensor_unref(out[i]);
  if (s == TM_OK) s = tm_iter_save(it, &b, NULL);
  if (s == TM_OK) s = tm_dataset_iterate(ds, &test_env, &back, NULL);
  if (s == TM_OK) s = tm_iter_restore(back, (const char *)b.data, b.len, NULL);
  if (s == TM_OK) s = tm_iter_settle(back, NULL);
  tm_iter_free(it);
  tm_iter_free(back);
  tm_buf_release(&b);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  tm_dataset *ds = range_of(20);
  chain_cache(&ds);
  CHAIN(ds, tm_data_shuffle, 8, false, 0, true);
  CHAIN(ds, tm_data_rep, 4);
  CHAIN(ds, tm_data_enumerate, 0);
  CHAIN(ds, tm_data_batch, 3, false);
  assert_true(test_torture(everything, ds) > 20);
  tm_dataset_unref(ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_seek_goes_on_behind_the_place),
      cmocka_unit_test(a_cancelled_way_is_made_again),
      cmocka_unit_test(a_place_behind_the_end_is_data_loss),
      cmocka_unit_test(a_state_of_another_dataset_is_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
