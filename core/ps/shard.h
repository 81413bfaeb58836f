/*
 * shard.h - one shard: its elements, its versions, its slots.
 *
 * Two lives.  Dense: `cur` is the current version; whoever reads takes a reference,
 * whoever writes calls tm_shard_writable first.  Table (since it was first used by
 * rows): one version for ever, changed in place under striped locks.
 *
 * Ownership: refcounted, so that a shard dropped while requests work on it lives on
 *            until they are done.
 * Threads:   what says "under mu" wants tm_shard_lock; the rest may be called from any.
 */
#ifndef TM_PS_SHARD_H
#define TM_PS_SHARD_H

#include <pthread.h>

#include "ps/request.h"
#include "ps/rule.h"
#include "ps/store.h"

typedef struct tm_stripe {
  _Alignas(64) atomic_uint locked;
} tm_stripe;

enum { TM_STRIPES = 64 };

/* One slot array, of the shard's shape and dtype. */
typedef struct tm_slot {
  struct tm_slot *next;
  uint64_t optimizer;
  tm_tensor *t;
  uint64_t base; /* as the shard's */
  char name[24];
} tm_slot;

typedef struct tm_shard {
  atomic_int refs;
  struct tm_shard *next; /* the store's: next shard of the variable here */
  uint64_t uid;
  uint32_t index;
  tm_dtype dtype;
  bool user;
  tm_shape shape, full_shape;
  int64_t rows, width; /* width: elements a row */
  size_t row_bytes;

  pthread_mutex_t mu;
  tm_tensor *cur; /* under mu; constant once `table` */
  tm_tensor *old; /* under mu: the version before, or a spare one; may be NULL */
  atomic_bool table;
  tm_stripe *stripe; /* TM_STRIPES, set before `table` */
  int shift;         /* 1 << shift rows share a stripe in turn */
  _Atomic(tm_slot *) slots;
  /* The version that a snapshot holds; compared, never followed. */
  _Atomic(tm_tensor *) snap;
  _Atomic(struct tm_keep *) keep; /* set and cleared while no UPDATE runs */
  /* Rows that changed since the snapshot with the mark `base`: a bit a row.  NULL, or
   * base 0: not known; a change of all makes it so.  Set while no UPDATE runs. */
  _Atomic(atomic_ullong *) touched;
  atomic_ullong base;
} tm_shard;

TM_CHECKED tm_status tm_shard_new(const tm_shard_spec *spec, tm_shard **out,
                                  tm_err *err);
tm_shard *tm_shard_ref(tm_shard *sh);
void tm_shard_unref(tm_shard *sh); /* sh may be NULL */

void tm_shard_lock(tm_shard *sh);
void tm_shard_unlock(tm_shard *sh);
bool tm_shard_is_table(const tm_shard *sh);
TM_CHECKED tm_status tm_shard_make_table(tm_shard *sh, tm_err *err);
/* Under mu, not a table: after it nobody else sees `cur` and the slots. */
TM_CHECKED tm_status tm_shard_writable(tm_shard *sh, tm_err *err);
/* Make the slots that (rule, hyper) needs and does not find. */
TM_CHECKED tm_status tm_shard_make_slots(tm_shard *sh, uint64_t optimizer,
                                         const tm_rule *rule, const double *hyper,
                                         tm_err *err);

/* NULL: no such slot.  Slots are only ever added. */
tm_slot *tm_shard_slot(tm_shard *sh, uint64_t optimizer, const char *name);

/* Apply one checked update.  Dense kinds: under mu, and writable unless a table.
 * *patience_ns: how long it may wait for the reader of a snapshot, less what it did. */
void tm_shard_apply(tm_shard *sh, const tm_ps_update *up, int64_t *patience_ns);
/* Replace rows from `first` on, of the elements or of a slot (by its number), by v. */
TM_CHECKED tm_status tm_shard_put(tm_shard *sh, const tm_ps_place *p, const tm_view *v,
                                  tm_err *err);
/* Answer one checked read; DENSE under mu.  SLOT: TM_ENOTFOUND. */
TM_CHECKED tm_status tm_shard_read(tm_shard *sh, tm_ps_read *rd, tm_err *err);

/* A reference to one of the store's, or NULL (store.c). */
tm_shard *tm_store_hold(tm_store *s, uint64_t uid, uint32_t shard);

size_t tm_shard_bytes(tm_shard *sh); /* elements, slots, the extra version */
uint64_t tm_shard_count_slots(tm_shard *sh);

/* Words of a bit a row. */
static inline size_t tm_shard_words(const tm_shard *sh) {
  return (size_t)(sh->rows + 63) / 64;
}
/* Begin to count rows that change, from none, while no UPDATE runs; room for it was
 * made before. */
TM_CHECKED tm_status tm_shard_make_touched(tm_shard *sh, tm_err *err);
void tm_shard_mark(tm_shard *sh, uint64_t base);

/* The stripe of a row. */
static inline tm_stripe *tm_shard_stripe(tm_shard *sh, int64_t row) {
  return &sh->stripe[(row >> sh->shift) & (TM_STRIPES - 1)];
}
void tm_stripe_lock(tm_stripe *st);
static inline void tm_stripe_unlock(tm_stripe *st) {
  atomic_store_explicit(&st->locked, 0, memory_order_release);
}

#endif
