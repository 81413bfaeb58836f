/* Programs: values, arguments, results, plans, errors, cancellation. */
#include "graph/spans.h"
#include "graph_help.h"

static const tm_type unknown_vec = {TM_F32, {1, {-1}}};

/* f(x) = (x + 1) * x - x */
static tm_graph *polynomial(tm_scope *sc) {
  tm_trace *tr;
  tm_value *x;
  tm_err err = {0};
  assert_ok_err(tm_trace_begin(sc, "poly", &tr, &err), &err);
  assert_ok(tm_trace_arg(tr, &unknown_vec, &x, &err));
  help_keep(x);
  tm_value *one = help_keep(help_scalar(1));
  tm_value *y = help_op(sc, "add", x, one);
  y = help_op(sc, "mul", y, x);
  y = help_op(sc, "sub", y, x);
  return help_end(sc, tr, &y, 1);
}

static void a_program_computes_what_was_traced(void **state) {
  (void)state;
  tm_scope *sc;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_program *p = help_program(polynomial(sc));
  for (int64_t n = 0; n < 40; n++) {
    float in[40], want[40];
    for (int i = 0; i < n; i++) in[i] = (float)i, want[i] = (float)(i * i);
    tm_tensor *x = help_vec(n, in), *out;
    tm_arg_value arg = {x, 0};
    assert_ok_err(tm_program_run(p, &arg, 1, NULL, &help_env, &out, &err), &err);
    help_equal(out, n, want);
    tm_tensor_unref(out);
    tm_tensor_unref(x);
  }
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void wrong_arguments_are_named(void **state) {
  (void)state;
  tm_scope *sc;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_program *p = help_program(polynomial(sc));
  tm_tensor *x = help_tensor(0, NULL, (const float[]){1}), *out;
  tm_arg_value arg[2] = {{x, 0}, {x, 0}};
  assert_int_equal(tm_program_run(p, arg, 2, NULL, &help_env, &out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "takes 1 arguments, got 2"));
  assert_int_equal(tm_program_run(p, arg, 1, NULL, &help_env, &out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "argument 1 is float32"));
  arg[0].t = NULL;
  assert_int_equal(tm_program_run(p, arg, 1, NULL, &help_env, &out, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "must be a tensor"));
  tm_tensor_unref(x);
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void a_warm_plan_allocates_only_results(void **state) {
  (void)state;
  tm_scope *sc;
  tm_step *st;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_program *p = help_program(polynomial(sc));
  assert_ok(tm_step_new(p, &st, &err));
  tm_tensor *x = help_vec(3, (const float[]){1, 2, 3}), *out;
  tm_arg_value arg = {x, 0};
  for (int i = 0; i < 3; i++) {
    tm_read *rd;
    tm_update *up;
    int32_t n;
    bool done;
    struct test_budget two = {.left = 2}; /* the result: a tensor and its storage */
    if (i == 2) tm_mem_hook(test_flaky, &two);
    assert_ok(tm_step_begin(st, &arg, 1, &help_env, &err));
    assert_ok(tm_step_fetch(st, NULL, &err));
    assert_ok(tm_step_reads(st, &rd, &n, &err));
    assert_ok(tm_step_compute(st, NULL, &up, &n, &done, &err));
    tm_mem_hook(NULL, NULL);
    assert_true(done);
    assert_int_equal(tm_step_allocs(st), 0);
  }
  assert_ok(tm_step_outputs(st, &out, &err));
  help_equal(out, 3, (const float[]){1, 4, 9});
  tm_tensor_unref(out);
  tm_tensor_unref(x);
  tm_step_free(st);
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void a_cancelled_run_stops(void **state) {
  (void)state;
  tm_scope *sc;
  tm_cancel cancel = {0};
  tm_run_env env = help_env;
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_program *p = help_program(polynomial(sc));
  tm_tensor *x = help_vec(1, (const float[]){1}), *out;
  tm_arg_value arg = {x, 0};
  env.cancel = &cancel;
  tm_cancel_set(&cancel);
  assert_int_equal(tm_program_run(p, &arg, 1, NULL, &env, &out, &err), TM_ECANCELLED);
  tm_cancel_reset(&cancel);
  assert_ok(tm_program_run(p, &arg, 1, NULL, &env, &out, &err));
  tm_tensor_unref(out);
  tm_tensor_unref(x);
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void an_argument_or_constant_may_be_a_result(void **state) {
  (void)state;
  tm_scope *sc;
  tm_trace *tr;
  tm_value *x, *out[3];
  tm_tensor *t[3];
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  assert_ok(tm_trace_begin(sc, "id", &tr, &err));
  assert_ok(tm_trace_arg(tr, &unknown_vec, &x, &err));
  out[0] = out[2] = help_keep(x);
  out[1] = help_keep(help_scalar(7));
  tm_program *p = help_program(help_end(sc, tr, out, 3));
  tm_tensor *in = help_vec(2, (const float[]){5, 6});
  tm_arg_value arg = {in, 0};
  assert_ok_err(tm_program_run(p, &arg, 1, NULL, &help_env, t, &err), &err);
  help_equal(t[0], 2, (const float[]){5, 6});
  help_equal(t[1], 1, (const float[]){7});
  assert_ptr_equal(t[2], in);
  for (int i = 0; i < 3; i++) tm_tensor_unref(t[i]);
  tm_tensor_unref(in);
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

static void a_run_tells_when_its_ops_ran_where_that_is_asked(void **state) {
  (void)state;
  tm_scope *sc;
  tm_spans *sp;
  tm_run_env env = help_env;
  tm_err err = {0};
  static const char *names[] = {"add", "mul", "sub"};
  assert_int_equal(tm_spans_new(0, &sp), TM_EINVAL);
  assert_ok(tm_spans_new(5, &sp));
  assert_ok(tm_scope_new(&sc));
  tm_program *p = help_program(polynomial(sc));
  tm_tensor *x = help_vec(1, (const float[]){1}), *out;
  tm_arg_value arg = {x, 0};
  env.spans = sp;
  for (int i = 0; i < 2; i++) {
    assert_ok(tm_program_run(p, &arg, 1, NULL, &env, &out, &err));
    tm_tensor_unref(out);
  }
  assert_int_equal(sp->n, 5); /* no more than there is room for */
  assert_int_equal(sp->lost, 1);
  for (int i = 0; i < 5; i++) {
    assert_string_equal(sp->span[i].name, names[i % 3]);
    assert_true(sp->span[i].from <= sp->span[i].to);
    if (i) assert_true(sp->span[i - 1].to <= sp->span[i].from);
  }
  env.spans = NULL;
  assert_ok(tm_program_run(p, &arg, 1, NULL, &env, &out, &err));
  assert_int_equal(sp->lost, 1);
  tm_tensor_unref(out);
  tm_spans_free(sp);
  tm_tensor_unref(x);
  tm_program_unref(p);
  help_drop();
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_program_computes_what_was_traced),
      cmocka_unit_test(wrong_arguments_are_named),
      cmocka_unit_test(a_warm_plan_allocates_only_results),
      cmocka_unit_test(a_cancelled_run_stops),
      cmocka_unit_test(an_argument_or_constant_may_be_a_result),
      cmocka_unit_test(a_run_tells_when_its_ops_ran_where_that_is_asked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
