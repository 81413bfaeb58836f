/*
 * test.h - what every C test includes: cmocka, failing allocations, a temporary
 * folder.
 *
 *     static void a_map_keeps_what_is_put(void **state) { ... }
 *     int main(void) {
 *       const struct CMUnitTest tests[] = {cmocka_unit_test(a_map_keeps_what_is_put)};
 *       return cmocka_run_group_tests(tests, NULL, NULL);
 *     }
 *
 * Everything is static inline: a test is one file and the library.
 */
#ifndef TM_SPEC_TEST_H
#define TM_SPEC_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka wants the above first. */
#include <cmocka.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/mem.h"
#include "base/status.h"

#define assert_ok(expr) assert_int_equal((expr), TM_OK)

/* An OK status that also shows the message of an err. */
#define assert_ok_err(expr, err)                            \
  do {                                                      \
    tm_status s_ = (expr);                                  \
    if (s_ != TM_OK) fail_msg("%s: %s", #expr, (err)->msg); \
  } while (0)

/* ---- allocations that fail ---- */

struct test_budget {
  atomic_long left; /* allocations still let through; negative: all */
  bool once;        /* only one fails, then all are let through again */
};

static inline void *test_flaky(void *ud, void *p, size_t old_size, size_t n) {
  struct test_budget *b = ud;
  (void)old_size;
  if (n == 0) {
    free(p);
    return NULL;
  }
  long left = atomic_load(&b->left);
  while (left >= 0)
    if (atomic_compare_exchange_weak(&b->left, &left, left || b->once ? left - 1 : 0)) {
      if (left == 0) return NULL;
      break;
    }
  return realloc(p, n);
}

/*
 * Run body(ud) again and again, with the first, the second, ... allocation failing,
 * until it passes.  Each time it must return TM_ENOMEM or TM_OK and leave no byte
 * behind.  Returns how many allocations a passing run needs.  body cleans up after
 * itself both ways, and asserts nothing that a failed allocation makes false.
 */
static inline long test_torture(tm_status (*body)(void *ud), void *ud) {
  enum { MOST = 100000 };
  int64_t live = tm_mem_live();
  for (long n = 0; n < MOST; n++) {
    struct test_budget budget = {.left = n};
    tm_mem_hook(test_flaky, &budget);
    tm_status s = body(ud);
    tm_mem_hook(NULL, NULL);
    if (tm_mem_live() != live)
      fail_msg("%ld bytes left when allocation %ld fails", (long)(tm_mem_live() - live),
               n + 1);
    if (s == TM_OK && budget.left > 0) return n - budget.left;
    if (s == TM_OK && budget.left == 0) return n;
    if (s != TM_ENOMEM)
      fail_msg("status %s when allocation %ld fails", tm_status_name(s), n + 1);
  }
  fail_msg("still failing after %d allocations", MOST);
  return -1;
}

/* ---- a temporary folder ---- */

/* Make an empty folder; its path goes into dir. */
static inline void test_dir(char *dir, size_t cap) {
  const char *base = getenv("TMPDIR");
  int n = snprintf(dir, cap, "%s/tidemill-XXXXXX", base && *base ? base : "/tmp");
  assert_true(n > 0 && (size_t)n < cap);
  assert_non_null(mkdtemp(dir));
}

/* Remove it with all that is in it. */
static inline void test_rmdir(const char *dir) {
  char command[600];
  assert_non_null(strstr(dir, "/tidemill-"));
  int n = snprintf(command, sizeof command, "rm -rf '%s'", dir);
  assert_true(n > 0 && (size_t)n < sizeof command);
  assert_int_equal(system(command), 0);
}

/* Write a file of n bytes into dir; its path goes into path. */
static inline void test_file(const char *dir, const char *name, const void *data,
                             size_t n, char *path, size_t cap) {
  int len = snprintf(path, cap, "%s/%s", dir, name);
  assert_true(len > 0 && (size_t)len < cap);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  if (n) assert_int_equal(fwrite(data, 1, n, f), n);
  assert_int_equal(fclose(f), 0);
}

#endif
