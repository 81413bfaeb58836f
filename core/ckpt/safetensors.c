#include "ckpt/safetensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/map.h"
#include "base/mem.h"
#include "ckpt/file.h"

/*
 * Design.  jansson parses the header, refuses names that come twice and bounds nesting;
 * each field is copied out and checked at once.  The header's length is compared with
 * the file's before it is read, so a file costs memory in proportion to its size.
 *
 * Invariants of an open file:
 *   (1) entries are sorted by `begin`; entry 0 begins where the header ends, each next
 *       one where the one before ends, the last ends with the file.
 *   (2) end - begin is what dtype and shape take.
 */
struct tm_st_file {
  char *path;
  int fd;
  uint64_t size, data; /* of the file; where the data begin */
  tm_st_entry *e;
  size_t n;
  tm_map *by_name;
};

/* Names of the format, bits an element, ours. */
static const struct {
  const char *name;
  uint32_t bits;
  tm_dtype dtype;
} st_types[] = {
    {"BOOL", 8, TM_BOOL},          {"U8", 8, TM_U8},
    {"I8", 8, TM_DTYPE_NONE},      {"F8_E5M2", 8, TM_DTYPE_NONE},
    {"F8_E4M3", 8, TM_DTYPE_NONE}, {"I16", 16, TM_DTYPE_NONE},
    {"U16", 16, TM_DTYPE_NONE},    {"F16", 16, TM_DTYPE_NONE},
    {"BF16", 16, TM_DTYPE_NONE},   {"I32", 32, TM_I32},
    {"U32", 32, TM_DTYPE_NONE},    {"F32", 32, TM_F32},
    {"F64", 64, TM_F64},           {"I64", 64, TM_I64},
    {"U64", 64, TM_DTYPE_NONE},
};

/* --- writing --- */

static const char *st_name_of(tm_dtype t) {
  if (t == TM_DTYPE_NONE) return NULL;
  for (size_t i = 0; i < TM_COUNT(st_types); i++)
    if (st_types[i].dtype == t) return st_types[i].name;
  return NULL;
}

/* Sets v under key and takes it, NULL (out of memory) included. */
static tm_status st_set(json_t *object, const char *key, json_t *v, tm_err *err) {
  if (v && json_object_set_new(object, key, v) == 0) return TM_OK;
  return tm_nomem(err, "a safetensors header");
}

static tm_status st_item(json_t *root, const tm_st_item *it, uint64_t *at,
                         tm_err *err) {
  const char *type = st_name_of(it->dtype);
  if (!type)
    return tm_fail(err, TM_EINVAL, "\"%.200s\": safetensors has no dtype %s", it->name,
                   tm_dtype_name(it->dtype));
  if (strcmp(it->name, "__metadata__") == 0 || json_object_get(root, it->name))
    return tm_fail(err, TM_EINVAL, "safetensors: the name \"%.200s\" %s", it->name,
                   it->name[0] == '_' ? "is taken" : "comes twice");
  json_t *o = json_object(), *shape = json_array();
  uint64_t end = *at + (uint64_t)tm_shape_count(&it->shape) * tm_dtype_size(it->dtype);
  tm_status s = o && shape ? TM_OK : tm_nomem(err, "a safetensors header");
  for (int32_t k = 0; s == TM_OK && k < it->shape.rank; k++)
    if (json_array_append_new(shape, json_integer(it->shape.dim[k])))
      s = tm_nomem(err, "a safetensors header");
  if (s == TM_OK) s = st_set(o, "dtype", json_string(type), err);
  if (s == TM_OK) s = st_set(o, "shape", json_incref(shape), err);
  if (s == TM_OK)
    s = st_set(o, "data_offsets", json_pack("[I, I]", (json_int_t)*at, (json_int_t)end),
               err);
  json_decref(shape);
  if (s) {
    json_decref(o);
    return s;
  }
  if (json_object_set_new(root, it->name, o))
    return tm_fail(err, TM_EINVAL, "safetensors: a name is not UTF-8: \"%.200s\"",
                   it->name);
  *at = end;
  return TM_OK;
}

static int st_dump(const char *p, size_t n, void *ud) {
  return tm_buf_put(ud, p, n) == TM_OK ? 0 : -1;
}

tm_status tm_st_header(const tm_st_item *items, size_t n, tm_buf *out, tm_err *err) {
  json_t *root = json_object();
  uint64_t at = 0;
  size_t start = out->len;
  uint8_t length[8] = {0};
  tm_status s = root ? TM_OK : tm_nomem(err, "a safetensors header");
  for (size_t i = 0; s == TM_OK && i < n; i++) s = st_item(root, &items[i], &at, err);
  if (s == TM_OK && (tm_buf_put(out, length, sizeof length) ||
                     json_dump_callback(root, st_dump, out, JSON_COMPACT)))
    s = tm_nomem(err, "a safetensors header");
  json_decref(root);
  while (s == TM_OK && (out->len - start) % TM_ST_ALIGN != 0)
    if (tm_buf_putc(out, ' ')) s = tm_nomem(err, "a safetensors header");
  if (s == TM_OK && out->len - start - 8 > TM_ST_MAX_HEADER)
    s = tm_fail(err, TM_EEXHAUSTED, "a safetensors header has at most %d bytes",
                TM_ST_MAX_HEADER);
  if (s == TM_OK) tm_put64(out->data + start, out->len - start - 8);
  return s;
}

/* --- reading --- */

static tm_status st_bad(const tm_st_file *f, const char *name, const char *what,
                        tm_err *err) {
  return tm_fail(err, TM_EDATALOSS, "\"%.200s\" is no safetensors file: %s%s%.150s%s",
                 f->path, what, name ? " (\"" : "", name ? name : "",
                 name ? "\")" : "");
}

static tm_status st_shape(const tm_st_file *f, const char *name, const json_t *v,
                          tm_shape *out, tm_err *err) {
  if (!json_is_array(v)) return st_bad(f, name, "no shape", err);
  if (json_array_size(v) > TM_MAX_RANK) return st_bad(f, name, "too many axes", err);
  out->rank = (int32_t)json_array_size(v);
  for (int32_t k = 0; k < out->rank; k++) {
    const json_t *d = json_array_get(v, (size_t)k);
    if (!json_is_integer(d) || json_integer_value(d) < 0)
      return st_bad(f, name, "a size is no number from 0", err);
    out->dim[k] = json_integer_value(d);
  }
  if (tm_shape_check(out, 8, NULL)) return st_bad(f, name, "the shape is too big", err);
  return TM_OK;
}

static tm_status st_type(const tm_st_file *f, const json_t *v, tm_st_entry *e,
                         uint32_t *bits, tm_err *err) {
  const char *type = json_string_value(v);
  if (!type) return st_bad(f, e->name, "no dtype", err);
  for (size_t i = 0; i < TM_COUNT(st_types); i++) {
    if (strcmp(type, st_types[i].name) != 0) continue;
    memcpy(e->type, type, strlen(type) + 1);
    e->dtype = st_types[i].dtype;
    *bits = st_types[i].bits;
    return TM_OK;
  }
  return st_bad(f, e->name, "an unknown dtype", err);
}

static tm_status st_entry(const tm_st_file *f, const char *name, const json_t *v,
                          tm_st_entry *e, tm_err *err) {
  uint32_t bits = 0;
  e->name = tm_strdup(name);
  if (!e->name) return tm_nomem(err, f->path);
  if (!json_is_object(v) || json_object_size(v) != 3)
    return st_bad(f, name, "an entry is not dtype, shape, data_offsets", err);
  TM_TRY(st_type(f, json_object_get(v, "dtype"), e, &bits, err));
  TM_TRY(st_shape(f, name, json_object_get(v, "shape"), &e->shape, err));
  const json_t *at = json_object_get(v, "data_offsets");
  const json_t *a = json_array_get(at, 0), *b = json_array_get(at, 1);
  if (json_array_size(at) != 2 || !json_is_integer(a) || !json_is_integer(b))
    return st_bad(f, name, "data_offsets are not two numbers", err);
  json_int_t begin = json_integer_value(a), end = json_integer_value(b);
  if (begin < 0 || end < begin || (uint64_t)end > f->size - f->data)
    return st_bad(f, name, "data_offsets are outside of the file", err);
  e->begin = f->data + (uint64_t)begin;
  e->end = f->data + (uint64_t)end;
  if ((uint64_t)tm_shape_count(&e->shape) * (bits / 8) != e->end - e->begin)
    return st_bad(f, name, "dtype and shape do not agree with data_offsets", err);
  return TM_OK;
}

static int st_order(const void *a, const void *b) {
  const tm_st_entry *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return (x->end > y->end) - (x->end < y->end);
}

/* Invariant (1). */
static tm_status st_layout(tm_st_file *f, tm_err *err) {
  uint64_t at = f->data;
  if (f->n > 1) qsort(f->e, f->n, sizeof *f->e, st_order);
  for (size_t i = 0; i < f->n; i++) {
    if (f->e[i].begin < at) return st_bad(f, f->e[i].name, "data overlap", err);
    if (f->e[i].begin > at) return st_bad(f, f->e[i].name, "a hole before data", err);
    at = f->e[i].end;
    if (tm_map_puts(f->by_name, f->e[i].name, strlen(f->e[i].name), &f->e[i]))
      return tm_nomem(err, f->path);
  }
  if (at != f->size) return st_bad(f, NULL, "bytes after the last data", err);
  return TM_OK;
}

static tm_status st_metadata(const tm_st_file *f, json_t *v, tm_err *err) {
  const char *key;
  json_t *text;
  if (!json_is_object(v)) return st_bad(f, NULL, "__metadata__ is no object", err);
  json_object_foreach(v, key, text) if (!json_is_string(text)) return st_bad(
      f, key, "metadata that is no text", err);
  return TM_OK;
}

static tm_status st_entries(tm_st_file *f, json_t *root, tm_err *err) {
  const char *name;
  json_t *v;
  size_t n = json_object_size(root);
  if (!json_is_object(root)) return st_bad(f, NULL, "the header is no object", err);
  json_t *meta = json_object_get(root, "__metadata__");
  if (meta) TM_TRY(st_metadata(f, meta, err));
  if (meta) n--;
  f->e = n ? tm_calloc(n, sizeof *f->e) : NULL;
  if (n && !f->e) return tm_nomem(err, f->path);
  f->n = n;
  n = 0;
  json_object_foreach(root, name, v) {
    if (v == meta) continue;
    TM_TRY(st_entry(f, name, v, &f->e[n++], err));
  }
  return st_layout(f, err);
}

static tm_status st_parse(tm_st_file *f, tm_buf *head, tm_err *err) {
  uint8_t length[8];
  void *p;
  if (f->size < 8) return st_bad(f, NULL, "it is too short", err);
  TM_TRY(tm_file_pread(f->fd, f->path, length, 8, 0, err));
  uint64_t n = tm_get64(length);
  if (n > TM_ST_MAX_HEADER || n > f->size - 8)
    return st_bad(f, NULL, "its header is longer than it may be", err);
  f->data = 8 + n;
  if (tm_buf_grow(head, (size_t)n, &p)) return tm_nomem(err, f->path);
  TM_TRY(tm_file_pread(f->fd, f->path, p, (size_t)n, 8, err));
  if (n == 0 || head->data[0] != '{')
    return st_bad(f, NULL, "its header does not begin with {", err);
  json_error_t why;
  json_t *root = json_loadb(p, (size_t)n, JSON_REJECT_DUPLICATES, &why);
  if (!root) return st_bad(f, why.text, "its header is not JSON", err);
  tm_status s = st_entries(f, root, err);
  json_decref(root);
  return s;
}

tm_status tm_st_open(const char *path, tm_st_file **out, tm_err *err) {
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER);
  tm_status s = TM_ENOMEM;
  *out = NULL;
  tm_st_file *f = tm_calloc(1, sizeof *f);
  if (!f) return tm_nomem(err, path);
  f->fd = -1;
  f->path = tm_strdup(path);
  if (!f->path || tm_map_new(&f->by_name))
    s = tm_nomem(err, path);
  else
    s = tm_file_open(path, &f->fd, &f->size, err);
  if (s == TM_OK) s = st_parse(f, &head, err);
  tm_buf_release(&head);
  if (s) {
    tm_st_close(f);
    return s;
  }
  *out = f;
  return TM_OK;
}

void tm_st_close(tm_st_file *f) {
  if (!f) return;
  if (f->fd >= 0) close(f->fd);
  for (size_t i = 0; i < f->n; i++) tm_strfree(f->e[i].name);
  tm_free(f->e, f->n * sizeof *f->e);
  tm_map_free(f->by_name);
  tm_strfree(f->path);
  tm_free(f, sizeof *f);
}

size_t tm_st_count(const tm_st_file *f) { return f->n; }

const tm_st_entry *tm_st_at(const tm_st_file *f, size_t i) {
  TM_DCHECK(i < f->n);
  return &f->e[i];
}

const tm_st_entry *tm_st_find(const tm_st_file *f, const char *name) {
  return tm_map_gets(f->by_name, name, strlen(name));
}

uint64_t tm_st_size(const tm_st_file *f) { return f->size; }

tm_status tm_st_read(const tm_st_file *f, const tm_st_entry *e, uint64_t first, void *p,
                     size_t n, tm_err *err) {
  uint64_t size = e->end - e->begin;
  if (first > size || n > size - first)
    return st_bad(f, e->name, "an entry is shorter than what is asked for", err);
  return tm_file_pread(f->fd, f->path, p, n, e->begin + first, err);
}

tm_status tm_st_crc(const tm_st_file *f, uint32_t *crc, tm_err *err) {
  enum { PIECE = 1 << 20 };
  uint8_t *piece = tm_malloc(PIECE);
  if (!piece) return tm_nomem(err, f->path);
  tm_status s = TM_OK;
  *crc = 0;
  for (uint64_t at = 0; s == TM_OK && at < f->size;) {
    size_t n = f->size - at < PIECE ? (size_t)(f->size - at) : PIECE;
    s = tm_file_pread(f->fd, f->path, piece, n, at, err);
    if (s == TM_OK) *crc = tm_crc32c(*crc, piece, n);
    at += n;
  }
  tm_free(piece, PIECE);
  return s;
}
