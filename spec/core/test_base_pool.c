/* pool, log, clock. */
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/log.h"
#include "test.h"

enum { PIECES = 1000 };

static void add_one(void *ud, size_t i) {
  atomic_int *hits = ud;
  atomic_fetch_add(&hits[i], 1);
}

static void run_does_each_piece_once(void **state) {
  (void)state;
  static const size_t threads[] = {0, 1, 3};
  for (size_t k = 0; k < TM_COUNT(threads); k++) {
    tm_pool *p;
    assert_ok(tm_pool_new(threads[k], 2, &p));
    assert_int_equal(tm_pool_threads(p), threads[k]);
    for (int turn = 0; turn < 50; turn++) {
      static atomic_int hits[PIECES];
      for (size_t i = 0; i < PIECES; i++) atomic_store(&hits[i], 0);
      size_t n = turn < 3 ? (size_t)turn : PIECES;
      tm_pool_run(p, n, add_one, hits);
      for (size_t i = 0; i < PIECES; i++)
        assert_int_equal(atomic_load(&hits[i]), i < n ? 1 : 0);
    }
    tm_pool_free(p);
  }
  tm_pool_free(NULL);
}

static void run_without_a_pool_is_a_loop(void **state) {
  (void)state;
  atomic_int hits[3] = {0};
  tm_pool_run(NULL, 3, add_one, hits);
  assert_int_equal(atomic_load(&hits[2]), 1);
}

struct nest {
  tm_pool *pool;
  atomic_int sum;
};

static void inner_piece(void *ud, size_t i) {
  struct nest *n = ud;
  atomic_fetch_add(&n->sum, (int)i);
}

static void outer_piece(void *ud, size_t i) {
  (void)i;
  struct nest *n = ud;
  tm_pool_run(n->pool, 10, inner_piece, n);
}

static void run_within_run_ends(void **state) {
  (void)state;
  struct nest n = {NULL, 0};
  assert_ok(tm_pool_new(2, 1, &n.pool));
  for (int turn = 0; turn < 100; turn++) tm_pool_run(n.pool, 20, outer_piece, &n);
  assert_int_equal(atomic_load(&n.sum), 100 * 20 * 45);
  tm_pool_free(n.pool);
}

struct gate {
  pthread_mutex_t mu;
  pthread_cond_t cond;
  bool open;
  atomic_int passed;
};

static void wait_at_gate(void *ud) {
  struct gate *g = ud;
  pthread_mutex_lock(&g->mu);
  while (!g->open) pthread_cond_wait(&g->cond, &g->mu);
  pthread_mutex_unlock(&g->mu);
  atomic_fetch_add(&g->passed, 1);
}

static void a_full_queue_says_eagain_and_free_runs_what_waits(void **state) {
  (void)state;
  struct gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0};
  tm_pool *p;
  assert_ok(tm_pool_new(1, 3, &p));
  /* One may already have left the queue for the thread. */
  int taken = 0;
  tm_status s = TM_OK;
  for (int i = 0; i < 1000 && taken < 4; i++) {
    s = tm_pool_submit(p, wait_at_gate, &g);
    if (s == TM_OK)
      taken++;
    else
      tm_sleep_ns(100000);
  }
  assert_int_equal(taken, 4);
  assert_int_equal(tm_pool_submit(p, wait_at_gate, &g), TM_EAGAIN);
  atomic_int hits[4] = {0};
  tm_pool_run(p, 4, add_one, hits); /* needs no slot */
  assert_int_equal(atomic_load(&hits[3]), 1);
  pthread_mutex_lock(&g.mu);
  g.open = true;
  pthread_cond_broadcast(&g.cond);
  pthread_mutex_unlock(&g.mu);
  tm_pool_free(p);
  assert_int_equal(atomic_load(&g.passed), 4);
}

static tm_status pool_body(void *ud) {
  (void)ud;
  tm_pool *p;
  tm_status s = tm_pool_new(2, 4, &p);
  if (s != TM_OK) assert_null(p);
  tm_pool_free(p);
  return s;
}

static void a_pool_survives_every_failed_allocation(void **state) {
  (void)state;
  tm_pool *p;
  assert_int_equal(tm_pool_new(1, 0, &p), TM_EINVAL);
  assert_null(p);
  assert_int_equal(test_torture(pool_body, NULL), 3);
}

/* Threads that allocate here and free there leave an exact count. */
static void *allocate(void *ud) {
  void **slot = ud;
  for (int i = 0; i < 1000; i++) slot[i] = tm_malloc((size_t)i + 1);
  return NULL;
}

static void live_bytes_are_exact_across_threads(void **state) {
  (void)state;
  enum { TURNS = 30, AT_ONCE = 4 }; /* more threads than cells of their own */
  static void *slot[AT_ONCE][1000];
  int64_t before = tm_mem_live();
  for (int turn = 0; turn < TURNS; turn++) {
    pthread_t t[AT_ONCE];
    for (int k = 0; k < AT_ONCE; k++)
      assert_int_equal(pthread_create(&t[k], NULL, allocate, slot[k]), 0);
    for (int k = 0; k < AT_ONCE; k++) assert_int_equal(pthread_join(t[k], NULL), 0);
    assert_int_equal(tm_mem_live() - before, AT_ONCE * 500500);
    for (int k = 0; k < AT_ONCE; k++)
      for (int i = 0; i < 1000; i++) tm_free(slot[k][i], (size_t)i + 1);
    assert_int_equal(tm_mem_live(), before);
  }
}

/* ---- log ---- */

struct lines {
  int n;
  tm_log_level level;
  char last[2000];
};

static void keep_line(void *ud, tm_log_level level, const char *line) {
  struct lines *l = ud;
  l->n++;
  l->level = level;
  snprintf(l->last, sizeof l->last, "%s", line);
}

static void keep_text(void *ud, const char *text) { keep_line(ud, TM_LOG_INFO, text); }

static void log_lines_reach_the_sink_from_its_level_on(void **state) {
  (void)state;
  struct lines l = {0};
  tm_log(TM_LOG_ERROR, "nobody listens");
  tm_log_sink(keep_line, &l, TM_LOG_WARN);
  tm_log(TM_LOG_INFO, "too quiet");
  assert_int_equal(l.n, 0);
  tm_log(TM_LOG_WARN, "peer %d is %s", 3, "late");
  assert_int_equal(l.n, 1);
  assert_int_equal(l.level, TM_LOG_WARN);
  assert_string_equal(l.last, "peer 3 is late");
  char text[5000];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  tm_log(TM_LOG_ERROR, "%s", text);
  assert_int_equal(strlen(l.last), 1023);
  tm_log_sink(NULL, NULL, TM_LOG_DEBUG);
  tm_log(TM_LOG_ERROR, "gone");
  assert_int_equal(l.n, 2);
}

static void printed_text_reaches_its_own_sink(void **state) {
  (void)state;
  struct lines l = {0};
  tm_print_text("nobody listens");
  tm_print_sink(keep_text, &l);
  tm_print_text("loss 0.5");
  assert_string_equal(l.last, "loss 0.5");
  tm_print_sink(NULL, NULL);
  tm_print_text("gone");
  assert_int_equal(l.n, 1);
}

/* ---- clock, cancel ---- */

static void time_goes_on_and_sleep_takes_as_long_as_it_says(void **state) {
  (void)state;
  int64_t a = tm_now_ns();
  tm_sleep_ns(3000000);
  tm_sleep_ns(0);
  tm_sleep_ns(-5);
  int64_t b = tm_now_ns();
  assert_true(b - a >= 3000000);
  assert_true(tm_now_s() >= (double)b * 1e-9);
}

static void ids_differ_and_are_never_zero(void **state) {
  (void)state;
  uint64_t id[200];
  for (int i = 0; i < 200; i++) {
    id[i] = tm_random_id();
    assert_true(id[i] != 0);
    for (int k = 0; k < i; k++) assert_true(id[k] != id[i]);
  }
}

static void a_cancelled_flag_stays_until_reset(void **state) {
  (void)state;
  tm_cancel c = {0};
  assert_false(tm_cancelled(&c));
  assert_false(tm_cancelled(NULL));
  tm_cancel_set(&c);
  assert_true(tm_cancelled(&c));
  tm_cancel_reset(&c);
  assert_false(tm_cancelled(&c));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(run_does_each_piece_once),
      cmocka_unit_test(run_without_a_pool_is_a_loop),
      cmocka_unit_test(run_within_run_ends),
      cmocka_unit_test(a_full_queue_says_eagain_and_free_runs_what_waits),
      cmocka_unit_test(a_pool_survives_every_failed_allocation),
      cmocka_unit_test(live_bytes_are_exact_across_threads),
      cmocka_unit_test(log_lines_reach_the_sink_from_its_level_on),
      cmocka_unit_test(printed_text_reaches_its_own_sink),
      cmocka_unit_test(time_goes_on_and_sleep_takes_as_long_as_it_says),
      cmocka_unit_test(ids_differ_and_are_never_zero),
      cmocka_unit_test(a_cancelled_flag_stays_until_reset),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
