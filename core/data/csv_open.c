#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "data/csv.h"
#include "data/number.h"

/*
 * Design.  Options become a plan: which field of a record is which tensor, and of
 * what type.
 *
 * Invariants of a finished plan:
 *   (1) 1 <= ncol <= nfield, every col[i].field < nfield, names differ.
 *   (2) Columns are in order of their names, the label is the last.
 *   (3) dtypes are known and defaults fit them.
 *
 * Looking into files here serves types and early errors only.  Inference stops at a
 * malformed record: the error comes when the record is read.
 */
void tm_csv_plan_release(tm_csv_plan *p) {
  for (int32_t i = 0; i < p->ncol; i++) {
    tm_strfree(p->col[i].name);
    tm_strfree(p->col[i].dflt);
  }
  if (p->ncol) tm_free(p->col, (size_t)p->ncol * sizeof *p->col);
  tm_strfree(p->na);
  tm_files_release(&p->files);
  memset(p, 0, sizeof *p);
}

tm_status tm_csv_plan_columns(tm_csv_plan *p, int32_t n, tm_err *err) {
  if (n < 1 || n > TM_CSV_COLUMNS || n > TM_DATA_WIDTH)
    return tm_fail(err, TM_EINVAL, "csv: %d columns; 1 to %d are possible", n,
                   TM_DATA_WIDTH);
  p->col = tm_calloc((size_t)n, sizeof *p->col);
  if (!p->col) return tm_nomem(err, "csv");
  p->ncol = n;
  return TM_OK;
}

/* --- types and defaults --- */
static bool csv_put_int(tm_dtype dtype, int64_t v, void *data, int64_t i) {
  if (dtype == TM_I64) {
    ((int64_t *)data)[i] = v;
  } else if (dtype == TM_I32) {
    if (v < INT32_MIN || v > INT32_MAX) return false;
    ((int32_t *)data)[i] = (int32_t)v;
  } else {
    if (v < 0 || v > UINT8_MAX) return false;
    ((uint8_t *)data)[i] = (uint8_t)v;
  }
  return true;
}

bool tm_csv_put(tm_dtype dtype, const char *s, size_t n, void *data, int64_t i) {
  int64_t v;
  bool b;
  switch (dtype) {
    case TM_F32:
      return tm_text_f32(s, n, &((float *)data)[i]);
    case TM_F64:
      return tm_text_f64(s, n, &((double *)data)[i]);
    case TM_BOOL:
      if (!tm_text_bool(s, n, &b)) return false;
      ((uint8_t *)data)[i] = b;
      return true;
    default:
      return tm_text_i64(s, n, &v) && csv_put_int(dtype, v, data, i);
  }
}

static tm_status col_default(tm_csv_col *c, tm_err *err) {
  if (c->dtype == TM_STRING) return TM_OK;
  if (!tm_dtype_is_number(c->dtype) && c->dtype != TM_BOOL)
    return tm_fail(err, TM_EINVAL, "csv: column \"%s\" cannot have dtype %s", c->name,
                   tm_dtype_name(c->dtype));
  memset(&c->missing, 0, sizeof c->missing);
  if (!c->dflt) {
    if (c->dtype == TM_F32) c->missing.f32 = NAN;
    if (c->dtype == TM_F64) c->missing.f = (double)NAN;
    return TM_OK;
  }
  if (tm_csv_put(c->dtype, c->dflt, c->dflt_len, &c->missing, 0)) return TM_OK;
  return tm_fail(err, TM_EINVAL, "csv: column \"%s\": the default \"%s\" is no %s",
                 c->name, c->dflt, tm_dtype_name(c->dtype));
}

tm_status tm_csv_plan_defaults(tm_csv_plan *p, tm_err *err) {
  for (int32_t i = 0; i < p->ncol; i++) TM_TRY(col_default(&p->col[i], err));
  return TM_OK;
}

/* --- columns --- */
static tm_status col_set(tm_csv_col *c, const char *name, size_t len, tm_dtype dtype,
                         const char *dflt, int32_t field, tm_err *err) {
  c->name = tm_strndup(name, len);
  c->dtype = dtype;
  c->field = field;
  if (dflt) {
    c->dflt = tm_strdup(dflt);
    c->dflt_len = strlen(dflt);
  }
  return c->name && (c->dflt || !dflt) ? TM_OK : tm_nomem(err, "csv");
}

static const tm_csv_column *wanted(const tm_csv_options *o, const char *p, size_t n) {
  for (size_t i = 0; i < o->ncolumns; i++)
    if (strlen(o->columns[i].name) == n && memcmp(o->columns[i].name, p, n) == 0)
      return &o->columns[i];
  return NULL;
}

static int64_t header_find(const tm_csv_record *rec, const char *name) {
  size_t n = strlen(name);
  for (int32_t i = 0; i < rec->n; i++)
    if (rec->field[i].n == n && memcmp(rec->field[i].p, name, n) == 0) return i;
  return -1;
}

/* The wanted columns (or all) of a header. */
static tm_status columns_of_header(tm_csv_plan *p, const tm_csv_options *o,
                                   const tm_csv_record *rec, tm_err *err) {
  p->nfield = rec->n;
  for (size_t i = 0; i < o->ncolumns; i++)
    if (header_find(rec, o->columns[i].name) < 0)
      return tm_fail(err, TM_EINVAL, "csv: %s has no column \"%s\" in its header",
                     p->files.name[0], o->columns[i].name);
  TM_TRY(tm_csv_plan_columns(p, o->ncolumns ? (int32_t)o->ncolumns : rec->n, err));
  for (int32_t i = 0, k = 0; i < rec->n && k < p->ncol; i++) {
    const tm_csv_field *f = &rec->field[i];
    const tm_csv_column *w = wanted(o, f->p, f->n);
    if (o->ncolumns && !w) continue;
    TM_TRY(col_set(&p->col[k++], f->p, f->n, w ? w->dtype : TM_DTYPE_NONE,
                   w ? w->dflt : NULL, i, err));
  }
  return TM_OK;
}

/* All columns in the file's order, by the names given or "c1", "c2", ... */
static tm_status columns_in_order(tm_csv_plan *p, const tm_csv_options *o, int32_t n,
                                  tm_err *err) {
  char name[16];
  p->nfield = n;
  TM_TRY(tm_csv_plan_columns(p, n, err));
  for (int32_t i = 0; i < n; i++) {
    const tm_csv_column *w = o->ncolumns ? &o->columns[i] : NULL;
    (void)snprintf(name, sizeof name, "c%d", i + 1);
    const char *as = w ? w->name : name;
    TM_TRY(col_set(&p->col[i], as, strlen(as), w ? w->dtype : TM_DTYPE_NONE,
                   w ? w->dflt : NULL, i, err));
  }
  return TM_OK;
}

static int col_compare(const void *a, const void *b) {
  return strcmp(((const tm_csv_col *)a)->name, ((const tm_csv_col *)b)->name);
}

static tm_status columns_sort(tm_csv_plan *p, const char *label, tm_err *err) {
  int32_t n = p->ncol, last = n - 1;
  for (int32_t i = 0; i < n; i++)
    if (!p->col[i].name || !*p->col[i].name)
      return tm_fail(err, TM_EINVAL, "csv: %s: column %d has no name; give `columns`",
                     p->files.name[0], i + 1);
  qsort(p->col, (size_t)n, sizeof *p->col, col_compare);
  for (int32_t i = 1; i < n; i++)
    if (strcmp(p->col[i - 1].name, p->col[i].name) == 0)
      return tm_fail(err, TM_EINVAL, "csv: two columns are called \"%s\"",
                     p->col[i].name);
  if (!label) return TM_OK;
  int32_t at = 0;
  while (at < n && strcmp(p->col[at].name, label) != 0) at++;
  if (at == n)
    return tm_fail(err, TM_EINVAL, "csv: there is no column \"%s\" for the label",
                   label);
  tm_csv_col c = p->col[at];
  memmove(&p->col[at], &p->col[at + 1], (size_t)(last - at) * sizeof c);
  p->col[last] = c;
  return TM_OK;
}

/* --- files --- */
static tm_status header_check(const tm_csv_plan *p, const tm_reader *r,
                              const tm_csv_record *rec, tm_err *err) {
  if (p->ncol == 0) return TM_OK; /* this header makes the plan */
  if (rec->n != p->nfield)
    return tm_fail(err, TM_EINVAL, "csv: %s: the header has %d columns, %s has %d",
                   tm_reader_path(r), rec->n, p->files.name[0], p->nfield);
  for (int32_t i = 0; i < p->ncol; i++) {
    const tm_csv_field *f = &rec->field[p->col[i].field];
    if (strlen(p->col[i].name) != f->n || memcmp(p->col[i].name, f->p, f->n) != 0)
      return tm_fail(
          err, TM_EINVAL, "csv: %s: column %d of the header is \"%.*s\", in %s \"%s\"",
          tm_reader_path(r), p->col[i].field + 1, (int)(f->n < 100 ? f->n : 100), f->p,
          p->files.name[0], p->col[i].name);
  }
  return TM_OK;
}

static tm_status csv_pass(const tm_csv_plan *p, tm_reader *r, tm_csv_record *rec,
                          tm_err *err) {
  tm_status s = TM_OK;
  char *line;
  size_t n;
  for (int64_t k = 0; s == TM_OK && k < p->skip; k++)
    s = tm_reader_line(r, &line, &n, err);
  if (s == TM_ERANGE) return TM_OK; /* fewer lines than skip: no rows */
  if (s != TM_OK || !p->header) return s;
  s = tm_csv_read(r, &p->format, rec, err);
  if (s == TM_ERANGE)
    return tm_fail(err, TM_EINVAL, "csv: %s has no header", tm_reader_path(r));
  return s == TM_OK ? header_check(p, r, rec, err) : s;
}

tm_status tm_csv_open(const tm_csv_plan *p, size_t i, tm_csv_record *rec,
                      tm_reader **out, tm_err *err) {
  TM_TRY(tm_reader_open(p->files.name[i], p->files.compression, out, err));
  tm_status s = csv_pass(p, *out, rec, err);
  if (s == TM_OK) return TM_OK;
  tm_reader_close(*out);
  *out = NULL;
  return s;
}

/* The columns from the first file. */
static tm_status plan_columns(tm_csv_plan *p, const tm_csv_options *o, tm_err *err) {
  if (!o->header && o->ncolumns)
    return columns_in_order(p, o, (int32_t)o->ncolumns, err);
  tm_csv_record rec = {0};
  tm_reader *r = NULL;
  tm_status s = tm_csv_open(p, 0, &rec, &r, err);
  if (s == TM_OK && !o->header) {
    s = tm_csv_read(r, &p->format, &rec, err);
    if (s == TM_ERANGE)
      s = tm_fail(err, TM_EINVAL, "csv: %s is empty; give `columns`", p->files.name[0]);
  }
  if (s == TM_OK)
    s = o->header ? columns_of_header(p, o, &rec, err)
                  : columns_in_order(p, o, rec.n, err);
  tm_reader_close(r);
  tm_csv_record_release(&rec);
  return s;
}

/* What a column's fields may be so far. */
enum { SEEN = 1, NOT_INT = 2, NOT_FLOAT = 4 };

static void infer_record(const tm_csv_plan *p, const tm_csv_record *rec,
                         uint8_t *what) {
  for (int32_t i = 0; i < p->ncol; i++) {
    const tm_csv_field *f = &rec->field[p->col[i].field];
    int64_t v;
    float x;
    if (f->n == 0 || tm_csv_missing(f, p->na, p->na_len)) continue;
    what[i] |= SEEN;
    if (!(what[i] & NOT_INT) && !tm_text_i64(f->p, f->n, &v)) what[i] |= NOT_INT;
    if (!(what[i] & NOT_FLOAT) && !tm_text_f32(f->p, f->n, &x)) what[i] |= NOT_FLOAT;
  }
}

static void infer_rows(const tm_csv_plan *p, uint8_t *what) {
  tm_csv_record rec = {0};
  int64_t rows = 0;
  tm_status s = TM_OK;
  for (size_t i = 0; s == TM_OK && i < p->files.n && rows < TM_CSV_INFER; i++) {
    tm_reader *r = NULL;
    s = tm_csv_open(p, i, &rec, &r, NULL);
    while (s == TM_OK && rows < TM_CSV_INFER) {
      s = tm_csv_read(r, &p->format, &rec, NULL);
      if (s == TM_OK && rec.n != p->nfield) s = TM_EINVAL;
      if (s == TM_OK) infer_record(p, &rec, what);
      rows++;
    }
    if (s == TM_ERANGE) s = TM_OK; /* on to the next file */
    tm_reader_close(r);
  }
  tm_csv_record_release(&rec);
}

static tm_status plan_infer(tm_csv_plan *p, tm_err *err) {
  bool any = false;
  for (int32_t i = 0; i < p->ncol; i++) any |= p->col[i].dtype == TM_DTYPE_NONE;
  if (!any) return TM_OK;
  uint8_t *what = tm_calloc((size_t)p->ncol, 1);
  if (!what) return tm_nomem(err, "csv");
  infer_rows(p, what);
  for (int32_t i = 0; i < p->ncol; i++) {
    if (p->col[i].dtype != TM_DTYPE_NONE) continue;
    bool text = !(what[i] & SEEN) || (what[i] & NOT_FLOAT);
    p->col[i].dtype = text ? TM_STRING : what[i] & NOT_INT ? TM_F32 : TM_I64;
  }
  tm_free(what, (size_t)p->ncol);
  return TM_OK;
}

static tm_status plan_format(tm_csv_plan *p, const tm_csv_options *o, tm_err *err) {
  p->format.delimiter = o->delimiter;
  p->format.quote = o->quote;
  p->header = o->header;
  p->skip = o->skip;
  if (o->skip < 0) return tm_fail(err, TM_EINVAL, "csv: skip is negative");
  if (!o->delimiter || o->delimiter == '\n' || o->delimiter == '\r' ||
      o->delimiter == o->quote)
    return tm_fail(err, TM_EINVAL,
                   "csv: the delimiter is one character, not a line "
                   "end or the quote");
  if (o->comment) {
    if (strlen(o->comment) >= sizeof p->format.comment)
      return tm_fail(err, TM_EINVAL, "csv: comment has at most %zu bytes",
                     sizeof p->format.comment - 1);
    memcpy(p->format.comment, o->comment, strlen(o->comment) + 1);
  }
  if (!o->na_value) return TM_OK;
  p->na = tm_strdup(o->na_value);
  p->na_len = strlen(o->na_value);
  return p->na ? TM_OK : tm_nomem(err, "csv");
}

static tm_status plan_check_off(const tm_csv_options *o, tm_err *err) {
  if (o->check) return TM_OK;
  bool typed = o->ncolumns > 0 && !o->header;
  for (size_t i = 0; i < o->ncolumns; i++)
    typed = typed && o->columns[i].dtype != TM_DTYPE_NONE;
  if (typed) return TM_OK;
  return tm_fail(err, TM_EINVAL,
                 "csv: check = false needs `columns` with dtypes and no header");
}

static tm_status plan_fill(tm_csv_plan *p, const tm_csv_options *o, tm_err *err) {
  TM_TRY(plan_check_off(o, err));
  TM_TRY(tm_files_init(&p->files, o->files, o->nfiles, o->compression, o->check, "csv",
                       err));
  if (o->ncolumns > TM_DATA_WIDTH)
    return tm_fail(err, TM_EINVAL, "csv: more than %d columns", TM_DATA_WIDTH);
  TM_TRY(plan_format(p, o, err));
  TM_TRY(plan_columns(p, o, err));
  TM_TRY(columns_sort(p, o->label, err));
  TM_TRY(plan_infer(p, err));
  return tm_csv_plan_defaults(p, err);
}

tm_status tm_csv_plan_init(tm_csv_plan *p, const tm_csv_options *o, tm_err *err) {
  memset(p, 0, sizeof *p);
  tm_status s = plan_fill(p, o, err);
  if (s != TM_OK) tm_csv_plan_release(p);
  return s;
}
