/* The window of tokens: how far above the lowest unfinished closure others may go. */
#include "base/clock.h"
#include "cluster/coordinator.h"
#include "ps/tokens.h"
#include "test.h"

enum { HELD = 2048 };

/* A worker that ends its closures when it is told to. */
typedef struct fake {
  tm_worker_link link;
  uint64_t id[HELD];
  int32_t n;
  uint64_t highest;
} fake;

static tm_status fake_submit(tm_worker_link *l, const tm_closure *c, int32_t n,
                             tm_err *err) {
  fake *f = (fake *)l;
  (void)err;
  for (int32_t i = 0; i < n; i++) {
    assert_true(f->n < HELD);
    assert_true(c[i].id - c[i].lowest < TM_TOKENS_MAX);
    if (c[i].id > f->highest) f->highest = c[i].id;
    f->id[f->n++] = c[i].id;
  }
  return TM_OK;
}

static void fake_cancel(tm_worker_link *l, uint64_t upto) {
  (void)l;
  (void)upto;
}

static void fake_close(tm_worker_link *l) { (void)l; }

static void fake_init(fake *f, int32_t index) {
  memset(f, 0, sizeof *f);
  f->link = (tm_worker_link){
      .submit = fake_submit, .cancel = fake_cancel, .close = fake_close};
  snprintf(f->link.task, sizeof f->link.task, "/job:worker/task:%d", index);
}

/* All that f holds is done. */
static void fake_finish(fake *f) {
  static tm_completion d[HELD];
  int32_t n = f->n;
  for (int32_t i = 0; i < n; i++) {
    memset(&d[i], 0, sizeof d[i]);
    d[i].id = f->id[i];
  }
  f->n = 0;
  if (n) f->link.on_done(f->link.ud, d, n);
}

static tm_graph *empty_function(void) {
  tm_graph *g;
  assert_ok(tm_graph_new("nothing", &g));
  assert_ok(tm_graph_finish(g, NULL, 0));
  return g;
}

static void no_closure_goes_out_further_above_the_lowest_than_tokens_are_kept(
    void **state) {
  (void)state;
  static fake slow, fast;
  tm_worker_link *link[2] = {&slow.link, &fast.link};
  tm_coordinator_options o = {.queue_size = 1000};
  tm_coordinator *c;
  tm_coordinator_stats st;
  tm_err err = {0};
  tm_graph *g = empty_function();
  fake_init(&slow, 0);
  fake_init(&fast, 1);
  assert_ok_err(tm_coordinator_new(&o, link, 2, &c, &err), &err);
  assert_ok(tm_coordinator_schedule(c, g, NULL, 0, NULL, &err));
  assert_int_equal(slow.n, 1); /* closure 1 runs for long */
  uint64_t scheduled = 1;
  while (scheduled < TM_TOKENS_MAX + 100) {
    tm_status s = tm_coordinator_schedule(c, g, NULL, 0, NULL, &err);
    scheduled += s == TM_OK;
    if (slow.n > 1) slow.n = 1; /* it holds one more, as if that were done */
    if (s == TM_EAGAIN || fast.n >= 128) fake_finish(&fast);
    if (fast.highest == TM_TOKENS_MAX || slow.highest == TM_TOKENS_MAX) break;
  }
  while (fast.n) fake_finish(&fast);
  for (int i = 0; i < 50; i++)
    assert_ok(tm_coordinator_schedule(c, g, NULL, 0, NULL, &err));
  while (fast.n) fake_finish(&fast);
  assert_int_equal(fast.highest > slow.highest ? fast.highest : slow.highest,
                   TM_TOKENS_MAX);
  tm_coordinator_get_stats(c, &st, NULL, 0);
  assert_int_equal(st.queued, 50 + (int64_t)scheduled - TM_TOKENS_MAX);
  tm_coordinator_free(c);
  tm_graph_unref(g);
}

static tm_status take(tm_tokens *t, uint64_t closure, uint64_t lowest, bool *repeat) {
  tm_token_use use;
  tm_err err = {0};
  tm_ps_token token = {
      .incarnation = 1, .closure = closure, .turn = 0, .lowest = lowest};
  tm_status s = tm_tokens_take(t, &token, &use, &err);
  if (s) return s;
  *repeat = use.repeat;
  tm_tokens_end(t, &use, true);
  return TM_OK;
}

static void a_ps_keeps_as_many_tokens_as_the_window_has(void **state) {
  (void)state;
  tm_tokens *t;
  bool repeat;
  assert_ok(tm_tokens_new(&t));
  for (uint64_t c = 2; c <= TM_TOKENS_MAX; c++) assert_ok(take(t, c, 1, &repeat));
  assert_ok(take(t, 1, 1, &repeat)); /* the lowest itself always has room */
  assert_false(repeat);
  const uint64_t edge[] = {1, 2, TM_TOKENS_MAX};
  for (size_t i = 0; i < TM_COUNT(edge); i++) {
    assert_ok(take(t, edge[i], 1, &repeat));
    assert_true(repeat);
  }
  assert_int_equal(take(t, TM_TOKENS_MAX + 1, 1, &repeat), TM_EEXHAUSTED);
  assert_ok(take(t, TM_TOKENS_MAX + 1, 2, &repeat)); /* closure 1 is finished */
  assert_false(repeat);
  assert_ok(take(t, 2, 2, &repeat));
  assert_true(repeat);
  assert_int_equal(take(t, TM_TOKENS_MAX + 2, 2, &repeat), TM_EEXHAUSTED);
  tm_tokens_free(t);
}

static void forgetting_many_tokens_at_once_takes_no_pause(void **state) {
  (void)state;
  tm_tokens *t;
  bool repeat;
  enum { N = TM_TOKENS_MAX / 2 };
  assert_ok(tm_tokens_new(&t));
  for (uint64_t c = 2; c <= 2 * N; c += 2) assert_ok(take(t, c, 1, &repeat));
  int64_t start = tm_now_ns();
  assert_ok(take(t, 2 * N + 1, 2 * N, &repeat));
  assert_true(tm_now_ns() - start < 1000000000);
  assert_ok(take(t, 2 * N, 2 * N, &repeat));
  assert_true(repeat);
  tm_tokens_free(t);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(
          no_closure_goes_out_further_above_the_lowest_than_tokens_are_kept),
      cmocka_unit_test(a_ps_keeps_as_many_tokens_as_the_window_has),
      cmocka_unit_test(forgetting_many_tokens_at_once_takes_no_pause),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
