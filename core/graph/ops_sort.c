#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/infer.h"
#include "graph/rules.h"

/*
 * Design.  A row is never moved: its positions are sorted, by a merge sort, so equal
 * elements keep their order (and the first of equal ones is the first of top_k).  NaN
 * comes after all numbers in rising order and before them in falling order.  An axis
 * other than the last is turned to the end in scratch memory.
 */

/* -1, 0, 1 as element i is before, like, behind element k. */
static int sort_compare(const tm_view *v, int64_t i, int64_t k) {
  if (v->dtype == TM_STRING) {
    const tm_str *a = (const tm_str *)v->data + i, *b = (const tm_str *)v->data + k;
    size_t n = a->n < b->n ? a->n : b->n;
    int c = n ? memcmp(a->p, b->p, n) : 0;
    return c ? c : (a->n > b->n) - (a->n < b->n);
  }
  if (tm_dtype_is_float(v->dtype)) {
    double a = tm_view_get_f64(v, i), b = tm_view_get_f64(v, k);
    if (isnan(a) || isnan(b)) return isnan(a) - isnan(b);
    return (a > b) - (a < b);
  }
  int64_t a = tm_view_get_i64(v, i), b = tm_view_get_i64(v, k);
  return (a > b) - (a < b);
}

/* Sort at[0..n-1], positions in v; spare has room for n. */
static void sort_row(const tm_view *v, int64_t *at, int64_t *spare, int64_t n,
                     bool falling) {
  for (int64_t width = 1; width < n; width *= 2) {
    for (int64_t from = 0; from < n; from += 2 * width) {
      int64_t mid = from + width < n ? from + width : n;
      int64_t end = mid + width < n ? mid + width : n;
      int64_t i = from, k = mid;
      for (int64_t o = from; o < end; o++) {
        bool left = k == end;
        if (!left && i < mid) {
          int c = sort_compare(v, at[i], at[k]);
          left = falling ? c >= 0 : c <= 0;
        }
        spare[o] = left ? at[i++] : at[k++];
      }
    }
    memcpy(at, spare, (size_t)n * sizeof *at);
  }
}

/* --- along an axis --- */

struct sort_work {
  tm_k_walk walk; /* reads x with the axis last */
  int64_t rows, n;
  tm_view x; /* x in that order */
  int64_t *at, *spare;
  bool falling, turned;
};

static size_t sort_scratch_of(const tm_view *x, int64_t n) {
  return tm_view_bytes(x) + (size_t)n * 2 * sizeof(int64_t);
}

static void sort_begin(struct sort_work *w, const tm_kctx *c, int32_t axis,
                       bool falling) {
  const tm_shape *s = &c->in[0].shape;
  int64_t inner = tm_shape_part(s, axis + 1, s->rank);
  w->n = s->dim[axis];
  w->rows = tm_shape_part(s, 0, axis) * inner;
  w->walk = (tm_k_walk){.rank = 3,
                        .dim = {tm_shape_part(s, 0, axis), inner, w->n},
                        .step = {w->n * inner, 1, inner}};
  w->at = c->scratch;
  w->spare = w->at + w->n;
  w->x = c->in[0];
  w->falling = falling;
  w->turned = inner != 1;
  if (!w->turned) return;
  w->x.data = w->spare + w->n;
  tm_k_read_strided(w->x.data, c->in[0].data, &w->walk, tm_dtype_size(w->x.dtype));
}

/* Positions of row r in order, counted in the whole of w->x. */
static void sort_next(struct sort_work *w, int64_t r) {
  for (int64_t i = 0; i < w->n; i++) w->at[i] = r * w->n + i;
  sort_row(&w->x, w->at, w->spare, w->n, w->falling);
}

/* Where element i of row r goes in an array like x. */
static int64_t sort_place(const struct sort_work *w, int64_t r, int64_t i) {
  int64_t inner = w->walk.dim[1];
  return r / inner * w->walk.step[0] + r % inner + i * w->walk.step[2];
}

static tm_status sort_direction(tm_infer *c) {
  const char *d = tm_at_str(c->attrs, 1);
  if (strcmp(d, "ASCENDING") == 0 || strcmp(d, "DESCENDING") == 0) return TM_OK;
  return tm_fail(c->err, TM_EINVAL,
                 "direction is \"%s\", must be \"ASCENDING\" or \"DESCENDING\"", d);
}

static tm_status sort_infer(tm_infer *c) {
  int32_t axis;
  TM_TRY(sort_direction(c));
  TM_TRY(tm_shape_axis(&c->in[0].shape, tm_at_int(c->attrs, 0), &axis, c->err));
  return tm_infer_out(c, c->in[0].dtype, &c->in[0].shape);
}

static tm_status argsort_infer(tm_infer *c) {
  TM_TRY(sort_infer(c));
  c->out[0].dtype = TM_I64;
  return TM_OK;
}

static size_t sort_scratch(const tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  return sort_scratch_of(&c->in[0],
                         s->dim[tm_axis_of(tm_at_int(c->attrs, 0), s->rank)]);
}

static struct sort_work sort_work_of(const tm_kctx *c) {
  struct sort_work w;
  int32_t rank = c->in[0].shape.rank;
  bool falling = strcmp(tm_at_str(c->attrs, 1), "DESCENDING") == 0;
  sort_begin(&w, c, tm_axis_of(tm_at_int(c->attrs, 0), rank), falling);
  return w;
}

static tm_status sort_kernel(tm_kctx *c) {
  struct sort_work w = sort_work_of(c);
  size_t elem = tm_dtype_size(w.x.dtype);
  for (int64_t r = 0; r < w.rows; r++) {
    sort_next(&w, r);
    for (int64_t i = 0; i < w.n; i++)
      memcpy((char *)c->out[0].data + (size_t)sort_place(&w, r, i) * elem,
             (const char *)w.x.data + (size_t)w.at[i] * elem, elem);
  }
  return TM_OK;
}

static tm_status argsort_kernel(tm_kctx *c) {
  struct sort_work w = sort_work_of(c);
  int64_t *o = c->out[0].data;
  for (int64_t r = 0; r < w.rows; r++) {
    sort_next(&w, r);
    for (int64_t i = 0; i < w.n; i++) o[sort_place(&w, r, i)] = w.at[i] - r * w.n;
  }
  return TM_OK;
}

/* put_along(dy, at, like; axis): zeros like `like` with dy at positions `at`. */
static tm_value *sort_put(tm_gctx *c, tm_value *at, int64_t axis) {
  tm_attrs a;
  tm_value *in[3] = {c->dout[0], at, c->in[0]};
  if (c->status || !at || tm_g_attrs(c, "put_along", &a)) return NULL;
  tm_attr_set_int(&a.a[0], TM_ATTR_AXIS, axis);
  return tm_gn(c, "put_along", in, 3, &a, 0);
}

static tm_status sort_grad(tm_gctx *c) {
  tm_value *at = tm_g_same(c, "argsort", c->in, 1, 0);
  return tm_g_set(c, 0, sort_put(c, at, tm_at_int(c->attrs, 0)));
}

static tm_status put_infer(tm_infer *c) {
  int32_t axis;
  tm_shape s = c->in[2].shape;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  if (c->in[1].dtype != TM_I64) return tm_fail(c->err, TM_EINVAL, "at is no int64");
  TM_TRY(tm_shape_axis(&s, tm_at_int(c->attrs, 0), &axis, c->err));
  if (c->in[0].shape.rank != s.rank)
    return tm_fail(c->err, TM_EINVAL, "dy and like differ in rank");
  s.dim[axis] = c->in[0].shape.dim[axis];
  if (!tm_shape_compatible(&s, &c->in[0].shape) ||
      !tm_shape_compatible(&c->in[0].shape, &c->in[1].shape))
    return tm_fail(c->err, TM_EINVAL, "dy, at and like do not fit");
  return tm_infer_out(c, c->in[0].dtype, &c->in[2].shape);
}

static tm_status put_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape, *d = &c->in[0].shape;
  int32_t axis = tm_axis_of(tm_at_int(c->attrs, 0), s->rank);
  int64_t inner = tm_shape_part(s, axis + 1, s->rank), n = d->dim[axis];
  const int64_t *at = c->in[1].data;
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  for (int64_t i = 0, count = tm_view_count(&c->in[0]); i < count; i++) {
    int64_t outer = i / (n * inner);
    if (at[i] < 0 || at[i] >= s->dim[axis])
      return tm_fail(c->err, TM_EINVAL, "position %" PRId64 " is outside", at[i]);
    int64_t to = (outer * s->dim[axis] + at[i]) * inner + i % inner;
    if (c->out[0].dtype == TM_F32)
      ((float *)c->out[0].data)[to] += ((const float *)c->in[0].data)[i];
    else
      ((double *)c->out[0].data)[to] += ((const double *)c->in[0].data)[i];
  }
  return TM_OK;
}

/* --- top_k --- */

static tm_status top_k_infer(tm_infer *c) {
  tm_shape s = c->in[0].shape;
  int64_t k = tm_at_int(c->attrs, 0);
  TM_TRY(tm_infer_want(c, 0, TM_WANT_NUMBER));
  if (s.rank < 1) return tm_fail(c->err, TM_EINVAL, "x is a scalar");
  int64_t *last = &s.dim[s.rank - 1];
  if (k < 0 || (*last >= 0 && k > *last))
    return tm_fail(c->err, TM_EINVAL,
                   "k is %" PRId64 ", but the last axis of x has size %" PRId64, k,
                   *last);
  *last = k;
  TM_TRY(tm_infer_out(c, c->in[0].dtype, &s));
  return tm_infer_out(c, TM_I64, &s);
}

static size_t top_k_scratch(const tm_kctx *c) {
  const tm_shape *s = &c->in[0].shape;
  return sort_scratch_of(&c->in[0], s->dim[s->rank - 1]);
}

static tm_status top_k_kernel(tm_kctx *c) {
  struct sort_work w;
  int64_t k = tm_at_int(c->attrs, 0), *index = c->out[1].data;
  size_t elem = tm_dtype_size(c->in[0].dtype);
  char *value = c->out[0].data;
  sort_begin(&w, c, c->in[0].shape.rank - 1, true);
  for (int64_t r = 0; r < w.rows; r++) {
    sort_next(&w, r);
    for (int64_t i = 0; i < k; i++, value += elem) {
      *index++ = w.at[i] - r * w.n;
      memcpy(value, (const char *)w.x.data + (size_t)w.at[i] * elem, elem);
    }
  }
  return TM_OK;
}

static tm_status top_k_grad(tm_gctx *c) {
  if (!c->dout[0]) return TM_OK;
  return tm_g_set(c, 0, sort_put(c, c->out[1], -1));
}

/* --- in_top_k(targets, predictions; k) --- */

static tm_status in_top_k_infer(tm_infer *c) {
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_FLOAT));
  TM_TRY(tm_infer_rank(c, 1, 2));
  TM_TRY(tm_infer_rank(c, 0, 1));
  int64_t a = c->in[0].shape.dim[0], b = c->in[1].shape.dim[0];
  if (a >= 0 && b >= 0 && a != b)
    return tm_fail(c->err, TM_EINVAL,
                   "%" PRId64 " targets for %" PRId64 " rows of predictions", a, b);
  return tm_infer_out(c, TM_BOOL, &c->in[0].shape);
}

/* Fewer than k predictions are greater than that of the target, which is finite. */
static tm_status in_top_k_kernel(tm_kctx *c) {
  int64_t rows = c->in[1].shape.dim[0], n = c->in[1].shape.dim[1];
  uint8_t *o = c->out[0].data;
  for (int64_t r = 0; r < rows; r++) {
    int64_t t = tm_view_get_i64(&c->in[0], r), more = 0;
    o[r] = 0;
    if (t < 0 || t >= n) continue;
    double x = tm_view_get_f64(&c->in[1], r * n + t);
    for (int64_t i = 0; i < n; i++) more += tm_view_get_f64(&c->in[1], r * n + i) > x;
    o[r] = isfinite(x) && more < tm_at_int(c->attrs, 0);
  }
  return TM_OK;
}

/* --- bincount(x, weights?; minlength, maxlength) --- */

static tm_status bincount_infer(tm_infer *c) {
  tm_shape s = tm_shape_of(1, &(int64_t){-1});
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  if (c->nin > 1) {
    TM_TRY(tm_infer_want(c, 1, TM_WANT_FLOAT));
    TM_TRY(tm_infer_same_shape(c, 0, 1));
  }
  if (tm_at_int(c->attrs, 0) < 0 ||
      (tm_at_has(c->attrs, 1) && tm_at_int(c->attrs, 1) < 0))
    return tm_fail(c->err, TM_EINVAL, "a length is negative");
  return tm_infer_out(c, c->nin > 1 ? c->in[1].dtype : TM_I64, &s);
}

static void bincount_add(tm_kctx *c, int64_t id, int64_t i) {
  if (c->nin == 1)
    ((int64_t *)c->out[0].data)[id]++;
  else if (c->out[0].dtype == TM_F32)
    ((float *)c->out[0].data)[id] += ((const float *)c->in[1].data)[i];
  else
    ((double *)c->out[0].data)[id] += ((const double *)c->in[1].data)[i];
}

static tm_status bincount_kernel(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]), length = tm_at_int(c->attrs, 0);
  for (int64_t i = 0; i < n; i++) {
    int64_t id = tm_view_get_i64(&c->in[0], i);
    if (id < 0 || id == INT64_MAX)
      return tm_fail(c->err, TM_EINVAL, "x has %" PRId64 " at position %" PRId64, id,
                     i + 1);
    if (id >= length) length = id + 1;
  }
  if (tm_at_has(c->attrs, 1) && length > tm_at_int(c->attrs, 1))
    length = tm_at_int(c->attrs, 1);
  tm_shape s = tm_shape_of(1, &length);
  TM_TRY(tm_kctx_make(c, 0, c->nin > 1 ? c->in[1].dtype : TM_I64, &s));
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  for (int64_t i = 0; i < n; i++) {
    int64_t id = tm_view_get_i64(&c->in[0], i);
    if (id < length) bincount_add(c, id, i);
  }
  return TM_OK;
}

static const tm_op sort_ops[] = {
    {.name = "sort",
     .sig = "x; axis:axis=-1, direction:str=ASCENDING",
     .help = "x in order along an axis.",
     .infer = sort_infer,
     .kernel = sort_kernel,
     .grad = sort_grad,
     .scratch = sort_scratch},
    {.name = "argsort",
     .sig = "x; axis:axis=-1, direction:str=ASCENDING",
     .help = "The positions (0-based) that put x in order along an axis.",
     .infer = argsort_infer,
     .kernel = argsort_kernel,
     .scratch = sort_scratch},
    {.name = "put_along",
     .sig = "dy, at, like; axis:axis",
     .help = "Zeros like `like` with dy at positions along an axis.",
     .flags = TM_OP_HIDDEN,
     .infer = put_infer,
     .kernel = put_kernel},
    {.name = "top_k",
     .sig = "x; k:int=1",
     .help = "The k largest elements along the last axis, and their positions "
             "(0-based).",
     .infer = top_k_infer,
     .kernel = top_k_kernel,
     .grad = top_k_grad,
     .scratch = top_k_scratch},
    {.name = "nn.in_top_k",
     .sig = "targets, predictions; k:int",
     .help = "Whether the target of each row (0-based) is among its k largest "
             "predictions.",
     .infer = in_top_k_infer,
     .kernel = in_top_k_kernel},
    {.name = "bincount",
     .sig = "x, weights?; minlength:int=0, maxlength:int?",
     .help = "How often each number from 0 on is in x, or the sum of its weights.",
     .flags = TM_OP_DYNAMIC,
     .infer = bincount_infer,
     .kernel = bincount_kernel},
};

const tm_op_group tm_ops_sort = {sort_ops, TM_COUNT(sort_ops)};
