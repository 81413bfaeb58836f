#include <float.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/ids.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/segment.h"

/*
 * Design.  segment_ids has the shape of the first axes of data; what is left is a row.
 * The unsorted kind knows its number of segments from an attribute and passes negative
 * ids over; segment_sum wants ids in order and takes the number from the last one, so
 * it makes its output itself.
 */

/* The shape of a row behind a first axis of size `segments`. */
static tm_status segment_out(tm_infer *c, int64_t segments) {
  const tm_shape *data = &c->in[0].shape, *ids = &c->in[1].shape;
  tm_shape lead = *data, s = tm_shape_of(1, &segments);
  TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
  lead.rank = ids->rank;
  if (ids->rank > data->rank || !tm_shape_compatible(&lead, ids))
    return tm_fail(
        c->err, TM_EINVAL,
        "segment_ids of shape %s must fit the first axes of data of shape %s",
        tm_shape_text(ids, (char[128]){0}, 128),
        tm_shape_text(data, (char[128]){0}, 128));
  if (data->rank - ids->rank + 1 > TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "the result has too many axes");
  for (int32_t i = ids->rank; i < data->rank; i++) s.dim[s.rank++] = data->dim[i];
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status unsorted_infer(tm_infer *c) {
  int64_t n = tm_at_int(c->attrs, 0);
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  if (n < 0)
    return tm_fail(c->err, TM_EINVAL,
                   "num_segments is %" PRId64 ", must not be negative", n);
  return segment_out(c, n);
}

static tm_status mean_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return unsorted_infer(c);
}

/* Scratch: ids as int64, then the counts. */
static size_t segment_scratch(const tm_kctx *c) { return tm_ids_scratch(&c->in[1]); }
static size_t mean_scratch(const tm_kctx *c) {
  return tm_ids_scratch(&c->in[1]) + (size_t)tm_at_int(c->attrs, 0) * sizeof(int64_t);
}

static tm_status segment_ids(tm_kctx *c, int64_t segments, const int64_t **ids) {
  return tm_ids_read_signed(&c->in[1], "segment_ids", segments, "the result",
                            c->scratch, ids, c->err);
}

static int64_t segment_width(const tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  return tm_shape_part(s, c->in[1].shape.rank, s->rank);
}

static void segment_sum_run(tm_kctx *c, const int64_t *ids, int64_t segments) {
  int64_t n = tm_view_count(&c->in[1]), width = segment_width(c);
  switch (c->out[0].dtype) {
#define X(D, S)                                                                   \
  case D:                                                                         \
    tm_k_segment_sum_##S(c->out[0].data, c->in[0].data, ids, n, segments, width); \
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
}

static tm_status sum_kernel(tm_kctx *c) {
  int64_t segments = tm_at_int(c->attrs, 0);
  const int64_t *ids;
  TM_TRY(segment_ids(c, segments, &ids));
  segment_sum_run(c, ids, segments);
  return TM_OK;
}

static tm_status mean_kernel(tm_kctx *c) {
  int64_t segments = tm_at_int(c->attrs, 0), n = tm_view_count(&c->in[1]);
  int64_t *count = (int64_t *)(void *)((char *)c->scratch + tm_ids_scratch(&c->in[1]));
  TM_TRY(sum_kernel(c));
  const int64_t *ids;
  TM_TRY(segment_ids(c, segments, &ids));
  tm_k_segment_count(count, ids, n, segments);
  if (c->out[0].dtype == TM_F32)
    tm_k_segment_divide_f32(c->out[0].data, count, segments, segment_width(c));
  else
    tm_k_segment_divide_f64(c->out[0].data, count, segments, segment_width(c));
  return TM_OK;
}

static tm_status max_kernel(tm_kctx *c) {
  int64_t segments = tm_at_int(c->attrs, 0), n = tm_view_count(&c->in[1]);
  int64_t width = segment_width(c);
  const int64_t *ids;
  TM_TRY(segment_ids(c, segments, &ids));
  switch (c->out[0].dtype) {
#define X(D, S, E)                                                                   \
  case D:                                                                            \
    tm_k_segment_max_##S(c->out[0].data, c->in[0].data, ids, n, segments, width, E); \
    break;
    X(TM_F32, f32, -FLT_MAX)
    X(TM_F64, f64, -DBL_MAX)
    X(TM_I32, i32, INT32_MIN)
    X(TM_I64, i64, INT64_MIN)
    X(TM_U8, u8, 0)
#undef X
    default:
      break;
  }
  return TM_OK;
}

/* --- gradients --- */

/* segment_spread(dy, ids, like): row ids[i] of dy for each i. */
static tm_status spread_infer(tm_infer *c) {
  const tm_shape *ids = &c->in[1].shape;
  tm_shape lead = c->in[2].shape;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
  lead.rank = ids->rank;
  if (ids->rank > c->in[2].shape.rank || !tm_shape_compatible(&lead, ids) ||
      c->in[0].shape.rank != c->in[2].shape.rank - ids->rank + 1)
    return tm_fail(c->err, TM_EINVAL, "dy, segment_ids and like do not fit");
  for (int32_t i = 1; i < c->in[0].shape.rank; i++) {
    int64_t a = c->in[0].shape.dim[i], b = c->in[2].shape.dim[ids->rank + i - 1];
    if (a >= 0 && b >= 0 && a != b)
      return tm_fail(c->err, TM_EINVAL, "rows of dy and like differ in size");
  }
  return tm_infer_out(c, c->in[0].dtype, &c->in[2].shape);
}

static tm_status spread_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int64_t n = tm_view_count(&c->in[1]), width = tm_shape_part(s, 1, s->rank);
  const int64_t *ids;
  TM_TRY(tm_ids_read_signed(&c->in[1], "segment_ids", s->dim[0], "dy", c->scratch, &ids,
                            c->err));
  if (c->out[0].dtype == TM_F32)
    tm_k_segment_spread_f32(c->out[0].data, c->in[0].data, ids, n, width);
  else
    tm_k_segment_spread_f64(c->out[0].data, c->in[0].data, ids, n, width);
  return TM_OK;
}

static tm_value *segment_spread(tm_gctx *c, tm_value *dy) {
  tm_value *in[3] = {dy, c->in[1], c->in[0]};
  return dy ? tm_gn(c, "segment_spread", in, 3, NULL, 0) : NULL;
}

static tm_status sum_grad(tm_gctx *c) {
  if (!c->need[0]) return TM_OK;
  return tm_g_set(c, 0, segment_spread(c, c->dout[0]));
}

/* dy over the number of rows of its segment. */
static tm_status mean_grad(tm_gctx *c) {
  if (!c->need[0]) return TM_OK;
  tm_value *in[2] = {tm_g1(c, "ones_like", c->in[0]), c->in[1]};
  tm_value *count = tm_g_same(c, "unsorted_segment_sum", in, 2, 0);
  tm_value *one = tm_g_const(c, c->in[0], 1);
  tm_value *d = tm_g2(c, "div", c->dout[0], tm_g2(c, "maximum", count, one));
  return tm_g_set(c, 0, segment_spread(c, d));
}

static tm_status max_grad(tm_gctx *c) {
  tm_value *in[4] = {c->dout[0], c->in[0], c->in[1], c->out[0]};
  if (!c->need[0]) return TM_OK;
  return tm_g_set(c, 0, tm_gn(c, "segment_max_grad", in, 4, NULL, 0));
}

/* (dy, data, segment_ids, y) */
static tm_status max_grad_infer(tm_infer *c) {
  const tm_shape *x = &c->in[1].shape, *ids = &c->in[2].shape;
  tm_shape lead = *x;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_same_dtype(c, 3, 0));
  TM_TRY(tm_infer_want(c, 2, TM_WANT_INT));
  lead.rank = ids->rank;
  if (ids->rank > x->rank || !tm_shape_compatible(&lead, ids) ||
      !tm_shape_compatible(&c->in[0].shape, &c->in[3].shape) ||
      c->in[0].shape.rank != x->rank - ids->rank + 1)
    return tm_fail(c->err, TM_EINVAL, "dy, data, segment_ids and y do not fit");
  for (int32_t i = 1; i < c->in[0].shape.rank; i++) {
    int64_t a = c->in[0].shape.dim[i], b = x->dim[ids->rank + i - 1];
    if (a >= 0 && b >= 0 && a != b)
      return tm_fail(c->err, TM_EINVAL, "rows of dy and data differ in size");
  }
  return tm_infer_out(c, c->in[1].dtype, x);
}

static size_t max_grad_scratch(const tm_kctx *c) {
  return tm_ids_scratch(&c->in[2]) + (size_t)tm_view_count(&c->in[0]) * sizeof(int32_t);
}

static tm_status max_grad_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int64_t n = tm_view_count(&c->in[2]), segments = s->dim[0];
  int64_t width = tm_shape_part(s, 1, s->rank);
  int32_t *parts = (int32_t *)(void *)((char *)c->scratch + tm_ids_scratch(&c->in[2]));
  const int64_t *ids;
  TM_TRY(tm_ids_read_signed(&c->in[2], "segment_ids", segments, "dy", c->scratch, &ids,
                            c->err));
  if (c->out[0].dtype == TM_F32)
    tm_k_segment_max_grad_f32(c->out[0].data, c->in[1].data, c->in[3].data,
                              c->in[0].data, ids, n, segments, width, parts);
  else
    tm_k_segment_max_grad_f64(c->out[0].data, c->in[1].data, c->in[3].data,
                              c->in[0].data, ids, n, segments, width, parts);
  return TM_OK;
}

/* --- segment_sum: ids in order --- */

static tm_status sorted_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  TM_TRY(tm_infer_rank(c, 1, 1));
  return segment_out(c, -1);
}

static tm_status sorted_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[1]);
  const int64_t *ids;
  TM_TRY(segment_ids(c, INT64_MAX, &ids));
  for (int64_t i = 0; i < n; i++)
    if (ids[i] < (i ? ids[i - 1] : 0))
      return tm_fail(c->err, TM_EINVAL,
                     "segment_ids must not be negative and must not fall: id %" PRId64
                     " at position %" PRId64 "; use unsorted_segment_sum",
                     ids[i], i + 1);
  int64_t segments = n ? ids[n - 1] + 1 : 0;
  tm_shape s = tm_shape_of(1, &segments);
  for (int32_t i = 1; i < c->in[0].shape.rank; i++)
    s.dim[s.rank++] = c->in[0].shape.dim[i];
  TM_TRY(tm_kctx_make(c, 0, c->in[0].dtype, &s));
  segment_sum_run(c, ids, segments);
  return TM_OK;
}

static const tm_op segment_ops[] = {
    {.name = "segment_sum",
     .sig = "data, segment_ids",
     .help = "Sums of the rows of each segment; segment_ids (n) are in order.",
     .flags = TM_OP_DYNAMIC,
     .infer = sorted_infer,
     .kernel = sorted_kernel,
     .grad = sum_grad,
     .scratch = segment_scratch},
    {.name = "unsorted_segment_sum",
     .sig = "data, segment_ids; num_segments:int",
     .help = "Sums of the rows of each segment, 0 where there are none.",
     .infer = unsorted_infer,
     .kernel = sum_kernel,
     .grad = sum_grad,
     .scratch = segment_scratch},
    {.name = "unsorted_segment_mean",
     .sig = "data, segment_ids; num_segments:int",
     .help = "Means of the rows of each segment, 0 where there are none.",
     .infer = mean_infer,
     .kernel = mean_kernel,
     .grad = mean_grad,
     .scratch = mean_scratch},
    {.name = "unsorted_segment_max",
     .sig = "data, segment_ids; num_segments:int",
     .help = "Maxima of the rows of each segment, the lowest number where there are "
             "none.",
     .infer = unsorted_infer,
     .kernel = max_kernel,
     .grad = max_grad,
     .scratch = segment_scratch},
    {.name = "segment_spread",
     .sig = "dy, segment_ids, like",
     .help = "For each id its row of dy, zeros where the id is negative.",
     .flags = TM_OP_HIDDEN,
     .infer = spread_infer,
     .kernel = spread_kernel,
     .scratch = segment_scratch},
    {.name = "segment_max_grad",
     .sig = "dy, data, segment_ids, y",
     .help = "dy at the elements of data that are the maximum y, in equal parts.",
     .flags = TM_OP_HIDDEN,
     .infer = max_grad_infer,
     .kernel = max_grad_kernel,
     .scratch = max_grad_scratch},
};

const tm_op_group tm_ops_segment = {segment_ops, TM_COUNT(segment_ops)};
