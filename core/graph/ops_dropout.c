#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/stream.h"
#include "kernel/dropout.h"

/*
 * Design.  The mask is a second output, so that the gradient uses the same one; users
 * look at the first only.
 */

static tm_status dropout_rate(tm_infer *c) {
  double rate = tm_at_float(c->attrs, 0);
  if (rate >= 0 && rate < 1) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "rate is %g, must be in [0, 1)", rate);
}

static tm_status dropout_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(dropout_rate(c));
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &c->in[0].shape));
  return tm_infer_out(c, TM_BOOL, &c->in[0].shape);
}

static void dropout_apply(const tm_kctx *c, const uint8_t *mask) {
  size_t n = (size_t)tm_view_count(&c->out[0]);
  double scale = 1 / (1 - tm_at_float(c->attrs, 0));
  if (c->out[0].dtype == TM_F32)
    tm_k_masked_f32(c->out[0].data, c->in[0].data, mask, n, (float)scale);
  else
    tm_k_masked_f64(c->out[0].data, c->in[0].data, mask, n, scale);
}

static tm_status dropout_kernel(tm_kctx *c) {
  tm_random_stream s = tm_random_stream_of(c, 1);
  size_t n = (size_t)tm_view_count(&c->out[0]);
  tm_k_keep_mask(c->out[1].data, n, s.key, s.stream, tm_at_float(c->attrs, 0));
  dropout_apply(c, c->out[1].data);
  return TM_OK;
}

static tm_value *dropout_masked(tm_gctx *c, tm_value *mask) {
  tm_attrs a;
  tm_value *in[2] = {c->dout[0], mask};
  if (!c->dout[0] || tm_g_attrs(c, "nn.dropout_grad", &a)) return NULL;
  tm_attr_set_float(&a.a[0], tm_at_float(c->attrs, 0));
  return tm_gn(c, "nn.dropout_grad", in, 2, &a, 0);
}

static tm_status dropout_grad(tm_gctx *c) {
  return tm_g_set(c, 0, dropout_masked(c, c->out[1]));
}

static tm_status dropout_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_BOOL));
  TM_TRY(dropout_rate(c));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status dropout_grad_kernel(tm_kctx *c) {
  dropout_apply(c, c->in[1].data);
  return TM_OK;
}

static tm_status dropout_grad_grad(tm_gctx *c) {
  return tm_g_set(c, 0, dropout_masked(c, c->in[1]));
}

static const tm_op dropout_ops[] = {
    {.name = "nn.dropout",
     .sig = "x; rate:float | seed:int?",
     .help = "x with elements set to 0 with probability rate, the others divided by "
             "1 - rate; second, which ones were kept.",
     .flags = TM_OP_RANDOM | TM_OP_INPLACE,
     .infer = dropout_infer,
     .kernel = dropout_kernel,
     .grad = dropout_grad},
    {.name = "nn.dropout_grad",
     .sig = "dy, mask; rate:float",
     .help = "dy through the elements that dropout kept.",
     .flags = TM_OP_HIDDEN | TM_OP_INPLACE,
     .infer = dropout_grad_infer,
     .kernel = dropout_grad_kernel,
     .grad = dropout_grad_grad},
};

const tm_op_group tm_ops_dropout = {dropout_ops, TM_COUNT(dropout_ops)};
