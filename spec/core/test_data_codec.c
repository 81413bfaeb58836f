/* Every kind of dataset travels as bytes; no bytes do harm. */
#include "datasets.h"

static char dir[256], csv_path[512], text_path[512], idx_path[512];

static int make_files(void **state) {
  (void)state;
  test_dir(dir, sizeof dir);
  test_file(dir, "a.csv", "a,b\n1,x\n?,y\n", 12, csv_path, sizeof csv_path);
  test_file(dir, "a.txt", "one\ntwo\n", 8, text_path, sizeof text_path);
  test_file(dir, "a.idx", "\0\0\010\1\0\0\0\3\1\2\3", 11, idx_path, sizeof idx_path);
  return 0;
}

static int remove_files(void **state) {
  (void)state;
  test_rmdir(dir);
  return 0;
}

static tm_dataset *csv_source(void) {
  const char *name = csv_path;
  tm_csv_options o;
  tm_dataset *ds;
  tm_csv_defaults(&o);
  o.files = &name;
  o.nfiles = 1;
  o.header = true;
  o.na_value = "?";
  o.label = "a";
  assert_ok(tm_data_csv(&o, &ds, NULL));
  return ds;
}

/* Sources, and what is said after them, one of each kind that needs no graph. */
static tm_dataset *sample(int i) {
  tm_dataset *ds = range_of(10), *in[2], *out;
  const char *name;
  tm_text_options text = {&name, 1, NULL};
  tm_idx_options idx = {&name, 1, NULL, 0, "none"};
  tm_tensor *t;
  switch (i) {
    case 0:
      return ds;
    case 1:
      tm_dataset_unref(ds);
      return csv_source();
    case 2:
      tm_dataset_unref(ds);
      name = text_path;
      assert_ok(tm_data_text_line(&text, &ds, NULL));
      return ds;
    case 3:
      tm_dataset_unref(ds);
      name = idx_path;
      assert_ok(tm_data_idx(&idx, &ds, NULL));
      return ds;
    case 4:
      tm_dataset_unref(ds);
      t = ints(2, 3, 0);
      assert_ok(tm_data_tensors(&t, 1, &ds, NULL));
      tm_tensor_unref(t);
      CHAIN(ds, tm_data_unbatch);
      CHAIN(ds, tm_data_enumerate, -3);
      return ds;
    case 5:
      CHAIN(ds, tm_data_skip, 1);
      CHAIN(ds, tm_data_shard, 2, TM_DATA_WORKER, NULL);
      CHAIN(ds, tm_data_cache);
      CHAIN(ds, tm_data_shuffle, 4, true, UINT64_MAX, false);
      CHAIN(ds, tm_data_batch, 2, true);
      CHAIN(ds, tm_data_prefetch, 2);
      CHAIN(ds, tm_data_rep, 3);
      CHAIN(ds, tm_data_take, 5);
      return ds;
    case 6:
      in[0] = ds;
      in[1] = slices_of(ints(4, 0, 50));
      assert_ok(tm_data_zip(in, 2, &out, NULL));
      tm_dataset_unref(in[0]);
      tm_dataset_unref(in[1]);
      assert_ok(tm_data_concatenate(out, out, &ds, NULL));
      tm_dataset_unref(out);
      return ds;
    default:
      tm_dataset_unref(ds);
      return NULL;
  }
}

static void pack(const tm_dataset *ds, tm_buf *b) {
  tm_err err = {0};
  assert_ok_err(tm_dataset_pack(ds, b, &err), &err);
}

static void a_description_survives_the_way(void **state) {
  (void)state;
  for (int i = 0;; i++) {
    tm_dataset *ds = sample(i), *back;
    if (!ds) break;
    tm_buf b = TM_BUF_INIT(1 << 20), again = TM_BUF_INIT(1 << 20);
    tm_err err = {0};
    pack(ds, &b);
    assert_ok_err(tm_dataset_unpack(b.data, b.len, &back, &err), &err);
    pack(back, &again);
    assert_int_equal(b.len, again.len);
    assert_memory_equal(b.data, again.data, b.len);
    assert_int_equal(tm_dataset_width(back), tm_dataset_width(ds));
    assert_int_equal(tm_dataset_cardinality(back), tm_dataset_cardinality(ds));
    for (int32_t k = 0; k < tm_dataset_width(ds); k++) {
      const tm_type *x = &tm_dataset_types(ds)[k], *y = &tm_dataset_types(back)[k];
      assert_int_equal(x->dtype, y->dtype);
      assert_true(tm_shape_equal(&x->shape, &y->shape));
      if (tm_dataset_name(ds, k))
        assert_string_equal(tm_dataset_name(ds, k), tm_dataset_name(back, k));
    }
    if (tm_dataset_types(ds)[0].dtype != TM_STRING) {
      int64_t x[64], y[64];
      size_t n = values(ds, x, 64);
      assert_int_equal(n, values(back, y, 64));
      assert_memory_equal(x, y, n * sizeof *x);
    }
    tm_buf_release(&b);
    tm_buf_release(&again);
    tm_dataset_unref(ds);
    tm_dataset_unref(back);
  }
}

static void names_and_missing_values_travel_too(void **state) {
  (void)state;
  tm_dataset *ds = csv_source(), *back;
  tm_buf b = TM_BUF_INIT(1 << 20);
  pack(ds, &b);
  tm_dataset_unref(ds);
  assert_ok(tm_dataset_unpack(b.data, b.len, &back, NULL));
  tm_buf_release(&b);
  assert_string_equal(tm_dataset_name(back, 0), "b");
  assert_string_equal(tm_dataset_name(back, 1), "a");
  tm_iter *it = iterate(back, &test_env);
  tm_tensor *t[2];
  for (int i = 0; i < 2; i++) {
    assert_ok(tm_iter_next(it, t, NULL));
    assert_true(str_is(t[0], 0, i ? "y" : "x"));
    assert_int_equal(tm_view_get_i64(&t[1]->v, 0), i ? 0 : 1);
    tm_tensor_unref(t[0]);
    tm_tensor_unref(t[1]);
  }
  tm_iter_free(it);
  tm_dataset_unref(back);
}

static void cut_or_changed_bytes_do_no_harm(void **state) {
  (void)state;
  for (int i = 0;; i++) {
    tm_dataset *ds = sample(i), *back;
    if (!ds) break;
    tm_buf b = TM_BUF_INIT(1 << 20);
    tm_err err = {0};
    pack(ds, &b);
    tm_dataset_unref(ds);
    for (size_t n = 0; n < b.len; n++) {
      tm_err_clear(&err);
      assert_int_not_equal(tm_dataset_unpack(b.data, n, &back, &err), TM_OK);
      assert_null(back);
      assert_int_not_equal(err.msg[0], 0);
    }
    for (size_t at = 0; at < b.len; at++) {
      const uint8_t masks[] = {0x01, 0x80, 0xff};
      for (int m = 0; m < 3; m++) {
        b.data[at] ^= masks[m];
        if (tm_dataset_unpack(b.data, b.len, &back, &err) == TM_OK)
          tm_dataset_unref(back);
        else
          assert_null(back);
        b.data[at] ^= masks[m];
      }
    }
    tm_buf_release(&b);
  }
}

static void what_is_too_large_names_the_remedy(void **state) {
  (void)state;
  tm_dataset *ds = slices_of(ints(1000, 0, 0));
  tm_buf b = TM_BUF_INIT(4000);
  tm_err err = {0};
  assert_int_equal(tm_dataset_pack(ds, &b, &err), TM_EEXHAUSTED);
  assert_non_null(strstr(err.msg, "files"));
  assert_int_equal(b.len, 0);
  tm_buf_release(&b);
  tm_dataset_unref(ds);
}

static void another_version_is_refused(void **state) {
  (void)state;
  tm_dataset *back;
  tm_err err = {0};
  assert_int_equal(tm_dataset_unpack("\x92\x02\xc0", 3, &back, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "version 2"));
}

static tm_status there_and_back(void *ud) {
  tm_dataset *back = NULL;
  tm_buf b = TM_BUF_INIT(1 << 20);
  tm_status s = tm_dataset_pack(ud, &b, NULL);
  if (s == TM_OK) s = tm_dataset_unpack(b.data, b.len, &back, NULL);
  tm_buf_release(&b);
  tm_dataset_unref(back);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  for (int i = 0;; i++) {
    tm_dataset *ds = sample(i);
    if (!ds) break;
    test_torture(there_and_back, ds);
    tm_dataset_unref(ds);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_description_survives_the_way),
      cmocka_unit_test(names_and_missing_values_travel_too),
      cmocka_unit_test(cut_or_changed_bytes_do_no_harm),
      cmocka_unit_test(what_is_too_large_names_the_remedy),
      cmocka_unit_test(another_version_is_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_files, remove_files);
}
