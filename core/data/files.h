/*
 * files.h - the list of files of a source: patterns resolved, existence checked.
 *
 *     tm_files f;
 *     TM_TRY(tm_files_init(&f, names, n, "gzip", true, "csv", err));
 *     ... f.name[i] ...
 *     tm_files_release(&f);
 *
 * Ownership: the caller's struct; release frees the names.
 * Threads:   read-only once filled.
 */
#ifndef TM_DATA_FILES_H
#define TM_DATA_FILES_H

#include "base/pack.h"

typedef enum tm_compression {
  TM_COMPRESS_AUTO = 0, /* by the first bytes */
  TM_COMPRESS_GZIP = 1,
  TM_COMPRESS_NONE = 2
} tm_compression;

enum { TM_FILES_MAX = 1 << 16, TM_FILE_NAME = 4096 };

typedef struct tm_files {
  char **name;
  size_t n, cap;
  tm_compression compression;
} tm_files;

/* `who` names the source in errors.  With check every file must be there and
 * readable (TM_ENOTFOUND, TM_EPERM).  On failure *f is empty. */
TM_CHECKED tm_status tm_files_init(tm_files *f, const char *const *names, size_t n,
                                   const char *compression, bool check, const char *who,
                                   tm_err *err);
void tm_files_release(tm_files *f); /* twice is harmless */

void tm_files_pack(const tm_files *f, tm_packer *w);
/* Nothing is opened.  On failure *f is empty. */
TM_CHECKED tm_status tm_files_unpack(tm_unpacker *r, tm_files *f, tm_err *err);

#endif
