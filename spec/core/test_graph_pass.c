/* Passes: constants fold, equal nodes merge, dead nodes go, effects stay. */
#include "graph_help.h"

static const int64_t vec2[] = {2};
static const tm_type vec = {TM_F32, {1, {-1}}};

struct rig {
  tm_scope *sc;
  tm_trace *tr;
  tm_value *x;
};

static void rig_open(struct rig *r) {
  tm_err err = {0};
  assert_ok(tm_scope_new(&r->sc));
  assert_ok(tm_trace_begin(r->sc, "f", &r->tr, &err));
  assert_ok(tm_trace_arg(r->tr, &vec, &r->x, &err));
  help_keep(r->x);
}

/* Nodes of this op after the passes. */
static int count_op(const tm_graph *g, const char *op) {
  int n = 0;
  for (int32_t i = 0; i < g->nnode; i++) n += strcmp(g->node[i].op->name, op) == 0;
  return n;
}

static tm_graph *optimized(struct rig *r, tm_value *y) {
  tm_graph *out;
  tm_err err = {0};
  tm_graph *g = help_end(r->sc, r->tr, &y, y ? 1 : 0);
  assert_ok_err(tm_graph_optimize(g, &out, &err), &err);
  assert_true(out->optimized);
  tm_graph_unref(g);
  return out;
}

static void rig_close(struct rig *r, tm_graph *g) {
  tm_graph_unref(g);
  help_drop();
  tm_scope_free(r->sc);
}

static void constants_fold(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *a = help_keep(help_scalar(2)), *b = help_keep(help_scalar(3));
  tm_value *c = help_op(r.sc, "mul", help_op(r.sc, "add", a, b), b);
  tm_graph *g = optimized(&r, help_op(r.sc, "add", r.x, c));
  assert_int_equal(count_op(g, "mul"), 0);
  assert_int_equal(count_op(g, "add"), 1);
  assert_int_equal(count_op(g, "const"), 1);
  rig_close(&r, g);
}

static void equal_nodes_meet(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *a = help_op(r.sc, "mul", r.x, r.x), *b = help_op(r.sc, "mul", r.x, r.x);
  tm_graph *g = optimized(&r, help_op(r.sc, "add", a, b));
  assert_int_equal(count_op(g, "mul"), 1);
  rig_close(&r, g);
}

static void dead_nodes_go_but_arguments_stay(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  (void)help_op(r.sc, "mul", r.x, r.x);
  tm_graph *g = optimized(&r, help_keep(help_scalar(1)));
  assert_int_equal(g->nnode, 2);
  assert_int_equal(g->narg, 1);
  rig_close(&r, g);
}

static void random_nodes_do_not_meet(void **state) {
  (void)state;
  struct rig r;
  tm_value *v[2], *out[TM_MAX_OUTPUTS];
  rig_open(&r);
  for (int i = 0; i < 2; i++) {
    tm_attrs a = {.n = 1};
    int32_t n;
    tm_err err = {0};
    assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_SHAPE, NULL, 0));
    assert_ok_err(
        tm_apply(r.sc, tm_op_find("random.normal"), NULL, 0, &a, out, &n, &err), &err);
    v[i] = help_keep(out[0]);
    tm_attrs_release(&a);
  }
  tm_graph *g = optimized(&r, help_op(r.sc, "add", v[0], v[1]));
  assert_int_equal(count_op(g, "random.normal"), 2);
  rig_close(&r, g);
}

static void reads_meet_unless_an_update_stands_between(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *a = help_var(r.sc, 1, 1, vec2), *b = help_var(r.sc, 1, 1, vec2);
  tm_value *y = help_op(r.sc, "add", a, b);
  help_assign(r.sc, y, "set", 1, 1, vec2);
  tm_value *c = help_var(r.sc, 1, 1, vec2), *d = help_var(r.sc, 1, 1, vec2);
  (void)help_var(r.sc, 2, 1, vec2);
  y = help_op(r.sc, "add", y, help_op(r.sc, "mul", c, d));
  tm_graph *g = optimized(&r, y);
  assert_int_equal(count_op(g, "read_variable"), 2);
  assert_int_equal(count_op(g, "assign_variable"), 1);
  rig_close(&r, g);
}

static void updates_stay_without_results(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  help_assign(r.sc, help_var(r.sc, 2, 1, vec2), "add", 1, 1, vec2);
  tm_graph *g = optimized(&r, NULL);
  assert_int_equal(count_op(g, "assign_variable"), 1);
  assert_int_equal(count_op(g, "read_variable"), 1);
  rig_close(&r, g);
}

static tm_status torture(void *ud) {
  tm_graph *out;
  TM_TRY(tm_graph_optimize(ud, &out, NULL));
  tm_graph_unref(out);
  return TM_OK;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *a = help_keep(help_scalar(2));
  tm_value *y = help_op(r.sc, "mul", r.x, help_op(r.sc, "add", a, a));
  help_assign(r.sc, help_var(r.sc, 2, 1, vec2), "add", 1, 1, vec2);
  tm_graph *g = help_end(r.sc, r.tr, &y, 1);
  assert_true(test_torture(torture, g) > 5);
  rig_close(&r, g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(constants_fold),
      cmocka_unit_test(equal_nodes_meet),
      cmocka_unit_test(dead_nodes_go_but_arguments_stay),
      cmocka_unit_test(random_nodes_do_not_meet),
      cmocka_unit_test(reads_meet_unless_an_update_stands_between),
      cmocka_unit_test(updates_stay_without_results),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
