/* A checkpoint that has the rows of an earlier one, and those that changed since. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base.h"
#include "ckpt/file.h"
#include "ckpt/safetensors.h"
#include "test_folder.h"

enum { ROWS = 50, WIDTH = 3 };

static const tm_shape table = {2, {ROWS, WIDTH}};

/* Element e of row r is base + 10 r + e. */
static tm_tensor *rows_of(int64_t first, int64_t n, float base) {
  tm_shape s = tm_shape_of(2, (int64_t[]){n, WIDTH});
  tm_tensor *t;
  if (tm_tensor_new(TM_F32, &s, &t, NULL)) return NULL;
  for (int64_t i = 0; i < n * WIDTH; i++)
    ((float *)t->v.data)[i] = base + (float)(10 * (first + i / WIDTH) + i % WIDTH);
  return t;
}

static tm_status save_base(const char *path, tm_err *err) {
  tm_ckpt_writer *w;
  TM_TRY(tm_ckpt_create(path, &w, err));
  tm_status s = TM_OK;
  for (int64_t first = 0; s == TM_OK && first < ROWS; first += 20) {
    tm_tensor *t = rows_of(first, first == 40 ? 10 : 20, 1000);
    s = t ? tm_ckpt_put(w, "table", &table, first, t, err) : TM_ENOMEM;
    tm_tensor_unref(t);
  }
  if (s == TM_OK) s = tm_ckpt_commit(w, err);
  tm_ckpt_writer_free(w);
  return s;
}

/* A file with the rows id[], whose numbers are new. */
static tm_status write_rows(tm_ckpt_writer *w, const int64_t *id, int64_t n,
                            size_t *file, tm_err *err) {
  char name[TM_CKPT_FILE_NAME], path[TM_PATH_MAX];
  char ids[TM_CKPT_ENTRY_NAME], rows[TM_CKPT_ENTRY_NAME];
  tm_sink f;
  tm_ckpt_patch_entry(ids, "table", "ids", 0);
  tm_ckpt_patch_entry(rows, "table", "rows", 0);
  tm_st_item items[] = {{ids, TM_I64, tm_shape_of(1, &n)},
                        {rows, TM_F32, tm_shape_of(2, (int64_t[]){n, WIDTH})}};
  tm_buf head = TM_BUF_INIT(1 << 16);
  TM_TRY(tm_ckpt_reserve(w, name, file, err));
  TM_TRY(tm_path_join(path, tm_ckpt_directory(w), name, err));
  TM_TRY(tm_sink_open(&f, path, err));
  tm_status s = tm_st_header(items, 2, &head, err);
  if (s == TM_OK) s = tm_sink_put(&f, head.data, head.len, err);
  if (s == TM_OK) s = tm_sink_put(&f, id, (size_t)n * sizeof *id, err);
  for (int64_t i = 0; s == TM_OK && i < n; i++) {
    tm_tensor *t = rows_of(id[i], 1, 2000);
    s = t ? tm_sink_put(&f, t->v.data, WIDTH * sizeof(float), err) : TM_ENOMEM;
    tm_tensor_unref(t);
  }
  if (s == TM_OK) s = tm_sink_close(&f, err);
  tm_sink_abort(&f);
  tm_buf_release(&head);
  return s ? s : tm_ckpt_filled(w, *file, f.size, f.crc, err);
}

static tm_status save_on(const char *path, const char *base, const int64_t *id,
                         int64_t n, tm_err *err) {
  tm_ckpt_writer *w;
  tm_ckpt_base *b = NULL;
  size_t file = 0;
  TM_TRY(tm_ckpt_create(path, &w, err));
  tm_status s = tm_ckpt_base_open(base, &b, err);
  if (s == TM_OK) s = write_rows(w, id, n, &file, err);
  if (s == TM_OK) s = tm_ckpt_base_lend(b, w, "table", err);
  if (s == TM_OK) s = tm_ckpt_note_patch(w, "table", 0, n, file, err);
  if (s == TM_OK) s = tm_ckpt_commit(w, err);
  tm_ckpt_base_close(b);
  tm_ckpt_writer_free(w);
  return s;
}

static const int64_t changed[] = {0, 3, 19, 20, 21, 48, 49};
enum { NCHANGED = sizeof changed / sizeof *changed };

static float want(int64_t row) {
  for (int i = 0; i < NCHANGED; i++)
    if (changed[i] == row) return 2000;
  return 1000;
}

/* Every range of rows. */
static void check_all(const char *path) {
  tm_ckpt_reader *r;
  tm_err err = {0};
  tm_tensor *t;
  assert_ok_err(tm_ckpt_open(path, &r, &err), &err);
  assert_ok_err(tm_ckpt_verify(r, &err), &err);
  const tm_ckpt_tensor *e = tm_ckpt_find(r, "table");
  assert_non_null(e);
  for (int64_t first = 0; first <= ROWS; first++)
    for (int64_t n = 0; first + n <= ROWS; n++) {
      assert_ok_err(tm_ckpt_read(r, e, first, n, &t, &err), &err);
      for (int64_t i = 0; i < n * WIDTH; i++)
        assert_true(((float *)t->v.data)[i] ==
                    want(first + i / WIDTH) +
                        (float)(10 * (first + i / WIDTH) + i % WIDTH));
      tm_tensor_unref(t);
    }
  tm_ckpt_close(r);
}

static void rows_that_changed_stand_before_those_of_the_base(void **state) {
  (void)state;
  char base[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(base, "one/ckpt-1");
  in_dir(path, "one/ckpt-2");
  assert_ok_err(save_base(base, &err), &err);
  assert_ok_err(save_on(path, base, changed, NCHANGED, &err), &err);
  check_all(path);
}

static void the_base_may_be_removed_and_bases_of_bases_too(void **state) {
  (void)state;
  char base[TM_PATH_MAX], a[TM_PATH_MAX], b[TM_PATH_MAX], data[TM_PATH_MAX];
  tm_err err = {0};
  struct stat st;
  in_dir(base, "two/ckpt-1");
  in_dir(a, "two/ckpt-2");
  in_dir(b, "two/ckpt-3");
  assert_ok_err(save_base(base, &err), &err);
  assert_ok_err(save_on(a, base, changed, 2, &err), &err);
  in_dir(data, "two/ckpt-1/data-00000.safetensors");
  assert_int_equal(stat(data, &st), 0);
  assert_int_equal(st.st_nlink, 2); /* no copy was made */
  assert_ok_err(tm_ckpt_remove(base, &err), &err);
  /* The next one takes the same rows from the one between, and all changes itself. */
  assert_ok_err(save_on(b, a, changed, NCHANGED, &err), &err);
  assert_ok_err(tm_ckpt_remove(a, &err), &err);
  check_all(b);
}

static int no_link(const char *from, const char *to) {
  (void)from;
  (void)to;
  errno = EXDEV;
  return -1;
}

static void without_links_the_files_are_copied(void **state) {
  (void)state;
  char base[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  tm_file_ops ops = *tm_file_system();
  ops.link = no_link;
  in_dir(base, "copy/ckpt-1");
  in_dir(path, "copy/ckpt-2");
  assert_ok_err(save_base(base, &err), &err);
  tm_file_hook(&ops);
  assert_ok_err(save_on(path, base, changed, NCHANGED, &err), &err);
  tm_file_hook(NULL);
  assert_ok_err(tm_ckpt_remove(base, &err), &err);
  check_all(path);
}

static void numbers_that_do_not_rise_are_refused(void **state) {
  (void)state;
  char base[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  static const int64_t bad[][3] = {{3, 3, 9}, {5, 4, 9}, {0, 3, -1}, {1, 49, 50}};
  in_dir(base, "bad/ckpt-1");
  assert_ok_err(save_base(base, &err), &err);
  for (size_t k = 0; k < 4; k++) {
    tm_ckpt_reader *r;
    tm_tensor *t = NULL;
    in_dir(path, "bad/ckpt-2");
    assert_ok_err(save_on(path, base, bad[k], 3, &err), &err);
    assert_ok_err(tm_ckpt_open(path, &r, &err), &err);
    tm_status s = tm_ckpt_read(r, tm_ckpt_find(r, "table"), 0, ROWS, &t, &err);
    assert_true(s == TM_EDATALOSS || k >= 2); /* rows that are not there are not read */
    tm_tensor_unref(t);
    tm_ckpt_close(r);
  }
}

static tm_status memory_body(void *ud) {
  char base[TM_PATH_MAX];
  tm_err err = {0};
  tm_ckpt_reader *r;
  tm_tensor *t = NULL;
  in_dir(base, "memory/ckpt-1");
  TM_TRY(save_on(ud, base, changed, NCHANGED, &err));
  tm_status s = tm_ckpt_open(ud, &r, &err);
  if (s == TM_OK) s = tm_ckpt_read(r, tm_ckpt_tensor_at(r, 0), 1, 30, &t, &err);
  tm_tensor_unref(t);
  tm_ckpt_close(r);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  char base[TM_PATH_MAX], path[TM_PATH_MAX];
  tm_err err = {0};
  in_dir(base, "memory/ckpt-1");
  in_dir(path, "memory/ckpt-2");
  assert_ok_err(save_base(base, &err), &err);
  assert_true(test_torture(memory_body, path) > 10);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_that_changed_stand_before_those_of_the_base),
      cmocka_unit_test(the_base_may_be_removed_and_bases_of_bases_too),
      cmocka_unit_test(without_links_the_files_are_copied),
      cmocka_unit_test(numbers_that_do_not_rise_are_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
