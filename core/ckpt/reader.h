/*
 * reader.h - a checkpoint as it is on disk (written by ckpt/writer.h).
 *
 * Opening reads checkpoint.json and compares the sizes of the files; verify() compares
 * the CRC32C of all files, and a file that was not verified is when it is first read.
 * What else is in the directory is ignored.
 *
 *     TM_TRY(tm_ckpt_open("runs/ckpt-7", &r, err));
 *     const tm_ckpt_tensor *e = tm_ckpt_find(r, "model/kernel");
 *     TM_TRY(tm_ckpt_read(r, e, 0, rows, &tensor, err));    -- any range of rows
 *     tm_ckpt_close(r);
 *
 * Ownership: the reader owns its entries; read gives one reference.
 * Threads:   one at a time.
 */
#ifndef TM_CKPT_READER_H
#define TM_CKPT_READER_H

#include "base/status.h"
#include "tensor/tensor.h"

typedef struct tm_ckpt_reader tm_ckpt_reader;

typedef struct tm_ckpt_shard {
  size_t file;
  char *entry;
  int64_t first, rows;
} tm_ckpt_shard;

/* Rows that changed since the base was saved: they stand before what the shards say. */
typedef struct tm_ckpt_patch {
  size_t file;
  char *ids, *rows; /* entries: (n) int64, rising; (n, row...) */
  int64_t n;
} tm_ckpt_patch;

typedef struct tm_ckpt_tensor {
  char *name;
  tm_dtype dtype;
  tm_shape shape;
  tm_ckpt_shard *shard; /* in order of their rows, which they cover */
  size_t nshard;
  tm_ckpt_patch *patch; /* of an incremental checkpoint */
  size_t npatch;
} tm_ckpt_tensor;

typedef enum tm_ckpt_kind {
  TM_CKPT_INT,
  TM_CKPT_REAL,
  TM_CKPT_BOOL,
  TM_CKPT_STR
} tm_ckpt_kind;

typedef struct tm_ckpt_value {
  char *name;
  tm_ckpt_kind kind;
  int64_t i; /* BOOL too */
  double x;
  char *p; /* STR */
  size_t n;
} tm_ckpt_value;

/* TM_ENOTFOUND: no checkpoint there; TM_EDATALOSS: not as it was written. */
TM_CHECKED tm_status tm_ckpt_open(const char *path, tm_ckpt_reader **out, tm_err *err);
void tm_ckpt_close(tm_ckpt_reader *r); /* r may be NULL */
/* Read every file once and compare. */
TM_CHECKED tm_status tm_ckpt_verify(tm_ckpt_reader *r, tm_err *err);
/* Only those that hold rows first..first+n-1 of a tensor. */
TM_CHECKED tm_status tm_ckpt_verify_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                         int64_t first, int64_t n, tm_err *err);
/* Somebody compared the files a moment ago: sizes are, checksums are not. */
void tm_ckpt_trust(tm_ckpt_reader *r);
/* Size and checksum of checkpoint.json: who sees the same ones sees this checkpoint. */
void tm_ckpt_identity(const tm_ckpt_reader *r, uint64_t *size, uint32_t *crc);

/* The data files: name, bytes, checksum. */
size_t tm_ckpt_nfile(const tm_ckpt_reader *r);
const char *tm_ckpt_file_at(const tm_ckpt_reader *r, size_t i, uint64_t *size,
                            uint32_t *crc);

size_t tm_ckpt_ntensor(const tm_ckpt_reader *r);
const tm_ckpt_tensor *tm_ckpt_tensor_at(const tm_ckpt_reader *r, size_t i);
const tm_ckpt_tensor *tm_ckpt_find(const tm_ckpt_reader *r, const char *name);
size_t tm_ckpt_nvalue(const tm_ckpt_reader *r);
const tm_ckpt_value *tm_ckpt_value_at(const tm_ckpt_reader *r, size_t i);

/* Rows first..first+n-1 of the first axis; a scalar is one row. */
TM_CHECKED tm_status tm_ckpt_read(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                  int64_t first, int64_t n, tm_tensor **out,
                                  tm_err *err);

#endif
