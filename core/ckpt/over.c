#include "ckpt/over.h"

#include <string.h>

#include "base/mem.h"

enum { OVER_IDS = 4096, OVER_ROWS = 1 << 20 };

/* The first position whose number is not below `row`. */
static tm_status over_find(const tm_ckpt_over *o, int64_t row, int64_t *out,
                           tm_err *err) {
  int64_t lo = 0, hi = o->n, id;
  while (lo < hi) {
    int64_t mid = lo + (hi - lo) / 2;
    TM_TRY(tm_st_read(o->st, o->ids, (uint64_t)mid * sizeof id, &id, sizeof id, err));
    if (id < row)
      lo = mid + 1;
    else
      hi = mid;
  }
  *out = lo;
  return TM_OK;
}

/* n rows from position `at` on, whose numbers are id[], to their places; each number is
 * above *last. */
static tm_status over_copy(const tm_ckpt_over *o, const int64_t *id, int64_t at,
                           int64_t n, int64_t *last, uint8_t *room, uint8_t *to,
                           tm_err *err) {
  TM_TRY(tm_st_read(o->st, o->rows, (uint64_t)at * o->row_bytes, room,
                    (size_t)n * o->row_bytes, err));
  for (int64_t k = 0; k < n; k++) {
    if (id[k] <= *last || id[k] >= o->end)
      return tm_fail(err, TM_EDATALOSS, "\"%.300s\": row ids do not rise",
                     o->ids->name);
    *last = id[k];
    memcpy(to + (size_t)(id[k] - o->first) * o->row_bytes,
           room + (size_t)k * o->row_bytes, o->row_bytes);
  }
  return TM_OK;
}

tm_status tm_ckpt_lay_over(const tm_ckpt_over *o, uint8_t *to, tm_err *err) {
  int64_t id[OVER_IDS], at, end, n, last = o->first - 1;
  if (o->row_bytes == 0) return TM_OK;
  size_t bytes = o->row_bytes > OVER_ROWS ? o->row_bytes : OVER_ROWS;
  int64_t step = (int64_t)(bytes / o->row_bytes);
  if (step > OVER_IDS) step = OVER_IDS;
  TM_TRY(over_find(o, o->first, &at, err));
  TM_TRY(over_find(o, o->end, &end, err));
  uint8_t *room = tm_malloc(bytes);
  if (!room) return tm_nomem(err, "rows of a checkpoint");
  tm_status s = TM_OK;
  for (; at < end && s == TM_OK; at += n) {
    n = end - at < step ? end - at : step;
    s = tm_st_read(o->st, o->ids, (uint64_t)at * sizeof *id, id, (size_t)n * sizeof *id,
                   err);
    if (s == TM_OK) s = over_copy(o, id, at, n, &last, room, to, err);
  }
  tm_free(room, bytes);
  return s;
}
