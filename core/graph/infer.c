#include "graph/infer.h"

#include <inttypes.h>
#include <stdio.h>

/* Design.  Texts speak of arguments by the name that the signature gives them. */

const char *tm_infer_name(const tm_infer *c, int32_t i, char *buf, size_t cap) {
  const tm_sig *sig = tm_op_sig(c->op);
  int32_t last = sig->nnames - 1;
  if (sig->list && i >= last)
    snprintf(buf, cap, "%s[%" PRId32 "]", sig->in_name[last], i - last + 1);
  else
    snprintf(buf, cap, "%s", i <= last ? sig->in_name[i] : "?");
  return buf;
}

static const char *infer_want_text(unsigned want) {
  switch (want) {
    case TM_WANT_FLOAT:
      return "floats";
    case TM_WANT_INT:
      return "integers";
    case TM_WANT_NUMBER:
      return "numbers";
    case TM_WANT_BOOL:
      return "bools";
    case TM_WANT_STRING:
      return "strings";
    case TM_WANT_NUMBER | TM_WANT_BOOL:
      return "numbers or bools";
    case TM_WANT_INT | TM_WANT_STRING:
      return "integers or strings";
    default:
      return "another dtype";
  }
}

tm_status tm_infer_want(tm_infer *c, int32_t i, unsigned want) {
  tm_dtype t = c->in[i].dtype;
  unsigned is = tm_dtype_is_float(t) ? TM_WANT_FLOAT
                : tm_dtype_is_int(t) ? TM_WANT_INT
                : t == TM_BOOL       ? TM_WANT_BOOL
                : t == TM_STRING     ? TM_WANT_STRING
                                     : 0U;
  if (is & want) return TM_OK;
  char name[40];
  return tm_fail(
      c->err, TM_EINVAL, "%s must hold %s, but is %s%s",
      tm_infer_name(c, i, name, sizeof name), infer_want_text(want), tm_dtype_name(t),
      is && is != TM_WANT_STRING && want != TM_WANT_STRING ? "; convert it with cast"
                                                           : "");
}

tm_status tm_infer_same_dtype(tm_infer *c, int32_t i, int32_t j) {
  if (c->in[i].dtype == c->in[j].dtype) return TM_OK;
  char a[40], b[40];
  return tm_fail(c->err, TM_EINVAL, "%s is %s but %s is %s; convert one with cast",
                 tm_infer_name(c, i, a, sizeof a), tm_dtype_name(c->in[i].dtype),
                 tm_infer_name(c, j, b, sizeof b), tm_dtype_name(c->in[j].dtype));
}

tm_status tm_infer_same_shape(tm_infer *c, int32_t i, int32_t j) {
  char ni[40], nj[40], a[128], b[128];
  if (tm_shape_compatible(&c->in[i].shape, &c->in[j].shape)) return TM_OK;
  return tm_fail(
      c->err, TM_EINVAL, "%s of shape %s and %s of shape %s must agree",
      tm_infer_name(c, i, ni, sizeof ni), tm_shape_text(&c->in[i].shape, a, sizeof a),
      tm_infer_name(c, j, nj, sizeof nj), tm_shape_text(&c->in[j].shape, b, sizeof b));
}

tm_status tm_infer_rank(tm_infer *c, int32_t i, int32_t rank) {
  if (c->in[i].shape.rank == rank) return TM_OK;
  char name[40], text[128];
  return tm_fail(c->err, TM_EINVAL,
                 "%s must have %" PRId32 " axes, but its shape is %s",
                 tm_infer_name(c, i, name, sizeof name), rank,
                 tm_shape_text(&c->in[i].shape, text, sizeof text));
}

tm_status tm_infer_out(tm_infer *c, tm_dtype t, const tm_shape *s) {
  if (c->nout == TM_MAX_OUTPUTS)
    return tm_fail(c->err, TM_EINTERNAL, "more than %d outputs", TM_MAX_OUTPUTS);
  c->out[c->nout].dtype = t;
  c->out[c->nout].shape = *s;
  c->nout++;
  return TM_OK;
}

tm_status tm_infer_shape_attr(const tm_infer *c, int32_t attr, tm_shape *out) {
  const tm_attr *a = &c->attrs->a[attr];
  *out = tm_shape_of(a->n, a->u.is);
  for (int32_t i = 0; i < a->n; i++)
    if (a->u.is[i] < 0)
      return tm_fail(c->err, TM_EINVAL,
                     "size %" PRId64 " of axis %" PRId32 " of %s is negative",
                     a->u.is[i], i + 1, tm_op_sig(c->op)->attr[attr].name);
  return TM_OK;
}

tm_status tm_axes_mask(const tm_attrs *a, int32_t attr, const tm_shape *s,
                       uint32_t *mask, tm_err *err) {
  *mask = 0;
  if (!tm_at_has(a, attr)) {
    *mask = (1U << s->rank) - 1U;
    return TM_OK;
  }
  for (int32_t i = 0; i < a->a[attr].n; i++) {
    int32_t axis;
    TM_TRY(tm_shape_axis(s, a->a[attr].u.is[i], &axis, err));
    if (*mask >> axis & 1U)
      return tm_fail(err, TM_EINVAL, "axis %" PRId32 " is named twice", axis + 1);
    *mask |= 1U << axis;
  }
  return TM_OK;
}
