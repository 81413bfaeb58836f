#include "graph/window.h"

#include <inttypes.h>
#include <strings.h>

/*
 * Design.  TensorFlow's rule: "same" puts one pixel more behind the image than before
 * it where the padding is odd.  Sizes are below 2^31, so products of two do not
 * overflow.
 */

tm_status tm_window_sizes(const tm_attrs *a, int32_t attr, const char *name,
                          int32_t axes, int64_t absent, int64_t *out, tm_err *err) {
  const tm_attr *t = &a->a[attr];
  for (int32_t i = 0; i < axes; i++) out[i] = absent;
  if (!tm_at_has(a, attr)) return TM_OK;
  int32_t skip = t->n == axes + 2 ? 1 : 0;
  if (t->n != 1 && t->n != axes && !skip)
    return tm_fail(err, TM_EINVAL, "%s has %" PRId32 " numbers, must have %s", name,
                   t->n, axes == 1 ? "1" : "1 or 2");
  if (skip && (t->u.is[0] != 1 || t->u.is[t->n - 1] != 1))
    return tm_fail(err, TM_EINVAL, "%s of batch and channels must be 1", name);
  for (int32_t i = 0; i < axes; i++) {
    out[i] = t->u.is[t->n == 1 ? 0 : i + skip];
    if (out[i] < 1 || out[i] > INT32_MAX)
      return tm_fail(err, TM_EINVAL, "%s is %" PRId64 ", must be at least 1", name,
                     out[i]);
  }
  return TM_OK;
}

tm_status tm_window_padding(const tm_attrs *a, int32_t attr, bool *same, tm_err *err) {
  const char *s = tm_at_str(a, attr);
  *same = strcasecmp(s, "same") == 0;
  if (*same || strcasecmp(s, "valid") == 0) return TM_OK;
  return tm_fail(err, TM_EINVAL, "padding is \"%.40s\", must be \"same\" or \"valid\"",
                 s);
}

tm_status tm_window_place(tm_window *w, int64_t size, tm_err *err) {
  w->before = 0;
  w->out = -1;
  if (size > INT32_MAX || w->size > INT32_MAX)
    return tm_fail(err, TM_EINVAL, "a size of image or window is above 2^31 - 1");
  if (w->size == 0) return tm_fail(err, TM_EINVAL, "the window has no pixels");
  if (size < 0 || w->size < 0) return TM_OK;
  int64_t reach = (w->size - 1) * w->step + 1;
  if (w->same) {
    w->out = (size + w->stride - 1) / w->stride;
    int64_t all = (w->out - 1) * w->stride + reach - size;
    w->before = all > 0 ? all / 2 : 0;
    return TM_OK;
  }
  if (reach > size)
    return tm_fail(err, TM_EINVAL,
                   "a window of %" PRId64 " does not fit into an axis of %" PRId64
                   "; padding = \"same\" pads it",
                   reach, size);
  w->out = (size - reach) / w->stride + 1;
  return TM_OK;
}
