#include <inttypes.h>
#include <math.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/batchnorm.h"

/*
 * Design.  batch_norm_train makes y and the statistics that it used, along the last
 * axis.  Its gradient is one op, batch_norm_train_grad, that gives all three gradients.
 * The statistics feed moving averages only: gradients do not flow back from them.  To
 * batch_norm_train_grad mean and variance are those of x, so its own gradient by x is
 * the whole one, and there is none by them.
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
  TM_TRY(tm_infer_same_shape(c, 0, 1));
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

/* --- the gradient of the gradient --- */

static tm_value *g_sum(tm_gctx *c, tm_value *v) {
  return tm_g1(c, "nn.bias_add_grad", v);
}
static tm_value *g_mul(tm_gctx *c, tm_value *a, tm_value *b) {
  return tm_g2(c, "mul", a, b);
}
static tm_value *g_dot(tm_gctx *c, tm_value *a, tm_value *b) {
  return g_sum(c, g_mul(c, a, b));
}

/* What the rule needs: vectors of columns but for h, dy and v. */
struct batch_second {
  tm_value *n, *r; /* rows; 1 / sqrt(variance + epsilon) */
  tm_value *h;     /* (x - mean) r */
  tm_value *dy, *v;
  tm_value *pd, *pv; /* sums of dy h and of v h, over n */
  tm_value *sv;      /* the sum of v, over n */
  tm_value *t;       /* sum of v dy - n (sum of dy / n) sv - n pd pv */
};

static void batch_second(tm_gctx *c, struct batch_second *s) {
  tm_value *x = c->in[1], *eps = tm_g_const(c, x, tm_at_float(c->attrs, 0));
  s->dy = c->in[0];
  s->v = tm_g_dout(c, 0);
  s->n = g_sum(c, tm_g1(c, "ones_like", x));
  s->r = tm_g1(c, "rsqrt", tm_g2(c, "add", c->in[4], eps));
  s->h = g_mul(c, tm_g2(c, "sub", x, c->in[3]), s->r);
  s->pd = tm_g2(c, "div", g_dot(c, s->dy, s->h), s->n);
  s->pv = tm_g2(c, "div", g_dot(c, s->v, s->h), s->n);
  s->sv = tm_g2(c, "div", g_sum(c, s->v), s->n);
  tm_value *t =
      tm_g2(c, "sub", g_dot(c, s->v, s->dy), g_mul(c, g_sum(c, s->dy), s->sv));
  s->t = tm_g2(c, "sub", t, g_mul(c, s->n, g_mul(c, s->pd, s->pv)));
}

/* u less its mean and its part along h: what becomes of a change through mean and
 * variance. */
static tm_value *batch_project(tm_gctx *c, const struct batch_second *s, tm_value *u) {
  tm_value *mean = tm_g2(c, "div", g_sum(c, u), s->n);
  tm_value *along = tm_g2(c, "div", g_dot(c, u, s->h), s->n);
  return tm_g2(c, "sub", tm_g2(c, "sub", u, mean), g_mul(c, s->h, along));
}

/* With v, a, b the gradients by dx, dgamma, dbeta, what is differentiated is
 *   L = gamma r t + a sum(dy h) + b sum(dy):
 * by dy, gamma r (v - sv - h pv) + a h + b; by gamma, r t; by x through h, r times the
 * projected a dy - gamma r (pd v + pv dy), and through r, -gamma t r^2 h / n. */
static tm_status batch_grad_grad(tm_gctx *c) {
  struct batch_second s;
  tm_value *gamma = c->in[2], *a = tm_g_dout(c, 1), *b = tm_g_dout(c, 2);
  batch_second(c, &s);
  tm_value *gr = g_mul(c, gamma, s.r);
  if (c->need[0]) {
    tm_value *d = tm_g2(c, "sub", tm_g2(c, "sub", s.v, s.sv), g_mul(c, s.h, s.pv));
    d = tm_g2(c, "add", g_mul(c, gr, d), g_mul(c, a, s.h));
    TM_TRY(tm_g_set(c, 0, tm_g2(c, "add", d, b)));
  }
  if (c->need[1]) {
    tm_value *u = tm_g2(c, "add", g_mul(c, s.pd, s.v), g_mul(c, s.pv, s.dy));
    u = batch_project(c, &s, tm_g2(c, "sub", g_mul(c, a, s.dy), g_mul(c, gr, u)));
    tm_value *k = tm_g2(c, "div", g_mul(c, g_mul(c, gr, s.r), s.t), s.n);
    tm_value *d = tm_g2(c, "sub", g_mul(c, s.r, u), g_mul(c, s.h, k));
    TM_TRY(tm_g_set(c, 1, d));
  }
  if (c->need[2]) TM_TRY(tm_g_set(c, 2, g_mul(c, s.r, s.t)));
  return c->status;
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
