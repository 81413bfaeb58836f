/* Products of averaged embeddings are worked out on the distinct rows. */
#include "graph_help.h"

enum { TABLE = 2, W = 3 };
static const int64_t table[] = {4, 2};

struct rig {
  tm_scope *sc;
  help_state h;
  tm_trace *tr;
  tm_value *it;
  int64_t w[2]; /* shape of W */
};

static void rig_open(struct rig *r, int64_t units) {
  const tm_type ids = {TM_I64, {1, {-1}}};
  float w[32];
  tm_err err = {0};
  for (int i = 0; i < 32; i++) w[i] = 0.25F * (float)(i % 7) - 0.5F;
  help_open(&r->h);
  r->h.rows = 6;
  r->h.var[TABLE] = help_tensor(2, table, (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  r->w[0] = 2;
  r->w[1] = units;
  r->h.var[W] = help_tensor(2, r->w, w);
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

static tm_value *apply(struct rig *r, const char *op, tm_value *const *in, int32_t nin,
                       tm_attrs *a) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  assert_ok_err(tm_apply(r->sc, tm_op_find(op), in, nin, a, out, &n, &err), &err);
  if (a) tm_attrs_release(a);
  for (int32_t i = 0; i < n; i++) help_keep(out[i]);
  return n ? out[0] : NULL;
}

/* ids (n / 3, 3) from a batch of n. */
static tm_value *ids_of(struct rig *r) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  tm_attrs a = {.n = 1};
  assert_ok_err(tm_apply_next(r->sc, r->it, out, &n, &err), &err);
  help_keep(out[0]);
  assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_SHAPE, (const int64_t[]){-1, 3}, 2));
  return apply(r, "reshape", out, 1, &a);
}

static tm_value *reduce(struct rig *r, const char *op, tm_value *x) {
  tm_attrs a = {.n = 1};
  assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_AXES, (const int64_t[]){1}, 1));
  return apply(r, op, &x, 1, &a);
}

static void train(struct rig *r, const tm_grad *g, uint64_t uid, const int64_t *shape) {
  tm_tensor *one;
  assert_ok(tm_tensor_i64(1, &one));
  tm_value *lr = help_keep(help_scalar(0.125F)), *t = help_keep(help_value(one));
  tm_value *sparse[4] = {g->ids, g->rows, lr, t}, *dense[3] = {g->dense, lr, t};
  tm_attrs a;
  help_var_attrs(&a, uid, 2, shape);
  a.n = 5;
  assert_ok(tm_attr_set_str(&a.a[3], "sgd", 3));
  tm_attr_set_int(&a.a[4], TM_ATTR_INT, 9);
  if (g->ids)
    apply(r, "apply_optimizer_rows", sparse, 4, &a);
  else
    apply(r, "apply_optimizer", dense, 3, &a);
}

/* x = reduce(rows); loss = sum((x w)^2); both variables are trained. */
static tm_graph *step(struct rig *r, const char *op, bool spoil) {
  tm_tape *tp;
  tm_grad g[2];
  tm_err err = {0};
  tm_source src[2] = {{NULL, TABLE}, {NULL, W}};
  assert_ok(tm_tape_begin(r->sc, false, &tp));
  tm_value *x = reduce(r, op, help_gather(r->sc, ids_of(r), TABLE, 2, table));
  tm_value *z = help_op(r->sc, "matmul", x, help_var(r->sc, W, 2, r->w));
  tm_value *loss = help_sum(r->sc, help_op(r->sc, "mul", z, z));
  assert_ok_err(tm_tape_gradient(tp, loss, NULL, src, 2, g, &err), &err);
  tm_tape_unref(tp);
  train(r, &g[0], TABLE, table);
  train(r, &g[1], W, r->w);
  tm_grad_release(&g[0]);
  tm_grad_release(&g[1]);
  tm_value *res[2] = {loss, spoil ? x : z};
  return help_end(r->sc, r->tr, res, 2);
}

static int count_op(const tm_graph *g, const char *op) {
  int n = 0;
  for (int32_t i = 0; i < g->nnode; i++) n += strcmp(g->node[i].op->name, op) == 0;
  return n;
}

static float run(struct rig *r, tm_program *p) {
  tm_arg_value arg = {NULL, 9};
  tm_tensor *out[2];
  tm_err err = {0};
  assert_ok_err(tm_program_run(p, &arg, 1, &r->h.state, &help_env, out, &err), &err);
  float loss = *(float *)out[0]->v.data;
  tm_tensor_unref(out[0]);
  tm_tensor_unref(out[1]);
  return loss;
}

static void check_bags(const tm_graph *g, int n) {
  assert_int_equal(count_op(g, "unique_rows"), n);
  assert_int_equal(count_op(g, "gather_unique_variable"), n);
  assert_int_equal(count_op(g, "bag_matmul"), n);
  assert_int_equal(count_op(g, "bag_matmul_t"), n);
  assert_int_equal(count_op(g, "bag_matmul_rows"), n);
  assert_int_equal(count_op(g, "apply_optimizer_unique"), n);
  assert_int_equal(count_op(g, "gather_variable"), 1 - n);
  assert_int_equal(count_op(g, "matmul"), 3 * (1 - n));
}

static void check_close(const float *got, const float *want, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    assert_true(fabsf(got[i] - want[i]) <= 1e-4F * fabsf(want[i]) + 1e-5F);
}

static void bags_train_as_combined_rows_do(void **state) {
  (void)state;
  static const char *const ops[] = {"reduce_mean", "reduce_sum"};
  for (int k = 0; k < 4; k++) {
    float loss[2][3], vars[2][2][8];
    int64_t units = k / 2 ? 3 : 1;
    for (int spoil = 0; spoil < 2; spoil++) {
      struct rig r;
      rig_open(&r, units);
      tm_program *p = help_program(step(&r, ops[k % 2], spoil));
      check_bags(tm_program_graph(p), !spoil);
      assert_int_equal(tm_program_levels(p), 1);
      for (int i = 0; i < 3; i++) {
        r.h.rows = i == 1 ? 9 : 6; /* a batch of another size, a plan of its own */
        loss[spoil][i] = run(&r, p);
      }
      memcpy(vars[spoil][0], r.h.var[TABLE]->v.data, 8 * sizeof(float));
      memcpy(vars[spoil][1], r.h.var[W]->v.data, (size_t)(2 * units) * sizeof(float));
      tm_program_unref(p);
      rig_close(&r);
    }
    check_close(loss[0], loss[1], 3);
    check_close(vars[0][0], vars[1][0], 8);
    check_close(vars[0][1], vars[1][1], 2 * units);
  }
}

static void a_step_is_one_exchange_and_its_updates(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r, 1);
  tm_program *p = help_program(step(&r, "reduce_mean", false));
  (void)run(&r, p);
  assert_string_equal(r.h.log, "G2 R3 | U2 U3 | ");
  tm_program_unref(p);
  rig_close(&r);
}

static void wide_products_are_left_alone(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r, 9);
  tm_program *p = help_program(step(&r, "reduce_mean", false));
  check_bags(tm_program_graph(p), 0);
  tm_program_unref(p);
  rig_close(&r);
}

/* --- the ops --- */

static tm_tensor *places_of(const int32_t *x, int64_t n) {
  tm_shape s = tm_shape_of(1, &n);
  tm_tensor *t;
  assert_ok(tm_tensor_new(TM_I32, &s, &t, NULL));
  memcpy(t->v.data, x, tm_view_bytes(&t->v));
  return t;
}

static void distinct_ids_come_in_order_with_their_places(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_value *ids = help_keep(help_value(help_ids(5, (const int64_t[]){7, 3, 7, 9, 3})));
  assert_ok_err(tm_apply(sc, tm_op_find("unique_rows"), &ids, 1, NULL, out, &n, &err),
                &err);
  assert_int_equal(n, 3);
  for (int i = 0; i < 3; i++) help_keep(out[i]);
  assert_memory_equal(out[0]->t->v.data, ((const int64_t[]){3, 7, 9, 0, 0}), 5 * 8);
  assert_memory_equal(out[1]->t->v.data, ((const int32_t[]){1, 0, 1, 2, 0}), 5 * 4);
  assert_int_equal(*(const int64_t *)out[2]->t->v.data, 3);
  help_drop();
  tm_scope_free(sc);
}

static void a_place_that_is_no_row_is_an_error(void **state) {
  (void)state;
  static const int32_t bad[][2] = {{0, 2}, {-1, 0}, {0, 1}};
  static const int64_t count[] = {2, 2, 3};
  const int64_t dim[] = {2, 2};
  static const char *const ops[] = {"bag_matmul", "bag_matmul_t", "bag_matmul_rows"};
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  for (int k = 0; k < 9; k++) {
    tm_value *in[4], *out[TM_MAX_OUTPUTS];
    tm_tensor *c;
    int32_t n;
    tm_err err = {0};
    assert_ok(tm_tensor_i64(count[k / 3], &c));
    in[0] = help_keep(help_value(help_tensor(2, dim, (const float[]){1, 2, 3, 4})));
    in[1] = help_keep(help_value(places_of(bad[k / 3], 2)));
    in[2] = help_keep(help_value(c));
    in[3] = in[0];
    assert_int_equal(tm_apply(sc, tm_op_find(ops[k % 3]), in, 4, NULL, out, &n, &err),
                     TM_EINVAL);
  }
  help_drop();
  tm_scope_free(sc);
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
  rig_open(&r, 1);
  tm_graph *g = step(&r, "reduce_mean", false);
  assert_true(test_torture(torture, g) > 5);
  tm_graph_unref(g);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(bags_train_as_combined_rows_do),
      cmocka_unit_test(a_step_is_one_exchange_and_its_updates),
      cmocka_unit_test(wide_products_are_left_alone),
      cmocka_unit_test(distinct_ids_come_in_order_with_their_places),
      cmocka_unit_test(a_place_that_is_no_row_is_an_error),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
