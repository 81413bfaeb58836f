#define _GNU_SOURCE /* renameat2, flock */
#include "ckpt/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32c.h"

/*
 * Design.  A name appears only once what it stands for is durable: the bytes (fsync of
 * the file), then the names in its directory (fsync of the directory), then the rename,
 * then fsync of the parent.
 *
 * The swap of two directories is Linux's renameat2 (3.15).  Where a kernel or file
 * system has not got it, the old one is moved aside first: for that moment, and only
 * where a checkpoint overwrites another of its name, neither is there.
 *
 * The table is the only global: it is for tests, and is set before threads start.
 */
enum {
  FILE_PIECE = 1 << 20, /* written and summed while it is in the cache */
  FILE_START = 8 << 20, /* handed to the disk at once */
  FILE_LOCK_POLL_NS = 5000000
};

static int system_open(const char *path, int flags, mode_t mode) {
  return open(path, flags, mode);
}

static int system_exchange(const char *a, const char *b) {
#ifdef RENAME_EXCHANGE
  return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
#else
  (void)a;
  (void)b;
  errno = ENOSYS;
  return -1;
#endif
}

static const tm_file_ops file_system = {system_open, write,           fsync, close,
                                        rename,      system_exchange, mkdir, unlink,
                                        rmdir,       pwrite,          link};
static const tm_file_ops *file_ops = &file_system;

void tm_file_hook(const tm_file_ops *ops) { file_ops = ops ? ops : &file_system; }

const tm_file_ops *tm_file_current(void) { return file_ops; }

const tm_file_ops *tm_file_system(void) { return &file_system; }

static tm_status file_code(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
      return TM_EEXHAUSTED;
    case EACCES:
    case EPERM:
    case EROFS:
      return TM_EPERM;
    case ENOENT:
      return TM_ENOTFOUND;
    case EEXIST:
    case ENOTEMPTY:
      return TM_EEXISTS;
    case ENOTDIR:
    case EISDIR:
    case ENAMETOOLONG:
    case ELOOP:
      return TM_EINVAL;
    case EIO:
      return TM_EDATALOSS;
    case ENOMEM:
      return TM_ENOMEM;
    default:
      return TM_EUNKNOWN;
  }
}

tm_status tm_file_fail(tm_err *err, int number, const char *verb, const char *path) {
  return tm_fail(err, file_code(number), "%s \"%.300s\": %s", verb, path,
                 strerror(number));
}

/* --- names --- */

static tm_status path_long(const char *path, tm_err *err) {
  return tm_fail(err, TM_EINVAL, "\"%.100s...\": a path has at most %d bytes", path,
                 TM_PATH_MAX - 1);
}

tm_status tm_path_join(char *out, const char *dir, const char *name, tm_err *err) {
  size_t n = strlen(dir);
  bool slash = n > 0 && dir[n - 1] == '/';
  int len = snprintf(out, TM_PATH_MAX, "%s%s%s", dir, slash ? "" : "/", name);
  return len < 0 || len >= TM_PATH_MAX ? path_long(dir, err) : TM_OK;
}

tm_status tm_path_absolute(char *out, const char *path, tm_err *err) {
  char cwd[TM_PATH_MAX];
  if (path[0] == '/') return tm_path_join(out, "/", path + 1, err);
  if (!getcwd(cwd, sizeof cwd)) return tm_file_fail(err, errno, "find", ".");
  return tm_path_join(out, cwd, path, err);
}

tm_status tm_path_parent(char *out, const char *path, tm_err *err) {
  size_t n = strlen(path);
  if (n >= TM_PATH_MAX) return path_long(path, err);
  while (n > 1 && path[n - 1] == '/') n--;
  while (n > 0 && path[n - 1] != '/') n--;
  while (n > 1 && path[n - 1] == '/') n--;
  if (n == 0) {
    memcpy(out, ".", 2);
  } else {
    memcpy(out, path, n);
    out[n] = '\0';
  }
  return TM_OK;
}

bool tm_path_is_name(const char *name) {
  if (!*name || strchr(name, '/')) return false;
  return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* --- writing --- */

tm_status tm_sink_open(tm_sink *f, const char *path, tm_err *err) {
  f->fd = -1;
  f->crc = 0;
  f->size = 0;
  f->started = 0;
  if (strlen(path) >= TM_PATH_MAX) return path_long(path, err);
  memcpy(f->path, path, strlen(path) + 1);
  f->fd = file_ops->open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return f->fd < 0 ? tm_file_fail(err, errno, "create", path) : TM_OK;
}

/* Let the disk begin while the next piece is summed, so that fsync has less to wait
 * for. Linux only; where it is missing fsync does it all. */
static void sink_start(tm_sink *f) {
#ifdef SYNC_FILE_RANGE_WRITE
  if (f->size - f->started < FILE_START) return;
  if (sync_file_range(f->fd, (off_t)f->started, (off_t)(f->size - f->started),
                      SYNC_FILE_RANGE_WRITE) < 0)
    f->started = UINT64_MAX / 2; /* never again; said by fsync if it matters */
  else
    f->started = f->size;
#else
  (void)f;
#endif
}

tm_status tm_sink_put(tm_sink *f, const void *p, size_t n, tm_err *err) {
  const char *at = p;
  while (n > 0) {
    size_t piece = n < FILE_PIECE ? n : FILE_PIECE;
    ssize_t done = file_ops->write(f->fd, at, piece);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return tm_file_fail(err, errno, "write", f->path);
    f->crc = tm_crc32c(f->crc, at, (size_t)done);
    f->size += (uint64_t)done;
    sink_start(f);
    at += done;
    n -= (size_t)done;
  }
  return TM_OK;
}

tm_status tm_sink_put_at(tm_sink *f, const void *p, size_t n, uint64_t at,
                         tm_err *err) {
  for (size_t done = 0; done < n;) {
    ssize_t w =
        file_ops->pwrite(f->fd, (const char *)p + done, n - done, (off_t)(at + done));
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return tm_file_fail(err, errno, "write", f->path);
    done += (size_t)w;
  }
  return TM_OK;
}

tm_status tm_sink_skip(tm_sink *f, uint64_t n, uint32_t crc, tm_err *err) {
  f->crc = tm_crc32c_join(f->crc, crc, n);
  f->size += n;
  if (lseek(f->fd, (off_t)f->size, SEEK_SET) < 0)
    return tm_file_fail(err, errno, "seek", f->path);
  return TM_OK;
}

void tm_sink_abort(tm_sink *f) {
  if (f->fd >= 0) file_ops->close(f->fd);
  f->fd = -1;
}

tm_status tm_sink_close(tm_sink *f, tm_err *err) {
  if (file_ops->fsync(f->fd) < 0) {
    tm_status s = tm_file_fail(err, errno, "fsync", f->path);
    tm_sink_abort(f);
    return s;
  }
  int failed = file_ops->close(f->fd);
  f->fd = -1;
  return failed ? tm_file_fail(err, errno, "close", f->path) : TM_OK;
}

/* --- directories --- */

tm_status tm_dir_sync(const char *path, tm_err *err) {
  int fd = file_ops->open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (fd < 0) return tm_file_fail(err, errno, "open", path);
  tm_status s = TM_OK;
  /* A file system without it (EINVAL) keeps directories durable by itself. */
  if (file_ops->fsync(fd) < 0 && errno != EINVAL)
    s = tm_file_fail(err, errno, "fsync", path);
  file_ops->close(fd);
  return s;
}

static tm_status dir_make_one(const char *path, tm_err *err) {
  struct stat st;
  if (stat(path, &st) == 0) {
    if (S_ISDIR(st.st_mode)) return TM_OK;
    return tm_file_fail(err, ENOTDIR, "make the directory", path);
  }
  if (file_ops->mkdir(path, 0777) < 0 && errno != EEXIST)
    return tm_file_fail(err, errno, "make the directory", path);
  char parent[TM_PATH_MAX];
  TM_TRY(tm_path_parent(parent, path, err));
  return tm_dir_sync(parent, err);
}

tm_status tm_dir_make(const char *path, tm_err *err) {
  char part[TM_PATH_MAX];
  size_t n = strlen(path);
  if (n >= TM_PATH_MAX) return path_long(path, err);
  if (n == 0) return tm_fail(err, TM_EINVAL, "the name of the directory is empty");
  for (size_t i = 1; i < n; i++) {
    if (path[i] != '/' || path[i - 1] == '/') continue;
    memcpy(part, path, i);
    part[i] = '\0';
    TM_TRY(dir_make_one(part, err));
  }
  return dir_make_one(path, err);
}

/* The old one goes aside under a name that nobody else takes, then takes temp's. */
static tm_status dir_swap_by_hand(const char *temp, const char *path, tm_err *err) {
  char aside[TM_PATH_MAX];
  int n = snprintf(aside, sizeof aside, "%s-old", temp);
  if (n < 0 || n >= TM_PATH_MAX) return path_long(temp, err);
  if (file_ops->rename(path, aside) < 0)
    return tm_file_fail(err, errno, "rename", path);
  if (file_ops->rename(temp, path) < 0) {
    tm_status s = tm_file_fail(err, errno, "rename", temp);
    file_ops->rename(aside, path);
    return s;
  }
  if (file_ops->rename(aside, temp) < 0)
    return tm_file_fail(err, errno, "rename", aside);
  return TM_OK;
}

tm_status tm_dir_publish(const char *temp, const char *path, bool *swapped,
                         tm_err *err) {
  char parent[TM_PATH_MAX];
  TM_TRY(tm_path_parent(parent, path, err));
  *swapped = false;
  if (file_ops->rename(temp, path) < 0) {
    if (errno != ENOTEMPTY && errno != EEXIST)
      return tm_file_fail(err, errno, "rename", path);
    if (file_ops->exchange(temp, path) < 0) {
      if (errno != ENOSYS && errno != EINVAL)
        return tm_file_fail(err, errno, "rename", path);
      TM_TRY(dir_swap_by_hand(temp, path, err));
    }
    *swapped = true;
  }
  return tm_dir_sync(parent, err);
}

bool tm_dir_hold(const char *path, int *fd) {
  *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0) return false;
  if (flock(*fd, LOCK_EX | LOCK_NB) == 0) return true;
  int number = errno;
  close(*fd);
  *fd = -1;
  errno = number;
  return false;
}

tm_status tm_dir_lock(const char *path, double seconds, int *fd, tm_err *err) {
  int64_t end = tm_now_ns() + (int64_t)(seconds * 1e9);
  *fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (*fd < 0) return TM_OK;
  while (flock(*fd, LOCK_EX | LOCK_NB) < 0) {
    bool held = errno == EWOULDBLOCK, late = tm_now_ns() > end;
    if (errno == EINTR) continue;
    if (held && !late) {
      tm_sleep_ns(FILE_LOCK_POLL_NS);
      continue;
    }
    close(*fd);
    *fd = -1;
    if (!held) return TM_OK;
    return tm_fail(err, TM_ETIMEOUT,
                   "\"%.300s\": another process has held its lock for %g s", path,
                   seconds);
  }
  return TM_OK;
}

/* NAME.tmp-<16 hex digits>, as tm_file_replace makes them. */
static bool file_is_temp(const char *entry, const char *name) {
  size_t n = strlen(name);
  return strncmp(entry, name, n) == 0 && strncmp(entry + n, ".tmp-", 5) == 0 &&
         strlen(entry + n + 5) == 16 && strspn(entry + n + 5, "0123456789abcdef") == 16;
}

void tm_file_sweep(const char *dir, const char *name) {
  char path[TM_PATH_MAX];
  DIR *d = opendir(dir);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));)
    if (file_is_temp(e->d_name, name) &&
        tm_path_join(path, dir, e->d_name, NULL) == TM_OK)
      file_ops->unlink(path);
  closedir(d);
}

tm_status tm_file_replace(const char *dir, const char *name, const void *p, size_t n,
                          tm_err *err) {
  char path[TM_PATH_MAX], temp_name[300], temp[TM_PATH_MAX];
  snprintf(temp_name, sizeof temp_name, "%.200s.tmp-%016" PRIx64, name, tm_random_id());
  TM_TRY(tm_path_join(path, dir, name, err));
  TM_TRY(tm_path_join(temp, dir, temp_name, err));
  tm_sink f;
  TM_TRY(tm_sink_open(&f, temp, err));
  tm_status s = tm_sink_put(&f, p, n, err);
  if (s == TM_OK) s = tm_sink_close(&f, err);
  if (s == TM_OK && file_ops->rename(temp, path) < 0)
    s = tm_file_fail(err, errno, "rename", path);
  if (s) {
    tm_sink_abort(&f);
    file_ops->unlink(temp);
    return s;
  }
  return tm_dir_sync(dir, err);
}

/* --- reading --- */

tm_status tm_file_open(const char *path, int *fd, uint64_t *size, tm_err *err) {
  struct stat st;
  *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (*fd < 0) return tm_file_fail(err, errno, "open", path);
  if (fstat(*fd, &st) == 0 && S_ISREG(st.st_mode)) {
    *size = (uint64_t)st.st_size;
    return TM_OK;
  }
  close(*fd);
  *fd = -1;
  return tm_fail(err, TM_EINVAL, "open \"%.300s\": not a file", path);
}

tm_status tm_file_pread(int fd, const char *path, void *p, size_t n, uint64_t offset,
                        tm_err *err) {
  char *at = p;
  while (n > 0) {
    ssize_t done = pread(fd, at, n, (off_t)offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return tm_file_fail(err, errno, "read", path);
    if (done == 0)
      return tm_fail(err, TM_EDATALOSS, "read \"%.300s\": the file is cut off", path);
    at += done;
    n -= (size_t)done;
    offset += (uint64_t)done;
  }
  return TM_OK;
}

tm_status tm_file_read(const char *path, size_t max, tm_buf *out, tm_err *err) {
  int fd;
  uint64_t size;
  void *p = NULL;
  TM_TRY(tm_file_open(path, &fd, &size, err));
  tm_status s = TM_OK;
  if (size > max)
    s = tm_fail(err, TM_EDATALOSS, "\"%.300s\" has %" PRIu64 " bytes, more than %zu",
                path, size, max);
  tm_buf_clear(out);
  if (s == TM_OK && tm_buf_grow(out, (size_t)size, &p) != TM_OK)
    s = tm_nomem(err, path);
  if (s == TM_OK) s = tm_file_pread(fd, path, p, (size_t)size, 0, err);
  close(fd);
  return s;
}
