/*
 * file.h - files that are whole or not there: writing with fsync, replacing by rename.
 *
 * Every call that changes the file system goes through a table, so that a test may
 * count the calls, fail one, or end the process at one.
 *
 *     tm_sink f;
 *     TM_TRY(tm_sink_open(&f, "dir/data", err));
 *     TM_TRY(tm_sink_put(&f, p, n, err));        -- any number of times
 *     TM_TRY(tm_sink_close(&f, err));            -- fsync; f.size and f.crc stand
 *     TM_TRY(tm_dir_sync("dir", err));
 *
 * Failures carry the path and the system's words: a full disk is TM_EEXHAUSTED, a
 * directory that may not be written TM_EPERM, a missing one TM_ENOTFOUND.
 *
 * Threads: a sink has one at a time; the hook is installed before other threads start.
 */
#ifndef TM_CKPT_FILE_H
#define TM_CKPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

enum { TM_PATH_MAX = 4096 };

/* As the system calls of these names: negative and errno when they fail. */
typedef struct tm_file_ops {
  int (*open)(const char *path, int flags, mode_t mode);
  ssize_t (*write)(int fd, const void *p, size_t n);
  int (*fsync)(int fd);
  int (*close)(int fd);
  int (*rename)(const char *from, const char *to);
  int (*exchange)(const char *a, const char *b); /* swaps two names, or ENOSYS */
  int (*mkdir)(const char *path, mode_t mode);
  int (*unlink)(const char *path);
  int (*rmdir)(const char *path);
  ssize_t (*pwrite)(int fd, const void *p, size_t n, off_t at);
  int (*link)(const char *from, const char *to);
} tm_file_ops;

/* Install a table; NULL restores the system's. */
void tm_file_hook(const tm_file_ops *ops);
const tm_file_ops *tm_file_current(void);
const tm_file_ops *tm_file_system(void); /* for a hook that passes calls on */

/* "verb path: what the system says", with the code of the given errno. */
tm_status tm_file_fail(tm_err *err, int number, const char *verb, const char *path);

/* dir/name into out, which has TM_PATH_MAX bytes. */
TM_CHECKED tm_status tm_path_join(char *out, const char *dir, const char *name,
                                  tm_err *err);
/* The path from the root on: what another process is told. */
TM_CHECKED tm_status tm_path_absolute(char *out, const char *path, tm_err *err);
/* The part of path before the last name; "." when there is none. */
TM_CHECKED tm_status tm_path_parent(char *out, const char *path, tm_err *err);
/* Is it one name: not empty, no '/', no NUL, not "." or ".."? */
bool tm_path_is_name(const char *name);

/* A new file being written. */
typedef struct tm_sink {
  int fd; /* -1: closed */
  uint32_t crc;
  uint64_t size, started; /* bytes written, bytes that the disk was told of */
  char path[TM_PATH_MAX];
} tm_sink;

/* Creates the file; one that is there is emptied. */
TM_CHECKED tm_status tm_sink_open(tm_sink *f, const char *path, tm_err *err);
TM_CHECKED tm_status tm_sink_put(tm_sink *f, const void *p, size_t n, tm_err *err);
/* n bytes that do not follow what was put, at a place behind it; neither size nor crc
 * know of them until tm_sink_skip, which passes over n such bytes with their crc. */
TM_CHECKED tm_status tm_sink_put_at(tm_sink *f, const void *p, size_t n, uint64_t at,
                                    tm_err *err);
TM_CHECKED tm_status tm_sink_skip(tm_sink *f, uint64_t n, uint32_t crc, tm_err *err);
/* Make it durable and close it. */
TM_CHECKED tm_status tm_sink_close(tm_sink *f, tm_err *err);
void tm_sink_abort(tm_sink *f); /* close only; twice is harmless */

/* Make what was created, renamed and removed in a directory durable. */
TM_CHECKED tm_status tm_dir_sync(const char *path, tm_err *err);
/* Make a directory and those above it; durable. */
TM_CHECKED tm_status tm_dir_make(const char *path, tm_err *err);
/* Give the directory `temp` the name `path`; one that had it is swapped away and is
 * `temp` afterwards (*swapped).  Both have the same parent, which is made durable. */
TM_CHECKED tm_status tm_dir_publish(const char *temp, const char *path, bool *swapped,
                                    tm_err *err);

/* Hold a directory while it is in use: *fd, closed by the caller, keeps it.  False: it
 * is held by another process (errno is EWOULDBLOCK), gone, or its file system has no
 * locks (*fd is -1). */
bool tm_dir_hold(const char *path, int *fd);

/* Wait, for at most `seconds`, until nobody else holds the lock of a directory: *fd,
 * closed by the caller, keeps it.  -1: the file system has no locks, or the directory
 * is not there.  TM_ETIMEOUT: somebody held it all the time. */
TM_CHECKED tm_status tm_dir_lock(const char *path, double seconds, int *fd,
                                 tm_err *err);
/* Remove what killed replaces of dir/name left; under the directory's lock. */
void tm_file_sweep(const char *dir, const char *name);

/* Replace dir/name by n bytes, all of them or none; durable. */
TM_CHECKED tm_status tm_file_replace(const char *dir, const char *name, const void *p,
                                     size_t n, tm_err *err);
/* A whole file of at most max bytes. */
TM_CHECKED tm_status tm_file_read(const char *path, size_t max, tm_buf *out,
                                  tm_err *err);
/* n bytes at offset of an open file; a file that ends earlier is TM_EDATALOSS. */
TM_CHECKED tm_status tm_file_pread(int fd, const char *path, void *p, size_t n,
                                   uint64_t offset, tm_err *err);
TM_CHECKED tm_status tm_file_open(const char *path, int *fd, uint64_t *size,
                                  tm_err *err);

#endif
