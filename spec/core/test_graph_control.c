/* cond and while_loop: eager and traced, with state inside. */
#include "graph_help.h"

static const int64_t vec2[] = {2};
static const tm_type scalar = {TM_F32, {0, {0}}}, boolean = {TM_BOOL, {0, {0}}};

struct rig {
  tm_scope *sc;
  help_state h;
  tm_trace *tr;
};

static void rig_open(struct rig *r) {
  help_open(&r->h);
  r->h.var[1] = help_vec(2, (const float[]){1, 2});
  r->h.var[2] = help_vec(2, (const float[]){3, 4});
  assert_ok(tm_scope_new(&r->sc));
  tm_scope_set_state(r->sc, &r->h.state);
}

static void rig_close(struct rig *r) {
  help_close(&r->h);
  help_drop();
  tm_scope_free(r->sc);
}

static tm_trace *begin(struct rig *r, const char *name) {
  tm_trace *tr;
  tm_err err = {0};
  assert_ok_err(tm_trace_begin(r->sc, name, &tr, &err), &err);
  return tr;
}

static tm_value *arg_of(tm_trace *tr, const tm_type *t) {
  tm_value *v;
  tm_err err = {0};
  assert_ok_err(tm_trace_arg(tr, t, &v, &err), &err);
  return help_keep(v);
}

typedef tm_value *(*branch_fn)(struct rig *r, void *ud);

/* cond(p, f(), g()) as a binding does it. */
static tm_value *cond(struct rig *r, tm_value *p, branch_fn f, branch_fn g, void *ud) {
  branch_fn fn[2] = {f, g};
  tm_trace *tr[2];
  tm_graph *br[2];
  tm_value **cap[2], *out[TM_MAX_OUTPUTS];
  int32_t n[2], nout;
  tm_err err = {0};
  for (int k = 0; k < 2; k++) {
    tr[k] = begin(r, k ? "no" : "yes");
    tm_value *y = fn[k](r, ud);
    tm_trace_ref(tr[k]);
    br[k] = help_end(r->sc, tr[k], &y, y ? 1 : 0);
    n[k] = tm_trace_captures(tr[k], &cap[k]);
  }
  assert_ok_err(tm_apply_cond(r->sc, p, br[0], cap[0], n[0], br[1], cap[1], n[1], out,
                              &nout, &err),
                &err);
  for (int k = 0; k < 2; k++) {
    tm_graph_unref(br[k]);
    tm_trace_unref(tr[k]);
  }
  return nout ? help_keep(out[0]) : NULL;
}

static tm_tensor *truth(bool b) {
  tm_shape s = tm_shape_scalar();
  tm_tensor *t;
  tm_err err = {0};
  assert_ok(tm_tensor_new(TM_BOOL, &s, &t, &err));
  *(uint8_t *)t->v.data = b;
  return t;
}

static tm_value *square(struct rig *r, void *x) { return help_op(r->sc, "mul", x, x); }
static tm_value *negate(struct rig *r, void *x) {
  return help_op(r->sc, "neg", x, NULL);
}

static void cond_runs_the_branch_that_was_taken(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  tm_trace *tr = begin(&r, "f");
  tm_value *p = arg_of(tr, &boolean), *x = arg_of(tr, &scalar);
  tm_value *y = cond(&r, p, square, negate, x);
  tm_program *pr = help_program(help_end(r.sc, tr, &y, 1));
  for (int b = 0; b < 2; b++) {
    tm_tensor *t = truth(b), *in = help_tensor(0, NULL, (const float[]){3}), *out;
    tm_arg_value arg[2] = {{t, 0}, {in, 0}};
    assert_ok_err(tm_program_run(pr, arg, 2, NULL, &help_env, &out, &err), &err);
    help_equal(out, 1, (const float[]){b ? 9 : -3});
    tm_tensor_unref(out), tm_tensor_unref(t), tm_tensor_unref(in);
  }
  tm_program_unref(pr);
  rig_close(&r);
}

static tm_value *identity(struct rig *r, void *x) {
  (void)r;
  return x;
}

static void a_branch_may_return_what_it_was_given(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  tm_trace *tr = begin(&r, "f");
  tm_value *p = arg_of(tr, &boolean), *x = arg_of(tr, &scalar);
  tm_value *y = help_op(r.sc, "add", x, x);
  y = cond(&r, p, identity, negate, y);
  tm_program *pr = help_program(help_end(r.sc, tr, &y, 1));
  tm_tensor *t = truth(true), *out[3];
  for (int k = 0; k < 3; k++) {
    tm_tensor *in = help_tensor(0, NULL, (const float[]){(float)k});
    tm_arg_value arg[2] = {{t, 0}, {in, 0}};
    assert_ok_err(tm_program_run(pr, arg, 2, NULL, &help_env, &out[k], &err), &err);
    tm_tensor_unref(in);
  }
  for (int k = 0; k < 3; k++) {
    help_equal(out[k], 1, (const float[]){(float)(2 * k)});
    tm_tensor_unref(out[k]);
  }
  tm_tensor_unref(t);
  tm_program_unref(pr);
  rig_close(&r);
}

static tm_value *assign_and_read(struct rig *r, void *ud) {
  (void)ud;
  help_assign(r->sc, help_keep(help_value(help_vec(2, (const float[]){1, 1}))), "add",
              1, 1, vec2);
  return help_var(r->sc, 1, 1, vec2);
}
static tm_value *read_other(struct rig *r, void *ud) {
  (void)ud;
  return help_var(r->sc, 2, 1, vec2);
}

static void state_in_a_branch_keeps_program_order(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  tm_trace *tr = begin(&r, "f");
  tm_value *p = arg_of(tr, &boolean);
  help_assign(r.sc, help_keep(help_value(help_vec(2, (const float[]){5, 5}))), "set", 1,
              1, vec2);
  tm_value *inside = cond(&r, p, assign_and_read, read_other, NULL);
  tm_value *after = help_var(r.sc, 1, 1, vec2);
  tm_value *res[2] = {inside, after};
  tm_program *pr = help_program(help_end(r.sc, tr, res, 2));
  tm_tensor *t = truth(true), *out[2];
  tm_arg_value arg = {t, 0};
  assert_ok_err(tm_program_run(pr, &arg, 1, &r.h.state, &help_env, out, &err), &err);
  assert_string_equal(r.h.log, "U1 | U1 R1 | R1 | ");
  help_equal(out[0], 2, (const float[]){6, 6});
  help_equal(out[1], 2, (const float[]){6, 6});
  tm_tensor_unref(out[0]), tm_tensor_unref(out[1]), tm_tensor_unref(t);
  tm_program_unref(pr);
  rig_close(&r);
}

/* while x < limit: x = x * 2, count = count + 1 */
static void a_loop_runs_until_its_condition_fails(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  for (int traced = 0; traced < 2; traced++) {
    tm_trace *tr = traced ? begin(&r, "f") : NULL;
    tm_value *var[2] = {help_keep(help_scalar(1)), help_keep(help_scalar(0))};
    tm_value *limit = traced ? arg_of(tr, &scalar) : help_keep(help_scalar(100));
    tm_trace *tc = begin(&r, "cond");
    tm_value *cx = arg_of(tc, &scalar);
    (void)arg_of(tc, &scalar);
    tm_value *more = help_op(r.sc, "less", cx, limit);
    tm_trace_ref(tc);
    tm_graph *gc = help_end(r.sc, tc, &more, 1);
    tm_trace *tb = begin(&r, "body");
    tm_value *bx = arg_of(tb, &scalar), *bn = arg_of(tb, &scalar);
    tm_value *next[2] = {help_op(r.sc, "add", bx, bx),
                         help_op(r.sc, "add", bn, help_keep(help_scalar(1)))};
    tm_trace_ref(tb);
    tm_graph *gb = help_end(r.sc, tb, next, 2);
    tm_value **ccap, **bcap, *out[TM_MAX_OUTPUTS];
    int32_t nc = tm_trace_captures(tc, &ccap), nb = tm_trace_captures(tb, &bcap);
    assert_ok_err(tm_apply_while(r.sc, gc, ccap, nc, gb, bcap, nb, var, 2, out, &err),
                  &err);
    help_keep(out[0]), help_keep(out[1]);
    tm_trace_unref(tc), tm_trace_unref(tb);
    tm_graph_unref(gc), tm_graph_unref(gb);
    if (!traced) {
      help_equal(out[0]->t, 1, (const float[]){128});
      help_equal(out[1]->t, 1, (const float[]){7});
      continue;
    }
    tm_program *p = help_program(help_end(r.sc, tr, out, 2));
    tm_tensor *in = help_tensor(0, NULL, (const float[]){1000}), *t[2];
    tm_arg_value arg = {in, 0};
    assert_ok_err(tm_program_run(p, &arg, 1, NULL, &help_env, t, &err), &err);
    help_equal(t[0], 1, (const float[]){1024});
    help_equal(t[1], 1, (const float[]){10});
    tm_tensor_unref(t[0]), tm_tensor_unref(t[1]), tm_tensor_unref(in);
    tm_program_unref(p);
  }
  rig_close(&r);
}

/* while x < 8: x = x + v; a variable that the loop leaves alone is read once. */
static void a_loop_reads_what_it_does_not_assign_once(void **state) {
  (void)state;
  for (int assigns = 0; assigns < 2; assigns++) {
    struct rig r;
    tm_err err = {0};
    const tm_type vec = {TM_F32, {1, {2}}};
    rig_open(&r);
    tm_trace *tr = begin(&r, "f");
    tm_value *var = help_keep(help_value(help_vec(2, (const float[]){0, 0})));
    tm_value *zero = help_op(r.sc, "sub", var, var); /* a capture behind the READ */
    tm_trace *tc = begin(&r, "cond");
    tm_value *more = help_op(r.sc, "less", help_sum(r.sc, arg_of(tc, &vec)),
                             help_keep(help_scalar(8)));
    tm_trace_ref(tc);
    tm_graph *gc = help_end(r.sc, tc, &more, 1);
    tm_trace *tb = begin(&r, "body");
    tm_value *x = arg_of(tb, &vec), *v = help_var(r.sc, 1, 1, vec2);
    tm_value *next = help_op(r.sc, "add", help_op(r.sc, "add", x, v), zero);
    if (assigns) help_assign(r.sc, next, "set", 1, 1, vec2);
    tm_trace_ref(tb);
    tm_graph *gb = help_end(r.sc, tb, &next, 1);
    tm_value **ccap, **bcap, *out[TM_MAX_OUTPUTS];
    int32_t nc = tm_trace_captures(tc, &ccap), nb = tm_trace_captures(tb, &bcap);
    assert_ok_err(tm_apply_while(r.sc, gc, ccap, nc, gb, bcap, nb, &var, 1, out, &err),
                  &err);
    help_keep(out[0]);
    tm_trace_unref(tc), tm_trace_unref(tb);
    tm_graph_unref(gc), tm_graph_unref(gb);
    tm_program *p = help_program(help_end(r.sc, tr, out, 1));
    tm_tensor *t;
    assert_ok_err(tm_program_run(p, NULL, 0, &r.h.state, &help_env, &t, &err), &err);
    help_equal(t, 2, assigns ? (const float[]){4, 8} : (const float[]){3, 6});
    assert_string_equal(r.h.log, assigns ? "R1 | U1 | R1 | U1 | R1 | U1 | " : "R1 | ");
    tm_tensor_unref(t);
    tm_program_unref(p);
    rig_close(&r);
  }
}

static void branches_must_agree(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  tm_trace *tr = begin(&r, "f");
  tm_value *p = arg_of(tr, &boolean), *out[TM_MAX_OUTPUTS];
  tm_graph *g[2];
  int32_t n;
  for (int k = 0; k < 2; k++) {
    tm_trace *t = begin(&r, "branch");
    tm_value *y[2] = {help_keep(help_scalar(1)), help_keep(help_scalar(1))};
    g[k] = help_end(r.sc, t, y, k + 1);
  }
  assert_int_equal(tm_apply_cond(r.sc, p, g[0], NULL, 0, g[1], NULL, 0, out, &n, &err),
                   TM_EINVAL);
  assert_non_null(strstr(err.msg, "1 and 2 results"));
  tm_graph_unref(g[0]), tm_graph_unref(g[1]);
  tm_scope_unwind(r.sc, 0);
  tm_trace_unref(tr);
  rig_close(&r);
}

/* d/dx cond(p, x * x * w, -x), and by the variable w that only one branch reads. */
static tm_value *square_w(struct rig *r, void *x) {
  tm_value *w = help_var(r->sc, 1, 1, vec2);
  return help_op(r->sc, "mul", help_op(r->sc, "mul", x, x), w);
}
static tm_value *negate_ones(struct rig *r, void *x) {
  tm_value *one = help_keep(help_value(help_vec(2, (const float[]){1, 1})));
  return help_op(r->sc, "mul", help_op(r->sc, "neg", x, NULL), one);
}

static void gradients_flow_through_the_branch_that_was_taken(void **state) {
  (void)state;
  struct rig r;
  tm_err err = {0};
  rig_open(&r);
  tm_trace *tr = begin(&r, "f");
  tm_value *p = arg_of(tr, &boolean), *x = arg_of(tr, &scalar);
  tm_tape *tp;
  assert_ok(tm_tape_begin(r.sc, false, &tp));
  tm_tape_watch(tp, x);
  tm_value *y = help_sum(r.sc, cond(&r, p, square_w, negate_ones, x));
  tm_grad g[2];
  tm_source src[2] = {{x, 0}, {NULL, 1}};
  assert_ok_err(tm_tape_gradient(tp, y, NULL, src, 2, g, &err), &err);
  tm_tape_unref(tp);
  assert_non_null(g[0].dense);
  assert_non_null(g[1].dense);
  tm_value *res[2] = {g[0].dense, g[1].dense};
  tm_program *pr = help_program(help_end(r.sc, tr, res, 2));
  tm_grad_release(&g[0]), tm_grad_release(&g[1]);
  for (int b = 0; b < 2; b++) {
    tm_tensor *t = truth(b), *in = help_tensor(0, NULL, (const float[]){3}), *out[2];
    tm_arg_value arg[2] = {{t, 0}, {in, 0}};
    assert_ok_err(tm_program_run(pr, arg, 2, &r.h.state, &help_env, out, &err), &err);
    help_equal(out[0], 1, (const float[]){b ? 18 : -2});
    help_equal(out[1], 2, b ? (const float[]){9, 9} : (const float[]){0, 0});
    tm_tensor_unref(out[0]), tm_tensor_unref(out[1]);
    tm_tensor_unref(t), tm_tensor_unref(in);
  }
  tm_program_unref(pr);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(cond_runs_the_branch_that_was_taken),
      cmocka_unit_test(a_branch_may_return_what_it_was_given),
      cmocka_unit_test(state_in_a_branch_keeps_program_order),
      cmocka_unit_test(a_loop_runs_until_its_condition_fails),
      cmocka_unit_test(a_loop_reads_what_it_does_not_assign_once),
      cmocka_unit_test(branches_must_agree),
      cmocka_unit_test(gradients_flow_through_the_branch_that_was_taken),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
