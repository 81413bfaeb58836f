/* Who may train: rounds of mode sync, the clocks of mode ssp.  Workers are fakes that
 * end their closures when they are told to; what the ps are told is written down. */
#include <pthread.h>

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "graph_help.h"
#include "test.h"

enum { WORKERS = 4, HELD = 64, ENDS = 512, SHARES = 8 };

typedef struct fake {
  tm_worker_link link;
  tm_closure held[HELD]; /* in order; arguments are not kept */
  int32_t n;
  pthread_mutex_t mu; /* of held, n */
  uint64_t done;
} fake;

static int32_t count(fake *f) {
  pthread_mutex_lock(&f->mu);
  int32_t n = f->n;
  pthread_mutex_unlock(&f->mu);
  return n;
}

typedef struct rig {
  fake w[WORKERS];
  int64_t live; /* bytes before it */
  tm_coordinator *c;
  tm_graph *train, *look;
  pthread_mutex_t mu; /* of what commit writes down */
  tm_ps_commit end[ENDS];
  uint64_t share[ENDS][SHARES];
  int nend, fail; /* so many ends fail first */
  bool any;
  tm_status with;
} rig;

static tm_status fake_submit(tm_worker_link *l, const tm_closure *c, int32_t n,
                             tm_err *err) {
  fake *f = (fake *)l;
  (void)err;
  pthread_mutex_lock(&f->mu);
  for (int32_t i = 0; i < n; i++) {
    assert_true(f->n < HELD);
    f->held[f->n++] = c[i];
  }
  pthread_mutex_unlock(&f->mu);
  return TM_OK;
}

static void fake_cancel(tm_worker_link *l, uint64_t upto) {
  (void)l;
  (void)upto;
}

static void fake_close(tm_worker_link *l) { (void)l; }

static void fake_init(fake *f, int32_t index) {
  memset(f, 0, sizeof *f);
  pthread_mutex_init(&f->mu, NULL);
  f->link = (tm_worker_link){
      .submit = fake_submit, .cancel = fake_cancel, .close = fake_close};
  snprintf(f->link.task, sizeof f->link.task, "/job:worker/task:%d", index);
}

/* Its oldest closure ends so. */
static void finish_as(fake *f, tm_status s) {
  pthread_mutex_lock(&f->mu);
  tm_completion d = {.id = f->held[0].id, .status = s};
  assert_true(f->n > 0);
  memmove(f->held, f->held + 1, (size_t)--f->n * sizeof *f->held);
  pthread_mutex_unlock(&f->mu);
  if (s) tm_fail(&d.err, s, "it went wrong");
  f->done++;
  f->link.on_done(f->link.ud, &d, 1);
}

static void finish(fake *f) { finish_as(f, TM_OK); }

static void lose(fake *f) {
  tm_err why = {0};
  pthread_mutex_lock(&f->mu);
  f->n = 0;
  pthread_mutex_unlock(&f->mu);
  tm_fail(&why, TM_EUNAVAILABLE, "killed");
  f->link.on_down(f->link.ud, &why);
}

static tm_status rig_commit(void *ud, const tm_ps_commit *c, bool *any, tm_err *err) {
  rig *r = ud;
  pthread_mutex_lock(&r->mu);
  bool fails = r->fail > 0;
  r->fail -= fails;
  *any = fails && r->any;
  if (r->nend < ENDS && c->n <= SHARES) {
    r->end[r->nend] = *c;
    memcpy(r->share[r->nend], c->share, (size_t)c->n * sizeof *c->share);
    r->end[r->nend].share = r->share[r->nend];
    r->nend++;
  }
  pthread_mutex_unlock(&r->mu);
  return fails ? tm_fail(err, r->with, "a ps is away") : TM_OK;
}

static int ends(rig *r) {
  pthread_mutex_lock(&r->mu);
  int n = r->nend;
  pthread_mutex_unlock(&r->mu);
  return n;
}

/* Wait until n rounds have ended and what follows from that was done. */
static void await_ends(rig *r, int n, uint64_t done) {
  tm_coordinator_stats st;
  for (int i = 0; i < 10000; i++) {
    tm_coordinator_get_stats(r->c, &st, NULL, 0);
    if (ends(r) >= n && st.steps >= done) break;
    tm_sleep_ns(1000000);
  }
  assert_int_equal(ends(r), n);
  assert_int_equal(st.steps, done);
}

/* A function that applies a gradient; or, without, one that only reads. */
static tm_graph *function(bool trains) {
  tm_graph *g;
  tm_err err = {0};
  tm_attrs a;
  tm_ref in[3];
  const int64_t shape[1] = {1};
  tm_tensor *t[3];
  assert_ok(tm_graph_new(trains ? "train" : "look", &g));
  tm_shape one = tm_shape_of(1, shape), scalar = tm_shape_of(0, NULL);
  assert_ok(tm_tensor_new(TM_F32, &one, &t[0], &err));
  assert_ok(tm_tensor_new(TM_F32, &scalar, &t[1], &err));
  assert_ok(tm_tensor_i64(1, &t[2]));
  *(float *)t[0]->v.data = *(float *)t[1]->v.data = 1;
  for (int i = 0; i < 3; i++) {
    in[i].out = 0;
    assert_ok(tm_graph_add_const(g, t[i], &in[i].node));
    tm_tensor_unref(t[i]);
  }
  int32_t node;
  help_var_attrs(&a, 1, 1, shape);
  if (trains) {
    a.n = 5;
    assert_ok(tm_attr_set_str(&a.a[3], "sgd", 3));
    tm_attr_set_int(&a.a[4], TM_ATTR_INT, 9);
    assert_ok_err(
        tm_graph_add(g, tm_op_find("apply_optimizer"), in, 3, &a, &node, &err), &err);
  } else {
    assert_ok_err(
        tm_graph_add(g, tm_op_find("read_variable"), NULL, 0, &a, &node, &err), &err);
  }
  tm_attrs_release(&a);
  assert_ok(tm_graph_finish(g, NULL, 0));
  return g;
}

static rig *rig_new(int n, tm_coordinator_options o) {
  rig *r = calloc(1, sizeof *r);
  int64_t live = tm_mem_live();
  tm_worker_link *link[WORKERS];
  tm_err err = {0};
  assert_non_null(r);
  pthread_mutex_init(&r->mu, NULL);
  r->live = live;
  for (int i = 0; i < n; i++) {
    fake_init(&r->w[i], i);
    link[i] = &r->w[i].link;
  }
  o.queue_size = 10000;
  o.commit = rig_commit;
  o.ud = r;
  assert_ok_err(tm_coordinator_new(&o, link, n, &r->c, &err), &err);
  r->train = function(true);
  r->look = function(false);
  return r;
}

static void rig_free(rig *r) {
  tm_coordinator_free(r->c);
  for (int i = 0; i < WORKERS; i++)
    if (r->w[i].link.submit) pthread_mutex_destroy(&r->w[i].mu);
  tm_graph_unref(r->train);
  tm_graph_unref(r->look);
  pthread_mutex_destroy(&r->mu);
  assert_int_equal(tm_mem_live(), r->live);
  free(r);
}

static void schedule(rig *r, tm_graph *g, int n) {
  tm_err err = {0};
  for (int i = 0; i < n; i++)
    assert_ok_err(tm_coordinator_schedule(r->c, g, NULL, 0, NULL, &err), &err);
}

/* Wait until a worker holds so many closures (a lost one's are on their way). */
static void await_held(fake *f, int32_t n) {
  for (int i = 0; i < 10000 && count(f) < n; i++) tm_sleep_ns(1000000);
  assert_int_equal(count(f), n);
}

static void check_shares(const rig *r, int end, int n) {
  assert_int_equal(r->end[end].n, n);
  for (int i = 1; i < n; i++)
    assert_true(r->end[end].share[i - 1] < r->end[end].share[i]);
}

/* --- sync --- */

static void a_round_has_one_share_of_each_worker_in_order(void **state) {
  (void)state;
  rig *r = rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  schedule(r, r->train, 9);
  for (int round = 0; round < 3; round++) {
    uint64_t first = (uint64_t)(3 * round);
    for (int i = 0; i < 3; i++) {
      await_held(&r->w[i], 1);
      assert_int_equal(r->w[i].held[0].id, first + (uint64_t)i + 1);
      assert_int_equal(r->w[i].held[0].round, r->w[0].held[0].round);
    }
    finish(&r->w[2]); /* whoever is first */
    finish(&r->w[0]);
    assert_int_equal(ends(r), round);
    assert_int_equal(count(&r->w[0]) + count(&r->w[2]),
                     0); /* the next one is not begun */
    finish(&r->w[1]);
    await_ends(r, round + 1, first + 3);
    check_shares(r, round, 3);
  }
  rig_free(r);
}

static void functions_that_apply_nothing_are_handed_out_freely(void **state) {
  (void)state;
  rig *r = rig_new(2, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  schedule(r, r->train, 4);
  assert_int_equal(count(&r->w[0]) + count(&r->w[1]), 2);
  schedule(r, r->look, 1);
  assert_int_equal(count(&r->w[0]) + count(&r->w[1]), 3);
  finish(&r->w[0]); /* its share; the other does not come to an end */
  schedule(r, r->look, 1);
  assert_true(count(&r->w[0]) > 0);
  assert_int_equal(r->w[0].held[count(&r->w[0]) - 1].round, 0);
  assert_int_equal(ends(r), 0);
  rig_free(r);
}

static void a_round_does_not_wait_for_backup_workers(void **state) {
  (void)state;
  rig *r =
      rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SYNC, .backup_workers = 1});
  schedule(r, r->train, 6);
  finish(&r->w[0]);
  assert_int_equal(ends(r), 0);
  finish(&r->w[2]);
  await_ends(r, 1, 2);
  check_shares(r, 0, 2);
  await_held(&r->w[0], 1); /* the next round is on */
  await_held(&r->w[2], 1);
  assert_int_equal(count(&r->w[1]), 1); /* the late one gets nothing meanwhile */
  finish(&r->w[1]);
  await_ends(r, 1, 3); /* it is done, though it came late */
  await_held(&r->w[1], 1);
  assert_int_equal(r->w[1].held[0].round, r->w[0].held[0].round);
  rig_free(r);
}

static void the_last_round_ends_with_what_it_has_when_somebody_waits(void **state) {
  (void)state;
  rig *r = rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  bool done;
  schedule(r, r->train, 2);
  finish(&r->w[0]);
  assert_ok(tm_coordinator_done(r->c, &done, &err));
  assert_false(done);
  tm_sleep_ns(5000000);
  assert_int_equal(ends(r), 0); /* one of its shares runs */
  finish(&r->w[1]);
  assert_ok_err(tm_coordinator_join(r->c, 10000000000, NULL, &err), &err);
  await_ends(r, 1, 2);
  check_shares(r, 0, 2);
  schedule(r, r->train, 1);
  finish(&r->w[0]);
  tm_sleep_ns(5000000);
  assert_int_equal(ends(r), 1); /* nobody waits: more may come */
  assert_int_equal(tm_coordinator_join(r->c, 10000000000, NULL, &err), TM_OK);
  await_ends(r, 2, 3);
  rig_free(r);
}

static void a_lost_worker_holds_up_no_round_and_its_closure_runs_again(void **state) {
  (void)state;
  rig *r = rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  schedule(r, r->train, 3);
  uint64_t lost = r->w[1].held[0].share;
  finish(&r->w[0]);
  finish(&r->w[2]);
  assert_int_equal(ends(r), 0);
  lose(&r->w[1]);
  await_ends(r, 1, 2);
  check_shares(r, 0, 2);
  await_held(&r->w[0], 1); /* closure 2, as another share */
  assert_int_equal(r->w[0].held[0].id, 2);
  assert_true(r->w[0].held[0].share != lost);
  finish(&r->w[0]);
  assert_ok_err(tm_coordinator_join(r->c, 10000000000, NULL, &err), &err);
  await_ends(r, 2, 3);
  rig_free(r);
}

static void a_share_that_is_done_counts_though_its_worker_is_lost(void **state) {
  (void)state;
  rig *r = rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  schedule(r, r->train, 3);
  finish(&r->w[0]);
  lose(&r->w[0]);
  finish(&r->w[1]);
  assert_int_equal(ends(r), 0);
  finish(&r->w[2]);
  await_ends(r, 1, 3);
  check_shares(r, 0, 3);
  rig_free(r);
}

static void an_error_makes_the_round_void_and_the_next_one_is_whole(void **state) {
  (void)state;
  rig *r = rig_new(2, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  tm_remote_value *v;
  tm_tensor **out;
  int32_t n;
  assert_ok(tm_coordinator_schedule(r->c, r->train, NULL, 0, &v, &err));
  schedule(r, r->train, 3);
  finish(&r->w[0]);
  finish_as(&r->w[1], TM_EINVAL);
  assert_int_equal(tm_coordinator_join(r->c, 10000000000, NULL, &err), TM_EINVAL);
  assert_int_equal(tm_remote_value_wait(v, 0, NULL, &out, &n, &err), TM_ECANCELLED);
  tm_remote_value_unref(v);
  assert_int_equal(ends(r), 0);
  schedule(r, r->train, 2);
  finish(&r->w[1]);
  finish(&r->w[0]);
  await_ends(r, 1, 2);
  check_shares(r, 0, 2);
  rig_free(r);
}

static void a_round_that_cannot_end_now_is_ended_when_it_can(void **state) {
  (void)state;
  rig *r = rig_new(2, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  r->fail = 3;
  r->any = true; /* others have it: it is the same one that is said again */
  r->with = TM_EUNAVAILABLE;
  schedule(r, r->train, 2);
  for (int i = 0; i < 2; i++) finish(&r->w[i]);
  assert_ok_err(tm_coordinator_join(r->c, 10000000000, NULL, &err), &err);
  await_ends(r, 4, 2);
  for (int i = 1; i < 4; i++) {
    assert_int_equal(r->end[i].round, r->end[0].round);
    check_shares(r, i, 2);
  }
  rig_free(r);
}

static void an_end_that_fails_is_an_error_of_the_coordinator(void **state) {
  (void)state;
  rig *r = rig_new(2, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  r->fail = 1;
  r->with = TM_ENOMEM;
  schedule(r, r->train, 2);
  for (int i = 0; i < 2; i++) finish(&r->w[i]);
  assert_int_equal(tm_coordinator_join(r->c, 10000000000, NULL, &err), TM_ENOMEM);
  schedule(r, r->train, 2);
  for (int i = 0; i < 2; i++) finish(&r->w[i]);
  assert_ok_err(tm_coordinator_join(r->c, 10000000000, NULL, &err), &err);
  rig_free(r);
}

static tm_status never(void *ud, tm_err *err) {
  rig *r = ud;
  (void)err;
  for (int i = 0; i < 2; i++) finish(&r->w[i]);
  tm_sleep_ns(5000000);
  assert_int_equal(ends(r), 0);
  return TM_OK;
}

static void no_round_ends_in_a_moment_without_updates(void **state) {
  (void)state;
  rig *r = rig_new(2, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  schedule(r, r->train, 2);
  assert_ok_err(tm_coordinator_barrier(r->c, 1000000000, NULL, never, r, &err), &err);
  await_ends(r, 1, 2);
  rig_free(r);
}

/* --- ssp --- */

static uint64_t slowest(const rig *r, int n) {
  uint64_t low = UINT64_MAX;
  for (int i = 0; i < n; i++)
    if (r->w[i].done < low) low = r->w[i].done;
  return low;
}

static void no_worker_begins_further_ahead_than_staleness(void **state) {
  (void)state;
  for (int64_t staleness = 0; staleness < 4; staleness++) {
    rig *r = rig_new(
        3, (tm_coordinator_options){.mode = TM_MODE_SSP, .staleness = staleness});
    uint64_t seed = 7, furthest = 0;
    int left = 3000;
    schedule(r, r->train, left);
    while (left > 600) { /* the queue is never empty */
      seed = seed * 6364136223846793005U + 1442695040888963407U;
      uint64_t x = (seed >> 33) % 16; /* the third is slow */
      fake *f = &r->w[x < 8 ? 0 : x < 15 ? 1 : 2];
      if (count(f) == 0) continue;
      uint64_t ahead = f->done - slowest(r, 3); /* it runs the one that ends now */
      assert_true(ahead <= (uint64_t)staleness);
      if (ahead > furthest) furthest = ahead;
      finish(f);
      left--;
    }
    assert_int_equal(furthest, staleness); /* and it does get so far */
    rig_free(r);
  }
}

static void idle_lost_and_removed_workers_hold_up_nobody(void **state) {
  (void)state;
  rig *r = rig_new(3, (tm_coordinator_options){.mode = TM_MODE_SSP, .staleness = 1});
  tm_err err = {0};
  for (int i = 0; i < 50; i++) { /* the others have no work */
    assert_ok(tm_coordinator_schedule_on(r->c, 0, r->train, NULL, 0, NULL, &err));
    assert_int_equal(count(&r->w[0]), 1);
    finish(&r->w[0]);
  }
  schedule(r, r->train, 300);
  assert_true(count(&r->w[1]) > 0 && count(&r->w[2]) > 0);
  while (count(&r->w[0])) finish(&r->w[0]); /* it waits for the slowest */
  lose(&r->w[1]);
  finish(&r->w[2]);
  for (int i = 0; i < 10000 && count(&r->w[0]) == 0; i++) tm_sleep_ns(1000000);
  assert_true(count(&r->w[0]) > 0);
  assert_ok(tm_coordinator_remove_worker(r->c, 2, &err));
  while (count(&r->w[2])) finish(&r->w[2]);
  tm_coordinator_stats st;
  for (int i = 0; i < 100000; i++) { /* nothing locks up at the end */
    tm_coordinator_get_stats(r->c, &st, NULL, 0);
    if (st.steps == 350) break;
    if (count(&r->w[0]))
      finish(&r->w[0]);
    else
      tm_sleep_ns(100000);
  }
  assert_ok_err(tm_coordinator_join(r->c, 1000000000, NULL, &err), &err);
  rig_free(r);
}

static void a_function_that_applies_twice_is_refused_in_rounds(void **state) {
  (void)state;
  rig *r = rig_new(1, (tm_coordinator_options){.mode = TM_MODE_SYNC});
  tm_err err = {0};
  tm_graph *g = function(true);
  const tm_node *n = &g->node[g->nnode - 1];
  int32_t node;
  assert_ok(tm_graph_add(g, n->op, n->in, n->nin, &n->attrs, &node, &err));
  assert_int_equal(tm_coordinator_schedule(r->c, g, NULL, 0, NULL, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "twice"));
  assert_non_null(strstr(err.msg, "steps_per_execution"));
  tm_graph_unref(g);
  rig_free(r);
}

int main(void) {
  tm_err err = {0};
  if (tm_ops_init(&err)) return 1;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_round_has_one_share_of_each_worker_in_order),
      cmocka_unit_test(functions_that_apply_nothing_are_handed_out_freely),
      cmocka_unit_test(a_round_does_not_wait_for_backup_workers),
      cmocka_unit_test(the_last_round_ends_with_what_it_has_when_somebody_waits),
      cmocka_unit_test(a_lost_worker_holds_up_no_round_and_its_closure_runs_again),
      cmocka_unit_test(a_share_that_is_done_counts_though_its_worker_is_lost),
      cmocka_unit_test(an_error_makes_the_round_void_and_the_next_one_is_whole),
      cmocka_unit_test(a_round_that_cannot_end_now_is_ended_when_it_can),
      cmocka_unit_test(an_end_that_fails_is_an_error_of_the_coordinator),
      cmocka_unit_test(no_round_ends_in_a_moment_without_updates),
      cmocka_unit_test(no_worker_begins_further_ahead_than_staleness),
      cmocka_unit_test(idle_lost_and_removed_workers_hold_up_nobody),
      cmocka_unit_test(a_function_that_applies_twice_is_refused_in_rounds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
