/*
 * source.h - where elements come from: memory and files.
 *
 * Files may be gzip-compressed (told by their first bytes, or by `compression`).  A
 * name in `files` that holds *, ? or [ and is no file itself is a pattern; its
 * matches are taken in sorted order.  A missing file is TM_ENOTFOUND when the source
 * is made.  Malformed text is TM_EINVAL with file, line and column, a truncated or
 * corrupt record TM_EDATALOSS with file and record number, both when it is read.
 *
 *     tm_csv_options o;
 *     tm_csv_defaults(&o);
 *     o.files = &name; o.nfiles = 1; o.na_value = "?";
 *     TM_TRY(tm_data_csv(&o, &ds, err));
 *
 * Ownership: options and what they point to are the caller's and copied; tensors
 *            are referenced.
 * Threads:   any.
 */
#ifndef TM_DATA_SOURCE_H
#define TM_DATA_SOURCE_H

#include "data/dataset.h"

/* Row i of each of n tensors.  All have the same first size. */
TM_CHECKED tm_status tm_data_slices(tm_tensor *const *t, int32_t n, tm_dataset **out,
                                    tm_err *err);
/* One element: the tensors as they are. */
TM_CHECKED tm_status tm_data_tensors(tm_tensor *const *t, int32_t n, tm_dataset **out,
                                     tm_err *err);
/* int64 scalars start, start + step, ... before stop.  step != 0. */
TM_CHECKED tm_status tm_data_range(int64_t start, int64_t stop, int64_t step,
                                   tm_dataset **out, tm_err *err);

/* --- text lines: one string scalar a line, without \n or \r\n --- */
typedef struct tm_text_options {
  const char *const *files;
  size_t nfiles;
  const char *compression; /* NULL: by the first bytes; "gzip"; "none" */
} tm_text_options;

TM_CHECKED tm_status tm_data_text_line(const tm_text_options *o, tm_dataset **out,
                                       tm_err *err);

/* --- csv: one scalar a column --- */
typedef struct tm_csv_column {
  const char *name;
  tm_dtype dtype;   /* TM_DTYPE_NONE: from the first TM_CSV_INFER rows */
  const char *dflt; /* text of the value for missing fields; NULL: NaN, 0, false, "" */
} tm_csv_column;

enum { TM_CSV_INFER = 1000, TM_CSV_COLUMNS = 4096 };

typedef struct tm_csv_options {
  const char *const *files;
  size_t nfiles;
  const tm_csv_column *columns; /* with a header: the wanted ones by name, or none =
                                   all; without: all, in the file's order, or none =
                                   "c1", "c2", ... */
  size_t ncolumns;
  bool header;             /* the first line (after skip) of each file has names */
  const char *label;       /* column that comes last in elements; NULL: none */
  const char *na_value;    /* a field that means "missing", besides the empty one */
  char delimiter;          /* ',' */
  char quote;              /* '"'; 0: quotes mean nothing */
  const char *comment;     /* lines beginning with this are skipped; NULL: none */
  int64_t skip;            /* lines to skip at the start of each file */
  const char *compression; /* as in tm_text_options */
  bool check;              /* false: do not open files now; needs columns with dtypes
                              and header = false */
} tm_csv_options;

/* All empty, ',' and '"', check = true. */
void tm_csv_defaults(tm_csv_options *o);

/* Tensors of an element are ordered by column name (bytes), the label last;
 * tm_dataset_name gives the names.  Blanks around fields that are not quoted do not
 * count; blank lines are skipped; quotes as RFC 4180.  Inferred types are int64,
 * float32 or string. */
TM_CHECKED tm_status tm_data_csv(const tm_csv_options *o, tm_dataset **out,
                                 tm_err *err);

/* --- idx (the format of MNIST): rows of the images, then of the labels --- */
typedef struct tm_idx_options {
  const char *const *images; /* parts, one after the other */
  size_t nimages;
  const char *const *labels; /* none: elements are images alone */
  size_t nlabels;
  const char *compression;
} tm_idx_options;

/* TM_EINVAL: not the idx format, parts of different shapes, rows above 64 MB, or
 * another number of labels than images. */
TM_CHECKED tm_status tm_data_idx(const tm_idx_options *o, tm_dataset **out,
                                 tm_err *err);

#endif
