#include "ckpt/writer.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "ckpt/file.h"
#include "ckpt/safetensors.h"
#include "ckpt/sealed.h"
#include "tensor/codec.h"

/*
 * Design.  put() collects references; flush() writes them as one safetensors file.  The
 * index is a jansson tree that grows along.  commit() writes the index last, makes the
 * directory durable, and then gives it its name.
 *
 * Invariants:
 *   (1) Pieces of a tensor come in order: `rows` of the last tensor counts what came,
 *       and a new name is taken only when the last tensor is whole.
 *   (2) Until commit() succeeds nothing exists under `path` that was not there before.
 *   (3) `hold` is the lock on the directory `temp`, -1 where there are no locks.
 *   (4) After a failure the writer only may be freed: `status` keeps the first one.
 */
enum {
  WRITER_BATCH = 4096,
  WRITER_MAX_NAME = TM_CKPT_MAX_NAME,
  WRITER_MAX_TENSORS = 1000000
};

typedef struct writer_piece {
  char *name; /* of the entry in the file */
  tm_tensor *t;
} writer_piece;

struct tm_ckpt_writer {
  char path[TM_PATH_MAX], temp[TM_PATH_MAX], parent[TM_PATH_MAX];
  tm_status status;
  bool made, done;
  int hold;
  json_t *root, *files, *tensors, *values;
  writer_piece piece[WRITER_BATCH];
  size_t npiece;
  uint64_t pending; /* bytes of the pieces */
  /* The tensor that is not whole yet. */
  char name[WRITER_MAX_NAME];
  tm_shape shape;
  tm_dtype dtype;
  json_t *shards; /* borrowed from the tree; NULL: the last tensor is whole */
  int64_t rows;   /* of it so far */
};

static tm_status writer_nomem(tm_err *err) { return tm_nomem(err, "a checkpoint"); }

/* root[key] = v, which is taken. */
static json_t *writer_member(json_t *root, const char *key, json_t *v) {
  return v && json_object_set_new(root, key, v) == 0 ? v : NULL;
}

static tm_status writer_tree(tm_ckpt_writer *w, tm_err *err) {
  w->root = json_object();
  if (!w->root ||
      !writer_member(w->root, "format", json_string("tidemill checkpoint")) ||
      !writer_member(w->root, "version", json_integer(1)) ||
      !(w->files = writer_member(w->root, "files", json_array())) ||
      !(w->tensors = writer_member(w->root, "tensors", json_object())) ||
      !(w->values = writer_member(w->root, "values", json_object())))
    return writer_nomem(err);
  return TM_OK;
}

static tm_status writer_paths(tm_ckpt_writer *w, const char *path, tm_err *err) {
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  if (n == 0 || n + 32 >= TM_PATH_MAX)
    return tm_fail(err, TM_EINVAL, "a checkpoint's path is empty or too long");
  memcpy(w->path, path, n);
  memcpy(w->temp, path, n);
  return tm_path_parent(w->parent, w->path, err);
}

/* Is it the name of a checkpoint's file? */
static bool writer_is_ours(const char *name) {
  size_t n = strlen(name);
  if (strncmp(name, TM_CKPT_INDEX, sizeof TM_CKPT_INDEX - 1) == 0 ||
      strncmp(name, TM_CKPT_MODEL, sizeof TM_CKPT_MODEL - 1) == 0 ||
      strcmp(name, TM_CKPT_MODEL_DATA) == 0)
    return true;
  return n > 17 && strncmp(name, "data-", 5) == 0 &&
         strcmp(name + n - 12, ".safetensors") == 0;
}

/* What a checkpoint may replace: nothing, an empty directory, another checkpoint. */
static tm_status writer_place(const char *path, tm_err *err) {
  char index[TM_PATH_MAX];
  tm_status s = tm_path_join(index, path, TM_CKPT_INDEX, err);
  if (s || access(index, F_OK) == 0) return s;
  DIR *d = opendir(path);
  if (!d && errno == ENOTDIR)
    return tm_fail(err, TM_EINVAL,
                   "\"%.300s\" is a file: a checkpoint is a directory; choose another "
                   "path",
                   path);
  if (!d) return TM_OK; /* not there; or making the checkpoint tells what is wrong */
  for (struct dirent *e; s == TM_OK && (e = readdir(d));) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    if (!writer_is_ours(e->d_name))
      s = tm_fail(err, TM_EEXISTS,
                  "\"%.300s\" is a directory with something else in it (\"%.100s\"), "
                  "which a checkpoint would replace; choose another path",
                  path, e->d_name);
  }
  closedir(d);
  return s;
}

/* A sweep may have the directory before it is held, or have taken it away by then: then
 * another one is made. */
static tm_status writer_dir(tm_ckpt_writer *w, tm_err *err) {
  size_t n = strlen(w->path);
  for (int turn = 0;; turn++) {
    snprintf(w->temp + n, sizeof w->temp - n, ".tmp-%016" PRIx64, tm_random_id());
    TM_TRY(tm_dir_make(w->temp, err));
    bool held = tm_dir_hold(w->temp, &w->hold);
    bool swept = !held && errno == EWOULDBLOCK;
    struct stat st;
    if (turn == 8 || (!swept && stat(w->temp, &st) == 0)) return TM_OK;
    if (held) close(w->hold);
    w->hold = -1;
  }
}

tm_status tm_ckpt_create(const char *path, tm_ckpt_writer **out, tm_err *err) {
  *out = NULL;
  tm_ckpt_writer *w = tm_calloc(1, sizeof *w);
  if (!w) return writer_nomem(err);
  w->hold = -1;
  tm_status s = writer_tree(w, err);
  if (s == TM_OK) s = writer_paths(w, path, err);
  if (s == TM_OK) s = writer_place(w->path, err);
  if (s == TM_OK) s = tm_dir_make(w->parent, err);
  if (s == TM_OK) s = writer_dir(w, err);
  w->made = s == TM_OK;
  if (s) {
    tm_ckpt_writer_free(w);
    return s;
  }
  *out = w;
  return TM_OK;
}

/* --- tensors --- */

static void writer_drop(tm_ckpt_writer *w) {
  for (size_t i = 0; i < w->npiece; i++) {
    tm_strfree(w->piece[i].name);
    tm_tensor_unref(w->piece[i].t);
  }
  w->npiece = 0;
  w->pending = 0;
}

static tm_status writer_header(tm_ckpt_writer *w, tm_sink *f, tm_err *err) {
  size_t bytes = w->npiece * sizeof(tm_st_item);
  tm_st_item *items = tm_calloc(1, bytes);
  if (!items) return writer_nomem(err);
  for (size_t i = 0; i < w->npiece; i++) {
    items[i].name = w->piece[i].name;
    items[i].dtype = w->piece[i].t->v.dtype;
    items[i].shape = w->piece[i].t->v.shape;
  }
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER + TM_ST_ALIGN);
  tm_status s = tm_st_header(items, w->npiece, &head, err);
  if (s == TM_OK) s = tm_sink_put(f, head.data, head.len, err);
  tm_buf_release(&head);
  tm_free(items, bytes);
  return s;
}

static tm_status writer_note_file(tm_ckpt_writer *w, const char *name, const tm_sink *f,
                                  tm_err *err) {
  char crc[9];
  snprintf(crc, sizeof crc, "%08" PRIx32, f->crc);
  json_t *o = json_pack("{s:s, s:I, s:s}", "name", name, "size", (json_int_t)f->size,
                        "crc32c", crc);
  return o && json_array_append_new(w->files, o) == 0 ? TM_OK : writer_nomem(err);
}

static void writer_file_name(const tm_ckpt_writer *w, char name[TM_CKPT_FILE_NAME]) {
  snprintf(name, TM_CKPT_FILE_NAME, "data-%05zu.safetensors",
           json_array_size(w->files));
}

static tm_status writer_flush(tm_ckpt_writer *w, tm_err *err) {
  char name[TM_CKPT_FILE_NAME], path[TM_PATH_MAX];
  tm_sink f;
  if (w->npiece == 0) return TM_OK;
  writer_file_name(w, name);
  TM_TRY(tm_path_join(path, w->temp, name, err));
  TM_TRY(tm_sink_open(&f, path, err));
  tm_status s = writer_header(w, &f, err);
  for (size_t i = 0; s == TM_OK && i < w->npiece; i++) {
    const tm_view *v = &w->piece[i].t->v;
    s = tm_sink_put(&f, v->data, tm_view_bytes(v), err);
  }
  if (s == TM_OK) s = tm_sink_close(&f, err);
  tm_sink_abort(&f);
  if (s == TM_OK) s = writer_note_file(w, name, &f, err);
  writer_drop(w);
  return s;
}

/* Begin another tensor. */
static tm_status writer_tensor(tm_ckpt_writer *w, const char *name,
                               const tm_shape *shape, tm_dtype dtype, tm_err *err) {
  if (strlen(name) >= sizeof w->name)
    return tm_fail(err, TM_EINVAL, "a name in a checkpoint has at most %d bytes",
                   WRITER_MAX_NAME - 1);
  if (json_object_size(w->tensors) >= WRITER_MAX_TENSORS)
    return tm_fail(err, TM_EEXHAUSTED, "a checkpoint holds at most %d tensors",
                   WRITER_MAX_TENSORS);
  if (json_object_get(w->tensors, name))
    return tm_fail(err, TM_EEXISTS, "the checkpoint has \"%.200s\" already", name);
  json_t *sizes = json_array();
  for (int32_t k = 0; sizes && k < shape->rank; k++)
    if (json_array_append_new(sizes, json_integer(shape->dim[k]))) {
      json_decref(sizes);
      return writer_nomem(err);
    }
  json_t *o = json_pack("{s:s, s:o, s:[]}", "dtype", tm_dtype_name(dtype), "shape",
                        sizes, "shards");
  if (!o) return writer_nomem(err);
  if (json_object_set_new(w->tensors, name, o))
    return tm_fail(err, TM_EINVAL, "a name in a checkpoint is not UTF-8: \"%.200s\"",
                   name);
  memcpy(w->name, name, strlen(name) + 1);
  w->shape = *shape;
  w->dtype = dtype;
  w->rows = 0;
  w->shards = json_object_get(o, "shards");
  return TM_OK;
}

static int64_t shape_rows(const tm_shape *s) { return s->rank ? s->dim[0] : 1; }

/* Do `rows` rows from `first` on, with the sizes of `piece`, follow what came? */
static tm_status writer_fits(tm_ckpt_writer *w, const char *name, const tm_shape *shape,
                             int64_t first, tm_dtype dtype, const tm_shape *piece,
                             tm_err *err) {
  if (!w->shards) {
    TM_TRY(writer_tensor(w, name, shape, dtype, err));
  }
  tm_shape want = w->shape;
  if (want.rank) want.dim[0] = piece->rank ? piece->dim[0] : -1;
  if (strcmp(name, w->name) != 0 || !tm_shape_equal(shape, &w->shape) ||
      dtype != w->dtype || !tm_shape_equal(&want, piece) || first != w->rows ||
      shape_rows(piece) > shape_rows(&w->shape) - first)
    return tm_fail(
        err, TM_EINVAL,
        "a piece of \"%.150s\" does not follow what came before: pieces of a "
        "tensor come in order and together",
        name);
  return TM_OK;
}

void tm_ckpt_entry(char out[TM_CKPT_ENTRY_NAME], const char *name,
                   const tm_shape *shape, int64_t first, int64_t rows) {
  if (rows == shape_rows(shape))
    snprintf(out, TM_CKPT_ENTRY_NAME, "%.*s", TM_CKPT_MAX_NAME - 1, name);
  else
    snprintf(out, TM_CKPT_ENTRY_NAME, "%.*s@%" PRId64, TM_CKPT_MAX_NAME - 1, name,
             first);
}

/* Rows of the open tensor are in a file. */
static tm_status writer_shard(tm_ckpt_writer *w, size_t file, const char *entry,
                              int64_t first, int64_t rows, tm_err *err) {
  json_t *o = json_pack("{s:I, s:s, s:I, s:I}", "file", (json_int_t)file, "entry",
                        entry, "first", (json_int_t)first, "rows", (json_int_t)rows);
  if (!o || json_array_append_new(w->shards, o)) return writer_nomem(err);
  w->rows += rows;
  if (w->rows == shape_rows(&w->shape)) w->shards = NULL;
  return TM_OK;
}

/* Note the piece in the index and keep it until flush. */
static tm_status writer_keep(tm_ckpt_writer *w, int64_t first, int64_t rows,
                             tm_tensor *t, tm_err *err) {
  char entry[TM_CKPT_ENTRY_NAME];
  tm_ckpt_entry(entry, w->name, &w->shape, first, rows);
  w->piece[w->npiece].name = tm_strdup(entry);
  if (!w->piece[w->npiece].name) return writer_nomem(err);
  w->piece[w->npiece++].t = tm_tensor_ref(t);
  w->pending += tm_view_bytes(&t->v);
  return writer_shard(w, json_array_size(w->files), entry, first, rows, err);
}

static tm_status writer_open(const tm_ckpt_writer *w, tm_err *err) {
  if (w->status || w->done)
    return tm_fail(err, TM_EPRECOND, "the checkpoint \"%.300s\" is %s", w->path,
                   w->done ? "written already" : "given up after an error");
  return TM_OK;
}

/* Strings are kept as one array of bytes; the index says what they are. */
static tm_status writer_strings(tm_ckpt_writer *w, const char *name,
                                const tm_shape *shape, int64_t first, tm_tensor *t,
                                tm_err *err) {
  tm_tensor *bytes;
  tm_buf b = TM_BUF_INIT(SIZE_MAX / 4);
  if (first || !tm_shape_equal(shape, &t->v.shape))
    return tm_fail(err, TM_EINVAL, "\"%.200s\": strings are saved whole", name);
  TM_TRY(writer_fits(w, name, shape, first, t->v.dtype, &t->v.shape, err));
  tm_status s = tm_payload_put(&b, &t->v) ? writer_nomem(err) : TM_OK;
  tm_shape list = tm_shape_of(1, (int64_t[]){(int64_t)b.len});
  if (s == TM_OK) s = tm_tensor_new(TM_U8, &list, &bytes, err);
  if (s == TM_OK) {
    if (b.len) memcpy(bytes->v.data, b.data, b.len);
    s = writer_keep(w, first, shape_rows(shape), bytes, err);
    tm_tensor_unref(bytes);
  }
  tm_buf_release(&b);
  return s;
}

static tm_status writer_put(tm_ckpt_writer *w, const char *name, const tm_shape *shape,
                            int64_t first, tm_tensor *t, tm_err *err) {
  if (t->v.dtype == TM_STRING) return writer_strings(w, name, shape, first, t, err);
  TM_TRY(writer_fits(w, name, shape, first, t->v.dtype, &t->v.shape, err));
  uint64_t bytes = tm_view_bytes(&t->v);
  if (w->npiece == WRITER_BATCH || w->pending + bytes > TM_CKPT_BATCH_BYTES)
    TM_TRY(writer_flush(w, err));
  return writer_keep(w, first, shape_rows(&t->v.shape), t, err);
}

tm_status tm_ckpt_put(tm_ckpt_writer *w, const char *name, const tm_shape *shape,
                      int64_t first, tm_tensor *t, tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = writer_put(w, name, shape, first, t, err);
  return w->status;
}

/* --- files of others --- */

const char *tm_ckpt_directory(const tm_ckpt_writer *w) { return w->temp; }

static tm_status writer_reserve(tm_ckpt_writer *w, const char *name, size_t *file,
                                tm_err *err) {
  *file = json_array_size(w->files);
  json_t *o = json_pack("{s:s}", "name", name);
  return o && json_array_append_new(w->files, o) == 0 ? TM_OK : writer_nomem(err);
}

tm_status tm_ckpt_reserve(tm_ckpt_writer *w, char name[TM_CKPT_FILE_NAME], size_t *file,
                          tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = writer_flush(w, err); /* what is kept counts on its number */
  if (w->status) return w->status;
  writer_file_name(w, name);
  w->status = writer_reserve(w, name, file, err);
  return w->status;
}

tm_status tm_ckpt_reserve_as(tm_ckpt_writer *w, const char *name, size_t *file,
                             tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = writer_flush(w, err);
  if (w->status) return w->status;
  w->status = writer_reserve(w, name, file, err);
  return w->status;
}

tm_status tm_ckpt_attach(tm_ckpt_writer *w, json_t *model, tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = tm_sealed_write(w->temp, TM_CKPT_MODEL, model, err);
  return w->status;
}

tm_status tm_ckpt_filled(tm_ckpt_writer *w, size_t file, uint64_t size, uint32_t crc,
                         tm_err *err) {
  char text[9];
  TM_TRY(writer_open(w, err));
  snprintf(text, sizeof text, "%08" PRIx32, crc);
  json_t *o = json_array_get(w->files, file);
  if (!o || !writer_member(o, "size", json_integer((json_int_t)size)) ||
      !writer_member(o, "crc32c", json_string(text)))
    w->status = writer_nomem(err);
  return w->status;
}

tm_status tm_ckpt_note(tm_ckpt_writer *w, const char *name, const tm_shape *shape,
                       tm_dtype dtype, int64_t first, int64_t rows, size_t file,
                       tm_err *err) {
  char entry[TM_CKPT_ENTRY_NAME];
  tm_shape piece = *shape;
  if (piece.rank) piece.dim[0] = rows;
  TM_TRY(writer_open(w, err));
  w->status = writer_fits(w, name, shape, first, dtype, &piece, err);
  if (w->status) return w->status;
  tm_ckpt_entry(entry, name, shape, first, rows);
  w->status = writer_shard(w, file, entry, first, rows, err);
  return w->status;
}

/* --- patches --- */

void tm_ckpt_patch_entry(char out[TM_CKPT_ENTRY_NAME], const char *name,
                         const char *what, int64_t first) {
  snprintf(out, TM_CKPT_ENTRY_NAME, "%.*s@%.4s@%" PRId64, TM_CKPT_MAX_NAME - 1, name,
           what, first);
}

static tm_status writer_patch(tm_ckpt_writer *w, const char *name, int64_t first,
                              int64_t n, size_t file, tm_err *err) {
  char ids[TM_CKPT_ENTRY_NAME], rows[TM_CKPT_ENTRY_NAME];
  json_t *t = json_object_get(w->tensors, name);
  json_t *list = json_object_get(t, "patches");
  if (!t || w->shards)
    return tm_fail(err, TM_EINVAL, "a patch of \"%.200s\", which is not whole", name);
  if (!list) list = writer_member(t, "patches", json_array());
  tm_ckpt_patch_entry(ids, name, "ids", first);
  tm_ckpt_patch_entry(rows, name, "rows", first);
  json_t *o = json_pack("{s:I, s:s, s:s, s:I}", "file", (json_int_t)file, "ids", ids,
                        "rows", rows, "n", (json_int_t)n);
  if (!list || !o || json_array_append_new(list, o)) return writer_nomem(err);
  return writer_member(w->root, "version", json_integer(TM_CKPT_VERSION))
             ? TM_OK
             : writer_nomem(err);
}

tm_status tm_ckpt_note_patch(tm_ckpt_writer *w, const char *name, int64_t first,
                             int64_t n, size_t file, tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = writer_patch(w, name, first, n, file, err);
  return w->status;
}

/* --- values --- */

static tm_status writer_value(tm_ckpt_writer *w, const char *name, json_t *v,
                              tm_err *err) {
  tm_status s = writer_open(w, err);
  if (s == TM_OK && !v) s = writer_nomem(err);
  if (s) {
    json_decref(v);
    return s;
  }
  if (json_object_get(w->values, name)) {
    json_decref(v);
    return tm_fail(err, TM_EEXISTS, "the checkpoint has a value \"%.200s\" already",
                   name);
  }
  if (json_object_set_new(w->values, name, v) == 0) return TM_OK;
  return tm_fail(err, TM_EINVAL, "a name in a checkpoint is not UTF-8: \"%.200s\"",
                 name);
}

tm_status tm_ckpt_value_int(tm_ckpt_writer *w, const char *name, int64_t x,
                            tm_err *err) {
  return writer_value(w, name, json_integer(x), err);
}

tm_status tm_ckpt_value_real(tm_ckpt_writer *w, const char *name, double x,
                             tm_err *err) {
  if (isfinite(x)) return writer_value(w, name, json_real(x), err);
  const char *text = isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
  return writer_value(w, name, json_pack("{s:s}", "number", text), err);
}

tm_status tm_ckpt_value_bool(tm_ckpt_writer *w, const char *name, bool x, tm_err *err) {
  return writer_value(w, name, json_boolean(x), err);
}

static json_t *writer_hex(const char *p, size_t n) {
  static const char digit[] = "0123456789abcdef";
  char *hex = n ? tm_malloc(2 * n) : NULL;
  if (n && !hex) return NULL;
  for (size_t i = 0; i < n; i++) {
    hex[2 * i] = digit[(uint8_t)p[i] >> 4];
    hex[2 * i + 1] = digit[(uint8_t)p[i] & 15];
  }
  json_t *o = json_pack("{s:s%}", "hex", hex ? hex : "", 2 * n);
  tm_free(hex, 2 * n);
  return o;
}

tm_status tm_ckpt_value_str(tm_ckpt_writer *w, const char *name, const char *p,
                            size_t n, tm_err *err) {
  json_t *v = json_stringn(p, n); /* NULL also for what is not UTF-8 */
  return writer_value(w, name, v ? v : writer_hex(p, n), err);
}

/* --- the end --- */

/* The files of a checkpoint, and the directory unless something else is in it. */
static tm_status remove_dir(const char *path, tm_err *err) {
  const tm_file_ops *ops = tm_file_current();
  char file[TM_PATH_MAX];
  DIR *d = opendir(path);
  if (!d) return tm_file_fail(err, errno, "open", path);
  tm_status s = TM_OK;
  for (struct dirent *e; s == TM_OK && (e = readdir(d));) {
    if (!writer_is_ours(e->d_name)) continue;
    s = tm_path_join(file, path, e->d_name, err);
    if (s == TM_OK && ops->unlink(file) < 0 && errno != ENOENT)
      s = tm_file_fail(err, errno, "remove", file);
  }
  closedir(d);
  if (s == TM_OK && ops->rmdir(path) < 0 && errno != ENOTEMPTY && errno != EEXIST &&
      errno != ENOENT)
    s = tm_file_fail(err, errno, "remove", path);
  return s;
}

static tm_status writer_commit(tm_ckpt_writer *w, tm_err *err) {
  bool swapped;
  if (w->shards)
    return tm_fail(err, TM_EPRECOND, "\"%.200s\" is not whole: %" PRId64 " rows came",
                   w->name, w->rows);
  TM_TRY(writer_flush(w, err));
  TM_TRY(tm_sealed_write(w->temp, TM_CKPT_INDEX, w->root, err));
  TM_TRY(tm_dir_publish(w->temp, w->path, &swapped, err));
  w->made = swapped;
  return TM_OK;
}

tm_status tm_ckpt_commit(tm_ckpt_writer *w, tm_err *err) {
  TM_TRY(writer_open(w, err));
  w->status = writer_commit(w, err);
  w->done = w->status == TM_OK;
  return w->status;
}

void tm_ckpt_writer_free(tm_ckpt_writer *w) {
  if (!w) return;
  writer_drop(w);
  /* What was swapped away, or what never got its name: nobody misses it. */
  if (w->made && remove_dir(w->temp, NULL) != TM_OK) w->made = false;
  if (w->hold >= 0) close(w->hold);
  json_decref(w->root);
  tm_free(w, sizeof *w);
}

tm_status tm_ckpt_remove(const char *path, tm_err *err) {
  char temp[TM_PATH_MAX], parent[TM_PATH_MAX];
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  int len =
      snprintf(temp, sizeof temp, "%.*s.tmp-%016" PRIx64, (int)n, path, tm_random_id());
  if (len < 0 || len >= TM_PATH_MAX)
    return tm_fail(err, TM_EINVAL, "a checkpoint's path is too long");
  TM_TRY(tm_path_parent(parent, path, err));
  if (tm_file_current()->rename(path, temp) < 0)
    return tm_file_fail(err, errno, "remove", path);
  TM_TRY(tm_dir_sync(parent, err));
  return remove_dir(temp, err);
}

/* NAME-....tmp-<16 hex digits>, or without the middle */
static bool sweep_is_temp(const char *entry, const char *name) {
  size_t n = strlen(name), len = strlen(entry);
  if (len < n + 21 || strncmp(entry, name, n) != 0) return false;
  if (entry[n] != '-' && len != n + 21) return false;
  const char *tail = entry + len - 21;
  return strncmp(tail, ".tmp-", 5) == 0 && strspn(tail + 5, "0123456789abcdef") == 16;
}

/* A swap by hand that did not end: the name is free, and what had it is aside.  Kept,
 * since both are whole and neither has the name. */
static bool sweep_is_swapping(const char *temp) {
  char aside[TM_PATH_MAX], path[TM_PATH_MAX];
  size_t n = strlen(temp) - 21;
  memcpy(path, temp, n);
  path[n] = '\0';
  int len = snprintf(aside, sizeof aside, "%s-old", temp);
  if (len < 0 || len >= TM_PATH_MAX) return true;
  return access(aside, F_OK) == 0 && access(path, F_OK) != 0;
}

void tm_ckpt_sweep(const char *dir, const char *name) {
  char temp[TM_PATH_MAX];
  int hold;
  DIR *d = opendir(dir);
  if (!d) return;
  for (struct dirent *e; (e = readdir(d));) {
    if (!sweep_is_temp(e->d_name, name) || tm_path_join(temp, dir, e->d_name, NULL))
      continue;
    if (!tm_dir_hold(temp, &hold)) continue;
    tm_status s = sweep_is_swapping(temp) ? TM_OK : remove_dir(temp, NULL);
    (void)s; /* it stays, as the header says */
    close(hold);
  }
  closedir(d);
}
