/* A closure that ends every worker it meets is given up. */
#include <stdatomic.h>

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "test.h"

enum { WORKERS = 66, TRIES = 64 };

typedef struct fake {
  tm_worker_link link;
  atomic_ulong held; /* the last closure that came, 0: none */
} fake;

static fake worker[WORKERS];

static tm_status fake_submit(tm_worker_link *l, const tm_closure *c, int32_t n,
                             tm_err *err) {
  (void)err;
  atomic_store(&((fake *)l)->held, c[n - 1].id);
  return TM_OK;
}

static void fake_cancel(tm_worker_link *l, uint64_t upto) {
  (void)l;
  (void)upto;
}

static void fake_close(tm_worker_link *l) { (void)l; }

/* Who has the closure; waits until somebody has. */
static fake *holder(void) {
  for (int64_t end = tm_now_ns() + 10000000000; tm_now_ns() < end; tm_sleep_ns(100000))
    for (int i = 0; i < WORKERS; i++)
      if (atomic_load(&worker[i].held)) return &worker[i];
  return NULL;
}

static void a_closure_that_ends_every_worker_it_meets_is_given_up(void **state) {
  (void)state;
  tm_worker_link *link[WORKERS];
  tm_coordinator_options o = {.queue_size = 10};
  tm_coordinator *c;
  tm_graph *g;
  tm_err err = {0}, why = {0};
  for (int i = 0; i < WORKERS; i++) {
    link[i] = &worker[i].link;
    *link[i] = (tm_worker_link){
        .submit = fake_submit, .cancel = fake_cancel, .close = fake_close};
    snprintf(link[i]->task, sizeof link[i]->task, "/job:worker/task:%d", i);
  }
  assert_ok(tm_graph_new("poison", &g));
  assert_ok(tm_graph_finish(g, NULL, 0));
  assert_ok_err(tm_coordinator_new(&o, link, WORKERS, &c, &err), &err);
  assert_ok(tm_coordinator_schedule(c, g, NULL, 0, NULL, &err));
  tm_fail(&why, TM_EUNAVAILABLE, "killed");
  for (int i = 0; i < TRIES; i++) {
    fake *f = holder();
    assert_non_null(f);
    atomic_store(&f->held, 0);
    f->link.on_down(f->link.ud, &why);
  }
  assert_int_equal(tm_coordinator_join(c, 10000000000, NULL, &err), TM_EABORTED);
  assert_int_equal(err.step, 1);
  assert_non_null(
      strstr(err.msg, "closure 1 (poison) lost its worker 64 times: killed"));
  /* Two workers are left, and work. */
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_schedule(c, g, NULL, 0, NULL, &err), &err);
  fake *f = holder();
  assert_non_null(f);
  tm_completion done = {.id = atomic_load(&f->held)};
  f->link.on_done(f->link.ud, &done, 1);
  assert_ok_err(tm_coordinator_join(c, 10000000000, NULL, &err), &err);
  tm_coordinator_free(c);
  tm_graph_unref(g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_closure_that_ends_every_worker_it_meets_is_given_up),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
