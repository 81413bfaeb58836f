#include "data/csv.h"

#include <string.h>

#include "base/mem.h"

/*
 * Design.  Rows are read CSV_ROWS at a time into a block of columns, so a row costs
 * no allocation; text goes into one buffer until the block is done.
 *
 * Invariants:
 *   (1) An error ends a block early and is given after the rows before it; reading
 *       goes on behind the record that failed.
 *   (2) The cursor holds at most one file open.
 */
enum { CSV_ROWS = 64 };

struct csv {
  tm_dataset ds;
  tm_csv_plan plan;
};

struct csv_cursor {
  tm_cursor c;
  tm_reader *r;
  size_t file; /* next to open */
  tm_csv_record rec;
  tm_block *block;
  int64_t i;
  tm_buf bytes;     /* text of a block's string columns */
  size_t (*at)[2];  /* ncol * CSV_ROWS: where each text is, by column */
  tm_status failed; /* to give after the block; TM_OK: none */
  tm_err err;
};

static const tm_csv_plan *csv_plan(const tm_cursor *c) {
  return &((const struct csv *)c->ds)->plan;
}

/* --- description --- */
static void csv_release(tm_dataset *ds) {
  tm_csv_plan_release(&((struct csv *)ds)->plan);
}

static const char *csv_name(const tm_dataset *ds, int32_t i) {
  return ((const struct csv *)ds)->plan.col[i].name;
}

static void csv_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  const tm_csv_plan *p = &((const struct csv *)ds)->plan;
  (void)err;
  tm_pack_array(w, 9);
  tm_files_pack(&p->files, w);
  tm_pack_int(w, (uint8_t)p->format.delimiter);
  tm_pack_int(w, (uint8_t)p->format.quote);
  tm_pack_cstr(w, p->format.comment);
  tm_pack_bool(w, p->header);
  tm_pack_int(w, p->skip);
  tm_pack_cstr(w, p->na);
  tm_pack_int(w, p->nfield);
  tm_pack_array(w, (uint32_t)p->ncol);
  for (int32_t i = 0; i < p->ncol; i++) {
    tm_pack_array(w, 4);
    tm_pack_cstr(w, p->col[i].name);
    tm_pack_int(w, p->col[i].field);
    tm_pack_int(w, p->col[i].dtype);
    tm_pack_cstr(w, p->col[i].dflt);
  }
}

/* A string, or NULL for nil; no NUL inside. */
static tm_status csv_unpack_str(tm_unpacker *r, char **out, size_t *len, tm_err *err) {
  *out = NULL;
  *len = 0;
  if (tm_unpack_nil(r)) return TM_OK;
  const char *s = tm_unpack_str(r, TM_READER_LINE, len);
  if (r->status != TM_OK || memchr(s, 0, *len))
    return tm_fail(err, TM_EINVAL, "csv: malformed parameters");
  *out = tm_strndup(s, *len);
  return *out ? TM_OK : tm_nomem(err, "csv");
}

static tm_status csv_unpack_col(tm_unpacker *r, tm_csv_plan *p, tm_csv_col *c,
                                tm_err *err) {
  size_t n;
  tm_unpack_array(r, 4, 4);
  TM_TRY(csv_unpack_str(r, &c->name, &n, err));
  c->field = (int32_t)tm_unpack_range(r, 0, p->nfield - 1);
  int64_t dtype = tm_unpack_int(r);
  TM_TRY(csv_unpack_str(r, &c->dflt, &c->dflt_len, err));
  if (r->status != TM_OK || !c->name || !tm_dtype_valid(dtype))
    return tm_fail(err, TM_EINVAL, "csv: malformed column");
  c->dtype = (tm_dtype)dtype;
  return TM_OK;
}

static tm_status csv_unpack_plan(tm_unpacker *r, tm_csv_plan *p, tm_err *err) {
  tm_unpack_array(r, 9, 9);
  TM_TRY(tm_files_unpack(r, &p->files, err));
  p->format.delimiter = (char)tm_unpack_range(r, 1, 255);
  p->format.quote = (char)tm_unpack_range(r, 0, 255);
  tm_unpack_cstr(r, p->format.comment, sizeof p->format.comment);
  p->header = tm_unpack_bool(r);
  p->skip = tm_unpack_range(r, 0, INT64_MAX);
  if (r->status != TM_OK) return tm_fail(err, TM_EINVAL, "csv: malformed parameters");
  TM_TRY(csv_unpack_str(r, &p->na, &p->na_len, err));
  p->nfield = (int32_t)tm_unpack_range(r, 1, TM_CSV_COLUMNS);
  int32_t n = (int32_t)tm_unpack_array(r, 1, TM_DATA_WIDTH);
  if (r->status != TM_OK) return tm_fail(err, TM_EINVAL, "csv: malformed parameters");
  TM_TRY(tm_csv_plan_columns(p, n, err));
  for (int32_t i = 0; i < n; i++) TM_TRY(csv_unpack_col(r, p, &p->col[i], err));
  return tm_csv_plan_defaults(p, err);
}

/* Takes over *p, also on failure. */
static tm_status csv_make(tm_csv_plan *p, tm_dataset **out, tm_err *err);

static tm_status csv_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                            tm_dataset **out, tm_err *err) {
  tm_csv_plan p;
  (void)in, (void)nin;
  memset(&p, 0, sizeof p);
  tm_status s = csv_unpack_plan(r, &p, err);
  if (s == TM_OK) return csv_make(&p, out, err);
  tm_csv_plan_release(&p);
  return s;
}

/* --- rows --- */
/* The next record with the right number of fields. */
static tm_status csv_record(struct csv_cursor *k, tm_err *err) {
  const tm_csv_plan *p = csv_plan(&k->c);
  for (;;) {
    if (!k->r) {
      if (k->file == p->files.n) return TM_ERANGE;
      TM_TRY(tm_csv_open(p, k->file, &k->rec, &k->r, err));
      k->file++;
    }
    tm_status s = tm_csv_read(k->r, &p->format, &k->rec, err);
    if (s == TM_OK && k->rec.n != p->nfield)
      return tm_fail(err, TM_EINVAL, "csv: %s, line %lld: %d columns instead of %d",
                     tm_reader_path(k->r), (long long)k->rec.line, k->rec.n, p->nfield);
    if (s != TM_ERANGE) return s;
    tm_reader_close(k->r);
    k->r = NULL;
  }
}

static tm_status csv_bad_field(struct csv_cursor *k, const tm_csv_col *c,
                               const tm_csv_field *f, tm_err *err) {
  return tm_fail(err, TM_EINVAL,
                 "csv: %s, line %lld, column %d (\"%.60s\"): \"%.*s\" is no %s; give "
                 "the column another dtype or name the text in na_value",
                 tm_reader_path(k->r), (long long)k->rec.line, c->field + 1, c->name,
                 (int)(f->n < 60 ? f->n : 60), f->p, tm_dtype_name(c->dtype));
}

static tm_status csv_put_text(struct csv_cursor *k, int32_t col, int64_t row,
                              const char *s, size_t n, tm_err *err) {
  size_t *at = k->at[(size_t)col * CSV_ROWS + (size_t)row];
  at[0] = k->bytes.len;
  at[1] = n;
  return tm_buf_put(&k->bytes, s, n) == TM_OK ? TM_OK : tm_nomem(err, "csv");
}

/* The record in k->rec into row `row` of b. */
static tm_status csv_put_record(struct csv_cursor *k, tm_block *b, int64_t row,
                                tm_err *err) {
  const tm_csv_plan *p = csv_plan(&k->c);
  for (int32_t i = 0; i < p->ncol; i++) {
    const tm_csv_col *c = &p->col[i];
    const tm_csv_field *f = &k->rec.field[c->field];
    bool text = c->dtype == TM_STRING;
    bool missing = tm_csv_missing(f, p->na, p->na_len) || (!text && f->n == 0);
    if (text) {
      TM_TRY(csv_put_text(k, i, row, missing ? c->dflt : f->p,
                          missing ? c->dflt_len : f->n, err));
      continue;
    }
    size_t size = tm_dtype_size(c->dtype);
    if (missing)
      memcpy((char *)b->t[i]->v.data + (size_t)row * size, &c->missing, size);
    else if (!tm_csv_put(c->dtype, f->p, f->n, b->t[i]->v.data, row))
      return csv_bad_field(k, c, f, err);
  }
  return TM_OK;
}

/* The string columns of n rows as tensors. */
static tm_status csv_make_texts(struct csv_cursor *k, tm_block *b, int64_t n,
                                tm_err *err) {
  tm_str text[CSV_ROWS];
  tm_shape shape = tm_shape_of(1, &n);
  for (int32_t i = 0; i < b->width; i++) {
    if (b->t[i]) continue;
    for (int64_t j = 0; j < n; j++) {
      const size_t *at = k->at[(size_t)i * CSV_ROWS + (size_t)j];
      text[j] = (tm_str){NULL, 0}; /* bytes.data may be NULL: all are empty */
      if (at[1]) text[j] = (tm_str){(const char *)k->bytes.data + at[0], at[1]};
    }
    TM_TRY(tm_tensor_strings(&shape, text, &b->t[i], err));
  }
  return TM_OK;
}

static tm_status csv_new_block(const tm_csv_plan *p, tm_block **out, tm_err *err) {
  int64_t n = CSV_ROWS;
  tm_shape shape = tm_shape_of(1, &n);
  if (tm_block_new(p->ncol, 0, out) != TM_OK) return tm_nomem(err, "csv");
  for (int32_t i = 0; i < p->ncol; i++)
    if (p->col[i].dtype != TM_STRING)
      TM_TRY(tm_tensor_new(p->col[i].dtype, &shape, &(*out)->t[i], err));
  return TM_OK;
}

static tm_status csv_fill(struct csv_cursor *k, tm_err *err) {
  tm_block *b = NULL;
  tm_status s = csv_new_block(csv_plan(&k->c), &b, err), stop = TM_OK;
  tm_buf_clear(&k->bytes);
  int64_t n = 0;
  for (; s == TM_OK && n < CSV_ROWS; n++) {
    stop = csv_record(k, &k->err);
    if (stop == TM_OK) stop = csv_put_record(k, b, n, &k->err);
    if (stop != TM_OK) break;
  }
  if (s == TM_OK) {
    k->failed = stop == TM_ERANGE ? TM_OK : stop;
    b->nrows = n;
    if (n > 0) s = csv_make_texts(k, b, n, err);
  }
  if (s == TM_OK && n > 0) {
    k->block = b;
    k->i = 0;
  } else {
    tm_block_unref(b);
  }
  return s;
}

static tm_status csv_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct csv_cursor *k = (struct csv_cursor *)c;
  if (k->block && k->i == k->block->nrows) {
    tm_block_unref(k->block);
    k->block = NULL;
  }
  if (!k->block && k->failed == TM_OK) TM_TRY(csv_fill(k, err));
  if (k->block) {
    *out = tm_row_of(k->block, k->i++);
    return TM_OK;
  }
  if (k->failed == TM_OK) return TM_ERANGE;
  tm_status s = k->failed;
  k->failed = TM_OK;
  if (err) *err = k->err;
  return s;
}

/* Records without looking at their fields; a bad one counts too, as it does for whoever
 * reads it. */
static tm_status csv_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct csv_cursor *k = (struct csv_cursor *)c;
  if (k->block) {
    int64_t left = k->block->nrows - k->i;
    *done = n < left ? n : left;
    k->i += *done;
  }
  if (*done < n && k->failed != TM_OK) {
    k->failed = TM_OK;
    ++*done;
  }
  for (; *done < n; ++*done) {
    if (tm_cancelled(c->cancel)) return tm_fail(err, TM_ECANCELLED, "csv: cancelled");
    tm_status s = csv_record(k, err);
    if (s != TM_OK && !(s == TM_EINVAL && k->r)) return s;
  }
  return TM_OK;
}

static void csv_reset(tm_cursor *c, bool fresh) {
  struct csv_cursor *k = (struct csv_cursor *)c;
  (void)fresh;
  tm_reader_close(k->r);
  k->r = NULL;
  tm_block_unref(k->block);
  k->block = NULL;
  k->file = 0;
  k->failed = TM_OK;
}

static size_t csv_at_size(const tm_cursor *c) {
  return (size_t)c->ds->width * CSV_ROWS * sizeof(size_t[2]);
}

static tm_status csv_cursor_open(tm_cursor *c, tm_err *err) {
  struct csv_cursor *k = (struct csv_cursor *)c;
  tm_err_clear(&k->err);
  k->bytes.max = SIZE_MAX / 2; /* bounded by CSV_ROWS lines */
  k->at = tm_malloc(csv_at_size(c));
  return k->at ? TM_OK : tm_nomem(err, "csv");
}

static void csv_close(tm_cursor *c) {
  struct csv_cursor *k = (struct csv_cursor *)c;
  csv_reset(c, true);
  tm_csv_record_release(&k->rec);
  tm_buf_release(&k->bytes);
  if (k->at) tm_free(k->at, csv_at_size(c));
}

const tm_data_class tm_class_csv = {
    .name = "csv",
    .code = 5,
    .size = sizeof(struct csv),
    .cursor_size = sizeof(struct csv_cursor),
    .release = csv_release,
    .name_of = csv_name,
    .pack = csv_pack,
    .unpack = csv_unpack,
    .open = csv_cursor_open,
    .next = csv_next,
    .pass = csv_pass,
    .reset = csv_reset,
    .close = csv_close,
};

static tm_status csv_make(tm_csv_plan *p, tm_dataset **out, tm_err *err) {
  tm_status s = tm_dataset_make(&tm_class_csv, NULL, 0, p->ncol, out, err);
  if (s != TM_OK) {
    tm_csv_plan_release(p);
    return s;
  }
  for (int32_t i = 0; i < p->ncol; i++)
    (*out)->types[i] = (tm_type){p->col[i].dtype, tm_shape_scalar()};
  (*out)->card = TM_DATA_UNKNOWN;
  ((struct csv *)*out)->plan = *p;
  return TM_OK;
}

void tm_csv_defaults(tm_csv_options *o) {
  memset(o, 0, sizeof *o);
  o->delimiter = ',';
  o->quote = '"';
  o->check = true;
}

tm_status tm_data_csv(const tm_csv_options *o, tm_dataset **out, tm_err *err) {
  tm_csv_plan p;
  *out = NULL;
  TM_TRY(tm_csv_plan_init(&p, o, err));
  return csv_make(&p, out, err);
}
