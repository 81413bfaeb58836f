/* Dtypes, shapes, storage, tensors and their text. */
#include <math.h>

#include "tensor/tensor.h"
#include "test.h"

static tm_shape shape(int32_t rank, int64_t a, int64_t b, int64_t c) {
  return tm_shape_of(rank, (int64_t[]){a, b, c});
}

static void every_dtype_has_a_size_and_a_name(void **state) {
  (void)state;
  for (int t = TM_F32; t <= TM_STRING; t++) {
    assert_true(tm_dtype_valid(t));
    assert_true(tm_dtype_size((tm_dtype)t) > 0);
    assert_int_equal(tm_dtype_of_name(tm_dtype_name((tm_dtype)t)), t);
  }
  assert_false(tm_dtype_valid(0) || tm_dtype_valid(8) || tm_dtype_valid(-1));
  assert_int_equal(tm_dtype_of_name("float"), TM_DTYPE_NONE);
  assert_true(tm_dtype_is_number(TM_U8) && tm_dtype_is_float(TM_F64));
  assert_false(tm_dtype_is_number(TM_BOOL) || tm_dtype_is_int(TM_BOOL));
}

static void shapes_broadcast_as_in_numpy(void **state) {
  (void)state;
  const struct {
    tm_shape a, b, out;
  } ok[] = {
      {shape(0, 0, 0, 0), shape(2, 2, 3, 0), shape(2, 2, 3, 0)},
      {shape(2, 4, 1, 0), shape(1, 3, 0, 0), shape(2, 4, 3, 0)},
      {shape(2, 0, 3, 0), shape(2, 1, 3, 0), shape(2, 0, 3, 0)},
      {shape(1, -1, 0, 0), shape(1, 1, 0, 0), shape(1, -1, 0, 0)},
      {shape(1, -1, 0, 0), shape(1, 5, 0, 0), shape(1, 5, 0, 0)},
      {shape(1, -1, 0, 0), shape(2, -1, -1, 0), shape(2, -1, -1, 0)},
  };
  for (size_t i = 0; i < TM_COUNT(ok); i++) {
    tm_shape s;
    assert_ok(tm_shape_broadcast(&ok[i].a, &ok[i].b, &s, NULL));
    assert_true(tm_shape_equal(&s, &ok[i].out));
    assert_ok(tm_shape_broadcast(&ok[i].b, &ok[i].a, &s, NULL));
    assert_true(tm_shape_equal(&s, &ok[i].out));
  }
  tm_shape a = shape(2, 2, 3, 0), b = shape(1, 2, 0, 0), s;
  tm_err err = {0};
  assert_int_equal(tm_shape_broadcast(&a, &b, &s, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "(2, 3) and (2) do not broadcast"));
}

static void too_large_shapes_are_refused(void **state) {
  (void)state;
  tm_shape s = shape(3, INT64_C(1) << 31, INT64_C(1) << 31, 1);
  tm_tensor *t;
  tm_err err = {0};
  assert_int_equal(tm_shape_check(&s, 1, NULL), TM_EINVAL);
  assert_int_equal(tm_tensor_new(TM_F32, &s, &t, &err), TM_EINVAL);
  assert_null(t);
  s = shape(3, 0, INT64_MAX, INT64_MAX);
  assert_int_equal(tm_shape_check(&s, 1, NULL), TM_EINVAL);
  s = shape(1, -2, 0, 0);
  assert_int_equal(tm_shape_check(&s, 1, NULL), TM_EINVAL);
  s = shape(1, -1, 0, 0);
  assert_int_equal(tm_tensor_new(TM_F32, &s, &t, &err), TM_EINVAL);
  s.rank = 9;
  assert_int_equal(tm_shape_check(&s, 1, NULL), TM_EINVAL);
}

static void axes_count_from_both_ends(void **state) {
  (void)state;
  tm_shape s = shape(3, 1, 2, 3);
  int32_t axis;
  assert_ok(tm_shape_axis(&s, -1, &axis, NULL));
  assert_int_equal(axis, 2);
  assert_ok(tm_shape_axis(&s, 0, &axis, NULL));
  assert_int_equal(axis, 0);
  tm_err err = {0};
  assert_int_equal(tm_shape_axis(&s, 3, &axis, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "axis 4 is not an axis of shape (1, 2, 3)"));
  assert_int_equal(tm_shape_axis(&s, -4, &axis, &err), TM_EINVAL);
}

static void a_cut_text_is_terminated(void **state) {
  (void)state;
  tm_shape s = shape(3, 100, -1, 3);
  char buf[64];
  assert_string_equal(tm_shape_text(&s, buf, sizeof buf), "(100, ?, 3)");
  for (size_t cap = 1; cap < 14; cap++)
    assert_int_equal(strlen(tm_shape_text(&s, buf, cap)), cap < 12 ? cap - 1 : 11);
  s.rank = 0;
  assert_string_equal(tm_shape_text(&s, buf, sizeof buf), "()");
}

static void data_is_aligned_and_never_null(void **state) {
  (void)state;
  for (int64_t n = 0; n < 40; n++) {
    tm_shape s = shape(1, n, 0, 0);
    tm_tensor *t;
    assert_ok(tm_tensor_new(TM_I64, &s, &t, NULL));
    assert_non_null(t->v.data);
    assert_int_equal((uintptr_t)t->v.data % 64, 0);
    tm_tensor_unref(t);
  }
}

static int released;
static void count_release(tm_storage *s) {
  (void)s;
  released++;
}

static void shared_bytes_go_with_the_last_reference(void **state) {
  (void)state;
  static float x[6] = {1, 2, 3, 4, 5, 6};
  int64_t live = tm_mem_live();
  tm_storage *st;
  tm_tensor *t, *row, *flat;
  tm_shape s = shape(2, 3, 2, 0), six = shape(1, 6, 0, 0);
  released = 0;
  assert_ok(tm_storage_wrap(x, sizeof x, count_release, NULL, &st));
  assert_ok(tm_tensor_over(st, TM_F32, &s, x, &t));
  tm_storage_unref(st);
  assert_ok(tm_tensor_rows(t, 1, 2, &row, NULL));
  assert_ok(tm_tensor_reshape(row, &(tm_shape){1, {4}}, &flat, NULL));
  tm_tensor_unref(t);
  tm_tensor_unref(row);
  assert_int_equal(released, 0);
  assert_true(((float *)flat->v.data)[0] == 3.0F);
  assert_int_equal(tm_tensor_reshape(flat, &six, &t, NULL), TM_EINVAL);
  assert_int_equal(tm_tensor_rows(flat, 3, 2, &t, NULL), TM_ERANGE);
  assert_int_equal(tm_tensor_rows(flat, 1, INT64_MAX, &t, NULL), TM_ERANGE);
  tm_tensor_unref(flat);
  assert_int_equal(released, 1);
  assert_int_equal(tm_mem_live(), live);
}

static void strings_are_copied_with_their_bytes(void **state) {
  (void)state;
  char text[] = "hello";
  tm_str s[3] = {{text, 5}, {NULL, 0}, {text + 1, 3}};
  tm_shape three = shape(1, 3, 0, 0);
  tm_tensor *t, *copy;
  assert_ok(tm_tensor_strings(&three, s, &t, NULL));
  assert_ok(tm_tensor_copy(&t->v, &copy, NULL));
  memset(text, 'x', 5);
  tm_tensor_unref(t);
  const tm_str *c = copy->v.data;
  assert_int_equal(c[0].n, 5);
  assert_memory_equal(c[0].p, "hello", 5);
  assert_int_equal(c[1].n, 0);
  assert_memory_equal(c[2].p, "ell", 3);
  tm_tensor_unref(copy);
}

static void elements_read_as_any_number(void **state) {
  (void)state;
  float f[] = {2.7F, -2.7F, NAN, 1e30F, -INFINITY};
  tm_view v = {TM_F32, shape(1, 5, 0, 0), f};
  const int64_t want[] = {2, -2, 0, INT64_MAX, INT64_MIN};
  for (int i = 0; i < 5; i++) assert_int_equal(tm_view_get_i64(&v, i), want[i]);
  uint8_t b[] = {1};
  v = (tm_view){TM_BOOL, shape(0, 0, 0, 0), b};
  assert_true(tm_view_get_f64(&v, 0) == 1.0);
}

static void check_text(const tm_view *v, int64_t edge_after, const char *want) {
  tm_buf b = TM_BUF_INIT(10000);
  assert_ok(tm_tensor_text(v, edge_after, &b));
  assert_ok(tm_buf_putc(&b, '\0'));
  assert_string_equal((char *)b.data, want);
  tm_buf_release(&b);
}

static void text_reads_as_nested_lists(void **state) {
  (void)state;
  float f[] = {1, 0.1F, -2.5F, INFINITY, NAN, 1e-9F};
  double d[] = {0.1, 1.0 / 3};
  int64_t i[20];
  tm_str s[] = {{"a\"b\n", 4}};
  uint8_t b[] = {1, 0};
  for (int k = 0; k < 20; k++) i[k] = k;
  check_text(&(tm_view){TM_F32, shape(2, 2, 3, 0), f}, 1000,
             "[[1, 0.1, -2.5],\n [inf, nan, 1e-09]]\n(2, 3) float32");
  check_text(&(tm_view){TM_F64, shape(1, 2, 0, 0), d}, 1000,
             "[0.1, 0.3333333333333333]\n(2) float64");
  check_text(&(tm_view){TM_I64, shape(1, 20, 0, 0), i}, 10,
             "[0, 1, 2, ..., 17, 18, 19]\n(20) int64");
  check_text(&(tm_view){TM_STRING, shape(0, 0, 0, 0), s}, 10,
             "\"a\\\"b\\n\"\n() string");
  check_text(&(tm_view){TM_BOOL, shape(1, 2, 0, 0), b}, 10, "[true, false]\n(2) bool");
  check_text(&(tm_view){TM_F32, shape(2, 0, 3, 0), f}, 10, "[]\n(0, 3) float32");
  check_text(&(tm_view){TM_F32, shape(3, 2, 1, 1), f}, 10,
             "[[[1]],\n\n [[0.1]]]\n(2, 1, 1) float32");
}

static tm_status make_and_share(void *ud) {
  tm_str s[2] = {{"ab", 2}, {"c", 1}};
  tm_shape two = shape(1, 2, 0, 0);
  tm_tensor *a = NULL, *b = NULL, *c = NULL;
  (void)ud;
  tm_status st = tm_tensor_strings(&two, s, &a, NULL);
  if (!st) st = tm_tensor_copy(&a->v, &b, NULL);
  if (!st) st = tm_tensor_rows(b, 1, 1, &c, NULL);
  tm_tensor_unref(a);
  tm_tensor_unref(b);
  tm_tensor_unref(c);
  return st;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(make_and_share, NULL) >= 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_dtype_has_a_size_and_a_name),
      cmocka_unit_test(shapes_broadcast_as_in_numpy),
      cmocka_unit_test(too_large_shapes_are_refused),
      cmocka_unit_test(axes_count_from_both_ends),
      cmocka_unit_test(a_cut_text_is_terminated),
      cmocka_unit_test(data_is_aligned_and_never_null),
      cmocka_unit_test(shared_bytes_go_with_the_last_reference),
      cmocka_unit_test(strings_are_copied_with_their_bytes),
      cmocka_unit_test(elements_read_as_any_number),
      cmocka_unit_test(text_reads_as_nested_lists),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
