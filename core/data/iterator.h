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

#include "base/buf.h"
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

/* How far an iterator is: elements that it gave, and elements that failed instead (not
 * those that were cancelled: they come again after a seek). */
typedef struct tm_iter_place {
  int64_t given, failed;
} tm_iter_place;

/* Go on behind this place, in the order of the iterator's seed and epoch.  The way
 * there is made by the next call of next, or now by tm_iter_settle; it is short where
 * elements have numbers (memory, ranges, idx files; functions of map do not run), and
 * else as long as making them again.
 * TM_EDATALOSS, of settle or next: there are fewer elements. */
TM_CHECKED tm_status tm_iter_seek(tm_iter *it, tm_iter_place to, tm_err *err);
TM_CHECKED tm_status tm_iter_settle(tm_iter *it, tm_err *err);

/* The iterator's place as text to keep: with the seed, so that an order by chance can
 * be had again, and with what tells the dataset from others (not with elements).
 * Appends to out. */
TM_CHECKED tm_status tm_iter_save(const tm_iter *it, tm_buf *out, tm_err *err);
/* Go there; seed, worker and epoch become those of the state.  TM_EINVAL: it is no
 * state, or one of another dataset; the iterator is as it was. */
TM_CHECKED tm_status tm_iter_restore(tm_iter *it, const char *p, size_t n, tm_err *err);

/* What tells a dataset from others, in the form of a state: "range:1f.. batch:03.." */
TM_CHECKED tm_status tm_dataset_marks(const tm_dataset *ds, tm_buf *out, tm_err *err);
/* TM_EINVAL names the first difference between the dataset and marks of another. */
TM_CHECKED tm_status tm_dataset_check_marks(const tm_dataset *ds, const char *p,
                                            size_t n, tm_err *err);

/* Element `number`, from 0, of an epoch, wherever the iterator is: for who takes some
 * elements of many.  Going forward passes over what lies between as seek does, going
 * back begins the epoch anew.  An element that fails keeps its number.  Do not mix with
 * next and seek on one iterator (a prefetch makes nothing ahead here).  As next;
 * TM_ERANGE: there is no such element. */
TM_CHECKED tm_status tm_iter_element(tm_iter *it, uint64_t epoch, int64_t number,
                                     tm_tensor **out, tm_err *err);

void tm_iter_free(tm_iter *it); /* it may be NULL */

#endif
