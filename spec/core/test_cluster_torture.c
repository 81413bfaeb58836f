/* Any allocation may fail in a cluster inside this process. */
#include "cluster/session.h"
#include "cluster/vars.h"
#include "test.h"

enum { UID = 1, CLOSURES = 3, WAIT = 1000000000 };

struct work {
  tm_graph *g;
  int64_t base; /* bytes before the cluster */
};

static tm_attr *attr(const tm_op *op, tm_attrs *a, const char *name) {
  return &a->a[tm_op_attr_index(op, name)];
}

static tm_ref counter_op(tm_graph *g, const char *name, const tm_ref *in, int32_t nin,
                         const char *mode) {
  const tm_op *op = tm_op_find(name);
  tm_attrs a = {.n = tm_op_sig(op)->nattr};
  tm_err err = {0};
  tm_ref r = {0, 0};
  tm_attr_set_int(attr(op, &a, "uid"), TM_ATTR_INT, UID);
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
  tm_graph *g, *opt;
  tm_tensor *t;
  tm_ref one = {0, 0};
  tm_err err = {0};
  assert_ok(tm_graph_new("count", &g));
  assert_ok(tm_tensor_f32(1, &t));
  assert_ok(tm_graph_add_const(g, t, &one.node));
  tm_tensor_unref(t);
  counter_op(g, "assign_variable", &one, 1, "add");
  tm_ref out = counter_op(g, "read_variable", NULL, 0, NULL);
  assert_ok(tm_graph_finish(g, &out, 1));
  assert_ok_err(tm_graph_optimize(g, &opt, &err), &err);
  tm_graph_unref(g);
  return opt;
}

static tm_status work_variable(tm_session *s) {
  tm_var_info *info;
  tm_shape shape = tm_shape_scalar();
  tm_init zeros = {.kind = "zeros"};
  TM_TRY(tm_var_info_new(UID, TM_F32, &shape, "counter", true, 1, &info));
  tm_status st = tm_session_create(s, info, &zeros, NULL, NULL);
  tm_var_info_unref(info);
  return st;
}

static tm_status work_closures(tm_coordinator *c, tm_graph *g) {
  tm_remote_value *v[CLOSURES];
  tm_status s = TM_OK;
  tm_tensor **out;
  int32_t n = 0, nout;
  tm_err err = {0};
  while (n < CLOSURES && !s) {
    s = tm_coordinator_schedule(c, g, NULL, 0, &v[n], &err);
    n += !s;
  }
  tm_err_clear(&err);
  tm_status joined = tm_coordinator_join(c, WAIT, NULL, &err);
  for (int32_t i = 0; i < n; i++) {
    tm_err_clear(&err);
    tm_status one = tm_remote_value_wait(v[i], WAIT, NULL, &out, &nout, &err);
    /* The first error is told; what it cancelled is not. */
    if (one == TM_ETIMEOUT) joined = one;
    if (!s && one != TM_ECANCELLED) s = one;
    tm_remote_value_unref(v[i]);
  }
  return joined ? joined : s;
}

static tm_status work_all(struct work *w) {
  tm_session *s;
  tm_coordinator *c;
  tm_session_options o = {.nworker = 2, .nps = 2, .seed = 1, .threads = 1};
  TM_TRY(tm_session_open(&o, &s, NULL));
  tm_status st = work_variable(s);
  if (!st) st = tm_session_coordinator(s, 10, &c, NULL);
  if (!st) {
    st = work_closures(c, w->g);
    tm_session_coordinator_close(s);
  }
  tm_session_close(s);
  return st;
}

/* Threads take turns as they like, so a budget fails another place in each run. */
static void torture(bool once) {
  struct work w;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  w.g = count_function();
  assert_ok(work_all(&w));
  int64_t live = tm_mem_live();
  int whole = 0;
  long n = 0;
  for (; whole < 3; n++) {
    struct test_budget budget = {.left = n, .once = once};
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
  assert_true(n > 50);
  tm_graph_unref(w.g);
}

static void memory_may_run_out_at_any_time(void **state) {
  (void)state;
  torture(false);
}

static void one_allocation_may_fail_at_any_time(void **state) {
  (void)state;
  torture(true);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_may_run_out_at_any_time),
      cmocka_unit_test(one_allocation_may_fail_at_any_time),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
