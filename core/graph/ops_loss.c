#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "graph/second.h"
#include "kernel/act.h"
#include "kernel/softmax.h"

/*
 * Design.  Cross entropies from logits, and their gradients with respect to the logits
 * as one op each, so that no probability is computed and kept between them.  Labels
 * come first.
 */

/* --- sigmoid --- */

static tm_status sigmoid_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 1, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 0, 1));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return tm_infer_out(c, c->in[1].dtype, &c->in[1].shape);
}

static tm_status sigmoid_kernel(tm_kctx *c) {
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (c->out[0].dtype == TM_F32)
    tm_k_sigmoid_xent_f32(c->out[0].data, c->in[0].data, c->in[1].data, n);
  else
    tm_k_sigmoid_xent_f64(c->out[0].data, c->in[0].data, c->in[1].data, n);
  return TM_OK;
}

static tm_status sigmoid_grad(tm_gctx *c) {
  tm_value *in[3] = {c->dout[0], c->in[0], c->in[1]};
  if (c->need[1])
    TM_TRY(tm_g_set(c, 1, tm_gn(c, "nn.sigmoid_cross_entropy_grad", in, 3, NULL, 0)));
  if (c->need[0])
    TM_TRY(tm_g_set(c, 0, tm_g1(c, "neg", tm_g2(c, "mul", c->dout[0], c->in[1]))));
  return TM_OK;
}

static tm_status sigmoid_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 2, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_shape(c, 0, 2));
  TM_TRY(tm_infer_same_shape(c, 1, 2));
  TM_TRY(tm_infer_same_dtype(c, 0, 2));
  TM_TRY(tm_infer_same_dtype(c, 1, 2));
  return tm_infer_out(c, c->in[2].dtype, &c->in[2].shape);
}

static tm_status sigmoid_grad_kernel(tm_kctx *c) {
  size_t n = (size_t)tm_view_count(&c->out[0]);
  if (c->out[0].dtype == TM_F32)
    tm_k_sigmoid_xent_grad_f32(c->out[0].data, c->in[0].data, c->in[1].data,
                               c->in[2].data, n);
  else
    tm_k_sigmoid_xent_grad_f64(c->out[0].data, c->in[0].data, c->in[1].data,
                               c->in[2].data, n);
  return TM_OK;
}

/* dy * (sigmoid(x) - z): by dy, labels and logits. */
static tm_status sigmoid_grad_grad(tm_gctx *c) {
  tm_value *s = tm_g1(c, "sigmoid", c->in[2]);
  tm_value *d = c->dout[0], *dd = tm_g2(c, "mul", d, c->in[0]);
  if (c->need[0])
    TM_TRY(tm_g_set(c, 0, tm_g2(c, "mul", d, tm_g2(c, "sub", s, c->in[1]))));
  if (c->need[1]) TM_TRY(tm_g_set(c, 1, tm_g1(c, "neg", dd)));
  if (c->need[2]) {
    tm_value *slope = tm_g2(c, "sub", s, tm_g1(c, "square", s));
    TM_TRY(tm_g_set(c, 2, tm_g2(c, "mul", dd, slope)));
  }
  return TM_OK;
}

/* --- softmax with a distribution a row --- */

/* The class axis must be the last of logits in these kernels. */
static tm_status softmax_axis(tm_infer *c, int32_t logits, int32_t attr) {
  int32_t axis;
  const tm_shape *s = &c->in[logits].shape;
  if (s->rank == 0) return tm_fail(c->err, TM_EINVAL, "logits is a scalar");
  TM_TRY(tm_shape_axis(s, tm_at_int(c->attrs, attr), &axis, c->err));
  if (axis != s->rank - 1)
    return tm_fail(c->err, TM_EUNIMPL,
                   "the classes must lie along the last axis of logits: transpose it");
  return TM_OK;
}

static tm_status softmax_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 1, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 0, 1));
  TM_TRY(softmax_axis(c, 1, 0));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  tm_shape s = c->in[1].shape;
  s.dim[--s.rank] = 0;
  return tm_infer_out(c, c->in[1].dtype, &s);
}

static int64_t loss_rows(const tm_shape *logits) {
  return tm_shape_part(logits, 0, logits->rank - 1);
}

static tm_status softmax_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[1].shape;
  int64_t rows = loss_rows(s), n = s->dim[s->rank - 1];
  if (c->out[0].dtype == TM_F32)
    tm_k_softmax_xent_f32(c->out[0].data, c->in[0].data, c->in[1].data, rows, n);
  else
    tm_k_softmax_xent_f64(c->out[0].data, c->in[0].data, c->in[1].data, rows, n);
  return TM_OK;
}

/* dy (rows) as a column beside the classes */
static tm_value *loss_column(tm_gctx *c) {
  tm_attrs a;
  if (tm_g_attrs(c, "expand_dims", &a)) return NULL;
  tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, -1);
  return tm_gn(c, "expand_dims", &c->dout[0], 1, &a, 0);
}

static tm_status softmax_grad(tm_gctx *c) {
  tm_value *in[3] = {c->dout[0], c->in[0], c->in[1]};
  if (c->need[1])
    TM_TRY(tm_g_set(c, 1, tm_gn(c, "nn.softmax_cross_entropy_grad", in, 3, NULL, 0)));
  if (c->need[0]) {
    tm_value *lp = tm_g1(c, "nn.log_softmax", c->in[1]);
    tm_value *d = tm_g2(c, "mul", loss_column(c), lp);
    TM_TRY(tm_g_set(c, 0, tm_g1(c, "neg", d)));
  }
  return TM_OK;
}

/* (dy, labels, logits): dy has the shape of logits without the classes. */
static tm_status softmax_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 2, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 0, 2));
  TM_TRY(tm_infer_same_dtype(c, 1, 2));
  TM_TRY(tm_infer_same_shape(c, 1, 2));
  TM_TRY(tm_infer_rank(c, 0, c->in[2].shape.rank - 1));
  tm_shape s = c->in[2].shape;
  s.rank--;
  if (!tm_shape_compatible(&s, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "dy does not fit logits");
  return tm_infer_out(c, c->in[2].dtype, &c->in[2].shape);
}

static tm_status softmax_grad_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  int64_t rows = loss_rows(s), n = s->dim[s->rank - 1];
  if (n == 0) return TM_OK;
  if (c->out[0].dtype == TM_F32)
    tm_k_softmax_xent_grad_f32(c->out[0].data, c->in[0].data, c->in[1].data,
                               c->in[2].data, rows, n);
  else
    tm_k_softmax_xent_grad_f64(c->out[0].data, c->in[0].data, c->in[1].data,
                               c->in[2].data, rows, n);
  return TM_OK;
}

/* --- softmax with one label a row --- */

static tm_status sparse_check(tm_infer *c, int32_t labels, int32_t logits) {
  TM_TRY(tm_infer_want(c, labels, TM_WANT_INT));
  TM_TRY(tm_infer_want(c, logits, TM_WANT_FLOAT));
  tm_shape s = c->in[logits].shape;
  if (s.rank == 0) return tm_fail(c->err, TM_EINVAL, "logits is a scalar");
  s.rank--;
  if (tm_shape_compatible(&s, &c->in[labels].shape)) return TM_OK;
  return tm_fail(c->err, TM_EINVAL,
                 "labels of shape %s must have the shape of logits %s without its last "
                 "axis",
                 tm_shape_text(&c->in[labels].shape, (char[128]){0}, 128),
                 tm_shape_text(&c->in[logits].shape, (char[128]){0}, 128));
}

static tm_status sparse_infer(tm_infer *c) {
  TM_TRY(sparse_check(c, 0, 1));
  return tm_infer_out(c, c->in[1].dtype, &c->in[0].shape);
}

static size_t sparse_scratch_of(const tm_view *labels) {
  return labels->dtype == TM_I64 ? 0 : (size_t)tm_view_count(labels) * sizeof(int64_t);
}
static size_t sparse_scratch(const tm_kctx *c) { return sparse_scratch_of(&c->in[0]); }
static size_t sparse_grad_scratch(const tm_kctx *c) {
  return sparse_scratch_of(&c->in[1]);
}

/* Labels as int64, each in 0..n-1. */
static tm_status sparse_labels(tm_kctx *c, const tm_view *v, int64_t n,
                               const int64_t **out) {
  int64_t count = tm_view_count(v), *copy = c->scratch;
  *out = v->data;
  if (v->dtype != TM_I64) {
    for (int64_t i = 0; i < count; i++) copy[i] = tm_view_get_i64(v, i);
    *out = copy;
  }
  for (int64_t i = 0; i < count; i++)
    if ((*out)[i] < 0 || (*out)[i] >= n)
      return tm_fail(c->err, TM_EINVAL,
                     "label %" PRId64 " at index %" PRId64 " is outside 0..%" PRId64
                     ": logits have %" PRId64 " classes",
                     (*out)[i], i, n - 1, n);
  return TM_OK;
}

static tm_status sparse_kernel(tm_kctx *c) {
  const tm_shape *s = &c->in[1].shape;
  int64_t rows = loss_rows(s), n = s->dim[s->rank - 1];
  const int64_t *labels;
  TM_TRY(sparse_labels(c, &c->in[0], n, &labels));
  if (c->out[0].dtype == TM_F32)
    tm_k_sparse_xent_f32(c->out[0].data, labels, c->in[1].data, rows, n);
  else
    tm_k_sparse_xent_f64(c->out[0].data, labels, c->in[1].data, rows, n);
  return TM_OK;
}

static tm_status sparse_grad(tm_gctx *c) {
  tm_value *in[3] = {c->dout[0], c->in[0], c->in[1]};
  return tm_g_set(c, 1,
                  tm_gn(c, "nn.sparse_softmax_cross_entropy_grad", in, 3, NULL, 0));
}

static tm_status sparse_grad_infer(tm_infer *c) {
  TM_TRY(sparse_check(c, 1, 2));
  TM_TRY(tm_infer_same_dtype(c, 0, 2));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return tm_infer_out(c, c->in[2].dtype, &c->in[2].shape);
}

static tm_status sparse_grad_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  int64_t rows = loss_rows(s), n = s->dim[s->rank - 1];
  const int64_t *labels;
  TM_TRY(sparse_labels(c, &c->in[1], n, &labels));
  if (c->out[0].dtype == TM_F32)
    tm_k_sparse_xent_grad_f32(c->out[0].data, c->in[0].data, labels, c->in[2].data,
                              rows, n);
  else
    tm_k_sparse_xent_grad_f64(c->out[0].data, c->in[0].data, labels, c->in[2].data,
                              rows, n);
  return TM_OK;
}

static const tm_op loss_ops[] = {
    {.name = "nn.sigmoid_cross_entropy_with_logits",
     .sig = "labels, logits",
     .help = "Cross entropy of labels and sigmoid(logits), element by element.",
     .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE,
     .infer = sigmoid_infer,
     .kernel = sigmoid_kernel,
     .grad = sigmoid_grad},
    {.name = "nn.sigmoid_cross_entropy_grad",
     .sig = "dy, labels, logits",
     .help = "dy * (sigmoid(logits) - labels).",
     .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE | TM_OP_HIDDEN,
     .infer = sigmoid_grad_infer,
     .kernel = sigmoid_grad_kernel,
     .grad = sigmoid_grad_grad},
    {.name = "nn.softmax_cross_entropy_with_logits",
     .sig = "labels, logits; axis:axis=-1",
     .help = "Cross entropy of labels (..., n) and softmax(logits), one a row.",
     .infer = softmax_infer,
     .kernel = softmax_kernel,
     .grad = softmax_grad},
    {.name = "nn.softmax_cross_entropy_grad",
     .sig = "dy, labels, logits",
     .help = "dy times (softmax(logits) * sum of labels - labels).",
     .flags = TM_OP_HIDDEN,
     .infer = softmax_grad_infer,
     .kernel = softmax_grad_kernel,
     .grad = tm_second_softmax_loss},
    {.name = "nn.sparse_softmax_cross_entropy_with_logits",
     .sig = "labels, logits",
     .help = "Cross entropy of one label a row (0-based) and softmax(logits).",
     .infer = sparse_infer,
     .kernel = sparse_kernel,
     .grad = sparse_grad,
     .scratch = sparse_scratch},
    {.name = "nn.sparse_softmax_cross_entropy_grad",
     .sig = "dy, labels, logits",
     .help = "dy times (softmax(logits) - one_hot(labels)).",
     .flags = TM_OP_HIDDEN,
     .infer = sparse_grad_infer,
     .kernel = sparse_grad_kernel,
     .grad = tm_second_sparse_loss,
     .scratch = sparse_grad_scratch},
};

const tm_op_group tm_ops_loss = {loss_ops, TM_COUNT(loss_ops)};
