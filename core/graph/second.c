#include "graph/second.h"

#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  h is the gradient of the op's output.  An op "dy f'(x)" is linear in dy, so
 * dy gets h f'(x), the op itself applied to h; x gets h dy f''(x), with f'' written in
 * plain ops.  J(v) is the gradient of softmax, p v - p sum(p v), which is symmetric.
 */

static tm_value *second_scale(tm_gctx *c, tm_value *v, double k) {
  return tm_g2(c, "mul", v, tm_g_const(c, v, k));
}
static tm_value *second_plus(tm_gctx *c, tm_value *v, double d) {
  return tm_g2(c, "add", v, tm_g_const(c, v, d));
}
/* k - v */
static tm_value *second_from(tm_gctx *c, double k, tm_value *v) {
  return tm_g2(c, "sub", tm_g_const(c, v, k), v);
}
static tm_value *second_mul(tm_gctx *c, tm_value *a, tm_value *b) {
  return tm_g2(c, "mul", a, b);
}
/* v where x < 0, else 0 */
static tm_value *second_below(tm_gctx *c, tm_value *x, tm_value *v) {
  tm_value *zero = tm_g_const(c, x, 0), *neg = tm_g2(c, "less", x, zero);
  return tm_gn(c, "where", (tm_value *[]){neg, v, zero}, 3, NULL, 0);
}

/* The rule of "dy, x", given f''(x) (NULL: 0). */
static tm_status second_set(tm_gctx *c, tm_value *f2) {
  tm_value *in[] = {c->dout[0], c->in[1]};
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, tm_g_same(c, c->op->name, in, 2, 0)));
  if (!c->need[1] || !f2) return c->status;
  return tm_g_set(c, 1, second_mul(c, second_mul(c, c->dout[0], c->in[0]), f2));
}

tm_status tm_second_flat(tm_gctx *c) { return second_set(c, NULL); }

tm_status tm_second_elu(tm_gctx *c) {
  tm_value *e = second_scale(c, tm_g1(c, "exp", c->in[1]), tm_at_float(c->attrs, 0));
  return second_set(c, second_below(c, c->in[1], e));
}

tm_status tm_second_selu(tm_gctx *c) {
  const double alpha = 1.6732632423543772, scale = 1.0507009873554805;
  tm_value *e = second_scale(c, tm_g1(c, "exp", c->in[1]), alpha * scale);
  return second_set(c, second_below(c, c->in[1], e));
}

/* With u = k (x + a x^3), t = tanh(u), d = 1 - t^2:
 * d u' + x/2 (d u'' - 2 t d u'^2) */
static tm_value *second_gelu_approximate(tm_gctx *c) {
  const double k = 0.7978845608028654, a = 0.044715;
  tm_value *x = c->in[1], *x2 = tm_g1(c, "square", x);
  tm_value *u =
      second_scale(c, second_mul(c, x, second_plus(c, second_scale(c, x2, a), 1)), k);
  tm_value *t = tm_g1(c, "tanh", u);
  tm_value *d = second_from(c, 1, tm_g1(c, "square", t));
  tm_value *u1 = second_scale(c, second_plus(c, second_scale(c, x2, 3 * a), 1), k);
  tm_value *u2 = second_scale(c, x, 6 * a * k);
  tm_value *bend = second_scale(c, second_mul(c, t, tm_g1(c, "square", u1)), 2);
  tm_value *more = second_mul(c, second_scale(c, x, 0.5), tm_g2(c, "sub", u2, bend));
  return second_mul(c, d, tm_g2(c, "add", u1, more));
}

/* phi(x) (2 - x^2), phi being the normal density. */
tm_status tm_second_gelu(tm_gctx *c) {
  if (tm_at_bool(c->attrs, 0)) return second_set(c, second_gelu_approximate(c));
  tm_value *x2 = tm_g1(c, "square", c->in[1]);
  tm_value *e = tm_g1(c, "exp", second_scale(c, x2, -0.5));
  tm_value *phi = second_scale(c, e, 0.3989422804014327);
  return second_set(c, second_mul(c, phi, second_from(c, 2, x2)));
}

/* With s = sigmoid(x), d = s (1 - s): d (2 + x (1 - 2 s)) */
tm_status tm_second_silu(tm_gctx *c) {
  tm_value *s = tm_g1(c, "sigmoid", c->in[1]);
  tm_value *d = second_mul(c, s, second_from(c, 1, s));
  tm_value *turn = second_mul(c, c->in[1], second_from(c, 1, second_scale(c, s, 2)));
  return second_set(c, second_mul(c, d, second_plus(c, turn, 2)));
}

tm_status tm_second_softplus(tm_gctx *c) {
  tm_value *s = tm_g1(c, "sigmoid", c->in[1]);
  return second_set(c, second_mul(c, s, second_from(c, 1, s)));
}

/* -2 sign(x) / (1 + |x|)^3 */
tm_status tm_second_softsign(tm_gctx *c) {
  tm_value *d = second_plus(c, tm_g1(c, "abs", c->in[1]), 1);
  tm_value *d3 = second_mul(c, d, tm_g1(c, "square", d));
  tm_value *top = second_scale(c, tm_g1(c, "sign", c->in[1]), -2);
  return second_set(c, tm_g2(c, "div", top, d3));
}

/* --- softmax and what is built on it --- */

static tm_value *second_sum(tm_gctx *c, tm_value *v, int64_t axis, bool keep) {
  tm_attrs a;
  if (c->status || !v) return NULL;
  c->status = tm_g_attrs(c, "reduce_sum", &a);
  if (!c->status) c->status = tm_attr_set_ints(&a.a[0], TM_ATTR_AXES, &axis, 1);
  if (c->status) return NULL;
  tm_attr_set_bool(&a.a[1], keep);
  return tm_gn(c, "reduce_sum", &v, 1, &a, 0);
}

/* dx = y (dy - s), s = sum(dy y): dy gets J(h), y gets h (dy - s) - dy sum(h y). */
tm_status tm_second_softmax(tm_gctx *c) {
  tm_value *h = c->dout[0], *dy = c->in[0], *y = c->in[1];
  int64_t axis = tm_at_int(c->attrs, 0);
  tm_value *in[] = {h, y};
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, tm_g_same(c, c->op->name, in, 2, 0)));
  if (!c->need[1]) return c->status;
  tm_value *s = second_sum(c, second_mul(c, dy, y), axis, true);
  tm_value *r = second_sum(c, second_mul(c, h, y), axis, true);
  return tm_g_set(
      c, 1,
      tm_g2(c, "sub", second_mul(c, h, tm_g2(c, "sub", dy, s)), second_mul(c, dy, r)));
}

/* dx = dy - exp(y) sum(dy): dy gets h - sum(h exp(y)), y gets -h exp(y) sum(dy). */
tm_status tm_second_log_softmax(tm_gctx *c) {
  tm_value *h = c->dout[0];
  int64_t axis = tm_at_int(c->attrs, 0);
  tm_value *hp = second_mul(c, h, tm_g1(c, "exp", c->in[1]));
  if (c->need[0])
    TM_TRY(tm_g_set(c, 0, tm_g2(c, "sub", h, second_sum(c, hp, axis, true))));
  if (!c->need[1]) return c->status;
  tm_value *s = second_sum(c, c->in[0], axis, true);
  return tm_g_set(c, 1, tm_g1(c, "neg", second_mul(c, hp, s)));
}

static tm_value *second_column(tm_gctx *c, tm_value *v) {
  tm_attrs a;
  if (c->status || !v) return NULL;
  c->status = tm_g_attrs(c, "expand_dims", &a);
  if (c->status) return NULL;
  tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, -1);
  return tm_gn(c, "expand_dims", &v, 1, &a, 0);
}

/* dlogits = dy (S p - labels): dy gets sum(h (S p - labels)). */
static tm_status second_loss_dy(tm_gctx *c) {
  tm_value *in[] = {tm_g1(c, "ones_like", c->in[0]), c->in[1], c->in[2]};
  tm_value *d = tm_g_same(c, c->op->name, in, 3, 0);
  return tm_g_set(c, 0, second_sum(c, second_mul(c, c->dout[0], d), -1, false));
}

/* ... logits get dy S J(h), labels get dy (sum(h p) - h); S is the sum of labels. */
tm_status tm_second_softmax_loss(tm_gctx *c) {
  tm_value *h = c->dout[0], *labels = c->in[1];
  tm_value *p = tm_g1(c, "nn.softmax", c->in[2]), *dy = second_column(c, c->in[0]);
  if (c->need[0]) TM_TRY(second_loss_dy(c));
  if (c->need[1]) {
    tm_value *d = tm_g2(c, "sub", second_sum(c, second_mul(c, h, p), -1, true), h);
    TM_TRY(tm_g_set(c, 1, second_mul(c, dy, d)));
  }
  if (!c->need[2]) return c->status;
  tm_value *k = second_mul(c, dy, second_sum(c, labels, -1, true));
  return tm_g_set(c, 2, second_mul(c, k, tm_g2(c, "nn.softmax_grad", h, p)));
}

tm_status tm_second_sparse_loss(tm_gctx *c) {
  tm_value *p = tm_g1(c, "nn.softmax", c->in[2]), *dy = second_column(c, c->in[0]);
  if (c->need[0]) TM_TRY(second_loss_dy(c));
  if (!c->need[2]) return c->status;
  tm_value *j = tm_g2(c, "nn.softmax_grad", c->dout[0], p);
  return tm_g_set(c, 2, second_mul(c, dy, j));
}
