#include "ckpt/single.h"

#include <string.h>

#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  Invariant: items before `at` are whole, of item `at` so many `bytes` were
 * written, so the file's bytes always are those of a prefix.
 */
struct tm_ckpt_single {
  tm_ckpt_writer *w;
  size_t file, n, at;
  uint64_t bytes;
  tm_sink sink;
  tm_st_item item[];
};

static size_t single_size(size_t n) {
  return sizeof(tm_ckpt_single) + n * sizeof(tm_st_item);
}

static uint64_t single_bytes(const tm_st_item *it) {
  return (uint64_t)tm_shape_count(&it->shape) * tm_dtype_size(it->dtype);
}

/* Past what is whole already. */
static void single_skip(tm_ckpt_single *s) {
  while (s->at < s->n && s->bytes == single_bytes(&s->item[s->at])) {
    s->at++;
    s->bytes = 0;
  }
}

static tm_status single_header(tm_ckpt_single *s, tm_err *err) {
  char path[TM_PATH_MAX];
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER + TM_ST_ALIGN);
  tm_status st = tm_st_header(s->item, s->n, &head, err);
  if (!st) st = tm_path_join(path, tm_ckpt_directory(s->w), TM_CKPT_MODEL_DATA, err);
  if (!st) st = tm_sink_open(&s->sink, path, err);
  if (!st) st = tm_sink_put(&s->sink, head.data, head.len, err);
  tm_buf_release(&head);
  return st;
}

tm_status tm_ckpt_single_open(tm_ckpt_writer *w, const tm_st_item *items, size_t n,
                              tm_ckpt_single **out, tm_err *err) {
  *out = NULL;
  tm_ckpt_single *s = tm_calloc(1, single_size(n));
  if (!s) return tm_nomem(err, "a model");
  s->w = w;
  s->n = n;
  s->sink.fd = -1;
  for (size_t i = 0; i < n; i++) {
    s->item[i] = items[i];
    s->item[i].name = tm_strdup(items[i].name);
  }
  tm_status st = TM_OK;
  for (size_t i = 0; i < n; i++)
    if (!s->item[i].name) st = tm_nomem(err, "a model");
  if (!st) st = tm_ckpt_reserve_as(w, TM_CKPT_MODEL_DATA, &s->file, err);
  if (!st) st = single_header(s, err);
  if (st) {
    tm_ckpt_single_free(s);
    return st;
  }
  single_skip(s);
  *out = s;
  return TM_OK;
}

tm_status tm_ckpt_single_put(tm_ckpt_single *s, const tm_view *v, tm_err *err) {
  uint64_t n = tm_view_bytes(v);
  if (n == 0) return TM_OK;
  const tm_st_item *it = s->at < s->n ? &s->item[s->at] : NULL;
  if (!it || v->dtype != it->dtype || n > single_bytes(it) - s->bytes)
    return tm_fail(err, TM_EINVAL, "a piece of \"%.200s\" is not what was announced",
                   it ? it->name : "?");
  TM_TRY(tm_sink_put(&s->sink, v->data, (size_t)n, err));
  s->bytes += n;
  single_skip(s);
  return TM_OK;
}

tm_status tm_ckpt_single_close(tm_ckpt_single *s, tm_err *err) {
  if (s->at < s->n)
    return tm_fail(err, TM_EPRECOND, "\"%.200s\" is not whole", s->item[s->at].name);
  TM_TRY(tm_sink_close(&s->sink, err));
  TM_TRY(tm_ckpt_filled(s->w, s->file, s->sink.size, s->sink.crc, err));
  for (size_t i = 0; i < s->n; i++) {
    const tm_st_item *it = &s->item[i];
    int64_t rows = it->shape.rank ? it->shape.dim[0] : 1;
    TM_TRY(tm_ckpt_note(s->w, it->name, &it->shape, it->dtype, 0, rows, s->file, err));
  }
  return TM_OK;
}

void tm_ckpt_single_free(tm_ckpt_single *s) {
  if (!s) return;
  tm_sink_abort(&s->sink);
  for (size_t i = 0; i < s->n; i++) tm_strfree((char *)(uintptr_t)s->item[i].name);
  tm_free(s, single_size(s->n));
}
