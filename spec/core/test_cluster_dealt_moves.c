/* Which elements closures have that move from worker to worker.  The workers are not
 * real: the test says what they do. */
#include <pthread.h>

#include "base/clock.h"
#include "cluster/coordinator.h"
#include "data/source.h"
#include "test.h"

enum { WORKERS = 3, UID = 7, HELD = 64 };

typedef struct held {
  uint64_t id;
  tm_deal deal;
} held;

typedef struct fake {
  tm_worker_link link;
  held held[HELD]; /* under mu */
  int n;
} fake;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static fake worker[WORKERS];
static tm_coordinator *c;
static tm_graph *next;

static tm_status fake_submit(tm_worker_link *l, const tm_closure *cl, int32_t n,
                             tm_err *err) {
  fake *f = (fake *)l;
  (void)err;
  pthread_mutex_lock(&mu);
  for (int32_t i = 0; i < n && f->n < HELD; i++)
    f->held[f->n++] =
        (held){cl[i].id, cl[i].deal ? cl[i].deal[0] : (tm_deal){-1, 0, 0}};
  pthread_mutex_unlock(&mu);
  return TM_OK;
}

static tm_status fake_iterator(tm_worker_link *l, uint64_t uid, tm_dataset *ds,
                               uint64_t seed, tm_iter_place from, bool dealt,
                               tm_err *err) {
  (void)l, (void)uid, (void)ds, (void)seed, (void)from, (void)err;
  assert_true(dealt);
  return TM_OK;
}

static tm_status fake_drop(tm_worker_link *l, uint64_t uid) {
  (void)l, (void)uid;
  return TM_OK;
}

static void fake_cancel(tm_worker_link *l, uint64_t upto) { (void)l, (void)upto; }

static void fake_close(tm_worker_link *l) { (void)l; }

static tm_graph *next_function(const tm_dataset *ds) {
  tm_graph *g;
  tm_err err = {0};
  tm_attrs a = {0};
  tm_ref it = {0, 0}, r = {0, 0};
  const tm_op *op = tm_op_find("iterator_next");
  assert_ok(tm_graph_new("next", &g));
  assert_ok(tm_graph_add_iterator(g, tm_dataset_types(ds), 1, &it.node));
  a.n = tm_op_sig(op)->nattr;
  assert_ok(tm_attr_set_types(&a.a[0], tm_dataset_types(ds), 1));
  assert_ok_err(tm_graph_add(g, op, &it, 1, &a, &r.node, &err), &err);
  tm_attrs_release(&a);
  assert_ok(tm_graph_finish(g, &r, 1));
  return g;
}

static void open_with(tm_dataset *ds) {
  tm_worker_link *link[WORKERS];
  tm_coordinator_options o = {.queue_size = 100};
  tm_err err = {0};
  memset(worker, 0, sizeof worker);
  assert_ok_err(tm_ops_init(&err), &err);
  for (int i = 0; i < WORKERS; i++) {
    link[i] = &worker[i].link;
    *link[i] = (tm_worker_link){.submit = fake_submit,
                                .add_iterator = fake_iterator,
                                .drop = fake_drop,
                                .cancel = fake_cancel,
                                .close = fake_close};
    snprintf(link[i]->task, sizeof link[i]->task, "/job:worker/task:%d", i);
  }
  assert_ok_err(tm_coordinator_new(&o, link, WORKERS, &c, &err), &err);
  assert_ok_err(tm_coordinator_add_dealt(c, UID, ds, 1, &err), &err);
  next = next_function(ds);
}

static void closed(void) {
  tm_coordinator_free(c);
  tm_graph_unref(next);
}

static tm_remote_value *schedule(void) {
  const tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = UID};
  tm_err err = {0};
  tm_remote_value *v;
  assert_ok_err(tm_coordinator_schedule(c, next, &arg, 1, &v, &err), &err);
  return v;
}

/* Who has closure `id`, which it has no more then; waits until somebody has. */
static fake *taken(uint64_t id, tm_deal *deal) {
  for (int64_t end = tm_now_ns() + 10000000000; tm_now_ns() < end;
       tm_sleep_ns(100000)) {
    fake *found = NULL;
    pthread_mutex_lock(&mu);
    for (int i = 0; i < WORKERS; i++)
      for (int k = 0; k < worker[i].n; k++)
        if (worker[i].held[k].id == id) {
          found = &worker[i];
          *deal = found->held[k].deal;
          found->held[k] = found->held[--found->n];
        }
    pthread_mutex_unlock(&mu);
    if (found) return found;
  }
  fail_msg("nobody has closure %d", (int)id);
  return NULL;
}

static void told(fake *f, uint64_t id, tm_status s, uint32_t given, uint32_t failed) {
  tm_completion d = {.id = id, .status = s, .ntook = s != TM_EAGAIN};
  d.took[0] = (tm_took){given, failed};
  if (s) tm_fail(&d.err, s, "the test says so");
  f->link.on_done(f->link.ud, &d, 1);
}

static tm_dataset *numbers(int64_t n) {
  tm_dataset *ds;
  assert_ok(tm_data_range(0, n, 1, &ds, NULL));
  return ds;
}

static tm_dataset *unknown(void) {
  tm_dataset *a = numbers(100), *b, *ds;
  assert_ok(tm_data_batch(a, 3, false, &b, NULL));
  assert_ok(tm_data_unbatch(b, &ds, NULL));
  tm_dataset_unref(a);
  tm_dataset_unref(b);
  assert_int_equal(tm_dataset_cardinality(ds), TM_DATA_UNKNOWN);
  return ds;
}

static tm_progress progress(void) {
  tm_progress p;
  tm_err err = {0};
  assert_ok_err(tm_coordinator_progress(c, UID, &p, &err), &err);
  return p;
}

static void that_did_not_start_get_others_and_theirs_come_last(void **state) {
  (void)state;
  tm_dataset *ds = numbers(4);
  tm_deal d;
  open_with(ds);
  for (int i = 0; i < 3; i++) tm_remote_value_unref(schedule());
  fake *f = taken(1, &d);
  assert_int_equal(d.first, 0);
  told(f, 1, TM_EAGAIN, 0, 0);
  f = taken(1, &d);
  assert_int_equal(d.first, 3);
  told(f, 1, TM_OK, 1, 0);
  tm_remote_value_unref(schedule());
  f = taken(4, &d);
  assert_int_equal(d.first, 0);
  told(f, 4, TM_OK, 1, 0);
  told(taken(2, &d), 2, TM_OK, 1, 0);
  told(taken(3, &d), 3, TM_OK, 1, 0);
  assert_int_equal(progress().done, 4);
  assert_int_equal(progress().left, 0);
  closed();
  tm_dataset_unref(ds);
}

/* Its UPDATE may be in: with other elements it would be passed over, and they lost. */
static void that_a_lost_worker_had_keep_theirs_wherever_they_go(void **state) {
  (void)state;
  tm_dataset *ds = numbers(10);
  tm_deal d;
  tm_err why = {0};
  open_with(ds);
  tm_remote_value_unref(schedule());
  fake *f = taken(1, &d);
  assert_int_equal(d.first, 0);
  tm_fail(&why, TM_EUNAVAILABLE, "killed");
  f->link.on_down(f->link.ud, &why);
  for (int i = 0; i < 3; i++) {
    f = taken(1, &d);
    assert_int_equal(d.first, 0);
    assert_int_equal(d.count, 1);
    told(f, 1, TM_EAGAIN, 0, 0);
  }
  told(taken(1, &d), 1, TM_OK, 1, 0);
  assert_int_equal(progress().done, 1);
  closed();
  tm_dataset_unref(ds);
}

static void that_find_the_end_take_what_others_handed_back(void **state) {
  (void)state;
  tm_dataset *ds = unknown();
  tm_deal d;
  open_with(ds);
  tm_remote_value *v[3];
  for (int i = 0; i < 3; i++) v[i] = schedule();
  told(taken(1, &d), 1, TM_EAGAIN, 0, 0); /* 0 goes back, it gets 3 */
  fake *f = taken(1, &d);
  assert_int_equal(d.first, 3);
  told(f, 1, TM_ERANGE, 0, 1);
  f = taken(1, &d);
  assert_int_equal(d.first, 0);
  told(f, 1, TM_OK, 1, 0);
  assert_int_equal(progress().left, 0);
  f = taken(3, &d);
  assert_int_equal(d.first, 2);
  told(f, 3, TM_ERANGE, 0, 1); /* sooner still */
  told(taken(2, &d), 2, TM_OK, 1, 0);
  assert_true(tm_remote_value_ended(v[2]));
  assert_false(tm_remote_value_ended(v[0]));
  assert_int_equal(progress().done, 2);
  tm_remote_value *late = schedule(); /* is not sent to anybody */
  assert_true(tm_remote_value_ended(late));
  tm_remote_value_unref(late);
  for (int i = 0; i < 3; i++) tm_remote_value_unref(v[i]);
  closed();
  tm_dataset_unref(ds);
}

static void that_were_cancelled_leave_theirs_unless_they_changed_something(
    void **state) {
  (void)state;
  tm_dataset *ds = numbers(10);
  tm_deal d;
  tm_err err = {0};
  open_with(ds);
  for (int i = 0; i < 4; i++) tm_remote_value_unref(schedule());
  told(taken(1, &d), 1, TM_EINVAL, 1, 0);
  told(taken(2, &d), 2, TM_ECANCELLED, 1, 0);
  fake *f = taken(3, &d);
  tm_completion done = {.id = 3, .status = TM_ECANCELLED, .count = {.updates = 1}};
  f->link.on_done(f->link.ud, &done, 1);
  told(taken(4, &d), 4, TM_OK, 1, 0);
  assert_int_equal(tm_coordinator_join(c, -1, NULL, &err), TM_EINVAL);
  assert_int_equal(progress().done, 3);
  assert_int_equal(progress().left, 7);
  closed();
  tm_dataset_unref(ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(that_did_not_start_get_others_and_theirs_come_last),
      cmocka_unit_test(that_a_lost_worker_had_keep_theirs_wherever_they_go),
      cmocka_unit_test(that_find_the_end_take_what_others_handed_back),
      cmocka_unit_test(that_were_cancelled_leave_theirs_unless_they_changed_something),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
