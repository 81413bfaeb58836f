/* Moments without UPDATEs: gates of workers that tell at once, late, never; losses. */
#include <pthread.h>

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "cluster/gate.h"
#include "test.h"

/* A worker that only has a gate. */
typedef struct fake {
  tm_worker_link link; /* first */
  pthread_t thread;
  bool threaded;
  int64_t late_ns; /* < 0: never tells; 0: tells from inside of gate() */
  uint64_t number;
  atomic_int closed, opened;
  atomic_bool shut;
} fake;

static void *fake_tell(void *ud) {
  fake *f = ud;
  tm_sleep_ns(f->late_ns);
  f->link.on_gated(f->link.ud, f->number);
  return NULL;
}

static void fake_join(fake *f) {
  if (f->threaded) pthread_join(f->thread, NULL);
  f->threaded = false;
}

static void fake_gate(tm_worker_link *l, uint64_t number, bool closed) {
  fake *f = (fake *)l;
  atomic_fetch_add(closed ? &f->closed : &f->opened, 1);
  atomic_store(&f->shut, closed);
  if (!closed) return;
  f->number = number;
  if (f->late_ns == 0) {
    l->on_gated(l->ud, number);
  } else if (f->late_ns > 0) {
    fake_join(f);
    f->threaded = pthread_create(&f->thread, NULL, fake_tell, f) == 0;
  }
}

static void fake_cancel(tm_worker_link *l, uint64_t upto) {
  (void)l;
  (void)upto;
}

static void fake_close(tm_worker_link *l) { fake_join((fake *)l); }

static void fake_init(fake *f, int i, int64_t late_ns) {
  memset(f, 0, sizeof *f);
  f->late_ns = late_ns;
  f->link.gate = fake_gate;
  f->link.cancel = fake_cancel;
  f->link.close = fake_close;
  snprintf(f->link.task, sizeof f->link.task, "/job:worker/task:%d", i);
}

typedef struct scene {
  tm_coordinator *c;
  fake f[3];
  atomic_int called, refused;
  atomic_bool may_refuse, may_revive;
  bool all_shut;
  int n;
} scene;

static tm_status scene_refuse(void *ud, int32_t index, tm_err *err) {
  scene *s = ud;
  (void)index;
  if (!atomic_load(&s->may_refuse)) return tm_fail(err, TM_EUNAVAILABLE, "not now");
  atomic_fetch_add(&s->refused, 1);
  return TM_OK;
}

/* The third fake takes the place of whoever was lost. */
static tm_status scene_revive(void *ud, int32_t index, tm_cancel *cancel,
                              tm_worker_link **out, tm_err *err) {
  scene *s = ud;
  (void)index;
  (void)cancel;
  if (!atomic_load(&s->may_revive)) return tm_fail(err, TM_EUNAVAILABLE, "not now");
  atomic_store(&s->may_revive, false);
  *out = &s->f[2].link;
  return TM_OK;
}

static void scene_open(scene *s, int64_t late0, int64_t late1) {
  tm_err err = {0};
  memset(s, 0, sizeof *s);
  fake_init(&s->f[0], 0, late0);
  fake_init(&s->f[1], 1, late1);
  fake_init(&s->f[2], 1, 0);
  atomic_store(&s->may_refuse, true);
  tm_worker_link *link[2] = {&s->f[0].link, &s->f[1].link};
  tm_coordinator_options opt = {
      .queue_size = 8, .refuse = scene_refuse, .revive = scene_revive, .ud = s};
  assert_ok_err(tm_coordinator_new(&opt, link, 2, &s->c, &err), &err);
  s->n = 2;
}

static tm_status scene_fn(void *ud, tm_err *err) {
  scene *s = ud;
  (void)err;
  atomic_fetch_add(&s->called, 1);
  s->all_shut = true;
  for (int i = 0; i < s->n; i++)
    s->all_shut = s->all_shut && atomic_load(&s->f[i].shut);
  return TM_OK;
}

static void all_gates_are_closed_for_a_moment_and_opened_again(void **state) {
  (void)state;
  scene s;
  tm_err err = {0};
  scene_open(&s, 0, 20000000);
  for (int turn = 1; turn <= 3; turn++) {
    assert_ok_err(tm_coordinator_barrier(s.c, 60000000000, NULL, scene_fn, &s, &err),
                  &err);
    assert_int_equal(s.called, turn);
    assert_true(s.all_shut);
    for (int i = 0; i < 2; i++) {
      assert_int_equal(s.f[i].closed, turn);
      assert_int_equal(s.f[i].opened, turn);
      assert_false(s.f[i].shut);
    }
  }
  tm_coordinator_free(s.c);
}

static void a_worker_that_does_not_come_in_time_lets_training_go_on(void **state) {
  (void)state;
  scene s;
  tm_err err = {0};
  scene_open(&s, 0, -1);
  int64_t start = tm_now_ns();
  assert_int_equal(tm_coordinator_barrier(s.c, 100000000, NULL, scene_fn, &s, &err),
                   TM_ETIMEOUT);
  assert_true(tm_now_ns() - start < 3000000000);
  assert_string_equal(err.task, "/job:worker/task:1");
  assert_int_equal(s.called, 0);
  assert_false(s.f[0].shut);
  assert_false(s.f[1].shut);
  s.f[1].late_ns = 0; /* and the next try succeeds */
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_barrier(s.c, 60000000000, NULL, scene_fn, &s, &err),
                &err);
  assert_int_equal(s.called, 1);
  tm_coordinator_free(s.c);
}

static void what_the_moment_fails_with_is_told_and_gates_open(void **state) {
  (void)state;
  scene s;
  tm_err err = {0};
  scene_open(&s, 0, 0);
  tm_err why = {0};
  tm_fail(&why, TM_EUNAVAILABLE, "/job:ps/task:0 is lost");
  tm_coordinator_lose(s.c, &why);
  assert_int_equal(tm_coordinator_barrier(s.c, 60000000000, NULL, scene_fn, &s, &err),
                   TM_EUNAVAILABLE);
  assert_int_equal(s.called, 0);
  assert_false(s.f[0].shut);
  tm_coordinator_free(s.c);
}

typedef struct barrier_call {
  scene *s;
  tm_status status;
  tm_err err;
  atomic_bool done;
} barrier_call;

static void *barrier_main(void *ud) {
  barrier_call *b = ud;
  b->status =
      tm_coordinator_barrier(b->s->c, 20000000000, NULL, scene_fn, b->s, &b->err);
  atomic_store(&b->done, true);
  return NULL;
}

static void a_lost_worker_counts_once_every_ps_refuses_it(void **state) {
  (void)state;
  scene s;
  pthread_t t;
  scene_open(&s, 0, -1);
  atomic_store(&s.may_refuse, false);
  tm_err why = {0};
  tm_fail(&why, TM_EUNAVAILABLE, "killed");
  s.f[1].link.on_down(s.f[1].link.ud, &why);
  barrier_call b = {.s = &s};
  assert_int_equal(pthread_create(&t, NULL, barrier_main, &b), 0);
  tm_sleep_ns(100000000);
  assert_false(b.done);
  s.n = 1;
  atomic_store(&s.may_refuse, true);
  pthread_join(t, NULL);
  assert_ok_err(b.status, &b.err);
  assert_int_equal(s.refused, 1);
  assert_int_equal(s.called, 1);
  tm_coordinator_free(s.c);
}

static tm_status scene_fn_slow(void *ud, tm_err *err) {
  scene *s = ud;
  atomic_store(&s->may_revive, true);
  for (int i = 0; i < 2000 && !atomic_load(&s->f[2].closed); i++) tm_sleep_ns(1000000);
  return scene_fn(ud, err);
}

static void a_worker_that_comes_meanwhile_finds_its_gate_closed(void **state) {
  (void)state;
  scene s;
  tm_err err = {0};
  scene_open(&s, 0, 0);
  tm_err why = {0};
  tm_fail(&why, TM_EUNAVAILABLE, "killed");
  s.f[1].link.on_down(s.f[1].link.ud, &why);
  s.n = 1;
  assert_ok_err(tm_coordinator_barrier(s.c, 20000000000, NULL, scene_fn_slow, &s, &err),
                &err);
  assert_int_equal(s.f[2].closed, 1);
  assert_int_equal(s.f[2].opened, 1);
  assert_false(s.f[2].shut);
  tm_coordinator_free(s.c);
}

/* --- the gate itself --- */

typedef struct passer {
  tm_gate g;
  atomic_int inside, told;
  atomic_bool stop;
} passer;

static void *passer_main(void *ud) {
  passer *p = ud;
  while (!atomic_load(&p->stop)) {
    tm_gate_enter(&p->g);
    atomic_fetch_add(&p->inside, 1);
    atomic_fetch_sub(&p->inside, 1);
    uint64_t n = tm_gate_leave(&p->g);
    if (n) atomic_store(&p->told, (int)n);
  }
  return NULL;
}

static void nobody_passes_a_closed_gate_and_its_end_lets_all_go(void **state) {
  (void)state;
  passer p = {.stop = false};
  pthread_t t;
  tm_gate_init(&p.g);
  assert_int_equal(pthread_create(&t, NULL, passer_main, &p), 0);
  for (int turn = 1; turn <= 300; turn++) {
    if (!tm_gate_set(&p.g, (uint64_t)turn, true))
      while (atomic_load(&p.told) != turn) tm_sleep_ns(1000);
    for (int k = 0; k < 20; k++) assert_int_equal(p.inside, 0);
    assert_false(tm_gate_set(&p.g, (uint64_t)turn, false));
  }
  tm_gate_set(&p.g, 1000, true);
  tm_sleep_ns(2000000);
  atomic_store(&p.stop, true);
  tm_gate_end(&p.g);
  pthread_join(t, NULL);
  tm_gate_release(&p.g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(all_gates_are_closed_for_a_moment_and_opened_again),
      cmocka_unit_test(a_worker_that_does_not_come_in_time_lets_training_go_on),
      cmocka_unit_test(what_the_moment_fails_with_is_told_and_gates_open),
      cmocka_unit_test(a_lost_worker_counts_once_every_ps_refuses_it),
      cmocka_unit_test(a_worker_that_comes_meanwhile_finds_its_gate_closed),
      cmocka_unit_test(nobody_passes_a_closed_gate_and_its_end_lets_all_go),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
