#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/batchnorm.h"

/*
 * Design.  batch_norm_train makes y and the statistics that it used, along the last
 * axis.  Its gradient is one op, batch_norm_train_grad, that gives all three gradients.
 * The statistics feed moving averages only: gradients do not flow back from them, and
 * there are none of batch_norm_train_grad (its rule says so).
 */

/* Inputs i .. i + n - 1 are vectors of the last axis of x. */
static tm_status batch_vectors(tm_infer *c, int32_t x, int32_t i, int32_t n,
                               int64_t *columns) {
  const tm_shape *s = &c->in[x].shape;
  char name[40];
  if (s->rank < 2)
    return tm_fail(c->err, TM_EINVAL, "x must have at least two axes, got shape %s",
                   tm_shape_text(s, (char[128]){0}, 128));
  *columns = s->dim[s->rank - 1];
  for (int32_t k = i; k < i + n; k++) {
    TM_TRY(tm_infer_same_dtype(c, k, x));
    TM_TRY(tm_infer_rank(c, k, 1));
    int64_t m = c->in[k].shape.dim[0];
    if (*columns < 0) *columns = m;
    if (m >= 0 && m != *columns)
      return tm_fail(c->err, TM_EINVAL,
                     "%s has %" PRId64 " elements, the last axis of x of shape %s not",
                     tm_infer_name(c, k, name, sizeof name), m,
                     tm_shape_text(s, (char[128]){0}, 128));
  }
  return TM_OK;
}

static tm_status batch_infer(tm_infer *c) {
  int64_t n;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(batch_vectors(c, 0, 1, 2, &n));
  tm_shape v = tm_shape_of(1, &n);
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &c->in[0].shape));
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &v));
  return tm_infer_out(c, c->in[0].dtype, &v);
}

static tm_status batch_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int64_t rows = tm_shape_part(s, 0, s->rank - 1), n = s->dim[s->rank - 1];
  double eps = tm_at_float(c->attrs, 0);
  const tm_view *in = c->in;
  tm_view *out = c->out;
  if (out[0].dtype == TM_F32) {
    tm_k_batch_stats_f32(out[1].data, out[2].data, in[0].data, rows, n);
    tm_k_batch_norm_f32(out[0].data, in[0].data, out[1].data, out[2].data, in[1].data,
                        in[2].data, (float)eps, rows, n);
  } else {
    tm_k_batch_stats_f64(out[1].data, out[2].data, in[0].data, rows, n);
    tm_k_batch_norm_f64(out[0].data, in[0].data, out[1].data, out[2].data, in[1].data,
                        in[2].data, eps, rows, n);
  }
  return TM_OK;
}

static tm_status batch_grad(tm_gctx *c) {
  tm_value *in[5] = {c->dout[0], c->in[0], c->in[1], c->out[1], c->out[2]};
  tm_value *out[TM_MAX_OUTPUTS];
  tm_attrs a;
  int32_t n;
  if (!c->dout[0]) return TM_OK;
  TM_TRY(tm_g_attrs(c, "nn.batch_norm_train_grad", &a));
  tm_attr_set_float(&a.a[0], tm_at_float(c->attrs, 0));
  TM_TRY(tm_g_multi(c, "nn.batch_norm_train_grad", in, 5, &a, out, &n));
  tm_status s = TM_OK;
  for (int32_t i = 0; i < n; i++) {
    if (!s && c->need[i]) s = tm_g_set(c, i, out[i]);
    tm_value_unref(out[i]);
  }
  return s;
}

/* (dy, x, gamma, mean, variance) -> dx, dgamma, dbeta. */
static tm_status batch_grad_infer(tm_infer *c) {
  int64_t n;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  if (!tm_shape_compatible(&c->in[0].shape, &c->in[1].shape))
    return tm_fail(c->err, TM_EINVAL, "dy has shape %s, x has shape %s",
                   tm_shape_text(&c->in[0].shape, (char[128]){0}, 128),
                   tm_shape_text(&c->in[1].shape, (char[128]){0}, 128));
  TM_TRY(batch_vectors(c, 1, 2, 3, &n));
  tm_shape v = tm_shape_of(1, &n);
  TM_TRY(tm_infer_out(c, c->in[1].dtype, &c->in[1].shape));
  TM_TRY(tm_infer_out(c, c->in[1].dtype, &v));
  return tm_infer_out(c, c->in[1].dtype, &v);
}

static tm_status batch_grad_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[1].shape;
  int64_t rows = tm_shape_part(s, 0, s->rank - 1), n = s->dim[s->rank - 1];
  double eps = tm_at_float(c->attrs, 0);
  const void *dy = c->in[0].data, *x = c->in[1].data, *gamma = c->in[2].data;
  const void *mean = c->in[3].data, *var = c->in[4].data;
  void *dx = c->out[0].data, *dgamma = c->out[1].data, *dbeta = c->out[2].data;
  if (c->out[0].dtype == TM_F32) {
    tm_k_batch_sums_f32(dgamma, dbeta, dy, x, mean, var, (float)eps, rows, n);
    tm_k_batch_norm_dx_f32(dx, dy, x, mean, var, gamma, dgamma, dbeta, (float)eps, rows,
                           n);
  } else {
    tm_k_batch_sums_f64(dgamma, dbeta, dy, x, mean, var, eps, rows, n);
    tm_k_batch_norm_dx_f64(dx, dy, x, mean, var, gamma, dgamma, dbeta, eps, rows, n);
  }
  return TM_OK;
}

static tm_status batch_grad_grad(tm_gctx *c) {
  return c->status = tm_fail(c->err, TM_EUNIMPL,
                             "gradients of a gradient through BatchNormalization in "
                             "training: compute it of tm.nn.moments and "
                             "tm.nn.batch_normalization instead");
}

static const tm_op batchnorm_ops[] = {
    {.name = "nn.batch_norm_train",
     .sig = "x, gamma, beta; epsilon:float=0.001",
     .help = "x normalized by mean and variance along its last axis, times gamma, plus "
             "beta; second and third, mean and variance.",
     .flags = TM_OP_HIDDEN,
     .infer = batch_infer,
     .kernel = batch_kernel,
     .grad = batch_grad},
    {.name = "nn.batch_norm_train_grad",
     .sig = "dy, x, gamma, mean, variance; epsilon:float=0.001",
     .help = "The gradients of batch_norm_train by x, gamma and beta.",
     .flags = TM_OP_HIDDEN,
     .infer = batch_grad_infer,
     .kernel = batch_grad_kernel,
     .grad = batch_grad_grad},
};

const tm_op_group tm_ops_batchnorm = {batchnorm_ops, TM_COUNT(batchnorm_ops)};
