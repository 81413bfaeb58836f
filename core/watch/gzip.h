/*
 * gzip.h - a whole file, packed as gzip does.
 *
 *     TM_TRY(tm_gzip_write("logs/host.trace.json.gz", text, n, err));
 *
 * Threads: any.
 */
#ifndef TM_WATCH_GZIP_H
#define TM_WATCH_GZIP_H

#include <stddef.h>

#include "base/status.h"

enum { TM_GZIP_MAX = 256 << 20 }; /* bytes before packing */

/* The file is made or replaced; its directory exists.  A failure leaves a part of it.
 */
TM_CHECKED tm_status tm_gzip_write(const char *path, const void *p, size_t n,
                                   tm_err *err);

#endif
