#include <string.h>

#include "base/mem.h"
#include "data/node.h"
#include "data/reader.h"
#include "data/source.h"

/*
 * Design.  An idx file is 0 0 TYPE RANK, RANK big-endian sizes, then the elements,
 * big-endian too.  A stream is a list of such files read as one, row by row; the
 * source reads images and labels side by side, a block of up to IDX_ROWS rows and
 * IDX_BLOCK bytes at a time (one row at least).
 *
 * Invariants:
 *   (1) Both streams have `card` rows; headers are checked when the source is made
 *       and again when a file is opened, which may be elsewhere and later.
 *   (2) A row has at most IDX_ROW bytes: a header claims no memory beyond that.
 *   (3) An error is given once the rows before it were given; the data end after it:
 *       behind a broken record there is no next one to find.
 */
enum { IDX_ROWS = 16, IDX_BLOCK = 1 << 20, IDX_ROW = 1 << 26 };

struct idx_stream {
  tm_files files;
  tm_type row; /* of one row */
};

struct idx {
  tm_dataset ds;
  int32_t n;    /* streams: images, labels */
  int64_t rows; /* of a block, 1..IDX_ROWS */
  struct idx_stream stream[2];
};

struct idx_place {
  tm_reader *r;
  size_t file;  /* next to open */
  int64_t left; /* rows of the open file */
  int64_t row;  /* rows given, of all files */
};

struct idx_cursor {
  tm_cursor c;
  struct idx_place at[2];
  tm_block *block;
  int64_t i, done; /* row of block; rows in blocks so far */
  bool end;
};

/* --- header --- */
static tm_dtype idx_dtype(uint8_t code) {
  switch (code) {
    case 0x08:
      return TM_U8;
    case 0x0c:
      return TM_I32;
    case 0x0d:
      return TM_F32;
    case 0x0e:
      return TM_F64;
    default:
      return TM_DTYPE_NONE;
  }
}

static tm_status idx_short(const tm_reader *r, tm_status s, tm_err *err) {
  if (s != TM_OK) return s;
  return tm_fail(err, TM_EDATALOSS, "idx: %s ends within its header",
                 tm_reader_path(r));
}

static tm_status idx_row_check(const tm_type *row, tm_err *err) {
  TM_TRY(tm_shape_check(&row->shape, (int64_t)tm_dtype_size(row->dtype), err));
  tm_view v = {row->dtype, row->shape, NULL};
  if (tm_view_bytes(&v) <= IDX_ROW) return TM_OK;
  return tm_fail(err, TM_EINVAL, "a row has %zu bytes, more than %d", tm_view_bytes(&v),
                 IDX_ROW);
}

/* Read the header: rows and the type of a row. */
static tm_status idx_header(tm_reader *r, int64_t *rows, tm_type *row, tm_err *err) {
  uint8_t h[4 + 4 * TM_MAX_RANK];
  size_t got;
  tm_status s = tm_reader_bytes(r, h, 4, &got, err);
  if (s != TM_OK || got < 4) return idx_short(r, s, err);
  row->dtype = idx_dtype(h[2]);
  if (h[0] || h[1] || h[3] < 1 || h[3] > TM_MAX_RANK)
    return tm_fail(err, TM_EINVAL, "idx: %s is not an idx file", tm_reader_path(r));
  if (row->dtype == TM_DTYPE_NONE)
    return tm_fail(err, TM_EUNIMPL, "idx: %s has elements of type 0x%02x",
                   tm_reader_path(r), h[2]);
  s = tm_reader_bytes(r, h + 4, 4u * h[3], &got, err);
  if (s != TM_OK || got < 4u * h[3]) return idx_short(r, s, err);
  int64_t dim[TM_MAX_RANK];
  for (int i = 0; i < h[3]; i++) {
    const uint8_t *p = h + 4 + 4 * i;
    dim[i] = (int64_t)p[0] << 24 | (int64_t)p[1] << 16 | (int64_t)p[2] << 8 | p[3];
  }
  *rows = dim[0];
  row->shape = tm_shape_of(h[3] - 1, dim + 1);
  s = idx_row_check(row, err);
  return s == TM_OK ? s : tm_err_prefix(err, s, "idx: %s", tm_reader_path(r));
}

/* Headers of all files: rows in all, and that they are of one kind. */
static tm_status idx_survey(struct idx_stream *t, int64_t *rows, tm_err *err) {
  *rows = 0;
  for (size_t i = 0; i < t->files.n; i++) {
    tm_reader *r;
    tm_type row;
    int64_t n = 0;
    TM_TRY(tm_reader_open(t->files.name[i], t->files.compression, &r, err));
    tm_status s = idx_header(r, &n, &row, err);
    tm_reader_close(r);
    TM_TRY(s);
    if (i == 0) t->row = row;
    if (row.dtype != t->row.dtype || !tm_shape_equal(&row.shape, &t->row.shape))
      return tm_fail(err, TM_EINVAL, "idx: %s has rows of another kind than %s",
                     t->files.name[i], t->files.name[0]);
    *rows += n; /* at most 2^16 files of 2^32 rows */
  }
  return TM_OK;
}

/* --- reading --- */
static tm_status idx_open_next(const struct idx_stream *t, struct idx_place *at,
                               tm_err *err) {
  tm_type row;
  tm_reader_close(at->r);
  at->r = NULL;
  if (at->file == t->files.n)
    return tm_fail(err, TM_EDATALOSS, "idx: %s ends after %lld rows",
                   t->files.name[t->files.n - 1], (long long)at->row);
  TM_TRY(tm_reader_open(t->files.name[at->file], t->files.compression, &at->r, err));
  at->file++;
  TM_TRY(idx_header(at->r, &at->left, &row, err));
  if (row.dtype == t->row.dtype && tm_shape_equal(&row.shape, &t->row.shape))
    return TM_OK;
  return tm_fail(err, TM_EDATALOSS, "idx: %s is not what it was when described",
                 tm_reader_path(at->r));
}

static void idx_to_host(tm_dtype dtype, void *data, size_t bytes) {
  size_t size = tm_dtype_size(dtype);
  const uint16_t probe = 1;
  if (size == 1 || *(const uint8_t *)&probe == 0) return;
  for (uint8_t *p = data, *end = p + bytes; p < end; p += size)
    for (size_t a = 0, b = size - 1; a < b; a++, b--) {
      uint8_t x = p[a];
      p[a] = p[b];
      p[b] = x;
    }
}

/* n rows into data; *got rows are whole when it fails. */
static tm_status idx_rows(const struct idx_stream *t, struct idx_place *at, char *data,
                          int64_t n, int64_t *got, tm_err *err) {
  tm_view v = {t->row.dtype, t->row.shape, NULL};
  size_t bytes = tm_view_bytes(&v);
  for (*got = 0; *got < n;) {
    while (!at->r || at->left == 0) TM_TRY(idx_open_next(t, at, err));
    int64_t k = n - *got < at->left ? n - *got : at->left;
    size_t have = 0, want = (size_t)k * bytes;
    TM_TRY(tm_reader_bytes(at->r, data, want, &have, err));
    int64_t whole = bytes ? (int64_t)(have / bytes) : k;
    idx_to_host(t->row.dtype, data, (size_t)whole * bytes);
    data += (size_t)whole * bytes;
    *got += whole;
    at->row += whole;
    at->left -= whole;
    if (whole < k)
      return tm_fail(err, TM_EDATALOSS, "idx: %s is cut off in record %lld",
                     tm_reader_path(at->r), (long long)at->row + 1);
  }
  return TM_OK;
}

static tm_status idx_fill(struct idx_cursor *k, tm_block *b, int64_t n, tm_err *err) {
  const struct idx *d = (const struct idx *)k->c.ds;
  tm_status s = TM_OK;
  b->nrows = n;
  for (int32_t i = 0; i < d->n; i++) {
    int64_t got = 0;
    const struct idx_stream *t = &d->stream[i];
    tm_shape shape = {t->row.shape.rank + 1, {n}};
    memcpy(shape.dim + 1, t->row.shape.dim,
           (size_t)t->row.shape.rank * sizeof shape.dim[0]);
    TM_TRY(tm_tensor_new(t->row.dtype, &shape, &b->t[i], err));
    tm_status one =
        idx_rows(t, &k->at[i], b->t[i]->v.data, n, &got, s == TM_OK ? err : NULL);
    if (s == TM_OK) s = one;
    if (got < b->nrows) b->nrows = got;
  }
  return s;
}

/* The next block.  After an error the rows before it still come, then the error: the
 * failed read is simply made again, and fails again without a row. */
static tm_status idx_next_block(struct idx_cursor *k, tm_err *err) {
  int64_t n = k->c.ds->card - k->done, most = ((const struct idx *)k->c.ds)->rows;
  if (n > most) n = most;
  tm_block *b;
  if (tm_block_new(k->c.ds->width, 0, &b) != TM_OK) return tm_nomem(err, "idx");
  tm_status s = idx_fill(k, b, n, err);
  if (s != TM_OK && (s == TM_ENOMEM || b->nrows == 0)) {
    tm_block_unref(b);
    k->end = true;
    return s;
  }
  k->block = b;
  k->i = 0;
  k->done += b->nrows;
  return TM_OK;
}

static tm_status idx_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct idx_cursor *k = (struct idx_cursor *)c;
  if (!k->block || k->i == k->block->nrows) {
    tm_block_unref(k->block);
    k->block = NULL;
    if (k->end || k->done == c->ds->card) return TM_ERANGE;
    TM_TRY(idx_next_block(k, err));
  }
  *out = tm_row_of(k->block, k->i++);
  return TM_OK;
}

/* Move one stream n rows on. */
static tm_status idx_skip(const struct idx_stream *t, struct idx_place *at, int64_t n,
                          tm_err *err) {
  tm_view v = {t->row.dtype, t->row.shape, NULL};
  while (n > 0) {
    while (!at->r || at->left == 0) TM_TRY(idx_open_next(t, at, err));
    int64_t k = n < at->left ? n : at->left;
    TM_TRY(tm_reader_skip(at->r, (uint64_t)k * tm_view_bytes(&v), err));
    at->left -= k;
    at->row += k;
    n -= k;
  }
  return TM_OK;
}

static tm_status idx_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct idx_cursor *k = (struct idx_cursor *)c;
  const struct idx *d = (const struct idx *)c->ds;
  int64_t left = k->block ? k->block->nrows - k->i : 0;
  *done = n < left ? n : left;
  k->i += *done;
  if (k->end) return *done == n ? TM_OK : TM_ERANGE;
  int64_t more = n - *done, rest = c->ds->card - k->done;
  if (more > rest) more = rest;
  for (int32_t i = 0; i < d->n; i++)
    TM_TRY(idx_skip(&d->stream[i], &k->at[i], more, err));
  k->done += more;
  *done += more;
  return *done == n ? TM_OK : TM_ERANGE;
}

static void idx_reset(tm_cursor *c, bool fresh) {
  struct idx_cursor *k = (struct idx_cursor *)c;
  (void)fresh;
  for (int i = 0; i < 2; i++) {
    tm_reader_close(k->at[i].r);
    memset(&k->at[i], 0, sizeof k->at[i]);
  }
  tm_block_unref(k->block);
  k->block = NULL;
  k->done = 0;
  k->end = false;
}

static void idx_close(tm_cursor *c) { idx_reset(c, true); }

/* --- description --- */
static void idx_release(tm_dataset *ds) {
  struct idx *d = (struct idx *)ds;
  for (int32_t i = 0; i < d->n; i++) tm_files_release(&d->stream[i].files);
}

static void idx_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const struct idx *d = (const struct idx *)ds;
  (void)err;
  tm_pack_array(w, 2);
  tm_pack_int(w, ds->card);
  tm_pack_array(w, (uint32_t)d->n);
  for (int32_t i = 0; i < d->n; i++) {
    const tm_type *t = &d->stream[i].row;
    tm_pack_array(w, 3);
    tm_files_pack(&d->stream[i].files, w);
    tm_pack_int(w, t->dtype);
    tm_pack_i64s(w, t->shape.dim, (uint32_t)t->shape.rank);
  }
}

/* Takes over the streams' files, also on failure. */
static tm_status idx_make(struct idx_stream *t, int32_t n, int64_t rows,
                          tm_dataset **out, tm_err *err);

static tm_status idx_unpack_stream(tm_unpacker *r, struct idx_stream *t, tm_err *err) {
  int64_t dim[TM_MAX_RANK];
  tm_unpack_array(r, 3, 3);
  TM_TRY(tm_files_unpack(r, &t->files, err));
  int64_t dtype = tm_unpack_int(r);
  uint32_t rank = tm_unpack_i64s(r, dim, TM_MAX_RANK - 1);
  if (r->status != TM_OK || !tm_dtype_valid(dtype) || dtype == TM_STRING)
    return tm_fail(err, TM_EINVAL, "idx: malformed parameters");
  for (uint32_t i = 0; i < rank; i++)
    if (dim[i] < 0) return tm_fail(err, TM_EINVAL, "idx: malformed shape");
  t->row.dtype = (tm_dtype)dtype;
  t->row.shape = tm_shape_of((int32_t)rank, dim);
  return idx_row_check(&t->row, err);
}

static tm_status idx_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                            tm_dataset **out, tm_err *err) {
  struct idx_stream t[2];
  (void)in, (void)nin;
  memset(t, 0, sizeof t);
  tm_unpack_array(r, 2, 2);
  int64_t rows = tm_unpack_range(r, 0, INT64_MAX);
  int32_t n = (int32_t)tm_unpack_array(r, 1, 2);
  tm_status s =
      r->status == TM_OK ? TM_OK : tm_fail(err, TM_EINVAL, "idx: malformed parameters");
  for (int32_t i = 0; s == TM_OK && i < n; i++) s = idx_unpack_stream(r, &t[i], err);
  if (s == TM_OK) return idx_make(t, n, rows, out, err);
  for (int i = 0; i < 2; i++) tm_files_release(&t[i].files);
  return s;
}

const tm_data_class tm_class_idx = {
    .name = "idx",
    .code = 6,
    .size = sizeof(struct idx),
    .cursor_size = sizeof(struct idx_cursor),
    .release = idx_release,
    .pack = idx_pack,
    .unpack = idx_unpack,
    .next = idx_next,
    .pass = idx_pass,
    .reset = idx_reset,
    .close = idx_close,
};

static tm_status idx_make(struct idx_stream *t, int32_t n, int64_t rows,
                          tm_dataset **out, tm_err *err) {
  tm_status s = tm_dataset_make(&tm_class_idx, NULL, 0, n, out, err);
  if (s != TM_OK) {
    for (int32_t i = 0; i < n; i++) tm_files_release(&t[i].files);
    return s;
  }
  struct idx *d = (struct idx *)*out;
  d->n = n;
  d->rows = IDX_ROWS;
  for (int32_t i = 0; i < n; i++) {
    tm_view v = {t[i].row.dtype, t[i].row.shape, NULL};
    while (d->rows > 1 && (size_t)d->rows * tm_view_bytes(&v) > IDX_BLOCK) d->rows /= 2;
    d->stream[i] = t[i];
    d->ds.types[i] = t[i].row;
  }
  d->ds.card = rows;
  return TM_OK;
}

tm_status tm_data_idx(const tm_idx_options *o, tm_dataset **out, tm_err *err) {
  struct idx_stream t[2];
  int64_t rows[2] = {0, 0};
  int32_t n = o->nlabels ? 2 : 1;
  *out = NULL;
  memset(t, 0, sizeof t);
  tm_status s = tm_files_init(&t[0].files, o->images, o->nimages, o->compression, true,
                              "idx", err);
  if (s == TM_OK && n == 2)
    s = tm_files_init(&t[1].files, o->labels, o->nlabels, o->compression, true, "idx",
                      err);
  for (int32_t i = 0; s == TM_OK && i < n; i++) s = idx_survey(&t[i], &rows[i], err);
  if (s == TM_OK && n == 2 && rows[0] != rows[1])
    s = tm_fail(err, TM_EINVAL, "idx: %lld images but %lld labels", (long long)rows[0],
                (long long)rows[1]);
  if (s == TM_OK) return idx_make(t, n, rows[0], out, err);
  for (int i = 0; i < 2; i++) tm_files_release(&t[i].files);
  return s;
}
