#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  Strings are bytes.  Ops that make new strings own their result
 * (TM_OP_DYNAMIC): lengths first, then one storage.  Case and spaces are ASCII's,
 * whatever the locale.
 */

static tm_status strings_to(tm_infer *c, tm_dtype t) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_STRING));
  return tm_infer_out(c, t, &c->in[0].shape);
}

static bool string_space(char ch) { return ch == ' ' || (ch >= '\t' && ch <= '\r'); }

static tm_str string_strip(tm_str s) {
  while (s.n > 0 && string_space(s.p[0])) s = (tm_str){s.p + 1, s.n - 1};
  while (s.n > 0 && string_space(s.p[s.n - 1])) s.n--;
  return s;
}

/* --- to_number --- */

static tm_status to_number_infer(tm_infer *c) {
  tm_dtype t = tm_at_dtype(c->attrs, 0);
  if (t != TM_F32 && t != TM_F64 && t != TM_I32 && t != TM_I64)
    return tm_fail(c->err, TM_EINVAL,
                   "dtype must be float32, float64, int32 or int64, not %s",
                   tm_dtype_name(t));
  return strings_to(c, t);
}

/* text is terminated; the whole of it must be a number of type t. */
static bool number_parse(const char *text, tm_dtype t, void *out) {
  char *end;
  errno = 0;
  if (tm_dtype_is_float(t)) {
    double x = t == TM_F32 ? (double)strtof(text, &end) : strtod(text, &end);
    float f = (float)x;
    memcpy(out, t == TM_F32 ? (const void *)&f : (const void *)&x, tm_dtype_size(t));
    return end != text && *end == '\0';
  }
  long long v = strtoll(text, &end, 10);
  int32_t i32 = (int32_t)v;
  int64_t i64 = v;
  if (errno == ERANGE || (t == TM_I32 && i32 != v)) return false;
  memcpy(out, t == TM_I32 ? (const void *)&i32 : (const void *)&i64, tm_dtype_size(t));
  return end != text && *end == '\0';
}

static tm_status to_number_kernel(tm_kctx *c) {
  const tm_str *x = c->in[0].data;
  tm_dtype t = c->out[0].dtype;
  char text[128], *to = c->out[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n;
       i++, to += tm_dtype_size(t)) {
    tm_str s = string_strip(x[i]);
    bool ok = s.n > 0 && s.n < sizeof text && !memchr(s.p, '\0', s.n);
    if (ok) {
      memcpy(text, s.p, s.n);
      text[s.n] = '\0';
      ok = number_parse(text, t, to);
    }
    if (!ok)
      return tm_fail(c->err, TM_EINVAL,
                     "\"%.*s\" at position %" PRId64 " of x is no %s",
                     (int)(x[i].n < 80 ? x[i].n : 80), x[i].n ? x[i].p : "", i + 1,
                     tm_dtype_name(t));
  }
  return TM_OK;
}

/* --- to_hash_bucket, length --- */

static tm_status hash_infer(tm_infer *c) {
  if (tm_at_int(c->attrs, 0) < 1)
    return tm_fail(c->err, TM_EINVAL, "num_buckets is %" PRId64 ", must be at least 1",
                   tm_at_int(c->attrs, 0));
  return strings_to(c, TM_I64);
}

static tm_status hash_kernel(tm_kctx *c) {
  const tm_str *x = c->in[0].data;
  uint64_t buckets = (uint64_t)tm_at_int(c->attrs, 0);
  int64_t *o = c->out[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    o[i] = (int64_t)(tm_hash64(x[i].n ? x[i].p : "", x[i].n, 0) % buckets);
  return TM_OK;
}

static tm_status length_infer(tm_infer *c) { return strings_to(c, TM_I32); }

static tm_status length_kernel(tm_kctx *c) {
  const tm_str *x = c->in[0].data;
  int32_t *o = c->out[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    o[i] = x[i].n > INT32_MAX ? INT32_MAX : (int32_t)x[i].n;
  return TM_OK;
}

/* --- lower, upper, strip --- */

static tm_status same_infer(tm_infer *c) { return strings_to(c, TM_STRING); }

/* A copy with each byte from..from+25 moved by `by`. */
static tm_status case_kernel(tm_kctx *c, char from, int by) {
  tm_tensor *t;
  TM_TRY(tm_tensor_copy(&c->in[0], &t, c->err));
  const tm_str *s = t->v.data;
  for (int64_t i = 0, n = tm_view_count(&t->v); i < n; i++) {
    char *p = (char *)(uintptr_t)s[i].p; /* the copy's own bytes */
    for (size_t k = 0; k < s[i].n; k++)
      if (p[k] >= from && p[k] <= from + 25) p[k] = (char)(p[k] + by);
  }
  tm_kctx_give(c, 0, t);
  return TM_OK;
}

static tm_status lower_kernel(tm_kctx *c) { return case_kernel(c, 'A', 'a' - 'A'); }
static tm_status upper_kernel(tm_kctx *c) { return case_kernel(c, 'a', 'A' - 'a'); }

static size_t strip_scratch(const tm_kctx *c) { return tm_view_bytes(&c->in[0]); }

static tm_status strip_kernel(tm_kctx *c) {
  const tm_str *x = c->in[0].data;
  tm_str *s = c->scratch;
  tm_tensor *t;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    s[i] = string_strip(x[i]);
  TM_TRY(tm_tensor_strings(&c->in[0].shape, s, &t, c->err));
  tm_kctx_give(c, 0, t);
  return TM_OK;
}

/* --- as_string: attributes precision, scientific, shortest --- */

enum { NUMBER_TEXT = 400 }; /* %f of DBL_MAX and 80 decimals fit */

static tm_status as_string_infer(tm_infer *c) {
  if (tm_at_int(c->attrs, 0) < -1 || tm_at_int(c->attrs, 0) > 80)
    return tm_fail(c->err, TM_EINVAL, "precision must be -1 to 80");
  if (tm_at_bool(c->attrs, 1) && tm_at_bool(c->attrs, 2))
    return tm_fail(c->err, TM_EINVAL, "scientific and shortest exclude each other");
  return tm_infer_out(c, TM_STRING, &c->in[0].shape);
}

static size_t as_string_format(const tm_kctx *c, int64_t i, char *text) {
  const tm_view *x = &c->in[0];
  int precision = (int)tm_at_int(c->attrs, 0), n;
  if (x->dtype == TM_BOOL) {
    n = snprintf(text, NUMBER_TEXT, "%s", tm_view_get_i64(x, i) ? "true" : "false");
  } else if (!tm_dtype_is_float(x->dtype)) {
    n = snprintf(text, NUMBER_TEXT, "%" PRId64, tm_view_get_i64(x, i));
  } else {
    double v = tm_view_get_f64(x, i);
    int p = precision < 0 ? 6 : precision;
    if (tm_at_bool(c->attrs, 1))
      n = snprintf(text, NUMBER_TEXT, "%.*e", p, v);
    else if (tm_at_bool(c->attrs, 2))
      n = snprintf(text, NUMBER_TEXT, "%.*g", p, v);
    else
      n = snprintf(text, NUMBER_TEXT, "%.*f", p, v);
  }
  return (size_t)n;
}

/* Twice over the numbers: for the lengths, then for the bytes. */
static tm_status as_string_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]);
  char text[NUMBER_TEXT];
  size_t bytes = 0, head = (size_t)n * sizeof(tm_str);
  tm_storage *st;
  tm_tensor *t;
  if (c->in[0].dtype == TM_STRING) {
    TM_TRY(tm_tensor_copy(&c->in[0], &t, c->err));
    tm_kctx_give(c, 0, t);
    return TM_OK;
  }
  for (int64_t i = 0; i < n; i++) bytes += as_string_format(c, i, text);
  if (tm_storage_new(head + bytes, &st)) return tm_nomem(c->err, "texts of numbers");
  tm_str *s = st->data;
  char *p = (char *)st->data + head;
  for (int64_t i = 0; i < n; i++) {
    s[i] = (tm_str){p, as_string_format(c, i, text)};
    memcpy(p, text, s[i].n);
    p += s[i].n;
  }
  tm_status status = tm_tensor_over(st, TM_STRING, &c->in[0].shape, s, &t);
  tm_storage_unref(st);
  if (status) return tm_nomem(c->err, "texts of numbers");
  tm_kctx_give(c, 0, t);
  return TM_OK;
}

/* --- join --- */

static tm_status join_infer(tm_infer *c) {
  tm_shape s = tm_shape_scalar();
  for (int32_t i = 0; i < c->nin; i++) {
    const tm_shape *x = &c->in[i].shape;
    TM_TRY(tm_infer_want(c, i, TM_WANT_STRING));
    if (x->rank == 0) continue;
    if (s.rank > 0 && !tm_shape_compatible(&s, x))
      return tm_fail(c->err, TM_EINVAL,
                     "xs[%" PRId32 "] of shape %s does not fit shape %s", i + 1,
                     tm_shape_text(x, (char[128]){0}, 128),
                     tm_shape_text(&s, (char[128]){0}, 128));
    s = *x;
  }
  return tm_infer_out(c, TM_STRING, &s);
}

static tm_str join_part(const tm_kctx *c, int32_t k, int64_t i) {
  const tm_str *s = c->in[k].data;
  return s[c->in[k].shape.rank == 0 ? 0 : i];
}

static char *join_put(char *p, const char *from, size_t n) {
  if (n > 0) memcpy(p, from, n);
  return p + n;
}

static tm_status join_kernel(tm_kctx *c) {
  tm_shape shape = tm_shape_scalar();
  const char *sep = tm_at_str(c->attrs, 0);
  size_t nsep = strlen(sep), bytes = 0;
  tm_storage *st;
  tm_tensor *t;
  for (int32_t k = 0; k < c->nin; k++)
    if (c->in[k].shape.rank > 0) shape = c->in[k].shape;
  int64_t n = tm_shape_count(&shape);
  for (int32_t k = 0; k < c->nin; k++)
    for (int64_t i = 0; i < n; i++) bytes += join_part(c, k, i).n + (k > 0 ? nsep : 0);
  if (tm_storage_new((size_t)n * sizeof(tm_str) + bytes, &st))
    return tm_nomem(c->err, "joined strings");
  tm_str *s = st->data;
  char *p = (char *)(s + n);
  for (int64_t i = 0; i < n; i++) {
    char *begin = p;
    for (int32_t k = 0; k < c->nin; k++) {
      if (k > 0) p = join_put(p, sep, nsep);
      p = join_put(p, join_part(c, k, i).p, join_part(c, k, i).n);
    }
    s[i] = (tm_str){begin, (size_t)(p - begin)};
  }
  tm_status status = tm_tensor_over(st, TM_STRING, &shape, s, &t);
  tm_storage_unref(st);
  if (status) return tm_nomem(c->err, "joined strings");
  tm_kctx_give(c, 0, t);
  return TM_OK;
}

static const tm_op strings_ops[] = {
    {.name = "strings.to_number",
     .sig = "x; dtype:dtype=float32",
     .help = "The number that each string reads as.",
     .infer = to_number_infer,
     .kernel = to_number_kernel},
    {.name = "strings.to_hash_bucket",
     .sig = "x; num_buckets:int",
     .help = "A number from 0 to num_buckets - 1 by the hash of each string.",
     .infer = hash_infer,
     .kernel = hash_kernel},
    {.name = "strings.as_string",
     .sig = "x; precision:int=-1 | scientific:bool=false, shortest:bool=false",
     .help = "Numbers and bools as text.",
     .flags = TM_OP_DYNAMIC,
     .infer = as_string_infer,
     .kernel = as_string_kernel},
    {.name = "strings.length",
     .sig = "x",
     .help = "The number of bytes of each string.",
     .infer = length_infer,
     .kernel = length_kernel},
    {.name = "strings.lower",
     .sig = "x",
     .help = "Strings with A-Z as a-z.",
     .flags = TM_OP_DYNAMIC,
     .infer = same_infer,
     .kernel = lower_kernel},
    {.name = "strings.upper",
     .sig = "x",
     .help = "Strings with a-z as A-Z.",
     .flags = TM_OP_DYNAMIC,
     .infer = same_infer,
     .kernel = upper_kernel},
    {.name = "strings.strip",
     .sig = "x",
     .help = "Strings without spaces at both ends.",
     .flags = TM_OP_DYNAMIC,
     .infer = same_infer,
     .kernel = strip_kernel,
     .scratch = strip_scratch},
    {.name = "strings.join",
     .sig = "xs...; separator:str=''",
     .help = "The strings of a list of tensors of one shape (or scalars), joined.",
     .flags = TM_OP_DYNAMIC,
     .infer = join_infer,
     .kernel = join_kernel},
};

const tm_op_group tm_ops_strings = {strings_ops, TM_COUNT(strings_ops)};
