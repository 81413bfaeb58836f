#include "base/map.h"
#include "base/mem.h"
#include "data/node.h"
#include "data/source.h"
#include "tensor/codec.h"

/*
 * Design.  Sources that hold or compute their elements: slices (rows of tensors),
 * tensors (one element) and range.
 *
 * Invariants:
 *   (1) A memory source's block is made once, by the constructor, and shared by all
 *       iterators: a row costs a reference.
 *   (2) range makes its numbers RANGE_ROWS at a time.
 */

/* --- slices and tensors --- */
struct memory {
  tm_dataset ds;
  tm_block *block;
};

struct memory_cursor {
  tm_cursor c;
  int64_t i; /* next row; tensors: 1 after the element */
};

static void memory_release(tm_dataset *ds) {
  tm_block_unref(((struct memory *)ds)->block);
}

static void memory_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const tm_block *b = ((const struct memory *)ds)->block;
  (void)err;
  tm_pack_array(w, (uint32_t)b->width);
  for (int32_t k = 0; k < b->width; k++) tm_pack_tensor(w, &b->t[k]->v);
}

static tm_status memory_unpack(tm_unpacker *r, bool rows, tm_dataset **out,
                               tm_err *err) {
  tm_tensor *t[TM_DATA_WIDTH];
  int32_t n = 0, want = (int32_t)tm_unpack_array(r, 1, TM_DATA_WIDTH);
  tm_status s = TM_OK;
  for (; s == TM_OK && n < want; n++)
    s = tm_unpack_tensor(r, (size_t)(r->end - r->p), &t[n], err);
  if (s == TM_OK)
    s = rows ? tm_data_slices(t, n, out, err) : tm_data_tensors(t, n, out, err);
  else
    n--; /* the last one was not made */
  while (n > 0) tm_tensor_unref(t[--n]);
  return s;
}

static tm_status slices_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                               tm_dataset **out, tm_err *err) {
  (void)in, (void)nin;
  return memory_unpack(r, true, out, err);
}

static tm_status tensors_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                                tm_dataset **out, tm_err *err) {
  (void)in, (void)nin;
  return memory_unpack(r, false, out, err);
}

static tm_status slices_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct memory_cursor *m = (struct memory_cursor *)c;
  tm_block *b = ((const struct memory *)c->ds)->block;
  (void)err;
  if (m->i >= b->nrows) return TM_ERANGE;
  *out = tm_row_of(b, m->i++);
  return TM_OK;
}

static tm_status tensors_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct memory_cursor *m = (struct memory_cursor *)c;
  (void)err;
  if (m->i > 0) return TM_ERANGE;
  m->i = 1;
  *out = tm_row_of(((const struct memory *)c->ds)->block, TM_ROW_WHOLE);
  return TM_OK;
}

static tm_status memory_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct memory_cursor *m = (struct memory_cursor *)c;
  int64_t left = c->ds->card - m->i;
  (void)err;
  *done = n < left ? n : left;
  m->i += *done;
  return *done == n ? TM_OK : TM_ERANGE;
}

enum { MARK_BYTES = 4096, MARK_TEXTS = 64 }; /* looked at, at either end */

static uint64_t memory_mark_texts(const tm_view *v, uint64_t h) {
  const tm_str *s = v->data;
  int64_t n = tm_view_count(v);
  for (int64_t i = 0; i < n; i++) {
    if (i == MARK_TEXTS && n > 2 * MARK_TEXTS) i = n - MARK_TEXTS;
    h = tm_hash64(s[i].n ? s[i].p : "", s[i].n, h);
  }
  return h;
}

/* Types, and the beginning and the end of each tensor. */
static uint64_t memory_mark(const tm_dataset *ds) {
  const tm_block *b = ((const struct memory *)ds)->block;
  uint64_t h = (uint64_t)b->width;
  for (int32_t k = 0; k < b->width; k++) {
    const tm_view *v = &b->t[k]->v;
    size_t n = tm_view_bytes(v), part = n < MARK_BYTES ? n : MARK_BYTES;
    h = tm_hash64(v->shape.dim, (size_t)v->shape.rank * sizeof v->shape.dim[0],
                  h + (uint64_t)v->dtype);
    if (v->dtype == TM_STRING) {
      h = memory_mark_texts(v, h);
    } else if (n) {
      h = tm_hash64(v->data, part, h);
      h = tm_hash64((const char *)v->data + n - part, part, h);
    }
  }
  return h;
}

static void memory_reset(tm_cursor *c, bool fresh) {
  (void)fresh;
  ((struct memory_cursor *)c)->i = 0;
}

const tm_data_class tm_class_slices = {
    .name = "from_tensor_slices",
    .code = 1,
    .size = sizeof(struct memory),
    .cursor_size = sizeof(struct memory_cursor),
    .release = memory_release,
    .pack = memory_pack,
    .unpack = slices_unpack,
    .next = slices_next,
    .pass = memory_pass,
    .mark = memory_mark,
    .reset = memory_reset,
};

const tm_data_class tm_class_tensors = {
    .name = "from_tensors",
    .code = 2,
    .size = sizeof(struct memory),
    .cursor_size = sizeof(struct memory_cursor),
    .release = memory_release,
    .pack = memory_pack,
    .unpack = tensors_unpack,
    .next = tensors_next,
    .pass = memory_pass,
    .mark = memory_mark,
    .reset = memory_reset,
};

static tm_status memory_make(const tm_data_class *k, tm_tensor *const *t, int32_t n,
                             int64_t nrows, tm_dataset **out, tm_err *err) {
  TM_TRY(tm_dataset_make(k, NULL, 0, n, out, err));
  tm_block *b;
  if (tm_block_new(n, nrows, &b) != TM_OK) {
    tm_dataset_unref(*out);
    *out = NULL;
    return tm_nomem(err, k->name);
  }
  ((struct memory *)*out)->block = b;
  bool rows = nrows != TM_ROW_WHOLE;
  for (int32_t i = 0; i < n; i++) {
    const tm_view *v = &t[i]->v;
    b->t[i] = tm_tensor_ref(t[i]);
    (*out)->types[i].dtype = v->dtype;
    (*out)->types[i].shape =
        rows ? tm_shape_of(v->shape.rank - 1, v->shape.dim + 1) : v->shape;
  }
  (*out)->card = rows ? nrows : 1;
  return TM_OK;
}

tm_status tm_data_slices(tm_tensor *const *t, int32_t n, tm_dataset **out,
                         tm_err *err) {
  *out = NULL;
  for (int32_t i = 0; i < n; i++) {
    const tm_shape *s = &t[i]->v.shape;
    if (s->rank == 0)
      return tm_fail(err, TM_EINVAL,
                     "from_tensor_slices: component %d is a scalar and has no rows; "
                     "use from_tensors",
                     i + 1);
    if (s->dim[0] != t[0]->v.shape.dim[0])
      return tm_fail(err, TM_EINVAL,
                     "from_tensor_slices: component %d has %lld rows, component 1 has "
                     "%lld",
                     i + 1, (long long)s->dim[0], (long long)t[0]->v.shape.dim[0]);
  }
  return memory_make(&tm_class_slices, t, n, n > 0 ? t[0]->v.shape.dim[0] : 0, out,
                     err);
}

tm_status tm_data_tensors(tm_tensor *const *t, int32_t n, tm_dataset **out,
                          tm_err *err) {
  return memory_make(&tm_class_tensors, t, n, TM_ROW_WHOLE, out, err);
}

/* --- range --- */
enum { RANGE_ROWS = 256 };

struct range {
  tm_dataset ds;
  int64_t start, stop, step;
};

struct range_cursor {
  tm_cursor c;
  int64_t done; /* numbers in blocks so far */
  tm_block *block;
  int64_t i; /* next row of block */
};

static void range_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const struct range *g = (const struct range *)ds;
  (void)err;
  tm_pack_i64s(w, (int64_t[]){g->start, g->stop, g->step}, 3);
}

static tm_status range_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                              tm_dataset **out, tm_err *err) {
  int64_t v[3] = {0, 0, 0};
  (void)in, (void)nin;
  if (tm_unpack_i64s(r, v, 3) != 3)
    return tm_fail(err, TM_EINVAL, "range: malformed parameters");
  return tm_data_range(v[0], v[1], v[2], out, err);
}

/* The next RANGE_ROWS numbers. */
static tm_status range_fill(struct range_cursor *c, tm_err *err) {
  const struct range *g = (const struct range *)c->c.ds;
  int64_t n = g->ds.card - c->done;
  if (n > RANGE_ROWS) n = RANGE_ROWS;
  tm_block_unref(c->block);
  c->block = NULL;
  tm_shape shape = tm_shape_of(1, &n);
  tm_block *b;
  if (tm_block_new(1, n, &b) != TM_OK) return tm_nomem(err, "range");
  tm_status s = tm_tensor_new(TM_I64, &shape, &b->t[0], err);
  if (s != TM_OK) {
    tm_block_unref(b);
    return s;
  }
  int64_t *x = b->t[0]->v.data;
  /* Unsigned: the product cannot leave start..stop, but its parts may wrap. */
  for (int64_t i = 0; i < n; i++)
    x[i] = (int64_t)((uint64_t)g->start + (uint64_t)(c->done + i) * (uint64_t)g->step);
  c->block = b;
  c->done += n;
  c->i = 0;
  return TM_OK;
}

static tm_status range_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct range_cursor *r = (struct range_cursor *)c;
  if (!r->block || r->i == r->block->nrows) {
    if (r->done == c->ds->card) return TM_ERANGE;
    TM_TRY(range_fill(r, err));
  }
  *out = tm_row_of(r->block, r->i++);
  return TM_OK;
}

static tm_status range_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct range_cursor *r = (struct range_cursor *)c;
  int64_t at = r->done - (r->block ? r->block->nrows - r->i : 0);
  int64_t left = c->ds->card - at;
  (void)err;
  *done = n < left ? n : left;
  tm_block_unref(r->block);
  r->block = NULL;
  r->done = at + *done;
  return *done == n ? TM_OK : TM_ERANGE;
}

static void range_reset(tm_cursor *c, bool fresh) {
  struct range_cursor *r = (struct range_cursor *)c;
  (void)fresh;
  tm_block_unref(r->block);
  r->block = NULL;
  r->done = 0;
}

static void range_close(tm_cursor *c) { range_reset(c, true); }

const tm_data_class tm_class_range = {
    .name = "range",
    .code = 3,
    .size = sizeof(struct range),
    .cursor_size = sizeof(struct range_cursor),
    .pack = range_pack,
    .unpack = range_unpack,
    .next = range_next,
    .pass = range_pass,
    .reset = range_reset,
    .close = range_close,
};

tm_status tm_data_range(int64_t start, int64_t stop, int64_t step, tm_dataset **out,
                        tm_err *err) {
  *out = NULL;
  if (step == 0) return tm_fail(err, TM_EINVAL, "range: step is 0");
  uint64_t span = 0, by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
  if (step > 0 && stop > start) span = (uint64_t)stop - (uint64_t)start;
  if (step < 0 && stop < start) span = (uint64_t)start - (uint64_t)stop;
  uint64_t count = span / by + (span % by != 0);
  if (count > INT64_MAX) return tm_fail(err, TM_EINVAL, "range: too many numbers");
  TM_TRY(tm_dataset_make(&tm_class_range, NULL, 0, 1, out, err));
  struct range *g = (struct range *)*out;
  g->start = start;
  g->stop = stop;
  g->step = step;
  g->ds.card = (int64_t)count;
  g->ds.types[0] = (tm_type){TM_I64, tm_shape_scalar()};
  return TM_OK;
}
