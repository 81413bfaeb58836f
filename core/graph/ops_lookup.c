#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  A lookup table is a hash table laid out in two tensors, so that it travels
 * as attributes of a node and nobody builds it again: keys (slots) and values (slots),
 * open addressing, linear probing, at most half full.  lookup_table makes them once;
 * lookup probes.
 *
 * Invariants (checked by infer where they come from outside):
 *   (1) slots is a power of two, keys and values have that many elements.
 *   (2) values[i] == INT64_MIN marks a free slot.  A probe ends after `slots` steps at
 *       the latest, so a full table from outside does no harm.
 */
static const int64_t lookup_free = INT64_MIN;
static const uint64_t lookup_seed = UINT64_C(0x746964656d696c6c);

static uint64_t lookup_hash_str(tm_str s, uint64_t seed) {
  return tm_hash64(s.n ? s.p : "", s.n, seed);
}

static bool lookup_same(tm_str a, tm_str b) {
  return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* The slot of key i of x in the table, or the free one where it would go; -1 when the
 * table is full and does not have it. */
static int64_t lookup_slot(const tm_view *keys, const int64_t *values, const tm_view *x,
                           int64_t i) {
  uint64_t mask = (uint64_t)tm_view_count(keys) - 1;
  if (keys->dtype == TM_STRING) {
    const tm_str *k = keys->data, s = ((const tm_str *)x->data)[i];
    uint64_t h = lookup_hash_str(s, lookup_seed);
    for (uint64_t n = 0; n <= mask; n++) {
      uint64_t at = (h + n) & mask;
      if (values[at] == lookup_free || lookup_same(k[at], s)) return (int64_t)at;
    }
    return -1;
  }
  const int64_t *k = keys->data, v = tm_view_get_i64(x, i);
  uint64_t h = tm_mix64((uint64_t)v);
  for (uint64_t n = 0; n <= mask; n++) {
    uint64_t at = (h + n) & mask;
    if (values[at] == lookup_free || k[at] == v) return (int64_t)at;
  }
  return -1;
}

/* --- lookup_table(keys, values?) --- */

static tm_status table_infer(tm_infer *c) {
  int64_t n = c->in[0].shape.rank == 1 ? c->in[0].shape.dim[0] : -1, slots = 4;
  tm_dtype t = c->in[0].dtype;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT | TM_WANT_STRING));
  TM_TRY(tm_infer_rank(c, 0, 1));
  if (c->nin > 1) {
    TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
    TM_TRY(tm_infer_same_shape(c, 0, 1));
  }
  if (n > INT32_MAX) return tm_fail(c->err, TM_EINVAL, "more than 2^31 - 1 keys");
  while (slots < 2 * n) slots *= 2;
  tm_shape s = tm_shape_of(1, &(int64_t){n < 0 ? -1 : slots});
  TM_TRY(tm_infer_out(c, t == TM_STRING ? t : TM_I64, &s));
  return tm_infer_out(c, TM_I64, &s);
}

static tm_status table_twice(tm_kctx *c, int64_t i) {
  const tm_str *s = c->in[0].data;
  if (c->in[0].dtype == TM_STRING)
    return tm_fail(c->err, TM_EINVAL,
                   "key \"%.*s\" at position %" PRId64 " is there twice",
                   (int)(s[i].n < 80 ? s[i].n : 80), s[i].n ? s[i].p : "", i + 1);
  return tm_fail(c->err, TM_EINVAL,
                 "key %" PRId64 " at position %" PRId64 " is there twice",
                 tm_view_get_i64(&c->in[0], i), i + 1);
}

static tm_status table_fill(tm_kctx *c, tm_view *keys, int64_t *values) {
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++) {
    int64_t at = lookup_slot(keys, values, &c->in[0], i);
    int64_t value = c->nin > 1 ? tm_view_get_i64(&c->in[1], i) : i;
    if (at < 0 || values[at] != lookup_free) return table_twice(c, i);
    if (value == lookup_free)
      return tm_fail(c->err, TM_EINVAL, "value %" PRId64 " is reserved", value);
    if (keys->dtype == TM_STRING)
      ((tm_str *)keys->data)[at] = ((const tm_str *)c->in[0].data)[i];
    else
      ((int64_t *)keys->data)[at] = tm_view_get_i64(&c->in[0], i);
    values[at] = value;
  }
  return TM_OK;
}

static tm_status table_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]), slots = 4;
  while (slots < 2 * n) slots *= 2;
  tm_shape s = tm_shape_of(1, &slots);
  bool strings = c->in[0].dtype == TM_STRING;
  TM_TRY(tm_kctx_make(c, 0, strings ? TM_STRING : TM_I64, &s));
  TM_TRY(tm_kctx_make(c, 1, TM_I64, &s));
  int64_t *values = c->out[1].data;
  for (int64_t i = 0; i < slots; i++) values[i] = lookup_free;
  if (!strings) memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  TM_TRY(table_fill(c, &c->out[0], values));
  if (strings) { /* bytes of its own: they were those of keys */
    tm_tensor *t;
    TM_TRY(tm_tensor_copy(&c->out[0], &t, c->err));
    tm_kctx_give(c, 0, t);
  }
  return TM_OK;
}

/* --- lookup: attributes keys, values, default, num_oov, oov_first, strict --- */

static tm_status lookup_infer(tm_infer *c) {
  const tm_view *k = &c->attrs->a[0].u.t->v, *v = &c->attrs->a[1].u.t->v;
  int64_t slots = k->shape.rank == 1 ? k->shape.dim[0] : 0;
  if (slots < 1 || (slots & (slots - 1)) || v->dtype != TM_I64 ||
      !tm_shape_equal(&k->shape, &v->shape) ||
      (k->dtype != TM_STRING && k->dtype != TM_I64))
    return tm_fail(c->err, TM_EINVAL, "keys and values are not from lookup_table");
  TM_TRY(tm_infer_want(c, 0, k->dtype == TM_STRING ? TM_WANT_STRING : TM_WANT_INT));
  if (tm_at_int(c->attrs, 3) < 0)
    return tm_fail(c->err, TM_EINVAL, "num_oov is negative");
  return tm_infer_out(c, TM_I64, &c->in[0].shape);
}

static tm_status lookup_missing(tm_kctx *c, int64_t i) {
  const tm_str *s = c->in[0].data;
  if (c->in[0].dtype == TM_STRING)
    return tm_fail(c->err, TM_EINVAL,
                   "\"%.*s\" at position %" PRId64 " is not in the vocabulary",
                   (int)(s[i].n < 80 ? s[i].n : 80), s[i].n ? s[i].p : "", i + 1);
  return tm_fail(c->err, TM_EINVAL,
                 "%" PRId64 " at position %" PRId64 " is not in the vocabulary",
                 tm_view_get_i64(&c->in[0], i), i + 1);
}

/* What element i becomes when the table does not have it. */
static int64_t lookup_oov(const tm_kctx *c, int64_t i) {
  uint64_t n = (uint64_t)tm_at_int(c->attrs, 3), h;
  if (n == 0) return tm_at_int(c->attrs, 2);
  if (c->in[0].dtype == TM_STRING)
    h = lookup_hash_str(((const tm_str *)c->in[0].data)[i], 0);
  else
    h = tm_mix64((uint64_t)tm_view_get_i64(&c->in[0], i));
  return tm_at_int(c->attrs, 4) + (int64_t)(h % n);
}

static tm_status lookup_kernel(tm_kctx *c) {
  const tm_view *keys = &c->attrs->a[0].u.t->v;
  const int64_t *values = c->attrs->a[1].u.t->v.data;
  bool strict = tm_at_bool(c->attrs, 5);
  int64_t *o = c->out[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++) {
    int64_t at = lookup_slot(keys, values, &c->in[0], i);
    if (at >= 0 && values[at] != lookup_free)
      o[i] = values[at];
    else if (strict)
      return lookup_missing(c, i);
    else
      o[i] = lookup_oov(c, i);
  }
  return TM_OK;
}

/* --- bucketize --- */

static tm_status bucketize_infer(tm_infer *c) {
  const tm_attr *b = &c->attrs->a[0];
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  for (int32_t i = 1; i < b->n; i++)
    if (!(b->u.fs[i - 1] <= b->u.fs[i]))
      return tm_fail(c->err, TM_EINVAL,
                     "boundaries[%" PRId32 "] is below the one before", i + 1);
  return tm_infer_out(c, TM_I64, &c->in[0].shape);
}

/* Number of boundaries that are <= x.  Boundaries are rounded to x's type first. */
static int64_t bucketize_one(const tm_attr *b, double x, bool f32) {
  int32_t low = 0, high = b->n;
  while (low < high) {
    int32_t mid = low + (high - low) / 2;
    double at = f32 ? (double)(float)b->u.fs[mid] : b->u.fs[mid];
    if (at <= x)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

static tm_status bucketize_kernel(tm_kctx *c) {
  const tm_attr *b = &c->attrs->a[0];
  bool f32 = c->in[0].dtype == TM_F32;
  int64_t *o = c->out[0].data;
  for (int64_t i = 0, n = tm_view_count(&c->in[0]); i < n; i++)
    o[i] = bucketize_one(b, tm_view_get_f64(&c->in[0], i), f32);
  return TM_OK;
}

static const tm_op lookup_ops[] = {
    {.name = "lookup_table",
     .sig = "keys, values?",
     .help = "The table that lookup reads: keys and values (slots); without values a "
             "key's value is its position from 0 on.",
     .flags = TM_OP_HIDDEN | TM_OP_DYNAMIC,
     .infer = table_infer,
     .kernel = table_kernel},
    {.name = "lookup",
     .sig = "x; keys:tensor, values:tensor | default:int=-1, num_oov:int=0, "
            "oov_first:int=0, strict:bool=false",
     .help = "The value of each element of x in a table of lookup_table; others become "
             "default, or one of num_oov numbers from oov_first on, by hash.",
     .flags = TM_OP_HIDDEN,
     .infer = lookup_infer,
     .kernel = lookup_kernel},
    {.name = "bucketize",
     .sig = "x; boundaries:floats",
     .help = "The number of boundaries (rising) that are not above each element of x.",
     .flags = TM_OP_HIDDEN,
     .infer = bucketize_infer,
     .kernel = bucketize_kernel},
};

const tm_op_group tm_ops_lookup = {lookup_ops, TM_COUNT(lookup_ops)};
