#include "graph/ids.h"

#include <inttypes.h>

/* Design.  int64 is looked at where it is; other types are copied into scratch. */

size_t tm_ids_scratch(const tm_view *ids) {
  return ids->dtype == TM_I64 ? 0 : (size_t)tm_view_count(ids) * sizeof(int64_t);
}

static const int64_t *ids_wide(const tm_view *ids, int64_t n, int64_t *scratch) {
  if (ids->dtype == TM_I64) return ids->data;
  for (int64_t i = 0; i < n; i++) scratch[i] = tm_view_get_i64(ids, i);
  return scratch;
}

static tm_status ids_bad(int64_t id, int64_t at, const char *name, int64_t rows,
                         const char *of, tm_err *err) {
  return tm_fail(err, TM_EINVAL,
                 "id %" PRId64 " at position %" PRId64
                 " of %s does not exist: %s has %" PRId64 " rows (0 to %" PRId64 ")",
                 id, at + 1, name, of, rows, rows - 1);
}

tm_status tm_ids_read(const tm_view *ids, const char *name, int64_t rows,
                      const char *of, void *scratch, const int64_t **out, tm_err *err) {
  int64_t n = tm_view_count(ids);
  const int64_t *v = ids_wide(ids, n, scratch);
  for (int64_t i = 0; i < n; i++)
    if ((uint64_t)v[i] >= (uint64_t)rows) return ids_bad(v[i], i, name, rows, of, err);
  *out = v;
  return TM_OK;
}

tm_status tm_ids_read_signed(const tm_view *ids, const char *name, int64_t rows,
                             const char *of, void *scratch, const int64_t **out,
                             tm_err *err) {
  int64_t n = tm_view_count(ids);
  const int64_t *v = ids_wide(ids, n, scratch);
  for (int64_t i = 0; i < n; i++)
    if (v[i] >= rows) return ids_bad(v[i], i, name, rows, of, err);
  *out = v;
  return TM_OK;
}
