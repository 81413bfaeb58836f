#include "data/block.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.
 *
 * Invariants:
 *   (1) All tensors of a block with rows have a first axis of at least nrows.
 *   (2) A tm_row's i is TM_ROW_WHOLE exactly when its block's nrows is.
 *
 * Stacking looks up a tensor once per run of rows from one block, so the loop over
 * shuffled rows of a memory source is a pointer addition and a copy.
 */

static size_t block_size(int32_t width) {
  return sizeof(tm_block) + (size_t)width * sizeof(tm_tensor *);
}

tm_status tm_block_new(int32_t width, int64_t nrows, tm_block **out) {
  *out = tm_calloc(1, block_size(width));
  if (!*out) return TM_ENOMEM;
  atomic_init(&(*out)->refs, 1);
  (*out)->width = width;
  (*out)->nrows = nrows;
  return TM_OK;
}

tm_block *tm_block_ref(tm_block *b) {
  atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
  return b;
}

void tm_block_unref(tm_block *b) {
  if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
  for (int32_t k = 0; k < b->width; k++) tm_tensor_unref(b->t[k]);
  tm_free(b, block_size(b->width));
}

void tm_row_release(tm_row *r) {
  tm_block_unref(r->b);
  r->b = NULL;
}

tm_row tm_row_of(tm_block *b, int64_t i) {
  TM_DCHECK((i == TM_ROW_WHOLE) == (b->nrows == TM_ROW_WHOLE)); /* (2) */
  return (tm_row){tm_block_ref(b), i};
}

tm_view tm_row_view(const tm_row *r, int32_t k) {
  tm_view v = r->b->t[k]->v;
  if (r->i == TM_ROW_WHOLE) return v;
  TM_DCHECK(v.shape.rank > 0 && r->i < v.shape.dim[0]); /* (1) */
  v.shape = tm_shape_of(v.shape.rank - 1, v.shape.dim + 1);
  v.data = (char *)v.data + (size_t)r->i * tm_view_bytes(&v);
  return v;
}

tm_status tm_row_tensor(const tm_row *r, int32_t k, tm_tensor **out) {
  tm_tensor *t = r->b->t[k];
  if (r->i == TM_ROW_WHOLE) {
    *out = tm_tensor_ref(t);
    return TM_OK;
  }
  tm_view v = tm_row_view(r, k);
  return tm_tensor_over(t->storage, v.dtype, &v.shape, v.data, out);
}

/* Where the rows are: the first one's view, and how they lie. */
typedef struct row_run {
  tm_view first;
  size_t bytes;    /* of one row */
  bool one_block;  /* all rows are of one block */
  bool neighbours; /* ... and follow each other in it */
} row_run;

static tm_status rows_differ(const tm_view *a, const tm_view *b, int64_t i, int32_t k,
                             tm_err *err) {
  char x[128], y[128];
  return tm_fail(err, TM_EINVAL,
                 "batch: component %d of element %lld of the batch has shape %s, of "
                 "the first %s; make them equal in map",
                 k + 1, (long long)(i + 1), tm_shape_text(&b->shape, x, sizeof x),
                 tm_shape_text(&a->shape, y, sizeof y));
}

static tm_status rows_survey(const tm_row *r, int64_t n, int32_t k, row_run *s,
                             tm_err *err) {
  s->first = tm_row_view(&r[0], k);
  s->bytes = tm_view_bytes(&s->first);
  s->one_block = true;
  s->neighbours = r[0].i != TM_ROW_WHOLE;
  for (int64_t i = 1; i < n; i++) {
    if (r[i].i != r[i - 1].i + 1) s->neighbours = false;
    if (r[i].b == r[i - 1].b) continue;
    s->one_block = s->neighbours = false;
    tm_view v = tm_row_view(&r[i], k);
    if (!tm_shape_equal(&v.shape, &s->first.shape))
      return rows_differ(&s->first, &v, i, k, err);
  }
  return TM_OK;
}

/* Copy the n rows, each of `bytes` bytes, one after the other. */
static void rows_copy(char *dst, const tm_row *r, int64_t n, int32_t k, size_t bytes) {
  for (int64_t i = 0; i < n; i++, dst += bytes) {
    const char *src = r[i].b->t[k]->v.data;
    if (r[i].i != TM_ROW_WHOLE) src += (size_t)r[i].i * bytes;
    memcpy(dst, src, bytes);
  }
}

/* Strings of one block keep its storage; of several their bytes are copied. */
static tm_status rows_stack_strings(const tm_row *r, int64_t n, int32_t k,
                                    const row_run *s, const tm_shape *shape,
                                    tm_tensor **out, tm_err *err) {
  if (s->one_block) {
    TM_TRY(tm_tensor_new(TM_STRING, shape, out, err));
    rows_copy((*out)->v.data, r, n, k, s->bytes);
    (*out)->storage->keep = tm_storage_ref(r[0].b->t[k]->storage);
    return TM_OK;
  }
  size_t size = (size_t)n * s->bytes;
  tm_str *all = tm_malloc(size);
  if (!all) return tm_nomem(err, "batch");
  rows_copy((char *)all, r, n, k, s->bytes);
  tm_status st = tm_tensor_strings(shape, all, out, err);
  tm_free(all, size);
  return st;
}

tm_status tm_rows_stack(const tm_row *r, int64_t n, int32_t k, tm_tensor **out,
                        tm_err *err) {
  row_run s;
  *out = NULL;
  TM_TRY(rows_survey(r, n, k, &s, err));
  if (s.neighbours) return tm_tensor_rows(r[0].b->t[k], r[0].i, n, out, err);
  if (s.first.shape.rank >= TM_MAX_RANK)
    return tm_fail(err, TM_EINVAL, "batch: tensors have at most %d axes", TM_MAX_RANK);
  tm_shape shape = {s.first.shape.rank + 1, {n}};
  memcpy(shape.dim + 1, s.first.shape.dim,
         (size_t)s.first.shape.rank * sizeof shape.dim[0]);
  TM_TRY(tm_shape_check(&shape, (int64_t)tm_dtype_size(s.first.dtype), err));
  if (s.bytes == 0) return tm_tensor_new(s.first.dtype, &shape, out, err);
  if (s.first.dtype == TM_STRING)
    return rows_stack_strings(r, n, k, &s, &shape, out, err);
  TM_TRY(tm_tensor_new(s.first.dtype, &shape, out, err));
  rows_copy((*out)->v.data, r, n, k, s.bytes);
  return TM_OK;
}
