/* Levels: what travels together, and in which order things happen. */
#include "graph_help.h"

static const int64_t vec2[] = {2}, table[] = {4, 2};

struct rig {
  tm_scope *sc;
  help_state h;
  tm_trace *tr;
  tm_value *it;
  tm_program *p;
};

static void rig_open(struct rig *r) {
  tm_err err = {0};
  const tm_type ids = {TM_I64, {1, {-1}}};
  memset(r, 0, sizeof *r);
  help_open(&r->h);
  r->h.var[1] = help_vec(2, (const float[]){1, 2});
  r->h.var[2] = help_tensor(2, table, (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  r->h.var[3] = help_vec(2, (const float[]){10, 20});
  assert_ok(tm_scope_new(&r->sc));
  assert_ok(tm_trace_begin(r->sc, "step", &r->tr, &err));
  assert_ok(tm_trace_iterator_arg(r->tr, &ids, 1, &r->it, &err));
  help_keep(r->it);
}

static void rig_close(struct rig *r) {
  tm_program_unref(r->p);
  help_close(&r->h);
  help_drop();
  tm_scope_free(r->sc);
}

static tm_value *rig_next(struct rig *r) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t n;
  tm_err err = {0};
  assert_ok_err(tm_apply_next(r->sc, r->it, out, &n, &err), &err);
  assert_int_equal(n, 1);
  return help_keep(out[0]);
}

static tm_tensor *rig_run(struct rig *r, tm_value *result) {
  tm_err err = {0};
  tm_tensor *out[1] = {NULL};
  tm_arg_value arg = {NULL, 9};
  r->p = help_program(help_end(r->sc, r->tr, &result, result ? 1 : 0));
  assert_ok_err(tm_program_run(r->p, &arg, 1, &r->h.state, &help_env, out, &err), &err);
  return out[0];
}

static void ids_of_the_batch_cost_one_exchange(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *ids = rig_next(&r);
  ids = help_op(r.sc, "minimum", ids, ids);
  tm_value *rows = help_gather(r.sc, ids, 2, 2, table);
  tm_value *w = help_var(r.sc, 1, 1, vec2);
  tm_value *y = help_op(r.sc, "mul", rows, w);
  help_assign(r.sc, w, "add", 3, 1, vec2);
  tm_tensor *t = rig_run(&r, y);
  help_equal(t, 4, (const float[]){0, 2, 2, 6});
  assert_string_equal(r.h.log, "G2 R1 | U3 | ");
  assert_int_equal(tm_program_levels(r.p), 1);
  assert_true(tm_program_fetches(r.p));
  tm_tensor_unref(t);
  rig_close(&r);
}

static void a_read_after_an_assign_sees_it(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *before = help_var(r.sc, 1, 1, vec2);
  help_assign(r.sc, help_keep(help_value(help_vec(2, (const float[]){1, 1}))), "add", 1,
              1, vec2);
  tm_value *after = help_var(r.sc, 1, 1, vec2);
  tm_tensor *t = rig_run(&r, help_op(r.sc, "mul", before, after));
  help_equal(t, 2, (const float[]){2, 6});
  assert_string_equal(r.h.log, "R1 | U1 R1 | ");
  tm_tensor_unref(t);
  rig_close(&r);
}

static void reads_of_other_variables_share_the_first_level(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *a = help_var(r.sc, 1, 1, vec2);
  help_assign(r.sc, a, "set", 1, 1, vec2);
  tm_value *b = help_var(r.sc, 3, 1, vec2);
  help_assign(r.sc, b, "add", 1, 1, vec2);
  tm_tensor *t = rig_run(&r, b);
  assert_string_equal(r.h.log, "R1 R3 | U1 U1 | ");
  help_equal(r.h.var[1], 2, (const float[]){11, 22});
  tm_tensor_unref(t);
  rig_close(&r);
}

static void computed_ids_cost_a_second_read(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *first = help_gather(r.sc, rig_next(&r), 2, 2, table);
  tm_attrs a = {.n = 1};
  tm_value *ids;
  int32_t n;
  tm_err err = {0};
  tm_attr_set_int(&a.a[0], TM_ATTR_DTYPE, TM_I64);
  assert_ok_err(tm_apply(r.sc, tm_op_find("cast"), &first, 1, &a, &ids, &n, &err),
                &err);
  help_keep(ids);
  tm_value *second = help_gather(r.sc, ids, 2, 2, table);
  tm_tensor *t = rig_run(&r, second);
  help_equal(t, 8, (const float[]){0, 1, 2, 3, 4, 5, 6, 7});
  assert_string_equal(r.h.log, "G2 | G2 | ");
  tm_tensor_unref(t);
  rig_close(&r);
}

static void a_thousand_adds_on_one_step_count(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  help_assign(r.sc, help_keep(help_value(help_vec(2, (const float[]){1, 1}))), "add", 1,
              1, vec2);
  tm_value *v = help_var(r.sc, 1, 1, vec2);
  tm_tensor *t = rig_run(&r, v);
  tm_arg_value arg = {NULL, 9};
  for (int i = 0; i < 1000; i++) {
    tm_err err = {0};
    tm_tensor_unref(t);
    assert_ok_err(tm_program_run(r.p, &arg, 1, &r.h.state, &help_env, &t, &err), &err);
    help_equal(t, 2, (const float[]){(float)(i + 3), (float)(i + 4)});
    r.h.log[0] = 0;
  }
  tm_tensor_unref(t);
  rig_close(&r);
}

static void plans_follow_the_batch_size(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *rows = help_gather(r.sc, rig_next(&r), 2, 2, table);
  tm_value *y = help_op(r.sc, "add", rows, rows);
  tm_tensor *t = rig_run(&r, y);
  tm_tensor_unref(t);
  tm_arg_value arg = {NULL, 9};
  for (int i = 0; i < 60; i++) {
    tm_err err = {0};
    r.h.rows = i % 20;
    r.h.batch = 0;
    r.h.log[0] = 0;
    assert_ok_err(tm_program_run(r.p, &arg, 1, &r.h.state, &help_env, &t, &err), &err);
    assert_int_equal(t->v.shape.dim[0], r.h.rows);
    for (int64_t k = 0; k < r.h.rows * 2; k++)
      assert_true(((float *)t->v.data)[k] == (float)(2 * (k % 8)));
    tm_tensor_unref(t);
  }
  rig_close(&r);
}

static void the_end_of_data_is_out_of_range(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *rows = help_gather(r.sc, rig_next(&r), 2, 2, table);
  tm_tensor *t = rig_run(&r, rows);
  tm_arg_value arg = {NULL, 9};
  tm_err err = {0};
  tm_tensor_unref(t);
  r.h.end = 1;
  assert_int_equal(tm_program_run(r.p, &arg, 1, &r.h.state, &help_env, &t, &err),
                   TM_ERANGE);
  assert_string_equal(err.op, "iterator_next");
  rig_close(&r);
}

static void a_bad_id_and_a_lost_ps_are_errors(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *ids = rig_next(&r);
  tm_value *rows = help_gather(r.sc, help_op(r.sc, "add", ids, ids), 2, 2, table);
  tm_tensor *t = rig_run(&r, rows);
  tm_arg_value arg = {NULL, 9};
  tm_err err = {0};
  tm_tensor_unref(t);
  r.h.batch = 3;
  assert_int_equal(tm_program_run(r.p, &arg, 1, &r.h.state, &help_env, &t, &err),
                   TM_EINVAL);
  r.h.fail = true;
  assert_int_equal(tm_program_run(r.p, &arg, 1, &r.h.state, &help_env, &t, &err),
                   TM_EUNAVAILABLE);
  rig_close(&r);
}

/* An in-place UPDATE needs the variable unread. */
static void a_dense_read_is_let_go_before_its_update_travels(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *w = help_var(r.sc, 1, 1, vec2);
  help_assign(r.sc, help_op(r.sc, "mul", w, w), "sub", 1, 1, vec2);
  tm_value *none = NULL;
  r.p = help_program(help_end(r.sc, r.tr, &none, 0));
  tm_step *st;
  tm_err err = {0};
  tm_arg_value arg = {NULL, 9};
  tm_read *rd;
  tm_update *up;
  int32_t nrd, nup;
  bool done;
  assert_ok(tm_step_new(r.p, &st, &err));
  assert_ok(tm_step_begin(st, &arg, 1, &help_env, &err));
  assert_ok(tm_step_fetch(st, &r.h.state, &err));
  assert_ok(tm_step_reads(st, &rd, &nrd, &err));
  assert_int_equal(nrd, 1);
  assert_ok(r.h.state.exchange(&r.h.state, NULL, 0, rd, nrd, &err));
  assert_int_equal(atomic_load(&r.h.var[1]->refs), 2);
  assert_ok(tm_step_compute(st, &r.h.state, &up, &nup, &done, &err));
  assert_true(done);
  assert_int_equal(nup, 1);
  assert_int_equal(atomic_load(&r.h.var[1]->refs), 1);
  assert_ok(r.h.state.exchange(&r.h.state, up, nup, NULL, 0, &err));
  help_equal(r.h.var[1], 2, (const float[]){0, -2});
  tm_step_free(st);
  rig_close(&r);
}

static tm_status torture(void *ud) {
  struct rig *r = ud;
  tm_arg_value arg = {NULL, 9};
  tm_tensor *t;
  tm_program *p;
  tm_graph *g = (tm_graph *)(uintptr_t)tm_program_graph(r->p);
  TM_TRY(tm_program_new(g, &p, NULL));
  tm_status s = TM_OK;
  for (int i = 0; i < 2 && !s; i++) {
    s = tm_program_run(p, &arg, 1, &r->h.state, &help_env, &t, NULL);
    if (!s) tm_tensor_unref(t);
  }
  tm_program_unref(p);
  return s;
}

static void every_allocation_of_a_run_may_fail(void **state) {
  (void)state;
  struct rig r;
  rig_open(&r);
  tm_value *rows = help_gather(r.sc, rig_next(&r), 2, 2, table);
  tm_value *w = help_var(r.sc, 1, 1, vec2);
  tm_value *y = help_op(r.sc, "mul", rows, w);
  help_assign(r.sc, help_sum(r.sc, help_op(r.sc, "mul", y, y)), "set", 4, 0, NULL);
  r.h.var[4] = help_tensor(0, NULL, (const float[]){0});
  tm_tensor *t = rig_run(&r, y);
  tm_tensor_unref(t);
  assert_true(test_torture(torture, &r) > 5);
  rig_close(&r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ids_of_the_batch_cost_one_exchange),
      cmocka_unit_test(a_read_after_an_assign_sees_it),
      cmocka_unit_test(reads_of_other_variables_share_the_first_level),
      cmocka_unit_test(computed_ids_cost_a_second_read),
      cmocka_unit_test(a_thousand_adds_on_one_step_count),
      cmocka_unit_test(plans_follow_the_batch_size),
      cmocka_unit_test(the_end_of_data_is_out_of_range),
      cmocka_unit_test(a_bad_id_and_a_lost_ps_are_errors),
      cmocka_unit_test(a_dense_read_is_let_go_before_its_update_travels),
      cmocka_unit_test(every_allocation_of_a_run_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
