/*
 * shape.h - sizes of a tensor's axes; -1 is a size not yet known (only while
 * tracing).
 *
 * Threads: plain values.
 */
#ifndef TM_TENSOR_SHAPE_H
#define TM_TENSOR_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { TM_MAX_RANK = 8 };

typedef struct tm_shape {
  int32_t rank; /* 0..TM_MAX_RANK */
  int64_t dim[TM_MAX_RANK];
} tm_shape;

tm_shape tm_shape_scalar(void);
tm_shape tm_shape_of(int32_t rank, const int64_t *dim);
bool tm_shape_known(const tm_shape *s);    /* no -1 */
int64_t tm_shape_count(const tm_shape *s); /* elements; -1 when unknown */
bool tm_shape_equal(const tm_shape *a, const tm_shape *b);
/* Equal where both are known. */
bool tm_shape_compatible(const tm_shape *a, const tm_shape *b);
/* Rank and sizes in range and the product of sizes * elem below 2^62. */
TM_CHECKED tm_status tm_shape_check(const tm_shape *s, int64_t elem_size, tm_err *err);
/* "(2, 3)"; unknown sizes print as "?". Writes at most cap bytes, returns buf. */
char *tm_shape_text(const tm_shape *s, char *buf, size_t cap);
/* NumPy's rule, -1 included (-1 with 1 is -1; -1 with n > 1 is n). */
TM_CHECKED tm_status tm_shape_broadcast(const tm_shape *a, const tm_shape *b,
                                        tm_shape *out, tm_err *err);
/* Axis from -rank..rank-1 to 0..rank-1; TM_EINVAL names the axis from 1 on. */
TM_CHECKED tm_status tm_shape_axis(const tm_shape *s, int64_t axis, int32_t *out,
                                   tm_err *err);

#endif
