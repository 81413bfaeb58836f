#include <math.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/reduce.h"
#include "graph/rules.h"
#include "kernel/act.h"
#include "kernel/reduce.h"

/*
 * Design.  Reductions that give more than a sum: mean with variance, norms, and x
 * divided by its norm.  graph/reduce.h brings the reduced axes to the end.
 */

static tm_reduce_plan norm_plan(const tm_kctx *c) {
  tm_reduce_plan p;
  uint32_t mask = 0;
  /* infer has checked the axes */
  if (tm_axes_mask(c->attrs, 0, &c->in[0].shape, &mask, NULL)) mask = 0;
  tm_reduce_layout(&p, &c->in[0].shape, mask, true);
  return p;
}

static size_t norm_scratch(const tm_kctx *c) {
  return norm_plan(c).gather ? tm_view_bytes(&c->in[0]) : 0;
}

static tm_status norm_shape(tm_infer *c, bool keepdims, tm_shape *s) {
  uint32_t mask;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_axes_mask(c->attrs, 0, &c->in[0].shape, &mask, c->err));
  tm_reduce_shape(&c->in[0].shape, mask, keepdims, s);
  return TM_OK;
}

/* --- moments: attributes axes, keepdims --- */

static tm_status moments_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(norm_shape(c, tm_at_bool(c->attrs, 1), &s));
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status moments_kernel(tm_kctx *c) {
  tm_reduce_plan p = norm_plan(c);
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  if (c->in[0].dtype == TM_F32) {
    float *mean = c->out[0].data;
    tm_k_sum[TM_K_F32](mean, x, p.rows, p.n, 1);
    for (size_t i = 0; i < p.rows; i++) mean[i] /= (float)p.n;
    tm_k_var_f32(c->out[1].data, x, p.rows, p.n);
  } else {
    double *mean = c->out[0].data;
    tm_k_sum[TM_K_F64](mean, x, p.rows, p.n, 1);
    for (size_t i = 0; i < p.rows; i++) mean[i] /= (double)p.n;
    tm_k_var_f64(c->out[1].data, x, p.rows, p.n);
  }
  return TM_OK;
}

/* A reduction of v over the node's axes with the reduced ones kept as 1. */
static tm_value *norm_kept(tm_gctx *c, const char *op, tm_value *v) {
  tm_attrs a;
  if (c->status || !v || tm_g_attrs(c, op, &a)) return NULL;
  const tm_attr *axes = &c->attrs->a[0];
  if (axes->kind != TM_ATTR_NONE &&
      tm_attr_set_ints(tm_attr_by_name(op, &a, "axis"), TM_ATTR_AXES, axes->u.is,
                       axes->n)) {
    c->status = tm_nomem(c->err, op);
    return NULL;
  }
  tm_attr_set_bool(tm_attr_by_name(op, &a, "keepdims"), true);
  return tm_gn(c, op, &v, 1, &a, 0);
}

/* dx = dmean / n + 2 (x - mean) dvar / n; n = size of x / size of mean, known at run
 * time, comes as the sum of ones. */
static tm_status moments_grad(tm_gctx *c) {
  tm_value *x = c->in[0], *mean = norm_kept(c, "reduce_mean", x), *dx = NULL;
  tm_value *n = norm_kept(c, "reduce_sum", tm_g1(c, "ones_like", x));
  if (c->dout[0]) {
    tm_value *d = tm_g2(c, "div", tm_g2(c, "reshape_like", c->dout[0], mean), n);
    dx = tm_g2(c, "broadcast_like", d, x);
  }
  if (c->dout[1]) {
    tm_value *d = tm_g2(c, "div", tm_g2(c, "reshape_like", c->dout[1], mean), n);
    tm_value *two = tm_g2(c, "mul", tm_g_const(c, x, 2), tm_g2(c, "sub", x, mean));
    tm_value *dv = tm_g2(c, "mul", two, d);
    dx = dx ? tm_g2(c, "add", dx, dv) : dv;
  }
  return tm_g_set(c, 0, dx);
}

/* --- norm: attributes axis, ord, keepdims --- */

static tm_status norm_infer(tm_infer *c) {
  double ord = tm_at_float(c->attrs, 1);
  tm_shape s;
  if (ord != 1 && ord != 2)
    return tm_fail(c->err, TM_EUNIMPL, "ord is %g, must be 1 or 2", ord);
  TM_TRY(norm_shape(c, tm_at_bool(c->attrs, 2), &s));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static double norm_row(const void *x, tm_dtype t, int64_t row, int64_t n, double ord) {
  const float *f = (const float *)x + row * n;
  const double *d = (const double *)x + row * n;
  double sum = 0;
  if (ord == 2)
    return t == TM_F32 ? (double)sqrtf(tm_k_sum_squares_f32(f, n))
                       : sqrt(tm_k_sum_squares_f64(d, n));
  for (int64_t i = 0; i < n; i++) sum += t == TM_F32 ? fabs((double)f[i]) : fabs(d[i]);
  return sum;
}

static tm_status norm_kernel(tm_kctx *c) {
  tm_reduce_plan p = norm_plan(c);
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  tm_dtype t = c->in[0].dtype;
  for (int64_t i = 0; i < (int64_t)p.rows; i++) {
    double v = norm_row(x, t, i, (int64_t)p.n, tm_at_float(c->attrs, 1));
    if (t == TM_F32)
      ((float *)c->out[0].data)[i] = (float)v;
    else
      ((double *)c->out[0].data)[i] = v;
  }
  return TM_OK;
}

/* 2: dy x / norm, 0 where the norm is 0.  1: dy sign(x). */
static tm_status norm_grad(tm_gctx *c) {
  tm_value *x = c->in[0], *s = norm_kept(c, "reduce_sum", tm_g1(c, "square", x));
  tm_value *dy = tm_g2(c, "reshape_like", c->dout[0], s);
  if (tm_at_float(c->attrs, 1) == 1)
    return tm_g_set(c, 0, tm_g2(c, "mul", tm_g1(c, "sign", x), dy));
  tm_value *tiny = tm_g_const(c, x, 1e-30);
  tm_value *norm = tm_g1(c, "sqrt", tm_g2(c, "maximum", s, tiny));
  return tm_g_set(c, 0, tm_g2(c, "mul", x, tm_g2(c, "div", dy, norm)));
}

/* --- l2_normalize: attributes axis, epsilon --- */

static tm_status normalize_infer(tm_infer *c) {
  uint32_t mask;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_axes_mask(c->attrs, 0, &c->in[0].shape, &mask, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

/* The input in planned order and room for the result in that order. */
static size_t normalize_scratch(const tm_kctx *c) { return 2 * norm_scratch(c); }

static tm_status normalize_kernel(tm_kctx *c) {
  tm_reduce_plan p = norm_plan(c);
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  double eps = tm_at_float(c->attrs, 1);
  void *out = c->out[0].data;
  if (p.gather) out = (char *)c->scratch + tm_view_bytes(&c->in[0]);
  int64_t n = (int64_t)p.n;
  for (int64_t r = 0; r < (int64_t)p.rows; r++) {
    if (c->in[0].dtype == TM_F32) {
      const float *from = (const float *)x + r * n;
      float s = 1 / sqrtf(fmaxf(tm_k_sum_squares_f32(from, n), (float)eps));
      for (int64_t i = 0; i < n; i++) ((float *)out)[r * n + i] = from[i] * s;
    } else {
      const double *from = (const double *)x + r * n;
      double s = 1 / sqrt(fmax(tm_k_sum_squares_f64(from, n), eps));
      for (int64_t i = 0; i < n; i++) ((double *)out)[r * n + i] = from[i] * s;
    }
  }
  if (p.gather) tm_reduce_scatter(&p, &c->out[0], out);
  return TM_OK;
}

/* r (dy - y sum(dy y)) where the sum of squares is above epsilon, else r dy. */
static tm_status normalize_grad(tm_gctx *c) {
  tm_value *x = c->in[0], *y = c->out[0], *dy = c->dout[0];
  tm_value *s = norm_kept(c, "reduce_sum", tm_g1(c, "square", x));
  tm_value *eps = tm_g_const(c, x, tm_at_float(c->attrs, 1));
  tm_value *r = tm_g1(c, "rsqrt", tm_g2(c, "maximum", s, eps));
  tm_value *dot = norm_kept(c, "reduce_sum", tm_g2(c, "mul", dy, y));
  tm_value *in[3] = {tm_g2(c, "greater", s, eps), dot, tm_g1(c, "zeros_like", dot)};
  if (c->status) return c->status;
  dot = tm_gn(c, "where", in, 3, NULL, 0);
  tm_value *d = tm_g2(c, "sub", dy, tm_g2(c, "mul", y, dot));
  return tm_g_set(c, 0, tm_g2(c, "mul", d, r));
}

static const tm_op norm_ops[] = {
    {.name = "nn.moments",
     .sig = "x; axes:axes | keepdims:bool=false",
     .help = "Mean and variance of x over axes.",
     .infer = moments_infer,
     .kernel = moments_kernel,
     .grad = moments_grad,
     .scratch = norm_scratch},
    {.name = "norm",
     .sig = "x; axis:axes? | ord:float=2, keepdims:bool=false",
     .help = "Length of x over axes: the root of the sum of squares, or with ord = 1 "
             "the sum of absolute values.",
     .infer = norm_infer,
     .kernel = norm_kernel,
     .grad = norm_grad,
     .scratch = norm_scratch},
    {.name = "l2_normalize",
     .sig = "x; axis:axes? | epsilon:float=1e-12",
     .help = "x divided by its length over axes (at least the root of epsilon).",
     .infer = normalize_infer,
     .kernel = normalize_kernel,
     .grad = normalize_grad,
     .scratch = normalize_scratch},
};

const tm_op_group tm_ops_norm = {norm_ops, TM_COUNT(norm_ops)};
