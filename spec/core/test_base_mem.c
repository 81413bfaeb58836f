/* status, mem, buf, arena. */
#include "base/arena.h"
#include "base/buf.h"
#include "test.h"

/* ---- status ---- */

static void each_code_has_a_name_and_each_name_a_code(void **state) {
  (void)state;
#define X(id, value, text) assert_string_equal(tm_status_name(TM_##id), text);
  TM_STATUS_MAP(X)
#undef X
  assert_int_equal(tm_status_of_name("invalid_argument"), TM_EINVAL);
  assert_int_equal(tm_status_of_name("resource_exhausted"), TM_EEXHAUSTED);
  assert_int_equal(tm_status_of_name("unavailable"), TM_EUNAVAILABLE);
  assert_int_equal(tm_status_of_name("no such name"), TM_EUNKNOWN);
  assert_string_equal(tm_status_name((tm_status)77), "unknown");
}

static void fail_fills_code_and_text_and_returns_the_code(void **state) {
  (void)state;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_int_equal(tm_fail(&err, TM_EINVAL, "size %d", 3), TM_EINVAL);
  assert_int_equal(err.code, TM_EINVAL);
  assert_int_equal(err.step, -1);
  assert_string_equal(err.msg, "size 3");
  assert_string_equal(err.task, "");
}

static void fail_without_an_err_still_returns_the_code(void **state) {
  (void)state;
  assert_int_equal(tm_fail(NULL, TM_ENOTFOUND, "nobody reads this"), TM_ENOTFOUND);
  assert_int_equal(tm_nomem(NULL, "x"), TM_ENOMEM);
  assert_int_equal(tm_err_prefix(NULL, TM_EABORTED, "x"), TM_EABORTED);
  tm_err_clear(NULL);
}

static void a_callee_may_say_the_task_before_the_failure_is_worded(void **state) {
  (void)state;
  tm_err err = {0};
  tm_err_clear(&err);
  strcpy(err.task, "/job:ps/task:1");
  err.step = 12;
  assert_int_equal(tm_fail(&err, TM_EUNAVAILABLE, "gone"), TM_EUNAVAILABLE);
  assert_string_equal(err.task, "/job:ps/task:1");
  assert_int_equal(err.step, 12);
}

static void long_texts_are_cut_and_terminated(void **state) {
  (void)state;
  char text[2000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  tm_err err = {0};
  tm_err_clear(&err);
  assert_int_equal(tm_fail(&err, TM_EINVAL, "%s", text), TM_EINVAL);
  assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
  assert_int_equal(tm_err_prefix(&err, TM_OK, "%s", text), TM_EINVAL);
  assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void a_prefix_goes_before_the_text(void **state) {
  (void)state;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_int_equal(tm_fail(&err, TM_EINVAL, "bad"), TM_EINVAL);
  assert_int_equal(tm_err_prefix(&err, TM_EINVAL, "file %s", "a.csv"), TM_EINVAL);
  assert_string_equal(err.msg, "file a.csv: bad");
}

/* ---- mem ---- */

static void live_bytes_are_counted_exactly(void **state) {
  (void)state;
  int64_t before = tm_mem_live();
  void *a = tm_malloc(10), *b = tm_calloc(3, 7), *c = tm_malloc_aligned(100);
  assert_int_equal(tm_mem_live() - before, 131);
  a = tm_realloc(a, 10, 50);
  assert_int_equal(tm_mem_live() - before, 171);
  char *s = tm_strdup("four");
  assert_int_equal(tm_mem_live() - before, 176);
  tm_strfree(s);
  tm_free(a, 50);
  tm_free(b, 21);
  tm_free_aligned(c, 100);
  assert_int_equal(tm_mem_live(), before);
}

static void absurd_sizes_are_refused_not_tried(void **state) {
  (void)state;
  int64_t before = tm_mem_live();
  assert_null(tm_malloc(SIZE_MAX));
  assert_null(tm_calloc(SIZE_MAX / 2, 3));
  assert_null(tm_malloc_aligned(SIZE_MAX - 3));
  assert_null(tm_realloc(NULL, 0, SIZE_MAX));
  assert_int_equal(tm_mem_live(), before);
}

static void aligned_memory_is_aligned(void **state) {
  (void)state;
  const size_t sizes[] = {1, 63, 64, 65, 4096, (size_t)2 << 20, ((size_t)33 << 20) + 5};
  for (size_t i = 0; i < TM_COUNT(sizes); i++) {
    unsigned char *p = tm_malloc_aligned(sizes[i]);
    assert_non_null(p);
    uintptr_t align = sizes[i] >= (size_t)2 << 20 ? (uintptr_t)2 << 20 : 64;
    assert_int_equal((uintptr_t)p % align, 0);
    p[0] = p[sizes[i] - 1] = 1;
    tm_free_aligned(p, sizes[i]);
  }
}

static void a_hook_can_refuse_every_kind_of_allocation(void **state) {
  (void)state;
  void *old = tm_malloc(8), *old_aligned = tm_malloc_aligned(8);
  struct test_budget none = {0};
  tm_mem_hook(test_flaky, &none);
  void *a = tm_malloc(1), *b = tm_calloc(1, 1), *c = tm_malloc_aligned(1);
  void *d = tm_realloc(old, 8, 16);
  char *e = tm_strdup("x");
  tm_free(old, 8); /* memory from before the hook may be freed under it */
  tm_free_aligned(old_aligned, 8);
  tm_mem_hook(NULL, NULL);
  assert_true(!a && !b && !c && !d && !e);
}

static void strndup_stops_at_the_first_zero_byte(void **state) {
  (void)state;
  int64_t before = tm_mem_live();
  char *s = tm_strndup("ab\0cd", 5), *t = tm_strndup("abcd", 2), *u = tm_strndup("", 0);
  assert_string_equal(s, "ab");
  assert_string_equal(t, "ab");
  assert_string_equal(u, "");
  tm_strfree(s);
  tm_strfree(t);
  tm_strfree(u);
  tm_strfree(NULL);
  assert_int_equal(tm_mem_live(), before);
}

static void products_and_sums_that_overflow_are_seen(void **state) {
  (void)state;
  size_t z;
  int64_t i;
  assert_true(tm_mul_size(1u << 20, 1u << 20, &z));
  assert_int_equal(z, (size_t)1 << 40);
  assert_false(tm_mul_size((size_t)1 << 40, (size_t)1 << 40, &z));
  assert_true(tm_mul_i64(-3, 4, &i));
  assert_int_equal(i, -12);
  assert_false(tm_mul_i64(INT64_MAX, 2, &i));
  assert_false(tm_mul_i64(INT64_MIN, -1, &i));
  assert_true(tm_add_i64(INT64_MAX, 0, &i));
  assert_false(tm_add_i64(INT64_MAX, 1, &i));
}

/* ---- buf ---- */

static void a_buffer_holds_what_was_put_in_order(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(1000);
  assert_ok(tm_buf_put(&b, "ab", 2));
  assert_ok(tm_buf_putc(&b, 'c'));
  assert_ok(tm_buf_puts(&b, "de"));
  assert_ok(tm_buf_printf(&b, "%d%s", 12, "x"));
  assert_ok(tm_buf_put(&b, NULL, 0));
  void *p;
  assert_ok(tm_buf_grow(&b, 3, &p));
  memcpy(p, "xyz", 3);
  assert_int_equal(b.len, 11);
  assert_memory_equal(b.data, "abcde12xxyz", 11);
  tm_buf_release(&b);
  tm_buf_release(&b);
  assert_int_equal(b.max, 1000);
}

static void printf_of_any_length_is_whole(void **state) {
  (void)state;
  char text[700];
  for (int n = 0; n < 700; n += 3) {
    memset(text, 'q', sizeof text);
    text[n] = '\0';
    tm_buf b = TM_BUF_INIT(1000);
    assert_ok(tm_buf_printf(&b, "<%s>", text));
    assert_int_equal(b.len, n + 2);
    assert_int_equal(b.data[n + 1], '>');
    tm_buf_release(&b);
  }
}

static void a_full_buffer_says_exhausted_and_keeps_its_bytes(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(100);
  char text[100];
  memset(text, 'a', sizeof text);
  assert_ok(tm_buf_put(&b, text, 100));
  assert_int_equal(tm_buf_putc(&b, 'b'), TM_EEXHAUSTED);
  assert_int_equal(tm_buf_put(&b, text, SIZE_MAX), TM_EEXHAUSTED);
  assert_int_equal(b.len, 100);
  assert_true(b.cap <= 100);
  tm_buf_clear(&b);
  assert_ok(tm_buf_putc(&b, 'b'));
  tm_buf_release(&b);
}

static tm_status buf_body(void *ud) {
  (void)ud;
  tm_buf b = TM_BUF_INIT(1 << 20);
  tm_status s = TM_OK;
  for (int i = 0; i < 500 && s == TM_OK; i++) s = tm_buf_printf(&b, "line %d\n", i);
  tm_buf_release(&b);
  return s;
}

static void a_buffer_survives_every_failed_allocation(void **state) {
  (void)state;
  assert_in_range(test_torture(buf_body, NULL), 2, 20);
}

/* ---- arena ---- */

static void an_arena_gives_aligned_memory_that_stays(void **state) {
  (void)state;
  int64_t before = tm_mem_live();
  tm_arena a = TM_ARENA_INIT;
  unsigned char *p[300];
  for (size_t i = 0; i < 300; i++) {
    size_t n = i * 37 % 900;
    p[i] = i % 2 ? tm_arena_alloc(&a, n) : tm_arena_calloc(&a, n);
    assert_non_null(p[i]);
    assert_int_equal((uintptr_t)p[i] % 16, 0);
    if (n) memset(p[i], (int)(i & 0xFF), n);
  }
  for (size_t i = 0; i < 300; i++)
    for (size_t k = 0; k < i * 37 % 900; k++) assert_int_equal(p[i][k], i & 0xFF);
  tm_arena_release(&a);
  tm_arena_release(&a);
  assert_int_equal(tm_mem_live(), before);
}

static void a_large_piece_leaves_the_open_block_in_use(void **state) {
  (void)state;
  tm_arena a = TM_ARENA_INIT;
  char *first = tm_arena_alloc(&a, 16);
  assert_non_null(tm_arena_alloc(&a, 100000));
  char *second = tm_arena_alloc(&a, 16);
  assert_ptr_equal(second, first + 16);
  char *s = tm_arena_strndup(&a, "mill wheel", 4);
  assert_string_equal(s, "mill");
  assert_null(tm_arena_alloc(&a, SIZE_MAX));
  tm_arena_release(&a);
}

static tm_status arena_body(void *ud) {
  (void)ud;
  tm_arena a = TM_ARENA_INIT;
  tm_status s = TM_OK;
  for (size_t i = 0; i < 40 && s == TM_OK; i++)
    if (!tm_arena_alloc(&a, i * 300)) s = TM_ENOMEM;
  tm_arena_release(&a);
  return s;
}

static void an_arena_survives_every_failed_allocation(void **state) {
  (void)state;
  assert_in_range(test_torture(arena_body, NULL), 10, 40);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_code_has_a_name_and_each_name_a_code),
      cmocka_unit_test(fail_fills_code_and_text_and_returns_the_code),
      cmocka_unit_test(fail_without_an_err_still_returns_the_code),
      cmocka_unit_test(a_callee_may_say_the_task_before_the_failure_is_worded),
      cmocka_unit_test(long_texts_are_cut_and_terminated),
      cmocka_unit_test(a_prefix_goes_before_the_text),
      cmocka_unit_test(live_bytes_are_counted_exactly),
      cmocka_unit_test(absurd_sizes_are_refused_not_tried),
      cmocka_unit_test(aligned_memory_is_aligned),
      cmocka_unit_test(a_hook_can_refuse_every_kind_of_allocation),
      cmocka_unit_test(strndup_stops_at_the_first_zero_byte),
      cmocka_unit_test(products_and_sums_that_overflow_are_seen),
      cmocka_unit_test(a_buffer_holds_what_was_put_in_order),
      cmocka_unit_test(printf_of_any_length_is_whole),
      cmocka_unit_test(a_full_buffer_says_exhausted_and_keeps_its_bytes),
      cmocka_unit_test(a_buffer_survives_every_failed_allocation),
      cmocka_unit_test(an_arena_gives_aligned_memory_that_stays),
      cmocka_unit_test(a_large_piece_leaves_the_open_block_in_use),
      cmocka_unit_test(an_arena_survives_every_failed_allocation),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
