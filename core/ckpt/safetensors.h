/*
 * safetensors.h - the published file format of named arrays.
 *
 * A file is: the length of the header (8 bytes, little-endian), the header, the data.
 * The header is JSON: { name: { "dtype", "shape", "data_offsets": [begin, end] } },
 * and "__metadata__": { key: text }; spaces at its end align the data to 64 bytes.
 * Offsets count from the data's start; arrays lie one behind the other.
 *
 * Writing: the header first, then the bytes of each item in the same order.
 *
 *     TM_TRY(tm_st_header(items, n, &buf, err));
 *     TM_TRY(tm_sink_put(&f, buf.data, buf.len, err));
 *     for each item: tm_sink_put(&f, its elements, their bytes, err)
 *
 * Reading: nothing in the header is believed.  Offsets must cover the data exactly,
 * without overlap or hole; sizes must agree with dtype and shape; names come once.
 * dtypes that this project has not (F16, U64, ...) are listed but not read.
 *
 * Ownership: the caller frees the reader, which owns its entries and the descriptor.
 * Threads:   a reader has one at a time.
 */
#ifndef TM_CKPT_SAFETENSORS_H
#define TM_CKPT_SAFETENSORS_H

#include "base/buf.h"
#include "tensor/tensor.h"

enum {
  TM_ST_MAX_HEADER = 100000000, /* bytes; the limit of the reference implementation */
  TM_ST_ALIGN = 64
};

typedef struct tm_st_item {
  const char *name;
  tm_dtype dtype; /* not TM_STRING: the format has none */
  tm_shape shape;
} tm_st_item;

/* Append length, header and padding to out.  TM_EINVAL: a dtype or name that the format
 * cannot hold, or a name twice. */
TM_CHECKED tm_status tm_st_header(const tm_st_item *items, size_t n, tm_buf *out,
                                  tm_err *err);

typedef struct tm_st_entry {
  char *name;
  char type[16];  /* as the file says it: "F32" */
  tm_dtype dtype; /* TM_DTYPE_NONE: one that this project has not */
  tm_shape shape;
  uint64_t begin, end; /* bytes of the file */
} tm_st_entry;

typedef struct tm_st_file tm_st_file;

TM_CHECKED tm_status tm_st_open(const char *path, tm_st_file **out, tm_err *err);
void tm_st_close(tm_st_file *f); /* f may be NULL */
size_t tm_st_count(const tm_st_file *f);
const tm_st_entry *tm_st_at(const tm_st_file *f, size_t i); /* in order of their data */
const tm_st_entry *tm_st_find(const tm_st_file *f, const char *name); /* NULL: absent */
uint64_t tm_st_size(const tm_st_file *f);                             /* of the file */
/* n bytes of an entry from `first` on. */
TM_CHECKED tm_status tm_st_read(const tm_st_file *f, const tm_st_entry *e,
                                uint64_t first, void *p, size_t n, tm_err *err);
/* CRC32C of the whole file. */
TM_CHECKED tm_status tm_st_crc(const tm_st_file *f, uint32_t *crc, tm_err *err);

#endif
