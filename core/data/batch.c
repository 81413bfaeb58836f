#include <string.h>

#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  batch collects rows and stacks each tensor in one go; unbatch hands out
 * the rows of a batch, which costs nothing but a block for it.
 *
 * Invariants:
 *   (1) A batch cursor holds rows only while it makes an element.  An error of one
 *       of its elements drops what was collected: the batch that it belongs to is
 *       the element that failed.
 */
struct batch {
  tm_dataset ds;
  int64_t n;
  bool drop;
};

struct batch_cursor {
  tm_cursor c;
  tm_row *row;
  size_t cap;
  bool end;
};

static void batch_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const struct batch *b = (const struct batch *)ds;
  (void)err;
  tm_pack_array(w, 2);
  tm_pack_int(w, b->n);
  tm_pack_bool(w, b->drop);
}

static tm_status batch_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                              tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_array(r, 2, 2);
  int64_t n = tm_unpack_int(r);
  bool drop = tm_unpack_bool(r);
  return tm_data_batch(in[0], n, drop, out, err);
}

static tm_status batch_room(struct batch_cursor *k, size_t n, int64_t most,
                            tm_err *err) {
  if (n < k->cap) return TM_OK;
  size_t cap = k->cap ? 2 * k->cap : 64;
  if (cap > (uint64_t)most) cap = (size_t)most;
  void *p = tm_realloc(k->row, k->cap * sizeof *k->row, cap * sizeof *k->row);
  if (!p) return tm_nomem(err, "batch");
  k->row = p;
  k->cap = cap;
  return TM_OK;
}

static void batch_drop(struct batch_cursor *k, size_t n) {
  while (n > 0) tm_row_release(&k->row[--n]);
}

/* Up to `most` rows; fewer at the end of the input. */
static tm_status batch_collect(struct batch_cursor *k, int64_t most, size_t *n,
                               tm_err *err) {
  tm_status s = TM_OK;
  *n = 0;
  while (!k->end && *n < (uint64_t)most) {
    s = tm_cancelled(k->c.cancel) ? tm_fail(err, TM_ECANCELLED, "batch: cancelled")
                                  : batch_room(k, *n, most, err);
    if (s == TM_OK) s = tm_cursor_next(k->c.in[0], &k->row[*n], err);
    if (s == TM_ERANGE)
      k->end = true;
    else if (s != TM_OK)
      break;
    else
      ++*n;
  }
  if (k->end || s == TM_OK) return TM_OK;
  batch_drop(k, *n);
  *n = 0;
  return s;
}

static tm_status batch_stack(struct batch_cursor *k, size_t n, tm_row *out,
                             tm_err *err) {
  tm_block *b = NULL;
  tm_status s = tm_block_new(k->c.ds->width, TM_ROW_WHOLE, &b);
  if (s != TM_OK) return tm_nomem(err, "batch");
  for (int32_t i = 0; s == TM_OK && i < k->c.ds->width; i++)
    s = tm_rows_stack(k->row, (int64_t)n, i, &b->t[i], err);
  if (s == TM_OK)
    *out = (tm_row){b, TM_ROW_WHOLE};
  else
    tm_block_unref(b);
  return s;
}

static tm_status batch_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct batch_cursor *k = (struct batch_cursor *)c;
  const struct batch *d = (const struct batch *)c->ds;
  size_t n;
  TM_TRY(batch_collect(k, d->n, &n, err));
  tm_status s = TM_ERANGE;
  if (n > 0 && !(d->drop && n < (uint64_t)d->n)) s = batch_stack(k, n, out, err);
  batch_drop(k, n);
  return s;
}

static tm_status batch_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct batch_cursor *k = (struct batch_cursor *)c;
  const struct batch *d = (const struct batch *)c->ds;
  int64_t want, got;
  if (k->end) return TM_ERANGE;
  if (!tm_mul_i64(n, d->n, &want)) want = INT64_MAX;
  tm_status s = tm_cursor_pass(c->in[0], want, &got, err);
  *done = got / d->n;
  if (s != TM_ERANGE) return s;
  k->end = true;
  if (got % d->n && !d->drop) ++*done;
  return *done == n ? TM_OK : TM_ERANGE;
}

static void batch_reset(tm_cursor *c, bool fresh) {
  ((struct batch_cursor *)c)->end = false;
  tm_cursor_reset(c->in[0], fresh);
}

static void batch_close(tm_cursor *c) {
  struct batch_cursor *k = (struct batch_cursor *)c;
  if (k->cap) tm_free(k->row, k->cap * sizeof *k->row);
}

static const char *batch_name(const tm_dataset *ds, int32_t i) {
  return tm_dataset_name(ds->in[0], i);
}

const tm_data_class tm_class_batch = {
    .name = "batch",
    .code = 13,
    .nin = 1,
    .size = sizeof(struct batch),
    .cursor_size = sizeof(struct batch_cursor),
    .name_of = batch_name,
    .pack = batch_pack,
    .unpack = batch_unpack,
    .next = batch_next,
    .pass = batch_pass,
    .reset = batch_reset,
    .close = batch_close,
};

static int64_t batch_card(int64_t card, int64_t n, bool drop) {
  return card < 0 ? card : card / n + (!drop && card % n != 0);
}

tm_status tm_data_batch(tm_dataset *in, int64_t n, bool drop_remainder,
                        tm_dataset **out, tm_err *err) {
  *out = NULL;
  if (n < 1)
    return tm_fail(err, TM_EINVAL, "batch: size is %lld, must be at least 1",
                   (long long)n);
  for (int32_t i = 0; i < in->width; i++)
    if (in->types[i].shape.rank >= TM_MAX_RANK)
      return tm_fail(err, TM_EINVAL, "batch: component %d has %d axes already", i + 1,
                     TM_MAX_RANK);
  TM_TRY(tm_dataset_make(&tm_class_batch, &in, 1, in->width, out, err));
  struct batch *b = (struct batch *)*out;
  b->n = n;
  b->drop = drop_remainder;
  b->ds.card = batch_card(in->card, n, drop_remainder);
  for (int32_t i = 0; i < in->width; i++) {
    const tm_shape *s = &in->types[i].shape;
    tm_type *t = &b->ds.types[i];
    t->dtype = in->types[i].dtype;
    t->shape.rank = s->rank + 1;
    t->shape.dim[0] = drop_remainder ? n : -1;
    memcpy(t->shape.dim + 1, s->dim, (size_t)s->rank * sizeof s->dim[0]);
  }
  return TM_OK;
}

/* --- unbatch --- */
struct unbatch_cursor {
  tm_cursor c;
  tm_block *block; /* a batch as rows */
  int64_t i;
};

static tm_status unbatch_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                                tm_dataset **out, tm_err *err) {
  (void)nin;
  tm_unpack_nil(r);
  return tm_data_unbatch(in[0], out, err);
}

static tm_status unbatch_check(const tm_block *b, tm_err *err) {
  for (int32_t i = 0; i < b->width; i++) {
    const tm_shape *s = &b->t[i]->v.shape;
    if (s->rank == 0 || s->dim[0] != b->t[0]->v.shape.dim[0])
      return tm_fail(err, TM_EINVAL,
                     "unbatch: component %d has another number of rows than the first",
                     i + 1);
  }
  return TM_OK;
}

/* Take the next element apart: its tensors become a block of rows. */
static tm_status unbatch_open_next(struct unbatch_cursor *k, tm_err *err) {
  tm_row r = {NULL, 0};
  tm_block_unref(k->block);
  k->block = NULL;
  TM_TRY(tm_cursor_next(k->c.in[0], &r, err));
  tm_block *b = NULL;
  tm_status s = tm_block_new(k->c.ds->width, 0, &b);
  for (int32_t i = 0; s == TM_OK && i < k->c.ds->width; i++)
    s = tm_row_tensor(&r, i, &b->t[i]);
  tm_row_release(&r);
  s = s == TM_OK ? unbatch_check(b, err) : tm_nomem(err, "unbatch");
  if (s != TM_OK) {
    tm_block_unref(b);
    return s;
  }
  b->nrows = b->t[0]->v.shape.dim[0];
  k->block = b;
  k->i = 0;
  return TM_OK;
}

static tm_status unbatch_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct unbatch_cursor *k = (struct unbatch_cursor *)c;
  while (!k->block || k->i == k->block->nrows) TM_TRY(unbatch_open_next(k, err));
  *out = tm_row_of(k->block, k->i++);
  return TM_OK;
}

static tm_status unbatch_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct unbatch_cursor *k = (struct unbatch_cursor *)c;
  for (*done = 0; *done < n;) {
    while (!k->block || k->i == k->block->nrows) TM_TRY(unbatch_open_next(k, err));
    int64_t left = k->block->nrows - k->i, step = n - *done < left ? n - *done : left;
    k->i += step;
    *done += step;
  }
  return TM_OK;
}

static void unbatch_close(tm_cursor *c) {
  struct unbatch_cursor *k = (struct unbatch_cursor *)c;
  tm_block_unref(k->block);
  k->block = NULL;
}

static void unbatch_reset(tm_cursor *c, bool fresh) {
  unbatch_close(c);
  tm_cursor_reset(c->in[0], fresh);
}

const tm_data_class tm_class_unbatch = {
    .name = "unbatch",
    .code = 14,
    .nin = 1,
    .size = sizeof(tm_dataset),
    .cursor_size = sizeof(struct unbatch_cursor),
    .name_of = batch_name,
    .unpack = unbatch_unpack,
    .next = unbatch_next,
    .pass = unbatch_pass,
    .reset = unbatch_reset,
    .close = unbatch_close,
};

/* Known when every element has the same number of rows. */
static int64_t unbatch_card(const tm_dataset *in) {
  int64_t rows = in->types[0].shape.dim[0], n;
  if (in->card == TM_DATA_INFINITE && rows != 0) return TM_DATA_INFINITE;
  if (in->card < 0 || rows < 0 || !tm_mul_i64(in->card, rows, &n))
    return TM_DATA_UNKNOWN;
  return n;
}

tm_status tm_data_unbatch(tm_dataset *in, tm_dataset **out, tm_err *err) {
  *out = NULL;
  for (int32_t i = 0; i < in->width; i++)
    if (in->types[i].shape.rank == 0)
      return tm_fail(err, TM_EINVAL, "unbatch: component %d is a scalar", i + 1);
  TM_TRY(tm_dataset_make(&tm_class_unbatch, &in, 1, in->width, out, err));
  for (int32_t i = 0; i < in->width; i++) {
    const tm_shape *s = &in->types[i].shape;
    (*out)->types[i].dtype = in->types[i].dtype;
    (*out)->types[i].shape = tm_shape_of(s->rank - 1, s->dim + 1);
  }
  (*out)->card = unbatch_card(in);
  return TM_OK;
}
