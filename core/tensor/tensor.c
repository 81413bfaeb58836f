#include "tensor/tensor.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  Invariants:
 *   (1) A storage of our own is one allocation: the struct in the first 64 bytes, the
 *       elements after it, so elements are 64-byte aligned.  A wrapped storage is the
 *       struct alone.  `data` tells which (storage_is_own).
 *   (2) A tensor's elements lie within its storage; the bytes of its strings lie in
 *       the storage or in what the storage keeps (a chain of `keep`).
 *   (3) data is never NULL, for empty tensors either, so that kernels may hand it to
 *       memcpy.
 */
enum { STORAGE_HEAD = 64 };

_Static_assert(sizeof(tm_storage) <= STORAGE_HEAD, "the struct fits before the data");

int64_t tm_view_count(const tm_view *v) { return tm_shape_count(&v->shape); }

size_t tm_view_bytes(const tm_view *v) {
  return (size_t)tm_shape_count(&v->shape) * tm_dtype_size(v->dtype);
}

/* --- storage --- */

static bool storage_is_own(const tm_storage *s) {
  return s->data == (const char *)s + STORAGE_HEAD;
}

tm_status tm_storage_new(size_t size, tm_storage **out) {
  *out = NULL;
  if (size > SIZE_MAX - STORAGE_HEAD) return TM_ENOMEM;
  tm_storage *s = tm_malloc_aligned(STORAGE_HEAD + size);
  if (!s) return TM_ENOMEM;
  memset(s, 0, sizeof *s);
  atomic_init(&s->refs, 1);
  s->data = (char *)s + STORAGE_HEAD;
  s->size = size;
  *out = s;
  return TM_OK;
}

tm_status tm_storage_wrap(void *data, size_t size, void (*release)(tm_storage *s),
                          void *ud, tm_storage **out) {
  *out = NULL;
  tm_storage *s = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  atomic_init(&s->refs, 1);
  s->data = data;
  s->size = size;
  s->release = release;
  s->ud = ud;
  *out = s;
  return TM_OK;
}

tm_storage *tm_storage_ref(tm_storage *s) {
  atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
  return s;
}

/* A loop, not recursion: chains of `keep` may be long. */
void tm_storage_unref(tm_storage *s) {
  while (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) {
    tm_storage *keep = s->keep;
    if (s->release) s->release(s);
    if (storage_is_own(s))
      tm_free_aligned(s, STORAGE_HEAD + s->size);
    else
      tm_free(s, sizeof *s);
    s = keep;
  }
}

/* --- tensors --- */

/* Takes the reference of st, also on failure. */
static tm_status tensor_make(tm_storage *st, tm_dtype t, const tm_shape *shape,
                             void *data, tm_tensor **out) {
  *out = NULL;
  tm_tensor *x = tm_malloc(sizeof *x);
  if (!x) {
    tm_storage_unref(st);
    return TM_ENOMEM;
  }
  atomic_init(&x->refs, 1);
  x->v.dtype = t;
  x->v.shape = *shape;
  x->v.data = data;
  x->storage = st;
  *out = x;
  return TM_OK;
}

static tm_status tensor_nomem(const tm_shape *shape, tm_dtype t, tm_err *err) {
  char text[128];
  return tm_fail(err, TM_ENOMEM, "no memory for a tensor of shape %s and dtype %s",
                 tm_shape_text(shape, text, sizeof text), tm_dtype_name(t));
}

/* A tensor with `extra` bytes behind its elements. */
static tm_status tensor_alloc(tm_dtype t, const tm_shape *shape, size_t extra,
                              tm_tensor **out, tm_err *err) {
  *out = NULL;
  size_t elem = tm_dtype_size(t);
  if (elem == 0) return tm_fail(err, TM_EINVAL, "not an element type");
  TM_TRY(tm_shape_check(shape, (int64_t)elem, err));
  int64_t n = tm_shape_count(shape);
  if (n < 0) return tm_fail(err, TM_EINVAL, "a size of the shape is unknown");
  size_t bytes = (size_t)n * elem;
  tm_storage *st;
  if (tm_storage_new(bytes + extra, &st)) return tensor_nomem(shape, t, err);
  if (tensor_make(st, t, shape, st->data, out)) return tensor_nomem(shape, t, err);
  if (t == TM_STRING) memset(st->data, 0, bytes);
  return TM_OK;
}

tm_status tm_tensor_new(tm_dtype t, const tm_shape *shape, tm_tensor **out,
                        tm_err *err) {
  return tensor_alloc(t, shape, 0, out, err);
}

tm_status tm_tensor_over(tm_storage *st, tm_dtype t, const tm_shape *shape, void *data,
                         tm_tensor **out) {
  return tensor_make(tm_storage_ref(st), t, shape, data, out);
}

tm_status tm_tensor_strings(const tm_shape *shape, const tm_str *s, tm_tensor **out,
                            tm_err *err) {
  *out = NULL;
  TM_TRY(tm_shape_check(shape, sizeof(tm_str), err));
  int64_t n = tm_shape_count(shape);
  if (n < 0) return tm_fail(err, TM_EINVAL, "a size of the shape is unknown");
  size_t bytes = 0;
  for (int64_t i = 0; i < n; i++) {
    if (s[i].n > SIZE_MAX / 4 - bytes) return tensor_nomem(shape, TM_STRING, err);
    bytes += s[i].n;
  }
  TM_TRY(tensor_alloc(TM_STRING, shape, bytes, out, err));
  tm_str *dst = (*out)->v.data;
  char *p = (char *)(dst + n);
  for (int64_t i = 0; i < n; i++) {
    dst[i] = (tm_str){p, s[i].n};
    if (s[i].n) memcpy(p, s[i].p, s[i].n);
    p += s[i].n;
  }
  return TM_OK;
}

tm_status tm_tensor_f32(float x, tm_tensor **out) {
  tm_shape s = tm_shape_scalar();
  TM_TRY(tm_tensor_new(TM_F32, &s, out, NULL));
  memcpy((*out)->v.data, &x, sizeof x);
  return TM_OK;
}

tm_status tm_tensor_i64(int64_t x, tm_tensor **out) {
  tm_shape s = tm_shape_scalar();
  TM_TRY(tm_tensor_new(TM_I64, &s, out, NULL));
  memcpy((*out)->v.data, &x, sizeof x);
  return TM_OK;
}

tm_status tm_tensor_copy(const tm_view *v, tm_tensor **out, tm_err *err) {
  if (v->dtype == TM_STRING) return tm_tensor_strings(&v->shape, v->data, out, err);
  TM_TRY(tm_tensor_new(v->dtype, &v->shape, out, err));
  size_t bytes = tm_view_bytes(v);
  if (bytes) memcpy((*out)->v.data, v->data, bytes);
  return TM_OK;
}

tm_tensor *tm_tensor_ref(tm_tensor *t) {
  atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
  return t;
}

void tm_tensor_unref(tm_tensor *t) {
  if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
  tm_storage_unref(t->storage);
  tm_free(t, sizeof *t);
}

tm_status tm_tensor_rows(tm_tensor *t, int64_t first, int64_t n, tm_tensor **out,
                         tm_err *err) {
  *out = NULL;
  if (t->v.shape.rank < 1) return tm_fail(err, TM_EINVAL, "a scalar has no rows");
  int64_t rows = t->v.shape.dim[0];
  if (first < 0 || n < 0 || first > rows || n > rows - first)
    return tm_fail(err, TM_ERANGE,
                   "%" PRId64 " rows from row %" PRId64 " on, of a tensor with %" PRId64
                   " rows",
                   n, first, rows);
  tm_shape s = t->v.shape;
  size_t row = tm_dtype_size(t->v.dtype);
  for (int32_t i = 1; i < s.rank; i++) row *= (size_t)s.dim[i];
  s.dim[0] = n;
  char *data = (char *)t->v.data + row * (size_t)first;
  if (tm_tensor_over(t->storage, t->v.dtype, &s, data, out))
    return tm_nomem(err, "taking rows of a tensor");
  return TM_OK;
}

tm_status tm_tensor_reshape(tm_tensor *t, const tm_shape *shape, tm_tensor **out,
                            tm_err *err) {
  *out = NULL;
  TM_TRY(tm_shape_check(shape, (int64_t)tm_dtype_size(t->v.dtype), err));
  if (tm_shape_count(shape) != tm_view_count(&t->v)) {
    char a[128], b[128];
    return tm_fail(err, TM_EINVAL, "shape %s does not hold the elements of shape %s",
                   tm_shape_text(shape, a, sizeof a),
                   tm_shape_text(&t->v.shape, b, sizeof b));
  }
  if (tm_tensor_over(t->storage, t->v.dtype, shape, t->v.data, out))
    return tm_nomem(err, "reshaping a tensor");
  return TM_OK;
}

double tm_view_get_f64(const tm_view *v, int64_t i) {
  switch (v->dtype) {
    case TM_F32:
      return (double)((const float *)v->data)[i];
    case TM_F64:
      return ((const double *)v->data)[i];
    default:
      return (double)tm_view_get_i64(v, i);
  }
}

/* Truncates; what does not fit becomes the nearest int64, NaN becomes 0. */
static int64_t view_f64_to_i64(double x) {
  if (x != x) return 0;
  if (x >= 9223372036854775808.0) return INT64_MAX;
  if (x < -9223372036854775808.0) return INT64_MIN;
  return (int64_t)x;
}

int64_t tm_view_get_i64(const tm_view *v, int64_t i) {
  switch (v->dtype) {
    case TM_F32:
    case TM_F64:
      return view_f64_to_i64(tm_view_get_f64(v, i));
    case TM_I32:
      return ((const int32_t *)v->data)[i];
    case TM_I64:
      return ((const int64_t *)v->data)[i];
    case TM_U8:
    case TM_BOOL:
      return ((const uint8_t *)v->data)[i];
    case TM_STRING:
    case TM_DTYPE_NONE:
      break;
  }
  return 0;
}
