#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "graph/broadcast.h"
#include "graph/grad.h"
#include "graph/infer.h"
#include "kernel/reduce.h"

/*
 * Checks, prints and waits: ops of which the effect counts.
 *
 * Design.  All keep their order (TM_OP_STATEFUL) and are never dropped.
 */

/* --- check_numerics --- */

static tm_status infer_check_numerics(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

/* Bools in blocks, then the first false. */
static int64_t check_first_bad(const tm_view *v) {
  enum { PART = 512 };
  uint8_t ok[PART], all;
  int64_t n = tm_view_count(v);
  size_t size = tm_dtype_size(v->dtype);
  for (int64_t i = 0; i < n; i += PART) {
    size_t m = (size_t)(n - i < PART ? n - i : PART);
    tm_k_is_finite[tm_k_type_of(v->dtype)](ok, (const char *)v->data + (size_t)i * size,
                                           m);
    tm_k_min[TM_K_U8](&all, ok, 1, m, 1);
    for (size_t k = 0; !all && k < m; k++)
      if (!ok[k]) return i + (int64_t)k;
  }
  return -1;
}

static tm_status kernel_check_numerics(tm_kctx *c) {
  int64_t bad = check_first_bad(&c->in[0]);
  const char *message = tm_at_str(c->attrs, 0);
  if (bad >= 0)
    return tm_fail(c->err, TM_EINVAL, "%s%selement %" PRId64 " is %s", message,
                   message[0] ? ": " : "", bad,
                   isnan(tm_view_get_f64(&c->in[0], bad)) ? "NaN" : "infinite");
  if (c->out[0].data != c->in[0].data)
    memcpy(c->out[0].data, c->in[0].data, tm_view_bytes(&c->in[0]));
  return TM_OK;
}
static tm_status grad_check_numerics(tm_gctx *c) { return tm_g_set(c, 0, c->dout[0]); }

/* --- check_ids --- */

static tm_status infer_check_ids(tm_infer *c) {
  if (c->in[0].dtype != TM_I64)
    return tm_fail(c->err, TM_EINVAL, "ids are int64, not %s",
                   tm_dtype_name(c->in[0].dtype));
  return tm_infer_out(c, TM_I64, &c->in[0].shape);
}
static tm_status kernel_check_ids(tm_kctx *c) {
  const int64_t *id = c->in[0].data;
  uint64_t count = (uint64_t)tm_at_int(c->attrs, 0);
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    if ((uint64_t)id[i] >= count)
      return tm_fail(c->err, TM_EINVAL, "%s %" PRId64, tm_at_str(c->attrs, 1), id[i]);
  if (c->out[0].data != c->in[0].data)
    memcpy(c->out[0].data, c->in[0].data, tm_view_bytes(&c->in[0]));
  return TM_OK;
}

/* --- assert_true --- */

static tm_status infer_assert(tm_infer *c) { return tm_infer_want(c, 0, TM_WANT_BOOL); }
static tm_status kernel_assert(tm_kctx *c) {
  const uint8_t *b = c->in[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    if (!b[i]) return tm_fail(c->err, TM_EINVAL, "%s", tm_at_str(c->attrs, 0));
  return TM_OK;
}

/* --- print --- */

enum { PRINT_MAX = 1 << 20, EDGE_AFTER = 1000 };

static tm_status infer_none(tm_infer *c) {
  (void)c;
  return TM_OK;
}

/* A scalar as its value alone, strings as they are; else the text without the line
 * that tells shape and dtype. */
static tm_status print_one(tm_buf *b, const tm_view *v) {
  if (v->dtype == TM_STRING && v->shape.rank == 0) {
    const tm_str *s = v->data;
    return s->n ? tm_buf_put(b, s->p, s->n) : TM_OK;
  }
  TM_TRY(tm_tensor_text(v, EDGE_AFTER, b));
  while (b->len > 0 && b->data[b->len - 1] != '\n') b->len--;
  if (b->len > 0) b->len--;
  return TM_OK;
}
static tm_status print_all(tm_buf *b, const tm_kctx *c) {
  for (int32_t i = 0; i < c->nin; i++) {
    if (i) TM_TRY(tm_buf_putc(b, ' '));
    TM_TRY(print_one(b, &c->in[i]));
  }
  TM_TRY(tm_buf_putc(b, '\n'));
  return tm_buf_putc(b, '\0');
}
static tm_status kernel_print(tm_kctx *c) {
  tm_buf b = TM_BUF_INIT(PRINT_MAX);
  tm_status s = print_all(&b, c);
  if (s == TM_OK)
    tm_print_text((const char *)b.data);
  else
    s = tm_fail(c->err, s, "the text to print does not fit in %d bytes", PRINT_MAX);
  tm_buf_release(&b);
  return s;
}

/* --- sleep, group --- */

static tm_status infer_sleep(tm_infer *c) {
  double s = tm_at_float(c->attrs, 0);
  if (!(s >= 0 && s <= 1e9))
    return tm_fail(c->err, TM_EINVAL, "seconds must be in 0..1e9, not %g", s);
  return TM_OK;
}
/* In slices, so that a cancelled step ends soon. */
static tm_status kernel_sleep(tm_kctx *c) {
  enum { SLICE_MS = 10 };
  int64_t end = tm_now_ns() + (int64_t)(tm_at_float(c->attrs, 0) * 1e9);
  for (int64_t left; (left = end - tm_now_ns()) > 0;) {
    if (tm_cancelled(c->env->cancel))
      return tm_fail(c->err, TM_ECANCELLED, "cancelled while asleep");
    tm_sleep_ns(left < SLICE_MS * 1000000 ? left : SLICE_MS * 1000000);
  }
  return TM_OK;
}
static tm_status kernel_group(tm_kctx *c) {
  (void)c;
  return TM_OK;
}

static const tm_op check_ops[] = {
    {.name = "check_numerics",
     .sig = "x; message:str=''",
     .help = "x itself; an error with the message where an element is NaN or infinite.",
     .flags = TM_OP_STATEFUL,
     .infer = infer_check_numerics,
     .kernel = kernel_check_numerics,
     .grad = grad_check_numerics},
    {.name = "check_ids",
     .sig = "ids; count:int, message:str",
     .help = "ids themselves; an error, the message and the id, for one not in 0 .. "
             "count - 1.",
     .flags = TM_OP_STATEFUL | TM_OP_HIDDEN,
     .infer = infer_check_ids,
     .kernel = kernel_check_ids},
    {.name = "assert_true",
     .sig = "condition; message:str='assertion failed'",
     .help = "An error with the message where the condition is false.",
     .flags = TM_OP_STATEFUL,
     .infer = infer_assert,
     .kernel = kernel_assert},
    {.name = "print",
     .sig = "xs...",
     .help = "Writes its arguments in a line where prints go.",
     .flags = TM_OP_STATEFUL,
     .infer = infer_none,
     .kernel = kernel_print},
    {.name = "sleep",
     .sig = "; seconds:float",
     .help = "Waits.",
     .flags = TM_OP_STATEFUL,
     .infer = infer_sleep,
     .kernel = kernel_sleep},
    {.name = "group",
     .sig = "xs...?",
     .help = "Nothing, after everything that its arguments need.",
     .flags = TM_OP_STATEFUL,
     .infer = infer_none,
     .kernel = kernel_group},
};

const tm_op_group tm_ops_check = {check_ops, TM_COUNT(check_ops)};
