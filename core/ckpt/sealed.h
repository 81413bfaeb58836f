/*
 * sealed.h - small JSON files that carry their own checksum.
 *
 * The file is one JSON object whose first line is `{"crc32c": "0123abcd",`; the sum is
 * over all bytes after that line.  It is replaced as a whole (ckpt/file.h), so a reader
 * finds the old one or the new one.
 *
 * Ownership: json_t as jansson has it; read gives one reference.
 * Threads:   any.
 */
#ifndef TM_CKPT_SEALED_H
#define TM_CKPT_SEALED_H

#include <jansson.h>

#include "base/status.h"

enum { TM_SEALED_MAX = 256 << 20 }; /* bytes of a file */

/* Write the object as dir/name. */
TM_CHECKED tm_status tm_sealed_write(const char *dir, const char *name, json_t *body,
                                     tm_err *err);
/* TM_EDATALOSS: the file is not what was written.  *out has "crc32c" too. */
TM_CHECKED tm_status tm_sealed_read(const char *dir, const char *name, json_t **out,
                                    tm_err *err);

#endif
