#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "graph/rules.h"
#include "graph/window.h"
#include "kernel/conv.h"

/*
 * Design.  conv1d, conv2d and depthwise_conv2d are one convolution: a row is an image
 * of height 1, depthwise filters are filters of as many groups as channels, without
 * moving a byte.  Each has two hidden ops: NAME_dx(filters, dy, x) and NAME_df(x, dy,
 * filters), whose last input gives only the shape that is wanted, known at run time.
 * The three are linear in each operand, so their rules lead from one to another and
 * gradients of gradients need no more ops.
 *
 * Output pixels go in pieces (kernel/conv.h), so memory is bounded and a cancelled step
 * stops soon.
 */

enum { STRIDES, PADDING, DILATIONS, GROUPS }; /* attributes */

static bool conv_deep(const tm_op *op) { return strstr(op->name, "depthwise") != NULL; }
static int32_t conv_axes(const tm_op *op) { return strstr(op->name, "1d") ? 1 : 2; }

struct conv_task {
  const tm_op *op;
  const tm_attrs *attrs;
  const tm_shape *x, *f;
  tm_err *err;
};

static tm_status conv_misfit(const struct conv_task *t, const char *what) {
  return tm_fail(t->err, TM_EINVAL, "%s: x has shape %s, filters have shape %s", what,
                 tm_shape_text(t->x, (char[128]){0}, 128),
                 tm_shape_text(t->f, (char[128]){0}, 128));
}

/* Channels of depthwise filters (.., c, m); -1 where not known. */
static tm_status conv_deep_channels(const struct conv_task *t, int64_t in, int64_t out,
                                    tm_k_conv *g) {
  if (g->c < 0) g->c = in;
  if (in >= 0 && g->c != in) return conv_misfit(t, "numbers of channels differ");
  g->groups = g->c;
  g->co = in < 0 || out < 0 ? -1 : in * out;
  return TM_OK;
}

/* Channels of filters (.., c / groups, co). */
static tm_status conv_group_channels(const struct conv_task *t, int64_t in, int64_t out,
                                     tm_k_conv *g) {
  g->groups = tm_at_int(t->attrs, GROUPS);
  if (g->groups < 1 || g->groups > INT32_MAX)
    return tm_fail(t->err, TM_EINVAL, "groups is %" PRId64 ", must be at least 1",
                   g->groups);
  int64_t all = in < 0 ? g->c : in * g->groups;
  if (g->c < 0) g->c = all;
  if (g->c != all)
    return conv_misfit(t, g->groups == 1
                              ? "numbers of channels differ"
                              : "the channels of x are not groups times those "
                                "of filters");
  if (out >= 0 && out % g->groups != 0)
    return conv_misfit(t, "the outputs of filters are not a multiple of groups");
  g->co = out;
  return TM_OK;
}

static tm_status conv_channels(const struct conv_task *t, tm_k_conv *g) {
  int64_t in = t->f->dim[t->f->rank - 2], out = t->f->dim[t->f->rank - 1];
  g->c = t->x->dim[t->x->rank - 1];
  if (in == 0 || out == 0 || g->c == 0) return conv_misfit(t, "there are no channels");
  if (in > INT32_MAX || out > INT32_MAX || g->c > INT32_MAX)
    return conv_misfit(t, "there are 2^31 channels or more");
  return conv_deep(t->op) ? conv_deep_channels(t, in, out, g)
                          : conv_group_channels(t, in, out, g);
}

/* The whole geometry; -1 where sizes are not known. */
static tm_status conv_geometry(const struct conv_task *t, tm_k_conv *g) {
  int32_t axes = conv_axes(t->op);
  int64_t stride[2] = {1, 1}, step[2] = {1, 1};
  bool same;
  if (t->x->rank != axes + 2 || t->f->rank != axes + 2)
    return conv_misfit(t, axes == 1 ? "x must be (batch, steps, channels), filters "
                                      "(size, channels, outputs)"
                                    : "x must be (batch, height, width, channels), "
                                      "filters (height, width, channels, outputs)");
  TM_TRY(tm_window_sizes(t->attrs, STRIDES, "strides", axes, 1, stride + 2 - axes,
                         t->err));
  TM_TRY(tm_window_sizes(t->attrs, DILATIONS, "dilations", axes, 1, step + 2 - axes,
                         t->err));
  TM_TRY(tm_window_padding(t->attrs, PADDING, &same, t->err));
  *g = (tm_k_conv){.n = t->x->dim[0], .h = 1, .kh = 1};
  if (axes == 2) {
    g->h = t->x->dim[1];
    g->kh = t->f->dim[0];
  }
  g->w = t->x->dim[axes];
  g->kw = t->f->dim[axes - 1];
  TM_TRY(conv_channels(t, g));
  tm_window v = {.size = g->kh, .stride = stride[0], .step = step[0], .same = same};
  tm_window u = {.size = g->kw, .stride = stride[1], .step = step[1], .same = same};
  TM_TRY(tm_window_place(&v, g->h, t->err));
  TM_TRY(tm_window_place(&u, g->w, t->err));
  g->oh = v.out, g->sh = v.stride, g->dh = v.step, g->top = v.before;
  g->ow = u.out, g->sw = u.stride, g->dw = u.step, g->left = u.before;
  int64_t k = tm_shape_part_or_unknown(t->f, 0, t->f->rank - 1);
  if (k > INT32_MAX || g->co > INT32_MAX)
    return conv_misfit(t, "filters have 2^31 weights an output, or outputs, or more");
  return TM_OK;
}

static tm_shape conv_shape(const tm_k_conv *g, int32_t axes) {
  int64_t dim[4] = {g->n, g->oh, g->ow, g->co};
  if (axes == 1) {
    dim[1] = g->ow;
    dim[2] = g->co;
  }
  return tm_shape_of(axes + 2, dim);
}

static tm_status conv_infer(tm_infer *c) {
  struct conv_task t = {c->op, c->attrs, &c->in[0].shape, &c->in[1].shape, c->err};
  tm_k_conv g;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(conv_geometry(&t, &g));
  tm_shape s = conv_shape(&g, conv_axes(c->op));
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* Of dx and df: inputs are one operand, dy, and the other. */
static tm_status conv_grad_infer(tm_infer *c, int32_t x, int32_t f) {
  struct conv_task t = {c->op, c->attrs, &c->in[x].shape, &c->in[f].shape, c->err};
  tm_k_conv g;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  TM_TRY(tm_infer_same_dtype(c, 2, 0));
  TM_TRY(conv_geometry(&t, &g));
  tm_shape s = conv_shape(&g, conv_axes(c->op));
  if (!tm_shape_compatible(&s, &c->in[1].shape))
    return tm_fail(c->err, TM_EINVAL, "dy has shape %s, the output has shape %s",
                   tm_shape_text(&c->in[1].shape, (char[128]){0}, 128),
                   tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[2].dtype, &c->in[2].shape);
}

static tm_status conv_dx_infer(tm_infer *c) { return conv_grad_infer(c, 2, 0); }
static tm_status conv_df_infer(tm_infer *c) { return conv_grad_infer(c, 0, 2); }

/* --- kernels --- */

enum conv_part { CONV_OUT, CONV_DX, CONV_DF };

static const int32_t conv_x[] = {0, 2, 0}, conv_f[] = {1, 0, 2};

static tm_k_conv conv_of(const tm_kctx *c, enum conv_part part) {
  struct conv_task t = {c->op, c->attrs, &c->in[conv_x[part]].shape,
                        &c->in[conv_f[part]].shape, NULL};
  tm_k_conv g;
  tm_status s = conv_geometry(&t, &g); /* infer has checked it */
  TM_DCHECK(s == TM_OK);
  (void)s;
  return g;
}

static size_t conv_scratch(const tm_kctx *c, enum conv_part part) {
  tm_k_conv g = conv_of(c, part);
  if (tm_k_conv_pixels(&g) == 0) return 0;
  return tm_k_conv_scratch(&g) * (size_t)tm_dtype_size(c->in[0].dtype);
}

#define CONV_PIECE(S)                                                                \
  static void conv_piece_##S(const tm_kctx *c, const tm_k_conv *g,                   \
                             enum conv_part part, int64_t at, int64_t n) {           \
    if (part == CONV_OUT)                                                            \
      tm_k_conv_##S(c->out[0].data, c->in[0].data, c->in[1].data, g, c->scratch, at, \
                    n);                                                              \
    else if (part == CONV_DX)                                                        \
      tm_k_conv_dx_##S(c->out[0].data, c->in[1].data, c->in[0].data, g, c->scratch,  \
                       at, n);                                                       \
    else                                                                             \
      tm_k_conv_df_##S(c->out[0].data, c->in[0].data, c->in[1].data, g, c->scratch,  \
                       at, n);                                                       \
  }
CONV_PIECE(f32)
CONV_PIECE(f64)

static tm_status conv_run(tm_kctx *c, enum conv_part part) {
  tm_k_conv g = conv_of(c, part);
  if (part != CONV_OUT) memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  int64_t n = tm_k_conv_pixels(&g);
  if (n == 0) return TM_OK;
  int64_t step = tm_k_conv_step(&g);
  for (int64_t at = 0; at < n; at += step) {
    if (c->env && tm_cancelled(c->env->cancel))
      return tm_fail(c->err, TM_ECANCELLED, "cancelled");
    int64_t rows = n - at < step ? n - at : step;
    if (c->out[0].dtype == TM_F32)
      conv_piece_f32(c, &g, part, at, rows);
    else
      conv_piece_f64(c, &g, part, at, rows);
  }
  return TM_OK;
}

#define X(part, PART)                                                             \
  static tm_status conv_##part##_kernel(tm_kctx *c) { return conv_run(c, PART); } \
  static size_t conv_##part##_scratch(const tm_kctx *c) {                         \
    return conv_scratch(c, PART);                                                 \
  }
X(out, CONV_OUT)
X(dx, CONV_DX)
X(df, CONV_DF)
#undef X

/* --- gradients --- */

/* The op of the same kind: "nn.conv2d" with an ending of its own. */
static tm_value *conv_apply(tm_gctx *c, const char *end, tm_value *a, tm_value *b,
                            tm_value *like) {
  char name[40];
  tm_value *in[3] = {a, b, like};
  size_t n = strlen(c->op->name);
  if (n > 3 && (memcmp(c->op->name + n - 3, "_dx", 3) == 0 ||
                memcmp(c->op->name + n - 3, "_df", 3) == 0))
    n -= 3;
  snprintf(name, sizeof name, "%.*s%s", (int)n, c->op->name, end);
  return tm_g_same(c, name, in, like ? 3 : 2, 0);
}

static tm_status conv_grad(tm_gctx *c) {
  tm_value *x = c->in[0], *f = c->in[1], *dy = c->dout[0];
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, conv_apply(c, "_dx", f, dy, x)));
  if (c->need[1]) TM_TRY(tm_g_set(c, 1, conv_apply(c, "_df", x, dy, f)));
  return c->status;
}

/* out = dx(f, dy): v has the shape of x. */
static tm_status conv_dx_grad(tm_gctx *c) {
  tm_value *f = c->in[0], *dy = c->in[1], *v = c->dout[0];
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, conv_apply(c, "_df", v, dy, f)));
  if (c->need[1]) TM_TRY(tm_g_set(c, 1, conv_apply(c, "", v, f, NULL)));
  return c->status;
}

/* out = df(x, dy): v has the shape of the filters. */
static tm_status conv_df_grad(tm_gctx *c) {
  tm_value *x = c->in[0], *dy = c->in[1], *v = c->dout[0];
  if (c->need[0]) TM_TRY(tm_g_set(c, 0, conv_apply(c, "_dx", v, dy, x)));
  if (c->need[1]) TM_TRY(tm_g_set(c, 1, conv_apply(c, "", x, v, NULL)));
  return c->status;
}

#define ATTRS "; strides:ints?, padding:str=valid | dilations:ints?"
#define CONV(n, more, text)                                                 \
  {.name = "nn." n,                                                         \
   .sig = "x, filters" ATTRS more,                                          \
   .help = text,                                                            \
   .infer = conv_infer,                                                     \
   .kernel = conv_out_kernel,                                               \
   .grad = conv_grad,                                                       \
   .scratch = conv_out_scratch},                                            \
      {.name = "nn." n "_dx",                                               \
       .sig = "filters, dy, x" ATTRS more,                                  \
       .help = "The gradient of " n " by x.",                               \
       .flags = TM_OP_HIDDEN,                                               \
       .infer = conv_dx_infer,                                              \
       .kernel = conv_dx_kernel,                                            \
       .grad = conv_dx_grad,                                                \
       .scratch = conv_dx_scratch},                                         \
  {                                                                         \
    .name = "nn." n "_df", .sig = "x, dy, filters" ATTRS more,              \
    .help = "The gradient of " n " by the filters.", .flags = TM_OP_HIDDEN, \
    .infer = conv_df_infer, .kernel = conv_df_kernel, .grad = conv_df_grad, \
    .scratch = conv_df_scratch                                              \
  }

static const tm_op conv_ops[] = {
    CONV("conv2d", ", groups:int=1",
         "x (n, h, w, c) under filters (kh, kw, c / groups, co) -> (n, oh, ow, co); "
         "padding is \"valid\" or \"same\"."),
    CONV("conv1d", ", groups:int=1",
         "x (n, w, c) under filters (k, c / groups, co) -> (n, ow, co); padding is "
         "\"valid\" or \"same\"."),
    CONV("depthwise_conv2d", "",
         "x (n, h, w, c) under filters (kh, kw, c, m), each channel by itself -> (n, "
         "oh, ow, c m); padding is \"valid\" or \"same\"."),
};

const tm_op_group tm_ops_conv = {conv_ops, TM_COUNT(conv_ops)};
