/*
 * csv.h - a csv source as described: files, format and resolved columns.
 *
 * csv_open.c makes it from options (reads headers, infers types), csv.c reads rows
 * by it.
 *
 * Ownership: tm_csv_plan owns what is in it.  Threads: read-only once made.
 */
#ifndef TM_DATA_CSV_H
#define TM_DATA_CSV_H

#include "data/csv_record.h"
#include "data/node.h"
#include "data/source.h"

/* The value of a missing field. */
typedef union tm_csv_value {
  int64_t i; /* int32, int64, uint8, bool */
  double f;
  float f32;
} tm_csv_value;

typedef struct tm_csv_col {
  char *name;
  int32_t field;  /* position in a record, from 0 */
  tm_dtype dtype; /* TM_DTYPE_NONE only while inferring */
  char *dflt;     /* text of the default, or NULL */
  size_t dflt_len;
  tm_csv_value missing;
} tm_csv_col;

typedef struct tm_csv_plan {
  tm_files files;
  tm_csv_format format;
  bool header;
  int64_t skip;
  char *na; /* or NULL */
  size_t na_len;
  int32_t nfield; /* fields a record must have */
  int32_t ncol;
  tm_csv_col *col; /* in the order of an element's tensors */
} tm_csv_plan;

void tm_csv_plan_release(tm_csv_plan *p);
/* Room for n columns, empty. */
TM_CHECKED tm_status tm_csv_plan_columns(tm_csv_plan *p, int32_t n, tm_err *err);
/* From options, with a look into the files unless check is off.  On failure *p is
 * empty. */
TM_CHECKED tm_status tm_csv_plan_init(tm_csv_plan *p, const tm_csv_options *o,
                                      tm_err *err);
/* Check the values of defaults and set `missing`.  Every dtype is known. */
TM_CHECKED tm_status tm_csv_plan_defaults(tm_csv_plan *p, tm_err *err);

/* Open file i, pass over what is skipped, and check its header against the plan
 * when there is one. */
TM_CHECKED tm_status tm_csv_open(const tm_csv_plan *p, size_t i, tm_csv_record *rec,
                                 tm_reader **out, tm_err *err);

/* Put the text into element i of `data`, an array of dtype (not string). */
bool tm_csv_put(tm_dtype dtype, const char *s, size_t n, void *data, int64_t i);

#endif
