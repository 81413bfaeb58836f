#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "graph/broadcast.h"
#include "graph/infer.h"

/*
 * Tensors made from attributes.
 *
 * Design.  Numbers in attributes are doubles; they become the dtype's by the rules of
 * cast.  `const` gives the tensor it holds, no copy.
 */

/* value as an element of dtype t; returns its size. */
static size_t create_element(tm_dtype t, double value, void *out) {
  tm_k_cast(out, tm_k_type_of(t), &value, TM_K_F64, 1);
  return tm_dtype_size(t);
}
static void create_fill(const tm_view *out, double value) {
  unsigned char element[8];
  size_t size = create_element(out->dtype, value, element);
  tm_k_fill(out->data, element, size, (size_t)tm_view_count(out));
}
static void create_set(const tm_view *out, int64_t i, double value) {
  size_t size = tm_dtype_size(out->dtype);
  create_element(out->dtype, value, (char *)out->data + (size_t)i * size);
}

static tm_status create_dtype(const tm_infer *c, tm_dtype t) {
  if (t != TM_STRING) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "dtype must be of numbers or bool, not string");
}

/* --- const --- */

static tm_status infer_const(tm_infer *c) {
  const tm_view *v = &c->attrs->a[0].u.t->v;
  return tm_infer_out(c, v->dtype, &v->shape);
}
static tm_status kernel_const(tm_kctx *c) {
  tm_kctx_give(c, 0, tm_tensor_ref(c->attrs->a[0].u.t));
  return TM_OK;
}

/* --- fill, zeros, ones --- */

static tm_status create_shaped(tm_infer *c, int32_t dtype_attr) {
  tm_shape s;
  tm_dtype t = tm_at_dtype(c->attrs, dtype_attr);
  TM_TRY(tm_infer_shape_attr(c, 0, &s));
  TM_TRY(create_dtype(c, t));
  return tm_infer_out(c, t, &s);
}
static tm_status infer_shaped(tm_infer *c) { return create_shaped(c, 1); }
static tm_status infer_fill(tm_infer *c) { return create_shaped(c, 2); }

static tm_status kernel_fill(tm_kctx *c) {
  create_fill(&c->out[0], tm_at_float(c->attrs, 1));
  return TM_OK;
}
static tm_status kernel_zeros(tm_kctx *c) {
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  return TM_OK;
}
static tm_status kernel_ones(tm_kctx *c) {
  create_fill(&c->out[0], 1);
  return TM_OK;
}

static tm_status infer_like(tm_infer *c) {
  tm_dtype t = tm_at_has(c->attrs, 0) ? tm_at_dtype(c->attrs, 0) : c->in[0].dtype;
  TM_TRY(create_dtype(c, t));
  return tm_infer_out(c, t, &c->in[0].shape);
}

/* --- eye, range, linspace --- */

static tm_status infer_eye(tm_infer *c) {
  int64_t n = tm_at_int(c->attrs, 0);
  int64_t m = tm_at_has(c->attrs, 1) ? tm_at_int(c->attrs, 1) : n;
  if (n < 0 || m < 0)
    return tm_fail(c->err, TM_EINVAL,
                   "sizes %" PRId64 " and %" PRId64 " must not be negative", n, m);
  tm_shape s = tm_shape_of(2, (int64_t[]){n, m});
  TM_TRY(create_dtype(c, tm_at_dtype(c->attrs, 2)));
  return tm_infer_out(c, tm_at_dtype(c->attrs, 2), &s);
}
static tm_status kernel_eye(tm_kctx *c) {
  int64_t n = c->out[0].shape.dim[0], m = c->out[0].shape.dim[1];
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  for (int64_t i = 0; i < n && i < m; i++) create_set(&c->out[0], i * m + i, 1);
  return TM_OK;
}

/* One number is the end, from 0. */
static void create_range_bounds(const tm_attrs *a, double *from, double *to) {
  bool two = tm_at_has(a, 1);
  *from = two ? tm_at_float(a, 0) : 0;
  *to = two ? tm_at_float(a, 1) : tm_at_float(a, 0);
}

static tm_status infer_range(tm_infer *c) {
  const tm_attrs *a = c->attrs;
  double from, to, step = tm_at_float(a, 2);
  create_range_bounds(a, &from, &to);
  if (!isfinite(from) || !isfinite(to) || !isfinite(step))
    return tm_fail(c->err, TM_EINVAL, "start, stop and step must be finite");
  if (step == 0) return tm_fail(c->err, TM_EINVAL, "step must not be 0");
  double n = ceil((to - from) / step);
  if (n < 0) n = 0;
  if (n > 0x1p40)
    return tm_fail(c->err, TM_EINVAL, "a range of %.0f elements is too long", n);
  bool whole = rint(from) == from && rint(to) == to && rint(step) == step;
  tm_dtype t = tm_at_has(a, 3) ? tm_at_dtype(a, 3) : whole ? TM_I64 : TM_F32;
  tm_shape s = tm_shape_of(1, (int64_t[]){(int64_t)n});
  TM_TRY(create_dtype(c, t));
  return tm_infer_out(c, t, &s);
}
static tm_status kernel_range(tm_kctx *c) {
  double from, to, step = tm_at_float(c->attrs, 2);
  create_range_bounds(c->attrs, &from, &to);
  for (int64_t i = 0, n = tm_view_count(&c->out[0]); i < n; i++)
    create_set(&c->out[0], i, from + (double)i * step);
  return TM_OK;
}

static tm_status infer_linspace(tm_infer *c) {
  int64_t n = tm_at_int(c->attrs, 2);
  tm_dtype t = tm_at_dtype(c->attrs, 3);
  if (n < 1)
    return tm_fail(c->err, TM_EINVAL, "num must be at least 1, not %" PRId64, n);
  if (!tm_dtype_is_float(t))
    return tm_fail(c->err, TM_EINVAL, "dtype must be a float, not %s",
                   tm_dtype_name(t));
  tm_shape s = tm_shape_of(1, &n);
  return tm_infer_out(c, t, &s);
}
static tm_status kernel_linspace(tm_kctx *c) {
  double from = tm_at_float(c->attrs, 0), to = tm_at_float(c->attrs, 1);
  int64_t n = tm_view_count(&c->out[0]);
  double step = n > 1 ? (to - from) / (double)(n - 1) : 0;
  for (int64_t i = 0; i < n; i++)
    create_set(&c->out[0], i, i > 0 && i == n - 1 ? to : from + (double)i * step);
  return TM_OK;
}

static const tm_op create_ops[] = {
    {.name = "const",
     .sig = "; value:tensor",
     .help = "A tensor that the graph holds.",
     .flags = TM_OP_HIDDEN | TM_OP_DYNAMIC,
     .infer = infer_const,
     .kernel = kernel_const},
    {.name = "fill",
     .sig = "; shape:shape, value:float, dtype:dtype=float32",
     .help = "A tensor of this shape with one value everywhere.",
     .infer = infer_fill,
     .kernel = kernel_fill},
    {.name = "zeros",
     .sig = "; shape:shape, dtype:dtype=float32",
     .help = "A tensor of this shape with zeros (false).",
     .infer = infer_shaped,
     .kernel = kernel_zeros},
    {.name = "ones",
     .sig = "; shape:shape, dtype:dtype=float32",
     .help = "A tensor of this shape with ones (true).",
     .infer = infer_shaped,
     .kernel = kernel_ones},
    {.name = "zeros_like",
     .sig = "x; dtype:dtype?",
     .help = "Zeros of the shape of x, and its dtype unless one is given.",
     .infer = infer_like,
     .kernel = kernel_zeros},
    {.name = "ones_like",
     .sig = "x; dtype:dtype?",
     .help = "Ones of the shape of x, and its dtype unless one is given.",
     .infer = infer_like,
     .kernel = kernel_ones},
    {.name = "eye",
     .sig = "; rows:int, columns:int? | dtype:dtype=float32",
     .help = "A (rows, columns) matrix with ones where row and column are the same.",
     .infer = infer_eye,
     .kernel = kernel_eye},
    {.name = "range",
     .sig = "; start:float, stop:float?, step:float=1, dtype:dtype?",
     .help = "start, start + step, ... below stop; of one number: from 0. int64 where "
             "all are whole, else float32.",
     .infer = infer_range,
     .kernel = kernel_range},
    {.name = "linspace",
     .sig = "; start:float, stop:float, num:int | dtype:dtype=float32",
     .help = "num numbers in even steps from start to stop, both included.",
     .infer = infer_linspace,
     .kernel = kernel_linspace},
};

const tm_op_group tm_ops_create = {create_ops, TM_COUNT(create_ops)};
