#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/elementwise.h"

/*
 * Design.  Ops that turn numbers into positions and shapes into numbers.  None of them
 * has a gradient.
 */

/* x as one element of a number type or bool, into 8 bytes. */
static void encode_value(tm_dtype t, double x, void *out) {
  float f = (float)x;
  int64_t i = (int64_t)x;
  int32_t i32 = (int32_t)i;
  uint8_t u8 = (uint8_t)i, b = x != 0.0;
  memset(out, 0, 8);
  if (t == TM_F32) memcpy(out, &f, sizeof f);
  if (t == TM_F64) memcpy(out, &x, sizeof x);
  if (t == TM_I64) memcpy(out, &i, sizeof i);
  if (t == TM_I32) memcpy(out, &i32, sizeof i32);
  if (t == TM_U8) memcpy(out, &u8, sizeof u8);
  if (t == TM_BOOL) memcpy(out, &b, sizeof b);
}

static tm_status encode_no_strings(tm_infer *c, int32_t attr, tm_dtype t) {
  if (t != TM_STRING) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "%s must be a number type or bool",
                 tm_op_sig(c->op)->attr[attr].name);
}

/* --- one_hot: attributes depth, on_value, off_value, axis, dtype --- */

static tm_status one_hot_infer(tm_infer *c) {
  const tm_shape *in = &c->in[0].shape;
  int64_t depth = tm_at_int(c->attrs, 0);
  tm_shape s = *in;
  int32_t axis;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  TM_TRY(encode_no_strings(c, 4, tm_at_dtype(c->attrs, 4)));
  if (depth < 0)
    return tm_fail(c->err, TM_EINVAL, "depth is %" PRId64 ", must not be negative",
                   depth);
  if (in->rank == TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "indices have %d axes already, the most",
                   TM_MAX_RANK);
  s.rank++;
  s.dim[s.rank - 1] = 1;
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 3), &axis, c->err));
  for (int32_t i = s.rank - 1; i > axis; i--) s.dim[i] = s.dim[i - 1];
  s.dim[axis] = depth;
  return tm_infer_out(c, tm_at_dtype(c->attrs, 4), &s);
}

/* An id outside 0..depth-1 leaves its place off, as in NumPy's and TensorFlow's. */
static tm_status one_hot_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  tm_dtype t = c->out[0].dtype;
  size_t elem = tm_dtype_size(t);
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 3), s->rank);
  int64_t depth = s->dim[axis], inner = tm_shape_part(s, axis + 1, s->rank);
  int64_t n = tm_view_count(&c->in[0]);
  char on[8], off[8];
  encode_value(t, tm_at_float(c->attrs, 1), on);
  encode_value(t, tm_at_float(c->attrs, 2), off);
  tm_k_fill(c->out[0].data, off, elem, (size_t)tm_view_count(&c->out[0]));
  for (int64_t i = 0; i < n; i++) {
    int64_t id = tm_view_get_i64(&c->in[0], i);
    if (id < 0 || id >= depth) continue;
    int64_t at = (i / inner * depth + id) * inner + i % inner;
    memcpy((char *)c->out[0].data + (size_t)at * elem, on, elem);
  }
  return TM_OK;
}

/* --- shape_of, size_of --- */

static tm_status shape_of_infer(tm_infer *c) {
  tm_shape s = tm_shape_of(1, &(int64_t){c->in[0].shape.rank});
  return tm_infer_out(c, TM_I64, &s);
}

static tm_status shape_of_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int64_t *o = c->out[0].data;
  for (int32_t i = 0; i < s->rank; i++) o[i] = s->dim[i];
  return TM_OK;
}

static tm_status size_of_infer(tm_infer *c) {
  tm_shape s = tm_shape_scalar();
  return tm_infer_out(c, TM_I64, &s);
}

static tm_status size_of_kernel(tm_kctx *c) {
  *(int64_t *)c->out[0].data = tm_view_count(&c->in[0]);
  return TM_OK;
}

/* --- sequence_mask: attributes maxlen, dtype --- */

static tm_status sequence_mask_infer(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  TM_TRY(encode_no_strings(c, 1, tm_at_dtype(c->attrs, 1)));
  if (s.rank == TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "lengths have %d axes already, the most",
                   TM_MAX_RANK);
  if (tm_at_has(c->attrs, 0) && tm_at_int(c->attrs, 0) < 0)
    return tm_fail(c->err, TM_EINVAL, "maxlen is negative");
  s.dim[s.rank++] = tm_at_has(c->attrs, 0) ? tm_at_int(c->attrs, 0) : -1;
  return tm_infer_out(c, tm_at_dtype(c->attrs, 1), &s);
}

static int64_t sequence_mask_longest(const tm_view *v, int64_t n) {
  int64_t most = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t len = tm_view_get_i64(v, i);
    if (len > most) most = len;
  }
  return most;
}

static tm_status sequence_mask_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]);
  tm_dtype t = tm_at_dtype(c->attrs, 1);
  size_t elem = tm_dtype_size(t);
  tm_shape s = c->in[0].shape;
  char on[8], off[8];
  int64_t width = tm_at_has(c->attrs, 0) ? tm_at_int(c->attrs, 0)
                                         : sequence_mask_longest(&c->in[0], n);
  s.dim[s.rank++] = width;
  TM_TRY(tm_kctx_make(c, 0, t, &s));
  encode_value(t, 1, on);
  encode_value(t, 0, off);
  char *to = c->out[0].data;
  for (int64_t i = 0; i < n; i++, to += (size_t)width * elem) {
    int64_t len = tm_view_get_i64(&c->in[0], i);
    len = len < 0 ? 0 : len > width ? width : len;
    tm_k_fill(to, on, elem, (size_t)len);
    tm_k_fill(to + (size_t)len * elem, off, elem, (size_t)(width - len));
  }
  return TM_OK;
}

static const tm_op encode_ops[] = {
    {.name = "one_hot",
     .sig = "indices; depth:int | on_value:float=1, off_value:float=0, axis:axis=-1, "
            "dtype:dtype=float32",
     .help = "A new axis of size depth with on_value at each id (0-based).",
     .infer = one_hot_infer,
     .kernel = one_hot_kernel},
    {.name = "shape_of",
     .sig = "x",
     .help = "The sizes of x as int64 (rank).",
     .infer = shape_of_infer,
     .kernel = shape_of_kernel},
    {.name = "size_of",
     .sig = "x",
     .help = "The number of elements of x, an int64 scalar.",
     .infer = size_of_infer,
     .kernel = size_of_kernel},
    {.name = "sequence_mask",
     .sig = "lengths; maxlen:int? | dtype:dtype=bool",
     .help = "For each length a row that is true as far as the length.",
     .flags = TM_OP_DYNAMIC,
     .infer = sequence_mask_infer,
     .kernel = sequence_mask_kernel},
};

const tm_op_group tm_ops_encode = {encode_ops, TM_COUNT(encode_ops)};
