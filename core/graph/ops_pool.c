#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/rules.h"
#include "graph/window.h"
#include "kernel/pooling.h"

/*
 * Design.  A maximum is looked for again where its gradient is computed, so nothing is
 * kept but x.  Given x, "where the maximum is" is fixed: max_pool2d_dx puts dy there,
 * max_pool2d_pick takes from there; each is the gradient of the other.
 */

enum { KSIZE, STRIDES, PADDING }; /* attributes */

static const double pool_work = 2e8; /* comparisons between looks at cancel */

static tm_status pool_geometry(const tm_attrs *a, const tm_shape *x, tm_k_pool *g,
                               tm_err *err) {
  int64_t size[2], stride[2];
  bool same;
  if (x->rank != 4)
    return tm_fail(err, TM_EINVAL, "x must be (batch, height, width, channels), got %s",
                   tm_shape_text(x, (char[128]){0}, 128));
  TM_TRY(tm_window_sizes(a, KSIZE, "ksize", 2, 1, size, err));
  TM_TRY(tm_window_sizes(a, STRIDES, "strides", 2, 0, stride, err));
  TM_TRY(tm_window_padding(a, PADDING, &same, err));
  tm_window v = {.size = size[0], .step = 1, .same = same, .stride = stride[0]};
  tm_window u = {.size = size[1], .step = 1, .same = same, .stride = stride[1]};
  if (!stride[0]) {
    v.stride = size[0];
    u.stride = size[1];
  }
  *g = (tm_k_pool){.n = x->dim[0], .h = x->dim[1], .w = x->dim[2], .c = x->dim[3]};
  TM_TRY(tm_window_place(&v, g->h, err));
  TM_TRY(tm_window_place(&u, g->w, err));
  g->kh = v.size, g->sh = v.stride, g->oh = v.out, g->top = v.before;
  g->kw = u.size, g->sw = u.stride, g->ow = u.out, g->left = u.before;
  return TM_OK;
}

static tm_status pool_shape(tm_infer *c, int32_t x, tm_shape *s) {
  tm_k_pool g;
  TM_TRY(tm_infer_want(c, x, TM_WANT_FLOAT));
  TM_TRY(pool_geometry(c->attrs, &c->in[x].shape, &g, c->err));
  *s = tm_shape_of(4, (int64_t[]){g.n, g.oh, g.ow, g.c});
  return TM_OK;
}

static tm_status pool_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(pool_shape(c, 0, &s));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* NAME_dx(dy, x): of the shape of x. */
static tm_status pool_dx_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(pool_shape(c, 1, &s));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  if (!tm_shape_compatible(&s, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "dy has shape %s, the output has shape %s",
                   tm_shape_text(&c->in[0].shape, (char[128]){0}, 128),
                   tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[1].dtype, &c->in[1].shape);
}

/* pick(v, x): v of the shape of x. */
static tm_status pool_pick_infer(tm_infer *c) {
  tm_shape s;
  TM_TRY(pool_shape(c, 1, &s));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_same_shape(c, 0, 1));
  return tm_infer_out(c, c->in[1].dtype, &s);
}

/* --- kernels --- */

enum pool_part { MAX_OUT, MAX_DX, MAX_PICK, AVG_OUT, AVG_DX };

#define POOL_PIECE(S)                                                      \
  static void pool_piece_##S(const tm_kctx *c, const tm_k_pool *g,         \
                             enum pool_part part, int64_t at, int64_t n) { \
    void *out = c->out[0].data;                                            \
    const void *a = c->in[0].data, *b = c->nin > 1 ? c->in[1].data : NULL; \
    switch (part) {                                                        \
      case MAX_OUT:                                                        \
        tm_k_max_pool_##S(out, a, g, at, n);                               \
        break;                                                             \
      case MAX_DX:                                                         \
        tm_k_max_pool_dx_##S(out, a, b, g, at, n);                         \
        break;                                                             \
      case MAX_PICK:                                                       \
        tm_k_max_pool_pick_##S(out, a, b, g, at, n);                       \
        break;                                                             \
      case AVG_OUT:                                                        \
        tm_k_avg_pool_##S(out, a, g, at, n);                               \
        break;                                                             \
      default:                                                             \
        tm_k_avg_pool_dx_##S(out, a, g, at, n);                            \
    }                                                                      \
  }
POOL_PIECE(f32)
POOL_PIECE(f64)

static tm_status pool_run(tm_kctx *c, enum pool_part part) {
  tm_k_pool g;
  const tm_shape *x = &c->in[c->nin - 1].shape; /* x is the last input */
  TM_TRY(pool_geometry(c->attrs, x, &g, c->err));
  if (part == MAX_DX || part == AVG_DX)
    memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  int64_t n = g.n * g.oh * g.ow;
  double pixel = (double)g.kh * (double)g.kw * (double)g.c;
  if (n == 0 || g.c == 0) return TM_OK;
  int64_t step = pixel * (double)n > pool_work ? (int64_t)(pool_work / pixel) + 1 : n;
  for (int64_t at = 0; at < n; at += step) {
    if (c->env && tm_cancelled(c->env->cancel))
      return tm_fail(c->err, TM_ECANCELLED, "cancelled");
    int64_t rows = n - at < step ? n - at : step;
    if (c->out[0].dtype == TM_F32)
      pool_piece_f32(c, &g, part, at, rows);
    else
      pool_piece_f64(c, &g, part, at, rows);
  }
  return TM_OK;
}

static tm_status max_kernel(tm_kctx *c) { return pool_run(c, MAX_OUT); }
static tm_status max_dx_kernel(tm_kctx *c) { return pool_run(c, MAX_DX); }
static tm_status max_pick_kernel(tm_kctx *c) { return pool_run(c, MAX_PICK); }
static tm_status avg_kernel(tm_kctx *c) { return pool_run(c, AVG_OUT); }
static tm_status avg_dx_kernel(tm_kctx *c) { return pool_run(c, AVG_DX); }

/* --- gradients --- */

static tm_value *pool_two(tm_gctx *c, const char *op, tm_value *a, tm_value *x) {
  return tm_g_same(c, op, (tm_value *[]){a, x}, 2, 0);
}

static tm_status max_grad(tm_gctx *c) {
  return tm_g_set(c, 0, pool_two(c, "nn.max_pool2d_dx", c->dout[0], c->in[0]));
}

static tm_status max_dx_grad(tm_gctx *c) {
  return tm_g_set(c, 0, pool_two(c, "nn.max_pool2d_pick", c->dout[0], c->in[1]));
}

static tm_status max_pick_grad(tm_gctx *c) {
  return tm_g_set(c, 0, pool_two(c, "nn.max_pool2d_dx", c->dout[0], c->in[1]));
}

static tm_status avg_grad(tm_gctx *c) {
  return tm_g_set(c, 0, pool_two(c, "nn.avg_pool2d_dx", c->dout[0], c->in[0]));
}

static tm_status avg_dx_grad(tm_gctx *c) {
  return tm_g_set(c, 0, tm_g_same(c, "nn.avg_pool2d", &c->dout[0], 1, 0));
}

#define ATTRS "; ksize:ints, strides:ints?, padding:str=valid"
#define HIDDEN(n, inputs, text, rule, run, back)                               \
  {                                                                            \
    .name = "nn." n, .sig = inputs ATTRS, .help = text, .flags = TM_OP_HIDDEN, \
    .infer = rule, .kernel = run, .grad = back                                 \
  }

static const tm_op pool_ops[] = {
    {.name = "nn.max_pool2d",
     .sig = "x" ATTRS,
     .help = "The largest of each window of x (n, h, w, c) -> (n, oh, ow, c); strides "
             "are ksize when absent; padding is \"valid\" or \"same\".",
     .infer = pool_infer,
     .kernel = max_kernel,
     .grad = max_grad},
    HIDDEN("max_pool2d_dx", "dy, x", "dy where x has the first maximum of a window.",
           pool_dx_infer, max_dx_kernel, max_dx_grad),
    HIDDEN("max_pool2d_pick", "v, x", "v where x has the first maximum of a window.",
           pool_pick_infer, max_pick_kernel, max_pick_grad),
    {.name = "nn.avg_pool2d",
     .sig = "x" ATTRS,
     .help =
         "The mean of each window of x (n, h, w, c) -> (n, oh, ow, c), without what "
         "is outside the image; strides are ksize when absent; padding is "
         "\"valid\" or \"same\".",
     .infer = pool_infer,
     .kernel = avg_kernel,
     .grad = avg_grad},
    HIDDEN("avg_pool2d_dx", "dy, x", "The gradient of avg_pool2d by x.", pool_dx_infer,
           avg_dx_kernel, avg_dx_grad),
};

const tm_op_group tm_ops_pool = {pool_ops, TM_COUNT(pool_ops)};
