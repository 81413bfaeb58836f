#include "watch/record.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  Invariants:
 *   (1) The bytes in the file, then those in the buffer, are whole records: a write
 * that is cut short takes from the buffer exactly what it wrote, so that the file is
 *       continued where it stopped once the disk has room again.
 *   (2) The buffer has at most TM_RECORD_BUFFER bytes, or one larger record alone
 * before others of together TM_RECORD_BUFFER.
 */
enum { RECORD_HEAD = 12, RECORD_TAIL = 4, RECORD_FRAME = RECORD_HEAD + RECORD_TAIL };

struct tm_record_file {
  int fd;
  tm_buf buf;
  size_t open; /* payload of the record that was begun; SIZE_MAX: none */
  char path[TM_PATH_MAX];
};

static const char *record_remedy(tm_status s) {
  switch (s) {
    case TM_EEXHAUSTED:
      return "; make room, then flush: what waits is kept";
    case TM_EPERM:
    case TM_EINVAL:
    case TM_ENOTFOUND:
      return "; choose a directory that can be written to";
    default:
      return "";
  }
}

static tm_status record_fail(const tm_record_file *f, int number, const char *verb,
                             tm_err *err) {
  tm_status s = tm_file_fail(NULL, number, verb, f->path);
  return tm_fail(err, s, "%s \"%.300s\": %s%s", verb, f->path, strerror(number),
                 record_remedy(s));
}

tm_status tm_record_create(const char *path, tm_record_file **out, tm_err *err) {
  *out = NULL;
  size_t n = strlen(path);
  if (n >= TM_PATH_MAX)
    return tm_fail(err, TM_EINVAL, "\"%.100s...\": a path has at most %d bytes", path,
                   TM_PATH_MAX - 1);
  tm_record_file *f = tm_calloc(1, sizeof *f);
  if (!f) return tm_nomem(err, path);
  f->buf = (tm_buf)TM_BUF_INIT((size_t)TM_RECORD_MAX + 2 * TM_RECORD_BUFFER);
  f->open = SIZE_MAX;
  memcpy(f->path, path, n + 1);
  f->fd = tm_file_current()->open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (f->fd < 0) {
    tm_status s = record_fail(f, errno, "create", err);
    tm_free(f, sizeof *f);
    return s;
  }
  *out = f;
  return TM_OK;
}

/* The first n bytes were written. */
static void record_drop(tm_record_file *f, size_t n) {
  memmove(f->buf.data, f->buf.data + n, f->buf.len - n);
  f->buf.len -= n;
}

tm_status tm_record_flush(tm_record_file *f, tm_err *err) {
  size_t done = 0;
  TM_DCHECK(f->open == SIZE_MAX);
  while (done < f->buf.len) {
    ssize_t w = tm_file_current()->write(f->fd, f->buf.data + done, f->buf.len - done);
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) {
      int number = errno;
      record_drop(f, done); /* (1) */
      return record_fail(f, number, "write", err);
    }
    done += (size_t)w;
  }
  tm_buf_clear(&f->buf);
  if (f->buf.cap > 2 * (size_t)TM_RECORD_BUFFER) tm_buf_release(&f->buf);
  return TM_OK;
}

tm_status tm_record_begin(tm_record_file *f, size_t n, void **out, tm_err *err) {
  void *p;
  if (n > TM_RECORD_MAX)
    return tm_fail(
        err, TM_EEXHAUSTED,
        "write \"%.300s\": a record of %zu bytes; at most %d, so log less at "
        "once",
        f->path, n, TM_RECORD_MAX);
  if (f->buf.len > 0 && f->buf.len + n + RECORD_FRAME > TM_RECORD_BUFFER)
    TM_TRY(tm_record_flush(f, err)); /* (2) */
  if (tm_buf_grow(&f->buf, n + RECORD_FRAME, &p) != TM_OK)
    return tm_nomem(err, f->path);
  f->open = n;
  *out = (uint8_t *)p + RECORD_HEAD;
  return TM_OK;
}

static uint32_t record_crc(const void *p, size_t n) {
  uint32_t crc = tm_crc32c(0, p, n);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void tm_record_end(tm_record_file *f) {
  TM_DCHECK(f->open != SIZE_MAX);
  size_t n = f->open;
  uint8_t *p = f->buf.data + f->buf.len - n - RECORD_FRAME;
  tm_put64(p, (uint64_t)n);
  tm_put32(p + 8, record_crc(p, 8));
  tm_put32(p + RECORD_HEAD + n, record_crc(p + RECORD_HEAD, n));
  f->open = SIZE_MAX;
}

size_t tm_record_waiting(const tm_record_file *f) { return f->buf.len; }

const char *tm_record_path(const tm_record_file *f) { return f->path; }

tm_status tm_record_close(tm_record_file *f, tm_err *err) {
  if (!f) return TM_OK;
  tm_status s = tm_record_flush(f, err);
  /* A pipe or a file system without it (EINVAL) has nothing to make durable. */
  if (s == TM_OK && tm_file_current()->fsync(f->fd) < 0 && errno != EINVAL)
    s = record_fail(f, errno, "fsync", err);
  if (tm_file_current()->close(f->fd) < 0 && s == TM_OK)
    s = record_fail(f, errno, "close", err);
  tm_buf_release(&f->buf);
  tm_free(f, sizeof *f);
  return s;
}
