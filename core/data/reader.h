/*
 * reader.h - bytes and lines of a file, plain or gzip, in bounded memory.
 *
 *     tm_reader *r;
 *     TM_TRY(tm_reader_open("a.txt.gz", TM_COMPRESS_AUTO, &r, err));
 *     while ((s = tm_reader_line(r, &p, &n, err)) == TM_OK) use(p, n);
 *     tm_reader_close(r);      -- s is TM_ERANGE at the end of the file
 *
 * Errors: TM_ENOTFOUND or TM_EPERM from open, TM_EDATALOSS for broken gzip data or a
 * line longer than TM_READER_LINE, all with the file's name.
 *
 * Ownership: the caller's.  Threads: one at a time.
 */
#ifndef TM_DATA_READER_H
#define TM_DATA_READER_H

#include <stdbool.h>

#include "data/files.h"

typedef struct tm_reader tm_reader;

enum { TM_READER_LINE = 1 << 24 }; /* bytes of a line, or of a joined one */

TM_CHECKED tm_status tm_reader_open(const char *path, tm_compression c, tm_reader **out,
                                    tm_err *err);
void tm_reader_close(tm_reader *r); /* r may be NULL */

/* The next line without its \n or \r\n.  The bytes may be changed by the caller and
 * are valid until the next call. */
TM_CHECKED tm_status tm_reader_line(tm_reader *r, char **p, size_t *len, tm_err *err);
/* The line given last made longer by the line after it, the line end between them
 * included.  *p may move.  TM_ERANGE: no more lines, the last one stays as it is. */
TM_CHECKED tm_status tm_reader_extend(tm_reader *r, char **p, size_t *len, tm_err *err);
/* Up to n bytes; *got < n only at the end of the file. */
TM_CHECKED tm_status tm_reader_bytes(tm_reader *r, void *dst, size_t n, size_t *got,
                                     tm_err *err);

/* Leave out n bytes (a plain file is not read); behind the end nothing is left. */
TM_CHECKED tm_status tm_reader_skip(tm_reader *r, uint64_t n, tm_err *err);

int64_t tm_reader_number(const tm_reader *r); /* of the line given last, from 1; of a
                                                 joined one, its first */
const char *tm_reader_path(const tm_reader *r);

#endif
