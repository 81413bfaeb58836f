/* map: against a plain array as the twin. */
#include "base/map.h"
#include "base/philox.h"
#include "test.h"

static void *num(size_t i) { return (void *)(uintptr_t)i; }

static void a_map_agrees_with_an_array_under_random_use(void **state) {
  (void)state;
  enum { KEYS = 500, TURNS = 60000 };
  uintptr_t twin[KEYS] = {0};
  size_t count = 0;
  tm_map *m;
  assert_ok(tm_map_new(&m));
  tm_rng r;
  tm_rng_init(&r, 3, 4);
  for (int t = 0; t < TURNS; t++) {
    uint64_t k = tm_rng_below(&r, KEYS);
    uint64_t key = k * 0x10000; /* low bits alike: only the mixing tells them apart */
    switch (tm_rng_below(&r, 3)) {
      case 0: {
        uintptr_t v = 1 + tm_rng_u32(&r);
        assert_ok(tm_map_put(m, key, (void *)v));
        count += twin[k] == 0;
        twin[k] = v;
        break;
      }
      case 1:
        assert_int_equal((uintptr_t)tm_map_del(m, key), twin[k]);
        count -= twin[k] != 0;
        twin[k] = 0;
        break;
      default:
        assert_int_equal((uintptr_t)tm_map_get(m, key), twin[k]);
    }
    assert_int_equal(tm_map_count(m), count);
  }
  tm_map_free(m);
}

static void string_keys_are_bytes_and_are_copied(void **state) {
  (void)state;
  tm_map *m;
  assert_ok(tm_map_new(&m));
  char key[16];
  for (size_t i = 0; i < 1000; i++) {
    int n = snprintf(key, sizeof key, "k%zu", i);
    assert_ok(tm_map_puts(m, key, (size_t)n, num(i + 1)));
  }
  assert_ok(tm_map_puts(m, "", 0, num(7)));
  assert_ok(tm_map_puts(m, "a\0b", 3, num(8)));
  assert_ok(tm_map_puts(m, "a\0c", 3, num(9)));
  memset(key, 0, sizeof key);
  assert_ptr_equal(tm_map_gets(m, "k999", 4), num(1000));
  assert_ptr_equal(tm_map_gets(m, "", 0), num(7));
  assert_ptr_equal(tm_map_gets(m, "a\0b", 3), num(8));
  assert_ptr_equal(tm_map_gets(m, "a\0c", 3), num(9));
  assert_null(tm_map_gets(m, "a", 1));
  assert_ptr_equal(tm_map_dels(m, "a\0b", 3), num(8));
  assert_null(tm_map_dels(m, "a\0b", 3));
  assert_int_equal(tm_map_count(m), 1002);
  tm_map_free(m);
}

static void an_integer_never_meets_a_string(void **state) {
  (void)state;
  tm_map *m;
  assert_ok(tm_map_new(&m));
  assert_null(tm_map_get(m, 5));
  assert_null(tm_map_del(m, 5));
  assert_ok(tm_map_puts(m, "x", 1, num(1)));
  uint64_t hash = 0;
  size_t pos = 0;
  assert_true(tm_map_next(m, &pos, &hash, NULL, NULL, NULL));
  assert_null(tm_map_get(m, hash));
  assert_ok(tm_map_put(m, hash, num(2)));
  assert_ptr_equal(tm_map_gets(m, "x", 1), num(1));
  assert_ptr_equal(tm_map_get(m, hash), num(2));
  tm_map_free(m);
  tm_map_free(NULL);
}

static void a_walk_meets_every_entry_once(void **state) {
  (void)state;
  tm_map *m;
  assert_ok(tm_map_new(&m));
  for (uint64_t i = 0; i < 300; i++) assert_ok(tm_map_put(m, i, num(i + 1)));
  bool seen[300] = {false};
  size_t pos = 0, n = 0;
  uint64_t key;
  const char *skey;
  void *value;
  while (tm_map_next(m, &pos, &key, &skey, NULL, &value)) {
    assert_true(key < 300 && !seen[key] && !skey);
    assert_ptr_equal(value, num(key + 1));
    seen[key] = true;
    n++;
  }
  assert_int_equal(n, 300);
  tm_map_free(m);
}

static void a_map_filled_and_emptied_for_ever_does_not_grow(void **state) {
  (void)state;
  tm_map *m;
  assert_ok(tm_map_new(&m));
  for (uint64_t i = 0; i < 10; i++) assert_ok(tm_map_put(m, i, num(1)));
  int64_t live = tm_mem_live();
  for (uint64_t i = 10; i < 100000; i++) {
    assert_non_null(tm_map_del(m, i - 10));
    assert_ok(tm_map_put(m, i, num(1)));
  }
  assert_int_equal(tm_mem_live(), live);
  tm_map_free(m);
}

static tm_status map_body(void *ud) {
  (void)ud;
  tm_map *m;
  tm_status s = tm_map_new(&m);
  for (uint64_t i = 0; s == TM_OK && i < 50; i++) {
    s = tm_map_put(m, i, num(1));
    if (s == TM_OK) s = tm_map_puts(m, (const char *)&i, sizeof i, num(2));
  }
  tm_map_free(m);
  return s;
}

static void a_map_survives_every_failed_allocation(void **state) {
  (void)state;
  assert_in_range(test_torture(map_body, NULL), 52, 70);
}

static void the_hash_is_stable_and_every_byte_counts(void **state) {
  (void)state;
  /* Values of this implementation: they are on disk and wire, so they may not change.
   */
  assert_true(tm_hash64("", 0, 0) == 0x3e4142a6b5178b0b);
  assert_true(tm_hash64("tidemill", 8, 0) == 0x70c681f703225393);
  assert_true(tm_hash64("the moon drives the tide", 24, 7) == 0x62ba662a2d61cb9b);
  uint8_t bytes[64] = {0};
  for (size_t n = 0; n < sizeof bytes; n++) {
    uint64_t h = tm_hash64(bytes, n, 1);
    assert_true(h != tm_hash64(bytes, n + 1, 1)); /* length alone */
    assert_true(h != tm_hash64(bytes, n, 2));
    for (size_t i = 0; i < n; i++) {
      bytes[i] = 1;
      uint64_t g = tm_hash64(bytes, n, 1);
      bytes[i] = 0;
      int flipped = __builtin_popcountll(g ^ h);
      assert_in_range(flipped, 12, 52);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_map_agrees_with_an_array_under_random_use),
      cmocka_unit_test(string_keys_are_bytes_and_are_copied),
      cmocka_unit_test(an_integer_never_meets_a_string),
      cmocka_unit_test(a_walk_meets_every_entry_once),
      cmocka_unit_test(a_map_filled_and_emptied_for_ever_does_not_grow),
      cmocka_unit_test(a_map_survives_every_failed_allocation),
      cmocka_unit_test(the_hash_is_stable_and_every_byte_counts),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
