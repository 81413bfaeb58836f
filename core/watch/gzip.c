#include "watch/gzip.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <zlib.h>

#include "base/buf.h"
#include "ckpt/file.h"

/* Design.  Packed in memory, then written at once: such files are small. */
enum { GZIP_LEVEL = 6, GZIP_WINDOW = 15 + 16 /* zlib: a gzip header */ };

static tm_status gzip_pack(const void *p, size_t n, tm_buf *out) {
  z_stream z;
  void *to;
  memset(&z, 0, sizeof z);
  if (deflateInit2(&z, GZIP_LEVEL, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY) !=
      Z_OK)
    return TM_ENOMEM;
  size_t room = deflateBound(&z, (uLong)n);
  tm_status s = tm_buf_grow(out, room, &to);
  if (s == TM_OK) {
    z.next_in = (Bytef *)(uintptr_t)p;
    z.avail_in = (uInt)n;
    z.next_out = to;
    z.avail_out = (uInt)room;
    s = deflate(&z, Z_FINISH) == Z_STREAM_END ? TM_OK : TM_EINTERNAL;
    out->len -= z.avail_out;
  }
  (void)deflateEnd(&z);
  return s;
}

static tm_status gzip_put(int fd, const char *path, const tm_buf *b, tm_err *err) {
  for (size_t done = 0; done < b->len;) {
    ssize_t w = tm_file_current()->write(fd, b->data + done, b->len - done);
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return tm_file_fail(err, errno, "write", path);
    done += (size_t)w;
  }
  return TM_OK;
}

tm_status tm_gzip_write(const char *path, const void *p, size_t n, tm_err *err) {
  if (n > TM_GZIP_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "\"%.300s\": %zu bytes, at most %d", path, n,
                   TM_GZIP_MAX);
  tm_buf packed = TM_BUF_INIT((size_t)TM_GZIP_MAX + (TM_GZIP_MAX >> 8));
  tm_status s = gzip_pack(p, n, &packed);
  if (s) {
    tm_buf_release(&packed);
    return tm_fail(err, s, "\"%.300s\": no memory to pack %zu bytes", path, n);
  }
  int fd =
      tm_file_current()->open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    s = tm_file_fail(err, errno, "create", path);
  } else {
    s = gzip_put(fd, path, &packed, err);
    if (tm_file_current()->close(fd) < 0 && s == TM_OK)
      s = tm_file_fail(err, errno, "close", path);
  }
  tm_buf_release(&packed);
  return s;
}
