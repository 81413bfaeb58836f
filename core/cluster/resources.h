/*
 * resources.h - the iterators that live on one task, by uid.
 *
 * A batch that a closure fetched ahead can be handed back: between mark and commit the
 * elements given out are remembered, and rollback makes them the next ones again.
 *
 * Of an iterator whose elements are dealt out (exactly-once visitation) a closure takes
 * those that the chief gave it, by number, so nothing is remembered or handed back.
 *
 * Ownership: owns its iterators.
 * Threads:   next, mark, commit, rollback on the compute thread; add and del from any.
 */
#ifndef TM_CLUSTER_RESOURCES_H
#define TM_CLUSTER_RESOURCES_H

#include "data/iterator.h"

typedef struct tm_resources tm_resources;

/* Elements of one iterator that were dealt to a closure: first, first + 1, ... of a
 * pass through its dataset. */
typedef struct tm_deal {
  int64_t first;
  int32_t count; /* 0: not dealt */
  uint64_t pass;
} tm_deal;

TM_CHECKED tm_status tm_resources_new(tm_resources **out);
void tm_resources_free(tm_resources *r);
/* Takes the iterator.  NULL: it could not be made, whoever asks it for an element is
 * told `why`.  TM_EEXISTS. */
TM_CHECKED tm_status tm_resources_add(tm_resources *r, uint64_t uid, tm_iter *it,
                                      const tm_err *why);
void tm_resources_del(tm_resources *r, uint64_t uid); /* freed once it is not in use */
/* The next element of an iterator: n tensors. TM_ENOTFOUND, TM_ERANGE at the end. */
TM_CHECKED tm_status tm_resources_next(tm_resources *r, uint64_t uid, tm_tensor **out,
                                       int32_t n, tm_err *err);
/* The next elements of this iterator are those of `d`, in order, and no more. */
void tm_resources_deal(tm_resources *r, uint64_t uid, const tm_deal *d);
/* Of the last deal: how many elements it gave, and whether the next one was found not
 * to exist. */
int32_t tm_resources_dealt(tm_resources *r, uint64_t uid, bool *end);
/* What was taken since the last call (a failed element may be told one closure early),
 * on the compute thread after a closure.  Zeros for an iterator that is not there. */
tm_iter_place tm_resources_took(tm_resources *r, uint64_t uid);
/* States of an iterator (data/iterator.h); on the thread that calls next. */
TM_CHECKED tm_status tm_resources_save(tm_resources *r, uint64_t uid, tm_buf *out,
                                       tm_err *err);
TM_CHECKED tm_status tm_resources_restore(tm_resources *r, uint64_t uid, const char *p,
                                          size_t n, tm_err *err);
void tm_resources_mark(tm_resources *r);
void tm_resources_commit(tm_resources *r);
void tm_resources_rollback(tm_resources *r);

#endif
