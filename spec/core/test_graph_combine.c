/* An averaged embedding: its rows are summed where they arrive, its gradients where
 * they leave. */
#include "graph_help.h"

static const int64_t table[] = {4, 2};

struct rig {
  tm_scope *sc;
  help_state h;
  tm_trace *tr;
  tm_value *it;
};

static void rig_open(struct rig *r) {
  tm_err err = {0};
  help_open(&r->h);
  r->h.rows = 6;
  r->h.var[2] = help_tensor(2, table, (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  const tm_type ids = {TM_I64, {1, {-1}}};
  assert_ok(tm_scope_new(&r->sc));
  assert_ok(tm_trace_begin(r->sc, "step", &r->tr, &err));
  assert_ok(tm_trace_iterator_arg(r->tr, &ids, 1, &r->it, &err));
  help_keep(r->it);
}

static void rig_close(struct rig *r) {
  help_close(&r->h);
  help_drop();
  tm_scope_free(r->sc);
}

/* ids (n / 3, 3) from a batch of n. */
static tm_value *ids_of(struct rig *r) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  tm_attrs a = {.n = 1};
  assert_ok_err(tm_apply_next(r->sc, r->it, out, &n, &err), &err);
  tm_value *flat = help_keep(out[0]);
  assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_SHAPE, (const int64_t[]){-1, 3}, 2));
  assert_ok_err(tm_apply(r->sc, tm_op_find("reshape"), &flat, 1, &a, out, &n, &err),
                &err);
  tm_attrs_release(&a);
  return help_keep(out[0]);
}

static tm_value *reduce(struct rig *r, const char *op, tm_value *x, int64_t axis) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  tm_attrs a = {.n = 1};
  assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_AXES, &axis, 1));
  assert_ok_err(tm_apply(r->sc, tm_op_find(op), &x, 1, &a, out, &n, &err), &err);
  tm_attrs_release(&a);
  return help_keep(out[0]);
}

static void apply_rows(struct rig *r, const tm_grad *g) {
  tm_value *in[4] = {g->ids, g->rows, help_keep(help_scalar(0.5F)), NULL};
  tm_value *out[TM_MAX_OUTPUTS];
  tm_tensor *one;
  tm_attrs a;
  tm_err err = {0};
  int32_t n;
  assert_ok(tm_tensor_i64(1, &one));
  in[3] = help_keep(help_value(one));
  help_var_attrs(&a, 2, 2, table);
  a.n = 5;
  assert_ok(tm_attr_set_str(&a.a[3], "sgd", 3));
  tm_attr_set_int(&a.a[4], TM_ATTR_INT, 9);
  assert_ok_err(
      tm_apply(r->sc, tm_op_find("apply_optimizer_rows"), in, 4, &a, out, &n, &err),
      &err);
  tm_attrs_release(&a);
}

static int count_op(const tm_graph *g, const char *op) {
  int n = 0;
  for (int32_t i = 0; i < g->nnode; i++) n += strcmp(g->node[i].op->name, op) == 0;
  return n;
}

/* One step: y = mean (or sum) of rows, loss = sum(y * y); also y when `keep`. */
static tm_program *step(struct rig *r, const char *op, bool spoil) {
  tm_tape *tp;
  tm_grad g;
  tm_err err = {0};
  tm_source src = {NULL, 2};
  assert_ok(tm_tape_begin(r->sc, false, &tp));
  tm_value *rows = help_gather(r->sc, ids_of(r), 2, 2, table);
  tm_value *y = reduce(r, op, rows, 1);
  tm_value *loss = help_sum(r->sc, help_op(r->sc, "mul", y, y));
  assert_ok_err(tm_tape_gradient(tp, loss, NULL, &src, 1, &g, &err), &err);
  tm_tape_unref(tp);
  apply_rows(r, &g);
  tm_grad_release(&g);
  tm_value *res[2] = {loss, spoil ? help_op(r->sc, "neg", rows, NULL) : y};
  return help_program(help_end(r->sc, r->tr, res, 2));
}

static void run(struct rig *r, tm_program *p, float *loss) {
  tm_arg_value arg = {NULL, 9};
  tm_tensor *out[2];
  tm_err err = {0};
  assert_ok_err(tm_program_run(p, &arg, 1, &r->h.state, &help_env, out, &err), &err);
  *loss = *(float *)out[0]->v.data;
  tm_tensor_unref(out[0]);
  tm_tensor_unref(out[1]);
}

static void combined_and_spread_rows_train_alike(void **state) {
  (void)state;
  static const char *const ops[] = {"reduce_mean", "reduce_sum"};
  for (int k = 0; k < 2; k++) {
    float loss[2], table_after[2][8];
    for (int spoil = 0; spoil < 2; spoil++) {
      struct rig r;
      rig_open(&r);
      tm_program *p = step(&r, ops[k], spoil);
      const tm_graph *g = tm_program_graph(p);
      assert_int_equal(count_op(g, ops[k]), spoil ? 1 + (k == 1) : (k == 1));
      assert_int_equal(count_op(g, "unreduce"), spoil ? 2 : 1);
      assert_int_equal(count_op(g, "gather_variable"), 1);
      assert_int_equal(tm_program_levels(p), 1);
      run(&r, p, &loss[spoil]);
      assert_string_equal(r.h.log, "G2 | U2 | ");
      memcpy(table_after[spoil], r.h.var[2]->v.data, sizeof table_after[spoil]);
      tm_program_unref(p);
      rig_close(&r);
    }
    assert_true(fabsf(loss[0] - loss[1]) < 1e-4F);
    for (int i = 0; i < 8; i++)
      assert_true(fabsf(table_after[0][i] - table_after[1][i]) < 1e-4F);
  }
}

static void another_axis_is_left_alone(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *y =
      reduce(&r, "reduce_mean", help_gather(r.sc, ids_of(&r), 2, 2, table), 0);
  tm_program *p = help_program(help_end(r.sc, r.tr, &y, 1));
  assert_int_equal(count_op(tm_program_graph(p), "reduce_mean"), 1);
  tm_program_unref(p);
  rig_close(&r);
}

static void an_update_between_keeps_the_read_where_it_was(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *rows = help_gather(r.sc, ids_of(&r), 2, 2, table);
  help_assign(r.sc, help_var(r.sc, 2, 2, table), "add", 2, 2, table);
  tm_value *y = reduce(&r, "reduce_mean", rows, 1);
  tm_program *p = help_program(help_end(r.sc, r.tr, &y, 1));
  assert_int_equal(count_op(tm_program_graph(p), "reduce_mean"), 1);
  tm_program_unref(p);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(combined_and_spread_rows_train_alike),
      cmocka_unit_test(another_axis_is_left_alone),
      cmocka_unit_test(an_update_between_keeps_the_read_where_it_was),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
