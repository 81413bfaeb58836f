/* safetensors: what is written is read back, and nothing malformed is believed. */
#include "base/bytes.h"
#include "ckpt/file.h"
#include "ckpt/safetensors.h"
#include "test_folder.h"

/* A file with this header and n data bytes 0, 1, 2, ...; its path. */
static const char *file_of(const char *header, size_t n) {
  static char path[300];
  uint8_t b[4096];
  size_t len = strlen(header);
  assert_true(8 + len + n <= sizeof b);
  tm_put64(b, len);
  memcpy(b + 8, header, len);
  for (size_t i = 0; i < n; i++) b[8 + len + i] = (uint8_t)i;
  test_file(dir, "x.safetensors", b, 8 + len + n, path, sizeof path);
  return path;
}

#define ENTRY(dtype, shape, a, b) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #a "," #b "]}"

static void refused(const char *header, size_t n, const char *word) {
  tm_err err = {0};
  tm_err_clear(&err);
  tm_st_file *f;
  assert_int_equal(tm_st_open(file_of(header, n), &f, &err), TM_EDATALOSS);
  assert_null(f);
  if (!strstr(err.msg, word) || !strstr(err.msg, "x.safetensors"))
    fail_msg("\"%s\" lacks \"%s\"", err.msg, word);
}

static void a_header_of_another_tool_is_read(void **state) {
  (void)state;
  tm_err err = {0};
  tm_st_file *f;
  /* Not in order of data, spaces, metadata, a dtype that this project has not. */
  const char *h = "{\"__metadata__\":{\"format\":\"pt\"}, \"b\": " ENTRY(
      "F16", "[2]", 8, 12) ",\"a\":" ENTRY("F32", "[2,1]", 0,
                                           8) ",\"none\":" ENTRY("I64", "[0]", 12,
                                                                 12) "}   ";
  assert_ok_err(tm_st_open(file_of(h, 12), &f, &err), &err);
  assert_int_equal(tm_st_count(f), 3);
  assert_string_equal(tm_st_at(f, 0)->name, "a");
  const tm_st_entry *b = tm_st_find(f, "b");
  assert_int_equal(b->dtype, TM_DTYPE_NONE);
  assert_string_equal(b->type, "F16");
  uint8_t got[3];
  assert_ok_err(tm_st_read(f, b, 1, got, 3, &err), &err);
  assert_int_equal(got[0], 9);
  assert_int_equal(got[2], 11);
  assert_int_equal(tm_st_read(f, b, 2, got, 3, &err), TM_EDATALOSS);
  assert_null(tm_st_find(f, "c"));
  tm_st_close(f);
}

static void malformed_headers_are_refused_with_the_reason(void **state) {
  (void)state;
  refused("{\"a\":" ENTRY("F32", "[2]", 0, 8) ",\"b\":" ENTRY("U8", "[4]", 4, 8) "}", 8,
          "overlap");
  refused("{\"a\":" ENTRY("F32", "[1]", 4, 8) "}", 8, "hole");
  refused("{\"a\":" ENTRY("F32", "[1]", 0, 4) "}", 8, "after the last");
  refused("{\"a\":" ENTRY("F32", "[3]", 0, 8) "}", 8, "do not agree");
  refused("{\"a\":" ENTRY("F32", "[2]", 0, 8) "}", 7, "outside");
  refused("{\"a\":" ENTRY("F32", "[2]", 8, 0) "}", 8, "outside");
  refused("{\"a\":" ENTRY("F32", "[-2]", 0, 8) "}", 8, "size");
  refused("{\"a\":" ENTRY("F32", "[4611686018427387904,4]", 0, 8) "}", 8, "big");
  refused("{\"a\":" ENTRY("F33", "[2]", 0, 8) "}", 8, "dtype");
  refused("{\"a\":" ENTRY("F32", "[2]", 0, 8) ",\"a\":" ENTRY("F32", "[0]", 8, 8) "}",
          8, "duplicate");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "entry");
  refused("{\"__metadata__\":{\"x\":1}}", 0, "metadata");
  refused("[]", 0, "begin");
  refused("{", 0, "JSON");
  refused("", 0, "begin");
}

static void a_length_beyond_the_file_is_refused_before_memory_is_taken(void **state) {
  (void)state;
  uint8_t b[16] = {0};
  char path[300];
  tm_err err = {0};
  tm_st_file *f;
  tm_put64(b, 9);
  test_file(dir, "y.safetensors", b, sizeof b, path, sizeof path);
  assert_int_equal(tm_st_open(path, &f, &err), TM_EDATALOSS);
  tm_put64(b, UINT64_MAX - 3);
  test_file(dir, "y.safetensors", b, sizeof b, path, sizeof path);
  assert_int_equal(tm_st_open(path, &f, &err), TM_EDATALOSS);
  test_file(dir, "y.safetensors", b, 3, path, sizeof path);
  assert_int_equal(tm_st_open(path, &f, &err), TM_EDATALOSS);
  assert_int_equal(tm_st_open(dir, &f, &err), TM_EINVAL);
  assert_int_equal(tm_st_open("/nowhere/x", &f, &err), TM_ENOTFOUND);
  assert_non_null(strstr(err.msg, "/nowhere/x"));
}

static void data_begin_at_a_multiple_of_64(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(1 << 16);
  tm_err err = {0};
  tm_st_item items[2] = {{"ключ/a b", TM_F64, tm_shape_of(1, (int64_t[]){3})},
                         {"s", TM_I64, tm_shape_scalar()}};
  assert_ok_err(tm_st_header(items, 2, &b, &err), &err);
  assert_int_equal(b.len % TM_ST_ALIGN, 0);
  assert_int_equal(tm_get64(b.data), b.len - 8);
  items[1].name = items[0].name;
  tm_buf_clear(&b);
  assert_int_equal(tm_st_header(items, 2, &b, &err), TM_EINVAL);
  items[1].name = "\xff";
  tm_buf_clear(&b);
  assert_int_equal(tm_st_header(items, 2, &b, &err), TM_EINVAL);
  items[1] = (tm_st_item){"s", TM_STRING, tm_shape_scalar()};
  tm_buf_clear(&b);
  assert_int_equal(tm_st_header(items, 2, &b, &err), TM_EINVAL);
  tm_buf_release(&b);
}

static tm_status open_body(void *ud) {
  tm_st_file *f;
  tm_status s = tm_st_open(ud, &f, NULL);
  tm_st_close(f);
  return s;
}

static void opening_survives_every_failed_allocation(void **state) {
  (void)state;
  const char *h =
      "{\"a\":" ENTRY("F32", "[2]", 0, 8) ",\"b\":" ENTRY("U8", "[4]", 8, 12) "}";
  assert_true(test_torture(open_body, (void *)(uintptr_t)file_of(h, 12)) > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_header_of_another_tool_is_read),
      cmocka_unit_test(malformed_headers_are_refused_with_the_reason),
      cmocka_unit_test(a_length_beyond_the_file_is_refused_before_memory_is_taken),
      cmocka_unit_test(data_begin_at_a_multiple_of_64),
      cmocka_unit_test(opening_survives_every_failed_allocation),
  };
  return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
