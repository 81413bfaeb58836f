#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/broadcast.h"
#include "graph/grad.h"
#include "graph/infer.h"

/*
 * Arithmetic, element by element.
 *
 * Design.  An op here is a row: which dtypes it takes (infer), which table of kernels
 * (elementwise.h), which gradient rule.  Binary ops broadcast and ask for equal
 * dtypes.  Gradients of binary ops end in tm_g_set_like, which sums over what was
 * broadcast.
 */

/* --- infer --- */

static tm_status math_same(tm_infer *c, unsigned want) {
  TM_TRY(tm_infer_want(c, 0, want));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}
static tm_status infer_number(tm_infer *c) { return math_same(c, TM_WANT_NUMBER); }
static tm_status infer_float(tm_infer *c) { return math_same(c, TM_WANT_FLOAT); }

static tm_status math_pair(tm_infer *c, unsigned want) {
  tm_shape s;
  TM_TRY(tm_infer_same_dtype(c, 0, 1));
  TM_TRY(tm_infer_want(c, 0, want));
  TM_TRY(tm_shape_broadcast(&c->in[0].shape, &c->in[1].shape, &s, c->err));
  return tm_infer_out(c, c->in[0].dtype, &s);
}
static tm_status infer_pair(tm_infer *c) { return math_pair(c, TM_WANT_NUMBER); }

static tm_status infer_div(tm_infer *c) {
  if (tm_dtype_is_int(c->in[0].dtype) && tm_dtype_is_int(c->in[1].dtype))
    return tm_fail(c->err, TM_EINVAL,
                   "division of %s: use floordiv, or cast to a float first",
                   tm_dtype_name(c->in[0].dtype));
  return math_pair(c, TM_WANT_FLOAT);
}

static tm_status infer_any(tm_infer *c) {
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status infer_cast(tm_infer *c) {
  tm_dtype to = tm_at_dtype(c->attrs, 0);
  if ((c->in[0].dtype == TM_STRING) != (to == TM_STRING))
    return tm_fail(c->err, TM_EINVAL, "cannot cast %s to %s; see strings.%s",
                   tm_dtype_name(c->in[0].dtype), tm_dtype_name(to),
                   to == TM_STRING ? "as_string" : "to_number");
  return tm_infer_out(c, to, &c->in[0].shape);
}

static tm_status infer_add_n(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  for (int32_t i = 1; i < c->nin; i++) {
    TM_TRY(tm_infer_same_dtype(c, i, 0));
    if (!tm_shape_compatible(&s, &c->in[i].shape)) {
      char a[128], b[128];
      return tm_fail(c->err, TM_EINVAL, "xs[1] has shape %s but xs[%" PRId32 "] %s",
                     tm_shape_text(&s, a, sizeof a), i + 1,
                     tm_shape_text(&c->in[i].shape, b, sizeof b));
    }
    for (int32_t k = 0; k < s.rank; k++)
      if (s.dim[k] < 0) s.dim[k] = c->in[i].shape.dim[k];
  }
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* The bounds may be smaller than x, not larger. */
static tm_status infer_clip(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  for (int32_t i = 1; i < 3; i++) {
    tm_shape s;
    TM_TRY(tm_infer_same_dtype(c, i, 0));
    TM_TRY(tm_shape_broadcast(&c->in[0].shape, &c->in[i].shape, &s, c->err));
    if (!tm_shape_compatible(&s, &c->in[0].shape)) {
      char name[40], a[128], b[128];
      return tm_fail(c->err, TM_EINVAL, "%s of shape %s is larger than x of shape %s",
                     tm_infer_name(c, i, name, sizeof name),
                     tm_shape_text(&c->in[i].shape, a, sizeof a),
                     tm_shape_text(&c->in[0].shape, b, sizeof b));
    }
  }
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

/* --- kernels --- */

static tm_status math_unary(tm_kctx *c, tm_k_unary *const *table) {
  int64_t n = tm_view_count(&c->in[0]);
  table[tm_k_type_of(c->in[0].dtype)](c->out[0].data, c->in[0].data, (size_t)n);
  return TM_OK;
}
static tm_status math_binary(tm_kctx *c, tm_k_binary *const *table) {
  tm_broadcast_binary(&c->out[0], &c->in[0], &c->in[1],
                      table[tm_k_type_of(c->in[0].dtype)]);
  return TM_OK;
}

#define UNARY(name) \
  static tm_status kernel_##name(tm_kctx *c) { return math_unary(c, tm_k_##name); }
UNARY(neg)
UNARY(abs)
UNARY(sign)
UNARY(square)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(reciprocal)
UNARY(exp)
UNARY(expm1)
UNARY(log)
UNARY(log1p)
UNARY(sin)
UNARY(cos)
UNARY(tan)
UNARY(sinh)
UNARY(cosh)
UNARY(tanh)
UNARY(sigmoid)
UNARY(erf)
UNARY(floor)
UNARY(ceil)
UNARY(round)

#define BINARY(name) \
  static tm_status kernel_##name(tm_kctx *c) { return math_binary(c, tm_k_##name); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(minimum)
BINARY(maximum)

/* Whether integers hold a value below `least` or, when asked for, zero. */
static bool math_holds(const tm_view *v, bool zero, int64_t least) {
  for (int64_t i = 0, n = tm_view_count(v); i < n; i++) {
    int64_t x = tm_view_get_i64(v, i);
    if (x < least || (zero && x == 0)) return true;
  }
  return false;
}

static tm_status math_divide(tm_kctx *c, tm_k_binary *const *table) {
  if (tm_dtype_is_int(c->in[1].dtype) && tm_view_count(&c->out[0]) > 0 &&
      math_holds(&c->in[1], true, INT64_MIN))
    return tm_fail(c->err, TM_EINVAL, "integer division by zero");
  return math_binary(c, table);
}
static tm_status kernel_floordiv(tm_kctx *c) { return math_divide(c, tm_k_floordiv); }
static tm_status kernel_mod(tm_kctx *c) { return math_divide(c, tm_k_mod); }

static tm_status kernel_pow(tm_kctx *c) {
  if (tm_dtype_is_int(c->in[1].dtype) && math_holds(&c->in[1], false, 0))
    return tm_fail(c->err, TM_EINVAL,
                   "integers to a negative power; cast to a float first");
  return math_binary(c, tm_k_pow);
}

static tm_status kernel_copy(tm_kctx *c) {
  if (c->out[0].data != c->in[0].data)
    memcpy(c->out[0].data, c->in[0].data, tm_view_bytes(&c->in[0]));
  return TM_OK;
}

static tm_status kernel_cast(tm_kctx *c) {
  if (c->in[0].dtype == TM_STRING) return kernel_copy(c);
  tm_k_cast(c->out[0].data, tm_k_type_of(c->out[0].dtype), c->in[0].data,
            tm_k_type_of(c->in[0].dtype), (size_t)tm_view_count(&c->in[0]));
  return TM_OK;
}

static tm_status kernel_add_n(tm_kctx *c) {
  tm_k_binary *add = tm_k_add[tm_k_type_of(c->in[0].dtype)];
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (c->nin == 1) return kernel_copy(c);
  add(c->out[0].data, c->in[0].data, c->in[1].data, n, TM_K_VV);
  for (int32_t i = 2; i < c->nin; i++)
    add(c->out[0].data, c->out[0].data, c->in[i].data, n, TM_K_VV);
  return TM_OK;
}

static tm_status kernel_clip(tm_kctx *c) {
  int t = tm_k_type_of(c->in[0].dtype);
  tm_broadcast_binary(&c->out[0], &c->in[0], &c->in[1], tm_k_maximum[t]);
  tm_broadcast_binary(&c->out[0], &c->out[0], &c->in[2], tm_k_minimum[t]);
  return TM_OK;
}

/* --- gradients; x: input, y: output, g: gradient of the output --- */

/* g * v and g / v for the one input. */
static tm_status grad_times(tm_gctx *c, tm_value *v) {
  return tm_g_set(c, 0, tm_g2(c, "mul", c->dout[0], v));
}
static tm_status grad_over(tm_gctx *c, tm_value *v) {
  return tm_g_set(c, 0, tm_g2(c, "div", c->dout[0], v));
}
/* v * k + d, k and d numbers. */
static tm_value *grad_scale(tm_gctx *c, tm_value *v, double k) {
  return tm_g2(c, "mul", v, tm_g_const(c, v, k));
}
static tm_value *grad_plus(tm_gctx *c, tm_value *v, double d) {
  return tm_g2(c, "add", v, tm_g_const(c, v, d));
}
/* 1 - v */
static tm_value *grad_one_minus(tm_gctx *c, tm_value *v) {
  return tm_g2(c, "sub", tm_g_const(c, v, 1), v);
}

static tm_status grad_pass(tm_gctx *c) { return tm_g_set(c, 0, c->dout[0]); }
static tm_status grad_neg(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g1(c, "neg", c->dout[0]));
}
static tm_status grad_abs(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "sign", c->in[0]));
}
static tm_status grad_square(tm_gctx *c) {
  return grad_times(c, grad_scale(c, c->in[0], 2));
}
static tm_status grad_sqrt(tm_gctx *c) {
  return grad_over(c, grad_scale(c, c->out[0], 2));
}
static tm_status grad_rsqrt(tm_gctx *c) { /* -y^3 / 2 */
  tm_value *y3 = tm_g2(c, "mul", c->out[0], tm_g1(c, "square", c->out[0]));
  return grad_times(c, grad_scale(c, y3, -0.5));
}
static tm_status grad_reciprocal(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "neg", tm_g1(c, "square", c->out[0])));
}
static tm_status grad_exp(tm_gctx *c) { return grad_times(c, c->out[0]); }
static tm_status grad_expm1(tm_gctx *c) {
  return grad_times(c, grad_plus(c, c->out[0], 1));
}
static tm_status grad_log(tm_gctx *c) { return grad_over(c, c->in[0]); }
static tm_status grad_log1p(tm_gctx *c) {
  return grad_over(c, grad_plus(c, c->in[0], 1));
}
static tm_status grad_sin(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "cos", c->in[0]));
}
static tm_status grad_cos(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "neg", tm_g1(c, "sin", c->in[0])));
}
static tm_status grad_tan(tm_gctx *c) {
  return grad_times(c, grad_plus(c, tm_g1(c, "square", c->out[0]), 1));
}
static tm_status grad_sinh(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "cosh", c->in[0]));
}
static tm_status grad_cosh(tm_gctx *c) {
  return grad_times(c, tm_g1(c, "sinh", c->in[0]));
}
static tm_status grad_tanh(tm_gctx *c) {
  return grad_times(c, grad_one_minus(c, tm_g1(c, "square", c->out[0])));
}
static tm_status grad_sigmoid(tm_gctx *c) {
  return grad_times(c, tm_g2(c, "mul", c->out[0], grad_one_minus(c, c->out[0])));
}
static tm_status grad_erf(tm_gctx *c) { /* 2 / sqrt(pi) * exp(-x^2) */
  tm_value *e = tm_g1(c, "exp", tm_g1(c, "neg", tm_g1(c, "square", c->in[0])));
  return grad_times(c, grad_scale(c, e, 1.1283791670955126));
}

static tm_status grad_add(tm_gctx *c) {
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, c->dout[0]));
  return c->need[1] ? tm_g_set_like(c, 1, c->dout[0]) : TM_OK;
}
static tm_status grad_sub(tm_gctx *c) {
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, c->dout[0]));
  return c->need[1] ? tm_g_set_like(c, 1, tm_g1(c, "neg", c->dout[0])) : TM_OK;
}
static tm_status grad_mul(tm_gctx *c) {
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, tm_g2(c, "mul", c->dout[0], c->in[1])));
  if (c->need[1]) TM_TRY(tm_g_set_like(c, 1, tm_g2(c, "mul", c->dout[0], c->in[0])));
  return c->status;
}
static tm_status grad_div(tm_gctx *c) {
  tm_value *d = tm_g2(c, "div", c->dout[0], c->in[1]);
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, d));
  if (c->need[1])
    TM_TRY(tm_g_set_like(c, 1, tm_g1(c, "neg", tm_g2(c, "mul", d, c->out[0]))));
  return c->status;
}
static tm_status grad_mod(tm_gctx *c) { /* x - floor(x / y) * y */
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, c->dout[0]));
  if (!c->need[1]) return c->status;
  tm_value *q = tm_g1(c, "neg", tm_g2(c, "floordiv", c->in[0], c->in[1]));
  return tm_g_set_like(c, 1, tm_g2(c, "mul", c->dout[0], q));
}
static tm_value *grad_where(tm_gctx *c, tm_value *cond, tm_value *a, tm_value *b) {
  return tm_gn(c, "where", (tm_value *[]){cond, a, b}, 3, NULL, 0);
}
static tm_status grad_pow(tm_gctx *c) {
  tm_value *x = c->in[0], *p = c->in[1];
  if (c->need[0]) {
    tm_value *d = tm_g2(c, "mul", p, tm_g2(c, "pow", x, grad_plus(c, p, -1)));
    TM_TRY(tm_g_set_like(c, 0, tm_g2(c, "mul", c->dout[0], d)));
  }
  if (!c->need[1]) return c->status;
  /* The logarithm counts where x > 0, elsewhere it is 0. */
  tm_value *one = tm_g_const(c, x, 1);
  tm_value *safe = grad_where(c, tm_g2(c, "greater", x, tm_g_const(c, x, 0)), x, one);
  tm_value *d = tm_g2(c, "mul", c->out[0], tm_g1(c, "log", safe));
  return tm_g_set_like(c, 1, tm_g2(c, "mul", c->dout[0], d));
}

/* The gradient goes to the input that was taken; at a tie to the first. */
static tm_status grad_taken(tm_gctx *c, const char *test) {
  tm_value *g = c->dout[0], *zero = tm_g_const(c, g, 0);
  tm_value *first = tm_g2(c, test, c->in[0], c->in[1]);
  if (c->need[0]) TM_TRY(tm_g_set_like(c, 0, grad_where(c, first, g, zero)));
  if (c->need[1]) TM_TRY(tm_g_set_like(c, 1, grad_where(c, first, zero, g)));
  return c->status;
}
static tm_status grad_minimum(tm_gctx *c) { return grad_taken(c, "less_equal"); }
static tm_status grad_maximum(tm_gctx *c) { return grad_taken(c, "greater_equal"); }

/* To x inside the bounds, to a bound where it was taken. */
static tm_status grad_clip(tm_gctx *c) {
  tm_value *g = c->dout[0], *zero = tm_g_const(c, g, 0);
  tm_value *below = tm_g2(c, "less", c->in[0], c->in[1]);
  tm_value *above = tm_g2(c, "greater", c->in[0], c->in[2]);
  if (c->need[0]) {
    tm_value *out = tm_g2(c, "logical_or", below, above);
    TM_TRY(tm_g_set(c, 0, grad_where(c, out, zero, g)));
  }
  if (c->need[1]) TM_TRY(tm_g_set_like(c, 1, grad_where(c, below, g, zero)));
  if (c->need[2]) TM_TRY(tm_g_set_like(c, 2, grad_where(c, above, g, zero)));
  return c->status;
}

static tm_status grad_cast(tm_gctx *c) {
  tm_attrs a;
  tm_dtype t = c->in[0]->type.dtype;
  if (!tm_dtype_is_float(t) || !tm_dtype_is_float(c->out[0]->type.dtype)) return TM_OK;
  TM_TRY(tm_g_attrs(c, "cast", &a));
  tm_attr_set_int(&a.a[0], TM_ATTR_DTYPE, t);
  return tm_g_set(c, 0, tm_gn(c, "cast", &c->dout[0], 1, &a, 0));
}

static tm_status grad_add_n(tm_gctx *c) {
  for (int32_t i = 0; i < c->nin; i++) TM_TRY(tm_g_set(c, i, c->dout[0]));
  return TM_OK;
}

/* --- the table --- */

enum { ELEMENT = TM_OP_ELEMENTWISE | TM_OP_INPLACE };

#define OP1(n, want, g, h)                                                      \
  {                                                                             \
    .name = #n, .sig = "x", .help = h, .flags = ELEMENT, .infer = infer_##want, \
    .kernel = kernel_##n, .grad = g                                             \
  }
#define OP2(n, inf, g, h)                                                         \
  {                                                                               \
    .name = #n, .sig = "a, b", .help = h, .flags = ELEMENT, .infer = infer_##inf, \
    .kernel = kernel_##n, .grad = g                                               \
  }

static const tm_op math_ops[] = {
    OP2(add, pair, grad_add, "a + b, broadcasting; integers wrap."),
    OP2(sub, pair, grad_sub, "a - b, broadcasting; integers wrap."),
    OP2(mul, pair, grad_mul, "a * b, broadcasting; integers wrap."),
    OP2(div, div, grad_div, "a / b of floats, broadcasting."),
    OP2(floordiv, pair, NULL,
        "The largest whole number not above a / b, broadcasting."),
    OP2(mod, pair, grad_mod,
        "What floordiv leaves over, with the sign of b, broadcasting."),
    OP2(pow, pair, grad_pow, "a to the power b, broadcasting."),
    OP2(minimum, pair, grad_minimum, "The smaller of a and b, broadcasting; NaN wins."),
    OP2(maximum, pair, grad_maximum, "The larger of a and b, broadcasting; NaN wins."),
    OP1(neg, number, grad_neg, "-x."),
    OP1(abs, number, grad_abs, "The magnitude of x."),
    OP1(sign, number, NULL, "-1, 0 or 1 as x is below, at or above 0."),
    OP1(square, number, grad_square, "x * x."),
    OP1(sqrt, float, grad_sqrt, "The square root of x."),
    OP1(rsqrt, float, grad_rsqrt, "1 / sqrt(x)."),
    OP1(reciprocal, float, grad_reciprocal, "1 / x."),
    OP1(exp, float, grad_exp, "e to the power x."),
    OP1(expm1, float, grad_expm1, "exp(x) - 1, exact for small x."),
    OP1(log, float, grad_log, "The natural logarithm of x."),
    OP1(log1p, float, grad_log1p, "log(1 + x), exact for small x."),
    OP1(sin, float, grad_sin, "The sine of x radians."),
    OP1(cos, float, grad_cos, "The cosine of x radians."),
    OP1(tan, float, grad_tan, "The tangent of x radians."),
    OP1(sinh, float, grad_sinh, "The hyperbolic sine of x."),
    OP1(cosh, float, grad_cosh, "The hyperbolic cosine of x."),
    OP1(tanh, float, grad_tanh, "The hyperbolic tangent of x."),
    OP1(sigmoid, float, grad_sigmoid, "1 / (1 + exp(-x))."),
    OP1(erf, float, grad_erf, "The error function of x."),
    OP1(floor, float, NULL, "The largest whole number not above x."),
    OP1(ceil, float, NULL, "The smallest whole number not below x."),
    OP1(round, float, NULL, "The nearest whole number, halves to the even one."),
    {.name = "clip_by_value",
     .sig = "x, min, max",
     .help = "x limited to min..max, which broadcast to x's shape.",
     .flags = TM_OP_ELEMENTWISE,
     .infer = infer_clip,
     .kernel = kernel_clip,
     .grad = grad_clip},
    {.name = "add_n",
     .sig = "xs...",
     .help = "The sum of tensors of one shape.",
     .flags = TM_OP_ELEMENTWISE,
     .infer = infer_add_n,
     .kernel = kernel_add_n,
     .grad = grad_add_n},
    {.name = "identity",
     .sig = "x",
     .help = "x itself.",
     .flags = TM_OP_VIEW,
     .infer = infer_any,
     .kernel = kernel_copy,
     .grad = grad_pass},
    {.name = "stop_gradient",
     .sig = "x",
     .help = "x itself, through which no gradient flows.",
     .flags = TM_OP_VIEW,
     .infer = infer_any,
     .kernel = kernel_copy},
    {.name = "cast",
     .sig = "x; dtype:dtype",
     .help = "x in another dtype: floats are cut towards 0 and limited to the range of "
             "the integers, NaN gives 0, integers wrap, bools are 0 and 1.",
     .flags = TM_OP_ELEMENTWISE,
     .infer = infer_cast,
     .kernel = kernel_cast,
     .grad = grad_cast},
};

const tm_op_group tm_ops_math = {math_ops, TM_COUNT(math_ops)};
