/*
 * iterator.h - a position in a dataset.
 *
 *     tm_iter *it;
 *     TM_TRY(tm_dataset_iterate(ds, &env, &it, err));
 *     while ((s = tm_iter_next(it, out, err)) == TM_OK) { ...; unref each out[i]; }
 *     tm_iter_free(it);         -- s is TM_ERANGE when the data ended
 *
 * The same dataset and env give the same elements in the same order everywhere.
 *
 * Ownership: the caller's; it holds a reference to its dataset.  Elements are
 *            references, independent of the iterator.
 * Threads:   one at a time.  Prefetching threads are the iterator's own and end
 *            before tm_iter_free returns.
 */
#ifndef TM_DATA_ITERATOR_H
#define TM_DATA_ITERATOR_H

#include "base/cancel.h"
#include "data/dataset.h"

typedef struct tm_iter tm_iter;

typedef struct tm_iter_env {
  int64_t worker; /* index of the worker, -1 on the chief */
  int64_t nworkers;
  uint64_t seed;     /* global seed */
  uint64_t epoch;    /* how many iterators of this dataset there were before */
  tm_cancel *cancel; /* looked at while next works or waits (then TM_ECANCELLED, and
                        the element in work may be lost); may be NULL, else it must
                        outlive the iterator */
} tm_iter_env;

/* Opens nothing yet: files are opened by the first next. */
TM_CHECKED tm_status tm_dataset_iterate(tm_dataset *ds, const tm_iter_env *env,
                                        tm_iter **out, tm_err *err);

/* The next element: tm_dataset_width() tensors, a reference each.
 * TM_ERANGE: the data ended (also every time after).  Other errors belong to one
 * element; a later call goes on behind it where that is possible.  On failure
 * out has no references. */
TM_CHECKED tm_status tm_iter_next(tm_iter *it, tm_tensor **out, tm_err *err);

/* Start again as a fresh iterator of the next epoch. */
TM_CHECKED tm_status tm_iter_reset(tm_iter *it, tm_err *err);

const tm_dataset *tm_iter_dataset(const tm_iter *it);
/* Elements given since the start. */
int64_t tm_iter_position(const tm_iter *it);

void tm_iter_free(tm_iter *it); /* it may be NULL */

#endif
