/* Claims: of several that want a piece of work one has it, and it is done once. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/claim.h"
#include "ckpt/file.h"
#include "test_folder.h"

static tm_claim *take(const char *path, const char *of, tm_claim_state want) {
  tm_claim *c;
  tm_claim_state found;
  tm_err err = {0};
  assert_ok_err(tm_claim_take(path, of, &c, &found, &err), &err);
  assert_int_equal(found, want);
  assert_true((c != NULL) == (want == TM_CLAIM_MINE));
  return c;
}

static void one_of_several_has_it(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  in_dir(path, "side/one");
  tm_claim *a = take(path, "x", TM_CLAIM_MINE);
  assert_null(take(path, "x", TM_CLAIM_HELD));
  assert_true(tm_claim_beat(a));
  tm_claim_free(a);
  assert_int_equal(tm_claim_mark(path), 0); /* given back: the file is gone */
  tm_claim *b = take(path, "x", TM_CLAIM_MINE);
  assert_true(tm_claim_finish(b));
  tm_claim_free(b);
  assert_null(take(path, "x", TM_CLAIM_DONE));
}

static void what_was_done_for_another_work_counts_for_nothing(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  in_dir(path, "side/other");
  tm_claim *a = take(path, "x", TM_CLAIM_MINE);
  assert_true(tm_claim_finish(a));
  tm_claim_free(a);
  tm_claim *b = take(path, "xy", TM_CLAIM_MINE);
  tm_claim_free(b);
  tm_claim_free(take(path, "x", TM_CLAIM_MINE));
}

static void a_dead_owner_gives_it_back_at_once(void **state) {
  (void)state;
  char path[TM_PATH_MAX], c;
  int ready[2];
  in_dir(path, "side/dead");
  assert_int_equal(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    tm_claim *mine;
    tm_claim_state found;
    if (tm_claim_take(path, "x", &mine, &found, NULL) || !mine) _exit(1);
    if (write(ready[1], "r", 1) != 1) _exit(1);
    pause();
  }
  assert_int_equal(read(ready[0], &c, 1), 1);
  assert_null(take(path, "x", TM_CLAIM_HELD));
  kill(pid, SIGKILL);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
  tm_claim_free(take(path, "x", TM_CLAIM_MINE));
  close(ready[0]);
  close(ready[1]);
}

static void one_that_stood_still_is_broken_and_finds_out(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  in_dir(path, "side/still");
  tm_claim *a = take(path, "x", TM_CLAIM_MINE);
  uint64_t mark = tm_claim_mark(path);
  assert_true(mark != 0);
  tm_claim_break(path, mark + 1); /* it lived in between */
  assert_true(tm_claim_beat(a));
  tm_claim_break(path, tm_claim_mark(path));
  tm_claim *b = take(path, "x", TM_CLAIM_MINE);
  assert_false(tm_claim_beat(a));
  assert_false(tm_claim_finish(a));
  tm_claim_free(a); /* the other one's file stays */
  assert_true(tm_claim_finish(b));
  tm_claim_free(b);
  assert_null(take(path, "x", TM_CLAIM_DONE));
}

static void what_nobody_holds_is_forgotten(void **state) {
  (void)state;
  char path[TM_PATH_MAX], none[TM_PATH_MAX];
  in_dir(path, "gone/a");
  in_dir(none, "gone");
  tm_claim *a = take(path, "x", TM_CLAIM_MINE);
  tm_claim_forget(path);
  assert_true(tm_claim_beat(a)); /* held: it stays */
  assert_true(tm_claim_finish(a));
  tm_claim_free(a);
  tm_claim_forget(path);
  assert_int_equal(access(none, F_OK), -1);
  tm_claim_forget(path);
}

static void what_cannot_be_is_an_error(void **state) {
  (void)state;
  char path[TM_PATH_MAX], file[TM_PATH_MAX], of[TM_CLAIM_OF + 1];
  tm_claim *c;
  tm_claim_state found;
  tm_err err = {0};
  memset(of, 'x', sizeof of);
  of[TM_CLAIM_OF] = '\0';
  assert_int_equal(tm_claim_take(in_dir(path, "long"), of, &c, &found, &err),
                   TM_EINVAL);
  FILE *f = fopen(in_dir(file, "file"), "w");
  assert_non_null(f);
  fclose(f);
  assert_true(tm_claim_take(in_dir(path, "file/a"), "x", &c, &found, &err) < 0);
  assert_null(c);
}

static tm_status claim_body(void *ud) {
  tm_claim *c;
  tm_claim_state found;
  tm_status s = tm_claim_take(ud, "x", &c, &found, NULL);
  tm_claim_free(c);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  char path[TM_PATH_MAX];
  assert_true(test_torture(claim_body, in_dir(path, "memory")) > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_of_several_has_it),
      cmocka_unit_test(what_was_done_for_another_work_counts_for_nothing),
      cmocka_unit_test(a_dead_owner_gives_it_back_at_once),
      cmocka_unit_test(one_that_stood_still_is_broken_and_finds_out),
      cmocka_unit_test(what_nobody_holds_is_forgotten),
      cmocka_unit_test(what_cannot_be_is_an_error),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
