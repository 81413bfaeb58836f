#include "base/check.h"
#include "graph/broadcast.h"
#include "graph/grad.h"
#include "graph/infer.h"
#include "graph/reduce.h"
#include "kernel/reduce.h"

/*
 * Running sums and products along an axis.
 *
 * Design.  The axis is the middle of (rows, n, inner); the kernels are in
 * kernel/scan.c.
 */
enum { AXIS, EXCLUSIVE, REVERSE };

static tm_status infer_scan(tm_infer *c) {
  int32_t axis;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, AXIS), &axis, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status scan_run(tm_kctx *c, tm_k_scan *const *table) {
  tm_reduce_plan p;
  int32_t axis;
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, AXIS), &axis, c->err));
  if (tm_view_count(&c->in[0]) == 0) return TM_OK;
  tm_reduce_layout(&p, &c->in[0].shape, 1U << axis, false);
  table[tm_k_type_of(c->in[0].dtype)](c->out[0].data, c->in[0].data, p.rows, p.n,
                                      p.inner, tm_at_bool(c->attrs, EXCLUSIVE),
                                      tm_at_bool(c->attrs, REVERSE));
  return TM_OK;
}
static tm_status kernel_cumsum(tm_kctx *c) { return scan_run(c, tm_k_cumsum); }
static tm_status kernel_cumprod(tm_kctx *c) { return scan_run(c, tm_k_cumprod); }

/* cumsum of v along the same axis, the other way round. */
static tm_value *scan_back(tm_gctx *c, tm_value *v) {
  tm_attrs a;
  if (c->status || !v) return NULL;
  c->status = tm_g_attrs(c, "cumsum", &a);
  if (c->status) return NULL;
  tm_attr_set_int(&a.a[AXIS], TM_ATTR_AXIS, tm_at_int(c->attrs, AXIS));
  tm_attr_set_bool(&a.a[EXCLUSIVE], tm_at_bool(c->attrs, EXCLUSIVE));
  tm_attr_set_bool(&a.a[REVERSE], !tm_at_bool(c->attrs, REVERSE));
  return tm_gn(c, "cumsum", &v, 1, &a, 0);
}

static tm_status grad_cumsum(tm_gctx *c) {
  return tm_g_set(c, 0, scan_back(c, c->dout[0]));
}
/* As TensorFlow's: not defined where x is 0. */
static tm_status grad_cumprod(tm_gctx *c) {
  tm_value *s = scan_back(c, tm_g2(c, "mul", c->out[0], c->dout[0]));
  return tm_g_set(c, 0, tm_g2(c, "div", s, c->in[0]));
}

#define SCAN(n, h)                                                                  \
  {                                                                                 \
    .name = #n, .sig = "x; axis:axis=0 | exclusive:bool=false, reverse:bool=false", \
    .help = h, .infer = infer_scan, .kernel = kernel_##n, .grad = grad_##n          \
  }

static const tm_op cum_ops[] = {
    SCAN(cumsum,
         "Running sums of x along an axis; exclusive leaves out the element "
         "itself, reverse runs from the end."),
    SCAN(cumprod,
         "Running products of x along an axis; exclusive leaves out the "
         "element itself, reverse runs from the end."),
};

const tm_op_group tm_ops_cum = {cum_ops, TM_COUNT(cum_ops)};
