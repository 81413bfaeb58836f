#include "graph/grad.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/temps.h"

/*
 * Design.  What gradient rules are written with.  Every value that a rule makes is kept
 * in c->temps until the rule is done, so rules are plain nested calls; the first error
 * is kept in c->status and everything after it does nothing.
 */

void tm_g_temps_release(struct tm_g_temps *t) {
  for (int32_t i = 0; i < t->n; i++) tm_value_unref(t->v[i]);
  tm_free(t->v, (size_t)t->cap * sizeof *t->v);
  memset(t, 0, sizeof *t);
}

tm_status tm_g_temps_add(struct tm_g_temps *t, tm_value *v) {
  if (t->n == t->cap) {
    int32_t cap = t->cap ? t->cap * 2 : 16;
    tm_value **p =
        tm_realloc(t->v, (size_t)t->cap * sizeof *p, (size_t)cap * sizeof *p);
    if (!p) {
      tm_value_unref(v);
      return TM_ENOMEM;
    }
    t->v = p;
    t->cap = cap;
  }
  t->v[t->n++] = v;
  return TM_OK;
}

static void g_fail(tm_gctx *c, tm_status s, const char *op) {
  if (!s || c->status) return;
  c->status = s;
  if (!c->err) return;
  if (s == TM_ENOMEM && c->err->code == TM_OK) (void)tm_nomem(c->err, op);
  if (c->op) (void)tm_err_prefix(c->err, s, "gradient of %s", c->op->name);
}

static tm_value *g_keep(tm_gctx *c, tm_value **out, int32_t nout, int32_t nth) {
  tm_value *v = NULL;
  for (int32_t i = 0; i < nout; i++) {
    tm_status s = tm_g_temps_add(c->temps, out[i]);
    if (s) g_fail(c, s, "a gradient");
    if (i == nth && !s) v = out[i];
  }
  return c->status ? NULL : v;
}

tm_value *tm_gn(tm_gctx *c, const char *op, tm_value *const *in, int32_t nin,
                tm_attrs *attrs, int32_t nth) {
  tm_value *out[TM_MAX_OUTPUTS];
  int32_t nout = 0;
  tm_status s = c->status;
  const tm_op *o = tm_op_find(op);
  if (!s && !o) s = tm_fail(c->err, TM_EINTERNAL, "there is no op \"%s\"", op);
  if (!s) s = tm_apply(c->sc, o, in, nin, attrs, out, &nout, c->err);
  if (attrs) tm_attrs_release(attrs);
  g_fail(c, s, op);
  return s ? NULL : g_keep(c, out, nout, nth);
}

tm_value *tm_g1(tm_gctx *c, const char *op, tm_value *a) {
  return a && !c->status ? tm_gn(c, op, &a, 1, NULL, 0) : NULL;
}

tm_value *tm_g2(tm_gctx *c, const char *op, tm_value *a, tm_value *b) {
  tm_value *in[2] = {a, b};
  return a && b && !c->status ? tm_gn(c, op, in, 2, NULL, 0) : NULL;
}

static void g_fill(tm_view *v, double x) {
  switch (v->dtype) {
    case TM_F32:
      *(float *)v->data = (float)x;
      break;
    case TM_F64:
      *(double *)v->data = x;
      break;
    case TM_I32:
      *(int32_t *)v->data = (int32_t)x;
      break;
    case TM_I64:
      *(int64_t *)v->data = (int64_t)x;
      break;
    default:
      *(uint8_t *)v->data = (uint8_t)x;
      break;
  }
}

tm_value *tm_g_const(tm_gctx *c, tm_value *like, double x) {
  tm_shape scalar = tm_shape_scalar();
  tm_tensor *t;
  tm_value *v = NULL;
  if (c->status || !like) return NULL;
  if (like->type.dtype == TM_STRING || like->type.dtype == TM_DTYPE_NONE) {
    g_fail(c, tm_fail(c->err, TM_EINVAL, "a number beside a tensor of strings"),
           "const");
    return NULL;
  }
  tm_status s = tm_tensor_new(like->type.dtype, &scalar, &t, c->err);
  if (!s) {
    g_fill(&t->v, x);
    s = tm_value_of_tensor(t, &v);
    tm_tensor_unref(t);
  }
  g_fail(c, s, "const");
  return s ? NULL : g_keep(c, &v, 1, 0);
}

tm_status tm_g_set(tm_gctx *c, int32_t i, tm_value *v) {
  TM_DCHECK(i >= 0 && i < c->nin);
  if (c->status || !v) return c->status;
  tm_value_unref(c->din[i]);
  c->din[i] = tm_value_ref(v);
  return TM_OK;
}

/* --- undoing broadcasting --- */

static tm_value *g_sum(tm_gctx *c, tm_value *v, const int64_t *axis, int32_t n,
                       bool keepdims) {
  tm_attrs a;
  if (!v || n == 0) return v;
  if (tm_g_attrs(c, "reduce_sum", &a)) return NULL;
  tm_attr *axes = tm_attr_by_name("reduce_sum", &a, "axis");
  if (tm_attr_set_ints(axes, TM_ATTR_AXES, axis, n)) {
    g_fail(c, TM_ENOMEM, "reduce_sum");
    return NULL;
  }
  tm_attr_set_bool(tm_attr_by_name("reduce_sum", &a, "keepdims"), keepdims);
  return tm_gn(c, "reduce_sum", &v, 1, &a, 0);
}

/* Sum v to `want`, which is known: first the extra axes in front, then those of size
 * 1. */
static tm_value *g_sum_to(tm_gctx *c, tm_value *v, const tm_shape *want) {
  int64_t axis[TM_MAX_RANK];
  int32_t n = 0, extra = v->type.shape.rank - want->rank;
  for (int32_t i = 0; i < extra; i++) axis[n++] = i;
  v = g_sum(c, v, axis, n, false);
  if (!v) return NULL;
  n = 0;
  for (int32_t i = 0; i < want->rank; i++)
    if (want->dim[i] == 1 && v->type.shape.dim[i] != 1) axis[n++] = i;
  return g_sum(c, v, axis, n, true);
}

tm_status tm_g_set_like(tm_gctx *c, int32_t i, tm_value *v) {
  if (c->status || !v) return c->status;
  const tm_shape *want = &c->in[i]->type.shape;
  if (!tm_shape_known(want))
    v = tm_g2(c, "sum_like", v, c->in[i]);
  else if (!tm_shape_equal(want, &v->type.shape))
    v = g_sum_to(c, v, want);
  return tm_g_set(c, i, v);
}

/* --- attributes --- */

tm_status tm_g_attrs(tm_gctx *c, const char *op, tm_attrs *out) {
  memset(out, 0, sizeof *out);
  const tm_op *o = tm_op_find(op);
  if (!c->status && !o)
    g_fail(c, tm_fail(c->err, TM_EINTERNAL, "there is no op \"%s\"", op), op);
  if (c->status) return c->status;
  out->n = tm_op_sig(o)->nattr;
  return TM_OK;
}

tm_attr *tm_attr_by_name(const char *op, tm_attrs *a, const char *name) {
  const tm_op *o = tm_op_find(op);
  int32_t i = o ? tm_op_attr_index(o, name) : -1;
  TM_DCHECK(i >= 0);
  if (a->n <= i) a->n = i + 1;
  return &a->a[i];
}
