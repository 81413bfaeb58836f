/* Lines and bytes of plain and gzip files, in bounded memory. */
#include "data/reader.h"

#include <zlib.h>

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

static tm_reader *reader_of(const void *data, size_t n, tm_compression c) {
  char path[512];
  tm_reader *r;
  tm_err err = {0};
  test_file(dir, "f", data, n, path, sizeof path);
  assert_ok_err(tm_reader_open(path, c, &r, &err), &err);
  return r;
}

static void assert_line(tm_reader *r, const char *want) {
  char *p;
  size_t n;
  tm_err err = {0};
  tm_status s = tm_reader_line(r, &p, &n, &err);
  if (!want) {
    assert_int_equal(s, TM_ERANGE);
    return;
  }
  assert_ok_err(s, &err);
  assert_int_equal(n, strlen(want));
  assert_memory_equal(p, want, n);
}

static void lines_end_in_lf_or_crlf_or_nothing(void **state) {
  (void)state;
  const char text[] = "one\n\ntwo\r\nthr\ree\n\r\nlast";
  tm_reader *r = reader_of(text, sizeof text - 1, TM_COMPRESS_AUTO);
  assert_line(r, "one");
  assert_int_equal(tm_reader_number(r), 1);
  assert_line(r, "");
  assert_line(r, "two");
  assert_line(r, "thr\ree");
  assert_line(r, "");
  assert_line(r, "last");
  assert_int_equal(tm_reader_number(r), 6);
  assert_line(r, NULL);
  assert_line(r, NULL);
  tm_reader_close(r);
}

static void a_final_line_end_makes_no_line(void **state) {
  (void)state;
  tm_reader *r = reader_of("a\n", 2, TM_COMPRESS_AUTO);
  assert_line(r, "a");
  assert_line(r, NULL);
  tm_reader_close(r);
  r = reader_of("", 0, TM_COMPRESS_AUTO);
  assert_line(r, NULL);
  tm_reader_close(r);
}

static void lines_longer_than_the_window_are_whole(void **state) {
  (void)state;
  enum { LONG = 300000 };
  char *text = malloc(3 * LONG);
  size_t n = 0;
  for (int i = 0; i < 3; i++) {
    memset(text + n, 'a' + i, LONG - 7);
    n += LONG - 7;
    text[n++] = '\n';
  }
  tm_reader *r = reader_of(text, n, TM_COMPRESS_AUTO);
  for (int i = 0; i < 3; i++) {
    char *p;
    size_t len;
    assert_ok(tm_reader_line(r, &p, &len, NULL));
    assert_int_equal(len, LONG - 7);
    assert_int_equal(p[0], 'a' + i);
    assert_int_equal(p[len - 1], 'a' + i);
  }
  assert_line(r, NULL);
  tm_reader_close(r);
  free(text);
}

static void a_line_above_the_limit_is_data_loss(void **state) {
  (void)state;
  size_t n = TM_READER_LINE + 10;
  char *text = malloc(n);
  memset(text, 'x', n);
  tm_reader *r = reader_of(text, n, TM_COMPRESS_AUTO);
  char *p;
  tm_err err = {0};
  assert_int_equal(tm_reader_line(r, &p, &n, &err), TM_EDATALOSS);
  assert_non_null(strstr(err.msg, "too long"));
  assert_int_equal(tm_reader_line(r, &p, &n, &err), TM_EDATALOSS);
  tm_reader_close(r);
  free(text);
}

static void gzip_is_told_by_its_first_bytes(void **state) {
  (void)state;
  uint8_t z[256];
  size_t n = gzip_of("x\ny\n", 4, z, sizeof z);
  tm_reader *r = reader_of(z, n, TM_COMPRESS_AUTO);
  assert_line(r, "x");
  assert_line(r, "y");
  assert_line(r, NULL);
  tm_reader_close(r);
  r = reader_of(z, n, TM_COMPRESS_NONE); /* read as it is */
  char *p;
  size_t len;
  assert_ok(tm_reader_line(r, &p, &len, NULL));
  assert_int_equal((uint8_t)p[0], 0x1f);
  tm_reader_close(r);
}

static void gzip_members_follow_each_other(void **state) {
  (void)state;
  uint8_t z[256];
  size_t n = gzip_of("x\ny", 3, z, sizeof z);
  n += gzip_of("z\n", 2, z + n, sizeof z - n);
  tm_reader *r = reader_of(z, n, TM_COMPRESS_GZIP);
  assert_line(r, "x");
  assert_line(r, "yz");
  assert_line(r, NULL);
  tm_reader_close(r);
}

static void broken_gzip_is_data_loss_each_time(void **state) {
  (void)state;
  uint8_t z[256];
  size_t n = gzip_of("hello\nworld\n", 12, z, sizeof z);
  for (size_t cut = 2; cut < n; cut++) { /* at every place */
    tm_reader *r = reader_of(z, cut, TM_COMPRESS_AUTO);
    char *p;
    size_t len;
    tm_err err = {0};
    tm_status s = TM_OK;
    while (s == TM_OK) s = tm_reader_line(r, &p, &len, &err);
    assert_int_equal(s, TM_EDATALOSS);
    assert_non_null(strstr(err.msg, "/f: "));
    assert_int_equal(tm_reader_line(r, &p, &len, &err), TM_EDATALOSS);
    tm_reader_close(r);
  }
  for (size_t at = 10; at < n; at++) { /* or changed */
    z[at] ^= 0x55;
    tm_reader *r = reader_of(z, n, TM_COMPRESS_AUTO);
    char *p;
    size_t len;
    tm_status s = TM_OK;
    while (s == TM_OK) s = tm_reader_line(r, &p, &len, NULL);
    assert_int_equal(s, TM_EDATALOSS);
    tm_reader_close(r);
    z[at] ^= 0x55;
  }
  char path[512];
  test_file(dir, "plain", "abc", 3, path, sizeof path);
  tm_reader *r;
  assert_int_equal(tm_reader_open(path, TM_COMPRESS_GZIP, &r, NULL), TM_EDATALOSS);
}

static void lines_are_joined_with_their_ends(void **state) {
  (void)state;
  tm_reader *r = reader_of("a\r\nb\nc\nd", 8, TM_COMPRESS_AUTO);
  char *p;
  size_t n;
  assert_line(r, "a");
  assert_ok(tm_reader_extend(r, &p, &n, NULL));
  assert_int_equal(n, 4);
  assert_memory_equal(p, "a\r\nb", 4);
  assert_ok(tm_reader_extend(r, &p, &n, NULL));
  assert_int_equal(n, 6);
  assert_int_equal(tm_reader_number(r), 1);
  assert_line(r, "d");
  assert_int_equal(tm_reader_number(r), 4);
  assert_int_equal(tm_reader_extend(r, &p, &n, NULL), TM_ERANGE);
  assert_memory_equal(p, "d", 1);
  tm_reader_close(r);
}

static void bytes_go_on_behind_a_line(void **state) {
  (void)state;
  tm_reader *r = reader_of("head\n0123456789", 15, TM_COMPRESS_AUTO);
  char b[16];
  size_t got;
  assert_line(r, "head");
  assert_ok(tm_reader_bytes(r, b, 4, &got, NULL));
  assert_int_equal(got, 4);
  assert_memory_equal(b, "0123", 4);
  assert_ok(tm_reader_bytes(r, b, 16, &got, NULL));
  assert_int_equal(got, 6);
  assert_memory_equal(b, "456789", 6);
  assert_ok(tm_reader_bytes(r, b, 16, &got, NULL));
  assert_int_equal(got, 0);
  tm_reader_close(r);
}

static void a_missing_file_is_not_found(void **state) {
  (void)state;
  tm_reader *r;
  tm_err err = {0};
  assert_int_equal(tm_reader_open("/nowhere/x", TM_COMPRESS_AUTO, &r, &err),
                   TM_ENOTFOUND);
  assert_null(r);
  assert_non_null(strstr(err.msg, "/nowhere/x"));
}

static void patterns_become_sorted_names(void **state) {
  (void)state;
  char path[512], pattern[512];
  tm_files f;
  tm_err err = {0};
  const char *names[] = {"b.txt", "a.txt", "c.csv"};
  for (int i = 0; i < 3; i++) test_file(dir, names[i], "", 0, path, sizeof path);
  snprintf(pattern, sizeof pattern, "%s/*.txt", dir);
  const char *one = pattern;
  assert_ok_err(tm_files_init(&f, &one, 1, NULL, true, "x", &err), &err);
  assert_int_equal(f.n, 2);
  assert_non_null(strstr(f.name[0], "/a.txt"));
  assert_non_null(strstr(f.name[1], "/b.txt"));
  tm_files_release(&f);
  test_file(dir, "odd[1].txt", "", 0, path, sizeof path); /* a name, not a pattern */
  one = path;
  assert_ok_err(tm_files_init(&f, &one, 1, "gzip", true, "x", &err), &err);
  assert_string_equal(f.name[0], path);
  assert_int_equal(f.compression, TM_COMPRESS_GZIP);
  tm_files_release(&f);
  snprintf(pattern, sizeof pattern, "%s/*.none", dir);
  one = pattern;
  assert_int_equal(tm_files_init(&f, &one, 1, NULL, true, "x", &err), TM_ENOTFOUND);
  one = dir;
  assert_int_equal(tm_files_init(&f, &one, 1, NULL, true, "x", &err), TM_EINVAL);
  assert_int_equal(tm_files_init(&f, &one, 1, "zip", true, "x", &err), TM_EINVAL);
  assert_int_equal(tm_files_init(&f, NULL, 0, NULL, true, "x", &err), TM_EINVAL);
}

static tm_status read_all(void *ud) {
  tm_reader *r = NULL;
  char *p;
  size_t n;
  tm_status s = tm_reader_open(ud, TM_COMPRESS_AUTO, &r, NULL);
  while (s == TM_OK) s = tm_reader_line(r, &p, &n, NULL);
  tm_reader_close(r);
  return s == TM_ERANGE ? TM_OK : s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  char path[512];
  char *text = malloc(200000);
  memset(text, 'q', 200000);
  test_file(dir, "long", text, 200000, path, sizeof path);
  assert_true(test_torture(read_all, path) >= 4);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_end_in_lf_or_crlf_or_nothing),
      cmocka_unit_test(a_final_line_end_makes_no_line),
      cmocka_unit_test(lines_longer_than_the_window_are_whole),
      cmocka_unit_test(a_line_above_the_limit_is_data_loss),
      cmocka_unit_test(gzip_is_told_by_its_first_bytes),
      cmocka_unit_test(gzip_members_follow_each_other),
      cmocka_unit_test(broken_gzip_is_data_loss_each_time),
      cmocka_unit_test(lines_are_joined_with_their_ends),
      cmocka_unit_test(bytes_go_on_behind_a_line),
      cmocka_unit_test(a_missing_file_is_not_found),
      cmocka_unit_test(patterns_become_sorted_names),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
