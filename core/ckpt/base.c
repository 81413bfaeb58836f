#include "ckpt/base.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  A file is linked when the first of its tensors is lent.  A link shares the
 * bytes, which are never changed once they have a name; the checkpoint's directory
 * makes the name durable, as it does for files that were written.
 *
 * Invariant: linked[i] is the number of file i in the writer plus one, 0: not linked.
 */
enum { BASE_PIECE = 1 << 20 };

struct tm_ckpt_base {
  char path[TM_PATH_MAX];
  tm_ckpt_reader *r;
  size_t *linked;
  size_t n;
};

tm_status tm_ckpt_base_open(const char *path, tm_ckpt_base **out, tm_err *err) {
  *out = NULL;
  tm_ckpt_base *b = tm_calloc(1, sizeof *b);
  if (!b) return tm_nomem(err, path);
  tm_status s = tm_ckpt_open(path, &b->r, err);
  if (s == TM_OK) {
    memcpy(b->path, path, strlen(path) + 1);
    b->n = tm_ckpt_nfile(b->r);
    b->linked = tm_calloc(b->n + 1, sizeof *b->linked);
    if (!b->linked) s = tm_nomem(err, path);
  }
  if (s) {
    tm_ckpt_base_close(b);
    return s;
  }
  *out = b;
  return TM_OK;
}

void tm_ckpt_base_close(tm_ckpt_base *b) {
  if (!b) return;
  tm_ckpt_close(b->r);
  if (b->linked) tm_free(b->linked, (b->n + 1) * sizeof *b->linked);
  tm_free(b, sizeof *b);
}

bool tm_ckpt_base_has(const tm_ckpt_base *b, const char *name, tm_dtype dtype,
                      const tm_shape *shape) {
  const tm_ckpt_tensor *t = tm_ckpt_find(b->r, name);
  return t && t->dtype == dtype && tm_shape_equal(&t->shape, shape);
}

/* --- files --- */

static tm_status base_copy_bytes(int fd, const char *from, uint64_t size, tm_sink *f,
                                 tm_err *err) {
  void *room = tm_malloc(BASE_PIECE);
  tm_status s = room ? TM_OK : tm_nomem(err, from);
  for (uint64_t at = 0; at < size && s == TM_OK;) {
    size_t n = size - at < BASE_PIECE ? (size_t)(size - at) : BASE_PIECE;
    s = tm_file_pread(fd, from, room, n, at, err);
    if (s == TM_OK) s = tm_sink_put(f, room, n, err);
    at += n;
  }
  if (room) tm_free(room, BASE_PIECE);
  return s;
}

static tm_status base_copy(const char *from, const char *to, uint32_t crc,
                           tm_err *err) {
  int fd;
  uint64_t size;
  tm_sink f;
  TM_TRY(tm_file_open(from, &fd, &size, err));
  tm_status s = tm_sink_open(&f, to, err);
  if (s == TM_OK) s = base_copy_bytes(fd, from, size, &f, err);
  if (s == TM_OK) s = tm_sink_close(&f, err);
  tm_sink_abort(&f);
  tm_file_current()->close(fd);
  if (s == TM_OK && f.crc != crc)
    s = tm_fail(err, TM_EDATALOSS, "\"%.300s\" is damaged: its CRC32C is %08" PRIx32,
                from, f.crc);
  return s;
}

static tm_status base_link(tm_ckpt_base *b, tm_ckpt_writer *w, size_t i, tm_err *err) {
  char name[TM_CKPT_FILE_NAME], from[TM_PATH_MAX], to[TM_PATH_MAX];
  uint64_t size;
  uint32_t crc;
  size_t file;
  const char *old = tm_ckpt_file_at(b->r, i, &size, &crc);
  TM_TRY(tm_ckpt_reserve(w, name, &file, err));
  TM_TRY(tm_path_join(from, b->path, old, err));
  TM_TRY(tm_path_join(to, tm_ckpt_directory(w), name, err));
  if (tm_file_current()->link(from, to) < 0) {
    /* No links here, or too many of this file: a copy does as well. */
    if (errno == ENOENT || errno == ENOSPC || errno == EDQUOT || errno == EROFS)
      return tm_file_fail(err, errno, "link", from);
    TM_TRY(base_copy(from, to, crc, err));
  }
  TM_TRY(tm_ckpt_filled(w, file, size, crc, err));
  b->linked[i] = file + 1;
  return TM_OK;
}

tm_status tm_ckpt_base_lend(tm_ckpt_base *b, tm_ckpt_writer *w, const char *name,
                            tm_err *err) {
  const tm_ckpt_tensor *t = tm_ckpt_find(b->r, name);
  TM_DCHECK(t);
  for (size_t i = 0; i < t->nshard; i++)
    if (!b->linked[t->shard[i].file]) TM_TRY(base_link(b, w, t->shard[i].file, err));
  for (size_t i = 0; i < t->nshard; i++) {
    const tm_ckpt_shard *s = &t->shard[i];
    TM_TRY(tm_ckpt_note(w, name, &t->shape, t->dtype, s->first, s->rows,
                        b->linked[s->file] - 1, err));
  }
  return TM_OK;
}
