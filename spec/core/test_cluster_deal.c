/* Iterators whose elements are dealt out: each is used by one closure. */
#include "cluster/session.h"
#include "data/source.h"
#include "test.h"

enum { UID = 7 };

typedef struct bench {
  tm_session *s;
  tm_coordinator *c;
  tm_dataset *ds;
  tm_graph *next; /* return iterator:next() */
} bench;

static tm_graph *next_function(const tm_dataset *ds, int times) {
  tm_graph *g, *opt;
  tm_err err = {0};
  tm_attrs a = {0};
  tm_ref it = {0, 0}, r = {0, 0};
  const tm_op *op = tm_op_find("iterator_next");
  assert_ok(tm_graph_new("next", &g));
  assert_ok(tm_graph_add_iterator(g, tm_dataset_types(ds), 1, &it.node));
  a.n = tm_op_sig(op)->nattr;
  assert_ok(tm_attr_set_types(&a.a[0], tm_dataset_types(ds), 1));
  for (int i = 0; i < times; i++)
    assert_ok_err(tm_graph_add(g, op, &it, 1, &a, &r.node, &err), &err);
  tm_attrs_release(&a);
  assert_ok(tm_graph_finish(g, &r, 1));
  assert_ok_err(tm_graph_optimize(g, &opt, &err), &err);
  tm_graph_unref(g);
  return opt;
}

static void bench_open(bench *b, int32_t workers, tm_dataset *ds) {
  tm_err err = {0};
  tm_session_options o = {.nworker = workers, .nps = 1, .seed = 1, .threads = 1};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok_err(tm_session_open(&o, &b->s, &err), &err);
  assert_ok_err(tm_session_coordinator(b->s, 10000, &b->c, &err), &err);
  b->ds = ds;
  b->next = next_function(ds, 1);
  assert_ok_err(tm_coordinator_add_dealt(b->c, UID, ds, 1, &err), &err);
}

static void bench_close(bench *b) {
  tm_graph_unref(b->next);
  tm_dataset_unref(b->ds);
  tm_session_coordinator_close(b->s);
  tm_session_close(b->s);
}

static tm_dataset *numbers(int64_t n) {
  tm_dataset *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_range(0, n, 1, &ds, &err), &err);
  return ds;
}

static tm_dataset *shuffled(int64_t n) {
  tm_dataset *in = numbers(n), *ds;
  tm_err err = {0};
  assert_ok_err(tm_data_shuffle(in, 16, false, 0, true, &ds, &err), &err);
  tm_dataset_unref(in);
  return ds;
}

static tm_remote_value *schedule(bench *b, tm_graph *g) {
  tm_err err = {0};
  tm_remote_value *v;
  const tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = UID};
  assert_ok_err(tm_coordinator_schedule(b->c, g, &arg, 1, &v, &err), &err);
  return v;
}

static void join(bench *b) {
  tm_err err = {0};
  assert_ok_err(tm_coordinator_join(b->c, -1, NULL, &err), &err);
}

/* -1: it found no data. */
static int64_t value_of(tm_remote_value *v) {
  tm_err err = {0};
  tm_tensor **out;
  int32_t n;
  assert_ok_err(tm_remote_value_wait(v, -1, NULL, &out, &n, &err), &err);
  assert_int_equal(n, tm_remote_value_ended(v) ? 0 : 1);
  int64_t x = n ? tm_view_get_i64(&out[0]->v, 0) : -1;
  tm_remote_value_unref(v);
  return x;
}

static tm_progress progress(bench *b) {
  tm_progress p;
  tm_err err = {0};
  assert_ok_err(tm_coordinator_progress(b->c, UID, &p, &err), &err);
  return p;
}

/* n closures; each element below `all` once, the rest finds none. */
static void run_pass(bench *b, int n, int64_t all) {
  enum { MOST = 1000 };
  tm_remote_value *v[MOST];
  int seen[MOST] = {0}, ended = 0;
  assert_true(n <= MOST && all <= MOST);
  for (int i = 0; i < n; i++) v[i] = schedule(b, b->next);
  join(b);
  for (int i = 0; i < n; i++) {
    int64_t x = value_of(v[i]);
    ended += x < 0;
    if (x >= 0) seen[x]++;
  }
  for (int64_t i = 0; i < all; i++) assert_int_equal(seen[i], 1);
  assert_int_equal(ended, n - all);
}

static void each_element_goes_to_one_closure_in_every_pass(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_open(&b, 3, shuffled(500));
  for (uint64_t pass = 0; pass < 4; pass++) {
    assert_int_equal(progress(&b).pass, pass);
    run_pass(&b, 700, 500);
    tm_progress p = progress(&b);
    assert_int_equal(p.done, 500);
    assert_int_equal(p.dealt, 500);
    assert_int_equal(p.left, 0);
    assert_int_equal(p.steps, 500);
    assert_ok_err(tm_coordinator_start_pass(b.c, UID, &err), &err);
  }
  bench_close(&b);
}

static void passes_have_orders_of_their_own(void **state) {
  (void)state;
  enum { N = 64 };
  bench b;
  tm_err err = {0};
  tm_remote_value *v[N];
  int64_t x[3][N];
  bench_open(&b, 1, shuffled(N));
  for (int pass = 0; pass < 3; pass++) {
    for (int i = 0; i < N; i++) v[i] = schedule(&b, b.next);
    join(&b);
    for (int i = 0; i < N; i++) x[pass][i] = value_of(v[i]);
    assert_ok_err(tm_coordinator_start_pass(b.c, UID, &err), &err);
  }
  assert_memory_not_equal(x[0], x[1], sizeof x[0]);
  assert_memory_not_equal(x[1], x[2], sizeof x[0]);
  bench_close(&b);
}

static void what_a_closure_cannot_have_whole_stays(void **state) {
  (void)state;
  bench b;
  bench_open(&b, 2, numbers(11));
  tm_graph *four = next_function(b.ds, 4);
  tm_remote_value *v[4];
  int ended = 0;
  for (int i = 0; i < 4; i++) v[i] = schedule(&b, four);
  join(&b);
  for (int i = 0; i < 4; i++) ended += value_of(v[i]) < 0;
  assert_int_equal(ended, 2);
  assert_int_equal(progress(&b).left, 3);
  assert_int_equal(progress(&b).done, 8);
  for (int64_t i = 8; i < 11; i++) assert_int_equal(value_of(schedule(&b, b.next)), i);
  assert_int_equal(value_of(schedule(&b, b.next)), -1);
  tm_graph_unref(four);
  bench_close(&b);
}

/* A state from elsewhere: 20 were dealt, four of them are not done. */
static void a_state_deals_what_is_not_done(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  int seen[40] = {0};
  bench_open(&b, 2, numbers(40));
  tm_range undone[] = {{3, 1}, {10, 2}, {17, 1}};
  tm_deals d;
  assert_ok_err(tm_coordinator_deals(b.c, UID, false, &d, &err), &err);
  tm_deals to = {.seed = d.seed, .pass = 2, .next = 20, .undone = undone, .n = 3};
  tm_deals_release(&d);
  assert_ok_err(tm_coordinator_redeal(b.c, UID, &to, &err), &err);
  tm_progress p = progress(&b);
  assert_int_equal(p.pass, 2);
  assert_int_equal(p.done, 16);
  assert_int_equal(p.left, 24);
  assert_ok_err(tm_coordinator_deals(b.c, UID, false, &d, &err), &err);
  assert_int_equal(d.n, 3);
  assert_memory_equal(d.undone, undone, sizeof undone);
  assert_int_equal(d.next, 20);
  tm_deals_release(&d);
  tm_remote_value *v[30];
  for (int i = 0; i < 30; i++) v[i] = schedule(&b, b.next);
  join(&b);
  for (int i = 0; i < 30; i++) {
    int64_t x = value_of(v[i]);
    if (x >= 0) seen[x]++;
  }
  for (int i = 0; i < 40; i++) {
    bool there = i >= 20 || i == 3 || i == 10 || i == 11 || i == 17;
    assert_int_equal(seen[i], there);
  }
  assert_int_equal(progress(&b).done, 40);
  bench_close(&b);
}

static void a_pass_begins_when_nothing_takes_from_it(void **state) {
  (void)state;
  bench b;
  tm_err err = {0};
  bench_open(&b, 1, numbers(20000));
  for (int i = 0; i < 9000; i++) tm_remote_value_unref(schedule(&b, b.next));
  tm_status s = tm_coordinator_start_pass(b.c, UID, &err);
  tm_deals d;
  assert_ok_err(tm_coordinator_deals(b.c, UID, false, &d, &err), &err);
  if (progress(&b).done < 9000) {
    assert_int_equal(s, TM_EPRECOND);
    tm_err_clear(&err);
    tm_status again = tm_coordinator_redeal(b.c, UID, &d, &err);
    assert_true(again == TM_EPRECOND || progress(&b).done == 9000);
  }
  tm_deals_release(&d);
  join(&b);
  assert_int_equal(tm_coordinator_start_pass(b.c, UID + 1, &err), TM_EPRECOND);
  assert_ok_err(tm_coordinator_start_pass(b.c, UID, &err), &err);
  bench_close(&b);
}

/* --- memory --- */

struct work {
  tm_dataset *ds;
  tm_graph *g;
};

static tm_status work_closures(tm_coordinator *c, tm_graph *g) {
  const tm_carg arg = {.kind = TM_CARG_PER_WORKER, .resource = UID};
  tm_status s = TM_OK;
  tm_err err = {0};
  for (int i = 0; i < 8 && !s; i++)
    s = tm_coordinator_schedule(c, g, &arg, 1, NULL, &err);
  tm_err_clear(&err);
  tm_status joined = tm_coordinator_join(c, 1000000000, NULL, &err);
  tm_deals d = {0};
  if (!s) s = tm_coordinator_deals(c, UID, false, &d, &err);
  if (!s && !joined) s = tm_coordinator_redeal(c, UID, &d, &err);
  tm_deals_release(&d);
  return joined ? joined : s;
}

static tm_status work_all(struct work *w) {
  tm_session *s;
  tm_coordinator *c;
  tm_session_options o = {.nworker = 2, .nps = 1, .seed = 1, .threads = 1};
  TM_TRY(tm_session_open(&o, &s, NULL));
  tm_status st = tm_session_coordinator(s, 10, &c, NULL);
  if (!st) {
    st = tm_coordinator_add_dealt(c, UID, w->ds, 1, NULL);
    if (!st) st = work_closures(c, w->g);
    tm_session_coordinator_close(s);
  }
  tm_session_close(s);
  return st;
}

static void any_allocation_may_fail(void **state) {
  (void)state;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  struct work w = {shuffled(5), NULL};
  w.g = next_function(w.ds, 1);
  assert_ok(work_all(&w));
  int64_t live = tm_mem_live();
  int whole = 0;
  long n = 0;
  for (; whole < 3; n++) {
    struct test_budget budget = {.left = n, .once = n % 2};
    tm_mem_hook(test_flaky, &budget);
    tm_status s = work_all(&w);
    tm_mem_hook(NULL, NULL);
    if (tm_mem_live() != live)
      fail_msg("%ld bytes left when allocation %ld fails", (long)(tm_mem_live() - live),
               n + 1);
    if (s != TM_OK && s != TM_ENOMEM)
      fail_msg("status %s when allocation %ld fails", tm_status_name(s), n + 1);
    whole += atomic_load(&budget.left) > 0;
    assert_true(n < 5000);
  }
  tm_graph_unref(w.g);
  tm_dataset_unref(w.ds);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_element_goes_to_one_closure_in_every_pass),
      cmocka_unit_test(passes_have_orders_of_their_own),
      cmocka_unit_test(what_a_closure_cannot_have_whole_stays),
      cmocka_unit_test(a_state_deals_what_is_not_done),
      cmocka_unit_test(a_pass_begins_when_nothing_takes_from_it),
      cmocka_unit_test(any_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
