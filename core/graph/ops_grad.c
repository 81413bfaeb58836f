#include <string.h>

#include "base/check.h"
#include "graph/grad.h"

/*
 * Design.  Ops that only gradient rules emit.  unbroadcast_like sums x down to the
 * shape of another value when that shape is known only at run time.
 */

static tm_status infer_unbroadcast(tm_infer *c) {
  if (c->in[0].dtype != c->in[1].dtype)
    return tm_fail(c->err, TM_EINVAL, "x is %s, like is %s",
                   tm_dtype_name(c->in[0].dtype), tm_dtype_name(c->in[1].dtype));
  if (!tm_dtype_is_float(c->in[0].dtype))
    return tm_fail(c->err, TM_EINVAL, "x is %s, must be a float",
                   tm_dtype_name(c->in[0].dtype));
  tm_shape all;
  if (c->in[1].shape.rank > c->in[0].shape.rank)
    return tm_fail(c->err, TM_EINVAL, "x has fewer axes than like");
  TM_TRY(tm_shape_broadcast(&c->in[0].shape, &c->in[1].shape, &all, c->err));
  if (!tm_shape_compatible(&all, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "like does not broadcast to x");
  c->nout = 1;
  c->out[0] = c->in[1];
  return TM_OK;
}

/* Adds element i of x to element at(i) of out; strides of summed axes are 0. */
static void unbroadcast_strides(const tm_kctx *c, int64_t stride[TM_MAX_RANK]) {
  const tm_shape *x = &c->in[0].shape, *o = &c->out[0].shape;
  int64_t step = 1;
  int32_t extra = x->rank - o->rank;
  for (int32_t d = x->rank - 1; d >= 0; d--) {
    int64_t size = d < extra ? 1 : o->dim[d - extra];
    stride[d] = size == 1 ? 0 : step;
    step *= size;
  }
}

#define UNBROADCAST(T, name)                                             \
  static void name(const tm_kctx *c, int64_t n, const int64_t *stride) { \
    const T *x = c->in[0].data;                                          \
    T *o = c->out[0].data;                                               \
    int64_t at[TM_MAX_RANK] = {0}, pos = 0;                              \
    const tm_shape *s = &c->in[0].shape;                                 \
    for (int64_t i = 0; i < n; i++) {                                    \
      o[pos] += x[i];                                                    \
      for (int32_t d = s->rank - 1; d >= 0; d--) {                       \
        pos += stride[d];                                                \
        if (++at[d] < s->dim[d]) break;                                  \
        pos -= stride[d] * s->dim[d];                                    \
        at[d] = 0;                                                       \
      }                                                                  \
    }                                                                    \
  }
UNBROADCAST(float, unbroadcast_f32)
UNBROADCAST(double, unbroadcast_f64)
#undef UNBROADCAST

static tm_status kernel_unbroadcast(tm_kctx *c) {
  size_t bytes = tm_view_bytes(&c->out[0]);
  int64_t stride[TM_MAX_RANK];
  if (tm_shape_equal(&c->in[0].shape, &c->out[0].shape)) {
    if (bytes && c->out[0].data != c->in[0].data)
      memcpy(c->out[0].data, c->in[0].data, bytes);
    return TM_OK;
  }
  if (bytes) memset(c->out[0].data, 0, bytes);
  unbroadcast_strides(c, stride);
  if (c->in[0].dtype == TM_F32)
    unbroadcast_f32(c, tm_view_count(&c->in[0]), stride);
  else
    unbroadcast_f64(c, tm_view_count(&c->in[0]), stride);
  return TM_OK;
}

static tm_status grad_unbroadcast(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "add", c->dout[0], tm_g1(c, "zeros_like", c->in[0])));
}

static const tm_op ops[] = {
    {.name = "unbroadcast_like",
     .sig = "x, like",
     .help = "x summed over the axes along which `like` was broadcast to it.",
     .flags = TM_OP_HIDDEN | TM_OP_INPLACE,
     .infer = infer_unbroadcast,
     .kernel = kernel_unbroadcast,
     .grad = grad_unbroadcast},
};

const tm_op_group tm_ops_grad = {ops, (int32_t)TM_COUNT(ops)};
