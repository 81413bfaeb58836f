#include "ckpt/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "ckpt/file.h"
#include "ckpt/over.h"
#include "ckpt/safetensors.h"
#include "ckpt/sealed.h"
#include "ckpt/state.h"
#include "ckpt/writer.h"
#include "tensor/codec.h"

/*
 * Design.  The index is copied out of jansson's tree and checked; few data files are
 * open at a time, so that a checkpoint of many files takes few descriptors.  Rows are
 * read from the shards, then what patches say of them is laid over; ids are searched in
 * the file, so a patch costs no memory.
 *
 * Invariants of an open reader:
 *   (1) Names of files are single names: nothing outside of the directory is opened.
 *   (2) The shards of a tensor cover its rows in order, without hole or overlap.
 *   (3) A shard takes no more bytes than its file has, so nothing is allocated that the
 *       index merely claims.
 *   (4) No byte of a file is given out before its size and CRC32C were compared, here
 * or by whom the caller trusts.
 */
enum { READER_OPEN = 4 };

typedef struct reader_file {
  char *name;
  uint64_t size;
  uint32_t crc;
  bool verified;
} reader_file;

struct tm_ckpt_reader {
  char path[TM_PATH_MAX];
  uint64_t index_size;
  uint32_t index_crc;
  reader_file *file;
  size_t nfile, cap_file;
  tm_ckpt_tensor *tensor;
  size_t ntensor, cap_tensor;
  tm_ckpt_value *value;
  size_t nvalue, cap_value;
  tm_map *by_name;
  struct {
    tm_st_file *st; /* NULL: none */
    size_t file;
  } open[READER_OPEN];
  unsigned turn; /* which one is closed next */
};

static tm_status reader_bad(const tm_ckpt_reader *r, const char *what, const char *name,
                            tm_err *err) {
  return tm_fail(err, TM_EDATALOSS, "\"%.250s/" TM_CKPT_INDEX "\": %s%s%.150s%s",
                 r->path, what, name ? " (\"" : "", name ? name : "",
                 name ? "\")" : "");
}

static tm_status reader_str(const tm_ckpt_reader *r, const json_t *v, char **out,
                            tm_err *err) {
  const char *text = json_string_value(v);
  if (!text || strlen(text) != json_string_length(v))
    return reader_bad(r, "a name is missing", NULL, err);
  *out = tm_strdup(text);
  return *out ? TM_OK : tm_nomem(err, r->path);
}

/* A whole number from 0. */
static bool reader_int(const json_t *v, int64_t *out) {
  *out = json_integer_value(v);
  return json_is_integer(v) && *out >= 0;
}

static bool reader_crc(const json_t *v, uint32_t *out) {
  const char *text = json_string_value(v);
  if (!text || strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8) return false;
  *out = 0;
  for (; *text; text++)
    *out = *out * 16 + (uint32_t)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
  return true;
}

/* --- the index --- */

static tm_status reader_size(const tm_ckpt_reader *r, const reader_file *f,
                             tm_err *err) {
  char path[TM_PATH_MAX];
  struct stat st;
  TM_TRY(tm_path_join(path, r->path, f->name, err));
  if (stat(path, &st) < 0) return tm_file_fail(err, errno, "open", path);
  if ((uint64_t)st.st_size == f->size) return TM_OK;
  return tm_fail(err, TM_EDATALOSS,
                 "\"%.300s\" has %" PRId64 " bytes, it was written with %" PRIu64, path,
                 (int64_t)st.st_size, f->size);
}

static tm_status reader_file_of(tm_ckpt_reader *r, const json_t *o, tm_err *err) {
  reader_file *f = &r->file[r->nfile];
  int64_t size;
  TM_TRY(reader_str(r, json_object_get(o, "name"), &f->name, err));
  r->nfile++;
  if (!tm_path_is_name(f->name))
    return reader_bad(r, "a file is outside of the directory", f->name, err);
  if (!reader_int(json_object_get(o, "size"), &size) ||
      !reader_crc(json_object_get(o, "crc32c"), &f->crc))
    return reader_bad(r, "a file without size and crc32c", f->name, err);
  f->size = (uint64_t)size;
  return reader_size(r, f, err);
}

static tm_status reader_shape(const tm_ckpt_reader *r, const char *name,
                              const json_t *v, tm_shape *out, tm_err *err) {
  if (!json_is_array(v) || json_array_size(v) > TM_MAX_RANK)
    return reader_bad(r, "a tensor without a shape", name, err);
  out->rank = (int32_t)json_array_size(v);
  for (int32_t k = 0; k < out->rank; k++)
    if (!reader_int(json_array_get(v, (size_t)k), &out->dim[k]))
      return reader_bad(r, "a size is no number from 0", name, err);
  if (tm_shape_check(out, 8, NULL)) return reader_bad(r, "a huge shape", name, err);
  return TM_OK;
}

static int64_t rows_of(const tm_shape *s) { return s->rank ? s->dim[0] : 1; }

static size_t row_bytes_of(const tm_ckpt_tensor *t) {
  tm_shape row = t->shape;
  if (row.rank) row.dim[0] = 1;
  return (size_t)tm_shape_count(&row) * tm_dtype_size(t->dtype);
}

static tm_status reader_shards(tm_ckpt_reader *r, tm_ckpt_tensor *t, const json_t *v,
                               tm_err *err) {
  size_t n = json_array_size(v);
  int64_t next = 0, file;
  if (n == 0) return reader_bad(r, "a tensor without shards", t->name, err);
  t->shard = tm_calloc(n, sizeof *t->shard);
  if (!t->shard) return tm_nomem(err, r->path);
  t->nshard = n;
  for (size_t i = 0; i < n; i++) {
    const json_t *o = json_array_get(v, i);
    tm_ckpt_shard *s = &t->shard[i];
    TM_TRY(reader_str(r, json_object_get(o, "entry"), &s->entry, err));
    if (!reader_int(json_object_get(o, "file"), &file) ||
        !reader_int(json_object_get(o, "first"), &s->first) ||
        !reader_int(json_object_get(o, "rows"), &s->rows) || (size_t)file >= r->nfile)
      return reader_bad(r, "a malformed shard", t->name, err);
    s->file = (size_t)file;
    if (s->first != next || s->rows > rows_of(&t->shape) - next)
      return reader_bad(r, "shards do not cover the tensor", t->name, err);
    if ((uint64_t)s->rows * row_bytes_of(t) > r->file[s->file].size)
      return reader_bad(r, "a shard is larger than its file", t->name, err);
    next += s->rows;
  }
  if (next == rows_of(&t->shape)) return TM_OK;
  return reader_bad(r, "shards do not cover the tensor", t->name, err);
}

static tm_status reader_patch(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                              const json_t *o, tm_ckpt_patch *p, tm_err *err) {
  int64_t file;
  TM_TRY(reader_str(r, json_object_get(o, "ids"), &p->ids, err));
  TM_TRY(reader_str(r, json_object_get(o, "rows"), &p->rows, err));
  if (!reader_int(json_object_get(o, "file"), &file) ||
      !reader_int(json_object_get(o, "n"), &p->n) || (size_t)file >= r->nfile ||
      t->shape.rank == 0 || p->n > t->shape.dim[0])
    return reader_bad(r, "a malformed patch", t->name, err);
  p->file = (size_t)file;
  if ((uint64_t)p->n * (row_bytes_of(t) + sizeof(int64_t)) <= r->file[p->file].size)
    return TM_OK;
  return reader_bad(r, "a patch is larger than its file", t->name, err);
}

static tm_status reader_patches(tm_ckpt_reader *r, tm_ckpt_tensor *t, const json_t *v,
                                tm_err *err) {
  size_t n = json_array_size(v);
  if (n == 0) return TM_OK;
  t->patch = tm_calloc(n, sizeof *t->patch);
  if (!t->patch) return tm_nomem(err, r->path);
  t->npatch = n;
  for (size_t i = 0; i < n; i++)
    TM_TRY(reader_patch(r, t, json_array_get(v, i), &t->patch[i], err));
  return TM_OK;
}

static tm_status reader_tensor(tm_ckpt_reader *r, const char *name, const json_t *o,
                               tm_err *err) {
  tm_ckpt_tensor *t = &r->tensor[r->ntensor];
  t->name = tm_strdup(name);
  if (!t->name) return tm_nomem(err, r->path);
  r->ntensor++;
  const char *dtype = json_string_value(json_object_get(o, "dtype"));
  t->dtype = dtype ? tm_dtype_of_name(dtype) : TM_DTYPE_NONE;
  if (t->dtype == TM_DTYPE_NONE)
    return reader_bad(r, "a tensor of an unknown dtype", name, err);
  TM_TRY(reader_shape(r, name, json_object_get(o, "shape"), &t->shape, err));
  TM_TRY(reader_shards(r, t, json_object_get(o, "shards"), err));
  TM_TRY(reader_patches(r, t, json_object_get(o, "patches"), err));
  if (t->dtype == TM_STRING && (t->nshard != 1 || t->npatch))
    return reader_bad(r, "strings in several pieces", name, err);
  if (tm_map_puts(r->by_name, name, strlen(name), t)) return tm_nomem(err, r->path);
  return TM_OK;
}

static bool value_unhex(const char *hex, tm_ckpt_value *v) {
  static const char digit[] = "0123456789abcdef";
  v->n = strlen(hex) / 2;
  if (strlen(hex) % 2 || strspn(hex, digit) != strlen(hex)) return false;
  v->p = tm_calloc(1, v->n + 1);
  for (size_t i = 0; v->p && i < v->n; i++)
    v->p[i] = (char)((strchr(digit, hex[2 * i]) - digit) * 16 +
                     (strchr(digit, hex[2 * i + 1]) - digit));
  return true;
}

static bool value_object(const json_t *o, tm_ckpt_value *v) {
  const char *number = json_string_value(json_object_get(o, "number"));
  const char *hex = json_string_value(json_object_get(o, "hex"));
  if (hex) {
    v->kind = TM_CKPT_STR;
    return value_unhex(hex, v);
  }
  v->kind = TM_CKPT_REAL;
  if (!number) return false;
  if (strcmp(number, "nan") == 0)
    v->x = (double)NAN;
  else if (strcmp(number, "inf") == 0)
    v->x = (double)INFINITY;
  else if (strcmp(number, "-inf") == 0)
    v->x = -(double)INFINITY;
  else
    return false;
  return true;
}

static bool value_fill(const json_t *o, tm_ckpt_value *v) {
  switch (json_typeof(o)) {
    case JSON_INTEGER:
      v->kind = TM_CKPT_INT;
      v->i = json_integer_value(o);
      return true;
    case JSON_REAL:
      v->kind = TM_CKPT_REAL;
      v->x = json_real_value(o);
      return true;
    case JSON_TRUE:
    case JSON_FALSE:
      v->kind = TM_CKPT_BOOL;
      v->i = json_is_true(o);
      return true;
    case JSON_STRING:
      v->kind = TM_CKPT_STR;
      v->n = json_string_length(o);
      v->p = tm_calloc(1, v->n + 1);
      if (v->p) memcpy(v->p, json_string_value(o), v->n);
      return true;
    case JSON_OBJECT:
      return value_object(o, v);
    default:
      return false;
  }
}

static tm_status reader_value(tm_ckpt_reader *r, const char *name, const json_t *o,
                              tm_err *err) {
  tm_ckpt_value *v = &r->value[r->nvalue];
  v->name = tm_strdup(name);
  if (!v->name) return tm_nomem(err, r->path);
  r->nvalue++;
  if (!value_fill(o, v)) return reader_bad(r, "a malformed value", name, err);
  if (v->kind == TM_CKPT_STR && !v->p) return tm_nomem(err, r->path);
  return TM_OK;
}

/* Room for what the index lists; one more each, so that no size is zero. */
static tm_status reader_room(tm_ckpt_reader *r, size_t nf, size_t nt, size_t nv,
                             tm_err *err) {
  if (!(r->file = tm_calloc(nf + 1, sizeof *r->file))) return tm_nomem(err, r->path);
  r->cap_file = nf + 1;
  if (!(r->tensor = tm_calloc(nt + 1, sizeof *r->tensor)))
    return tm_nomem(err, r->path);
  r->cap_tensor = nt + 1;
  if (!(r->value = tm_calloc(nv + 1, sizeof *r->value))) return tm_nomem(err, r->path);
  r->cap_value = nv + 1;
  return TM_OK;
}

static tm_status reader_index(tm_ckpt_reader *r, json_t *root, tm_err *err) {
  const char *format = json_string_value(json_object_get(root, "format")), *name;
  json_t *files = json_object_get(root, "files"), *v;
  json_t *tensors = json_object_get(root, "tensors");
  json_t *values = json_object_get(root, "values");
  if (!format || strcmp(format, "tidemill checkpoint") != 0 || !json_is_array(files) ||
      !json_is_object(tensors) || !json_is_object(values))
    return reader_bad(r, "not the index of a checkpoint", NULL, err);
  json_int_t version = json_integer_value(json_object_get(root, "version"));
  if (version < 1 || version > TM_CKPT_VERSION)
    return tm_fail(err, TM_EUNIMPL,
                   "\"%.300s\": this checkpoint is of another version than %d; it was "
                   "written by a newer tidemill",
                   r->path, TM_CKPT_VERSION);
  TM_TRY(reader_room(r, json_array_size(files), json_object_size(tensors),
                     json_object_size(values), err));
  for (size_t i = 0; i < json_array_size(files); i++)
    TM_TRY(reader_file_of(r, json_array_get(files, i), err));
  json_object_foreach(tensors, name, v) TM_TRY(reader_tensor(r, name, v, err));
  json_object_foreach(values, name, v) TM_TRY(reader_value(r, name, v, err));
  return TM_OK;
}

static tm_status reader_identity(tm_ckpt_reader *r, const json_t *root, tm_err *err) {
  char path[TM_PATH_MAX];
  struct stat st;
  TM_TRY(tm_path_join(path, r->path, TM_CKPT_INDEX, err));
  if (stat(path, &st) < 0) return tm_file_fail(err, errno, "open", path);
  r->index_size = (uint64_t)st.st_size;
  if (reader_crc(json_object_get(root, "crc32c"), &r->index_crc)) return TM_OK;
  return reader_bad(r, "no checksum", NULL, err);
}

void tm_ckpt_identity(const tm_ckpt_reader *r, uint64_t *size, uint32_t *crc) {
  *size = r->index_size;
  *crc = r->index_crc;
}

/* There is no index in it: say what the path may be instead. */
static tm_status reader_absent(const char *path, tm_err *err) {
  char list[TM_PATH_MAX];
  if (tm_path_join(list, path, TM_CKPT_STATE, NULL) == TM_OK && access(list, F_OK) == 0)
    return tm_fail(err, TM_ENOTFOUND,
                   "\"%.250s\" holds checkpoints and is none: name one of them, as "
                   "tm.train.latest_checkpoint does",
                   path);
  return tm_fail(err, TM_ENOTFOUND,
                 "there is no checkpoint \"%.250s\": no " TM_CKPT_INDEX " in it", path);
}

tm_status tm_ckpt_open(const char *path, tm_ckpt_reader **out, tm_err *err) {
  json_t *root = NULL;
  *out = NULL;
  if (strlen(path) >= TM_PATH_MAX)
    return tm_fail(err, TM_EINVAL, "a checkpoint's path is too long");
  tm_ckpt_reader *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, path);
  memcpy(r->path, path, strlen(path) + 1);
  tm_status s = tm_map_new(&r->by_name) ? tm_nomem(err, path) : TM_OK;
  if (s == TM_OK) s = tm_sealed_read(path, TM_CKPT_INDEX, &root, err);
  if (s == TM_ENOTFOUND) s = reader_absent(path, err);
  if (s == TM_OK) s = reader_identity(r, root, err);
  if (s == TM_OK) s = reader_index(r, root, err);
  json_decref(root);
  if (s) {
    tm_ckpt_close(r);
    return s;
  }
  *out = r;
  return TM_OK;
}

void tm_ckpt_close(tm_ckpt_reader *r) {
  if (!r) return;
  for (int i = 0; i < READER_OPEN; i++) tm_st_close(r->open[i].st);
  for (size_t i = 0; i < r->nfile; i++) tm_strfree(r->file[i].name);
  for (size_t i = 0; i < r->ntensor; i++) {
    tm_ckpt_tensor *t = &r->tensor[i];
    tm_strfree(t->name);
    for (size_t k = 0; k < t->nshard; k++) tm_strfree(t->shard[k].entry);
    tm_free(t->shard, t->nshard * sizeof *t->shard);
    for (size_t k = 0; k < t->npatch; k++) {
      tm_strfree(t->patch[k].ids);
      tm_strfree(t->patch[k].rows);
    }
    tm_free(t->patch, t->npatch * sizeof *t->patch);
  }
  for (size_t i = 0; i < r->nvalue; i++) {
    tm_strfree(r->value[i].name);
    if (r->value[i].p) tm_free(r->value[i].p, r->value[i].n + 1);
  }
  tm_free(r->file, r->cap_file * sizeof *r->file);
  tm_free(r->tensor, r->cap_tensor * sizeof *r->tensor);
  tm_free(r->value, r->cap_value * sizeof *r->value);
  tm_map_free(r->by_name);
  tm_free(r, sizeof *r);
}

/* --- data --- */

/* What the index says of file i, against the file. */
static tm_status reader_compare(const reader_file *f, const char *path,
                                const tm_st_file *st, tm_err *err) {
  uint32_t crc = 0;
  if (tm_st_size(st) != f->size)
    return tm_fail(err, TM_EDATALOSS,
                   "\"%.300s\" has another size than it was written with", path);
  if (f->verified) return TM_OK;
  TM_TRY(tm_st_crc(st, &crc, err));
  if (crc == f->crc) return TM_OK;
  return tm_fail(err, TM_EDATALOSS,
                 "\"%.300s\" is damaged: its CRC32C is %08" PRIx32
                 ", it was written with %08" PRIx32,
                 path, crc, f->crc);
}

/* File i, open and compared; valid until the next call but READER_OPEN - 1. */
static tm_status reader_use(tm_ckpt_reader *r, size_t i, tm_st_file **out,
                            tm_err *err) {
  char path[TM_PATH_MAX];
  for (int k = 0; k < READER_OPEN; k++)
    if (r->open[k].st && r->open[k].file == i) {
      *out = r->open[k].st;
      return TM_OK;
    }
  unsigned slot = r->turn++ % READER_OPEN;
  tm_st_close(r->open[slot].st);
  r->open[slot].st = NULL;
  TM_TRY(tm_path_join(path, r->path, r->file[i].name, err));
  TM_TRY(tm_st_open(path, out, err));
  tm_status s = reader_compare(&r->file[i], path, *out, err);
  if (s) {
    tm_st_close(*out);
    return s;
  }
  r->file[i].verified = true;
  r->open[slot].st = *out;
  r->open[slot].file = i;
  return TM_OK;
}

static tm_status reader_verify(tm_ckpt_reader *r, size_t i, tm_err *err) {
  tm_st_file *st;
  return r->file[i].verified ? TM_OK : reader_use(r, i, &st, err);
}

tm_status tm_ckpt_verify(tm_ckpt_reader *r, tm_err *err) {
  for (size_t i = 0; i < r->nfile; i++) TM_TRY(reader_verify(r, i, err));
  return TM_OK;
}

tm_status tm_ckpt_verify_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t, int64_t first,
                              int64_t n, tm_err *err) {
  for (size_t i = 0; i < t->nshard && n > 0; i++) {
    const tm_ckpt_shard *s = &t->shard[i];
    if (s->first >= first + n || s->first + s->rows <= first) continue;
    TM_TRY(reader_verify(r, s->file, err));
  }
  for (size_t i = 0; i < t->npatch && n > 0; i++)
    TM_TRY(reader_verify(r, t->patch[i].file, err));
  return TM_OK;
}

void tm_ckpt_trust(tm_ckpt_reader *r) {
  for (size_t i = 0; i < r->nfile; i++) r->file[i].verified = true;
}

size_t tm_ckpt_ntensor(const tm_ckpt_reader *r) { return r->ntensor; }

const tm_ckpt_tensor *tm_ckpt_tensor_at(const tm_ckpt_reader *r, size_t i) {
  TM_DCHECK(i < r->ntensor);
  return &r->tensor[i];
}

const tm_ckpt_tensor *tm_ckpt_find(const tm_ckpt_reader *r, const char *name) {
  return tm_map_gets(r->by_name, name, strlen(name));
}

size_t tm_ckpt_nvalue(const tm_ckpt_reader *r) { return r->nvalue; }

const tm_ckpt_value *tm_ckpt_value_at(const tm_ckpt_reader *r, size_t i) {
  TM_DCHECK(i < r->nvalue);
  return &r->value[i];
}

static tm_status reader_entry(const tm_ckpt_reader *r, const tm_st_entry *e,
                              const char *name, tm_dtype t, const tm_shape *shape,
                              tm_err *err) {
  if (!e) return reader_bad(r, "an array is not in its file", name, err);
  if (e->dtype == t && tm_shape_equal(&e->shape, shape)) return TM_OK;
  return reader_bad(r, "an array has another dtype or shape than its tensor", name,
                    err);
}

/* Rows first..first+n-1 of the tensor, which lie in shard s, to `to`. */
static tm_status reader_shard(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                              const tm_ckpt_shard *s, int64_t first, int64_t n,
                              size_t row_bytes, uint8_t *to, tm_err *err) {
  tm_st_file *st;
  tm_shape want = t->shape;
  if (want.rank) want.dim[0] = s->rows;
  TM_TRY(reader_use(r, s->file, &st, err));
  const tm_st_entry *e = tm_st_find(st, s->entry);
  TM_TRY(reader_entry(r, e, s->entry, t->dtype, &want, err));
  return tm_st_read(st, e, (uint64_t)(first - s->first) * row_bytes, to,
                    (size_t)n * row_bytes, err);
}

static tm_status reader_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t, int64_t first,
                             int64_t n, size_t row_bytes, uint8_t *to, tm_err *err) {
  int64_t end = first + n;
  for (size_t i = 0; i < t->nshard && first < end; i++) {
    const tm_ckpt_shard *s = &t->shard[i];
    if (first >= s->first + s->rows) continue;
    int64_t last = s->first + s->rows < end ? s->first + s->rows : end;
    TM_TRY(reader_shard(r, t, s, first, last - first, row_bytes, to, err));
    to += (size_t)(last - first) * row_bytes;
    first = last;
  }
  return TM_OK;
}

/* --- patches --- */

/* Lay what patch p says of rows first..first+n-1 over `to`. */
static tm_status reader_over_rows(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                  const tm_ckpt_patch *p, int64_t first, int64_t n,
                                  uint8_t *to, tm_err *err) {
  tm_ckpt_over o = {
      .n = p->n, .first = first, .end = first + n, .row_bytes = row_bytes_of(t)};
  tm_shape list = tm_shape_of(1, &p->n), rows = t->shape;
  tm_st_file *st;
  rows.dim[0] = p->n;
  TM_TRY(reader_use(r, p->file, &st, err));
  o.st = st;
  o.ids = tm_st_find(st, p->ids);
  o.rows = tm_st_find(st, p->rows);
  TM_TRY(reader_entry(r, o.ids, p->ids, TM_I64, &list, err));
  TM_TRY(reader_entry(r, o.rows, p->rows, t->dtype, &rows, err));
  return tm_ckpt_lay_over(&o, to, err);
}

/* --- strings: one array of bytes (tensor/codec.h) --- */

static tm_status strings_get(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                             const tm_st_entry *e, tm_st_file *st, tm_tensor **out,
                             tm_err *err) {
  uint64_t n = e->end - e->begin;
  tm_tensor_head head = {TM_STRING, t->shape, n};
  if (n / 4 < (uint64_t)tm_shape_count(&t->shape))
    return reader_bad(r, "strings are cut off", t->name, err);
  void *p = tm_malloc((size_t)n + 1);
  if (!p) return tm_nomem(err, r->path);
  tm_status s = tm_st_read(st, e, 0, p, (size_t)n, err);
  if (s == TM_OK) s = tm_payload_get(&head, p, (size_t)n, out, err);
  tm_free(p, (size_t)n + 1);
  return s;
}

static tm_status reader_strings(tm_ckpt_reader *r, const tm_ckpt_tensor *t,
                                int64_t first, int64_t n, tm_tensor **out,
                                tm_err *err) {
  tm_st_file *st;
  tm_tensor *all;
  TM_TRY(reader_use(r, t->shard->file, &st, err));
  const tm_st_entry *e = tm_st_find(st, t->shard->entry);
  if (!e || e->dtype != TM_U8)
    return reader_bad(r, "strings are not in their file", t->name, err);
  TM_TRY(strings_get(r, t, e, st, &all, err));
  if (n == rows_of(&t->shape)) {
    *out = all;
    return TM_OK;
  }
  tm_status s = tm_tensor_rows(all, first, n, out, err);
  tm_tensor_unref(all);
  return s;
}

/* Kernels rely on 0 and 1. */
static void reader_bools(tm_tensor *t) {
  uint8_t *p = t->v.data;
  for (int64_t i = 0, n = tm_view_count(&t->v); i < n; i++) p[i] = p[i] != 0;
}

size_t tm_ckpt_nfile(const tm_ckpt_reader *r) { return r->nfile; }

const char *tm_ckpt_file_at(const tm_ckpt_reader *r, size_t i, uint64_t *size,
                            uint32_t *crc) {
  TM_DCHECK(i < r->nfile);
  *size = r->file[i].size;
  *crc = r->file[i].crc;
  return r->file[i].name;
}

tm_status tm_ckpt_read(tm_ckpt_reader *r, const tm_ckpt_tensor *t, int64_t first,
                       int64_t n, tm_tensor **out, tm_err *err) {
  *out = NULL;
  int64_t rows = rows_of(&t->shape);
  if (first < 0 || n < 0 || first > rows || n > rows - first)
    return tm_fail(err, TM_ERANGE, "\"%.200s\" has %" PRId64 " rows in the checkpoint",
                   t->name, rows);
  if (t->dtype == TM_STRING) return reader_strings(r, t, first, n, out, err);
  tm_shape shape = t->shape;
  if (shape.rank) shape.dim[0] = n;
  TM_TRY(tm_tensor_new(t->dtype, &shape, out, err));
  tm_status s = reader_rows(r, t, first, n, row_bytes_of(t), (*out)->v.data, err);
  for (size_t i = 0; s == TM_OK && n > 0 && i < t->npatch; i++)
    s = reader_over_rows(r, t, &t->patch[i], first, n, (*out)->v.data, err);
  if (s == TM_OK && t->dtype == TM_BOOL) reader_bools(*out);
  if (s) {
    tm_tensor_unref(*out);
    *out = NULL;
  }
  return s;
}
