/* Tapes: eager and traced gradients by the same rules. */
#include "graph_help.h"

static const int64_t vec2[] = {2}, table[] = {4, 2};

struct rig {
  tm_scope *sc;
  help_state h;
};

static void rig_open(struct rig *r) {
  help_open(&r->h);
  r->h.var[1] = help_vec(2, (const float[]){1, 2});
  r->h.var[2] = help_tensor(2, table, (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  assert_ok(tm_scope_new(&r->sc));
  tm_scope_set_state(r->sc, &r->h.state);
}

static void rig_close(struct rig *r) {
  help_close(&r->h);
  help_drop();
  tm_scope_free(r->sc);
}

static tm_tape *tape(struct rig *r, bool persistent) {
  tm_tape *t;
  assert_ok(tm_tape_begin(r->sc, persistent, &t));
  return t;
}

static tm_grad gradient(tm_tape *tp, tm_value *y, tm_value *x, uint64_t uid) {
  tm_grad g;
  tm_err err = {0};
  tm_source src = {x, uid};
  assert_ok_err(tm_tape_gradient(tp, y, NULL, &src, 1, &g, &err), &err);
  if (g.dense) help_keep(g.dense);
  if (g.ids) help_keep(g.ids);
  if (g.rows) help_keep(g.rows);
  return g;
}

static void a_product_has_the_gradient_of_a_product(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, false);
  tm_value *x = help_keep(help_value(help_vec(3, (const float[]){1, 2, 3})));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", help_op(r.sc, "mul", x, x), x);
  tm_grad g = gradient(tp, y, x, 0);
  help_equal(g.dense->t, 3, (const float[]){3, 12, 27});
  tm_tape_unref(tp);
  rig_close(&r);
}

static void broadcast_inputs_get_summed_gradients(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, false);
  tm_value *x = help_keep(help_value(
      help_tensor(2, (const int64_t[]){3, 2}, (const float[]){1, 2, 3, 4, 5, 6})));
  tm_value *b = help_keep(help_value(help_vec(2, (const float[]){10, 20})));
  tm_tape_watch(tp, b);
  tm_grad g = gradient(tp, help_op(r.sc, "mul", x, b), b, 0);
  help_equal(g.dense->t, 2, (const float[]){9, 12});
  tm_tape_unref(tp);
  rig_close(&r);
}

static void variables_are_watched_and_reads_add_up(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, false);
  tm_value *a = help_var(r.sc, 1, 1, vec2), *b = help_var(r.sc, 1, 1, vec2);
  tm_value *y = help_op(r.sc, "mul", a, b);
  tm_grad g = gradient(tp, y, NULL, 1);
  help_equal(g.dense->t, 2, (const float[]){2, 4});
  tm_tape_unref(tp);
  rig_close(&r);
}

static void gathers_give_rows(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, false);
  tm_value *ids = help_keep(help_value(help_ids(3, (const int64_t[]){2, 0, 2})));
  tm_value *rows = help_gather(r.sc, ids, 2, 2, table);
  tm_grad g = gradient(tp, help_op(r.sc, "mul", rows, rows), NULL, 2);
  assert_null(g.dense);
  assert_int_equal(tm_view_get_i64(&g.ids->t->v, 2), 2);
  help_equal(g.rows->t, 6, (const float[]){8, 10, 0, 2, 8, 10});
  tm_tape_unref(tp);
  rig_close(&r);
}

static void what_is_not_connected_has_no_gradient(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, true);
  tm_value *x = help_keep(help_scalar(2)), *z = help_keep(help_scalar(3));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", x, x);
  assert_null(gradient(tp, y, z, 0).dense);
  assert_null(gradient(tp, y, NULL, 1).dense);
  assert_null(gradient(tp, help_op(r.sc, "stop_gradient", y, NULL), x, 0).dense);
  tm_tape_unref(tp);
  rig_close(&r);
}

static void a_tape_gives_gradients_once(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, false);
  tm_value *x = help_keep(help_scalar(2));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", x, x);
  help_equal(gradient(tp, y, x, 0).dense->t, 1, (const float[]){4});
  tm_grad g;
  tm_err err = {0};
  tm_source src = {x, 0};
  assert_int_equal(tm_tape_gradient(tp, y, NULL, &src, 1, &g, &err), TM_EPRECOND);
  tm_tape_unref(tp);
  rig_close(&r);
}

static void a_persistent_tape_gives_second_derivatives(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, true);
  tm_value *x = help_keep(help_scalar(2));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", help_op(r.sc, "mul", x, x), x);
  tm_grad g = gradient(tp, y, x, 0);
  help_equal(g.dense->t, 1, (const float[]){12});
  help_equal(gradient(tp, g.dense, x, 0).dense->t, 1, (const float[]){12});
  tm_tape_unref(tp);
  rig_close(&r);
}

static void nested_tapes_give_second_derivatives(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *outer = tape(&r, false), *inner = tape(&r, false);
  tm_value *x = help_keep(help_scalar(3));
  tm_tape_watch(outer, x);
  tm_tape_watch(inner, x);
  tm_value *y = help_op(r.sc, "mul", help_op(r.sc, "mul", x, x), x);
  tm_value *dy = gradient(inner, y, x, 0).dense;
  help_equal(dy->t, 1, (const float[]){27});
  help_equal(gradient(outer, dy, x, 0).dense->t, 1, (const float[]){18});
  tm_tape_unref(inner);
  tm_tape_unref(outer);
  rig_close(&r);
}

static void a_seed_scales_and_a_wrong_one_is_refused(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_tape *tp = tape(&r, true);
  tm_value *x = help_keep(help_scalar(2)), *seed = help_keep(help_scalar(10));
  tm_value *bad = help_keep(help_value(help_vec(2, (const float[]){1, 1})));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", x, x);
  tm_grad g;
  tm_err err = {0};
  tm_source src = {x, 0};
  assert_ok_err(tm_tape_gradient(tp, y, seed, &src, 1, &g, &err), &err);
  help_equal(g.dense->t, 1, (const float[]){40});
  tm_grad_release(&g);
  assert_int_equal(tm_tape_gradient(tp, y, bad, &src, 1, &g, &err), TM_EINVAL);
  tm_tape_unref(tp);
  rig_close(&r);
}

/* One training step, traced: its gradients travel in the same exchange as its reads. */
static void a_traced_step_trains(void **state) {
  (void)state;
  struct rig r;
  tm_trace *tr;
  tm_err err = {0};
  rig_open(&r);
  assert_ok(tm_trace_begin(r.sc, "step", &tr, &err));
  tm_tape *tp = tape(&r, false);
  tm_value *w = help_var(r.sc, 1, 1, vec2);
  tm_value *ids = help_keep(help_value(help_ids(2, (const int64_t[]){1, 1})));
  tm_value *rows = help_gather(r.sc, ids, 2, 2, table);
  tm_value *loss = help_sum(r.sc, help_op(r.sc, "mul", rows, w));
  tm_grad g[2];
  tm_source src[2] = {{NULL, 1}, {NULL, 2}};
  assert_ok_err(tm_tape_gradient(tp, loss, NULL, src, 2, g, &err), &err);
  help_assign(r.sc, g[0].dense, "sub", 1, 1, vec2);
  help_state_op(r.sc, "scatter_variable", g[1].ids, g[1].rows, "sub", 2, 2, table);
  tm_grad_release(&g[0]);
  tm_grad_release(&g[1]);
  tm_tape_unref(tp);
  tm_program *p = help_program(help_end(r.sc, tr, &loss, 1));
  tm_tensor *out;
  assert_ok_err(tm_program_run(p, NULL, 0, &r.h.state, &help_env, &out, &err), &err);
  help_equal(out, 1, (const float[]){16});
  assert_string_equal(r.h.log, "R1 G2 | U1 U2 | ");
  help_equal(r.h.var[1], 2, (const float[]){-3, -4});
  help_equal(r.h.var[2], 8, (const float[]){0, 1, 0, -1, 4, 5, 6, 7});
  tm_tensor_unref(out);
  tm_program_unref(p);
  rig_close(&r);
}

static void an_unknown_batch_size_is_no_obstacle(void **state) {
  (void)state;
  struct rig r;
  tm_trace *tr;
  tm_value *x, *b;
  tm_err err = {0};
  const tm_type tx = {TM_F32, {2, {-1, 2}}}, tb = {TM_F32, {2, {-1, 2}}};
  rig_open(&r);
  assert_ok(tm_trace_begin(r.sc, "f", &tr, &err));
  assert_ok(tm_trace_arg(tr, &tx, &x, &err));
  assert_ok(tm_trace_arg(tr, &tb, &b, &err));
  help_keep(x);
  help_keep(b);
  tm_tape *tp = tape(&r, false);
  tm_tape_watch(tp, x);
  tm_tape_watch(tp, b);
  tm_value *y = help_op(r.sc, "mul", x, b);
  tm_grad g[2];
  tm_source src[2] = {{x, 0}, {b, 0}};
  assert_ok_err(tm_tape_gradient(tp, y, NULL, src, 2, g, &err), &err);
  tm_value *res[2] = {g[0].dense, g[1].dense};
  tm_program *p = help_program(help_end(r.sc, tr, res, 2));
  tm_grad_release(&g[0]);
  tm_grad_release(&g[1]);
  tm_tape_unref(tp);
  tm_tensor *out[2];
  tm_tensor *in[2] = {
      help_tensor(2, (const int64_t[]){2, 2}, (const float[]){1, 2, 3, 4}),
      help_tensor(2, (const int64_t[]){1, 2}, (const float[]){5, 6})};
  tm_arg_value arg[2] = {{in[0], 0}, {in[1], 0}};
  assert_ok_err(tm_program_run(p, arg, 2, NULL, &help_env, out, &err), &err);
  help_equal(out[0], 4, (const float[]){5, 6, 5, 6});
  help_equal(out[1], 2, (const float[]){4, 6});
  for (int i = 0; i < 2; i++) tm_tensor_unref(in[i]), tm_tensor_unref(out[i]);
  tm_program_unref(p);
  rig_close(&r);
}

static void an_unwound_tape_has_ended(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  int32_t mark = tm_scope_mark(r.sc);
  tm_tape *tp = tape(&r, false);
  tm_value *x = help_keep(help_scalar(2));
  tm_tape_watch(tp, x);
  tm_value *y = help_op(r.sc, "mul", x, x);
  tm_scope_unwind(r.sc, mark);
  tm_grad g;
  tm_err err = {0};
  tm_source src = {x, 0};
  assert_int_equal(tm_tape_gradient(tp, y, NULL, &src, 1, &g, &err), TM_EPRECOND);
  tm_tape_unref(tp);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_product_has_the_gradient_of_a_product),
      cmocka_unit_test(broadcast_inputs_get_summed_gradients),
      cmocka_unit_test(variables_are_watched_and_reads_add_up),
      cmocka_unit_test(gathers_give_rows),
      cmocka_unit_test(what_is_not_connected_has_no_gradient),
      cmocka_unit_test(a_tape_gives_gradients_once),
      cmocka_unit_test(a_persistent_tape_gives_second_derivatives),
      cmocka_unit_test(nested_tapes_give_second_derivatives),
      cmocka_unit_test(a_seed_scales_and_a_wrong_one_is_refused),
      cmocka_unit_test(a_traced_step_trains),
      cmocka_unit_test(an_unknown_batch_size_is_no_obstacle),
      cmocka_unit_test(an_unwound_tape_has_ended),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
