#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/rows.h"
#include "kernel/segment.h"

/*
 * Design.  The last axis of indices (..., depth) names a place in the first `depth`
 * axes of an array; the rest of that array is a row.  The places become row ids in
 * scratch memory, checked axis by axis; then gather_nd copies rows and scatter_nd adds
 * them.
 */

static int64_t nd_depth(const tm_shape *indices) {
  return indices->dim[indices->rank - 1];
}

/* indices.shape[:-1] + full.shape[depth:] */
static tm_status nd_shape(tm_infer *c, const tm_type *indices, const tm_shape *full,
                          tm_shape *out) {
  const tm_shape *s = &indices->shape;
  if (s->rank < 1) return tm_fail(c->err, TM_EINVAL, "indices is a scalar");
  int64_t depth = nd_depth(s);
  if (depth < 0)
    return tm_fail(c->err, TM_EINVAL, "the last size of indices is not known yet");
  if (depth > full->rank)
    return tm_fail(c->err, TM_EINVAL,
                   "indices of shape %s name more axes than shape %s has",
                   tm_shape_text(s, (char[128]){0}, 128),
                   tm_shape_text(full, (char[128]){0}, 128));
  if (s->rank - 1 + full->rank - depth > TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "the result has too many axes");
  *out = tm_shape_scalar();
  for (int32_t i = 0; i < s->rank - 1; i++) out->dim[out->rank++] = s->dim[i];
  for (int32_t i = (int32_t)depth; i < full->rank; i++)
    out->dim[out->rank++] = full->dim[i];
  return TM_OK;
}

static size_t nd_scratch_of(const tm_view *indices) {
  const tm_shape *s = &indices->shape;
  return (size_t)tm_shape_part(s, 0, s->rank - 1) * sizeof(int64_t);
}

/* Row ids of the places in an array of shape full. */
static tm_status nd_rows(const tm_view *indices, const tm_shape *full, int64_t *rows,
                         tm_err *err) {
  const tm_shape *s = &indices->shape;
  int64_t depth = nd_depth(s), n = tm_shape_part(s, 0, s->rank - 1);
  for (int64_t i = 0; i < n; i++) {
    int64_t row = 0;
    for (int32_t k = 0; k < depth; k++) {
      int64_t id = tm_view_get_i64(indices, i * depth + k);
      if (id < 0 || id >= full->dim[k])
        return tm_fail(err, TM_EINVAL,
                       "index %" PRId64 " at position %" PRId64
                       " is outside axis %" PRId32 " of size %" PRId64,
                       id, i + 1, k + 1, full->dim[k]);
      row = row * full->dim[k] + id;
    }
    rows[i] = row;
  }
  return TM_OK;
}

/* --- gather_nd --- */

static tm_status gather_nd_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
  TM_TRY(nd_shape(c, &c->in[1], &c->in[0].shape, &s));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static size_t gather_nd_scratch(const tm_kctx *c) { return nd_scratch_of(&c->in[1]); }

static tm_status gather_nd_kernel(tm_kctx *c) {
  const tm_shape *p = &c->in[0].shape, *s = &c->in[1].shape;
  size_t bytes = (size_t)tm_shape_part(p, (int32_t)nd_depth(s), p->rank) *
                 tm_dtype_size(c->in[0].dtype);
  TM_TRY(nd_rows(&c->in[1], p, c->scratch, c->err));
  if (bytes > 0)
    tm_k_gather_rows(c->out[0].data, c->in[0].data, c->scratch,
                     tm_shape_part(s, 0, s->rank - 1), bytes);
  return TM_OK;
}

static tm_status gather_nd_grad(tm_gctx *c) {
  tm_value *in[3] = {c->in[1], c->dout[0], c->in[0]};
  return c->need[0] ? tm_g_set(c, 0, tm_gn(c, "scatter_nd_like", in, 3, NULL, 0))
                    : TM_OK;
}

/* --- scatter_nd(indices, updates; shape), scatter_nd_like(indices, updates, like) ---
 */

static tm_status scatter_infer(tm_infer *c, const tm_shape *full) {
  tm_shape s;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_NUMBER));
  TM_TRY(nd_shape(c, &c->in[0], full, &s));
  if (!tm_shape_compatible(&s, &c->in[1].shape))
    return tm_fail(c->err, TM_EINVAL, "updates of shape %s should have shape %s",
                   tm_shape_text(&c->in[1].shape, (char[128]){0}, 128),
                   tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[1].dtype, full);
}

static tm_status scatter_nd_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(tm_infer_shape_attr(c, 0, &s));
  return scatter_infer(c, &s);
}

static tm_status scatter_nd_like_infer(tm_infer *c) {
  return scatter_infer(c, &c->in[2].shape);
}

static size_t scatter_nd_scratch(const tm_kctx *c) { return nd_scratch_of(&c->in[0]); }

static tm_status scatter_nd_kernel(tm_kctx *c) {
  const tm_shape *full = &c->out[0].shape, *s = &c->in[0].shape;
  int32_t depth = (int32_t)nd_depth(s);
  int64_t n = tm_shape_part(s, 0, s->rank - 1);
  int64_t segments = tm_shape_part(full, 0, depth);
  int64_t width = tm_shape_part(full, depth, full->rank);
  TM_TRY(nd_rows(&c->in[0], full, c->scratch, c->err));
  switch (c->out[0].dtype) {
#define X(D, S)                                                                  \
  case D:                                                                        \
    tm_k_segment_sum_##S(c->out[0].data, c->in[1].data, c->scratch, n, segments, \
                         width);                                                 \
    break;
    X(TM_F32, f32)
    X(TM_F64, f64)
    X(TM_I32, i32)
    X(TM_I64, i64)
    X(TM_U8, u8)
#undef X
    default:
      break;
  }
  return TM_OK;
}

static tm_status scatter_nd_grad(tm_gctx *c) {
  return c->need[1] ? tm_g_set(c, 1, tm_g2(c, "gather_nd", c->dout[0], c->in[0]))
                    : TM_OK;
}

static const tm_op nd_ops[] = {
    {.name = "gather_nd",
     .sig = "params, indices",
     .help = "Rows of params at the places (0-based) along the last axis of indices.",
     .infer = gather_nd_infer,
     .kernel = gather_nd_kernel,
     .grad = gather_nd_grad,
     .scratch = gather_nd_scratch},
    {.name = "scatter_nd",
     .sig = "indices, updates; shape:shape",
     .help = "Zeros of this shape with updates added at the places in indices.",
     .infer = scatter_nd_infer,
     .kernel = scatter_nd_kernel,
     .grad = scatter_nd_grad,
     .scratch = scatter_nd_scratch},
    {.name = "scatter_nd_like",
     .sig = "indices, updates, like",
     .help = "Zeros like `like` with updates added at the places in indices.",
     .flags = TM_OP_HIDDEN,
     .infer = scatter_nd_like_infer,
     .kernel = scatter_nd_kernel,
     .grad = scatter_nd_grad,
     .scratch = scatter_nd_scratch},
};

const tm_op_group tm_ops_nd = {nd_ops, TM_COUNT(nd_ops)};
