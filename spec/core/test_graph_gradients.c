/*
 * Gradients of all ops: every rule has a case in the fixtures (test_graph_ops_*.c
 * compare those with central differences), and gradients of gradients are right too,
 * which exercises the rules of the hidden ops.
 */
#include "graph_cases.h"

static const struct graph_case cases[] = {
#include "../fixtures/graph_ops_compare.inc"
#include "../fixtures/graph_ops_conv.inc"
#include "../fixtures/graph_ops_cum.inc"
#include "../fixtures/graph_ops_einsum.inc"
#include "../fixtures/graph_ops_encode.inc"
#include "../fixtures/graph_ops_index.inc"
#include "../fixtures/graph_ops_linalg.inc"
#include "../fixtures/graph_ops_loss.inc"
#include "../fixtures/graph_ops_math.inc"
#include "../fixtures/graph_ops_nd.inc"
#include "../fixtures/graph_ops_nn.inc"
#include "../fixtures/graph_ops_norm.inc"
#include "../fixtures/graph_ops_pack.inc"
#include "../fixtures/graph_ops_pool.inc"
#include "../fixtures/graph_ops_reduce.inc"
#include "../fixtures/graph_ops_segment.inc"
#include "../fixtures/graph_ops_shape.inc"
#include "../fixtures/graph_ops_slice.inc"
#include "../fixtures/graph_ops_softmax.inc"
#include "../fixtures/graph_ops_sort.inc"
#include "../fixtures/graph_ops_sparse.inc"
};

static bool has_case(const char *op) {
  for (size_t i = 0; i < TM_COUNT(cases); i++)
    if (cases[i].grad && strcmp(cases[i].op, op) == 0) return true;
  return false;
}

/* The second test reaches rules of hidden ops through those of others; dropout has a
 * test of its own. */
static bool elsewhere(const tm_op *op) {
  const uint32_t flags = TM_OP_STATE | TM_OP_SUBGRAPH | TM_OP_HIDDEN;
  return !op->grad || (op->flags & flags) || strcmp(op->name, "nn.dropout") == 0;
}

static void every_rule_has_a_case(void **state) {
  (void)state;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  for (int32_t i = 0; i < tm_op_count(); i++) {
    const tm_op *op = tm_op_at(i);
    if (!elsewhere(op) && !has_case(op->name))
      fail_msg("%s has no gradient case", op->name);
  }
}

/* --- gradients of gradients --- */

/* Gradients of the weighted sum of outputs by the float64 inputs, into g. */
static int32_t first_order(tm_scope *sc, const struct graph_case *c, tm_value **in,
                           tm_grad *g) {
  tm_tape *tp;
  tm_source src[CASE_IN];
  int32_t n = 0;
  tm_err err = {0};
  assert_ok(tm_tape_begin(sc, false, &tp));
  for (int32_t i = 0; i < c->nin; i++) {
    if (c->in[i].dtype != TM_F64) continue;
    tm_tape_watch(tp, in[i]);
    src[n++] = (tm_source){in[i], 0};
  }
  tm_value *loss = case_loss_value(sc, c, in);
  tm_status s = tm_tape_gradient(tp, loss, NULL, src, n, g, &err);
  if (s) fail_msg("%s{%s} gradient: %s", c->op, c->attrs, err.msg);
  tm_tape_unref(tp);
  for (int32_t i = 0; i < n; i++)
    if (g[i].dense) help_keep(g[i].dense);
  return n;
}

static double slope(tm_scope *sc, const struct graph_case *c, tm_value **in) {
  tm_grad g[CASE_IN];
  double sum = 0;
  int32_t n = first_order(sc, c, in, g);
  for (int32_t k = 0; k < n; k++) {
    const tm_view *v = g[k].dense ? &g[k].dense->t->v : NULL;
    for (int64_t i = 0, m = v ? tm_view_count(v) : 0; i < m; i++)
      sum += case_weight(k + 5, i) * tm_view_get_f64(v, i);
  }
  return sum;
}

/* The same on an outer tape. */
static tm_value *slope_value(tm_scope *sc, const struct graph_case *c, tm_value **in) {
  tm_grad g[CASE_IN];
  tm_value *sum = NULL;
  int32_t n = first_order(sc, c, in, g);
  for (int32_t k = 0; k < n; k++) {
    if (!g[k].dense) continue;
    tm_tensor *w;
    assert_ok(tm_tensor_new(TM_F64, &g[k].dense->t->v.shape, &w, NULL));
    for (int64_t i = 0, m = tm_view_count(&w->v); i < m; i++)
      ((double *)w->v.data)[i] = case_weight(k + 5, i);
    tm_value *part =
        help_sum(sc, help_op(sc, "mul", g[k].dense, help_keep(help_value(w))));
    sum = sum ? help_op(sc, "add", sum, part) : part;
  }
  return sum;
}

static void check_input(tm_scope *sc, const struct graph_case *c, tm_value **in,
                        int32_t k, const tm_tensor *grad) {
  const double h = 1e-5;
  tm_value *was = in[k];
  int64_t n = tm_view_count(&was->t->v), step = n > 6 ? n / 6 : 1;
  for (int64_t i = 0; i < n; i += step) {
    double at[2];
    for (int side = 0; side < 2; side++) {
      tm_tensor *t;
      assert_ok(tm_tensor_copy(&was->t->v, &t, NULL));
      ((double *)t->v.data)[i] += side ? h : -h;
      in[k] = help_keep(help_value(t));
      at[side] = slope(sc, c, in);
    }
    double want = (at[1] - at[0]) / (2 * h),
           got = grad ? tm_view_get_f64(&grad->v, i) : 0;
    if (!(fabs(got - want) <= 3e-5 * fmax(1, fabs(want))))
      fail_msg("%s{%s} second derivative of input %d, element %d: %.9g, not %.9g",
               c->op, c->attrs, (int)k, (int)i, got, want);
  }
  in[k] = was;
}

static void second_order(tm_scope *sc, const struct graph_case *c, tm_value **in) {
  tm_tape *tp;
  tm_err err = {0};
  int32_t n = 0, which[CASE_IN];
  tm_source src[CASE_IN];
  tm_grad g[CASE_IN];
  assert_ok(tm_tape_begin(sc, false, &tp));
  for (int32_t i = 0; i < c->nin; i++) {
    if (c->in[i].dtype != TM_F64) continue;
    tm_tape_watch(tp, in[i]);
    which[n] = i;
    src[n++] = (tm_source){in[i], 0};
  }
  tm_value *y = slope_value(sc, c, in);
  if (y) {
    tm_status s = tm_tape_gradient(tp, y, NULL, src, n, g, &err);
    if (s) fail_msg("%s{%s} second derivative: %s", c->op, c->attrs, err.msg);
    for (int32_t i = 0; i < n; i++) {
      if (g[i].dense) help_keep(g[i].dense);
      check_input(sc, c, in, which[i], g[i].dense ? g[i].dense->t : NULL);
    }
  }
  tm_tape_unref(tp);
}

static void gradients_of_gradients_are_right(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  for (size_t i = 0; i < TM_COUNT(cases); i++) {
    const struct graph_case *c = &cases[i];
    tm_value *in[CASE_IN];
    if (!c->grad) continue;
    for (int32_t k = 0; k < c->nin; k++)
      in[k] = help_keep(help_value(case_tensor_of(&c->in[k])));
    second_order(sc, c, in);
    help_drop();
  }
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_rule_has_a_case),
      cmocka_unit_test(gradients_of_gradients_are_right),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
