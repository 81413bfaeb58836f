#include "data/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  One window of decoded bytes; a line is a run inside it.  The window moves
 * to the front when it is full, and grows only while a single line fills it.
 *
 * Invariants:
 *   (1) beg <= pos <= len <= cap: the line given last begins at beg, what was not
 *       given yet at pos.
 *   (2) cap <= READER_WINDOW, or a line of more than cap / 2 bytes is in it.
 *   (3) After an error every call gives it again: there is no way to go on behind
 *       broken gzip data.
 */
enum { READER_WINDOW = 1 << 16, READER_INPUT = 1 << 16 };

struct tm_reader {
  char *path;
  int fd;
  bool gzip;
  bool eof;    /* no more decoded bytes will come */
  bool in_eof; /* the file's own end */
  bool zready; /* z is initialised */
  bool zdone;  /* a gzip member ended */
  z_stream z;
  uint8_t *in; /* READER_INPUT raw bytes (gzip) */
  char *buf;
  size_t cap, beg, pos, len;
  int64_t line, next_line; /* numbers of the line given last, and of the next */
  tm_status broken;
  char why[64];
};

static tm_status reader_fail(tm_reader *r, const char *why, tm_err *err) {
  if (why) {
    r->broken = TM_EDATALOSS;
    size_t n = strlen(why);
    if (n >= sizeof r->why) n = sizeof r->why - 1;
    memcpy(r->why, why, n);
    r->why[n] = 0;
  }
  return tm_fail(err, r->broken, "%s: %s (near line %lld)", r->path, r->why,
                 (long long)r->next_line);
}

/* Raw bytes of the file; 0 at its end. */
static tm_status reader_raw(tm_reader *r, void *dst, size_t n, size_t *got,
                            tm_err *err) {
  ssize_t k;
  do k = read(r->fd, dst, n);
  while (k < 0 && errno == EINTR);
  if (k < 0) return reader_fail(r, strerror(errno), err);
  *got = (size_t)k;
  return TM_OK;
}

/* Decide about gzip by the first bytes, which stay in `in`. */
static tm_status reader_sniff(tm_reader *r, tm_compression c, tm_err *err) {
  size_t have = 0, got = 1;
  while (have < 2 && got > 0) {
    TM_TRY(reader_raw(r, r->in + have, READER_INPUT - have, &got, err));
    have += got;
  }
  bool magic = have >= 2 && r->in[0] == 0x1f && r->in[1] == 0x8b;
  r->gzip = c != TM_COMPRESS_NONE && (magic || c == TM_COMPRESS_GZIP);
  r->z.next_in = r->in;
  r->z.avail_in = (uInt)have;
  if (!r->gzip) return TM_OK;
  if (!magic) return reader_fail(r, "not gzip data", err);
  if (inflateInit2(&r->z, 15 + 16) != Z_OK) return tm_nomem(err, "gzip");
  r->zready = true;
  return TM_OK;
}

/* The sniffed bytes of a plain file go first. */
static tm_status reader_plain(tm_reader *r, void *dst, size_t n, size_t *got,
                              tm_err *err) {
  if (r->z.avail_in == 0) return reader_raw(r, dst, n, got, err);
  *got = n < r->z.avail_in ? n : r->z.avail_in;
  memcpy(dst, r->z.next_in, *got);
  r->z.next_in += *got;
  r->z.avail_in -= (uInt)*got;
  return TM_OK;
}

static tm_status reader_input(tm_reader *r, tm_err *err) {
  size_t got;
  if (r->z.avail_in > 0 || r->in_eof) return TM_OK;
  TM_TRY(reader_raw(r, r->in, READER_INPUT, &got, err));
  r->in_eof = got == 0;
  r->z.next_in = r->in;
  r->z.avail_in = (uInt)got;
  return TM_OK;
}

/* Decoded bytes; members one after the other are one stream, as gunzip does. */
static tm_status reader_gunzip(tm_reader *r, void *dst, size_t n, size_t *got,
                               tm_err *err) {
  if (n > UINT32_MAX) n = UINT32_MAX;
  r->z.next_out = dst;
  r->z.avail_out = (uInt)n;
  while (r->z.avail_out == n) {
    TM_TRY(reader_input(r, err));
    if (r->z.avail_in == 0) {
      if (!r->zdone) return reader_fail(r, "gzip data end too early", err);
      break;
    }
    if (r->zdone && inflateReset(&r->z) != Z_OK) return tm_nomem(err, "gzip");
    r->zdone = false;
    int s = inflate(&r->z, Z_NO_FLUSH);
    if (s == Z_STREAM_END)
      r->zdone = true;
    else if (s == Z_MEM_ERROR)
      return tm_nomem(err, "gzip");
    else if (s != Z_OK && s != Z_BUF_ERROR)
      return reader_fail(r, "corrupt gzip data", err);
  }
  *got = n - r->z.avail_out;
  return TM_OK;
}

static tm_status reader_decode(tm_reader *r, void *dst, size_t n, size_t *got,
                               tm_err *err) {
  *got = 0;
  if (r->broken) return reader_fail(r, NULL, err);
  if (r->eof) return TM_OK;
  TM_TRY(r->gzip ? reader_gunzip(r, dst, n, got, err)
                 : reader_plain(r, dst, n, got, err));
  r->eof = *got == 0;
  return TM_OK;
}

/* Make room behind len: move to the front, then grow. */
static tm_status reader_room(tm_reader *r, tm_err *err) {
  if (r->len < r->cap) return TM_OK;
  if (r->beg > 0) {
    memmove(r->buf, r->buf + r->beg, r->len - r->beg);
    r->pos -= r->beg;
    r->len -= r->beg;
    r->beg = 0;
    if (r->len <= r->cap / 2 || (r->cap >= TM_READER_LINE && r->len < r->cap))
      return TM_OK;
  }
  if (r->cap >= TM_READER_LINE) return reader_fail(r, "the line is too long", err);
  void *p = tm_realloc(r->buf, r->cap, 2 * r->cap);
  if (!p) return tm_nomem(err, "a line");
  r->buf = p;
  r->cap *= 2;
  return TM_OK;
}

/* Extend the run from beg over the next line end. */
static tm_status reader_scan(tm_reader *r, char **p, size_t *len, tm_err *err) {
  size_t from = r->pos;
  char *nl = NULL;
  for (;;) {
    if (from < r->len) nl = memchr(r->buf + from, '\n', r->len - from);
    if (nl || r->eof) break;
    size_t done = r->len - r->pos, got;
    TM_TRY(reader_room(r, err));
    from = r->pos + done;
    TM_TRY(reader_decode(r, r->buf + r->len, r->cap - r->len, &got, err));
    r->len += got;
  }
  if (!nl && r->pos == r->len) return TM_ERANGE;
  size_t end = nl ? (size_t)(nl - r->buf) : r->len;
  r->pos = nl ? end + 1 : end;
  r->next_line++;
  if (end > r->beg && r->buf[end - 1] == '\r') end--;
  *p = r->buf + r->beg;
  *len = end - r->beg;
  TM_DCHECK(r->beg <= r->pos && r->pos <= r->len && r->len <= r->cap); /* (1) */
  return TM_OK;
}

tm_status tm_reader_line(tm_reader *r, char **p, size_t *len, tm_err *err) {
  r->beg = r->pos;
  int64_t number = r->next_line;
  TM_TRY(reader_scan(r, p, len, err));
  r->line = number;
  if (number == 1 && *len >= 3 && memcmp(*p, "\xef\xbb\xbf", 3) == 0) {
    r->beg += 3; /* a byte order mark is no text */
    *p += 3;
    *len -= 3;
  }
  return TM_OK;
}

tm_status tm_reader_extend(tm_reader *r, char **p, size_t *len, tm_err *err) {
  tm_status s = reader_scan(r, p, len, err);
  *p = r->buf + r->beg; /* looking for more may have moved it */
  return s;
}

tm_status tm_reader_bytes(tm_reader *r, void *dst, size_t n, size_t *got, tm_err *err) {
  char *to = dst;
  size_t k = r->len - r->pos < n ? r->len - r->pos : n;
  if (k > 0) memcpy(to, r->buf + r->pos, k);
  r->pos += k;
  r->beg = r->pos;
  for (*got = k; *got < n; *got += k) {
    TM_TRY(reader_decode(r, to + *got, n - *got, &k, err));
    if (k == 0) break;
  }
  return TM_OK;
}

/* What is in the window or was sniffed; the rest of a plain file by its position. */
tm_status tm_reader_skip(tm_reader *r, uint64_t n, tm_err *err) {
  while (n > 0) {
    size_t have = r->len - r->pos, got = 0;
    size_t k = n < have ? (size_t)n : have;
    r->pos += k;
    r->beg = r->pos;
    n -= k;
    if (n == 0) break;
    if (!r->gzip && r->z.avail_in == 0 && !r->eof && !r->broken) {
      if (n <= INT64_MAX && lseek(r->fd, (off_t)n, SEEK_CUR) >= 0) return TM_OK;
    }
    r->beg = r->pos = r->len = 0;
    TM_TRY(reader_decode(r, r->buf, r->cap, &got, err));
    if (got == 0) break;
    r->len = got;
  }
  return TM_OK;
}

int64_t tm_reader_number(const tm_reader *r) { return r->line; }

const char *tm_reader_path(const tm_reader *r) { return r->path; }

void tm_reader_close(tm_reader *r) {
  if (!r) return;
  if (r->zready) inflateEnd(&r->z);
  if (r->fd >= 0) close(r->fd);
  tm_free(r->in, READER_INPUT);
  tm_free(r->buf, r->cap);
  tm_strfree(r->path);
  tm_free(r, sizeof *r);
}

tm_status tm_reader_open(const char *path, tm_compression c, tm_reader **out,
                         tm_err *err) {
  *out = NULL;
  tm_reader *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, "a file");
  r->fd = -1;
  r->next_line = 1;
  r->cap = READER_WINDOW;
  r->path = tm_strdup(path);
  r->in = tm_malloc(READER_INPUT);
  r->buf = tm_malloc(READER_WINDOW);
  tm_status s = TM_OK;
  if (!r->path || !r->in || !r->buf) {
    s = tm_nomem(err, "a file");
  } else if ((r->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
    s = errno == EACCES || errno == EPERM ? TM_EPERM : TM_ENOTFOUND;
    s = tm_fail(err, s, "cannot open %s: %s", path, strerror(errno));
  } else {
    s = reader_sniff(r, c, err);
  }
  if (s != TM_OK) {
    tm_reader_close(r);
    return s;
  }
  *out = r;
  return TM_OK;
}
