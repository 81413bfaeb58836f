/*
 * graph_cases.h - ops against numbers of an independent reference, table driven.
 *
 * A case is an op, its attributes as text, inputs and wanted outputs; the tables are
 * made by spec/fixtures/graph_ops.py.  case_run applies the op eagerly and compares;
 * infers again with all sizes unknown; and, for float64 cases that say so, compares
 * gradients with central differences.
 */
#ifndef TM_SPEC_GRAPH_CASES_H
#define TM_SPEC_GRAPH_CASES_H

#include "graph_help.h"

enum { CASE_RANK = 6, CASE_IN = 8, CASE_OUT = 4 };

struct case_tensor {
  tm_dtype dtype;
  int32_t rank;
  int64_t dim[CASE_RANK];
  const double *x;
  const char *const *s;
};

struct graph_case {
  const char *op, *attrs;
  int32_t nin;
  struct case_tensor in[CASE_IN];
  int32_t nout;
  struct case_tensor out[CASE_OUT];
  double tol;
  bool grad;
};

static inline tm_tensor *case_tensor_of(const struct case_tensor *c) {
  tm_shape s = tm_shape_of(c->rank, c->dim);
  tm_tensor *t;
  tm_err err = {0};
  int64_t n = tm_shape_count(&s);
  if (c->dtype == TM_STRING) {
    tm_str str[400];
    assert_true(n <= 400);
    for (int64_t i = 0; i < n; i++) str[i] = (tm_str){c->s[i], strlen(c->s[i])};
    assert_ok_err(tm_tensor_strings(&s, str, &t, &err), &err);
    return t;
  }
  assert_ok_err(tm_tensor_new(c->dtype, &s, &t, &err), &err);
  for (int64_t i = 0; i < n; i++) {
    double x = c->x[i];
    switch (c->dtype) {
      case TM_F32:
        ((float *)t->v.data)[i] = (float)x;
        break;
      case TM_F64:
        ((double *)t->v.data)[i] = x;
        break;
      case TM_I32:
        ((int32_t *)t->v.data)[i] = (int32_t)x;
        break;
      case TM_I64:
        ((int64_t *)t->v.data)[i] = (int64_t)x;
        break;
      default:
        ((uint8_t *)t->v.data)[i] = (uint8_t)x;
    }
  }
  return t;
}

/* --- attributes from text: "axis=1;shape=2,-1;mode=constant" --- */

static inline void case_attr(const char *op, tm_attr *a, tm_attr_kind kind,
                             const char *text) {
  int64_t is[64];
  double fs[64];
  int32_t n = 0;
  switch (kind) {
    case TM_ATTR_BOOL:
      tm_attr_set_bool(a, strcmp(text, "true") == 0);
      return;
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
      tm_attr_set_int(a, kind, strtoll(text, NULL, 10));
      return;
    case TM_ATTR_DTYPE:
      tm_attr_set_int(a, kind, tm_dtype_of_name(text));
      return;
    case TM_ATTR_FLOAT:
      tm_attr_set_float(a, strtod(text, NULL));
      return;
    case TM_ATTR_STR:
      assert_ok(tm_attr_set_str(a, text, strlen(text)));
      return;
    default:
      break;
  }
  for (const char *p = text; *p; n++) {
    char *end;
    fs[n] = strtod(p, &end);
    is[n] = (int64_t)fs[n];
    if (end == p) fail_msg("%s: attribute text \"%s\"", op, text);
    p = *end == ',' ? end + 1 : end;
  }
  if (kind == TM_ATTR_FLOATS)
    assert_ok(tm_attr_set_floats(a, fs, n));
  else
    assert_ok(tm_attr_set_ints(a, kind, is, n));
}

static inline void case_attrs(const char *op, const char *text, tm_attrs *a) {
  const tm_sig *sig = tm_op_sig(tm_op_find(op));
  char part[200];
  memset(a, 0, sizeof *a);
  a->n = sig->nattr;
  while (*text) {
    size_t n = strcspn(text, ";");
    assert_true(n < sizeof part);
    memcpy(part, text, n);
    part[n] = '\0';
    text += n + (text[n] == ';');
    char *eq = strchr(part, '=');
    assert_non_null(eq);
    *eq = '\0';
    int32_t i = tm_op_attr_index(tm_op_find(op), part);
    if (i < 0) fail_msg("%s has no attribute %s", op, part);
    case_attr(op, &a->a[i], sig->attr[i].kind, eq + 1);
  }
}

/* --- running --- */

static inline tm_status case_apply(tm_scope *sc, const struct graph_case *c,
                                   tm_value *const *in, tm_value **out, int32_t *nout,
                                   tm_err *err) {
  tm_attrs a;
  if (!tm_op_find(c->op)) fail_msg("there is no op %s", c->op);
  case_attrs(c->op, c->attrs, &a);
  tm_status s = tm_apply(sc, tm_op_find(c->op), in, c->nin, &a, out, nout, err);
  tm_attrs_release(&a);
  return s;
}

static inline void case_compare(const struct graph_case *c, int32_t k,
                                const tm_view *got) {
  const struct case_tensor *want = &c->out[k];
  tm_shape s = tm_shape_of(want->rank, want->dim);
  char a[128], b[128];
  if (got->dtype != want->dtype || !tm_shape_equal(&got->shape, &s))
    fail_msg("%s{%s} output %d: %s %s, not %s %s", c->op, c->attrs, (int)k,
             tm_dtype_name(got->dtype), tm_shape_text(&got->shape, a, sizeof a),
             tm_dtype_name(want->dtype), tm_shape_text(&s, b, sizeof b));
  for (int64_t i = 0, n = tm_shape_count(&s); i < n; i++) {
    if (got->dtype == TM_STRING) {
      const tm_str *str = got->data;
      if (str[i].n != strlen(want->s[i]) || memcmp(str[i].p, want->s[i], str[i].n) != 0)
        fail_msg("%s{%s} string %d: \"%.*s\", not \"%s\"", c->op, c->attrs, (int)i,
                 (int)str[i].n, str[i].p, want->s[i]);
      continue;
    }
    double x = tm_view_get_f64(got, i), y = want->x[i];
    if (x == y || (isnan(x) && isnan(y))) continue;
    if (!(fabs(x - y) <= c->tol * fmax(1, fabs(y))))
      fail_msg("%s{%s} output %d, element %d: %.9g, not %.9g", c->op, c->attrs, (int)k,
               (int)i, x, y);
  }
}

/* Infer with unknown sizes: an error may ask for more, a shape must be compatible. */
static inline void case_infer(const struct graph_case *c) {
  tm_type in[CASE_IN], out[TM_MAX_OUTPUTS];
  tm_attrs a;
  tm_err err = {0};
  int32_t nout = 0;
  case_attrs(c->op, c->attrs, &a);
  assert_ok_err(tm_op_complete_attrs(tm_op_find(c->op), &a, &err), &err);
  for (int32_t i = 0; i < c->nin; i++) {
    in[i].dtype = c->in[i].dtype;
    in[i].shape = tm_shape_of(c->in[i].rank, c->in[i].dim);
    for (int32_t k = 0; k < c->in[i].rank; k++) in[i].shape.dim[k] = -1;
  }
  tm_status s = tm_op_infer(tm_op_find(c->op), in, c->nin, &a, out, &nout, &err);
  tm_attrs_release(&a);
  if (s == TM_EINVAL && strstr(err.msg, "not known yet")) return;
  if (s) fail_msg("%s{%s} with unknown sizes: %s", c->op, c->attrs, err.msg);
  assert_int_equal(nout, c->nout);
  for (int32_t k = 0; k < nout; k++) {
    tm_shape want = tm_shape_of(c->out[k].rank, c->out[k].dim);
    if (out[k].dtype != c->out[k].dtype || !tm_shape_compatible(&out[k].shape, &want))
      fail_msg("%s{%s} with unknown sizes: output %d", c->op, c->attrs, (int)k);
  }
}

/* --- gradients --- */

/* A weight an element, so that no symmetry hides a mistake. */
static inline double case_weight(int32_t k, int64_t i) {
  return 0.5 + (double)((i * 7 + k * 3) % 11) / 8;
}

static inline double case_loss(tm_scope *sc, const struct graph_case *c,
                               tm_value *const *in) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t nout;
  tm_err err = {0};
  double sum = 0;
  assert_ok_err(case_apply(sc, c, in, out, &nout, &err), &err);
  for (int32_t k = 0; k < nout; k++) {
    const tm_view *v = &out[k]->t->v;
    for (int64_t i = 0, n = tm_view_count(v); v->dtype == TM_F64 && i < n; i++)
      sum += case_weight(k, i) * tm_view_get_f64(v, i);
    tm_value_unref(out[k]);
  }
  return sum;
}

/* The same loss on the tape. */
static inline tm_value *case_loss_value(tm_scope *sc, const struct graph_case *c,
                                        tm_value *const *in) {
  tm_value *out[TM_MAX_OUTPUTS], *sum = NULL;
  int32_t nout;
  tm_err err = {0};
  assert_ok_err(case_apply(sc, c, in, out, &nout, &err), &err);
  for (int32_t k = 0; k < nout; k++) {
    help_keep(out[k]);
    if (out[k]->type.dtype != TM_F64) continue;
    tm_tensor *w;
    assert_ok(tm_tensor_new(TM_F64, &out[k]->t->v.shape, &w, NULL));
    for (int64_t i = 0, n = tm_view_count(&w->v); i < n; i++)
      ((double *)w->v.data)[i] = case_weight(k, i);
    tm_value *part = help_sum(sc, help_op(sc, "mul", out[k], help_keep(help_value(w))));
    sum = sum ? help_op(sc, "add", sum, part) : part;
  }
  return sum;
}

static inline void case_difference(tm_scope *sc, const struct graph_case *c,
                                   tm_value **in, int32_t k, const tm_tensor *grad) {
  const double h = 1e-5;
  tm_value *was = in[k];
  for (int64_t i = 0, n = tm_view_count(&was->t->v); i < n; i++) {
    double loss[2];
    for (int side = 0; side < 2; side++) {
      tm_tensor *t;
      assert_ok(tm_tensor_copy(&was->t->v, &t, NULL));
      ((double *)t->v.data)[i] += side ? h : -h;
      in[k] = help_value(t);
      loss[side] = case_loss(sc, c, in);
      tm_value_unref(in[k]);
    }
    double want = (loss[1] - loss[0]) / (2 * h);
    double got = grad ? tm_view_get_f64(&grad->v, i) : 0;
    if (!(fabs(got - want) <= 1e-6 * fmax(1, fabs(want))))
      fail_msg("%s{%s} gradient of input %d, element %d: %.9g, not %.9g", c->op,
               c->attrs, (int)k, (int)i, got, want);
  }
  in[k] = was;
}

static inline void case_gradients(tm_scope *sc, const struct graph_case *c,
                                  tm_value **in) {
  tm_tape *tp;
  tm_source src[CASE_IN];
  tm_grad g[CASE_IN];
  int32_t which[CASE_IN], n = 0;
  tm_err err = {0};
  assert_ok(tm_tape_begin(sc, false, &tp));
  for (int32_t i = 0; i < c->nin; i++) {
    if (c->in[i].dtype != TM_F64) continue;
    tm_tape_watch(tp, in[i]);
    which[n] = i;
    src[n++] = (tm_source){in[i], 0};
  }
  tm_value *loss = case_loss_value(sc, c, in);
  tm_status s = tm_tape_gradient(tp, loss, NULL, src, n, g, &err);
  if (s) fail_msg("%s{%s} gradient: %s", c->op, c->attrs, err.msg);
  tm_tape_unref(tp);
  for (int32_t i = 0; i < n; i++) {
    if (g[i].dense &&
        !tm_shape_equal(&g[i].dense->t->v.shape, &in[which[i]]->t->v.shape))
      fail_msg("%s{%s} gradient of input %d has another shape", c->op, c->attrs,
               (int)which[i]);
    case_difference(sc, c, in, which[i], g[i].dense ? g[i].dense->t : NULL);
    tm_grad_release(&g[i]);
  }
}

static inline void case_run(tm_scope *sc, const struct graph_case *c) {
  tm_value *in[CASE_IN], *out[TM_MAX_OUTPUTS];
  int32_t nout = 0;
  tm_err err = {0};
  for (int32_t i = 0; i < c->nin; i++)
    in[i] = help_keep(help_value(case_tensor_of(&c->in[i])));
  tm_status s = case_apply(sc, c, in, out, &nout, &err);
  if (s) fail_msg("%s{%s}: %s", c->op, c->attrs, err.msg);
  if (nout != c->nout) fail_msg("%s{%s}: %d outputs", c->op, c->attrs, (int)nout);
  for (int32_t k = 0; k < nout; k++) {
    case_compare(c, k, &out[k]->t->v);
    tm_value_unref(out[k]);
  }
  case_infer(c);
  if (c->grad) case_gradients(sc, c, in);
  help_drop();
}

static inline void case_run_all(const struct graph_case *c, size_t n) {
  tm_scope *sc;
  int64_t live = tm_mem_live();
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  for (size_t i = 0; i < n; i++) case_run(sc, &c[i]);
  tm_scope_free(sc);
  assert_int_equal(tm_mem_live(), live);
}

/* --- mistakes --- */

struct bad_case {
  const char *op, *attrs;
  int32_t nin;
  struct case_tensor in[3];
  tm_status status;
  const char *text; /* part of the message */
};

static inline void bad_run_all(const struct bad_case *b, size_t n) {
  tm_scope *sc;
  tm_err err = {0};
  assert_ok_err(tm_ops_init(&err), &err);
  assert_ok(tm_scope_new(&sc));
  for (size_t i = 0; i < n; i++) {
    struct graph_case c = {.op = b[i].op, .attrs = b[i].attrs, .nin = b[i].nin};
    tm_value *in[3], *out[TM_MAX_OUTPUTS];
    int32_t nout = 0;
    for (int32_t k = 0; k < c.nin; k++)
      in[k] = help_keep(help_value(case_tensor_of(&b[i].in[k])));
    tm_err_clear(&err);
    tm_status s = case_apply(sc, &c, in, out, &nout, &err);
    if (s != b[i].status || !strstr(err.msg, b[i].text))
      fail_msg("%s{%s}: %s \"%s\", not \"%s\"", c.op, c.attrs, tm_status_name(s),
               err.msg, b[i].text);
    if (strcmp(err.op, c.op) != 0) fail_msg("err.op is \"%s\"", err.op);
    help_drop();
  }
  tm_scope_free(sc);
}

#endif
