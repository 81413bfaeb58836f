/*
 * csv_record.h - one record of a csv file, split into fields (RFC 4180).
 *
 * Blanks around fields that are not quoted do not count (unless a blank is the
 * delimiter); a quoted field may hold delimiters, line ends and doubled quotes.
 * Blank lines and comments are passed over.
 *
 *     tm_csv_record rec = {0};
 *     while ((s = tm_csv_read(r, &format, &rec, err)) == TM_OK)
 *       for (int32_t i = 0; i < rec.n; i++) use(rec.field[i]);
 *     tm_csv_record_release(&rec);
 *
 * Ownership: the caller's struct.  Fields point into the reader and are valid until
 *            its next call.
 * Threads:   one at a time.
 */
#ifndef TM_DATA_CSV_RECORD_H
#define TM_DATA_CSV_RECORD_H

#include "data/reader.h"
#include "tensor/dtype.h"

typedef struct tm_csv_format {
  char delimiter;
  char quote;       /* 0: none */
  char comment[16]; /* "": none */
} tm_csv_format;

typedef struct tm_csv_field {
  const char *p;
  size_t n;
  bool quoted;
} tm_csv_field;

typedef struct tm_csv_record {
  tm_csv_field *field;
  int32_t n, cap;
  int64_t line;          /* its first line, from 1 */
  struct csv_span *span; /* the same as offsets, while lines are joined */
} tm_csv_record;

void tm_csv_record_release(tm_csv_record *rec);

/* The next record.  TM_ERANGE: the end.  TM_EINVAL: malformed, with file, line and
 * column; the next call goes on at the next line. */
TM_CHECKED tm_status tm_csv_read(tm_reader *r, const tm_csv_format *f,
                                 tm_csv_record *rec, tm_err *err);

/* Is the field absent: empty and not quoted, or equal to na (NULL: none)? */
bool tm_csv_missing(const tm_csv_field *f, const char *na, size_t na_len);

#endif
