/* pack: round trips at every edge, and a clean error for whatever is malformed. */
#include <math.h>

#include "base/pack.h"
#include "base/philox.h"
#include "test.h"

static const int64_t edges[] = {0,
                                1,
                                127,
                                128,
                                255,
                                256,
                                65535,
                                65536,
                                INT64_C(4294967295),
                                INT64_C(4294967296),
                                INT64_MAX,
                                -1,
                                -32,
                                -33,
                                -128,
                                -129,
                                -32768,
                                -32769,
                                INT64_C(-2147483648),
                                INT64_C(-2147483649),
                                INT64_MIN};

static void integers_come_back_at_every_edge(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(4096);
  tm_packer w;
  tm_pack_init(&w, &b);
  for (size_t i = 0; i < TM_COUNT(edges); i++) tm_pack_int(&w, edges[i]);
  tm_pack_uint(&w, UINT64_MAX);
  tm_pack_i64s(&w, edges, TM_COUNT(edges));
  assert_ok(w.status);

  tm_unpacker r;
  tm_unpack_init(&r, b.data, b.len);
  for (size_t i = 0; i < TM_COUNT(edges); i++)
    assert_true(tm_unpack_int(&r) == edges[i]);
  assert_true(tm_unpack_uint(&r) == UINT64_MAX);
  int64_t v[TM_COUNT(edges)];
  assert_int_equal(tm_unpack_i64s(&r, v, TM_COUNT(edges)), TM_COUNT(edges));
  assert_memory_equal(v, edges, sizeof v);
  assert_ok(tm_unpack_end(&r, NULL));
  tm_buf_release(&b);
}

static void other_values_come_back(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(1 << 20);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_nil(&w);
  tm_pack_bool(&w, true);
  tm_pack_bool(&w, false);
  tm_pack_double(&w, -0.1);
  tm_pack_double(&w, HUGE_VAL);
  tm_pack_int(&w, -3);
  tm_pack_cstr(&w, "name");
  tm_pack_cstr(&w, NULL);
  tm_pack_bin(&w, "\0\1", 2);
  tm_pack_map(&w, 1);
  tm_pack_str(&w, "", 0);
  tm_pack_array(&w, 0);
  assert_ok(w.status);

  tm_unpacker r;
  char name[8];
  size_t len;
  tm_unpack_init(&r, b.data, b.len);
  assert_true(tm_unpack_nil(&r));
  assert_false(tm_unpack_nil(&r));
  assert_int_equal(tm_unpack_peek(&r), TM_PACK_BOOL);
  assert_true(tm_unpack_bool(&r));
  assert_false(tm_unpack_bool(&r));
  assert_true(tm_unpack_double(&r) == -0.1);
  assert_true(isinf(tm_unpack_double(&r)));
  assert_true(tm_unpack_double(&r) == -3.0);
  tm_unpack_cstr(&r, name, sizeof name);
  assert_string_equal(name, "name");
  assert_true(tm_unpack_nil(&r));
  const void *bin = tm_unpack_bin(&r, 10, &len);
  assert_int_equal(len, 2);
  assert_memory_equal(bin, "\0\1", 2);
  assert_int_equal(tm_unpack_map(&r, 0, 4), 1);
  assert_non_null(tm_unpack_str(&r, 10, &len));
  assert_int_equal(len, 0);
  assert_int_equal(tm_unpack_array(&r, 0, 4), 0);
  assert_int_equal(tm_unpack_peek(&r), TM_PACK_NONE);
  assert_ok(tm_unpack_end(&r, NULL));
  tm_buf_release(&b);
}

static void strings_of_every_head_size_come_back(void **state) {
  (void)state;
  static const size_t sizes[] = {0, 1, 31, 32, 255, 256, 65535, 65536};
  static char text[65536];
  memset(text, 's', sizeof text);
  for (size_t i = 0; i < TM_COUNT(sizes); i++) {
    tm_buf b = TM_BUF_INIT(1 << 20);
    tm_packer w;
    tm_pack_init(&w, &b);
    tm_pack_str(&w, text, sizes[i]);
    tm_pack_bin(&w, text, sizes[i]);
    assert_ok(w.status);
    tm_unpacker r;
    size_t len;
    tm_unpack_init(&r, b.data, b.len);
    assert_non_null(tm_unpack_str(&r, sizes[i], &len));
    assert_int_equal(len, sizes[i]);
    assert_non_null(tm_unpack_bin(&r, sizes[i], &len));
    assert_int_equal(len, sizes[i]);
    assert_ok(tm_unpack_end(&r, NULL));

    if (sizes[i] > 0) { /* one byte more than allowed */
      tm_unpack_init(&r, b.data, b.len);
      assert_null(tm_unpack_str(&r, sizes[i] - 1, &len));
      assert_int_equal(len, 0);
      assert_int_equal(r.status, TM_EINVAL);
    }
    tm_buf_release(&b);
  }
}

static void float32_from_others_is_read(void **state) {
  (void)state;
  const uint8_t half[] = {0xca, 0x3f, 0x00, 0x00, 0x00};
  tm_unpacker r;
  tm_unpack_init(&r, half, sizeof half);
  assert_true(tm_unpack_double(&r) == 0.5);
  assert_ok(tm_unpack_end(&r, NULL));
}

/* Read n bytes in the given way; the status. */
static tm_status read_as(const char *way, const void *p, size_t n) {
  tm_unpacker r;
  size_t len;
  char name[4];
  int64_t v[2];
  tm_unpack_init(&r, p, n);
  switch (way[0]) {
    case 'i':
      tm_unpack_int(&r);
      break;
    case 'u':
      tm_unpack_uint(&r);
      break;
    case 'r':
      tm_unpack_range(&r, -5, 5);
      break;
    case 'd':
      tm_unpack_double(&r);
      break;
    case 'b':
      tm_unpack_bool(&r);
      break;
    case 's':
      tm_unpack_str(&r, 100, &len);
      break;
    case 'c':
      tm_unpack_cstr(&r, name, sizeof name);
      break;
    case 'x':
      tm_unpack_bin(&r, 100, &len);
      break;
    case 'a':
      tm_unpack_array(&r, 1, 3);
      break;
    case 'm':
      tm_unpack_map(&r, 1, 3);
      break;
    case 'v':
      tm_unpack_i64s(&r, v, 2);
      break;
    default:
      tm_unpack_skip(&r);
  }
  return r.status;
}

static void malformed_values_give_an_error(void **state) {
  (void)state;
  static const struct {
    const char *way, *bytes;
    size_t n;
  } bad[] = {
      {"i", "", 0},
      {"i", "\xc1", 1},
      {"i", "\xc0", 1},
      {"i", "\xd3\x00\x00\x00", 4},
      {"i", "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9}, /* above int64 */
      {"u", "\xff", 1},                                 /* -1 */
      {"r", "\x06", 1},
      {"r", "\xfa", 1},
      {"d", "\xcb\x00", 2},
      {"d", "\xa0", 1},
      {"b", "\x01", 1},
      {"s",
       "\xa3"
       "ab",
       3},
      {"s", "\xdb\xff\xff\xff\xff", 5}, /* 4 GB claimed */
      {"s", "\xc4\x01x", 3},            /* binary is no string */
      {"c",
       "\xa4"
       "abcd",
       5},
      {"c", "\xa2\x00x", 3}, /* zero byte in a name */
      {"x", "\xc6\x00\x00\x00\x64", 5},
      {"a", "\x90", 1},                     /* too short a list */
      {"a", "\x94\x01\x01\x01\x01", 5},     /* too long a list */
      {"a", "\x92\x01", 2},                 /* fewer bytes than items */
      {"a", "\xdd\xff\xff\xff\xff\x01", 6}, /* 4 billion items */
      {"m", "\x82\x01\x01\x01", 4},         /* 2 pairs in 3 bytes */
      {"m", "\xdf\x00\x00\x00\x03\x01\x01", 7},
      {"v", "\x93\x01\x01\x01", 4},
      {"v", "\x92\x01\xa0", 3},
      {"k", "\x92\x01", 2},
      {"k", "\xc1", 1},
      {"k", "\xc9\xff\xff\xff\xff\x00", 6}, /* 4 GB extension */
      {"k", "\xd8\x00", 2},                 /* 16 bytes claimed */
      {"k", "\xdf\xff\xff\xff\xff", 5},
  };
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    /* A copy of exactly n bytes, so that a sanitizer sees a byte read too far. */
    char *p = malloc(bad[i].n + !bad[i].n);
    assert_non_null(p);
    memcpy(p, bad[i].bytes, bad[i].n);
    tm_status s = read_as(bad[i].way, p, bad[i].n);
    free(p);
    if (s != TM_EINVAL) fail_msg("case %zu: %s", i, tm_status_name(s));
  }
}

static void every_prefix_of_a_message_gives_an_error(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(4096);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_map(&w, 2);
  tm_pack_cstr(&w, "numbers");
  tm_pack_i64s(&w, edges, TM_COUNT(edges));
  tm_pack_cstr(&w, "rest");
  tm_pack_array(&w, 3);
  tm_pack_double(&w, 2.5);
  tm_pack_bin(&w, "bytes", 5);
  tm_pack_nil(&w);
  assert_ok(w.status);
  for (size_t n = 0; n <= b.len; n++) {
    uint8_t *p = malloc(n + !n);
    assert_non_null(p);
    memcpy(p, b.data, n);
    tm_unpacker r;
    tm_err err = {0};
    tm_err_clear(&err);
    tm_unpack_init(&r, p, n);
    tm_unpack_skip(&r);
    tm_status s = tm_unpack_end(&r, &err);
    free(p);
    assert_int_equal(s, n == b.len ? TM_OK : TM_EINVAL);
    if (n < b.len) assert_non_null(strstr(err.msg, "malformed"));
  }
  tm_buf_release(&b);
}

static void the_first_error_stays_and_later_reads_give_zero(void **state) {
  (void)state;
  const uint8_t p[] = {0xa1, 'x', 0x05};
  tm_unpacker r;
  tm_err err = {0};
  size_t len = 9;
  tm_unpack_init(&r, p, sizeof p);
  assert_int_equal(tm_unpack_int(&r), 0);
  const char *reason = r.reason;
  assert_null(tm_unpack_str(&r, 10, &len));
  assert_int_equal(len, 0);
  assert_int_equal(tm_unpack_array(&r, 0, 9), 0);
  assert_int_equal(tm_unpack_peek(&r), TM_PACK_NONE);
  tm_unpack_fail(&r, "another");
  assert_ptr_equal(r.reason, reason);
  assert_int_equal(tm_unpack_end(&r, &err), TM_EINVAL);
}

static void bytes_after_the_last_value_are_an_error(void **state) {
  (void)state;
  tm_unpacker r;
  tm_err err = {0};
  tm_err_clear(&err);
  tm_unpack_init(&r, "\x01\x02", 2);
  tm_unpack_int(&r);
  assert_int_equal(tm_unpack_end(&r, &err), TM_EINVAL);
  assert_string_equal(err.msg,
                      "malformed message: it goes on after its last value (byte 1)");
}

static void nesting_is_bounded_at_32(void **state) {
  (void)state;
  uint8_t deep[40];
  memset(deep, 0x91, sizeof deep);
  deep[32] = 0x01;
  tm_unpacker r;
  tm_unpack_init(&r, deep, 33);
  tm_unpack_skip(&r);
  assert_ok(tm_unpack_end(&r, NULL));
  deep[32] = 0x91;
  deep[33] = 0x01;
  tm_unpack_init(&r, deep, 34);
  tm_unpack_skip(&r);
  assert_int_equal(r.status, TM_EINVAL);
}

static void random_bytes_never_do_harm(void **state) {
  (void)state;
  tm_rng rng;
  tm_rng_init(&rng, 8, 8);
  const char *ways = "iurdbscxamvk";
  for (int turn = 0; turn < 20000; turn++) {
    size_t n = (size_t)tm_rng_below(&rng, 24);
    uint8_t *p = malloc(n + !n);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)tm_rng_u32(&rng);
    for (const char *way = ways; *way; way++) {
      tm_status s = read_as(way, p, n);
      assert_true(s == TM_OK || s == TM_EINVAL);
    }
    free(p);
  }
}

static void a_full_buffer_stops_the_writer(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(8);
  tm_packer w;
  tm_pack_init(&w, &b);
  tm_pack_cstr(&w, "longer than eight");
  assert_int_equal(w.status, TM_EEXHAUSTED);
  size_t len = b.len;
  tm_pack_int(&w, 1);
  tm_pack_nil(&w);
  tm_pack_bool(&w, true);
  assert_int_equal(b.len, len);
  assert_int_equal(w.status, TM_EEXHAUSTED);
  tm_buf_release(&b);
}

static tm_status pack_body(void *ud) {
  (void)ud;
  tm_buf b = TM_BUF_INIT(1 << 16);
  tm_packer w;
  tm_pack_init(&w, &b);
  for (int i = 0; i < 300; i++) tm_pack_cstr(&w, "some words");
  tm_buf_release(&b);
  return w.status;
}

static void the_writer_survives_every_failed_allocation(void **state) {
  (void)state;
  assert_in_range(test_torture(pack_body, NULL), 2, 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(integers_come_back_at_every_edge),
      cmocka_unit_test(other_values_come_back),
      cmocka_unit_test(strings_of_every_head_size_come_back),
      cmocka_unit_test(float32_from_others_is_read),
      cmocka_unit_test(malformed_values_give_an_error),
      cmocka_unit_test(every_prefix_of_a_message_gives_an_error),
      cmocka_unit_test(the_first_error_stays_and_later_reads_give_zero),
      cmocka_unit_test(bytes_after_the_last_value_are_an_error),
      cmocka_unit_test(nesting_is_bounded_at_32),
      cmocka_unit_test(random_bytes_never_do_harm),
      cmocka_unit_test(a_full_buffer_stops_the_writer),
      cmocka_unit_test(the_writer_survives_every_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
