/*
 * snapshot.h - one moment of chosen arrays of a store, while training goes on.
 *
 *     TM_TRY(tm_snapshot_take(store, items, n, &sn, err));
 *     for each part p that is there: while (at < its bytes) {
 *       tm_snapshot_next(sn, p, at, room, sizeof room, &piece);   -- write piece
 *       at += piece.n;
 *     }
 *     tm_snapshot_free(sn);
 *
 * Dense shards are kept by reference to their version: the next writer works on a copy.
 * Row tables stay where they are: whoever overwrites a block of rows that was not read
 * yet copies it aside first.  At most TM_SNAPSHOT_ASIDE bytes are aside; then a writer
 * waits for the reader, and after TM_SNAPSHOT_PATIENCE_NS the snapshot is given up
 * (tm_snapshot_status) so that training goes on.
 *
 * A reader that falls behind may put the copies away before their turn (take_aside,
 * give_aside): next() then says that those bytes were put away.
 *
 * Ownership: free gives back everything; a shard that was dropped meanwhile lives until
 *            then.  One snapshot a store at a time.
 * Threads:   take and free from any; one reader at a time.
 */
#ifndef TM_PS_SNAPSHOT_H
#define TM_PS_SNAPSHOT_H

#include "ps/store.h"

enum { TM_SNAPSHOT_ASIDE = 64 << 20, TM_SNAPSHOT_MAX_ITEMS = 1 << 20 };
#define TM_SNAPSHOT_PATIENCE_NS 5000000000 /* of one UPDATE */

typedef struct tm_snapshot tm_snapshot;

/* One array: the elements of a shard (slot "") or a slot of an optimizer. */
typedef struct tm_snapshot_item {
  uint64_t uid, optimizer;
  uint32_t shard;
  char slot[24];
  /* mark: from this moment on count the rows that change, under this
   * number.  base: the number of an earlier moment; only what changed since is wanted.
   * 0: neither. */
  uint64_t mark, base;
} tm_snapshot_item;

typedef struct tm_snapshot_part {
  bool there; /* false: a slot that was not made yet */
  bool diff;  /* only the rows that changed since `base`: see tm_snapshot_ids */
  tm_dtype dtype;
  tm_shape shape; /* with so many rows */
  uint64_t bytes;
} tm_snapshot_part;

/* All arrays of one moment, between two UPDATEs.  TM_ENOTFOUND: no such shard here;
 * TM_EEXISTS: another snapshot is being read. */
TM_CHECKED tm_status tm_snapshot_take(tm_store *s, const tm_snapshot_item *item,
                                      int32_t n, tm_snapshot **out, tm_err *err);
/* The same; the turns of the closures in q (NULL: none) become those of that moment. */
TM_CHECKED tm_status tm_snapshot_take_tokens(tm_store *s, const tm_snapshot_item *item,
                                             int32_t n, tm_token_list *q,
                                             tm_snapshot **out, tm_err *err);
/* sn may be NULL.  The store must still be there. */
void tm_snapshot_free(tm_snapshot *sn);
int32_t tm_snapshot_count(const tm_snapshot *sn);
const tm_snapshot_part *tm_snapshot_part_at(const tm_snapshot *sn, int32_t i);

/* Why it was given up; TM_OK: it was not. */
TM_CHECKED tm_status tm_snapshot_status(tm_snapshot *sn, tm_err *err);

/* Some bytes of a part. */
typedef struct tm_snapshot_piece {
  const void *p; /* NULL: they were put away, and `crc` is what give_aside said */
  size_t n;
  uint32_t crc;
} tm_snapshot_piece;

/* The bytes of part i from `at` on: up to `cap`, in `room` or where they lie (until the
 * next call).  Each byte can be asked for once. `at` is 0 or where a piece ended. */
void tm_snapshot_next(tm_snapshot *sn, int32_t i, uint64_t at, void *room, size_t cap,
                      tm_snapshot_piece *out);
/* Numbers of the rows of part i (which need not be a diff), rising: from its row number
 * `from` on at most cap of them.  How many were put. */
size_t tm_snapshot_ids(const tm_snapshot *sn, int32_t i, int64_t from, int64_t *out,
                       size_t cap);
/* Nothing more is asked for of part i. */
void tm_snapshot_drop(tm_snapshot *sn, int32_t i);

/* A block that was copied aside. */
typedef struct tm_snapshot_aside {
  int32_t part;
  uint64_t at; /* first byte in the part */
  const void *p;
  size_t n;
  void *block;
} tm_snapshot_aside;

/* The oldest copy, while more than half of the room for copies is used. */
bool tm_snapshot_take_aside(tm_snapshot *sn, tm_snapshot_aside *out);
/* It was put away. */
void tm_snapshot_give_aside(tm_snapshot *sn, const tm_snapshot_aside *a, uint32_t crc);

#endif
