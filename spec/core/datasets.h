/*
 * datasets.h - helpers of the tests of core/data: make small sources, run iterators.
 */
#ifndef TM_SPEC_DATASETS_H
#define TM_SPEC_DATASETS_H

#include <zlib.h>

#include "data/codec.h"
#include "data/iterator.h"
#include "data/source.h"
#include "test.h"

static const tm_iter_env test_env = {-1, 1, 7, 0, NULL};

static inline tm_tensor *ints(int64_t n, int64_t cols, int64_t first) {
  tm_shape s = tm_shape_of(cols ? 2 : 1, (int64_t[]){n, cols});
  tm_tensor *t;
  assert_ok(tm_tensor_new(TM_I64, &s, &t, NULL));
  for (int64_t i = 0; i < tm_view_count(&t->v); i++)
    ((int64_t *)t->v.data)[i] = first + i;
  return t;
}

/* Takes the reference. */
static inline tm_dataset *slices_of(tm_tensor *t) {
  tm_dataset *ds;
  assert_ok(tm_data_slices(&t, 1, &ds, NULL));
  tm_tensor_unref(t);
  return ds;
}

static inline tm_dataset *range_of(int64_t n) {
  tm_dataset *ds;
  assert_ok(tm_data_range(0, n, 1, &ds, NULL));
  return ds;
}

/* CHAIN(ds, tm_data_take, 3): ds = take of ds, dropping the input. */
#define CHAIN(ds, ...) CHAIN_(ds, __VA_ARGS__, )
#define CHAIN_(ds, make, ...)                                  \
  do {                                                         \
    tm_dataset *next_;                                         \
    tm_err err_;                                               \
    assert_ok_err(make(ds, __VA_ARGS__ &next_, &err_), &err_); \
    tm_dataset_unref(ds);                                      \
    ds = next_;                                                \
  } while (0)

static inline tm_iter *iterate(tm_dataset *ds, const tm_iter_env *env) {
  tm_iter *it;
  tm_err err;
  assert_ok_err(tm_dataset_iterate(ds, env, &it, &err), &err);
  return it;
}

/* The elements of an iterator of int64 tensors, all values in a row; at most cap. */
static inline size_t drain(tm_iter *it, int64_t *out, size_t cap) {
  size_t n = 0;
  tm_tensor *t[64];
  tm_err err = {0};
  for (;;) {
    tm_status s = tm_iter_next(it, t, &err);
    if (s == TM_ERANGE) return n;
    assert_ok_err(s, &err);
    for (int32_t k = 0; k < tm_dataset_width(tm_iter_dataset(it)); k++) {
      for (int64_t i = 0; i < tm_view_count(&t[k]->v); i++) {
        assert_true(n < cap);
        out[n++] = tm_view_get_i64(&t[k]->v, i);
      }
      tm_tensor_unref(t[k]);
    }
  }
}

/* The same of a fresh iterator. */
static inline size_t values_env(tm_dataset *ds, const tm_iter_env *env, int64_t *out,
                                size_t cap) {
  tm_iter *it = iterate(ds, env);
  size_t n = drain(it, out, cap);
  tm_iter_free(it);
  return n;
}

static inline size_t values(tm_dataset *ds, int64_t *out, size_t cap) {
  return values_env(ds, &test_env, out, cap);
}

#define assert_values(ds, ...)                            \
  do {                                                    \
    const int64_t want_[] = {__VA_ARGS__};                \
    int64_t got_[256];                                    \
    size_t n_ = values(ds, got_, 256);                    \
    assert_int_equal(n_, sizeof want_ / sizeof want_[0]); \
    assert_memory_equal(got_, want_, sizeof want_);       \
  } while (0)

/* Next element must fail with code s; the message holds each given word. */
static inline void assert_next_fails(tm_iter *it, tm_status s, const char *word,
                                     const char *other) {
  tm_tensor *t[64];
  tm_err err;
  tm_err_clear(&err);
  assert_int_equal(tm_iter_next(it, t, &err), s);
  if (!strstr(err.msg, word) || !strstr(err.msg, other))
    fail_msg("\"%s\" lacks \"%s\" or \"%s\"", err.msg, word, other);
}

static inline bool str_is(const tm_tensor *t, int64_t i, const char *want) {
  const tm_str *s = (const tm_str *)t->v.data + i;
  return t->v.dtype == TM_STRING && s->n == strlen(want) &&
         (s->n == 0 || memcmp(s->p, want, s->n) == 0);
}

/* gzip of n bytes; returns the size, out has room for cap. */
static inline size_t gzip_of(const void *data, size_t n, void *out, size_t cap) {
  z_stream z;
  memset(&z, 0, sizeof z);
  assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
                   Z_OK);
  z.next_in = (Bytef *)(uintptr_t)data;
  z.avail_in = (uInt)n;
  z.next_out = out;
  z.avail_out = (uInt)cap;
  assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
  deflateEnd(&z);
  return cap - z.avail_out;
}

/* Where a shipped data file is; NULL when it is not there. */
static inline const char *shipped(const char *name, char *path, size_t cap) {
  const char *roots[] = {getenv("TIDEMILL_DATA"), "examples/data", "../shared/data"};
  for (size_t i = 0; i < 3; i++) {
    if (!roots[i]) continue;
    int n = snprintf(path, cap, "%s/%s", roots[i], name);
    if (n > 0 && (size_t)n < cap && access(path, R_OK) == 0) return path;
  }
  return NULL;
}

#endif
