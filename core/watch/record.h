/*
 * record.h - a file of records in TFRecord's framing, written through a bounded buffer.
 *
 *     tm_record_file *f;
 *     void *p;
 *     TM_TRY(tm_record_create(path, &f, err));
 *     TM_TRY(tm_record_begin(f, n, &p, err));
 *     ... n bytes into p ...
 *     tm_record_end(f);                          -- it waits in the buffer
 *     TM_TRY(tm_record_close(f, err));
 *
 * A record: length (8 bytes, little-endian), masked CRC-32C of these, the bytes, masked
 * CRC-32C of the bytes.  A process that ends anywhere leaves a file whose last record
 * may be cut off; readers stop before it.
 *
 * Ownership: create gives the file, close frees it.
 * Threads:   one at a time.
 */
#ifndef TM_WATCH_RECORD_H
#define TM_WATCH_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum {
  TM_RECORD_MAX = 64 << 20,    /* bytes of one record */
  TM_RECORD_BUFFER = 256 << 10 /* bytes that wait, one larger record aside */
};

typedef struct tm_record_file tm_record_file;

/* A new file; TM_EEXISTS: there is one of that name. */
TM_CHECKED tm_status tm_record_create(const char *path, tm_record_file **out,
                                      tm_err *err);
/* Room for a record of n bytes.  What waits is written first when the buffer is full;
 * a failure means that this record is not taken, and those before it still wait.
 * TM_EEXHAUSTED: larger than TM_RECORD_MAX, or the disk is full. */
TM_CHECKED tm_status tm_record_begin(tm_record_file *f, size_t n, void **out,
                                     tm_err *err);
void tm_record_end(tm_record_file *f); /* of the last begin; the bytes are summed */
/* Write what waits.  After a failure the next flush goes on where this one stopped. */
TM_CHECKED tm_status tm_record_flush(tm_record_file *f, tm_err *err);
size_t tm_record_waiting(const tm_record_file *f); /* bytes */
const char *tm_record_path(const tm_record_file *f);
/* Flush, make durable, close; the file is freed whatever fails.  f may be NULL. */
tm_status tm_record_close(tm_record_file *f, tm_err *err);

#endif
