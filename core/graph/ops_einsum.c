#include <string.h>

#include "base/check.h"
#include "graph/ein.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  einsum and tensordot read their axes into a tm_ein (graph/ein.h), which
 * infers, runs and differentiates for both.  Their gradient ops take dy, then the
 * operands, then the same attributes and which operand is meant.
 */

/* Reads the attributes of one of the ops for operands of these shapes. */
typedef tm_status ein_read(const tm_attrs *a, const tm_shape *in, int32_t nin,
                           tm_ein *e, tm_err *err);

static tm_status read_einsum(const tm_attrs *a, const tm_shape *in, int32_t nin,
                             tm_ein *e, tm_err *err) {
  return tm_ein_parse(tm_at_str(a, 0), in, nin, e, err);
}

static tm_status read_tensordot(const tm_attrs *a, const tm_shape *in, int32_t nin,
                                tm_ein *e, tm_err *err) {
  (void)nin;
  return tm_ein_tensordot(&a->a[0], &a->a[1], in, e, err);
}

static tm_status ein_of(tm_infer *c, int32_t skip, ein_read *read, tm_ein *e) {
  tm_shape in[2];
  int32_t nin = c->nin - skip;
  if (nin > 2)
    return tm_fail(c->err, TM_EUNIMPL, "more than two tensors: multiply two at a time");
  for (int32_t i = 0; i < nin; i++) {
    TM_TRY(tm_infer_want(c, skip + i, TM_WANT_FLOAT));
    TM_TRY(tm_infer_same_dtype(c, skip + i, 0));
    in[i] = c->in[skip + i].shape;
  }
  TM_TRY(read(c->attrs, in, nin, e, c->err));
  return tm_ein_check(e, c->err);
}

static tm_status ein_infer(tm_infer *c, ein_read *read) {
  tm_ein e;
  TM_TRY(ein_of(c, 0, read, &e));
  tm_shape s = tm_ein_shape(&e, &e.out);
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status ein_grad_infer(tm_infer *c, ein_read *read, int32_t which_attr) {
  int64_t which = tm_at_int(c->attrs, which_attr);
  tm_ein e;
  TM_TRY(ein_of(c, 1, read, &e));
  if (which < 0 || which >= e.nin)
    return tm_fail(c->err, TM_EINVAL, "which is no operand");
  tm_shape s = tm_ein_shape(&e, &e.out);
  if (!tm_shape_compatible(&s, &c->in[0].shape))
    return tm_fail(c->err, TM_EINVAL, "dy has another shape than the result");
  return tm_infer_out(c, c->in[0].dtype, &c->in[1 + which].shape);
}

/* infer has read the same text with the same shapes. */
static tm_status ein_again(const tm_kctx *c, int32_t skip, ein_read *read, tm_ein *e) {
  tm_shape in[2];
  for (int32_t i = 0; i < c->nin - skip; i++) in[i] = c->in[skip + i].shape;
  return read(c->attrs, in, c->nin - skip, e, c->err);
}

static size_t ein_bytes(const tm_kctx *c, int32_t skip, ein_read *read) {
  tm_ein e;
  if (ein_again(c, skip, read, &e)) return 0;
  return tm_ein_scratch(&e, tm_dtype_size(c->in[0].dtype));
}

static tm_status ein_run(tm_kctx *c, ein_read *read) {
  tm_ein e;
  TM_TRY(ein_again(c, 0, read, &e));
  tm_ein_run(&e, c->in, &c->out[0], c->scratch);
  return TM_OK;
}

static tm_status ein_run_grad(tm_kctx *c, ein_read *read, int32_t which_attr) {
  tm_ein e;
  TM_TRY(ein_again(c, 1, read, &e));
  tm_ein_grad(&e, c->in + 1, &c->in[0], (int32_t)tm_at_int(c->attrs, which_attr),
              &c->out[0], c->scratch);
  return TM_OK;
}

static tm_status ein_rule(tm_gctx *c, const char *op) {
  tm_value *in[3] = {c->dout[0], c->in[0], c->nin > 1 ? c->in[1] : NULL};
  for (int32_t i = 0; i < c->nin; i++) {
    tm_attrs a;
    if (!c->need[i]) continue;
    if (tm_attrs_copy(&a, c->attrs)) return tm_nomem(c->err, op);
    memset(&a.a[a.n], 0, sizeof a.a[a.n]);
    tm_attr_set_int(&a.a[a.n++], TM_ATTR_INT, i);
    TM_TRY(tm_g_set(c, i, tm_gn(c, op, in, 1 + c->nin, &a, 0)));
  }
  return c->status;
}

/* The op is linear in each operand: dy gets the op with the gradient in the place of
 * operand `which`, another operand gets its gradient of that. */
static tm_status ein_second(tm_gctx *c, const char *op, int32_t which_attr) {
  int32_t which = (int32_t)tm_at_int(c->attrs, which_attr), nx = c->nin - 1;
  tm_value *in[3] = {c->in[0], c->in[1], nx > 1 ? c->in[2] : NULL};
  in[1 + which] = c->dout[0];
  for (int32_t i = 0; i < c->nin; i++) {
    tm_attrs a;
    if (!c->need[i] || i == 1 + which) continue;
    if (tm_attrs_copy(&a, c->attrs)) return tm_nomem(c->err, op);
    if (i == 0) {
      a.n = which_attr; /* an INT owns nothing */
      TM_TRY(tm_g_set(c, 0, tm_gn(c, op, in + 1, nx, &a, 0)));
    } else {
      tm_attr_set_int(&a.a[which_attr], TM_ATTR_INT, i - 1);
      TM_TRY(tm_g_set(c, i, tm_gn(c, c->op->name, in, c->nin, &a, 0)));
    }
  }
  return c->status;
}

#define EIN_OP(name, which)                                                          \
  static tm_status name##_infer(tm_infer *c) { return ein_infer(c, read_##name); }   \
  static tm_status name##_kernel(tm_kctx *c) { return ein_run(c, read_##name); }     \
  static size_t name##_scratch(const tm_kctx *c) {                                   \
    return ein_bytes(c, 0, read_##name);                                             \
  }                                                                                  \
  static tm_status name##_grad(tm_gctx *c) { return ein_rule(c, #name "_grad"); }    \
  static tm_status name##_grad_infer(tm_infer *c) {                                  \
    return ein_grad_infer(c, read_##name, which);                                    \
  }                                                                                  \
  static tm_status name##_grad_kernel(tm_kctx *c) {                                  \
    return ein_run_grad(c, read_##name, which);                                      \
  }                                                                                  \
  static tm_status name##_second(tm_gctx *c) { return ein_second(c, #name, which); } \
  static size_t name##_grad_scratch(const tm_kctx *c) {                              \
    return ein_bytes(c, 1, read_##name);                                             \
  }

EIN_OP(einsum, 1)
EIN_OP(tensordot, 2)

static const tm_op einsum_ops[] = {
    {.name = "einsum",
     .sig = "xs...; equation:str",
     .help = "The sum of products of one or two tensors by labelled axes: "
             "\"ij,jk->ik\" is matmul.",
     .infer = einsum_infer,
     .kernel = einsum_kernel,
     .grad = einsum_grad,
     .scratch = einsum_scratch},
    {.name = "einsum_grad",
     .sig = "dy, xs...; equation:str, which:int",
     .help = "The gradient of einsum by one operand.",
     .flags = TM_OP_HIDDEN,
     .infer = einsum_grad_infer,
     .kernel = einsum_grad_kernel,
     .grad = einsum_second,
     .scratch = einsum_grad_scratch},
    {.name = "tensordot",
     .sig = "a, b; axes_a:axes, axes_b:axes",
     .help = "The sum of products of a and b over pairs of axes; the others stay in "
             "order.",
     .infer = tensordot_infer,
     .kernel = tensordot_kernel,
     .grad = tensordot_grad,
     .scratch = tensordot_scratch},
    {.name = "tensordot_grad",
     .sig = "dy, a, b; axes_a:axes, axes_b:axes, which:int",
     .help = "The gradient of tensordot by one operand.",
     .flags = TM_OP_HIDDEN,
     .infer = tensordot_grad_infer,
     .kernel = tensordot_grad_kernel,
     .grad = tensordot_second,
     .scratch = tensordot_grad_scratch},
};

const tm_op_group tm_ops_einsum = {einsum_ops, TM_COUNT(einsum_ops)};
