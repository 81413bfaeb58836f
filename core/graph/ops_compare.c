#include <string.h>

#include "base/check.h"
#include "graph/broadcast.h"
#include "graph/grad.h"
#include "graph/infer.h"

/*
 * Comparisons, logic and choice.
 *
 * Design.  As ops_math.c, with bools as outputs.  greater is less with the inputs
 * exchanged.  Strings are compared byte by byte, for equality alone.
 */

/* --- infer --- */

static tm_status compare_pair(tm_infer *c, unsigned want) {
  tm_shape s;
  TM_TRY(tm_infer_same_dtype(c, 0, 1));
  TM_TRY(tm_infer_want(c, 0, want));
  TM_TRY(tm_shape_broadcast(&c->in[0].shape, &c->in[1].shape, &s, c->err));
  return tm_infer_out(c, TM_BOOL, &s);
}
static tm_status infer_equality(tm_infer *c) {
  return compare_pair(c, TM_WANT_NUMBER | TM_WANT_BOOL | TM_WANT_STRING);
}
static tm_status infer_order(tm_infer *c) { return compare_pair(c, TM_WANT_NUMBER); }
static tm_status infer_logic(tm_infer *c) { return compare_pair(c, TM_WANT_BOOL); }

static tm_status infer_not(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_BOOL));
  return tm_infer_out(c, TM_BOOL, &c->in[0].shape);
}
static tm_status infer_kind(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return tm_infer_out(c, TM_BOOL, &c->in[0].shape);
}

static tm_status infer_where(tm_infer *c) {
  tm_shape s;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_BOOL));
  TM_TRY(tm_infer_same_dtype(c, 1, 2));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_NUMBER | TM_WANT_BOOL));
  TM_TRY(tm_shape_broadcast(&c->in[1].shape, &c->in[2].shape, &s, c->err));
  TM_TRY(tm_shape_broadcast(&s, &c->in[0].shape, &s, c->err));
  return tm_infer_out(c, c->in[1].dtype, &s);
}

/* --- kernels --- */

static bool compare_same_text(const tm_str *a, const tm_str *b) {
  return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

static void compare_strings(const tm_kctx *c, bool equal) {
  const tm_view *const in[] = {&c->in[0], &c->in[1]};
  const tm_str *a = c->in[0].data, *b = c->in[1].data;
  uint8_t *o = c->out[0].data;
  tm_bcast p;
  if (tm_view_count(&c->out[0]) == 0) return;
  tm_bcast_init(&p, &c->out[0].shape, in, 2);
  int64_t n = tm_bcast_run(&p);
  int64_t sa = p.rank ? p.step[0][p.rank - 1] : 0,
          sb = p.rank ? p.step[1][p.rank - 1] : 0;
  do
    for (int64_t i = 0; i < n; i++)
      o[p.out + i] =
          compare_same_text(a + p.pos[0] + i * sa, b + p.pos[1] + i * sb) == equal;
  while (tm_bcast_next(&p));
}

static tm_status compare_binary(tm_kctx *c, tm_k_binary *const *table, bool swap) {
  int t = tm_k_type_of(c->in[0].dtype);
  tm_broadcast_binary(&c->out[0], &c->in[swap], &c->in[!swap],
                      table[t == TM_K_TYPES ? TM_K_U8 : t]);
  return TM_OK;
}

static tm_status kernel_equal(tm_kctx *c) {
  if (c->in[0].dtype != TM_STRING) return compare_binary(c, tm_k_equal, false);
  compare_strings(c, true);
  return TM_OK;
}
static tm_status kernel_not_equal(tm_kctx *c) {
  if (c->in[0].dtype != TM_STRING) return compare_binary(c, tm_k_not_equal, false);
  compare_strings(c, false);
  return TM_OK;
}
static tm_status kernel_less(tm_kctx *c) { return compare_binary(c, tm_k_less, false); }
static tm_status kernel_less_equal(tm_kctx *c) {
  return compare_binary(c, tm_k_less_equal, false);
}
static tm_status kernel_greater(tm_kctx *c) {
  return compare_binary(c, tm_k_less, true);
}
static tm_status kernel_greater_equal(tm_kctx *c) {
  return compare_binary(c, tm_k_less_equal, true);
}

static tm_status compare_logic(tm_kctx *c, tm_k_binary *f) {
  tm_broadcast_binary(&c->out[0], &c->in[0], &c->in[1], f);
  return TM_OK;
}
static tm_status kernel_and(tm_kctx *c) { return compare_logic(c, tm_k_and); }
static tm_status kernel_or(tm_kctx *c) { return compare_logic(c, tm_k_or); }
static tm_status kernel_xor(tm_kctx *c) { return compare_logic(c, tm_k_xor); }

static tm_status kernel_not(tm_kctx *c) {
  tm_k_not(c->out[0].data, c->in[0].data, (size_t)tm_view_count(&c->in[0]));
  return TM_OK;
}

static tm_status compare_kind(tm_kctx *c, tm_k_unary *const *table) {
  int64_t n = tm_view_count(&c->in[0]);
  table[tm_k_type_of(c->in[0].dtype)](c->out[0].data, c->in[0].data, (size_t)n);
  return TM_OK;
}
static tm_status kernel_is_nan(tm_kctx *c) { return compare_kind(c, tm_k_is_nan); }
static tm_status kernel_is_inf(tm_kctx *c) { return compare_kind(c, tm_k_is_inf); }
static tm_status kernel_is_finite(tm_kctx *c) {
  return compare_kind(c, tm_k_is_finite);
}

static tm_status kernel_where(tm_kctx *c) {
  tm_broadcast_where(&c->out[0], &c->in[0], &c->in[1], &c->in[2]);
  return TM_OK;
}

/* --- gradient --- */

static tm_status grad_where(tm_gctx *c) {
  tm_value *g = c->dout[0], *zero = tm_g_const(c, g, 0);
  tm_value *to_a[] = {c->in[0], g, zero}, *to_b[] = {c->in[0], zero, g};
  if (c->need[1]) TM_TRY(tm_g_set_like(c, 1, tm_gn(c, "where", to_a, 3, NULL, 0)));
  if (c->need[2]) TM_TRY(tm_g_set_like(c, 2, tm_gn(c, "where", to_b, 3, NULL, 0)));
  return c->status;
}

/* --- the table --- */

#define PAIR(n, inf, h)                                               \
  {                                                                   \
    .name = #n, .sig = "a, b", .help = h, .flags = TM_OP_ELEMENTWISE, \
    .infer = infer_##inf, .kernel = kernel_##n                        \
  }
#define LOGIC(n, h)                                                   \
  {                                                                   \
    .name = "logical_" #n, .sig = "a, b", .help = h,                  \
    .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE, .infer = infer_logic, \
    .kernel = kernel_##n                                              \
  }
#define KIND(n, h)                                                 \
  {                                                                \
    .name = #n, .sig = "x", .help = h, .flags = TM_OP_ELEMENTWISE, \
    .infer = infer_kind, .kernel = kernel_##n                      \
  }

static const tm_op compare_ops[] = {
    PAIR(equal, equality, "Whether a and b are equal, broadcasting."),
    PAIR(not_equal, equality, "Whether a and b differ, broadcasting."),
    PAIR(less, order, "Whether a < b, broadcasting."),
    PAIR(less_equal, order, "Whether a <= b, broadcasting."),
    PAIR(greater, order, "Whether a > b, broadcasting."),
    PAIR(greater_equal, order, "Whether a >= b, broadcasting."),
    LOGIC(and, "Whether both are true, broadcasting."),
    LOGIC(or, "Whether one or both are true, broadcasting."),
    LOGIC(xor, "Whether one alone is true, broadcasting."),
    {.name = "logical_not",
     .sig = "x",
     .help = "Whether x is false.",
     .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE,
     .infer = infer_not,
     .kernel = kernel_not},
    KIND(is_nan, "Whether x is not a number."),
    KIND(is_inf, "Whether x is infinite."),
    KIND(is_finite, "Whether x is neither infinite nor NaN."),
    {.name = "where",
     .sig = "condition, a, b",
     .help = "a where condition holds, else b; all broadcast.",
     .flags = TM_OP_ELEMENTWISE | TM_OP_INPLACE,
     .infer = infer_where,
     .kernel = kernel_where,
     .grad = grad_where},
};

const tm_op_group tm_ops_compare = {compare_ops, TM_COUNT(compare_ops)};
