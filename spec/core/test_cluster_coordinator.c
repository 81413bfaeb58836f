/* The coordinator and workers of a cluster inside this process. */
#include <unistd.h>

#include "base/clock.h"
#include "cluster/session.h"
#include "data/source.h"
#include "test.h"

enum { COUNTER = 1 };

typedef struct bench {
  tm_session *s;
  tm_coordinator *c;
} bench;

static void bench_open(bench *b, int32_t workers, int32_t ps, int64_t queue) {
  tm_err err = {0};
  tm_session_options o = {.nworker = workers, .nps = ps, .seed = 1, .threads = 1};
  tm_err_clear(&err);
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok_err(tm_session_open(&o, &b->s, &err), &err);
  assert_ok_err(tm_session_coordinator(b->s, queue, &b->c, &err), &err);
}

static void bench_close(bench *b) {
  tm_session_coordinator_close(b->s);
  tm_session_close(b->s);
}

static void bench_counter(bench *b) {
  tm_err err = {0};
  tm_var_info *info;
  tm_shape s = tm_shape_scalar();
  tm_init zeros = {.kind = "zeros"};
  assert_ok(tm_var_info_new(COUNTER, TM_F32, &s, "counter", true, 1, &info));
  assert_ok_err(tm_session_create(b->s, info, &zeros, NULL, &err), &err);
  tm_var_info_unref(info);
}

static tm_graph *finish(tm_graph *g, tm_ref out, int32_t nout) {
  tm_graph *opt;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_ok(tm_graph_finish(g, &out, nout));
  assert_ok_err(tm_graph_optimize(g, &opt, &err), &err);
  tm_graph_unref(g);
  return opt;
}

static tm_ref constant(tm_graph *g, float x) {
  tm_tensor *t;
  tm_ref r = {0, 0};
  assert_ok(tm_tensor_f32(x, &t));
  assert_ok(tm_graph_add_const(g, t, &r.node));
  tm_tensor_unref(t);
  return r;
}

/* return 1 */
static tm_graph *empty_function(void) {
  tm_graph *g;
  assert_ok(tm_graph_new("one", &g));
  return finish(g, constant(g, 1), 1);
}

static tm_attr *attr(const tm_op *op, tm_attrs *a, const char *name) {
  return &a->a[tm_op_attr_index(op, name)];
}

static tm_ref counter_op(tm_graph *g, const char *name, const tm_ref *in, int32_t nin,
                         const char *mode) {
  const tm_op *op = tm_op_find(name);
  tm_attrs a;
  tm_err err = {0};
  tm_ref r = {0, 0};
  memset(&a, 0, sizeof a);
  tm_err_clear(&err);
  a.n = tm_op_sig(op)->nattr;
  tm_attr_set_int(attr(op, &a, "uid"), TM_ATTR_INT, COUNTER);
  tm_attr_set_int(attr(op, &a, "dtype"), TM_ATTR_DTYPE, TM_F32);
  assert_ok(tm_attr_set_ints(attr(op, &a, "shape"), TM_ATTR_SHAPE, NULL, 0));
  if (mode) assert_ok(tm_attr_set_str(attr(op, &a, "mode"), mode, strlen(mode)));
  assert_ok_err(tm_op_complete_attrs(op, &a, &err), &err);
  assert_ok_err(tm_graph_add(g, op, in, nin, &a, &r.node, &err), &err);
  tm_attrs_release(&a);
  return r;
}

/* counter += 1; return counter */
static tm_graph *count_function(void) {
  tm_graph *g;
  assert_ok(tm_graph_new("count", &g));
  tm_ref one = constant(g, 1);
  counter_op(g, "assign_variable", &one, 1, "add");
  return finish(g, counter_op(g, "read_variable", NULL, 0, NULL), 1);
}

static tm_graph *one_input(const char *name, const char *opname, float x) {
  tm_graph *g;
  tm_err err = {0};
  const tm_op *op = tm_op_find(opname);
  tm_attrs a;
  int32_t node;
  memset(&a, 0, sizeof a);
  tm_err_clear(&err);
  assert_ok(tm_graph_new(name, &g));
  tm_ref in = constant(g, x);
  a.n = tm_op_sig(op)->nattr;
  tm_attr *m = a.n ? attr(op, &a, "message") : NULL;
  if (m) assert_ok(tm_attr_set_str(m, "the value", 9));
  assert_ok_err(tm_op_complete_attrs(op, &a, &err), &err);
  assert_ok_err(tm_graph_add(g, op, &in, 1, &a, &node, &err), &err);
  tm_attrs_release(&a);
  return finish(g, in, 1);
}

/* sleep(seconds) */
static tm_graph *nap_function(double seconds) {
  tm_graph *g;
  tm_err err = {0};
  tm_attrs a;
  int32_t node;
  tm_ref none = {0, 0};
  const tm_op *op = tm_op_find("sleep");
  memset(&a, 0, sizeof a);
  a.n = 1;
  tm_attr_set_float(&a.a[0], seconds);
  tm_err_clear(&err);
  assert_ok(tm_graph_new("nap", &g));
  assert_ok_err(tm_graph_add(g, op, NULL, 0, &a, &node, &err), &err);
  return finish(g, none, 0);
}

static tm_remote_value *schedule(bench *b, tm_graph *g) {
  tm_err err = {0};
  tm_remote_value *v;
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_schedule(b->c, g, NULL, 0, &v, &err), &err);
  return v;
}

/* The same once there is room. */
static tm_remote_value *schedule_soon(bench *b, tm_graph *g) {
  tm_err err = {0};
  tm_remote_value *v = NULL;
  tm_err_clear(&err);
  while (tm_coordinator_schedule(b->c, g, NULL, 0, &v, &err) == TM_EAGAIN)
    assert_ok_err(tm_coordinator_wait_room(b->c, -1, NULL, &err), &err);
  assert_non_null(v);
  return v;
}

static void join(bench *b) {
  tm_err err = {0};
  tm_err_clear(&err);
  assert_ok_err(tm_coordinator_join(b->c, -1, NULL, &err), &err);
}

static float value_of(tm_remote_value *v) {
  tm_err err = {0};
  tm_tensor **out;
  int32_t n;
  tm_err_clear(&err);
  assert_ok_err(tm_remote_value_wait(v, -1, NULL, &out, &n, &err), &err);
  assert_int_equal(n, 1);
  float x = *(float *)out[0]->v.data;
  tm_remote_value_unref(v);
  return x;
}

static void closures_of_one_worker_see_each_other_in_order(void **state) {
  (void)state;
  enum { N = 1000 };
  bench b;
  bench_open(&b, 1, 2, 10000);
  bench_counter(&b);
  tm_graph *g = count_function();
  tm_remote_value *v[N];
  for (int i = 0; i < N; i++) v[i] = schedule(&b, g);
  join(&b);
  for (int i = 0; i < N; i++) assert_float_equal(value_of(v[i]), (float)(i + 1), 0);
  tm_graph_unref(g);
  bench_close(&b);
}

static void three_workers_lose_no_update(void **state) {
  (void)state;
  enum { N = 3000 };
  bench b;
  bench_open(&b, 3, 2, 10000);
  bench_counter(&b);
  tm_graph *g = count_function();
  for (int i = 0; i < N; i++) tm_remote_value_unref(schedule(&b, g));
  join(&b);
  float last = value_of(schedule(&b, g));
  assert_float_equal(last, N + 1, 0);
  tm_coordinator_stats st;
  tm_worker_stats w[3];
  tm_coordinator_get_stats(b.c, &st, w, 3);
  assert_int_equal(st.steps, N + 1);
  assert_int_equal(st.updates, N + 1);
  assert_int_equal(st.reads, N + 1);
  assert_int_equal(w[0].steps + w[1].steps + w[2].steps, N + 1);
  tm_graph_unref(g);
  bench_close(&b);
}

static void a_full_queue_says_eagain_and_has_room_later(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 1, 1, 4);
  tm_graph *g = nap_function(0.02);
  int accepted = 0;
  tm_status s = TM_OK;
  while (s == TM_OK && accepted < 100) {
    s = tm_coordinator_schedule(b.c, g, NULL, 0, NULL, &err);
    accepted += s == TM_OK;
  }
  assert_int_equal(s, TM_EAGAIN);
  assert_in_range(accepted, 4, 8); /* the queue, and what the worker holds */
  assert_ok_err(tm_coordinator_wait_room(b.c, -1, NULL, &err), &err);
  assert_ok(tm_coordinator_schedule(b.c, g, NULL, 0, NULL, &err));
  join(&b);
  tm_graph_unref(g);
  bench_close(&b);
}

static void the_first_error_cancels_the_rest_and_is_raised_once(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_open(&b, 2, 1, 1000);
  tm_graph *bad = one_input("bad", "check_numerics", 0.0F / 0.0F);
  tm_graph *nap = nap_function(0.01);
  tm_remote_value *failed = schedule(&b, bad), *late = NULL;
  int scheduled = 0;
  for (; scheduled < 200; scheduled++) {
    tm_err_clear(&err);
    tm_remote_value *v;
    if (tm_coordinator_schedule(b.c, nap, NULL, 0, &v, &err)) break;
    tm_remote_value_unref(late);
    late = v;
  }
  bool all = scheduled == 200; /* a second of naps: the last did not run */
  if (err.code == TM_OK) {     /* else what runs is being cancelled */
    tm_err_clear(&err);
    assert_int_equal(tm_coordinator_join(b.c, -1, NULL, &err), TM_EINVAL);
  }
  assert_int_equal(err.code, TM_EINVAL);
  assert_non_null(strstr(err.task, "/job:worker/task:"));
  assert_int_equal(err.step, 1);
  assert_string_equal(err.op, "check_numerics");
  join(&b); /* raised once: usable again */
  tm_tensor **out;
  int32_t n;
  assert_int_equal(tm_remote_value_wait(failed, -1, NULL, &out, &n, &err), TM_EINVAL);
  if (all) {
    assert_int_equal(tm_remote_value_wait(late, -1, NULL, &out, &n, &err),
                     TM_ECANCELLED);
    assert_int_equal(err.code, TM_ECANCELLED);
  }
  tm_remote_value_unref(failed);
  tm_remote_value_unref(late);
  tm_graph *one = empty_function();
  assert_float_equal(value_of(schedule(&b, one)), 1, 0);
  tm_graph_unref(one);
  tm_graph_unref(bad);
  tm_graph_unref(nap);
  bench_close(&b);
}

static void join_gives_up_when_the_time_is_up(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 1, 1, 10);
  tm_graph *nap = nap_function(0.3);
  tm_remote_value_unref(schedule(&b, nap));
  int64_t t = tm_now_ns();
  assert_int_equal(tm_coordinator_join(b.c, 20000000, NULL, &err), TM_ETIMEOUT);
  assert_true(tm_now_ns() - t < 200000000);
  join(&b);
  tm_graph_unref(nap);
  bench_close(&b);
}

static void a_long_step_ends_soon_when_the_coordinator_closes(void **state) {
  (void)state;
  bench b;
  bench_open(&b, 2, 1, 10);
  tm_graph *nap = nap_function(30);
  for (int i = 0; i < 6; i++) tm_remote_value_unref(schedule(&b, nap));
  int64_t t = tm_now_ns();
  bench_close(&b);
  assert_true(tm_now_ns() - t < 1000000000);
  tm_graph_unref(nap);
}

static void a_cancel_raises_nothing_and_what_comes_next_waits_for_what_still_stops(
    void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 2, 1, 10);
  tm_graph *nap = nap_function(30), *one = empty_function();
  tm_remote_value *v[8];
  for (int i = 0; i < 8; i++) v[i] = schedule(&b, nap);
  assert_ok_err(tm_coordinator_cancel(b.c, 0, &err), &err); /* does not wait */
  assert_float_equal(value_of(schedule_soon(&b, one)), 1, 0);
  for (int i = 0; i < 8; i++) {
    tm_tensor **out;
    int32_t n;
    assert_int_equal(tm_remote_value_wait(v[i], -1, NULL, &out, &n, &err),
                     TM_ECANCELLED);
    tm_remote_value_unref(v[i]);
    tm_err_clear(&err);
  }
  assert_ok_err(tm_coordinator_cancel(b.c, -1, &err), &err); /* nothing to do */
  join(&b);
  tm_graph_unref(one);
  tm_graph_unref(nap);
  bench_close(&b);
}

/* --- iterators --- */

static tm_dataset *numbers(int64_t n) {
  tm_dataset *ds;
  tm_err err = {0};
  tm_err_clear(&err);
  assert_ok_err(tm_data_range(0, n, 1, &ds, &err), &err);
  return ds;
}

/* return iterator:next() */
static tm_graph *next_function(const tm_dataset *ds) {
  tm_graph *g;
  tm_err err = {0};
  tm_attrs a;
  tm_ref it = {0, 0}, r = {0, 0};
  const tm_op *op = tm_op_find("iterator_next");
  memset(&a, 0, sizeof a);
  tm_err_clear(&err);
  assert_ok(tm_graph_new("next", &g));
  assert_ok(tm_graph_add_iterator(g, tm_dataset_types(ds), 1, &it.node));
  a.n = tm_op_sig(op)->nattr;
  assert_ok(tm_attr_set_types(&a.a[0], tm_dataset_types(ds), 1));
  assert_ok_err(tm_graph_add(g, op, &it, 1, &a, &r.node, &err), &err);
  tm_attrs_release(&a);
  return finish(g, r, 1);
}

static void a_cancelled_closure_hands_its_batch_back(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 1, 1, 100);
  tm_dataset *ds = numbers(10);
  tm_graph *next = next_function(ds);
  tm_graph *bad = one_input("bad", "check_numerics", 0.0F / 0.0F);
  assert_ok_err(tm_coordinator_add_iterator(b.c, 7, ds, 1, false, &err), &err);
  tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = 7};
  tm_remote_value *v;
  tm_tensor **out;
  int32_t n;
  for (int64_t want = 0; want < 10; want++) {
    assert_ok_err(tm_coordinator_schedule(b.c, next, &arg, 1, &v, &err), &err);
    assert_ok_err(tm_remote_value_wait(v, -1, NULL, &out, &n, &err), &err);
    assert_int_equal(*(int64_t *)out[0]->v.data, want);
    tm_remote_value_unref(v);
    /* One fails while the next is fetched ahead, and cancelled. */
    tm_remote_value_unref(schedule(&b, bad));
    tm_status s = tm_coordinator_schedule(b.c, next, &arg, 1, &v, &err);
    if (s == TM_OK) {
      s = tm_coordinator_join(b.c, -1, NULL, &err);
      tm_status ran = tm_remote_value_wait(v, -1, NULL, &out, &n, &err);
      want += ran == TM_OK;
      tm_remote_value_unref(v);
    }
    assert_int_equal(s, TM_EINVAL);
    tm_err_clear(&err);
  }
  assert_ok_err(tm_coordinator_schedule(b.c, next, &arg, 1, &v, &err), &err);
  assert_int_equal(tm_coordinator_join(b.c, -1, NULL, &err), TM_ERANGE);
  tm_remote_value_unref(v);
  tm_coordinator_drop(b.c, 7);
  tm_graph_unref(next);
  tm_graph_unref(bad);
  tm_dataset_unref(ds);
  bench_close(&b);
}

/* --- stragglers --- */

static void the_last_closures_never_wait_behind_a_slow_worker(void **state) {
  (void)state;
  bench b;
  bench_open(&b, 2, 1, 100);
  tm_graph *nap = nap_function(0.6), *one = empty_function();
  for (int turn = 0; turn < 2; turn++) {
    int64_t start = tm_now_ns();
    tm_remote_value_unref(schedule(&b, nap));
    tm_remote_value *v[4];
    for (int i = 0; i < 4; i++) v[i] = schedule(&b, one);
    for (int i = 0; i < 4; i++) assert_float_equal(value_of(v[i]), 1, 0);
    assert_true(tm_now_ns() - start < 300000000);
    join(&b);
    assert_true(tm_now_ns() - start < 1000000000);
  }
  tm_graph_unref(one);
  tm_graph_unref(nap);
  bench_close(&b);
}

/* Both workers count from 0: values must be 0..a-1 and 0..b-1. */
static void a_batch_fetched_ahead_by_a_closure_that_moved_is_not_lost(void **state) {
  (void)state;
  enum { N = 40 };
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 2, 1, 100);
  tm_dataset *ds = numbers(N);
  tm_graph *next = next_function(ds), *nap = nap_function(0.03);
  assert_ok_err(tm_coordinator_add_iterator(b.c, 7, ds, 1, false, &err), &err);
  tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = 7};
  int seen[N] = {0};
  for (int i = 0; i < N; i += 4) {
    tm_remote_value *v[4];
    tm_remote_value_unref(schedule(&b, nap));
    for (int k = 0; k < 4; k++)
      assert_ok_err(tm_coordinator_schedule(b.c, next, &arg, 1, &v[k], &err), &err);
    for (int k = 0; k < 4; k++) {
      tm_tensor **out;
      int32_t n;
      assert_ok_err(tm_remote_value_wait(v[k], -1, NULL, &out, &n, &err), &err);
      seen[*(int64_t *)out[0]->v.data]++;
      tm_remote_value_unref(v[k]);
    }
    join(&b);
  }
  for (int i = 1; i < N; i++) assert_in_range(seen[i], 0, seen[i - 1]); /* no gap */
  assert_in_range(seen[0], 1, 2);
  tm_coordinator_drop(b.c, 7);
  tm_graph_unref(next);
  tm_graph_unref(nap);
  tm_dataset_unref(ds);
  bench_close(&b);
}

/* --- suspending --- */

static void what_was_handed_out_runs_again_after_a_pause_and_nothing_fails(
    void **state) {
  (void)state;
  enum { N = 300 };
  bench b;
  tm_err err = {0};
  tm_err_clear(&err);
  bench_open(&b, 2, 2, 1000);
  bench_counter(&b);
  tm_dataset *ds = numbers(1000);
  tm_graph *g = count_function(), *next = next_function(ds), *nap = nap_function(30);
  assert_ok_err(tm_coordinator_add_iterator(b.c, 7, ds, 1, false, &err), &err);
  tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = 7};
  for (int turn = 0; turn < 3; turn++) {
    for (int i = 0; i < N; i++) {
      tm_remote_value_unref(schedule(&b, g));
      assert_ok_err(tm_coordinator_schedule(b.c, next, &arg, 1, NULL, &err), &err);
    }
    tm_coordinator_suspend(b.c, "a test");
    tm_coordinator_stats st;
    tm_worker_stats w[2];
    tm_coordinator_get_stats(b.c, &st, w, 2);
    assert_string_equal(w[1].state, "connecting");
    bool done;
    assert_ok(tm_coordinator_done(b.c, &done, &err));
    tm_coordinator_resume(b.c);
    join(&b);
  }
  assert_float_equal(value_of(schedule(&b, g)), 3 * N + 1, 0);
  /* One that is closed while it pauses, and while something long runs. */
  tm_remote_value_unref(schedule(&b, nap));
  tm_coordinator_suspend(b.c, "a test");
  tm_remote_value_unref(schedule(&b, g));
  tm_graph_unref(nap);
  tm_graph_unref(next);
  tm_graph_unref(g);
  tm_dataset_unref(ds);
  bench_close(&b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(closures_of_one_worker_see_each_other_in_order),
      cmocka_unit_test(three_workers_lose_no_update),
      cmocka_unit_test(a_full_queue_says_eagain_and_has_room_later),
      cmocka_unit_test(the_first_error_cancels_the_rest_and_is_raised_once),
      cmocka_unit_test(join_gives_up_when_the_time_is_up),
      cmocka_unit_test(a_long_step_ends_soon_when_the_coordinator_closes),
      cmocka_unit_test(
          a_cancel_raises_nothing_and_what_comes_next_waits_for_what_still_stops),
      cmocka_unit_test(a_cancelled_closure_hands_its_batch_back),
      cmocka_unit_test(the_last_closures_never_wait_behind_a_slow_worker),
      cmocka_unit_test(a_batch_fetched_ahead_by_a_closure_that_moved_is_not_lost),
      cmocka_unit_test(what_was_handed_out_runs_again_after_a_pause_and_nothing_fails),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
