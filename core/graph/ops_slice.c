#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/elementwise.h"

/*
 * Design.  slice, narrow and select are one thing: on each axis a first position, a
 * count and a step (struct slice_axis).  They are resolved against the sizes at hand,
 * in infer and again in the kernel, because a size may be unknown while tracing.
 *
 * Ranges are Lua's, positions 0-based: both ends belong, negative ends count from the
 * end, ends outside are clamped, an empty range is an empty tensor.  A single position
 * outside is TM_ERANGE.
 *
 * Invariant: of resolved axes, count == 0, or first and first + (count - 1) * step
 * are positions of the axis.
 */

/* What `kind` of a slice says of an axis: a sum of these. */
enum { SLICE_FIRST = 1, SLICE_LAST = 2, SLICE_SINGLE = 4 };

struct slice_axis {
  int64_t first, count, step; /* count -1: not known yet */
  bool drop;                  /* a single position: the axis goes */
};

static tm_status slice_outside(int64_t pos, int32_t axis, int64_t size, tm_err *err) {
  return tm_fail(err, TM_ERANGE,
                 "position %" PRId64 " of axis %" PRId32
                 " is outside: the axis has %" PRId64 " positions",
                 pos < 0 ? pos : pos + 1, axis + 1, size);
}

static tm_status slice_single(int64_t pos, int32_t axis, int64_t size,
                              struct slice_axis *out, tm_err *err) {
  *out = (struct slice_axis){.first = 0, .count = 1, .step = 1, .drop = true};
  if (size < 0) return TM_OK;
  if (pos < -size || pos >= size) return slice_outside(pos, axis, size, err);
  out->first = pos < 0 ? pos + size : pos;
  return TM_OK;
}

static struct slice_axis slice_range(int64_t first, int64_t last, int64_t step,
                                     int64_t size) {
  struct slice_axis r = {.first = first, .count = 0, .step = step};
  if (first < 0) first += size;
  if (last < 0) last += size;
  if (step > 0) {
    if (first < 0) first = 0;
    if (last > size - 1) last = size - 1;
    if (first <= last) r.count = (last - first) / step + 1;
  } else {
    if (first > size - 1) first = size - 1;
    if (last < 0) last = 0;
    if (first >= last) r.count = (first - last) / -step + 1;
  }
  r.first = r.count ? first : 0;
  return r;
}

static void slice_whole(const tm_shape *s, struct slice_axis *ax) {
  for (int32_t i = 0; i < s->rank; i++)
    ax[i] = (struct slice_axis){.count = s->dim[i], .step = 1};
}

/* One axis of a slice; entry k of the attributes first, last, step, kind is about it.
 */
static tm_status slice_entry(const tm_attrs *a, int32_t k, int64_t size,
                             struct slice_axis *ax, tm_err *err) {
  int64_t kind = a->a[3].u.is[k], step = a->a[2].u.is[k];
  if (kind & SLICE_SINGLE) return slice_single(a->a[0].u.is[k], k, size, ax, err);
  if (step == 0 || step == INT64_MIN)
    return tm_fail(err, TM_EINVAL, "the step along axis %" PRId32 " is 0", k + 1);
  int64_t first = kind & SLICE_FIRST ? a->a[0].u.is[k] : (step > 0 ? 0 : -1);
  int64_t last = kind & SLICE_LAST ? a->a[1].u.is[k] : (step > 0 ? -1 : 0);
  *ax = (struct slice_axis){.count = -1, .step = step};
  if (size >= 0) *ax = slice_range(first, last, step, size);
  return TM_OK;
}

/* The axes after the entries are taken whole. */
static tm_status slice_resolve(const tm_attrs *a, const tm_shape *s,
                               struct slice_axis *ax, tm_err *err) {
  int32_t n = a->a[0].n;
  if (a->a[1].n != n || a->a[2].n != n || a->a[3].n != n)
    return tm_fail(err, TM_EINVAL, "first, last, step and kind differ in length");
  if (n > s->rank)
    return tm_fail(err, TM_EINVAL, "%" PRId32 " ranges for x of shape %s", n,
                   tm_shape_text(s, (char[128]){0}, 128));
  slice_whole(s, ax);
  for (int32_t i = 0; i < n; i++) TM_TRY(slice_entry(a, i, s->dim[i], &ax[i], err));
  return TM_OK;
}

/* attributes: axis, first, length */
static tm_status narrow_resolve(const tm_attrs *a, const tm_shape *s,
                                struct slice_axis *ax, tm_err *err) {
  int64_t first = tm_at_int(a, 1), length = tm_at_int(a, 2);
  int32_t axis;
  TM_TRY(tm_shape_axis(s, tm_at_int(a, 0), &axis, err));
  slice_whole(s, ax);
  if (length < 0)
    return tm_fail(err, TM_EINVAL, "length %" PRId64 " is negative", length);
  int64_t size = s->dim[axis];
  if (size >= 0) {
    if (first < -size || first > size) return slice_outside(first, axis, size, err);
    if (first < 0) first += size;
    if (length > size - first)
      return tm_fail(err, TM_ERANGE,
                     "%" PRId64 " positions from position %" PRId64
                     " on reach past the %" PRId64 " of axis %" PRId32,
                     length, first + 1, size, axis + 1);
  }
  ax[axis] = (struct slice_axis){.first = first, .count = length, .step = 1};
  return TM_OK;
}

/* attributes: axis, index */
static tm_status select_resolve(const tm_attrs *a, const tm_shape *s,
                                struct slice_axis *ax, tm_err *err) {
  int32_t axis;
  TM_TRY(tm_shape_axis(s, tm_at_int(a, 0), &axis, err));
  slice_whole(s, ax);
  return slice_single(tm_at_int(a, 1), axis, s->dim[axis], &ax[axis], err);
}

typedef tm_status slice_fn(const tm_attrs *a, const tm_shape *s, struct slice_axis *ax,
                           tm_err *err);

static tm_shape slice_shape(const tm_shape *s, const struct slice_axis *ax) {
  tm_shape out = tm_shape_scalar();
  for (int32_t i = 0; i < s->rank; i++)
    if (!ax[i].drop) out.dim[out.rank++] = ax[i].count;
  return out;
}

/* The walk over the sliced side of an array of shape s; *off is where it begins. */
static tm_k_walk slice_walk(const tm_shape *s, const struct slice_axis *ax,
                            int64_t *off) {
  int64_t step[TM_MAX_RANK];
  tm_k_walk w = {.rank = s->rank};
  tm_dense_steps(s, step);
  *off = 0;
  for (int32_t i = 0; i < s->rank; i++) {
    w.dim[i] = ax[i].count;
    w.step[i] = step[i] * ax[i].step;
    *off += step[i] * ax[i].first;
  }
  return w;
}

static tm_status slice_any_infer(tm_infer *c, slice_fn *resolve) {
  struct slice_axis ax[TM_MAX_RANK];
  TM_TRY(resolve(c->attrs, &c->in[0].shape, ax, c->err));
  tm_shape s = slice_shape(&c->in[0].shape, ax);
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status slice_any_kernel(tm_kctx *c, slice_fn *resolve) {
  struct slice_axis ax[TM_MAX_RANK];
  size_t elem = tm_dtype_size(c->in[0].dtype);
  int64_t off;
  TM_TRY(resolve(c->attrs, &c->in[0].shape, ax, c->err));
  if (tm_view_count(&c->out[0]) == 0) return TM_OK;
  tm_k_walk w = slice_walk(&c->in[0].shape, ax, &off);
  tm_k_read_strided(c->out[0].data, (char *)c->in[0].data + (size_t)off * elem, &w,
                    elem);
  return TM_OK;
}

/* (dy, like): zeros like `like` with dy where the slice was. */
static tm_status slice_any_grad_infer(tm_infer *c, slice_fn *resolve) {
  struct slice_axis ax[TM_MAX_RANK];
  TM_TRY(resolve(c->attrs, &c->in[1].shape, ax, c->err));
  tm_shape s = slice_shape(&c->in[1].shape, ax);
  if (!tm_shape_compatible(&s, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "dy of shape %s is no slice of like",
                   tm_shape_text(&c->in[0].shape, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status slice_any_grad_kernel(tm_kctx *c, slice_fn *resolve) {
  struct slice_axis ax[TM_MAX_RANK];
  const tm_shape *s = &c->out[0].shape;
  size_t elem = tm_dtype_size(c->out[0].dtype);
  int64_t off;
  TM_TRY(resolve(c->attrs, s, ax, c->err));
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  if (tm_view_count(&c->in[0]) == 0) return TM_OK;
  tm_k_walk w = slice_walk(s, ax, &off);
  tm_k_write_strided((char *)c->out[0].data + (size_t)off * elem, c->in[0].data, &w,
                     elem);
  return TM_OK;
}

#define SLICE_OP(name)                                         \
  static tm_status name##_infer(tm_infer *c) {                 \
    return slice_any_infer(c, name##_resolve);                 \
  }                                                            \
  static tm_status name##_kernel(tm_kctx *c) {                 \
    return slice_any_kernel(c, name##_resolve);                \
  }                                                            \
  static tm_status name##_grad(tm_gctx *c) {                   \
    return tm_g_set_same(c, 0, #name "_grad", c->in[0]);       \
  }                                                            \
  static tm_status name##_grad_infer(tm_infer *c) {            \
    return slice_any_grad_infer(c, name##_resolve);            \
  }                                                            \
  static tm_status name##_grad_kernel(tm_kctx *c) {            \
    return slice_any_grad_kernel(c, name##_resolve);           \
  }                                                            \
  static tm_status name##_grad_grad(tm_gctx *c) {              \
    return tm_g_set(c, 0, tm_g_same(c, #name, c->dout, 1, 0)); \
  }

SLICE_OP(slice)
SLICE_OP(narrow)
SLICE_OP(select)

/* --- pad --- */

static tm_status pad_shape(const tm_infer *c, tm_shape *s) {
  const tm_attr *a = &c->attrs->a[0];
  if (strcmp(tm_at_str(c->attrs, 1), "constant") != 0)
    return tm_fail(c->err, TM_EUNIMPL, "mode \"%s\" is not known: use \"constant\"",
                   tm_at_str(c->attrs, 1));
  if (a->n != 2 * s->rank)
    return tm_fail(c->err, TM_EINVAL,
                   "paddings has %" PRId32
                   " numbers for shape %s: before and after "
                   "of each axis are needed",
                   a->n, tm_shape_text(s, (char[128]){0}, 128));
  for (int32_t i = 0; i < s->rank; i++) {
    int64_t before = a->u.is[2 * i], after = a->u.is[2 * i + 1], sum;
    if (before < 0 || after < 0)
      return tm_fail(c->err, TM_EINVAL, "paddings of axis %" PRId32 " are negative",
                     i + 1);
    if (!tm_add_i64(before, after, &sum) ||
        !tm_add_i64(sum, s->dim[i] < 0 ? 0 : s->dim[i], &sum))
      return tm_fail(c->err, TM_EINVAL, "paddings of axis %" PRId32 " are too large",
                     i + 1);
    if (s->dim[i] >= 0) s->dim[i] = sum;
  }
  return TM_OK;
}

static tm_status pad_infer(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  TM_TRY(pad_shape(c, &s));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* The walk over the padded side, of shape `out`, where x of shape `in` lies. */
static tm_k_walk pad_walk(const tm_attr *paddings, const tm_shape *in,
                          const tm_shape *out, int64_t *off) {
  tm_k_walk w = {.rank = in->rank};
  tm_dense_steps(out, w.step);
  *off = 0;
  for (int32_t i = 0; i < in->rank; i++) {
    w.dim[i] = in->dim[i];
    *off += paddings->u.is[2 * i] * w.step[i];
  }
  return w;
}

/* x as one element of dtype t. */
static void pad_value(tm_dtype t, double x, void *out) {
  float f = (float)x;
  int32_t i32 = (int32_t)x;
  int64_t i64 = (int64_t)x;
  uint8_t u8 = (uint8_t)i64;
  memset(out, 0, sizeof(tm_str));
  if (t == TM_F32) memcpy(out, &f, sizeof f);
  if (t == TM_F64) memcpy(out, &x, sizeof x);
  if (t == TM_I32) memcpy(out, &i32, sizeof i32);
  if (t == TM_I64) memcpy(out, &i64, sizeof i64);
  if (t == TM_U8 || t == TM_BOOL) memcpy(out, &u8, sizeof u8);
}

static tm_status pad_kernel(tm_kctx *c) {
  size_t elem = tm_dtype_size(c->in[0].dtype);
  char value[sizeof(tm_str)];
  int64_t off;
  pad_value(c->in[0].dtype, tm_at_float(c->attrs, 2), value);
  tm_k_fill(c->out[0].data, value, elem, (size_t)tm_view_count(&c->out[0]));
  if (tm_view_count(&c->in[0]) == 0) return TM_OK;
  tm_k_walk w = pad_walk(&c->attrs->a[0], &c->in[0].shape, &c->out[0].shape, &off);
  tm_k_write_strided((char *)c->out[0].data + (size_t)off * elem, c->in[0].data, &w,
                     elem);
  return TM_OK;
}

static tm_status pad_grad(tm_gctx *c) {
  return tm_g_set_same(c, 0, "pad_grad", c->in[0]);
}

static tm_status pad_grad_infer(tm_infer *c) {
  tm_shape s = c->in[1].shape;
  TM_TRY(pad_shape(c, &s));
  if (!tm_shape_compatible(&s, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "dy of shape %s is not like padded to %s",
                   tm_shape_text(&c->in[0].shape, (char[128]){0}, 128),
                   tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status pad_grad_kernel(tm_kctx *c) {
  size_t elem = tm_dtype_size(c->in[0].dtype);
  int64_t off;
  if (tm_view_count(&c->out[0]) == 0) return TM_OK;
  tm_k_walk w = pad_walk(&c->attrs->a[0], &c->out[0].shape, &c->in[0].shape, &off);
  tm_k_read_strided(c->out[0].data, (char *)c->in[0].data + (size_t)off * elem, &w,
                    elem);
  return TM_OK;
}

static tm_status pad_grad_grad(tm_gctx *c) {
  tm_attrs a;
  TM_TRY(tm_g_attrs(c, "pad", &a));
  TM_TRY(
      tm_attr_set_ints(&a.a[0], TM_ATTR_INTS, c->attrs->a[0].u.is, c->attrs->a[0].n));
  return tm_g_set(c, 0, tm_gn(c, "pad", c->dout, 1, &a, 0));
}

#define SLICE_SIG  "first:ints, last:ints, step:ints, kind:ints"
#define NARROW_SIG "axis:axis, first:int, length:int"
#define SELECT_SIG "axis:axis, index:int"
#define PAD_SIG    "paddings:ints | mode:str=constant, constant_values:float=0"

#define SLICE_ENTRIES(op, attrs, text)                                           \
  {.name = #op,                                                                  \
   .sig = "x; " attrs,                                                           \
   .help = text,                                                                 \
   .flags = TM_OP_HIDDEN,                                                        \
   .infer = op##_infer,                                                          \
   .kernel = op##_kernel,                                                        \
   .grad = op##_grad},                                                           \
  {                                                                              \
    .name = #op "_grad", .sig = "dy, like; " attrs,                              \
    .help = "Zeros like `like` with dy where " #op " would read.",               \
    .flags = TM_OP_HIDDEN, .infer = op##_grad_infer, .kernel = op##_grad_kernel, \
    .grad = op##_grad_grad                                                       \
  }

static const tm_op slice_ops[] = {
    SLICE_ENTRIES(slice, SLICE_SIG,
                  "A range or one position on each axis (0-based, both ends belong; "
                  "kind: 1 first given, 2 last given, 4 one position)."),
    SLICE_ENTRIES(narrow, NARROW_SIG, "`length` positions of one axis from first on."),
    SLICE_ENTRIES(select, SELECT_SIG, "One position of an axis, which goes."),
    {.name = "pad",
     .sig = "x; " PAD_SIG,
     .help = "x with paddings (before, after of each axis) filled with a constant.",
     .infer = pad_infer,
     .kernel = pad_kernel,
     .grad = pad_grad},
    {.name = "pad_grad",
     .sig = "dy, like; " PAD_SIG,
     .help = "What is left of dy without the paddings.",
     .flags = TM_OP_HIDDEN,
     .infer = pad_grad_infer,
     .kernel = pad_grad_kernel,
     .grad = pad_grad_grad},
};

const tm_op_group tm_ops_slice = {slice_ops, TM_COUNT(slice_ops)};
