/*
 * tensor.h - dense, contiguous, row-major, immutable arrays, and views for kernels.
 *
 * A tensor is filled once by whoever made it and not changed after it was shared.
 * Sub-tensors of the first axis and reshapes share storage.
 *
 *     tm_tensor *t;
 *     TM_TRY(tm_tensor_new(TM_F32, &shape, &t, err));
 *     float *x = t->v.data;  ... fill ...
 *     tm_tensor_unref(t);
 *
 * Ownership: refcounted; new/from give one reference to the caller.
 * Threads:   references may be taken and dropped anywhere; data is read-only once
 *            shared.
 */
#ifndef TM_TENSOR_TENSOR_H
#define TM_TENSOR_TENSOR_H

#include <stdatomic.h>

#include "base/buf.h"
#include "tensor/dtype.h"
#include "tensor/shape.h"

/* What a kernel sees: no ownership. */
typedef struct tm_view {
  tm_dtype dtype;
  tm_shape shape;
  void *data;
} tm_view;

int64_t tm_view_count(const tm_view *v); /* elements */
size_t tm_view_bytes(const tm_view *v);  /* count * element size (strings: of tm_str) */

/* Bytes shared by tensors.  `release` frees `data` when the last reference goes. */
typedef struct tm_storage tm_storage;
struct tm_storage {
  atomic_int refs;
  void *data;
  size_t size;
  void (*release)(tm_storage *s); /* frees data, not the struct */
  void *ud;                       /* for release */
  tm_storage *keep; /* another storage that the bytes here point into, or NULL */
};

/* Own 64-byte aligned bytes, counted by base/mem. */
TM_CHECKED tm_status tm_storage_new(size_t size, tm_storage **out);
/* Wrap foreign bytes; release may be NULL (bytes outlive the storage). */
TM_CHECKED tm_status tm_storage_wrap(void *data, size_t size,
                                     void (*release)(tm_storage *s), void *ud,
                                     tm_storage **out);
tm_storage *tm_storage_ref(tm_storage *s);
void tm_storage_unref(tm_storage *s); /* s may be NULL */

typedef struct tm_tensor {
  atomic_int refs;
  tm_view v;
  tm_storage *storage;
} tm_tensor;

/* Uninitialised elements (string tensors: empty strings). shape has no -1. */
TM_CHECKED tm_status tm_tensor_new(tm_dtype t, const tm_shape *shape, tm_tensor **out,
                                   tm_err *err);
/* A tensor over storage (takes a new reference) at data; bounds are the caller's. */
TM_CHECKED tm_status tm_tensor_over(tm_storage *st, tm_dtype t, const tm_shape *shape,
                                    void *data, tm_tensor **out);
/* Strings: builds one storage with the tm_str array and a copy of all bytes. */
TM_CHECKED tm_status tm_tensor_strings(const tm_shape *shape, const tm_str *s,
                                       tm_tensor **out, tm_err *err);
TM_CHECKED tm_status tm_tensor_f32(float x, tm_tensor **out); /* scalars */
TM_CHECKED tm_status tm_tensor_i64(int64_t x, tm_tensor **out);
/* Copy of a view (bytes of strings too). */
TM_CHECKED tm_status tm_tensor_copy(const tm_view *v, tm_tensor **out, tm_err *err);
tm_tensor *tm_tensor_ref(tm_tensor *t);
void tm_tensor_unref(tm_tensor *t); /* t may be NULL */

/* Rows first..first+n-1 of the first axis, sharing storage. Rank >= 1. */
TM_CHECKED tm_status tm_tensor_rows(tm_tensor *t, int64_t first, int64_t n,
                                    tm_tensor **out, tm_err *err);
/* The same elements in another shape of equal count, sharing storage. */
TM_CHECKED tm_status tm_tensor_reshape(tm_tensor *t, const tm_shape *shape,
                                       tm_tensor **out, tm_err *err);

/* As people read it: nested brackets, past `edge_after` elements only the edges,
 * then a line "(shape, dtype)". */
TM_CHECKED tm_status tm_tensor_text(const tm_view *v, int64_t edge_after, tm_buf *out);

/* Element i as a double / int64 (any number type or bool). */
double tm_view_get_f64(const tm_view *v, int64_t i);
int64_t tm_view_get_i64(const tm_view *v, int64_t i);

#endif
