#include "ps/init.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernel/random.h"

/*
 * Design.  Element e of a variable is element e of the Philox stream (seed,
 * INIT_STREAM) of kernel/random.h, so its value depends on nothing but seed and e.
 * Types other than float32 and float64 are drawn as float64 in pieces and converted.
 */
enum { INIT_PIECE = 256 };
#define INIT_STREAM 0x696e6974ull /* "init" */

static int init_kind(const char *kind) {
  static const struct {
    const char *name;
    int kind;
  } known[] = {{"zeros", '0'},   {"ones", '1'},   {"constant", 'c'},
               {"uniform", 'u'}, {"normal", 'n'}, {"truncated_normal", 't'},
               {"value", 'v'}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(kind, known[i].name) == 0) return known[i].kind;
  return 0;
}

static void init_f32(const tm_init *in, int kind, uint64_t first, float *o, size_t n) {
  float a = (float)in->a, b = (float)in->b;
  if (kind == 'u') tm_k_random_uniform_f32(o, n, in->seed, INIT_STREAM, first, a, b);
  if (kind == 'n') tm_k_random_normal_f32(o, n, in->seed, INIT_STREAM, first, a, b);
  if (kind == 't') tm_k_random_truncated_f32(o, n, in->seed, INIT_STREAM, first, a, b);
  float same = kind == '1' ? 1 : kind == 'c' ? a : 0;
  if (!strchr("unt", kind))
    for (size_t i = 0; i < n; i++) o[i] = same;
}

static void init_f64(const tm_init *in, int kind, uint64_t first, double *o, size_t n) {
  double a = in->a, b = in->b;
  if (kind == 'u') tm_k_random_uniform_f64(o, n, in->seed, INIT_STREAM, first, a, b);
  if (kind == 'n') tm_k_random_normal_f64(o, n, in->seed, INIT_STREAM, first, a, b);
  if (kind == 't') tm_k_random_truncated_f64(o, n, in->seed, INIT_STREAM, first, a, b);
  double same = kind == '1' ? 1 : kind == 'c' ? a : 0;
  if (!strchr("unt", kind))
    for (size_t i = 0; i < n; i++) o[i] = same;
}

/* A drawn number as element i: truncated downwards for uniform integers, so that all of
 * a..b-1 are as likely; a value out of the type's range wraps. */
static void init_store(tm_view *dst, int64_t i, double x, int kind) {
  int64_t whole = (int64_t)(kind == 'u' ? floor(x) : x);
  switch (dst->dtype) {
    case TM_I32:
      ((int32_t *)dst->data)[i] = (int32_t)whole;
      return;
    case TM_I64:
      ((int64_t *)dst->data)[i] = whole;
      return;
    case TM_U8:
      ((uint8_t *)dst->data)[i] = (uint8_t)whole;
      return;
    case TM_BOOL:
      ((uint8_t *)dst->data)[i] = fabs(x) > 0;
      return;
    case TM_F32:
    case TM_F64:
    case TM_STRING:
    case TM_DTYPE_NONE:
      return;
  }
}

static void init_numbers(const tm_init *in, int kind, int64_t first, tm_view *dst) {
  int64_t n = tm_view_count(dst);
  if (dst->dtype == TM_F32) {
    init_f32(in, kind, (uint64_t)first, dst->data, (size_t)n);
    return;
  }
  if (dst->dtype == TM_F64) {
    init_f64(in, kind, (uint64_t)first, dst->data, (size_t)n);
    return;
  }
  double piece[INIT_PIECE];
  for (int64_t at = 0; at < n; at += INIT_PIECE) {
    int64_t m = n - at < INIT_PIECE ? n - at : INIT_PIECE;
    init_f64(in, kind, (uint64_t)(first + at), piece, (size_t)m);
    for (int64_t i = 0; i < m; i++) init_store(dst, at + i, piece[i], kind);
  }
}

static tm_status init_copy(const tm_init *in, tm_view *dst, tm_err *err) {
  char a[96], b[96];
  if (!in->value) return tm_fail(err, TM_EINVAL, "initial value: none was sent");
  const tm_view *v = &in->value->v;
  if (v->dtype != dst->dtype || !tm_shape_equal(&v->shape, &dst->shape))
    return tm_fail(err, TM_EINVAL, "initial value is %s %s, the shard is %s %s",
                   tm_dtype_name(v->dtype), tm_shape_text(&v->shape, a, sizeof a),
                   tm_dtype_name(dst->dtype), tm_shape_text(&dst->shape, b, sizeof b));
  size_t bytes = tm_view_bytes(dst);
  if (bytes) memcpy(dst->data, v->data, bytes);
  return TM_OK;
}

tm_status tm_init_fill(const tm_init *in, int64_t first, tm_view *dst, tm_err *err) {
  int kind = init_kind(in->kind);
  if (!kind)
    return tm_fail(
        err, TM_EINVAL,
        "initializer \"%s\" is not known: use zeros, ones, constant, uniform, "
        "normal, truncated_normal or a value",
        in->kind);
  if (!tm_dtype_is_number(dst->dtype) && dst->dtype != TM_BOOL)
    return tm_fail(err, TM_EINVAL, "a variable of dtype %s cannot live on a ps",
                   tm_dtype_name(dst->dtype));
  if (kind == 'v') return init_copy(in, dst, err);
  if (!tm_dtype_is_float(dst->dtype) &&
      (kind == 'n' || kind == 't' || !(fabs(in->a) <= 0x1p53) ||
       !(fabs(in->b) <= 0x1p53)))
    return tm_fail(err, TM_EINVAL, "initializer \"%s\" does not make %s values",
                   in->kind, tm_dtype_name(dst->dtype));
  if (kind == '0') {
    memset(dst->data, 0, tm_view_bytes(dst));
    return TM_OK;
  }
  init_numbers(in, kind, first, dst);
  return TM_OK;
}
