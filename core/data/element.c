#include <inttypes.h>

#include "data/node.h"

/*
 * Design.  Whoever takes some elements of many names them by number; what lies between
 * is passed over, so functions of map do not run for it.  All iterators of a dataset,
 * seed and worker agree about the numbers, whichever elements each of them made:
 *
 *   (1) Numbers are those of passing from the start.  An iterator whose own element
 *       failed may stand elsewhere (a batch ends with the element that fails), so it
 *       begins anew before the next one.
 *   (2) What cannot be passed (a bad record) is walked from the start, where each
 *       failure counts as an element; whoever comes from before it does the same.
 *   (3) at >= 0: the cursors stand before that element.
 */
static tm_status element_begin(tm_iter *it, tm_err *err) {
  it->at = -1;
  TM_TRY(tm_iter_fresh(it, err));
  it->behind = false;
  it->place = (tm_iter_place){0, 0};
  it->at = 0;
  return TM_OK;
}

/* The next epoch is what reset makes, which keeps what was cached. */
static tm_status element_epoch(tm_iter *it, uint64_t epoch, tm_err *err) {
  it->ended = false;
  if (epoch == it->env.env.epoch + 1) {
    TM_TRY(tm_iter_reset(it, err));
    it->at = 0;
    return TM_OK;
  }
  it->env.env.epoch = epoch;
  return element_begin(it, err);
}

static bool element_is_hard(tm_status s) {
  return s == TM_ECANCELLED || s == TM_ENOMEM;
}

static tm_status element_no(tm_iter *it, int64_t end, tm_err *err) {
  it->at = it->end = end;
  it->ended = true;
  return tm_fail(err, TM_ERANGE, "iterator: the data ended");
}

/* (2) */
static tm_status element_walk(tm_iter *it, int64_t number, tm_err *err) {
  TM_TRY(element_begin(it, err));
  for (int64_t n = 0, step; n < number; n++) {
    tm_status s = tm_cursor_walk(it->root, 1, &step, err);
    if (s == TM_ERANGE) return element_no(it, n, err);
    if (!element_is_hard(s)) continue;
    it->at = -1;
    return s;
  }
  if (err) tm_err_clear(err);
  it->at = number;
  return TM_OK;
}

static tm_status element_go(tm_iter *it, int64_t number, tm_err *err) {
  int64_t at = it->at, done = 0;
  if (at == number) return TM_OK;
  it->at = -1;
  tm_status s = tm_cursor_pass(it->root, number - at, &done, err);
  if (s == TM_ERANGE) return element_no(it, at + done, err);
  if (s != TM_OK) return element_is_hard(s) ? s : element_walk(it, number, err);
  it->at = number;
  return TM_OK;
}

tm_status tm_iter_element(tm_iter *it, uint64_t epoch, int64_t number, tm_tensor **out,
                          tm_err *err) {
  if (number < 0)
    return tm_fail(err, TM_EINVAL, "iterator: there is no element %" PRId64, number);
  it->env.sparse = true;
  if (epoch != it->env.env.epoch) TM_TRY(element_epoch(it, epoch, err));
  if (it->ended && number >= it->end) return element_no(it, it->end, err);
  if (it->at < 0 || it->at > number) TM_TRY(element_begin(it, err));
  TM_TRY(element_go(it, number, err));
  tm_status s = tm_iter_next(it, out, err);
  if (s == TM_ERANGE) return element_no(it, number, err);
  it->at = s == TM_OK ? number + 1 : -1;
  return s;
}
