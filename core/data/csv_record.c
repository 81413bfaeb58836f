#include "data/csv_record.h"

#include <string.h>

#include "base/mem.h"
#include "data/source.h"

/*
 * Design.  A record is first found as spans (offsets from the record's first byte),
 * because joining the lines of a quoted field may move the reader's window; pointers
 * are made at the end, when doubled quotes are also undone in place.
 *
 * Invariants:
 *   (1) n <= cap <= TM_CSV_COLUMNS.
 *   (2) A quoted field is scanned once: joining goes on where the line ended.
 */
struct csv_span {
  size_t from, to;
  bool quoted, doubled;
};

struct csv_scan {
  tm_reader *r;
  const tm_csv_format *f;
  char *p;
  size_t n, i;
};

void tm_csv_record_release(tm_csv_record *rec) {
  if (rec->cap) {
    tm_free(rec->field, (size_t)rec->cap * sizeof *rec->field);
    tm_free(rec->span, (size_t)rec->cap * sizeof *rec->span);
  }
  memset(rec, 0, sizeof *rec);
}

static tm_status record_room(tm_csv_record *rec, tm_reader *r, tm_err *err) {
  if (rec->n < rec->cap) return TM_OK;
  if (rec->cap >= TM_CSV_COLUMNS)
    return tm_fail(err, TM_EINVAL, "csv: %s, line %lld: more than %d columns",
                   tm_reader_path(r), (long long)rec->line, TM_CSV_COLUMNS);
  int32_t cap = rec->cap ? 2 * rec->cap : 16;
  size_t old = (size_t)rec->cap, n = (size_t)cap;
  tm_csv_field *fp = tm_malloc(n * sizeof *fp);
  struct csv_span *sp = tm_malloc(n * sizeof *sp);
  if (!fp || !sp) {
    tm_free(fp, n * sizeof *fp);
    tm_free(sp, n * sizeof *sp);
    return tm_nomem(err, "csv");
  }
  if (old) memcpy(sp, rec->span, old * sizeof *sp);
  tm_free(rec->field, old * sizeof *fp);
  tm_free(rec->span, old * sizeof *sp);
  rec->field = fp;
  rec->span = sp;
  rec->cap = cap;
  return TM_OK;
}

static tm_status record_bad(const struct csv_scan *s, const tm_csv_record *rec,
                            const char *what, tm_err *err) {
  return tm_fail(err, TM_EINVAL, "csv: %s, line %lld, column %d: %s",
                 tm_reader_path(s->r), (long long)rec->line, rec->n + 1, what);
}

static bool scan_blank(const struct csv_scan *s, size_t i) {
  char c = s->p[i];
  return (c == ' ' || c == '\t') && c != s->f->delimiter;
}

/* A field that begins with a quote; i is behind it. */
static tm_status scan_quoted(struct csv_scan *s, tm_csv_record *rec,
                             struct csv_span *out, tm_err *err) {
  char q = s->f->quote;
  out->from = s->i;
  out->quoted = true;
  for (;;) {
    char *end = s->i < s->n ? memchr(s->p + s->i, q, s->n - s->i) : NULL;
    if (!end) {
      s->i = s->n;
      tm_status st = tm_reader_extend(s->r, &s->p, &s->n, err);
      if (st == TM_ERANGE) return record_bad(s, rec, "a quote is not closed", err);
      TM_TRY(st);
      continue;
    }
    s->i = (size_t)(end - s->p) + 1;
    if (s->i >= s->n || s->p[s->i] != q) break;
    out->doubled = true;
    s->i++;
  }
  out->to = s->i - 1;
  while (s->i < s->n && scan_blank(s, s->i)) s->i++;
  if (s->i < s->n && s->p[s->i] != s->f->delimiter)
    return record_bad(s, rec, "text after the closing quote", err);
  return TM_OK;
}

static tm_status scan_bare(struct csv_scan *s, tm_csv_record *rec, struct csv_span *out,
                           tm_err *err) {
  char *end = s->i < s->n ? memchr(s->p + s->i, s->f->delimiter, s->n - s->i) : NULL;
  out->from = s->i;
  s->i = out->to = end ? (size_t)(end - s->p) : s->n;
  if (s->f->quote && memchr(s->p + out->from, s->f->quote, out->to - out->from))
    return record_bad(s, rec, "a quote inside a field that does not begin with one",
                      err);
  while (out->to > out->from && scan_blank(s, out->to - 1)) out->to--;
  return TM_OK;
}

static tm_status scan_record(struct csv_scan *s, tm_csv_record *rec, tm_err *err) {
  for (;;) {
    TM_TRY(record_room(rec, s->r, err));
    struct csv_span *out = &rec->span[rec->n];
    *out = (struct csv_span){0, 0, false, false};
    while (s->i < s->n && scan_blank(s, s->i)) s->i++;
    if (s->f->quote && s->i < s->n && s->p[s->i] == s->f->quote) {
      s->i++;
      TM_TRY(scan_quoted(s, rec, out, err));
    } else {
      TM_TRY(scan_bare(s, rec, out, err));
    }
    rec->n++;
    if (s->i >= s->n) return TM_OK;
    s->i++; /* the delimiter */
  }
}

/* "" -> " in place; the new length. */
static size_t undouble(char *p, size_t n, char q) {
  size_t to = 0;
  for (size_t i = 0; i < n; i++) {
    p[to++] = p[i];
    if (p[i] == q) i++;
  }
  return to;
}

static void record_point(tm_csv_record *rec, char *p, char quote) {
  for (int32_t i = 0; i < rec->n; i++) {
    const struct csv_span *s = &rec->span[i];
    size_t n = s->to - s->from;
    if (s->doubled) n = undouble(p + s->from, n, quote);
    rec->field[i] = (tm_csv_field){p + s->from, n, s->quoted};
  }
}

/* Nothing but blanks, or a comment. */
static bool line_empty(const struct csv_scan *s) {
  size_t k = strlen(s->f->comment), i = 0;
  if (k > 0 && s->n >= k && memcmp(s->p, s->f->comment, k) == 0) return true;
  while (i < s->n && (s->p[i] == ' ' || s->p[i] == '\t')) i++;
  return i == s->n;
}

tm_status tm_csv_read(tm_reader *r, const tm_csv_format *f, tm_csv_record *rec,
                      tm_err *err) {
  struct csv_scan s = {r, f, NULL, 0, 0};
  do TM_TRY(tm_reader_line(r, &s.p, &s.n, err));
  while (line_empty(&s));
  rec->n = 0;
  rec->line = tm_reader_number(r);
  TM_TRY(scan_record(&s, rec, err));
  record_point(rec, s.p, f->quote);
  return TM_OK;
}

bool tm_csv_missing(const tm_csv_field *f, const char *na, size_t na_len) {
  if (na && f->n == na_len && memcmp(f->p, na, na_len) == 0) return true;
  return f->n == 0 && !f->quoted;
}
