#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/second.h"
#include "kernel/act.h"

/*
 * Design.  Each activation is one op and one hidden op NAME_grad(dy, x) that is its
 * derivative times dy in one pass.  The kernels work element by element from the count
 * of the output, so the executor may call them by blocks and in place.
 */

static tm_status act_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status act_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return tm_infer_out(c, c->in[1].dtype, &c->in[1].shape);
}

/* The one parameter of an activation: a float, or a bool as 0 or 1. */
static double act_param(const tm_attrs *a) {
  if (a->n == 0) return 0;
  return a->a[0].kind == TM_ATTR_BOOL ? (double)a->a[0].u.b : tm_at_float(a, 0);
}

static tm_status act_run(tm_kctx *c, tm_k_act_kind k) {
  size_t n = (size_t)tm_view_count(&c->out[0]);
  double p = act_param(c->attrs);
  if (c->out[0].dtype == TM_F32)
    tm_k_act[k].f32(c->out[0].data, c->in[0].data, n, p);
  else
    tm_k_act[k].f64(c->out[0].data, c->in[0].data, n, p);
  return TM_OK;
}

static tm_status act_grad_run(tm_kctx *c, tm_k_act_kind k) {
  size_t n = (size_t)tm_view_count(&c->out[0]);
  double p = act_param(c->attrs);
  if (c->out[0].dtype == TM_F32)
    tm_k_act[k].grad_f32(c->out[0].data, c->in[0].data, c->in[1].data, n, p);
  else
    tm_k_act[k].grad_f64(c->out[0].data, c->in[0].data, c->in[1].data, n, p);
  return TM_OK;
}

#define X(N, n)                                                                \
  static tm_status n##_kernel(tm_kctx *c) { return act_run(c, TM_K_ACT_##N); } \
  static tm_status n##_grad_kernel(tm_kctx *c) {                               \
    return act_grad_run(c, TM_K_ACT_##N);                                      \
  }                                                                            \
  static tm_status n##_grad(tm_gctx *c) {                                      \
    return tm_g_set_same(c, 0, "nn." #n "_grad", c->in[0]);                    \
  }
TM_K_ACT_MAP(X)
#undef X

/* --- bias --- */

static tm_status bias_add_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_rank(c, 1, 1));
  tm_shape s = c->in[0].shape;
  int64_t n = c->in[1].shape.dim[0];
  if (s.rank < 1) return tm_fail(c->err, TM_EINVAL, "x is a scalar");
  if (s.dim[s.rank - 1] < 0) s.dim[s.rank - 1] = n;
  if (n >= 0 && s.dim[s.rank - 1] != n)
    return tm_fail(c->err, TM_EINVAL,
                   "bias has %" PRId64 " elements, the last axis of x of shape %s not",
                   n, tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status bias_add_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  int64_t rows = tm_shape_part(s, 0, s->rank - 1), n = s->dim[s->rank - 1];
  if (c->out[0].dtype == TM_F32)
    tm_k_bias_add_f32(c->out[0].data, c->in[0].data, c->in[1].data, rows, n);
  else
    tm_k_bias_add_f64(c->out[0].data, c->in[0].data, c->in[1].data, rows, n);
  return TM_OK;
}

static tm_status bias_add_grad(tm_gctx *c) {
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, c->dout[0]));
  if (c->need[1]) TM_TRY(tm_g_set(c, 1, tm_g1(c, "nn.bias_add_grad", c->dout[0])));
  return TM_OK;
}

static tm_status bias_add_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  const tm_shape *s = &c->in[0].shape;
  if (s->rank < 1) return tm_fail(c->err, TM_EINVAL, "dy is a scalar");
  tm_shape o = tm_shape_of(1, &s->dim[s->rank - 1]);
  return tm_infer_out(c, c->in[0].dtype, &o);
}

static tm_status bias_add_grad_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int64_t rows = tm_shape_part(s, 0, s->rank - 1), n = s->dim[s->rank - 1];
  if (c->out[0].dtype == TM_F32)
    tm_k_sum_columns_f32(c->out[0].data, c->in[0].data, rows, n);
  else
    tm_k_sum_columns_f64(c->out[0].data, c->in[0].data, rows, n);
  return TM_OK;
}

static tm_status bias_add_grad_grad(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "broadcast_like", c->dout[0], c->in[0]));
}

/* --- l2_loss --- */

static tm_status l2_loss_infer(tm_infer *c) {
  tm_shape s = tm_shape_scalar();
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status l2_loss_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]);
  if (c->in[0].dtype == TM_F32)
    *(float *)c->out[0].data = 0.5F * tm_k_sum_squares_f32(c->in[0].data, n);
  else
    *(double *)c->out[0].data = 0.5 * tm_k_sum_squares_f64(c->in[0].data, n);
  return TM_OK;
}

static tm_status l2_loss_grad(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "mul", c->in[0], c->dout[0]));
}

#define ACT(n, attrs, text)                                         \
  {                                                                 \
    .name = "nn." #n, .sig = "x" attrs, .help = text,               \
    .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE, .infer = act_infer, \
    .kernel = n##_kernel, .grad = n##_grad                          \
  }
#define ACT_GRAD(n, attrs, rule)                                     \
  {                                                                  \
    .name = "nn." #n "_grad", .sig = "dy, x" attrs,                  \
    .help = "dy times the derivative of " #n " at x.",               \
    .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE | TM_OP_HIDDEN,       \
    .infer = act_grad_infer, .kernel = n##_grad_kernel, .grad = rule \
  }

static const tm_op nn_ops[] = {
    ACT(relu, "", "max(x, 0)."),
    ACT_GRAD(relu, "", tm_second_flat),
    ACT(relu6, "", "min(max(x, 0), 6)."),
    ACT_GRAD(relu6, "", tm_second_flat),
    ACT(leaky_relu, "; alpha:float=0.2", "x, and alpha * x where x is negative."),
    ACT_GRAD(leaky_relu, "; alpha:float=0.2", tm_second_flat),
    ACT(elu, "; alpha:float=1", "x, and alpha * (exp(x) - 1) where x is negative."),
    ACT_GRAD(elu, "; alpha:float=1", tm_second_elu),
    ACT(selu, "", "The self-normalising elu."),
    ACT_GRAD(selu, "", tm_second_selu),
    ACT(gelu, "; approximate:bool=false", "x * Phi(x), Phi being the normal cdf."),
    ACT_GRAD(gelu, "; approximate:bool=false", tm_second_gelu),
    ACT(silu, "", "x * sigmoid(x)."),
    ACT_GRAD(silu, "", tm_second_silu),
    ACT(softplus, "", "log(1 + exp(x))."),
    ACT_GRAD(softplus, "", tm_second_softplus),
    ACT(softsign, "", "x / (1 + |x|)."),
    ACT_GRAD(softsign, "", tm_second_softsign),
    {.name = "nn.bias_add",
     .sig = "x, bias",
     .help = "x (..., n) plus bias (n) along the last axis.",
     .flags = TM_OP_INPLACE,
     .infer = bias_add_infer,
     .kernel = bias_add_kernel,
     .grad = bias_add_grad},
    {.name = "nn.bias_add_grad",
     .sig = "dy",
     .help = "The sum of dy (..., n) over all axes but the last.",
     .flags = TM_OP_HIDDEN,
     .infer = bias_add_grad_infer,
     .kernel = bias_add_grad_kernel,
     .grad = bias_add_grad_grad},
    {.name = "nn.l2_loss",
     .sig = "x",
     .help = "Half the sum of the squares of x.",
     .infer = l2_loss_infer,
     .kernel = l2_loss_kernel,
     .grad = l2_loss_grad},
};

const tm_op_group tm_ops_nn = {nn_ops, TM_COUNT(nn_ops)};
