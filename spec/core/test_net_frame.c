/* Frame heads, hellos, errors, addresses. */
#include "net/addr.h"
#include "net/frame.h"
#include "test.h"

static void a_head_comes_back_as_it_was(void **state) {
  (void)state;
  uint8_t head[TM_FRAME_HEAD];
  tm_err err = {0};
  tm_frame f = {17, 0xdeadbeef, 1ull << 63 | 5, 77, 5ull << 32}, g;
  tm_frame_pack(&f, head);
  assert_memory_equal(head, "TMIL", 4);
  assert_ok_err(tm_frame_unpack(head, UINT64_MAX, &g, &err), &err);
  assert_int_equal(g.kind, 17);
  assert_int_equal(g.flags, 0xdeadbeef);
  assert_int_equal(g.meta_bytes, 77);
  assert_true(g.id == f.id && g.payload_bytes == f.payload_bytes);
}

static void every_damaged_byte_is_noticed(void **state) {
  (void)state;
  uint8_t head[TM_FRAME_HEAD];
  tm_frame f = {.kind = 16, .id = 9}, g;
  for (int i = 0; i < TM_FRAME_HEAD; i++) {
    tm_frame_pack(&f, head);
    head[i] ^= 0x10;
    assert_int_not_equal(tm_frame_unpack(head, 0, &g, NULL), TM_OK);
  }
}

static void limits_are_checked_before_anything_is_allocated(void **state) {
  (void)state;
  uint8_t head[TM_FRAME_HEAD];
  tm_err err = {0};
  tm_frame f = {.kind = 16, .meta_bytes = TM_FRAME_MAX_META + 1}, g;
  tm_frame_pack(&f, head);
  assert_int_equal(tm_frame_unpack(head, 64, &g, &err), TM_EEXHAUSTED);
  f.meta_bytes = 0;
  f.payload_bytes = 128;
  tm_frame_pack(&f, head);
  assert_int_equal(tm_frame_unpack(head, 64, &g, &err), TM_EEXHAUSTED);
  assert_ok(tm_frame_unpack(head, 128, &g, &err));
  f.payload_bytes = 65;
  tm_frame_pack(&f, head);
  assert_int_equal(tm_frame_unpack(head, 128, &g, &err), TM_EEXHAUSTED);
}

static void another_version_is_told_by_name(void **state) {
  (void)state;
  uint8_t head[TM_FRAME_HEAD];
  tm_err err = {0};
  tm_frame f = {.kind = 1}, g;
  tm_frame_pack(&f, head);
  head[4] = 2;
  assert_int_equal(tm_frame_unpack(head, 0, &g, &err), TM_EPRECOND);
  assert_non_null(strstr(err.msg, "version 2"));
}

static void hellos_and_errors_come_back_as_they_were(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(4096);
  tm_packer w;
  tm_err err = {0};
  tm_hello h = {"c1", "/job:worker/task:2", "data", UINT64_MAX, {3, UINT64_MAX}}, i;
  tm_pack_init(&w, &b);
  tm_hello_pack(&w, &h);
  assert_ok(w.status);
  assert_ok_err(tm_hello_unpack(b.data, b.len, &i, &err), &err);
  assert_string_equal(i.task, h.task);
  assert_true(i.incarnation == UINT64_MAX);
  assert_true(i.term.number == 3 && i.term.chief == UINT64_MAX);
  for (size_t n = 0; n < b.len; n++)
    assert_int_not_equal(tm_hello_unpack(b.data, n, &i, &err), TM_OK);
  tm_err e, back;
  tm_err_clear(&e);
  tm_fail(&e, TM_EINVAL, "no row %d", 7);
  e.step = 12;
  strcpy(e.op, "gather");
  tm_buf_clear(&b);
  tm_err_pack(&w, &e);
  tm_unpacker r;
  tm_unpack_init(&r, b.data, b.len);
  tm_err_unpack(&r, &back);
  assert_ok_err(tm_unpack_end(&r, &err), &err);
  assert_int_equal(back.code, TM_EINVAL);
  assert_int_equal(back.step, 12);
  assert_string_equal(back.msg, "no row 7");
  assert_string_equal(back.op, "gather");
  tm_buf_release(&b);
}

static void an_error_never_becomes_a_success(void **state) {
  (void)state;
  const uint8_t forged[] = {0x95, 0x00, 0x00, 0xa0, 0xa0, 0xa0};
  tm_unpacker r;
  tm_err e;
  tm_unpack_init(&r, forged, sizeof forged);
  tm_err_unpack(&r, &e);
  assert_ok(tm_unpack_end(&r, NULL));
  assert_int_equal(e.code, TM_EUNKNOWN);
}

static void addresses_are_parsed_or_refused(void **state) {
  (void)state;
  tm_addr a;
  tm_err err = {0};
  assert_ok(tm_addr_parse("localhost:2222", false, &a, &err));
  assert_string_equal(a.host, "localhost");
  assert_int_equal(a.port, 2222);
  assert_ok(tm_addr_parse("[::1]:65535", false, &a, &err));
  assert_string_equal(a.host, "::1");
  assert_ok(tm_addr_parse("0.0.0.0:0", true, &a, &err));
  const char *bad[] = {"",           "host",    ":1",         "host:", "host:0",
                       "host:65536", "h:1x",    "[::1",       "[::1]", "::1:80",
                       "[]:1",       "host:+1", "host:123456"};
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    assert_int_equal(tm_addr_parse(bad[i], false, &a, &err), TM_EINVAL);
    assert_non_null(strstr(err.msg, bad[i]));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_head_comes_back_as_it_was),
      cmocka_unit_test(every_damaged_byte_is_noticed),
      cmocka_unit_test(limits_are_checked_before_anything_is_allocated),
      cmocka_unit_test(another_version_is_told_by_name),
      cmocka_unit_test(hellos_and_errors_come_back_as_they_were),
      cmocka_unit_test(an_error_never_becomes_a_success),
      cmocka_unit_test(addresses_are_parsed_or_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
