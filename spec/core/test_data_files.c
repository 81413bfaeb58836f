/* text_line and idx: whole files, parts, damaged ones. */
#include "datasets.h"

static char dir[256];

static int make_dir(void **state) {
  (void)state;
  test_dir(dir, sizeof dir);
  return 0;
}

static int remove_dir(void **state) {
  (void)state;
  test_rmdir(dir);
  return 0;
}

/* --- text_line --- */
static tm_dataset *text_of(const char *const *files, size_t n) {
  tm_text_options o = {files, n, NULL};
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_text_line(&o, &ds, &err), &err);
  return ds;
}

static void lines_of_all_files_keep_their_order(void **state) {
  (void)state;
  char a[512], b[512], text[4000];
  uint8_t z[2000];
  size_t n = 0;
  for (int i = 0; i < 200; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, i % 7 ? "line %d%s" : "%.0d%s", i,
                          i % 2 ? "\n" : "\r\n");
  test_file(dir, "a.txt", text, n, a, sizeof a);
  n = gzip_of("last\n", 5, z, sizeof z);
  test_file(dir, "b.txt.gz", z, n, b, sizeof b);
  tm_dataset *ds = text_of((const char *[]){a, b}, 2);
  tm_iter *it = iterate(ds, &test_env);
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_UNKNOWN);
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i <= 200; i++) {
      char want[32];
      tm_tensor *t;
      assert_ok(tm_iter_next(it, &t, NULL));
      snprintf(want, sizeof want, i == 200 ? "last" : "line %d", i);
      assert_int_equal(t->v.shape.rank, 0);
      if (i == 200 || i % 7) assert_true(str_is(t, 0, want));
      tm_tensor_unref(t);
    }
    assert_next_fails(it, TM_ERANGE, "ended", "");
    assert_ok(tm_iter_reset(it, NULL));
  }
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void lines_before_the_damage_come_first(void **state) {
  (void)state;
  char a[512], text[20000];
  uint8_t z[20000];
  size_t n = 0;
  for (int i = 0; i < 1500; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, "%x\n", (unsigned)i * 2654435761u);
  n = gzip_of(text, n, z, sizeof z);
  test_file(dir, "cut.gz", z, n / 2, a, sizeof a);
  tm_dataset *ds = text_of((const char *[]){a}, 1);
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t;
  tm_err err = {0};
  int64_t lines = 0;
  tm_status s;
  while ((s = tm_iter_next(it, &t, &err)) == TM_OK) {
    lines++;
    tm_tensor_unref(t);
  }
  assert_int_equal(s, TM_EDATALOSS);
  assert_non_null(strstr(err.msg, "cut.gz"));
  assert_true(lines > 100 && lines < 1500);
  assert_next_fails(it, TM_EDATALOSS, "cut.gz", "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

/* --- idx --- */
/* A file of n rows of (2) int32, row i = {first + i, -1}. */
static void idx_file(const char *name, uint8_t type, int n, int32_t first, char *path) {
  uint8_t b[4096] = {0, 0, type, 2, 0, 0, 0, (uint8_t)n, 0, 0, 0, 2};
  size_t at = 12;
  for (int i = 0; i < n; i++) {
    uint32_t v = (uint32_t)(first + i);
    b[at++] = (uint8_t)(v >> 24);
    b[at++] = (uint8_t)(v >> 16);
    b[at++] = (uint8_t)(v >> 8);
    b[at++] = (uint8_t)v;
    memset(b + at, 0xff, 4);
    at += 4;
  }
  test_file(dir, name, b, at, path, 512);
}

static void label_file(const char *name, int n, char *path) {
  uint8_t b[300] = {0, 0, 8, 1, 0, 0, 0, (uint8_t)n};
  for (int i = 0; i < n; i++) b[8 + i] = (uint8_t)(i % 10);
  test_file(dir, name, b, 8 + (size_t)n, path, 512);
}

static void idx_parts_are_read_as_one(void **state) {
  (void)state;
  char a[512], b[512], l[512];
  idx_file("a.idx", 0x0c, 20, 0, a);
  idx_file("b.idx", 0x0c, 13, 20, b);
  label_file("l.idx", 33, l);
  const char *images[] = {a, b}, *labels[] = {l};
  tm_idx_options o = {images, 2, labels, 1, NULL};
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_idx(&o, &ds, &err), &err);
  assert_int_equal(tm_dataset_width(ds), 2);
  assert_int_equal(tm_dataset_cardinality(ds), 33);
  assert_int_equal(tm_dataset_types(ds)[0].dtype, TM_I32);
  assert_int_equal(tm_dataset_types(ds)[1].dtype, TM_U8);
  int64_t got[99];
  assert_int_equal(values(ds, got, 99), 99);
  for (int i = 0; i < 33; i++) {
    assert_int_equal(got[3 * i], i);
    assert_int_equal(got[3 * i + 1], -1);
    assert_int_equal(got[3 * i + 2], i % 10);
  }
  tm_dataset_unref(ds);
  o.nlabels = 0;
  assert_ok(tm_data_idx(&o, &ds, NULL));
  assert_int_equal(tm_dataset_width(ds), 1);
  assert_int_equal(values(ds, got, 99), 66);
  tm_dataset_unref(ds);
  o.nlabels = 1;
  o.nimages = 1;
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "20 images but 33 labels"));
}

static void idx_headers_are_checked(void **state) {
  (void)state;
  char a[512], b[512];
  const char *one[] = {a}, *two[] = {a, b};
  tm_idx_options o = {one, 1, NULL, 0, NULL};
  tm_dataset *ds;
  tm_err err = {0};
  test_file(dir, "x", "\0\0\010", 3, a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EDATALOSS);
  test_file(dir, "x", "\0\0\010\1\0\0", 6, a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EDATALOSS);
  test_file(dir, "x", "PNG..........", 13, a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "not an idx file"));
  test_file(dir, "x", "\0\0\010\011", 4, a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EINVAL);
  test_file(dir, "x", "\0\0\013\1\0\0\0\0", 8, a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EUNIMPL);
  test_file(
      dir, "x",
      "\0\0\010\4\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377", 20,
      a, sizeof a);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EINVAL);
  idx_file("x", 0x0c, 2, 0, a);
  label_file("y", 2, b);
  o.images = two;
  o.nimages = 2;
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "another kind"));
  unlink(b);
  assert_int_equal(tm_data_idx(&o, &ds, &err), TM_ENOTFOUND);
}

static void a_cut_idx_file_names_the_record(void **state) {
  (void)state;
  char a[512];
  const char *one[] = {a};
  tm_idx_options o = {one, 1, NULL, 0, NULL};
  tm_dataset *ds;
  idx_file("cut.idx", 0x0c, 40, 0, a);
  assert_int_equal(truncate(a, 12 + 8 * 21 + 3), 0);
  assert_ok(tm_data_idx(&o, &ds, NULL));
  tm_iter *it = iterate(ds, &test_env);
  for (int i = 0; i < 21; i++) {
    tm_tensor *t;
    tm_err err = {0};
    assert_ok_err(tm_iter_next(it, &t, &err), &err);
    assert_int_equal(tm_view_get_i64(&t->v, 0), i);
    tm_tensor_unref(t);
  }
  assert_next_fails(it, TM_EDATALOSS, "record 22", "cut.idx");
  assert_next_fails(it, TM_ERANGE, "ended", "");
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

static void mnist_test_images_are_whole(void **state) {
  (void)state;
  char a[512], b[512];
  if (!shipped("mnist/t10k-images-idx3-ubyte.gz", a, sizeof a)) skip();
  if (!shipped("mnist/t10k-labels-idx1-ubyte.gz", b, sizeof b)) skip();
  const char *images[] = {a}, *labels[] = {b};
  tm_idx_options o = {images, 1, labels, 1, NULL};
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_idx(&o, &ds, &err), &err);
  CHAIN(ds, tm_data_batch, 500, true);
  assert_int_equal(tm_dataset_cardinality(ds), 20);
  const tm_shape *s = &tm_dataset_types(ds)[0].shape;
  assert_true(s->rank == 3 && s->dim[0] == 500 && s->dim[1] == 28 && s->dim[2] == 28);
  int64_t count[10] = {0}, sum = 0;
  tm_iter *it = iterate(ds, &test_env);
  tm_tensor *t[2];
  while (tm_iter_next(it, t, &err) == TM_OK) {
    for (int i = 0; i < 500; i++) count[tm_view_get_i64(&t[1]->v, i)]++;
    for (int64_t i = 0; i < 500 * 784; i++) sum += ((uint8_t *)t[0]->v.data)[i];
    tm_tensor_unref(t[0]);
    tm_tensor_unref(t[1]);
  }
  const int64_t want[] = {980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009};
  assert_memory_equal(count, want, sizeof want);
  assert_int_equal(sum, 264923200);
  tm_iter_free(it);
  tm_dataset_unref(ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_of_all_files_keep_their_order),
      cmocka_unit_test(lines_before_the_damage_come_first),
      cmocka_unit_test(idx_parts_are_read_as_one),
      cmocka_unit_test(idx_headers_are_checked),
      cmocka_unit_test(a_cut_idx_file_names_the_record),
      cmocka_unit_test(mnist_test_images_are_whole),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
