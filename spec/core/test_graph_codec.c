/* Graphs as bytes: what goes out comes back, what is broken is refused. */
#include "graph_help.h"

static const int64_t vec2[] = {2};

/* Arguments, constants, state, attributes of several kinds, a branch. */
static tm_graph *sample(tm_scope *sc) {
  tm_trace *tr, *br[2];
  tm_value *x, *it, *p, *out[TM_MAX_OUTPUTS], **cap[2];
  int32_t n;
  tm_err err = {0};
  const tm_type tx = {TM_F32, {1, {-1}}}, tp = {TM_BOOL, {0, {0}}};
  const tm_type elem[2] = {{TM_I64, {1, {-1}}}, {TM_STRING, {0, {0}}}};
  tm_graph *g[2];
  assert_ok(tm_trace_begin(sc, "sample", &tr, &err));
  assert_ok(tm_trace_arg(tr, &tx, &x, &err));
  assert_ok(tm_trace_arg(tr, &tp, &p, &err));
  assert_ok(tm_trace_iterator_arg(tr, elem, 2, &it, &err));
  help_keep(x), help_keep(p), help_keep(it);
  assert_ok_err(tm_apply_next(sc, it, out, &n, &err), &err);
  help_keep(out[0]), help_keep(out[1]);
  for (int k = 0; k < 2; k++) {
    assert_ok(tm_trace_begin(sc, k ? "no" : "yes", &br[k], &err));
    tm_value *y = help_op(sc, k ? "add" : "mul", x, help_keep(help_scalar(3)));
    tm_trace_ref(br[k]);
    g[k] = help_end(sc, br[k], &y, 1);
    (void)tm_trace_captures(br[k], &cap[k]);
  }
  assert_ok_err(tm_apply_cond(sc, p, g[0], cap[0], 1, g[1], cap[1], 1, out, &n, &err),
                &err);
  tm_value *y = help_keep(out[0]);
  help_assign(sc, help_var(sc, 1, 1, vec2), "add", 1, 1, vec2);
  y = help_sum(sc, y);
  for (int k = 0; k < 2; k++) tm_graph_unref(g[k]), tm_trace_unref(br[k]);
  return help_end(sc, tr, &y, 1);
}

static void a_graph_survives_the_wire(void **state) {
  (void)state;
  tm_scope *sc;
  tm_graph *back;
  tm_buf b = TM_BUF_INIT(1 << 20), c = TM_BUF_INIT(1 << 20);
  tm_err err = {0};
  assert_ok(tm_scope_new(&sc));
  tm_graph *g = sample(sc);
  assert_ok(tm_graph_pack(g, &b));
  assert_ok_err(tm_graph_unpack(b.data, b.len, &back, &err), &err);
  assert_ok(tm_graph_pack(back, &c));
  assert_int_equal(b.len, c.len);
  assert_memory_equal(b.data, c.data, b.len);
  assert_memory_equal(g->hash, back->hash, sizeof g->hash);
  assert_int_equal(back->narg, 3);
  assert_true(back->arg[2].iterator);
  assert_int_equal(back->arg[2].nelem, 2);
  tm_graph_unref(back);
  tm_graph_unref(g);
  tm_buf_release(&b);
  tm_buf_release(&c);
  help_drop();
  tm_scope_free(sc);
}

static uint64_t other_uid(void *ud, uint64_t was) {
  return was == 1 ? *(uint64_t *)ud : 0;
}

static void variables_are_exchanged_and_strange_ones_refused(void **state) {
  (void)state;
  tm_scope *sc;
  tm_graph *back;
  tm_buf b = TM_BUF_INIT(1 << 20);
  tm_err err = {0};
  uint64_t now = UINT64_C(1) << 63, *uids, n_uid;
  size_t n;
  assert_ok(tm_scope_new(&sc));
  tm_graph *g = sample(sc);
  assert_ok(tm_graph_pack(g, &b));
  assert_ok_err(tm_graph_unpack_as(b.data, b.len, other_uid, &now, &back, &err), &err);
  assert_ok(tm_graph_variables(back, &uids, &n));
  assert_int_equal(n, 1);
  n_uid = uids[0];
  assert_true(n_uid == now);
  tm_free(uids, n * sizeof *uids);
  tm_graph_unref(back);
  now = 0;
  assert_int_equal(tm_graph_unpack_as(b.data, b.len, other_uid, &now, &back, &err),
                   TM_EINVAL);
  tm_graph_unref(g);
  tm_buf_release(&b);
  help_drop();
  tm_scope_free(sc);
}

static void broken_bytes_are_refused_or_harmless(void **state) {
  (void)state;
  tm_scope *sc;
  tm_buf b = TM_BUF_INIT(1 << 20);
  assert_ok(tm_scope_new(&sc));
  tm_graph *g = sample(sc), *back;
  tm_err err = {0};
  assert_ok(tm_graph_pack(g, &b));
  for (size_t n = 0; n < b.len; n++)
    assert_int_not_equal(tm_graph_unpack(b.data, n, &back, &err), TM_OK);
  for (size_t i = 0; i < b.len; i++) {
    for (int bit = 0; bit < 8; bit++) {
      b.data[i] = (uint8_t)(b.data[i] ^ (1 << bit));
      tm_err_clear(&err);
      if (tm_graph_unpack(b.data, b.len, &back, &err) == TM_OK)
        tm_graph_unref(back);
      else
        assert_int_not_equal(err.msg[0], 0);
      b.data[i] = (uint8_t)(b.data[i] ^ (1 << bit));
    }
  }
  tm_graph_unref(g);
  tm_buf_release(&b);
  help_drop();
  tm_scope_free(sc);
}

static void an_unknown_op_is_named(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(1 << 10);
  tm_packer w;
  tm_graph *g;
  tm_err err = {0};
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 5);
  tm_pack_int(&w, 1);
  tm_pack_cstr(&w, "f");
  tm_pack_bool(&w, false);
  tm_pack_array(&w, 1);
  tm_pack_array(&w, 4);
  tm_pack_cstr(&w, "frobnicate");
  assert_ok(w.status);
  assert_int_equal(tm_graph_unpack(b.data, b.len, &g, &err), TM_EUNIMPL);
  assert_non_null(strstr(err.msg, "frobnicate"));
  tm_buf_release(&b);
}

static void deep_nesting_is_refused(void **state) {
  (void)state;
  tm_buf b = TM_BUF_INIT(1 << 16);
  tm_packer w;
  tm_graph *g;
  tm_err err = {0};
  tm_pack_init(&w, &b);
  for (int i = 0; i < 100; i++) {
    tm_pack_array(&w, 5);
    tm_pack_int(&w, 1);
    tm_pack_cstr(&w, "f");
    tm_pack_bool(&w, false);
    tm_pack_array(&w, 1);
    tm_pack_array(&w, 4);
    tm_pack_cstr(&w, "cond");
    tm_pack_array(&w, 0);
    tm_pack_array(&w, 1);
    tm_pack_array(&w, 2);
    tm_pack_int(&w, TM_ATTR_FUNC);
  }
  assert_ok(w.status);
  assert_int_equal(tm_graph_unpack(b.data, b.len, &g, &err), TM_EINVAL);
  assert_non_null(strstr(err.msg, "nested"));
  tm_buf_release(&b);
}

static tm_status torture(void *ud) {
  const tm_buf *b = ud;
  tm_graph *g;
  TM_TRY(tm_graph_unpack(b->data, b->len, &g, NULL));
  tm_graph_unref(g);
  return TM_OK;
}

static void every_allocation_may_fail(void **state) {
  (void)state;
  tm_scope *sc;
  tm_buf b = TM_BUF_INIT(1 << 20);
  assert_ok(tm_scope_new(&sc));
  tm_graph *g = sample(sc);
  assert_ok(tm_graph_pack(g, &b));
  assert_true(test_torture(torture, &b) > 10);
  tm_graph_unref(g);
  tm_buf_release(&b);
  help_drop();
  tm_scope_free(sc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_graph_survives_the_wire),
      cmocka_unit_test(variables_are_exchanged_and_strange_ones_refused),
      cmocka_unit_test(broken_bytes_are_refused_or_harmless),
      cmocka_unit_test(an_unknown_op_is_named),
      cmocka_unit_test(deep_nesting_is_refused),
      cmocka_unit_test(every_allocation_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
