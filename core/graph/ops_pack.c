#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  concat and stack put their inputs beside one another along an axis: for
 * each index of the axes before it, one run of bytes an input.  split, unstack and
 * split_like take the runs apart again.  A node has at most TM_MAX_OUTPUTS outputs, so
 * the gradient of a longer list comes in parts.
 */

/* --- concat --- */

/* Sizes beside the axis agree; unknown ones are filled from the others. */
static tm_status concat_join(tm_infer *c, int32_t i, int32_t axis, tm_shape *s) {
  const tm_shape *x = &c->in[i].shape;
  char name[40], a[128], b[128];
  bool fits = x->rank == s->rank;
  for (int32_t k = 0; fits && k < s->rank; k++) {
    if (k == axis) continue;
    if (s->dim[k] < 0) s->dim[k] = x->dim[k];
    fits = x->dim[k] < 0 || x->dim[k] == s->dim[k];
  }
  if (!fits)
    return tm_fail(c->err, TM_EINVAL,
                   "%s of shape %s does not fit xs[1] of shape %s beside axis %" PRId32,
                   tm_infer_name(c, i, name, sizeof name),
                   tm_shape_text(x, a, sizeof a),
                   tm_shape_text(&c->in[0].shape, b, sizeof b), axis + 1);
  if (s->dim[axis] >= 0 && x->dim[axis] >= 0) {
    if (!tm_add_i64(s->dim[axis], x->dim[axis], &s->dim[axis]))
      return tm_fail(c->err, TM_EINVAL, "the sizes along axis %" PRId32 " overflow",
                     axis + 1);
  } else {
    s->dim[axis] = -1;
  }
  return TM_OK;
}

static tm_status concat_infer(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  int32_t axis;
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 0), &axis, c->err));
  for (int32_t i = 1; i < c->nin; i++) {
    TM_TRY(tm_infer_same_dtype(c, i, 0));
    TM_TRY(concat_join(c, i, axis, &s));
  }
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status concat_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), s->rank);
  size_t elem = tm_dtype_size(c->out[0].dtype);
  int64_t rows = tm_shape_part(s, 0, axis), inner = tm_shape_part(s, axis + 1, s->rank);
  size_t pitch = (size_t)(s->dim[axis] * inner) * elem;
  char *to = c->out[0].data;
  for (int32_t i = 0; i < c->nin; i++) {
    size_t bytes = (size_t)(c->in[i].shape.dim[axis] * inner) * elem;
    if (bytes > 0) tm_k_put_columns(to, pitch, c->in[i].data, rows, bytes);
    to += bytes;
  }
  return TM_OK;
}

/* --- taking apart --- */

/* Runs of the axis of in[0], as long as that axis of each output (1 when the outputs
 * have lost it), from run `skip` (in elements of the axis) on. */
static void split_runs(tm_kctx *c, int32_t axis, int64_t skip) {
  const tm_shape *s = &c->in[0].shape;
  size_t elem = tm_dtype_size(c->in[0].dtype);
  int64_t rows = tm_shape_part(s, 0, axis), inner = tm_shape_part(s, axis + 1, s->rank);
  size_t pitch = (size_t)(s->dim[axis] * inner) * elem;
  const char *from = (const char *)c->in[0].data + (size_t)(skip * inner) * elem;
  for (int32_t i = 0; i < c->nout; i++) {
    const tm_shape *o = &c->out[i].shape;
    int64_t length = o->rank == s->rank ? o->dim[axis] : 1;
    size_t bytes = (size_t)(length * inner) * elem;
    if (bytes > 0) tm_k_get_columns(c->out[i].data, from, pitch, rows, bytes);
    from += bytes;
  }
}

/* split_like(dy, xs...; axis, first, n): outputs shaped like xs[first..first+n-1]. */
static tm_status split_like_infer(tm_infer *c) {
  int64_t first = tm_at_int(c->attrs, 1), n = tm_at_int(c->attrs, 2), sum = 0;
  int32_t axis;
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  if (first < 0 || n < 0 || n > TM_MAX_OUTPUTS || first > c->nin - 1 - n)
    return tm_fail(c->err, TM_EINVAL, "parts %" PRId64 " to %" PRId64 " of %" PRId32,
                   first, first + n, c->nin - 1);
  for (int32_t i = 1; i < c->nin; i++) {
    tm_shape s = c->in[i].shape;
    TM_TRY(tm_infer_rank(c, i, c->in[0].shape.rank));
    sum = s.dim[axis] < 0 || sum < 0 ? -1 : sum + s.dim[axis];
    s.dim[axis] = c->in[0].shape.dim[axis];
    if (!tm_shape_compatible(&s, &c->in[0].shape))
      return tm_fail(c->err, TM_EINVAL, "dy is no concatenation of xs");
    if (i - 1 >= first && i - 1 < first + n)
      TM_TRY(tm_infer_out(c, c->in[0].dtype, &c->in[i].shape));
  }
  if (sum >= 0 && c->in[0].shape.dim[axis] >= 0 && sum != c->in[0].shape.dim[axis])
    return tm_fail(c->err, TM_EINVAL, "dy is no concatenation of xs");
  return TM_OK;
}

static tm_status split_like_kernel(tm_kctx *c) {
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), c->in[0].shape.rank);
  int64_t skip = 0;
  for (int32_t i = 0; i < tm_at_int(c->attrs, 1); i++)
    skip += c->in[1 + i].shape.dim[axis];
  split_runs(c, axis, skip);
  return TM_OK;
}

/* din[first..] = the outputs, where they are needed. */
static void pack_hand_over(tm_gctx *c, int32_t first, tm_value **out, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (c->need[first + i])
      c->din[first + i] = out[i];
    else
      tm_value_unref(out[i]);
  }
}

/* Gradients of a list in parts of at most TM_MAX_OUTPUTS; `list` inputs of op follow
 * dout[0]. */
static tm_status pack_grad(tm_gctx *c, const char *op, int32_t list) {
  tm_value *in[1 + TM_MAX_LIST], *out[TM_MAX_OUTPUTS];
  int32_t nout;
  in[0] = c->dout[0];
  for (int32_t i = 0; i < list; i++) in[1 + i] = c->in[i];
  for (int32_t at = 0; at < c->nin; at += TM_MAX_OUTPUTS) {
    int32_t n = c->nin - at < TM_MAX_OUTPUTS ? c->nin - at : TM_MAX_OUTPUTS;
    tm_attrs a;
    TM_TRY(tm_g_attrs(c, op, &a));
    tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, tm_at_int(c->attrs, 0));
    tm_attr_set_int(&a.a[1], TM_ATTR_INT, at);
    tm_attr_set_int(&a.a[2], TM_ATTR_INT, n);
    TM_TRY(tm_g_multi(c, op, in, 1 + list, &a, out, &nout));
    pack_hand_over(c, at, out, nout);
  }
  return TM_OK;
}

static tm_status concat_grad(tm_gctx *c) {
  /* dy and the list must fit into the inputs of one node. */
  if (c->nin >= TM_MAX_LIST)
    return tm_fail(c->err, TM_EINVAL, "no gradient of more than %d inputs",
                   TM_MAX_LIST - 1);
  return pack_grad(c, "split_like", c->nin);
}

/* All gradients of the outputs, as inputs of concat or stack along the same axis. */
static tm_status unpack_grad(tm_gctx *c, const char *op, int32_t axis_attr) {
  tm_value *in[TM_MAX_OUTPUTS];
  tm_attrs a;
  for (int32_t i = 0; i < c->nout; i++) in[i] = tm_g_dout(c, i);
  TM_TRY(c->status);
  TM_TRY(tm_g_attrs(c, op, &a));
  tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, tm_at_int(c->attrs, axis_attr));
  return tm_g_set(c, 0, tm_gn(c, op, in, c->nout, &a, 0));
}

/* --- stack, unstack --- */

static tm_status stack_infer(tm_infer *c) {
  tm_shape in = c->in[0].shape, s = tm_shape_scalar();
  char name[40], a[128], b[128];
  int32_t axis;
  for (int32_t i = 1; i < c->nin; i++) {
    const tm_shape *x = &c->in[i].shape;
    TM_TRY(tm_infer_same_dtype(c, i, 0));
    if (!tm_shape_compatible(&in, x))
      return tm_fail(c->err, TM_EINVAL, "%s has shape %s, but xs[1] has shape %s",
                     tm_infer_name(c, i, name, sizeof name),
                     tm_shape_text(x, a, sizeof a), tm_shape_text(&in, b, sizeof b));
    for (int32_t k = 0; k < in.rank; k++)
      if (in.dim[k] < 0) in.dim[k] = x->dim[k];
  }
  if (in.rank == TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "xs have %d axes already, the most", TM_MAX_RANK);
  s.rank = in.rank + 1;
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 0), &axis, c->err));
  for (int32_t k = 0; k < s.rank; k++)
    s.dim[k] = k == axis ? c->nin : in.dim[k < axis ? k : k - 1];
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status stack_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), s->rank);
  int64_t rows = tm_shape_part(s, 0, axis);
  size_t bytes =
      (size_t)tm_shape_part(s, axis + 1, s->rank) * tm_dtype_size(c->out[0].dtype);
  char *to = c->out[0].data;
  if (bytes == 0) return TM_OK;
  for (int32_t i = 0; i < c->nin; i++, to += bytes)
    tm_k_put_columns(to, bytes * (size_t)c->nin, c->in[i].data, rows, bytes);
  return TM_OK;
}

static tm_status stack_grad(tm_gctx *c) { return pack_grad(c, "unstack_part", 0); }

static tm_status unstack_outputs(tm_infer *c, int32_t axis, int64_t n) {
  tm_shape s = c->in[0].shape;
  if (n > TM_MAX_OUTPUTS)
    return tm_fail(c->err, TM_EINVAL,
                   "axis %" PRId32 " has size %" PRId64 ", more than %d outputs",
                   axis + 1, n, TM_MAX_OUTPUTS);
  for (int32_t i = axis; i + 1 < s.rank; i++) s.dim[i] = s.dim[i + 1];
  s.dim[--s.rank] = 0;
  for (int64_t i = 0; i < n; i++) TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  return TM_OK;
}

static tm_status unstack_infer(tm_infer *c) {
  int32_t axis;
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  int64_t size = c->in[0].shape.dim[axis];
  int64_t num = tm_at_has(c->attrs, 1) ? tm_at_int(c->attrs, 1) : size;
  if (num < 0)
    return tm_fail(c->err, TM_EINVAL,
                   "the size of axis %" PRId32 " is not known yet: give num", axis + 1);
  if (size >= 0 && num != size)
    return tm_fail(c->err, TM_EINVAL,
                   "num is %" PRId64 ", but axis %" PRId32 " has size %" PRId64, num,
                   axis + 1, size);
  return unstack_outputs(c, axis, num);
}

static tm_status unstack_kernel(tm_kctx *c) {
  split_runs(c, tm_axis_of(tm_at_int(c->attrs, 0), c->in[0].shape.rank), 0);
  return TM_OK;
}

static tm_status unstack_grad(tm_gctx *c) { return unpack_grad(c, "stack", 0); }

static tm_status unstack_part_infer(tm_infer *c) {
  int64_t first = tm_at_int(c->attrs, 1), n = tm_at_int(c->attrs, 2);
  int32_t axis;
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  int64_t size = c->in[0].shape.dim[axis];
  if (first < 0 || n < 0 || size < 0 || first > size - n)
    return tm_fail(c->err, TM_EINVAL, "parts %" PRId64 " to %" PRId64 " of %" PRId64,
                   first, first + n, size);
  return unstack_outputs(c, axis, n);
}

static tm_status unstack_part_kernel(tm_kctx *c) {
  split_runs(c, tm_axis_of(tm_at_int(c->attrs, 0), c->in[0].shape.rank),
             tm_at_int(c->attrs, 1));
  return TM_OK;
}

/* --- split --- */

static tm_status split_equal(tm_infer *c, int32_t axis, int64_t n) {
  tm_shape s = c->in[0].shape;
  int64_t size = s.dim[axis];
  if (n < 1 || n > TM_MAX_OUTPUTS)
    return tm_fail(c->err, TM_EINVAL, "cannot split into %" PRId64 " parts (1 to %d)",
                   n, TM_MAX_OUTPUTS);
  if (size >= 0 && size % n != 0)
    return tm_fail(c->err, TM_EINVAL,
                   "axis %" PRId32 " of size %" PRId64 " does not split into %" PRId64
                   " equal parts",
                   axis + 1, size, n);
  if (size >= 0) s.dim[axis] = size / n;
  for (int64_t i = 0; i < n; i++) TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  return TM_OK;
}

static tm_status split_infer(tm_infer *c) {
  const tm_attr *a = &c->attrs->a[0];
  tm_shape s = c->in[0].shape;
  int32_t axis;
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 1), &axis, c->err));
  if (a->n == 1) return split_equal(c, axis, a->u.is[0]);
  int64_t size = s.dim[axis], left = size;
  for (int32_t i = 0; i < a->n; i++) {
    int64_t n = a->u.is[i];
    if (n < 0 || (size >= 0 && n > left))
      return tm_fail(c->err, TM_EINVAL,
                     "part %" PRId32 " of size %" PRId64
                     " does not fit into axis %" PRId32 " of size %" PRId64,
                     i + 1, n, axis + 1, size);
    left -= n;
    s.dim[axis] = n;
    TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  }
  if (size >= 0 && left != 0)
    return tm_fail(c->err, TM_EINVAL,
                   "the parts leave %" PRId64 " of the %" PRId64
                   " positions of axis %" PRId32,
                   left, size, axis + 1);
  return TM_OK;
}

static tm_status split_kernel(tm_kctx *c) {
  split_runs(c, tm_axis_of(tm_at_int(c->attrs, 1), c->in[0].shape.rank), 0);
  return TM_OK;
}

static tm_status split_grad(tm_gctx *c) { return unpack_grad(c, "concat", 1); }

static tm_status split_like_grad(tm_gctx *c) {
  const tm_attrs *a = c->attrs;
  if (tm_at_int(a, 1) != 0 || tm_at_int(a, 2) != c->nin - 1)
    return tm_fail(c->err, TM_EUNIMPL, "no second gradient of a list longer than %d",
                   TM_MAX_OUTPUTS);
  return unpack_grad(c, "concat", 0);
}

static const tm_op pack_ops[] = {
    {.name = "concat",
     .sig = "xs...; axis:axis=0",
     .help = "The tensors of a list one after another along an axis.",
     .infer = concat_infer,
     .kernel = concat_kernel,
     .grad = concat_grad},
    {.name = "split_like",
     .sig = "dy, xs...; axis:axis, first:int, n:int",
     .help = "Parts of dy along an axis, shaped like n of xs from `first` on.",
     .flags = TM_OP_HIDDEN,
     .infer = split_like_infer,
     .kernel = split_like_kernel,
     .grad = split_like_grad},
    {.name = "stack",
     .sig = "xs...; axis:axis=0",
     .help = "The tensors of a list, all of one shape, along a new axis.",
     .infer = stack_infer,
     .kernel = stack_kernel,
     .grad = stack_grad},
    {.name = "unstack",
     .sig = "x; axis:axis=0 | num:int?",
     .help = "The positions of an axis as tensors without that axis.",
     .infer = unstack_infer,
     .kernel = unstack_kernel,
     .grad = unstack_grad},
    {.name = "unstack_part",
     .sig = "x; axis:axis, first:int, n:int",
     .help = "n positions of an axis from `first` on, as tensors without that axis.",
     .flags = TM_OP_HIDDEN,
     .infer = unstack_part_infer,
     .kernel = unstack_part_kernel},
    {.name = "split",
     .sig = "x; num_or_size_splits:ints, axis:axis=0",
     .help = "x in equal parts (one number) or in parts of these sizes, along an axis.",
     .infer = split_infer,
     .kernel = split_kernel,
     .grad = split_grad},
};

const tm_op_group tm_ops_pack = {pack_ops, TM_COUNT(pack_ops)};
