#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/second.h"
#include "kernel/softmax.h"

/*
 * Design.  The kernels know the last axis only.  Another axis is turned to the end in
 * scratch memory, and the result turned back.
 */

static tm_status softmax_infer(tm_infer *c) {
  int32_t axis;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  if (c->in[0].shape.rank == 0)
    return tm_fail(c->err, TM_EINVAL, "%s is a scalar", tm_op_sig(c->op)->in_name[0]);
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status softmax_grad_infer(tm_infer *c) {
  TM_TRY(softmax_infer(c));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  return tm_infer_same_shape(c, 0, 1);
}

/* One number of bytes a tensor that is turned. */
static size_t softmax_scratch(const tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), s->rank);
  if (tm_shape_part(s, axis + 1, s->rank) == 1) return 0;
  return tm_view_bytes(&c->in[0]) * (size_t)(c->nin + c->nout);
}

/* (outer, n, inner) read as (outer, inner, n). */
static tm_k_walk softmax_walk(const tm_shape *s, int32_t axis) {
  int64_t n = s->dim[axis], inner = tm_shape_part(s, axis + 1, s->rank);
  return (tm_k_walk){.rank = 3,
                     .dim = {tm_shape_part(s, 0, axis), inner, n},
                     .step = {n * inner, 1, inner}};
}

typedef void rows_f32(float *o, const float *a, const float *b, int64_t rows,
                      int64_t n);
typedef void rows_f64(double *o, const double *a, const double *b, int64_t rows,
                      int64_t n);

static tm_status softmax_run(tm_kctx *c, rows_f32 *f32, rows_f64 *f64) {
  const tm_shape *s = &c->in[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), s->rank);
  int64_t n = s->dim[axis], count = tm_view_count(&c->in[0]);
  size_t bytes = tm_view_bytes(&c->in[0]), elem = tm_dtype_size(c->in[0].dtype);
  bool turn = tm_shape_part(s, axis + 1, s->rank) != 1;
  void *in[2] = {c->in[0].data, c->nin > 1 ? c->in[1].data : NULL};
  void *out = c->out[0].data;
  if (count == 0) return TM_OK;
  tm_k_walk w = softmax_walk(s, axis);
  if (turn) {
    out = c->scratch;
    for (int32_t i = 0; i < c->nin; i++) {
      in[i] = (char *)c->scratch + (size_t)(i + 1) * bytes;
      tm_k_read_strided(in[i], c->in[i].data, &w, elem);
    }
  }
  if (c->in[0].dtype == TM_F32)
    f32(out, in[0], in[1], count / n, n);
  else
    f64(out, in[0], in[1], count / n, n);
  if (turn) tm_k_write_strided(c->out[0].data, out, &w, elem);
  return TM_OK;
}

#define SOFTMAX_ONE(name, S, T)                                                   \
  static void name##_##S(T *o, const T *a, const T *b, int64_t rows, int64_t n) { \
    (void)b;                                                                      \
    tm_k_##name##_##S(o, a, rows, n);                                             \
  }
SOFTMAX_ONE(softmax, f32, float)
SOFTMAX_ONE(softmax, f64, double)
SOFTMAX_ONE(log_softmax, f32, float)
SOFTMAX_ONE(log_softmax, f64, double)

static tm_status softmax_kernel(tm_kctx *c) {
  return softmax_run(c, softmax_f32, softmax_f64);
}
static tm_status log_softmax_kernel(tm_kctx *c) {
  return softmax_run(c, log_softmax_f32, log_softmax_f64);
}
static tm_status softmax_grad_kernel(tm_kctx *c) {
  return softmax_run(c, tm_k_softmax_grad_f32, tm_k_softmax_grad_f64);
}
static tm_status log_softmax_grad_kernel(tm_kctx *c) {
  return softmax_run(c, tm_k_log_softmax_grad_f32, tm_k_log_softmax_grad_f64);
}

static tm_status softmax_grad(tm_gctx *c) {
  return tm_g_set_same(c, 0, "nn.softmax_grad", c->out[0]);
}
static tm_status log_softmax_grad(tm_gctx *c) {
  return tm_g_set_same(c, 0, "nn.log_softmax_grad", c->out[0]);
}

static const tm_op softmax_ops[] = {
    {.name = "nn.softmax",
     .sig = "logits; axis:axis=-1",
     .help = "exp(logits) divided by its sum along an axis.",
     .flags = TM_OP_INPLACE,
     .infer = softmax_infer,
     .kernel = softmax_kernel,
     .grad = softmax_grad,
     .scratch = softmax_scratch},
    {.name = "nn.softmax_grad",
     .sig = "dy, y; axis:axis=-1",
     .help = "The gradient of softmax from its result.",
     .flags = TM_OP_INPLACE | TM_OP_HIDDEN,
     .infer = softmax_grad_infer,
     .kernel = softmax_grad_kernel,
     .grad = tm_second_softmax,
     .scratch = softmax_scratch},
    {.name = "nn.log_softmax",
     .sig = "logits; axis:axis=-1",
     .help = "The logarithm of softmax along an axis.",
     .flags = TM_OP_INPLACE,
     .infer = softmax_infer,
     .kernel = log_softmax_kernel,
     .grad = log_softmax_grad,
     .scratch = softmax_scratch},
    {.name = "nn.log_softmax_grad",
     .sig = "dy, y; axis:axis=-1",
     .help = "The gradient of log_softmax from its result.",
     .flags = TM_OP_INPLACE | TM_OP_HIDDEN,
     .infer = softmax_grad_infer,
     .kernel = log_softmax_grad_kernel,
     .grad = tm_second_log_softmax,
     .scratch = softmax_scratch},
};

const tm_op_group tm_ops_softmax = {softmax_ops, TM_COUNT(softmax_ops)};
