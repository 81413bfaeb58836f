/* Numbers that others published: Philox (Random123's kat_vectors), CRC-32C (RFC 3720).
 */
#include "base/crc32c.h"
#include "base/philox.h"
#include "test.h"

static void philox_is(uint64_t key, uint64_t stream, uint64_t counter,
                      const uint32_t want[4]) {
  uint32_t got[4];
  tm_philox(key, stream, counter, got);
  assert_memory_equal(got, want, sizeof got);
}

static void philox_gives_the_published_numbers(void **state) {
  (void)state;
  const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const uint32_t pi[4] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  philox_is(0, 0, 0, zeros);
  philox_is(UINT64_MAX, UINT64_MAX, UINT64_MAX, ones);
  philox_is(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, pi);
}

static void a_reader_gives_the_words_of_the_blocks_in_order(void **state) {
  (void)state;
  tm_rng r;
  tm_rng_init(&r, 5, 9);
  for (uint64_t block = 0; block < 3; block++) {
    uint32_t want[4];
    tm_philox(5, 9, block, want);
    for (int i = 0; i < 4; i++) assert_int_equal(tm_rng_u32(&r), want[i]);
  }
}

static void below_stays_below_and_reaches_every_value(void **state) {
  (void)state;
  tm_rng r;
  tm_rng_init(&r, 1, 2);
  int seen[7] = {0};
  for (int i = 0; i < 7000; i++) {
    uint64_t v = tm_rng_below(&r, 7);
    assert_true(v < 7);
    seen[v]++;
  }
  for (int i = 0; i < 7; i++) assert_in_range(seen[i], 850, 1150);
  for (int i = 0; i < 100; i++) assert_int_equal(tm_rng_below(&r, 1), 0);
  for (int i = 0; i < 100; i++)
    assert_true(tm_rng_below(&r, (1ull << 63) + 1) <= 1ull << 63);
}

static uint32_t crc_bitwise(const uint8_t *p, size_t n) {
  uint32_t c = 0xFFFFFFFFu;
  for (size_t i = 0; i < n; i++) {
    c ^= p[i];
    for (int b = 0; b < 8; b++) c = (c >> 1) ^ (c & 1 ? 0x82F63B78u : 0);
  }
  return ~c;
}

static void crc32c_gives_the_published_numbers(void **state) {
  (void)state;
  uint8_t zeros[32] = {0}, ones[32];
  memset(ones, 0xFF, sizeof ones);
  assert_int_equal(tm_crc32c(0, "123456789", 9), 0xE3069283u);
  assert_int_equal(tm_crc32c(0, zeros, 32), 0x8A9136AAu);
  assert_int_equal(tm_crc32c(0, ones, 32), 0x62A8AB43u);
  assert_int_equal(tm_crc32c(0, NULL, 0), 0);
}

static void crc32c_agrees_bit_by_bit_at_every_length_and_offset(void **state) {
  (void)state;
  uint8_t bytes[320];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 131 + 7);
  for (size_t off = 0; off < 9; off++)
    for (size_t n = 0; n <= 300; n++)
      assert_int_equal(tm_crc32c(0, bytes + off, n), crc_bitwise(bytes + off, n));
}

static void crc32c_in_pieces_is_crc32c_at_once(void **state) {
  (void)state;
  const char *text = "the moon drives the tide, the tide drives the mill";
  size_t n = strlen(text);
  for (size_t cut = 0; cut <= n; cut++)
    assert_int_equal(tm_crc32c(tm_crc32c(0, text, cut), text + cut, n - cut),
                     tm_crc32c(0, text, n));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(philox_gives_the_published_numbers),
      cmocka_unit_test(a_reader_gives_the_words_of_the_blocks_in_order),
      cmocka_unit_test(below_stays_below_and_reaches_every_value),
      cmocka_unit_test(crc32c_gives_the_published_numbers),
      cmocka_unit_test(crc32c_agrees_bit_by_bit_at_every_length_and_offset),
      cmocka_unit_test(crc32c_in_pieces_is_crc32c_at_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
