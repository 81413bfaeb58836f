#include "graph/attr.h"

#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "graph/graph.h"

/*
 * Design.  An attribute owns what its union points to, by kind; NONE and the plain
 * kinds own nothing.  Lists of length 0 have a NULL pointer.
 */

static bool attr_is_ints(tm_attr_kind k) {
  return k == TM_ATTR_AXES || k == TM_ATTR_INTS || k == TM_ATTR_SHAPE;
}

static void attr_clear(tm_attr *a) {
  if (a->kind == TM_ATTR_STR) tm_strfree(a->u.s);
  if (attr_is_ints(a->kind)) tm_free(a->u.is, (size_t)a->n * sizeof *a->u.is);
  if (a->kind == TM_ATTR_FLOATS) tm_free(a->u.fs, (size_t)a->n * sizeof *a->u.fs);
  if (a->kind == TM_ATTR_TENSOR) tm_tensor_unref(a->u.t);
  if (a->kind == TM_ATTR_FUNC) tm_graph_unref(a->u.g);
  memset(a, 0, sizeof *a);
}

void tm_attrs_release(tm_attrs *a) {
  for (int32_t i = 0; i < a->n; i++) attr_clear(&a->a[i]);
  a->n = 0;
}

static tm_status attr_copy(tm_attr *dst, const tm_attr *src) {
  memset(dst, 0, sizeof *dst);
  switch (src->kind) {
    case TM_ATTR_STR:
      return tm_attr_set_str(dst, src->u.s, (size_t)src->n);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      return tm_attr_set_ints(dst, src->kind, src->u.is, src->n);
    case TM_ATTR_FLOATS:
      return tm_attr_set_floats(dst, src->u.fs, src->n);
    case TM_ATTR_TENSOR:
      tm_attr_set_tensor(dst, src->u.t);
      return TM_OK;
    case TM_ATTR_FUNC:
      tm_attr_set_graph(dst, src->u.g);
      return TM_OK;
    default:
      *dst = *src;
      return TM_OK;
  }
}

tm_status tm_attrs_copy(tm_attrs *dst, const tm_attrs *src) {
  memset(dst, 0, sizeof *dst);
  for (int32_t i = 0; i < src->n; i++) {
    tm_status s = attr_copy(&dst->a[i], &src->a[i]);
    if (s) {
      tm_attrs_release(dst);
      return s;
    }
    dst->n = i + 1;
  }
  return TM_OK;
}

/* --- comparison: of content, floats by their bits (so NaN equals itself) --- */

static bool attr_bytes_equal(const void *a, const void *b, size_t n) {
  return n == 0 || memcmp(a, b, n) == 0;
}

static bool attr_tensor_equal(const tm_view *a, const tm_view *b) {
  if (a->dtype != b->dtype || !tm_shape_equal(&a->shape, &b->shape)) return false;
  if (a->dtype != TM_STRING)
    return attr_bytes_equal(a->data, b->data, tm_view_bytes(a));
  const tm_str *x = a->data, *y = b->data;
  for (int64_t i = 0, n = tm_view_count(a); i < n; i++)
    if (x[i].n != y[i].n || !attr_bytes_equal(x[i].p, y[i].p, x[i].n)) return false;
  return true;
}

static bool attr_graph_equal(const tm_graph *a, const tm_graph *b) {
  return a == b || (a->hash[0] == b->hash[0] && a->hash[1] == b->hash[1]);
}

static bool attr_equal(const tm_attr *a, const tm_attr *b) {
  if (a->kind != b->kind || a->n != b->n) return false;
  size_t n = (size_t)a->n;
  switch (a->kind) {
    case TM_ATTR_NONE:
      return true;
    case TM_ATTR_BOOL:
      return a->u.b == b->u.b;
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
    case TM_ATTR_DTYPE:
      return a->u.i == b->u.i;
    case TM_ATTR_FLOAT:
      return memcmp(&a->u.f, &b->u.f, sizeof a->u.f) == 0;
    case TM_ATTR_STR:
      return attr_bytes_equal(a->u.s, b->u.s, n);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      return attr_bytes_equal(a->u.is, b->u.is, n * sizeof *a->u.is);
    case TM_ATTR_FLOATS:
      return attr_bytes_equal(a->u.fs, b->u.fs, n * sizeof *a->u.fs);
    case TM_ATTR_TENSOR:
      return a->u.t == b->u.t || attr_tensor_equal(&a->u.t->v, &b->u.t->v);
    case TM_ATTR_FUNC:
      return attr_graph_equal(a->u.g, b->u.g);
  }
  return false;
}

bool tm_attrs_equal(const tm_attrs *a, const tm_attrs *b) {
  if (a->n != b->n) return false;
  for (int32_t i = 0; i < a->n; i++)
    if (!attr_equal(&a->a[i], &b->a[i])) return false;
  return true;
}

static uint64_t attr_hash_tensor(const tm_view *v, uint64_t h) {
  h = tm_mix64(h ^ (uint64_t)v->dtype);
  h = tm_hash64(v->shape.dim, (size_t)v->shape.rank * sizeof v->shape.dim[0], h);
  if (v->dtype != TM_STRING) return tm_hash64(v->data, tm_view_bytes(v), h);
  const tm_str *s = v->data;
  for (int64_t i = 0, n = tm_view_count(v); i < n; i++)
    h = tm_hash64(s[i].n ? s[i].p : "", s[i].n, h + 1);
  return h;
}

static uint64_t attr_hash(const tm_attr *a, uint64_t h) {
  h = tm_mix64(h ^ (uint64_t)a->kind);
  h = tm_mix64(h ^ (uint64_t)a->n);
  size_t n = (size_t)a->n;
  switch (a->kind) {
    case TM_ATTR_NONE:
      return h;
    case TM_ATTR_BOOL:
      return tm_mix64(h ^ (a->u.b ? 1U : 2U));
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
    case TM_ATTR_DTYPE:
      return tm_mix64(h ^ (uint64_t)a->u.i);
    case TM_ATTR_FLOAT:
      return tm_hash64(&a->u.f, sizeof a->u.f, h);
    case TM_ATTR_STR:
      return tm_hash64(a->u.s, n, h);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      return n ? tm_hash64(a->u.is, n * sizeof *a->u.is, h) : h;
    case TM_ATTR_FLOATS:
      return n ? tm_hash64(a->u.fs, n * sizeof *a->u.fs, h) : h;
    case TM_ATTR_TENSOR:
      return attr_hash_tensor(&a->u.t->v, h);
    case TM_ATTR_FUNC:
      return tm_mix64(tm_mix64(h ^ a->u.g->hash[0]) ^ a->u.g->hash[1]);
  }
  return h;
}

uint64_t tm_attrs_hash(const tm_attrs *a) {
  uint64_t h = tm_mix64((uint64_t)a->n);
  for (int32_t i = 0; i < a->n; i++) h = attr_hash(&a->a[i], h);
  return h;
}

/* --- setters: the old content goes first --- */

tm_status tm_attr_set_str(tm_attr *a, const char *s, size_t n) {
  if (n > INT32_MAX) return TM_EEXHAUSTED;
  char *copy = tm_strndup(s, n);
  if (!copy) return TM_ENOMEM;
  attr_clear(a);
  a->kind = TM_ATTR_STR;
  a->n = (int32_t)n;
  a->u.s = copy;
  return TM_OK;
}

/* A copy of n elements of 8 bytes; *out is NULL when n is 0. */
static tm_status attr_dup8(const void *v, int32_t n, void *out) {
  void *copy = NULL;
  if (n > 0) {
    copy = tm_malloc((size_t)n * 8);
    if (!copy) return TM_ENOMEM;
    memcpy(copy, v, (size_t)n * 8);
  }
  memcpy(out, &copy, sizeof copy);
  return TM_OK;
}

tm_status tm_attr_set_ints(tm_attr *a, tm_attr_kind kind, const int64_t *v, int32_t n) {
  int64_t *copy;
  TM_TRY(attr_dup8(v, n, &copy));
  attr_clear(a);
  a->kind = kind;
  a->n = n;
  a->u.is = copy;
  return TM_OK;
}

tm_status tm_attr_set_floats(tm_attr *a, const double *v, int32_t n) {
  double *copy;
  TM_TRY(attr_dup8(v, n, &copy));
  attr_clear(a);
  a->kind = TM_ATTR_FLOATS;
  a->n = n;
  a->u.fs = copy;
  return TM_OK;
}

void tm_attr_set_bool(tm_attr *a, bool b) {
  attr_clear(a);
  a->kind = TM_ATTR_BOOL;
  a->u.b = b;
}

void tm_attr_set_int(tm_attr *a, tm_attr_kind kind, int64_t i) {
  attr_clear(a);
  a->kind = kind;
  a->u.i = i;
}

void tm_attr_set_float(tm_attr *a, double f) {
  attr_clear(a);
  a->kind = TM_ATTR_FLOAT;
  a->u.f = f;
}

void tm_attr_set_tensor(tm_attr *a, tm_tensor *t) {
  tm_tensor_ref(t);
  attr_clear(a);
  a->kind = TM_ATTR_TENSOR;
  a->u.t = t;
}

void tm_attr_set_graph(tm_attr *a, struct tm_graph *g) {
  tm_graph_ref(g);
  attr_clear(a);
  a->kind = TM_ATTR_FUNC;
  a->u.g = g;
}
