#include "graph/rules.h"

/* Design.  Nothing but shorthand: no state, no allocation of its own. */

tm_value *tm_g_same(tm_gctx *c, const char *op, tm_value *const *in, int32_t nin,
                    int32_t nth) {
  tm_attrs a;
  if (c->status) return NULL;
  if (tm_attrs_copy(&a, c->attrs)) {
    c->status = tm_nomem(c->err, "a gradient");
    return NULL;
  }
  return tm_gn(c, op, in, nin, &a, nth);
}

tm_status tm_g_set_same(tm_gctx *c, int32_t i, const char *op, tm_value *x) {
  if (!c->need[i]) return TM_OK;
  tm_value *in[2] = {c->dout[0], x};
  return tm_g_set(c, i, tm_g_same(c, op, in, 2, 0));
}

tm_status tm_g_multi(tm_gctx *c, const char *op, tm_value *const *in, int32_t nin,
                     tm_attrs *attrs, tm_value **out, int32_t *nout) {
  *nout = 0;
  if (!c->status)
    c->status = tm_apply(c->sc, tm_op_find(op), in, nin, attrs, out, nout, c->err);
  tm_attrs_release(attrs);
  return c->status;
}

tm_value *tm_g_dout(tm_gctx *c, int32_t i) {
  return c->dout[i] ? c->dout[i] : tm_g1(c, "zeros_like", c->out[i]);
}

void tm_dense_steps(const tm_shape *s, int64_t *step) {
  int64_t n = 1;
  for (int32_t i = s->rank - 1; i >= 0; i--) {
    step[i] = n;
    n *= s->dim[i];
  }
}

int64_t tm_shape_part(const tm_shape *s, int32_t first, int32_t last) {
  int64_t n = 1;
  for (int32_t i = first; i < last; i++) n *= s->dim[i];
  return n;
}

int64_t tm_shape_part_or_unknown(const tm_shape *s, int32_t first, int32_t last) {
  for (int32_t i = first; i < last; i++)
    if (s->dim[i] < 0) return -1;
  return tm_shape_part(s, first, last);
}

int32_t tm_axis_of(int64_t axis, int32_t rank) {
  return (int32_t)(axis < 0 ? axis + rank : axis);
}
