/* Any allocation may fail while a function is traced, differentiated and run. */
#include "graph_help.h"

static const int64_t vec2[] = {2}, table[] = {4, 2};
static const tm_type unknown_ids = {TM_I64, {1, {-1}}};

struct work {
  tm_scope *sc;
  help_state h;
  tm_value *made[64];
  int nmade;
};

static tm_status work_op(struct work *w, const char *name, tm_value *const *in,
                         int32_t nin, const tm_attrs *at, tm_value **out) {
  tm_value *o[TM_MAX_OUTPUTS];
  int32_t n = 0;
  TM_TRY(tm_apply(w->sc, tm_op_find(name), in, nin, at, o, &n, NULL));
  for (int32_t i = 0; i < n; i++) w->made[w->nmade++] = o[i];
  if (out) *out = o[0];
  return TM_OK;
}

static tm_status work_state_op(struct work *w, const char *name, tm_value *in,
                               const char *mode, uint64_t uid, int32_t rank,
                               const int64_t *dim, tm_value **out) {
  tm_attrs at = {.n = mode ? 4 : 3};
  tm_attr_set_int(&at.a[0], TM_ATTR_INT, (int64_t)uid);
  tm_attr_set_int(&at.a[1], TM_ATTR_DTYPE, TM_F32);
  tm_status s = tm_attr_set_ints(&at.a[2], TM_ATTR_SHAPE, dim, rank);
  if (!s && mode) s = tm_attr_set_str(&at.a[3], mode, strlen(mode));
  if (!s) s = work_op(w, name, &in, in ? 1 : 0, &at, out);
  tm_attrs_release(&at);
  return s;
}

/* loss = sum((rows[ids] * w) ^ 2); w -= d loss / d w */
static tm_status work_body(struct work *w, tm_tape *tp, tm_value *ids,
                           tm_value **loss) {
  tm_value *in[2], *y;
  TM_TRY(work_state_op(w, "gather_variable", ids, NULL, 2, 2, table, &in[0]));
  TM_TRY(work_state_op(w, "read_variable", NULL, NULL, 1, 1, vec2, &in[1]));
  TM_TRY(work_op(w, "mul", in, 2, NULL, &y));
  in[0] = in[1] = y;
  TM_TRY(work_op(w, "mul", in, 2, NULL, &y));
  TM_TRY(work_op(w, "reduce_sum", &y, 1, NULL, loss));
  tm_source src[2] = {{NULL, 1}, {NULL, 2}};
  tm_grad g[2];
  TM_TRY(tm_tape_gradient(tp, *loss, NULL, src, 2, g, NULL));
  tm_status s =
      work_state_op(w, "assign_variable", g[0].dense, "sub", 1, 1, vec2, NULL);
  tm_grad_release(&g[0]);
  tm_grad_release(&g[1]);
  return s;
}

static tm_status work_trace(struct work *w, tm_graph **g) {
  tm_trace *tr;
  tm_tape *tp;
  tm_value *ids, *loss;
  TM_TRY(tm_trace_begin(w->sc, "step", &tr, NULL));
  tm_status s = tm_trace_arg(tr, &unknown_ids, &ids, NULL);
  if (!s) {
    w->made[w->nmade++] = ids;
    s = tm_tape_begin(w->sc, false, &tp);
    if (!s) {
      s = work_body(w, tp, ids, &loss);
      tm_tape_stop(tp);
      tm_tape_unref(tp);
    }
  }
  if (!s)
    s = tm_trace_end(w->sc, tr, &loss, 1, g, NULL);
  else
    tm_trace_abort(w->sc, tr);
  tm_trace_unref(tr);
  return s;
}

static tm_status work_run(struct work *w, tm_graph *g, tm_tensor *ids) {
  tm_program *p;
  TM_TRY(tm_program_new(g, &p, NULL));
  tm_status s = TM_OK;
  for (int i = 0; i < 2 && !s; i++) {
    tm_tensor *out;
    tm_arg_value arg = {ids, 0};
    s = tm_program_run(p, &arg, 1, &w->h.state, &help_env, &out, NULL);
    if (!s) tm_tensor_unref(out);
  }
  tm_program_unref(p);
  return s;
}

static tm_status work_all(void *ud) {
  struct work *w = ud;
  tm_graph *g;
  w->nmade = 0;
  TM_TRY(tm_scope_new(&w->sc));
  tm_scope_set_state(w->sc, &w->h.state);
  tm_status s = work_trace(w, &g);
  for (int i = 0; i < w->nmade; i++) tm_value_unref(w->made[i]);
  tm_scope_free(w->sc);
  if (s) return s;
  w->h.log[0] = '\0';
  tm_tensor *ids;
  s = tm_tensor_new(TM_I64, &(tm_shape){1, {2}}, &ids, NULL);
  if (!s) {
    memset(ids->v.data, 0, tm_view_bytes(&ids->v));
    s = work_run(w, g, ids);
    tm_tensor_unref(ids);
  }
  tm_graph_unref(g);
  return s;
}

static void from_trace_to_result_every_allocation_may_fail(void **state) {
  (void)state;
  struct work w;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  help_open(&w.h);
  w.h.var[1] = help_vec(2, (const float[]){1, 2});
  w.h.var[2] = help_tensor(2, table, (const float[]){1, 2, 3, 4, 5, 6, 7, 8});
  /* The state of the test swaps its variables: their sizes stay. */
  assert_true(test_torture(work_all, &w) > 50);
  help_close(&w.h);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(from_trace_to_result_every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
