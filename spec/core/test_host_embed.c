/* Hosts in a program of somebody else's, by the public header alone. */
#include "tidemill.h"

#include <pthread.h>
#include <time.h>

#include "test.h"

static const char path[] = "package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path";

static tm_host *host(void) {
  tm_host *h = tm_host_new();
  assert_non_null(h);
  assert_int_equal(tm_host_string(h, path, "=path"), 0);
  return h;
}

static void a_host_runs_text_and_tells_errors(void **state) {
  (void)state;
  tm_host *h = host();
  assert_string_equal(tm_version(), "0.1.0");
  assert_non_null(tm_host_lua(h));
  assert_int_equal(tm_host_string(h,
                                  "local tm = require 'tidemill'\n"
                                  "assert(tm.reduce_sum(tm.ones { 3 }):item() == 3)",
                                  "=good"),
                   0);
  assert_string_equal(tm_host_error(h), "");
  assert_int_equal(tm_host_string(h, "error 'boom'", "=bad"), 1);
  assert_non_null(strstr(tm_host_error(h), "bad:1: boom"));
  assert_non_null(strstr(tm_host_error(h), "traceback"));
  assert_int_equal(tm_host_string(h, "return +", "=syntax"), 1);
  assert_non_null(strstr(tm_host_error(h), "syntax:1"));
  assert_int_equal(
      tm_host_string(h, "require 'tidemill'.matmul({{1}}, {{1, 2}, {3, 4}})", "=op"),
      1);
  assert_non_null(strstr(tm_host_error(h), "invalid_argument"));
  assert_int_equal(tm_host_file(h, "/no/such/file.lua", 0, NULL), 1);
  assert_non_null(strstr(tm_host_error(h), "/no/such/file.lua"));
  tm_host_free(h);
  tm_host_free(NULL);
}

static void a_file_gets_its_arguments(void **state) {
  (void)state;
  char dir[200], file[300];
  const char text[] = "local a, b = ... assert(a == 'x' and b == 'y z')";
  test_dir(dir, sizeof dir);
  test_file(dir, "args.lua", text, sizeof text - 1, file, sizeof file);
  tm_host *h = host();
  assert_int_equal(tm_host_file(h, file, 2, (const char *const[]){"x", "y z"}), 0);
  tm_host_free(h);
  test_rmdir(dir);
}

static void *train(void *ud) {
  static const char text[] =
      "local tm = require 'tidemill'\n"
      "local s = tm.distribute.ParameterServerStrategy(\n"
      "  tm.distribute.resolver { workers = 2, ps = 2 })\n"
      "local v\n"
      "s:scope(function() v = tm.Variable(tm.zeros { 4 }) end)\n"
      "local c = tm.distribute.ClusterCoordinator(s)\n"
      "local f = tm.func(function() v:assign_add(tm.ones { 4 }) end)\n"
      "for _ = 1, 100 do c:schedule(f) end\n"
      "c:join()\n"
      "assert(tm.reduce_sum(v):item() == 400)\n";
  tm_host *h = tm_host_new();
  if (!h) return ud;
  bool bad = tm_host_string(h, path, "=path") || tm_host_string(h, text, "=train");
  if (bad) print_message("%s\n", tm_host_error(h));
  tm_host_free(h);
  return bad ? ud : NULL;
}

static void two_hosts_in_two_threads_have_a_cluster_each(void **state) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&t[i], NULL, train, state), 0);
  for (int i = 0; i < 2; i++) {
    void *bad;
    assert_int_equal(pthread_join(t[i], &bad), 0);
    assert_null(bad);
  }
}

static void *interrupt_soon(void *ud) {
  struct timespec t = {0, 50000000};
  nanosleep(&t, NULL);
  tm_host_interrupt(ud);
  return NULL;
}

static void a_script_is_interrupted_from_another_thread(void **state) {
  (void)state;
  static const char *const text[] = {
      "while true do end", "coroutine.wrap(function() while true do end end)()",
      "while true do pcall(function() while true do end end) end",
      "require 'tidemill'.sleep(60)"};
  tm_host *h = host();
  for (size_t i = 0; i < TM_COUNT(text); i++) {
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, interrupt_soon, h), 0);
    assert_int_equal(tm_host_string(h, text[i], "=loop"), 1);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_non_null(strstr(tm_host_error(h), "cancelled"));
    assert_int_equal(tm_host_string(h, "for i = 1, 1e5 do end", "=after"), 0);
  }
  tm_host_free(h);
}

static void twice(const float *x, float *y, size_t n) {
  for (size_t i = 0; i < n; i++) y[i] = 2 * x[i];
}

static void an_op_in_c_is_an_op_like_others(void **state) {
  (void)state;
  assert_int_equal(tm_register_elementwise("c_twice", "2x, element by element.", twice),
                   0);
  assert_int_equal(tm_register_elementwise("c_twice", "again", twice), 1);
  assert_int_equal(tm_register_elementwise("matmul", "taken", twice), 1);
  assert_int_equal(tm_register_elementwise("1x", "no name", twice), 1);
  assert_int_equal(tm_register_elementwise("c_nothing", "", twice), 1);
  tm_host *h = host();
  int s = tm_host_string(h,
                         "local tm = require 'tidemill'\n"
                         "local x = tm.tensor({ 1, 2 }, 'float32')\n"
                         "assert(tm.c_twice(x):totable()[2] == 4)\n"
                         "local f = tm.func(function(a) return tm.c_twice(a) + 1 end)\n"
                         "assert(f(x):totable()[1] == 3)\n"
                         "assert(not pcall(tm.c_twice, tm.tensor({ 1 }, 'int64')))",
                         "=op");
  if (s) fail_msg("%s", tm_host_error(h));
  tm_host_free(h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_host_runs_text_and_tells_errors),
      cmocka_unit_test(a_file_gets_its_arguments),
      cmocka_unit_test(two_hosts_in_two_threads_have_a_cluster_each),
      cmocka_unit_test(a_script_is_interrupted_from_another_thread),
      cmocka_unit_test(an_op_in_c_is_an_op_like_others),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
