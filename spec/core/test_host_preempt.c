/* Preemption watchers of hosts in one process, the table of signals, the board. */
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "cluster/board.h"
#include "cluster/preempt.h"
#include "cluster/preempt_signal.h"
#include "cluster/server.h"
#include "test.h"
#include "tidemill.h"

static volatile sig_atomic_t test_hits;

static void test_on_usr1(int sig) {
  (void)sig;
  test_hits++;
}

static void test_own_handler(void) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = test_on_usr1;
  sigaction(SIGUSR1, &sa, NULL);
  test_hits = 0;
}

static void *host_that_watches(void *ud) {
  static const char text[] =
      "package.path = 'lua/?.lua;lua/?/init.lua;' .. package.path\n"
      "local tm = require 'tidemill'\n"
      "w = tm.distribute.PreemptionWatcher { sources = { signals = { 'SIGUSR1' } } }";
  tm_host *h = tm_host_new();
  (void)ud;
  if (h && tm_host_string(h, text, "=watch") == 0) return h;
  tm_host_free(h);
  return NULL;
}

static bool host_sees(tm_host *h) {
  return tm_host_string(h,
                        "local tm, t = require 'tidemill', 0\n"
                        "while not w.preemption_message and t < 100 do\n"
                        "  tm.sleep(0.01)\n"
                        "  t = t + 1\n"
                        "end\n"
                        "assert(w.preemption_message == '/job:chief/task:0: SIGUSR1')",
                        "=see") == 0;
}

static void two_hosts_in_one_process_see_the_same_signal(void **state) {
  (void)state;
  pthread_t id[2];
  tm_host *h[2];
  test_own_handler();
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&id[i], NULL, host_that_watches, NULL), 0);
  for (int i = 0; i < 2; i++) {
    void *made;
    pthread_join(id[i], &made);
    h[i] = made;
    assert_non_null(h[i]);
  }
  raise(SIGUSR1);
  assert_true(host_sees(h[0]));
  tm_host_free(h[0]); /* the other still watches */
  assert_true(host_sees(h[1]));
  raise(SIGUSR1);
  assert_int_equal(test_hits, 0);
  tm_host_free(h[1]); /* the handler of before is back */
  raise(SIGUSR1);
  assert_int_equal(test_hits, 1);
  signal(SIGUSR1, SIG_DFL);
}

static void a_handler_that_came_later_is_left_alone(void **state) {
  (void)state;
  tm_err err = {0};
  assert_ok(tm_preempt_signal_take(SIGUSR1, &err));
  test_own_handler();
  tm_preempt_signal_give(SIGUSR1);
  raise(SIGUSR1);
  assert_int_equal(test_hits, 1);
  signal(SIGUSR1, SIG_DFL);
  assert_int_equal(tm_preempt_signal_take(SIGKILL, &err), TM_EINVAL);
  assert_int_equal(tm_preempt_signal_take(0, &err), TM_EINVAL);
  assert_int_equal(tm_preempt_signal_take(999, &err), TM_EINVAL);
}

/* --- a watcher in C --- */

static void test_on_message(void *ud, const tm_preempt_event *e) {
  tm_preempt_event *last = ud;
  *last = *e;
}

static bool test_get(tm_preempt *p, uint64_t n, tm_preempt_event *e) {
  for (int i = 0; i < 200; i++) {
    if (tm_preempt_get(p, n, e)) return true;
    tm_sleep_ns(10000000);
  }
  return false;
}

static void a_watcher_numbers_its_messages_and_keeps_the_last(void **state) {
  (void)state;
  tm_err err = {0};
  tm_preempt_options o;
  tm_preempt_event e, last = {.signal = 0};
  tm_preempt *p;
  test_own_handler();
  tm_preempt_none(&o, "/job:worker/task:3");
  assert_ok(tm_preempt_add_signal(&o, SIGUSR1, &err));
  o.on_message = test_on_message;
  o.ud = &last;
  assert_ok_err(tm_preempt_open(&o, &p, &err), &err);
  assert_false(tm_preempt_get(p, 1, &e));
  assert_false(tm_preempt_get(p, 0, &e));
  for (unsigned i = 1; i <= TM_PREEMPT_KEPT + 3; i++) {
    raise(SIGUSR1);
    assert_true(test_get(p, i, &e));
    assert_int_equal(e.times, i);
    assert_int_equal(e.signal, SIGUSR1);
    assert_string_equal(e.text, "/job:worker/task:3: SIGUSR1");
  }
  assert_true(tm_preempt_get(p, 1, &e)); /* the oldest that is kept */
  assert_int_equal(e.times, 4);
  tm_preempt_close(p);
  assert_int_equal(last.times, TM_PREEMPT_KEPT + 3);
  raise(SIGUSR1);
  assert_int_equal(test_hits, 1);
  signal(SIGUSR1, SIG_DFL);
  tm_preempt_close(NULL);
}

static void after_its_grace_period_a_watcher_lets_the_signal_do_its_work(void **state) {
  (void)state;
  tm_err err = {0};
  tm_preempt_options o;
  tm_preempt *p;
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = test_on_usr1;
  sigaction(SIGTERM, &sa, NULL);
  test_hits = 0;
  tm_preempt_none(&o, "");
  assert_ok(tm_preempt_add_signal(&o, SIGTERM, &err));
  o.grace = 0.05;
  assert_ok_err(tm_preempt_open(&o, &p, &err), &err);
  raise(SIGTERM);
  for (int i = 0; i < 300 && !test_hits; i++) tm_sleep_ns(10000000);
  assert_int_equal(test_hits, 1);
  tm_preempt_close(p);
  signal(SIGTERM, SIG_DFL);
}

static tm_status open_watcher(void *ud) {
  tm_err err = {0};
  tm_preempt_options o;
  tm_preempt *p;
  (void)ud;
  tm_preempt_none(&o, "x");
  TM_TRY(tm_preempt_add_signal(&o, SIGUSR1, &err));
  tm_status s = tm_preempt_open(&o, &p, &err);
  if (s == TM_OK) tm_preempt_close(p);
  return s;
}

static void opening_a_watcher_survives_failing_allocations(void **state) {
  (void)state;
  test_own_handler();
  assert_true(test_torture(open_watcher, NULL) >= 1);
  raise(SIGUSR1);
  assert_int_equal(test_hits, 1);
  signal(SIGUSR1, SIG_DFL);
}

static void texts_from_outside_are_cut_and_cleaned(void **state) {
  (void)state;
  char out[8];
  tm_preempt_clean(out, sizeof out, " \n a\tb\x1b[ \r\n", 10);
  assert_string_equal(out, "a b [");
  tm_preempt_clean(out, sizeof out, "123456789", 9);
  assert_string_equal(out, "1234567");
  tm_preempt_clean(out, sizeof out, " \n ", 3);
  assert_string_equal(out, "");
  tm_preempt_url u = {.timeout = 0};
  tm_err err = {0};
  assert_ok(tm_preempt_url_set(&u, "gce", &err));
  assert_non_null(strstr(u.url, "instance/preempted"));
  assert_string_equal(u.header[0], "Metadata-Flavor: Google");
  assert_int_equal(tm_preempt_url_set(&u, "http://a/\r\nX: y", &err), TM_EINVAL);
  for (int i = 1; i < TM_PREEMPT_HEADERS; i++)
    assert_ok(tm_preempt_url_header(&u, "A: b", &err));
  assert_int_equal(tm_preempt_url_header(&u, "A: b", &err), TM_EINVAL);
}

/* --- the board --- */

static void the_board_knows_who_leaves_and_who_is_gone(void **state) {
  (void)state;
  tm_err err = {0};
  tm_board *b;
  tm_departure d;
  tm_server *s;
  tm_hello self = {.cluster = "c", .task = "/job:chief/task:0"};
  tm_server_options o = {
      .job = "ps", .index = 0, .address = "127.0.0.1:0", .cluster_id = "c"};
  assert_ok(tm_board_new(&b));
  assert_int_equal(tm_board_look(b, NULL), 0);
  assert_false(tm_board_next(b, 0, &d));
  assert_ok_err(tm_server_start(&o, &s, &err), &err);
  memset(&d, 0, sizeof d);
  snprintf(d.address, sizeof d.address, "127.0.0.1:%d", tm_server_port(s));
  snprintf(d.task, sizeof d.task, "/job:ps/task:0");
  d.incarnation = 5; /* not of the process that is there */
  tm_board_say(b, &d, &self);
  assert_int_equal(tm_board_count(b), 1);
  assert_true(tm_board_next(b, 0, &d));
  assert_false(d.cut || d.gone);
  assert_int_equal(tm_board_look(b, NULL), 1); /* its connection stands */
  tm_board_cut(b, 5);
  assert_int_equal(tm_board_look(b, NULL), 0); /* another is there now */
  assert_true(tm_board_next(b, 0, &d));
  assert_true(d.cut && d.gone);
  tm_server_free(s);
  for (int i = 0; i < 2000; i++) tm_board_say(b, &d, &self);
  assert_int_equal(tm_board_count(b), 2001);
  assert_true(tm_board_next(b, 0, &d));
  assert_int_equal(d.number, 2001 - 1024 + 1); /* the oldest that is kept */
  assert_ptr_equal(tm_board_ref(b), b);
  tm_board_unref(b);
  tm_board_unref(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_hosts_in_one_process_see_the_same_signal),
      cmocka_unit_test(a_handler_that_came_later_is_left_alone),
      cmocka_unit_test(a_watcher_numbers_its_messages_and_keeps_the_last),
      cmocka_unit_test(after_its_grace_period_a_watcher_lets_the_signal_do_its_work),
      cmocka_unit_test(opening_a_watcher_survives_failing_allocations),
      cmocka_unit_test(texts_from_outside_are_cut_and_cleaned),
      cmocka_unit_test(the_board_knows_who_leaves_and_who_is_gone),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
