#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  Ops that give the same elements another shape or order.  Those that only
 * rename the shape are TM_OP_VIEW and copy nothing where the caller can share
 * storage; the others are a walk (kernel/strided.h) over the input.
 *
 * Any dtype goes.  Elements of string tensors are moved as (pointer, length): whoever
 * runs the kernel keeps the inputs' bytes alive or copies them.
 */

/* --- views --- */

static tm_status view_kernel(tm_kctx *c) {
  size_t n = tm_view_bytes(&c->out[0]);
  if (n > 0 && c->out[0].data != c->in[0].data)
    memcpy(c->out[0].data, c->in[0].data, n);
  return TM_OK;
}

static tm_status view_grad(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g2(c, "reshape_like", c->dout[0], c->in[0]));
}

/* Product of the known sizes; *unknown counts the others. */
static int64_t shape_known_part(const tm_shape *s, int32_t *unknown) {
  int64_t n = 1;
  *unknown = 0;
  for (int32_t i = 0; i < s->rank; i++)
    if (s->dim[i] < 0)
      (*unknown)++;
    else
      n *= s->dim[i];
  return n;
}

static tm_status reshape_misfit(tm_infer *c, const tm_shape *to) {
  char a[128], b[128];
  return tm_fail(c->err, TM_EINVAL, "x of shape %s has not the elements of shape %s",
                 tm_shape_text(&c->in[0].shape, a, sizeof a),
                 tm_shape_text(to, b, sizeof b));
}

static tm_status reshape_infer(tm_infer *c) {
  const tm_attr *a = &c->attrs->a[0];
  tm_shape s = tm_shape_of(a->n, a->u.is);
  int32_t holes, unknown, hole = -1;
  TM_TRY(tm_shape_check(&s, 1, c->err));
  int64_t want = shape_known_part(&s, &holes);
  int64_t have = shape_known_part(&c->in[0].shape, &unknown);
  if (holes > 1)
    return tm_fail(c->err, TM_EINVAL, "shape %s may leave one size open only",
                   tm_shape_text(&s, (char[128]){0}, 128));
  for (int32_t i = 0; i < s.rank; i++)
    if (s.dim[i] < 0) hole = i;
  if (unknown == 0 && hole < 0 && want != have) return reshape_misfit(c, &s);
  if (unknown == 0 && hole >= 0) {
    if (want == 0 || have % want != 0) return reshape_misfit(c, &s);
    s.dim[hole] = have / want;
  }
  if (unknown > 0 && hole < 0 && have > 0 && want % have != 0)
    return reshape_misfit(c, &s);
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status reshape_like_infer(tm_infer *c) {
  int64_t a = tm_shape_count(&c->in[0].shape), b = tm_shape_count(&c->in[1].shape);
  if (a >= 0 && b >= 0 && a != b) return reshape_misfit(c, &c->in[1].shape);
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status expand_dims_infer(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  int32_t axis;
  if (s.rank == TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "x has %d axes already, the most", TM_MAX_RANK);
  s.rank++;
  s.dim[s.rank - 1] = 1;
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 0), &axis, c->err));
  for (int32_t i = s.rank - 1; i > axis; i--) s.dim[i] = s.dim[i - 1];
  s.dim[axis] = 1;
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status squeeze_infer(tm_infer *c) {
  const tm_shape *in = &c->in[0].shape;
  bool named = tm_at_has(c->attrs, 0) && c->attrs->a[0].n > 0;
  tm_shape s = tm_shape_scalar();
  char text[128];
  uint32_t mask = 0;
  if (named) TM_TRY(tm_axes_mask(c->attrs, 0, in, &mask, c->err));
  for (int32_t i = 0; i < in->rank; i++) {
    bool drop = named ? (mask >> i & 1U) != 0 : in->dim[i] == 1;
    if (named && drop && in->dim[i] >= 0 && in->dim[i] != 1)
      return tm_fail(c->err, TM_EINVAL,
                     "axis %" PRId32 " of x has size %" PRId64 ", not 1: %s", i + 1,
                     in->dim[i], tm_shape_text(in, text, sizeof text));
    if (!named && in->dim[i] < 0)
      return tm_fail(c->err, TM_EINVAL,
                     "x of shape %s has a size that is not known yet: name the axes",
                     tm_shape_text(in, text, sizeof text));
    if (!drop) s.dim[s.rank++] = in->dim[i];
  }
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* --- transpose --- */

/* perm[i] = axis of x that becomes axis i; absent: reversed. */
static tm_status transpose_perm(const tm_attrs *a, const tm_shape *s, int32_t *perm,
                                tm_err *err) {
  uint32_t seen = 0;
  if (!tm_at_has(a, 0)) {
    for (int32_t i = 0; i < s->rank; i++) perm[i] = s->rank - 1 - i;
    return TM_OK;
  }
  if (a->a[0].n != s->rank)
    return tm_fail(err, TM_EINVAL, "perm names %" PRId32 " axes, but x has shape %s",
                   a->a[0].n, tm_shape_text(s, (char[128]){0}, 128));
  for (int32_t i = 0; i < s->rank; i++) {
    TM_TRY(tm_shape_axis(s, a->a[0].u.is[i], &perm[i], err));
    if (seen >> perm[i] & 1U)
      return tm_fail(err, TM_EINVAL, "perm names axis %" PRId32 " twice", perm[i] + 1);
    seen |= 1U << perm[i];
  }
  return TM_OK;
}

static tm_status transpose_infer(tm_infer *c) {
  int32_t perm[TM_MAX_RANK];
  tm_shape s = c->in[0].shape;
  TM_TRY(transpose_perm(c->attrs, &s, perm, c->err));
  for (int32_t i = 0; i < s.rank; i++) s.dim[i] = c->in[0].shape.dim[perm[i]];
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status transpose_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int32_t perm[TM_MAX_RANK];
  int64_t step[TM_MAX_RANK];
  TM_TRY(transpose_perm(c->attrs, s, perm, c->err));
  tm_dense_steps(s, step);
  tm_k_walk w = {.rank = s->rank};
  for (int32_t i = 0; i < s->rank; i++) {
    w.dim[i] = s->dim[perm[i]];
    w.step[i] = step[perm[i]];
  }
  tm_k_read_strided(c->out[0].data, c->in[0].data, &w, tm_dtype_size(c->in[0].dtype));
  return TM_OK;
}

static tm_status transpose_grad(tm_gctx *c) {
  int32_t perm[TM_MAX_RANK];
  int64_t back[TM_MAX_RANK] = {0};
  const tm_shape *s = &c->in[0]->type.shape;
  tm_attrs a;
  TM_TRY(transpose_perm(c->attrs, s, perm, c->err));
  for (int32_t i = 0; i < s->rank; i++) back[perm[i]] = i;
  TM_TRY(tm_g_attrs(c, "transpose", &a));
  TM_TRY(tm_attr_set_ints(tm_attr_by_name("transpose", &a, "perm"), TM_ATTR_AXES, back,
                          s->rank));
  return tm_g_set(c, 0, tm_gn(c, "transpose", &c->dout[0], 1, &a, 0));
}

/* --- broadcast --- */

static tm_status broadcast_misfit(tm_infer *c, const tm_shape *to) {
  char a[128], b[128];
  return tm_fail(c->err, TM_EINVAL, "x of shape %s does not broadcast to shape %s",
                 tm_shape_text(&c->in[0].shape, a, sizeof a),
                 tm_shape_text(to, b, sizeof b));
}

/* `to` from the target shape; its -1 become x's sizes where x has that axis. */
static tm_status broadcast_out(tm_infer *c, tm_shape to) {
  const tm_shape *in = &c->in[0].shape;
  int32_t lead = to.rank - in->rank;
  TM_TRY(tm_shape_check(&to, 1, c->err));
  if (lead < 0) return broadcast_misfit(c, &to);
  for (int32_t i = 0; i < in->rank; i++) {
    int64_t x = in->dim[i], *y = &to.dim[lead + i];
    if (*y < 0 && x != 1) *y = x;
    if (x >= 0 && x != 1 && *y != x) return broadcast_misfit(c, &to);
  }
  return tm_infer_out(c, c->in[0].dtype, &to);
}

static tm_status broadcast_to_infer(tm_infer *c) {
  const tm_attr *a = &c->attrs->a[0];
  tm_shape to = tm_shape_of(a->n, a->u.is);
  int32_t lead = to.rank - c->in[0].shape.rank;
  for (int32_t i = 0; i < to.rank; i++) {
    if (to.dim[i] != -1) continue;
    if (i < lead)
      return tm_fail(c->err, TM_EINVAL,
                     "shape leaves axis %" PRId32 " open, which x has not", i + 1);
    to.dim[i] = c->in[0].shape.dim[i - lead];
  }
  return broadcast_out(c, to);
}

static tm_status broadcast_kernel(tm_kctx *c) {
  const tm_shape *in = &c->in[0].shape, *out = &c->out[0].shape;
  int64_t step[TM_MAX_RANK];
  int32_t lead = out->rank - in->rank;
  tm_dense_steps(in, step);
  tm_k_walk w = {.rank = out->rank};
  for (int32_t i = 0; i < out->rank; i++) {
    w.dim[i] = out->dim[i];
    w.step[i] = i < lead || in->dim[i - lead] == 1 ? 0 : step[i - lead];
  }
  tm_k_read_strided(c->out[0].data, c->in[0].data, &w, tm_dtype_size(c->in[0].dtype));
  return TM_OK;
}

static tm_status broadcast_grad(tm_gctx *c) { return tm_g_set_like(c, 0, c->dout[0]); }

/* --- tile --- */

static tm_status tile_infer(tm_infer *c) {
  const tm_attr *a = &c->attrs->a[0];
  tm_shape s = c->in[0].shape;
  if (a->n != s.rank)
    return tm_fail(c->err, TM_EINVAL, "multiples has %" PRId32 " numbers for shape %s",
                   a->n, tm_shape_text(&s, (char[128]){0}, 128));
  for (int32_t i = 0; i < s.rank; i++) {
    if (a->u.is[i] < 0)
      return tm_fail(c->err, TM_EINVAL, "multiples[%" PRId32 "] is %" PRId64, i + 1,
                     a->u.is[i]);
    if (s.dim[i] < 0) continue;
    if (!tm_mul_i64(s.dim[i], a->u.is[i], &s.dim[i]))
      return tm_fail(c->err, TM_EINVAL, "multiples[%" PRId32 "] is too large", i + 1);
  }
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* The tiled side is dense; the other is `s`. */
static tm_k_walk tile_walk(const tm_attrs *a, const tm_shape *s) {
  int64_t step[TM_MAX_RANK];
  tm_k_walk w = {.rank = 2 * s->rank};
  tm_dense_steps(s, step);
  for (int32_t i = 0; i < s->rank; i++) {
    w.dim[2 * i] = a->a[0].u.is[i];
    w.dim[2 * i + 1] = s->dim[i];
    w.step[2 * i + 1] = step[i];
  }
  return w;
}

static tm_status tile_kernel(tm_kctx *c) {
  tm_k_walk w = tile_walk(c->attrs, &c->in[0].shape);
  tm_k_read_strided(c->out[0].data, c->in[0].data, &w, tm_dtype_size(c->in[0].dtype));
  return TM_OK;
}

static tm_status tile_grad(tm_gctx *c) {
  return tm_g_set_same(c, 0, "tile_grad", c->in[0]);
}

static tm_status tile_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_rank(c, 0, c->in[1].shape.rank));
  return tm_infer_out(c, c->in[0].dtype, &c->in[1].shape);
}

static tm_status tile_grad_kernel(tm_kctx *c) {
  tm_k_walk w = tile_walk(c->attrs, &c->out[0].shape);
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  if (c->in[0].dtype == TM_F32)
    tm_k_add_strided_f32(c->out[0].data, c->in[0].data, &w);
  else
    tm_k_add_strided_f64(c->out[0].data, c->in[0].data, &w);
  return TM_OK;
}

/* --- reverse --- */

static tm_status reverse_infer(tm_infer *c) {
  uint32_t mask;
  TM_TRY(tm_axes_mask(c->attrs, 0, &c->in[0].shape, &mask, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status reverse_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  size_t elem = tm_dtype_size(c->in[0].dtype);
  uint32_t mask;
  int64_t off = 0;
  TM_TRY(tm_axes_mask(c->attrs, 0, s, &mask, c->err));
  if (tm_view_count(&c->in[0]) == 0) return TM_OK;
  tm_k_walk w = {.rank = s->rank};
  tm_dense_steps(s, w.step);
  for (int32_t i = 0; i < s->rank; i++) {
    w.dim[i] = s->dim[i];
    if (!(mask >> i & 1U)) continue;
    off += (s->dim[i] - 1) * w.step[i];
    w.step[i] = -w.step[i];
  }
  tm_k_read_strided(c->out[0].data, (char *)c->in[0].data + (size_t)off * elem, &w,
                    elem);
  return TM_OK;
}

static tm_status reverse_grad(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g_same(c, "reverse", c->dout, 1, 0));
}

static const tm_op shape_ops[] = {
    {.name = "reshape",
     .sig = "x; shape:shape",
     .help = "The elements of x in another shape; one size may be -1: what is left.",
     .flags = TM_OP_VIEW,
     .infer = reshape_infer,
     .kernel = view_kernel,
     .grad = view_grad},
    {.name = "reshape_like",
     .sig = "x, like",
     .help = "The elements of x in the shape of like.",
     .flags = TM_OP_VIEW | TM_OP_HIDDEN,
     .infer = reshape_like_infer,
     .kernel = view_kernel,
     .grad = view_grad},
    {.name = "expand_dims",
     .sig = "x; axis:axis",
     .help = "x with a new axis of size 1; axis is its position in the result.",
     .flags = TM_OP_VIEW,
     .infer = expand_dims_infer,
     .kernel = view_kernel,
     .grad = view_grad},
    {.name = "squeeze",
     .sig = "x; axis:axes?",
     .help = "x without the named axes, or without all axes, of size 1.",
     .flags = TM_OP_VIEW,
     .infer = squeeze_infer,
     .kernel = view_kernel,
     .grad = view_grad},
    {.name = "transpose",
     .sig = "x; perm:axes?",
     .help = "x with axis perm[i] of it as axis i; without perm in reversed order.",
     .infer = transpose_infer,
     .kernel = transpose_kernel,
     .grad = transpose_grad},
    {.name = "broadcast_to",
     .sig = "x; shape:shape",
     .help = "x repeated to this shape by NumPy's rule; -1 keeps the size of x.",
     .infer = broadcast_to_infer,
     .kernel = broadcast_kernel,
     .grad = broadcast_grad},
    {.name = "tile",
     .sig = "x; multiples:ints",
     .help = "multiples[i] copies of x one after another along axis i.",
     .infer = tile_infer,
     .kernel = tile_kernel,
     .grad = tile_grad},
    {.name = "tile_grad",
     .sig = "dy, like; multiples:ints",
     .help = "The sum of the copies that tile made.",
     .flags = TM_OP_HIDDEN,
     .infer = tile_grad_infer,
     .kernel = tile_grad_kernel},
    {.name = "reverse",
     .sig = "x; axis:axes",
     .help = "x with the order along these axes turned round.",
     .infer = reverse_infer,
     .kernel = reverse_kernel,
     .grad = reverse_grad},
};

const tm_op_group tm_ops_shape = {shape_ops, TM_COUNT(shape_ops)};
