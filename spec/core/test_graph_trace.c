/* Traces: constants, captures, misuse; the text of a graph. */
#include "graph_help.h"

static const tm_type vec = {TM_F32, {1, {-1}}};

static tm_value *arg_of(tm_trace *tr, const tm_type *t) {
  tm_value *v;
  tm_err err = {0};
  assert_ok_err(tm_trace_arg(tr, t, &v, &err), &err);
  return help_keep(v);
}

static tm_trace *begin(tm_scope *sc, const char *name) {
  tm_trace *tr;
  tm_err err = {0};
  assert_ok_err(tm_trace_begin(sc, name, &tr, &err), &err);
  return tr;
}

static void one_tensor_is_one_constant(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  tm_trace *tr = begin(sc, "f");
  tm_value *x = arg_of(tr, &vec), *c = help_keep(help_scalar(2));
  tm_value *y = help_op(sc, "mul", help_op(sc, "add", x, c), c);
  tm_graph *g = help_end(sc, tr, &y, 1);
  assert_int_equal(g->nnode, 4);
  tm_graph_unref(g);
  help_drop();
  tm_scope_free(sc);
}

static void values_of_outer_traces_are_captured_through_all_levels(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value **cap;
  assert_ok(tm_scope_new(&sc));
  tm_trace *a = begin(sc, "a");
  tm_value *x = arg_of(a, &vec);
  tm_trace *b = begin(sc, "b");
  tm_trace *c = begin(sc, "c");
  tm_value *y = help_op(sc, "add", x, x);
  tm_trace_ref(c);
  tm_graph *gc = help_end(sc, c, &y, 1);
  assert_int_equal(gc->narg, 1);
  assert_int_equal(tm_trace_captures(c, &cap), 1);
  assert_ptr_equal(cap[0]->trace, b);
  tm_value *z = help_op(sc, "mul", cap[0], x);
  tm_trace_ref(b);
  tm_graph *gb = help_end(sc, b, &z, 1);
  assert_int_equal(gb->narg, 1);
  assert_int_equal(tm_trace_captures(b, &cap), 1);
  assert_ptr_equal(cap[0], x);
  tm_graph *ga = help_end(sc, a, &x, 1);
  tm_trace_unref(c);
  tm_trace_unref(b);
  tm_graph_unref(ga);
  tm_graph_unref(gb);
  tm_graph_unref(gc);
  help_drop();
  tm_scope_free(sc);
}

static void a_symbolic_tensor_does_not_outlive_its_trace(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS], *in[2];
  int32_t n;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_trace *tr = begin(sc, "first");
  tm_value *x = arg_of(tr, &vec);
  tm_graph_unref(help_end(sc, tr, &x, 1));
  in[0] = in[1] = x;
  const tm_op *add = tm_op_find("add");
  assert_int_equal(tm_apply(sc, add, in, 2, NULL, out, &n, &err), TM_EPRECOND);
  assert_non_null(strstr(err.msg, "\"first\""));
  tm_trace *other = begin(sc, "second");
  assert_int_equal(tm_apply(sc, add, in, 2, NULL, out, &n, &err), TM_EPRECOND);
  tm_trace_abort(sc, other);
  tm_trace_unref(other);
  help_drop();
  tm_scope_free(sc);
}

static void an_eager_mark_hides_a_trace(void **state) {
  (void)state;
  tm_scope *sc;
  assert_ok(tm_scope_new(&sc));
  tm_trace *tr = begin(sc, "f");
  tm_value *c = help_keep(help_scalar(2));
  assert_ok(tm_scope_push_eager(sc));
  assert_null(tm_scope_trace(sc));
  tm_value *four = help_op(sc, "add", c, c);
  tm_scope_pop_eager(sc);
  help_equal(four->t, 1, (const float[]){4});
  assert_ptr_equal(tm_scope_trace(sc), tr);
  tm_scope_unwind(sc, 0);
  assert_null(tm_scope_trace(sc));
  tm_trace_unref(tr);
  help_drop();
  tm_scope_free(sc);
}

static void unwinding_drops_what_came_after_the_mark(void **state) {
  (void)state;
  tm_scope *sc;
  tm_tape *below;
  assert_ok(tm_scope_new(&sc));
  assert_ok(tm_tape_begin(sc, false, &below));
  tm_trace *a = begin(sc, "a");
  int32_t mark = tm_scope_mark(sc);
  tm_tape_stop(below); /* the stack gets shorter below the mark */
  tm_trace *b = begin(sc, "b");
  tm_scope_unwind(sc, mark);
  assert_ptr_equal(tm_scope_trace(sc), a);
  tm_scope_unwind(sc, 0);
  tm_tape_unref(below);
  tm_trace_unref(a);
  tm_trace_unref(b);
  tm_scope_free(sc);
}

static void errors_name_the_op(void **state) {
  (void)state;
  tm_scope *sc;
  tm_value *out[TM_MAX_OUTPUTS], *in[2];
  int32_t n;
  assert_ok(tm_scope_new(&sc));
  in[0] = help_keep(help_value(help_vec(2, (const float[]){1, 2})));
  in[1] = help_keep(help_value(help_vec(3, (const float[]){1, 2, 3})));
  for (int traced = 0; traced < 2; traced++) {
    tm_err err = {0};
    tm_trace *tr = traced ? begin(sc, "f") : NULL;
    assert_int_equal(tm_apply(sc, tm_op_find("add"), in, 2, NULL, out, &n, &err),
                     TM_EINVAL);
    assert_string_equal(err.op, "add");
    tm_err_clear(&err);
    assert_int_equal(tm_apply(sc, tm_op_find("add"), in, 1, NULL, out, &n, &err),
                     TM_EINVAL);
    assert_string_equal(err.op, "add");
    tm_scope_unwind(sc, 0);
    tm_trace_unref(tr);
  }
  help_drop();
  tm_scope_free(sc);
}

static void a_graph_prints_one_line_a_node(void **state) {
  (void)state;
  tm_scope *sc;
  tm_buf b = TM_BUF_INIT(1 << 16);
  assert_ok(tm_scope_new(&sc));
  tm_trace *tr = begin(sc, "f");
  tm_value *x = arg_of(tr, &vec);
  tm_value *y = help_op(sc, "add", x, x);
  tm_graph *g = help_end(sc, tr, &y, 1);
  assert_ok(tm_graph_text(g, &b));
  assert_ok(tm_buf_putc(&b, '\0'));
  assert_string_equal((char *)b.data,
                      "function f\n"
                      "  %0 = arg() -> float32 (?)\n"
                      "  %1 = add(%0, %0) -> float32 (?)\n"
                      "  return %1\n");
  tm_buf_release(&b);
  tm_graph_unref(g);
  help_drop();
  tm_scope_free(sc);
}

static void eager_random_ops_draw_anew_and_repeat_with_the_seed(void **state) {
  (void)state;
  tm_scope *sc;
  float first[2][3];
  assert_ok(tm_scope_new(&sc));
  const tm_op *op = tm_op_find("random.normal");
  for (int run = 0; run < 2; run++) {
    tm_scope_env(sc)->seed = 5;
    tm_scope_env(sc)->closure = 0;
    for (int i = 0; i < 3; i++) {
      tm_attrs a = {.n = 1};
      tm_value *out[TM_MAX_OUTPUTS];
      int32_t n;
      tm_err err = {0};
      assert_ok(tm_attr_set_ints(&a.a[0], TM_ATTR_SHAPE, NULL, 0));
      assert_ok_err(tm_apply(sc, op, NULL, 0, &a, out, &n, &err), &err);
      first[run][i] = *(float *)out[0]->t->v.data;
      tm_value_unref(out[0]);
      tm_attrs_release(&a);
    }
  }
  assert_memory_equal(first[0], first[1], sizeof first[0]);
  assert_true(first[0][0] != first[0][1] && first[0][1] != first[0][2]);
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_tensor_is_one_constant),
      cmocka_unit_test(values_of_outer_traces_are_captured_through_all_levels),
      cmocka_unit_test(a_symbolic_tensor_does_not_outlive_its_trace),
      cmocka_unit_test(an_eager_mark_hides_a_trace),
      cmocka_unit_test(unwinding_drops_what_came_after_the_mark),
      cmocka_unit_test(errors_name_the_op),
      cmocka_unit_test(a_graph_prints_one_line_a_node),
      cmocka_unit_test(eager_random_ops_draw_anew_and_repeat_with_the_seed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
