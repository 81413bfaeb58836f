/* Signatures, the op table, completion of attributes. */
#include "graph/infer.h"
#include "graph/sig.h"
#include "test.h"

static void a_signature_declares_inputs_and_attributes(void **state) {
  (void)state;
  tm_sig s;
  tm_sig_pool pool;
  tm_err err = {0};
  assert_ok_err(
      tm_sig_parse("x, bias?; axis:axes?, size:ints=[2, 3], mode:str='a, b' | "
                   "rate:float=0.5, on:bool=true, dtype:dtype=int64, n:int",
                   &s, &pool, &err),
      &err);
  assert_int_equal(s.min_in, 1);
  assert_int_equal(s.max_in, 2);
  assert_string_equal(s.in_name[1], "bias");
  assert_int_equal(s.nattr, 7);
  assert_true(s.attr[0].optional && !s.attr[0].named_only);
  assert_int_equal(s.attr[1].dflt.n, 2);
  assert_int_equal(s.attr[1].dflt.u.is[1], 3);
  assert_string_equal(s.attr[2].dflt.u.s, "a, b");
  assert_true(s.attr[3].named_only && s.attr[3].dflt.u.f == 0.5);
  assert_true(s.attr[4].dflt.u.b);
  assert_int_equal(s.attr[5].dflt.u.i, TM_I64);
  assert_true(!s.attr[6].optional && s.attr[6].dflt.kind == TM_ATTR_NONE);
  assert_ok(tm_sig_parse("xs...; axis:axis=-1", &s, &pool, &err));
  assert_true(s.list && s.min_in == 1 && s.max_in == TM_MAX_LIST);
  assert_int_equal(s.attr[0].dflt.u.i, -1);
  assert_ok(tm_sig_parse("| a:int?", &s, &pool, &err));
  assert_int_equal(s.max_in, 0);
}

static void wrong_signatures_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"x y",          "x,",          "x?, y",
                                    "xs..., y",     "; a",         "; a:what",
                                    "; a:int=",     "; a:ints=[1", "; a:str='x",
                                    "; a:tensor=1", "x; a:int;",   "; a:dtype=int"};
  tm_sig s;
  tm_sig_pool pool;
  for (size_t i = 0; i < TM_COUNT(bad); i++) {
    tm_err err = {0};
    if (tm_sig_parse(bad[i], &s, &pool, &err) == TM_OK)
      fail_msg("\"%s\" passed", bad[i]);
    assert_non_null(strstr(err.msg, "signature"));
  }
}

static tm_status infer_none(tm_infer *c) {
  (void)c;
  return TM_OK;
}
static const tm_op mine = {
    .name = "test.mine",
    .sig = "x; axis:axes?, k:int=3, f:float=1, s:str=abc, t:dtype, shape:shape=[]",
    .infer = infer_none};
static const tm_op again = {.name = "test.mine", .sig = "", .infer = infer_none};
static const tm_op wrong = {.name = "test.wrong", .sig = "; a", .infer = infer_none};

static void an_op_is_added_once_and_found_by_name(void **state) {
  (void)state;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok_err(tm_ops_init(&err), &err);
  int32_t n = tm_op_count();
  assert_true(n > 100);
  assert_ok_err(tm_op_add(&mine, &err), &err);
  assert_ptr_equal(tm_op_find("test.mine"), &mine);
  assert_ptr_equal(tm_op_at(n), &mine);
  assert_int_equal(tm_op_attr_index(&mine, "f"), 2);
  assert_int_equal(tm_op_attr_index(&mine, "g"), -1);
  assert_int_equal(tm_op_add(&again, &err), TM_EEXISTS);
  assert_int_equal(tm_op_add(&wrong, &err), TM_EINVAL);
  assert_null(tm_op_find("test.wrong"));
  assert_null(tm_op_at(n + 1));
  for (int32_t i = 0; i < n; i++)
    assert_ptr_equal(tm_op_find(tm_op_at(i)->name), tm_op_at(i));
}

static void every_op_says_what_it_does(void **state) {
  (void)state;
  for (int32_t i = 0; i < tm_op_count(); i++) {
    const tm_op *op = tm_op_at(i);
    if (strncmp(op->name, "test.", 5) == 0) continue;
    if (!op->help || strlen(op->help) < 3) fail_msg("%s has no help", op->name);
    bool other = op->flags & (TM_OP_STATE | TM_OP_SUBGRAPH | TM_OP_VIEW);
    if (!op->kernel && !other && strcmp(op->name, "arg") != 0)
      fail_msg("%s has no kernel", op->name);
  }
}

static void attributes_are_completed_and_checked(void **state) {
  (void)state;
  tm_attrs a = {0};
  tm_err err = {0};
  int64_t live = tm_mem_live();
  assert_int_equal(tm_op_complete_attrs(&mine, &a, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "argument \"t\" (dtype) is missing"));
  tm_attrs_release(&a);
  memset(&a, 0, sizeof a);
  a.n = 5;
  tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, 1);
  tm_attr_set_int(&a.a[2], TM_ATTR_INT, 2);
  tm_attr_set_int(&a.a[4], TM_ATTR_DTYPE, TM_F64);
  assert_ok_err(tm_op_complete_attrs(&mine, &a, &err), &err);
  assert_true(a.a[0].kind == TM_ATTR_AXES && a.a[0].n == 1 && a.a[0].u.is[0] == 1);
  assert_int_equal(a.a[1].u.i, 3);
  assert_true(a.a[2].kind == TM_ATTR_FLOAT && a.a[2].u.f == 2);
  assert_string_equal(a.a[3].u.s, "abc");
  assert_true(a.a[5].kind == TM_ATTR_SHAPE && a.a[5].n == 0);
  tm_attrs b;
  assert_ok(tm_attrs_copy(&b, &a));
  assert_true(tm_attrs_equal(&a, &b) && tm_attrs_hash(&a) == tm_attrs_hash(&b));
  tm_attr_set_float(&b.a[2], 3);
  assert_false(tm_attrs_equal(&a, &b));
  tm_attr_set_bool(&b.a[1], true);
  assert_int_equal(tm_op_complete_attrs(&mine, &b, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "must be of kind int, not bool"));
  tm_attrs_release(&a);
  tm_attrs_release(&b);
  assert_int_equal(tm_mem_live(), live);
}

static tm_status copy_attrs(void *ud) {
  tm_attrs a = {0}, b;
  (void)ud;
  a.n = 3;
  tm_status s = tm_attr_set_ints(&a.a[0], TM_ATTR_INTS, (int64_t[]){1, 2}, 2);
  if (!s) s = tm_attr_set_str(&a.a[1], "text", 4);
  if (!s) s = tm_attr_set_floats(&a.a[2], (double[]){1}, 1);
  if (!s) s = tm_attrs_copy(&b, &a);
  if (!s) tm_attrs_release(&b);
  tm_attrs_release(&a);
  return s;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  assert_true(test_torture(copy_attrs, NULL) >= 6);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_signature_declares_inputs_and_attributes),
      cmocka_unit_test(wrong_signatures_are_refused),
      cmocka_unit_test(an_op_is_added_once_and_found_by_name),
      cmocka_unit_test(every_op_says_what_it_does),
      cmocka_unit_test(attributes_are_completed_and_checked),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
