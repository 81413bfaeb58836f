/* Tensors as bytes: back and forth, and everything that may be wrong with the bytes. */
#include "base/bytes.h"
#include "tensor/codec.h"
#include "test.h"

static tm_tensor *sample(tm_dtype t, int64_t n) {
  tm_shape s = tm_shape_of(2, (int64_t[]){n, 1});
  tm_tensor *x;
  if (t == TM_STRING) {
    tm_str str[8];
    for (int64_t i = 0; i < n; i++) str[i] = (tm_str){"abcdefgh", (size_t)i};
    assert_ok(tm_tensor_strings(&s, str, &x, NULL));
    return x;
  }
  assert_ok(tm_tensor_new(t, &s, &x, NULL));
  memset(x->v.data, 1, tm_view_bytes(&x->v));
  return x;
}

static bool same(const tm_view *a, const tm_view *b) {
  if (a->dtype != b->dtype || !tm_shape_equal(&a->shape, &b->shape)) return false;
  if (a->dtype != TM_STRING) return memcmp(a->data, b->data, tm_view_bytes(a)) == 0;
  const tm_str *x = a->data, *y = b->data;
  for (int64_t i = 0, n = tm_view_count(a); i < n; i++)
    if (x[i].n != y[i].n || memcmp(x[i].p, y[i].p, x[i].n) != 0) return false;
  return true;
}

static void a_tensor_comes_back_as_it_went(void **state) {
  (void)state;
  for (int t = TM_F32; t <= TM_STRING; t++)
    for (int64_t n = 0; n < 8; n++) {
      tm_tensor *x = sample((tm_dtype)t, n), *y;
      tm_buf b = TM_BUF_INIT(10000), head = TM_BUF_INIT(1000);
      tm_packer w;
      tm_unpacker r;
      tm_err err = {0};
      tm_tensor_head h;
      tm_pack_init(&w, &b);
      tm_pack_tensor(&w, &x->v);
      assert_ok(w.status);
      tm_unpack_init(&r, b.data, b.len);
      assert_ok_err(tm_unpack_tensor(&r, 10000, &y, &err), &err);
      assert_ok(tm_unpack_end(&r, &err));
      assert_true(same(&x->v, &y->v));
      tm_tensor_unref(y);
      tm_pack_init(&w, &head);
      tm_pack_head(&w, &x->v);
      tm_buf_clear(&b);
      assert_ok(tm_payload_put(&b, &x->v));
      assert_int_equal(b.len, tm_payload_bytes(&x->v));
      tm_unpack_init(&r, head.data, head.len);
      tm_unpack_head(&r, 10000, &h);
      assert_ok(tm_unpack_end(&r, &err));
      assert_ok_err(tm_payload_get(&h, b.data, b.len, &y, &err), &err);
      assert_true(same(&x->v, &y->v));
      tm_tensor_unref(y);
      tm_tensor_unref(x);
      tm_buf_release(&b);
      tm_buf_release(&head);
    }
}

/* Unpack a head (dtype, dims, bytes) that a peer might claim. */
static tm_status claim(int64_t dtype, int64_t a, int64_t b, uint64_t bytes) {
  tm_buf buf = TM_BUF_INIT(1000);
  tm_packer w;
  tm_unpacker r;
  tm_tensor_head h;
  tm_pack_init(&w, &buf);
  tm_pack_array(&w, 3);
  tm_pack_int(&w, dtype);
  tm_pack_i64s(&w, (int64_t[]){a, b}, 2);
  tm_pack_uint(&w, bytes);
  tm_unpack_init(&r, buf.data, buf.len);
  tm_unpack_head(&r, 1 << 20, &h);
  tm_status s = tm_unpack_end(&r, NULL);
  tm_buf_release(&buf);
  return s;
}

static void claims_that_do_not_fit_are_refused(void **state) {
  (void)state;
  assert_ok(claim(TM_F32, 2, 3, 24));
  assert_int_not_equal(claim(TM_F32, 2, 3, 25), TM_OK);
  assert_int_not_equal(claim(0, 2, 3, 24), TM_OK);
  assert_int_not_equal(claim(99, 2, 3, 24), TM_OK);
  assert_int_not_equal(claim(TM_F32, -1, 3, 0), TM_OK);
  assert_int_not_equal(claim(TM_F32, 1 << 10, 1 << 10, 1 << 22), TM_OK); /* above max */
  assert_int_not_equal(claim(TM_F32, INT64_MAX, INT64_MAX, 4), TM_OK);
  assert_int_not_equal(claim(TM_F32, 0, INT64_MAX, 0), TM_OK);
  assert_int_not_equal(claim(TM_STRING, 2, 3, 23), TM_OK);
  assert_ok(claim(TM_STRING, 2, 3, 24));
}

static tm_status strings_of(uint32_t first, uint32_t second, size_t n) {
  uint8_t p[16] = {0};
  tm_tensor_head h = {TM_STRING, tm_shape_of(1, (int64_t[]){2}), n};
  tm_tensor *t;
  tm_put32(p, first);
  tm_put32(p + 4, second);
  tm_status s = tm_payload_get(&h, p, n, &t, NULL);
  tm_tensor_unref(t);
  return s;
}

static void lengths_of_strings_are_checked(void **state) {
  (void)state;
  assert_ok(strings_of(3, 1, 12));
  assert_int_equal(strings_of(3, 2, 12), TM_EDATALOSS);
  assert_int_equal(strings_of(UINT32_MAX, 4, 12), TM_EDATALOSS);
  assert_int_equal(strings_of(1, 1, 12), TM_EDATALOSS); /* bytes left over */
}

static void bools_arrive_as_0_and_1(void **state) {
  (void)state;
  const uint8_t p[] = {0, 1, 2, 255};
  tm_tensor_head h = {TM_BOOL, tm_shape_of(1, (int64_t[]){4}), 4};
  tm_tensor *t;
  assert_ok(tm_payload_get(&h, p, 4, &t, NULL));
  const uint8_t want[] = {0, 1, 1, 1};
  assert_memory_equal(t->v.data, want, 4);
  tm_tensor_unref(t);
}

static void cut_bytes_are_an_error(void **state) {
  (void)state;
  tm_tensor *x = sample(TM_STRING, 7), *y;
  tm_buf b = TM_BUF_INIT(10000);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_tensor(&w, &x->v);
  for (size_t n = 0; n < b.len; n++) {
    tm_unpacker r;
    tm_err err = {0};
    tm_unpack_init(&r, b.data, n);
    assert_int_not_equal(tm_unpack_tensor(&r, 10000, &y, &err), TM_OK);
    assert_null(y);
    assert_true(err.msg[0] != '\0');
  }
  tm_buf_release(&b);
  tm_tensor_unref(x);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_tensor_comes_back_as_it_went),
      cmocka_unit_test(claims_that_do_not_fit_are_refused),
      cmocka_unit_test(lengths_of_strings_are_checked),
      cmocka_unit_test(bools_arrive_as_0_and_1),
      cmocka_unit_test(cut_bytes_are_an_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
