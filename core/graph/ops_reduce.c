#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/broadcast.h"
#include "graph/grad.h"
#include "graph/infer.h"
#include "graph/reduce.h"
#include "kernel/reduce.h"

/*
 * Reductions over axes, and their inverse for gradients.
 *
 * Design.  Attribute 0 is `axis` (absent: all axes), attribute 1 `keepdims`.  A
 * reduction is laid out as (rows, n, inner) by graph/reduce.h.  Gradients spread the
 * gradient of the result over x with the hidden op `unreduce`; it and its helpers
 * sum_like and broadcast_like take a second input for its shape alone, so they work
 * where shapes are known only at run time.
 */
enum { AXIS = 0, KEEPDIMS = 1 };

/* --- infer --- */

static tm_status reduce_out(tm_infer *c, tm_dtype t, bool not_empty) {
  const tm_shape *x = &c->in[0].shape;
  uint32_t mask;
  tm_shape out;
  TM_TRY(tm_axes_mask(c->attrs, AXIS, x, &mask, c->err));
  tm_reduce_shape(x, mask, tm_at_bool(c->attrs, KEEPDIMS), &out);
  for (int32_t i = 0; not_empty && i < x->rank; i++)
    if ((mask >> i & 1U) && x->dim[i] == 0 && tm_shape_count(&out) != 0)
      return tm_fail(c->err, TM_EINVAL, "axis %" PRId32 " of x is empty", i + 1);
  return tm_infer_out(c, t, &out);
}
static tm_status reduce_infer(tm_infer *c, unsigned want, bool not_empty) {
  TM_TRY(tm_infer_want(c, 0, want));
  return reduce_out(c, c->in[0].dtype, not_empty);
}
static tm_status infer_number(tm_infer *c) {
  return reduce_infer(c, TM_WANT_NUMBER, false);
}
static tm_status infer_extreme(tm_infer *c) {
  return reduce_infer(c, TM_WANT_NUMBER, true);
}
static tm_status infer_float(tm_infer *c) {
  return reduce_infer(c, TM_WANT_FLOAT, false);
}
static tm_status infer_bool(tm_infer *c) {
  return reduce_infer(c, TM_WANT_BOOL, false);
}

static tm_status infer_arg(tm_infer *c) {
  tm_dtype t = tm_at_dtype(c->attrs, 1);
  const tm_shape *x = &c->in[0].shape;
  int32_t axis;
  tm_shape out;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  TM_TRY(tm_shape_axis(x, tm_at_int(c->attrs, AXIS), &axis, c->err));
  if (t != TM_I64 && t != TM_I32)
    return tm_fail(c->err, TM_EINVAL, "output_type must be int64 or int32, not %s",
                   tm_dtype_name(t));
  tm_reduce_shape(x, 1U << axis, false, &out);
  if (x->dim[axis] == 0 && tm_shape_count(&out) != 0)
    return tm_fail(c->err, TM_EINVAL, "axis %" PRId32 " of x is empty", axis + 1);
  return tm_infer_out(c, t, &out);
}

/* --- kernels --- */

static tm_status reduce_plan(const tm_kctx *c, bool rows_only, tm_reduce_plan *p) {
  uint32_t mask;
  TM_TRY(tm_axes_mask(c->attrs, AXIS, &c->in[0].shape, &mask, c->err));
  tm_reduce_layout(p, &c->in[0].shape, mask, rows_only);
  return TM_OK;
}
static size_t reduce_scratch(const tm_kctx *c, bool rows_only) {
  tm_reduce_plan p;
  if (reduce_plan(c, rows_only, &p)) return 0; /* the kernel will say why */
  return p.gather ? tm_view_bytes(&c->in[0]) : 0;
}
static size_t scratch_any(const tm_kctx *c) { return reduce_scratch(c, false); }
static size_t scratch_rows(const tm_kctx *c) { return reduce_scratch(c, true); }

static tm_status reduce_run(tm_kctx *c, tm_k_reduce *const *table, tm_reduce_plan *p) {
  int t = tm_k_type_of(c->in[0].dtype);
  TM_TRY(reduce_plan(c, false, p));
  const void *x = tm_reduce_data(p, &c->in[0], c->scratch);
  table[t == TM_K_TYPES ? TM_K_U8 : t](c->out[0].data, x, p->rows, p->n, p->inner);
  return TM_OK;
}

#define SIMPLE(name, table)                    \
  static tm_status kernel_##name(tm_kctx *c) { \
    tm_reduce_plan p;                          \
    return reduce_run(c, table, &p);           \
  }
SIMPLE(sum, tm_k_sum)
SIMPLE(prod, tm_k_prod)
SIMPLE(max, tm_k_max)
SIMPLE(min, tm_k_min)
SIMPLE(any, tm_k_max) /* bools are bytes 0 and 1; the largest of none is 0, */
SIMPLE(all, tm_k_min) /* the smallest of none 255, made true below */

static tm_status kernel_reduce_all(tm_kctx *c) {
  uint8_t *o = c->out[0].data;
  TM_TRY(kernel_all(c));
  for (int64_t i = 0, n = tm_view_count(&c->out[0]); i < n; i++) o[i] = o[i] != 0;
  return TM_OK;
}

/* out /= n */
static void reduce_divide(const tm_view *out, size_t n) {
  float f = (float)n;
  double d = (double)n;
  const void *by = out->dtype == TM_F32 ? (const void *)&f : (const void *)&d;
  tm_k_div[tm_k_type_of(out->dtype)](out->data, out->data, by,
                                     (size_t)tm_view_count(out), TM_K_VS);
}

static tm_status kernel_mean(tm_kctx *c) {
  tm_reduce_plan p;
  TM_TRY(reduce_run(c, tm_k_sum, &p));
  reduce_divide(&c->out[0], p.n);
  return TM_OK;
}

static tm_status kernel_logsumexp(tm_kctx *c) {
  tm_reduce_plan p;
  TM_TRY(reduce_plan(c, true, &p));
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  if (c->in[0].dtype == TM_F32)
    tm_k_logsumexp_f32(c->out[0].data, x, p.rows, p.n);
  else
    tm_k_logsumexp_f64(c->out[0].data, x, p.rows, p.n);
  return TM_OK;
}

static tm_status kernel_var(tm_kctx *c) {
  tm_reduce_plan p;
  TM_TRY(reduce_plan(c, true, &p));
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  if (c->in[0].dtype == TM_F32)
    tm_k_var_f32(c->out[0].data, x, p.rows, p.n);
  else
    tm_k_var_f64(c->out[0].data, x, p.rows, p.n);
  return TM_OK;
}
static tm_status kernel_std(tm_kctx *c) {
  void *o = c->out[0].data;
  TM_TRY(kernel_var(c));
  tm_k_sqrt[tm_k_type_of(c->out[0].dtype)](o, o, (size_t)tm_view_count(&c->out[0]));
  return TM_OK;
}

static size_t scratch_arg(const tm_kctx *c) {
  return c->out[0].dtype == TM_I64 ? 0 : (size_t)tm_view_count(&c->out[0]) * 8;
}
static tm_status reduce_arg(tm_kctx *c, tm_k_arg *const *table) {
  tm_reduce_plan p;
  int32_t axis;
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, AXIS), &axis, c->err));
  tm_reduce_layout(&p, &c->in[0].shape, 1U << axis, false);
  bool wide = c->out[0].dtype == TM_I64;
  int64_t *o = wide ? c->out[0].data : c->scratch;
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (n == 0) return TM_OK;
  table[tm_k_type_of(c->in[0].dtype)](o, c->in[0].data, p.rows, p.n, p.inner);
  if (!wide) tm_k_cast(c->out[0].data, TM_K_I32, o, TM_K_I64, n);
  return TM_OK;
}
static tm_status kernel_argmax(tm_kctx *c) { return reduce_arg(c, tm_k_argmax); }
static tm_status kernel_argmin(tm_kctx *c) { return reduce_arg(c, tm_k_argmin); }

/* --- gradients --- */

/* An op on (a, b) with this op's axes and its second attribute. */
static tm_value *reduce_with_axes(tm_gctx *c, const char *op, tm_value *a, tm_value *b,
                                  bool flag) {
  tm_attrs attrs;
  if (c->status || !a) return NULL;
  c->status = tm_g_attrs(c, op, &attrs);
  if (c->status) return NULL;
  const tm_attr *axis = &c->attrs->a[AXIS];
  if (axis->kind != TM_ATTR_NONE)
    c->status = tm_attr_set_ints(&attrs.a[AXIS], TM_ATTR_AXES, axis->u.is, axis->n);
  if (c->status) return NULL;
  tm_attr_set_bool(&attrs.a[1], flag);
  return tm_gn(c, op, (tm_value *[]){a, b}, b ? 2 : 1, &attrs, 0);
}
/* Spread v (of the result's shape) over x. */
static tm_value *reduce_spread(tm_gctx *c, tm_value *v, bool mean) {
  return reduce_with_axes(c, "unreduce", v, c->in[0], mean);
}

static tm_status grad_sum(tm_gctx *c) {
  return tm_g_set(c, 0, reduce_spread(c, c->dout[0], false));
}
static tm_status grad_mean(tm_gctx *c) {
  return tm_g_set(c, 0, reduce_spread(c, c->dout[0], true));
}
static tm_status grad_prod(tm_gctx *c) {
  tm_value *others = reduce_with_axes(c, "reduce_prod_others", c->in[0], NULL, false);
  return tm_g_set(c, 0, tm_g2(c, "mul", reduce_spread(c, c->dout[0], false), others));
}
/* Equal extremes share the gradient. */
static tm_status grad_extreme(tm_gctx *c) {
  tm_value *x = c->in[0],
           *is = tm_g2(c, "equal", x, reduce_spread(c, c->out[0], false));
  tm_value *one = tm_g_const(c, x, 1), *zero = tm_g_const(c, x, 0);
  tm_value *mask = tm_gn(c, "where", (tm_value *[]){is, one, zero}, 3, NULL, 0);
  tm_value *count =
      reduce_with_axes(c, "reduce_sum", mask, NULL, tm_at_bool(c->attrs, KEEPDIMS));
  tm_value *g = tm_g2(c, "div", c->dout[0], count);
  return tm_g_set(c, 0, tm_g2(c, "mul", mask, reduce_spread(c, g, false)));
}
static tm_status grad_logsumexp(tm_gctx *c) {
  tm_value *d = tm_g2(c, "sub", c->in[0], reduce_spread(c, c->out[0], false));
  tm_value *g = reduce_spread(c, c->dout[0], false);
  return tm_g_set(c, 0, tm_g2(c, "mul", g, tm_g1(c, "exp", d)));
}
/* (x - mean(x)) * spread(g) / n */
static tm_status reduce_grad_moment(tm_gctx *c, tm_value *g) {
  tm_value *mean = reduce_with_axes(c, "reduce_mean", c->in[0], NULL, true);
  tm_value *d = tm_g2(c, "sub", c->in[0], mean);
  return tm_g_set(c, 0, tm_g2(c, "mul", reduce_spread(c, g, true), d));
}
static tm_status grad_var(tm_gctx *c) {
  return reduce_grad_moment(c,
                            tm_g2(c, "mul", c->dout[0], tm_g_const(c, c->dout[0], 2)));
}
static tm_status grad_std(tm_gctx *c) {
  return reduce_grad_moment(c, tm_g2(c, "div", c->dout[0], c->out[0]));
}

/* --- hidden ops: the way back --- */

/* "g, x; axis, mean": g of the shape of a reduction of x, with or without the
 * reduced axes, repeated along them; divided by their size where mean is set. */
static tm_status reduce_keepdims_of(const tm_type *g, const tm_shape *x, uint32_t mask,
                                    tm_shape *keep, tm_err *err) {
  tm_shape drop;
  tm_reduce_shape(x, mask, true, keep);
  tm_reduce_shape(x, mask, false, &drop);
  if (tm_shape_compatible(&g->shape, keep) || tm_shape_compatible(&g->shape, &drop))
    return TM_OK;
  char a[128], b[128];
  return tm_fail(err, TM_EINVAL, "g of shape %s is no reduction of shape %s",
                 tm_shape_text(&g->shape, a, sizeof a), tm_shape_text(x, b, sizeof b));
}

static tm_status infer_unreduce(tm_infer *c) {
  uint32_t mask;
  tm_shape keep;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  TM_TRY(tm_axes_mask(c->attrs, AXIS, &c->in[1].shape, &mask, c->err));
  TM_TRY(reduce_keepdims_of(&c->in[0], &c->in[1].shape, mask, &keep, c->err));
  if (tm_at_bool(c->attrs, 1)) TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status kernel_unreduce(tm_kctx *c) {
  uint32_t mask;
  tm_view g = c->in[0];
  const tm_shape *x = &c->in[1].shape;
  TM_TRY(tm_axes_mask(c->attrs, AXIS, x, &mask, c->err));
  tm_reduce_shape(x, mask, true, &g.shape);
  tm_broadcast_copy(&c->out[0], &g);
  if (!tm_at_bool(c->attrs, 1)) return TM_OK;
  tm_reduce_plan p;
  tm_reduce_layout(&p, x, mask, false);
  reduce_divide(&c->out[0], p.n);
  return TM_OK;
}

static tm_status grad_unreduce(tm_gctx *c) {
  bool keep = c->in[0]->type.shape.rank == c->in[1]->type.shape.rank;
  const char *op = tm_at_bool(c->attrs, 1) ? "reduce_mean" : "reduce_sum";
  return tm_g_set(c, 0, reduce_with_axes(c, op, c->dout[0], NULL, keep));
}

static tm_status kernel_prod_others(tm_kctx *c) {
  tm_reduce_plan p;
  TM_TRY(reduce_plan(c, true, &p));
  /* The first half of scratch is x by rows, the second the result. */
  size_t bytes = tm_view_bytes(&c->in[0]);
  const void *x = tm_reduce_data(&p, &c->in[0], c->scratch);
  void *o = p.gather ? (char *)c->scratch + bytes : c->out[0].data;
  if (c->in[0].dtype == TM_F32)
    tm_k_prod_others_f32(o, x, p.rows, p.n);
  else
    tm_k_prod_others_f64(o, x, p.rows, p.n);
  if (p.gather) tm_reduce_scatter(&p, &c->out[0], o);
  return TM_OK;
}
static tm_status infer_prod_others(tm_infer *c) {
  uint32_t mask;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_axes_mask(c->attrs, AXIS, &c->in[0].shape, &mask, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}
static tm_status grad_prod_others(tm_gctx *c) {
  return tm_g_set(
      c, 0,
      reduce_with_axes(c, "reduce_prod_others_grad", c->dout[0], c->in[0], false));
}

/* "h, x": rows of each, then the result, in scratch. */
static tm_status infer_prod_others_grad(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return infer_prod_others(c);
}
static tm_status kernel_prod_others_grad(tm_kctx *c) {
  tm_reduce_plan p;
  TM_TRY(reduce_plan(c, true, &p));
  size_t bytes = tm_view_bytes(&c->in[0]);
  char *scratch = c->scratch;
  const void *h = tm_reduce_data(&p, &c->in[0], scratch);
  const void *x = tm_reduce_data(&p, &c->in[1], p.gather ? scratch + bytes : scratch);
  void *o = p.gather ? scratch + 2 * bytes : c->out[0].data;
  if (c->in[0].dtype == TM_F32)
    tm_k_prod_others_grad_f32(o, h, x, p.rows, p.n);
  else
    tm_k_prod_others_grad_f64(o, h, x, p.rows, p.n);
  if (p.gather) tm_reduce_scatter(&p, &c->out[0], o);
  return TM_OK;
}
static size_t scratch_prod_others_grad(const tm_kctx *c) { return 3 * scratch_rows(c); }
static size_t scratch_prod_others(const tm_kctx *c) { return 2 * scratch_rows(c); }

static tm_status reduce_like(tm_infer *c, const tm_type *large, const tm_type *small) {
  tm_shape s;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  TM_TRY(tm_shape_broadcast(&large->shape, &small->shape, &s, c->err));
  if (!tm_shape_compatible(&s, &large->shape)) {
    char a[128], b[128];
    return tm_fail(c->err, TM_EINVAL, "shape %s does not broadcast to shape %s",
                   tm_shape_text(&small->shape, a, sizeof a),
                   tm_shape_text(&large->shape, b, sizeof b));
  }
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}
static tm_status infer_sum_like(tm_infer *c) {
  return reduce_like(c, &c->in[0], &c->in[1]);
}
static tm_status infer_broadcast_like(tm_infer *c) {
  return reduce_like(c, &c->in[1], &c->in[0]);
}

static void reduce_sum_like_plan(const tm_kctx *c, tm_reduce_plan *p) {
  const tm_shape *g = &c->in[0].shape;
  tm_reduce_layout(p, g, tm_reduce_unbroadcast(g, &c->in[1].shape), false);
}
static size_t scratch_sum_like(const tm_kctx *c) {
  tm_reduce_plan p;
  reduce_sum_like_plan(c, &p);
  return p.gather ? tm_view_bytes(&c->in[0]) : 0;
}
static tm_status kernel_sum_like(tm_kctx *c) {
  tm_reduce_plan p;
  reduce_sum_like_plan(c, &p);
  if (p.mask == 0) {
    if (c->out[0].data != c->in[0].data)
      memcpy(c->out[0].data, c->in[0].data, tm_view_bytes(&c->in[0]));
    return TM_OK;
  }
  const void *g = tm_reduce_data(&p, &c->in[0], c->scratch);
  tm_k_sum[tm_k_type_of(c->in[0].dtype)](c->out[0].data, g, p.rows, p.n, p.inner);
  return TM_OK;
}
static tm_status grad_sum_like(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "broadcast_like", c->dout[0], c->in[0]));
}

static tm_status kernel_broadcast_like(tm_kctx *c) {
  if (c->out[0].data != c->in[0].data) tm_broadcast_copy(&c->out[0], &c->in[0]);
  return TM_OK;
}
static tm_status grad_broadcast_like(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "sum_like", c->dout[0], c->in[0]));
}

/* --- clip_by_norm: x * clip / max(norm, clip), as TensorFlow's --- */

static tm_status infer_clip_by_norm(tm_infer *c) {
  uint32_t mask;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_axes_mask(c->attrs, 1, &c->in[0].shape, &mask, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}
/* Scratch: squares in x's order, the gathered squares, the norms. */
static size_t scratch_clip_by_norm(const tm_kctx *c) {
  return 3 * tm_view_bytes(&c->in[0]) + sizeof(double);
}
static tm_status kernel_clip_by_norm(tm_kctx *c) {
  int t = tm_k_type_of(c->in[0].dtype);
  size_t n = (size_t)tm_view_count(&c->in[0]), bytes = tm_view_bytes(&c->in[0]);
  double d = tm_at_float(c->attrs, 0);
  float f = (float)d;
  const void *clip = t == TM_K_F32 ? (const void *)&f : (const void *)&d;
  tm_view square = c->in[0], norm = c->in[0];
  tm_reduce_plan p;
  uint32_t mask;
  if (n == 0) return TM_OK;
  TM_TRY(tm_axes_mask(c->attrs, 1, &c->in[0].shape, &mask, c->err));
  tm_reduce_layout(&p, &c->in[0].shape, mask, false);
  square.data = c->scratch;
  norm.data = (char *)c->scratch + 2 * bytes;
  tm_reduce_shape(&c->in[0].shape, mask, true, &norm.shape);
  size_t m = (size_t)tm_view_count(&norm);
  tm_k_square[t](square.data, c->in[0].data, n);
  const void *x = tm_reduce_data(&p, &square, (char *)c->scratch + bytes);
  tm_k_sum[t](norm.data, x, p.rows, p.n, p.inner);
  tm_k_sqrt[t](norm.data, norm.data, m);
  tm_k_maximum[t](norm.data, norm.data, clip, m, TM_K_VS);
  tm_k_mul[t](c->out[0].data, c->in[0].data, clip, n, TM_K_VS);
  tm_broadcast_binary(&c->out[0], &c->out[0], &norm, tm_k_div[t]);
  return TM_OK;
}

/* With k = clip / max(norm, clip): g k, less x k sum(g x) / norm^2 where clipped. */
static tm_value *clip_sum(tm_gctx *c, tm_value *v) {
  tm_attrs attrs;
  const tm_attr *axis = &c->attrs->a[1];
  if (c->status || !v) return NULL;
  c->status = tm_g_attrs(c, "reduce_sum", &attrs);
  if (!c->status && axis->kind != TM_ATTR_NONE)
    c->status = tm_attr_set_ints(&attrs.a[AXIS], TM_ATTR_AXES, axis->u.is, axis->n);
  if (c->status) return NULL;
  tm_attr_set_bool(&attrs.a[KEEPDIMS], true);
  return tm_gn(c, "reduce_sum", &v, 1, &attrs, 0);
}
static tm_status grad_clip_by_norm(tm_gctx *c) {
  tm_value *x = c->in[0], *g = c->dout[0];
  tm_value *clip = tm_g_const(c, x, tm_at_float(c->attrs, 0));
  tm_value *sq = clip_sum(c, tm_g1(c, "square", x));
  tm_value *top = tm_g2(c, "maximum", tm_g1(c, "sqrt", sq), clip);
  tm_value *k = tm_g2(c, "div", clip, top);
  tm_value *clipped = tm_g2(c, "greater", top, clip);
  tm_value *dot =
      tm_g2(c, "div", clip_sum(c, tm_g2(c, "mul", g, x)), tm_g1(c, "square", top));
  tm_value *zero = tm_g_const(c, x, 0);
  tm_value *part = tm_gn(c, "where", (tm_value *[]){clipped, dot, zero}, 3, NULL, 0);
  tm_value *d = tm_g2(c, "sub", g, tm_g2(c, "mul", x, part));
  return tm_g_set(c, 0, tm_g2(c, "mul", d, k));
}

/* --- the table --- */

#define AXES "x; axis:axes? | keepdims:bool=false"
#define ROW(n, inf, k, s, g, h)                                                     \
  {                                                                                 \
    .name = #n, .sig = AXES, .help = h, .infer = infer_##inf, .kernel = kernel_##k, \
    .grad = g, .scratch = scratch_##s                                               \
  }
#define ARG(n, h)                                                             \
  {                                                                           \
    .name = #n, .sig = "x; axis:axis=0 | output_type:dtype=int64", .help = h, \
    .infer = infer_arg, .kernel = kernel_##n, .scratch = scratch_arg          \
  }

static const tm_op reduce_ops[] = {
    ROW(reduce_sum, number, sum, any, grad_sum, "The sum of x over axes (all)."),
    ROW(reduce_mean, float, mean, any, grad_mean, "The mean of x over axes (all)."),
    ROW(reduce_prod, number, prod, any, grad_prod, "The product of x over axes (all)."),
    ROW(reduce_max, extreme, max, any, grad_extreme,
        "The largest element of x over axes (all); NaN if there is one."),
    ROW(reduce_min, extreme, min, any, grad_extreme,
        "The smallest element of x over axes (all); NaN if there is one."),
    ROW(reduce_any, bool, any, any, NULL,
        "Whether any element over axes (all) is true."),
    ROW(reduce_all, bool, reduce_all, any, NULL,
        "Whether all elements over axes (all) are true."),
    ROW(reduce_logsumexp, float, logsumexp, rows, grad_logsumexp,
        "log(sum(exp(x))) over axes (all), without overflow."),
    ROW(reduce_var, float, var, rows, grad_var,
        "The mean squared distance from the mean over axes (all)."),
    ROW(reduce_std, float, std, rows, grad_std,
        "The square root of the variance over axes (all)."),
    ARG(argmax,
        "The place, from 0, of the largest element along an axis (the first "
        "one); NaN counts as largest."),
    ARG(argmin,
        "The place, from 0, of the smallest element along an axis (the first "
        "one); NaN counts as smallest."),
    {.name = "clip_by_norm",
     .sig = "x; clip_norm:float, axis:axes?",
     .help = "x scaled down to the norm clip_norm over axes (all) where it is larger.",
     .infer = infer_clip_by_norm,
     .kernel = kernel_clip_by_norm,
     .grad = grad_clip_by_norm,
     .scratch = scratch_clip_by_norm},
    {.name = "unreduce",
     .sig = "g, x; axis:axes?, mean:bool=false",
     .help = "g, of the shape of a reduction of x, repeated along the reduced axes.",
     .flags = TM_OP_HIDDEN,
     .infer = infer_unreduce,
     .kernel = kernel_unreduce,
     .grad = grad_unreduce},
    {.name = "reduce_prod_others",
     .sig = "x; axis:axes?, unused:bool=false",
     .help = "For each element the product of the others over axes.",
     .flags = TM_OP_HIDDEN,
     .infer = infer_prod_others,
     .kernel = kernel_prod_others,
     .grad = grad_prod_others,
     .scratch = scratch_prod_others},
    {.name = "reduce_prod_others_grad",
     .sig = "h, x; axis:axes?, unused:bool=false",
     .help = "The gradient of reduce_prod_others, times h.",
     .flags = TM_OP_HIDDEN,
     .infer = infer_prod_others_grad,
     .kernel = kernel_prod_others_grad,
     .scratch = scratch_prod_others_grad},
    {.name = "sum_like",
     .sig = "g, x",
     .help = "g summed down to the shape of x, from which it was broadcast.",
     .flags = TM_OP_HIDDEN | TM_OP_INPLACE,
     .infer = infer_sum_like,
     .kernel = kernel_sum_like,
     .grad = grad_sum_like,
     .scratch = scratch_sum_like},
    {.name = "broadcast_like",
     .sig = "x, like",
     .help = "x broadcast to the shape of like.",
     .flags = TM_OP_HIDDEN | TM_OP_INPLACE,
     .infer = infer_broadcast_like,
     .kernel = kernel_broadcast_like,
     .grad = grad_broadcast_like},
};

const tm_op_group tm_ops_reduce = {reduce_ops, TM_COUNT(reduce_ops)};
