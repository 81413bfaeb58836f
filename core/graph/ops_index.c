#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "graph/ids.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/rows.h"

/*
 * Design.  Reading by numbers that a tensor holds.  Ids are 0-based; one that does not
 * exist is an error that names it, never a silent zero.
 */

/* --- gather --- */

static tm_status gather_infer(tm_infer *c) {
  const tm_shape *p = &c->in[0].shape, *ids = &c->in[1].shape;
  tm_shape s = tm_shape_scalar();
  int32_t axis;
  TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
  TM_TRY(tm_shape_axis(p, tm_at_int(c->attrs, 0), &axis, c->err));
  if (p->rank - 1 + ids->rank > TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL,
                   "params and indices have %" PRId32 " axes together, more than %d",
                   p->rank - 1 + ids->rank, TM_MAX_RANK);
  for (int32_t i = 0; i < axis; i++) s.dim[s.rank++] = p->dim[i];
  for (int32_t i = 0; i < ids->rank; i++) s.dim[s.rank++] = ids->dim[i];
  for (int32_t i = axis + 1; i < p->rank; i++) s.dim[s.rank++] = p->dim[i];
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static size_t gather_scratch(const tm_kctx *c) { return tm_ids_scratch(&c->in[1]); }

static tm_status gather_kernel(tm_kctx *c) {
  const tm_shape *p = &c->in[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), p->rank);
  int64_t outer = tm_shape_part(p, 0, axis), rows = p->dim[axis];
  size_t bytes =
      (size_t)tm_shape_part(p, axis + 1, p->rank) * tm_dtype_size(c->in[0].dtype);
  int64_t n = tm_view_count(&c->in[1]);
  const int64_t *ids;
  TM_TRY(tm_ids_read(&c->in[1], "indices", rows, "params", c->scratch, &ids, c->err));
  if (tm_view_count(&c->out[0]) == 0) return TM_OK;
  for (int64_t i = 0; i < outer; i++)
    tm_k_gather_rows((char *)c->out[0].data + (size_t)(i * n) * bytes,
                     (const char *)c->in[0].data + (size_t)(i * rows) * bytes, ids, n,
                     bytes);
  return TM_OK;
}

static tm_status gather_grad(tm_gctx *c) {
  tm_value *in[3] = {c->dout[0], c->in[1], c->in[0]};
  if (!c->need[0]) return TM_OK;
  return tm_g_set(c, 0, tm_g_same(c, "gather_grad", in, 3, 0));
}

/* (dy, indices, like): dy added into zeros like params. */
static tm_status gather_grad_infer(tm_infer *c) {
  int32_t axis;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_INT));
  TM_TRY(tm_shape_axis(&c->in[2].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  tm_shape s = c->in[2].shape, d = c->in[0].shape;
  if (d.rank != s.rank - 1 + c->in[1].shape.rank)
    return tm_fail(c->err, TM_EINVAL, "dy does not fit indices");
  for (int32_t i = 0; i < d.rank; i++) {
    int32_t k = i - axis;
    int64_t want = k < 0                     ? s.dim[i]
                   : k < c->in[1].shape.rank ? c->in[1].shape.dim[k]
                                             : s.dim[i - c->in[1].shape.rank + 1];
    if (want >= 0 && d.dim[i] >= 0 && want != d.dim[i])
      return tm_fail(c->err, TM_EINVAL, "dy does not fit indices");
  }
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static tm_status gather_grad_kernel(tm_kctx *c) {
  const tm_shape *p = &c->out[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), p->rank);
  int64_t outer = tm_shape_part(p, 0, axis), rows = p->dim[axis];
  int64_t width = tm_shape_part(p, axis + 1, p->rank), n = tm_view_count(&c->in[1]);
  const int64_t *ids;
  TM_TRY(tm_ids_read(&c->in[1], "indices", rows, "params", c->scratch, &ids, c->err));
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  for (int64_t i = 0; i < outer; i++) {
    int64_t to = i * rows * width, from = i * n * width;
    if (c->out[0].dtype == TM_F32)
      tm_k_add_rows_f32((float *)c->out[0].data + to,
                        (const float *)c->in[0].data + from, ids, n, width);
    else
      tm_k_add_rows_f64((double *)c->out[0].data + to,
                        (const double *)c->in[0].data + from, ids, n, width);
  }
  return TM_OK;
}

static tm_status gather_grad_grad(tm_gctx *c) {
  tm_value *in[2] = {c->dout[0], c->in[1]};
  return tm_g_set(c, 0, tm_g_same(c, "gather", in, 2, 0));
}

/* --- unique --- */

static tm_status unique_infer(tm_infer *c) {
  tm_shape s = tm_shape_of(1, &(int64_t){-1});
  TM_TRY(tm_infer_rank(c, 0, 1));
  if (c->in[0].shape.dim[0] > INT32_MAX)
    return tm_fail(c->err, TM_EINVAL, "x has more than 2^31 - 1 elements");
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  return tm_infer_out(c, TM_I64, &c->in[0].shape);
}

/* Parts of the scratch memory, in this order. */
struct unique_work {
  int64_t *key, *uniq;
  int32_t *first, *inv;
  void *slots;
};

static size_t unique_scratch(const tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]);
  return (size_t)n * 2 * (sizeof(int64_t) + sizeof(int32_t)) + tm_k_unique_scratch(n);
}

static struct unique_work unique_parts(tm_kctx *c, int64_t n) {
  struct unique_work w;
  w.key = c->scratch;
  w.uniq = w.key + n;
  w.first = (int32_t *)(void *)(w.uniq + n);
  w.inv = w.first + n;
  w.slots = w.inv + n;
  return w;
}

/* One number that is equal when the elements are: floats by their bits, -0 as 0. */
static int64_t unique_key(const tm_view *v, int64_t i) {
  const tm_str *s = v->data;
  if (v->dtype == TM_STRING) return (int64_t)tm_hash64(s[i].n ? s[i].p : "", s[i].n, 0);
  if (!tm_dtype_is_float(v->dtype)) return tm_view_get_i64(v, i);
  double x = tm_view_get_f64(v, i) + 0.0;
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static bool str_equal(tm_str a, tm_str b) {
  return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

/* Two different strings of one hash: then their keys are made unique one by one. */
static bool unique_collides(const tm_str *s, const struct unique_work *w, int64_t n) {
  for (int64_t i = 0; i < n; i++)
    if (!str_equal(s[i], s[w->first[w->inv[i]]])) return true;
  return false;
}

static int64_t unique_slow(const tm_str *s, const struct unique_work *w, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t k = 0;
    while (k < count && !str_equal(s[i], s[w->first[k]])) k++;
    if (k == count) w->first[count++] = (int32_t)i;
    w->inv[i] = (int32_t)k;
  }
  return count;
}

/* Element first[k] of x for each k. */
static tm_status unique_values(tm_kctx *c, const struct unique_work *w, int64_t count) {
  const tm_view *x = &c->in[0];
  tm_shape s = tm_shape_of(1, &count);
  if (x->dtype == TM_STRING) {
    /* key and uniq are read no more: together they have room for the strings. */
    tm_str *str = (tm_str *)(void *)w->key;
    tm_tensor *t;
    for (int64_t k = 0; k < count; k++) str[k] = ((const tm_str *)x->data)[w->first[k]];
    TM_TRY(tm_tensor_strings(&s, str, &t, c->err));
    tm_kctx_give(c, 0, t);
    return TM_OK;
  }
  size_t elem = tm_dtype_size(x->dtype);
  TM_TRY(tm_kctx_make(c, 0, x->dtype, &s));
  for (int64_t k = 0; k < count; k++)
    memcpy((char *)c->out[0].data + (size_t)k * elem,
           (const char *)x->data + (size_t)w->first[k] * elem, elem);
  return TM_OK;
}

static tm_status unique_kernel(tm_kctx *c) {
  const tm_view *x = &c->in[0];
  int64_t n = tm_view_count(x);
  struct unique_work w = unique_parts(c, n);
  for (int64_t i = 0; i < n; i++) w.key[i] = unique_key(x, i);
  int64_t count = tm_k_unique_i64(w.uniq, w.first, w.inv, w.key, n, w.slots);
  if (x->dtype == TM_STRING && unique_collides(x->data, &w, n))
    count = unique_slow(x->data, &w, n);
  TM_TRY(unique_values(c, &w, count));
  TM_TRY(tm_kctx_make(c, 1, TM_I64, &x->shape));
  int64_t *index = c->out[1].data;
  for (int64_t i = 0; i < n; i++) index[i] = w.inv[i];
  return TM_OK;
}

/* --- boolean_mask --- */

static tm_status mask_infer(tm_infer *c) {
  const tm_shape *x = &c->in[0].shape, *m = &c->in[1].shape;
  TM_TRY(tm_infer_want(c, 1, TM_WANT_BOOL));
  tm_shape lead = *x;
  lead.rank = m->rank;
  if (m->rank < 1 || m->rank > x->rank || !tm_shape_compatible(&lead, m))
    return tm_fail(
        c->err, TM_EINVAL, "mask of shape %s must fit the first axes of x of shape %s",
        tm_shape_text(m, (char[128]){0}, 128), tm_shape_text(x, (char[128]){0}, 128));
  tm_shape s = tm_shape_of(1, &(int64_t){-1});
  for (int32_t i = m->rank; i < x->rank; i++) s.dim[s.rank++] = x->dim[i];
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* Give output 0 bytes of its own: they were those of x. */
static tm_status mask_own_strings(tm_kctx *c) {
  tm_tensor *t;
  TM_TRY(tm_tensor_copy(&c->out[0], &t, c->err));
  tm_kctx_give(c, 0, t);
  return TM_OK;
}

static tm_status mask_kernel(tm_kctx *c) {
  const tm_shape *x = &c->in[0].shape;
  const uint8_t *mask = c->in[1].data;
  int64_t n = tm_view_count(&c->in[1]), count = 0;
  int32_t rank = c->in[1].shape.rank;
  size_t bytes =
      (size_t)tm_shape_part(x, rank, x->rank) * tm_dtype_size(c->in[0].dtype);
  for (int64_t i = 0; i < n; i++) count += mask[i] != 0;
  tm_shape s = tm_shape_of(1, &count);
  for (int32_t i = rank; i < x->rank; i++) s.dim[s.rank++] = x->dim[i];
  TM_TRY(tm_kctx_make(c, 0, c->in[0].dtype, &s));
  char *to = c->out[0].data;
  for (int64_t i = 0; bytes > 0 && i < n; i++) {
    if (!mask[i]) continue;
    memcpy(to, (const char *)c->in[0].data + (size_t)i * bytes, bytes);
    to += bytes;
  }
  return c->in[0].dtype == TM_STRING ? mask_own_strings(c) : TM_OK;
}

static tm_status mask_grad(tm_gctx *c) {
  tm_value *in[3] = {c->dout[0], c->in[1], c->in[0]};
  return tm_g_set(c, 0, tm_gn(c, "boolean_mask_grad", in, 3, NULL, 0));
}

static tm_status mask_grad_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 1, TM_WANT_BOOL));
  tm_shape lead = c->in[2].shape;
  lead.rank = c->in[1].shape.rank;
  if (lead.rank > c->in[2].shape.rank || !tm_shape_compatible(&lead, &c->in[1].shape))
    return tm_fail(c->err, TM_EINVAL, "mask does not fit like");
  return tm_infer_out(c, c->in[0].dtype, &c->in[2].shape);
}

static tm_status mask_grad_kernel(tm_kctx *c) {
  const uint8_t *mask = c->in[1].data;
  const tm_shape *x = &c->out[0].shape;
  int64_t n = tm_view_count(&c->in[1]), have = tm_view_count(&c->in[0]);
  int64_t width = tm_shape_part(x, c->in[1].shape.rank, x->rank);
  size_t bytes = (size_t)width * tm_dtype_size(c->in[0].dtype);
  const char *from = c->in[0].data;
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  for (int64_t i = 0; bytes > 0 && i < n && have > 0; i++) {
    if (!mask[i]) continue;
    memcpy((char *)c->out[0].data + (size_t)i * bytes, from, bytes);
    from += bytes;
    have -= width;
  }
  return TM_OK;
}

static const tm_op index_ops[] = {
    {.name = "gather",
     .sig = "params, indices; axis:axis=0",
     .help = "Slices of params along an axis, by ids (0-based).",
     .infer = gather_infer,
     .kernel = gather_kernel,
     .grad = gather_grad,
     .scratch = gather_scratch},
    {.name = "gather_grad",
     .sig = "dy, indices, like; axis:axis=0",
     .help = "dy added by ids into zeros like `like`.",
     .flags = TM_OP_HIDDEN,
     .infer = gather_grad_infer,
     .kernel = gather_grad_kernel,
     .grad = gather_grad_grad,
     .scratch = gather_scratch},
    {.name = "unique",
     .sig = "x",
     .help = "Distinct elements of x (n) in order of appearance, and for each element "
             "of x the index of its value (0-based).",
     .flags = TM_OP_DYNAMIC,
     .infer = unique_infer,
     .kernel = unique_kernel,
     .scratch = unique_scratch},
    {.name = "boolean_mask",
     .sig = "x, mask",
     .help = "The parts of x where mask, over its first axes, is true.",
     .flags = TM_OP_DYNAMIC,
     .infer = mask_infer,
     .kernel = mask_kernel,
     .grad = mask_grad},
    {.name = "boolean_mask_grad",
     .sig = "dy, mask, like",
     .help = "Zeros like `like` with dy where mask is true.",
     .flags = TM_OP_HIDDEN,
     .infer = mask_grad_infer,
     .kernel = mask_grad_kernel},
};

const tm_op_group tm_ops_index = {index_ops, TM_COUNT(index_ops)};
