#include "tensor/shape.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  A shape is a plain value; sizes past the rank are kept zero, so that two
 * equal shapes are equal bytes.
 */

/* Products of sizes times the element size stay below this. */
static const int64_t shape_limit = INT64_C(1) << 62;

tm_shape tm_shape_scalar(void) {
  tm_shape s;
  memset(&s, 0, sizeof s);
  return s;
}

tm_shape tm_shape_of(int32_t rank, const int64_t *dim) {
  TM_DCHECK(rank >= 0 && rank <= TM_MAX_RANK);
  tm_shape s = tm_shape_scalar();
  s.rank = rank;
  for (int32_t i = 0; i < rank; i++) s.dim[i] = dim[i];
  return s;
}

bool tm_shape_known(const tm_shape *s) {
  for (int32_t i = 0; i < s->rank; i++)
    if (s->dim[i] < 0) return false;
  return true;
}

int64_t tm_shape_count(const tm_shape *s) {
  int64_t n = 1;
  if (!tm_shape_known(s)) return -1;
  for (int32_t i = 0; i < s->rank; i++) n *= s->dim[i];
  return n;
}

bool tm_shape_equal(const tm_shape *a, const tm_shape *b) {
  if (a->rank != b->rank) return false;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->dim[i] != b->dim[i]) return false;
  return true;
}

bool tm_shape_compatible(const tm_shape *a, const tm_shape *b) {
  if (a->rank != b->rank) return false;
  for (int32_t i = 0; i < a->rank; i++)
    if (a->dim[i] >= 0 && b->dim[i] >= 0 && a->dim[i] != b->dim[i]) return false;
  return true;
}

tm_status tm_shape_check(const tm_shape *s, int64_t elem_size, tm_err *err) {
  if (s->rank < 0 || s->rank > TM_MAX_RANK)
    return tm_fail(err, TM_EINVAL, "rank %" PRId32 " is not in 0..%d", s->rank,
                   TM_MAX_RANK);
  /* Sizes other than 0 are multiplied even when one is 0, so that a product of any
   * part of the shape is in range too. */
  int64_t total = elem_size;
  for (int32_t i = 0; i < s->rank; i++) {
    if (s->dim[i] < -1)
      return tm_fail(err, TM_EINVAL, "size %" PRId64 " of axis %" PRId32 " is negative",
                     s->dim[i], i + 1);
    if (s->dim[i] <= 0) continue;
    if (!tm_mul_i64(total, s->dim[i], &total) || total >= shape_limit) {
      char text[128];
      return tm_fail(err, TM_EINVAL, "shape %s is too large",
                     tm_shape_text(s, text, sizeof text));
    }
  }
  return TM_OK;
}

char *tm_shape_text(const tm_shape *s, char *buf, size_t cap) {
  size_t n = 0;
  if (cap == 0) return buf;
  buf[0] = '\0';
  for (int32_t i = -1; i <= s->rank; i++) {
    char part[32];
    const char *sep = i + 1 < s->rank ? ", " : "";
    if (i < 0)
      snprintf(part, sizeof part, "(");
    else if (i == s->rank)
      snprintf(part, sizeof part, ")");
    else if (s->dim[i] < 0)
      snprintf(part, sizeof part, "?%s", sep);
    else
      snprintf(part, sizeof part, "%" PRId64 "%s", s->dim[i], sep);
    size_t len = strlen(part);
    if (len > cap - 1 - n) len = cap - 1 - n;
    memcpy(buf + n, part, len);
    n += len;
    buf[n] = '\0';
  }
  return buf;
}

/* Size of one axis of the broadcast result; -2 when the sizes do not agree. */
static int64_t shape_join(int64_t a, int64_t b) {
  if (a == b || b == 1) return a;
  if (a == 1) return b;
  if (a < 0) return b; /* b > 1 or 0: an unknown size must be b or 1 */
  if (b < 0) return a;
  return -2;
}

tm_status tm_shape_broadcast(const tm_shape *a, const tm_shape *b, tm_shape *out,
                             tm_err *err) {
  int32_t rank = a->rank > b->rank ? a->rank : b->rank;
  tm_shape s = tm_shape_scalar();
  s.rank = rank;
  for (int32_t i = 1; i <= rank; i++) {
    int64_t x = i <= a->rank ? a->dim[a->rank - i] : 1;
    int64_t y = i <= b->rank ? b->dim[b->rank - i] : 1;
    int64_t d = shape_join(x, y);
    if (d == -2) {
      char ta[128], tb[128];
      return tm_fail(err, TM_EINVAL,
                     "shapes %s and %s do not broadcast: sizes %" PRId64 " and %" PRId64
                     " of axis -%" PRId32,
                     tm_shape_text(a, ta, sizeof ta), tm_shape_text(b, tb, sizeof tb),
                     x, y, i);
    }
    s.dim[rank - i] = d;
  }
  *out = s;
  return TM_OK;
}

tm_status tm_shape_axis(const tm_shape *s, int64_t axis, int32_t *out, tm_err *err) {
  if (axis < -(int64_t)s->rank || axis >= s->rank) {
    char text[128];
    tm_shape_text(s, text, sizeof text);
    if (s->rank == 0)
      return tm_fail(err, TM_EINVAL, "axis %" PRId64 " of a scalar, which has none",
                     axis < 0 ? axis : axis + 1);
    return tm_fail(err, TM_EINVAL, "axis %" PRId64 " is not an axis of shape %s",
                   axis < 0 ? axis : axis + 1, text);
  }
  *out = (int32_t)(axis < 0 ? axis + s->rank : axis);
  return TM_OK;
}
