/*
 * keep.h - inside of ps: what a snapshot keeps of an array of a row table.  Used by
 * shard.c (who overwrites) and snapshot.c (who reads).
 *
 * The array is cut in blocks of rows, about half a kilobyte each, so that a row that
 * changes costs little; a block is part of one whose rows share a stripe.  `kept` has a
 * word for each, guarded by that stripe.
 *
 * Ownership: the snapshot's.  Threads: as said; the pool's mu is the one lock that may
 *            be taken while a stripe is held.
 */
#ifndef TM_PS_KEEP_H
#define TM_PS_KEEP_H

#include "ps/shard.h"

/* A word: 0, the block is as it was; TM_KEEP_READ, it was read; TM_KEEP_AWAY with the
 * CRC in its upper half, its copy was put away; else a pointer to its copy. */
#define TM_KEEP_READ ((uint64_t)1)
#define TM_KEEP_AWAY ((uint64_t)2)

typedef struct tm_keep_copy {
  struct tm_keep_copy *next, *before; /* under the pool's mu, while `listed` */
  struct tm_keep *keep;
  int64_t block;
  size_t n;
  bool listed;
  unsigned char *data; /* follows */
} tm_keep_copy;

/* The room for copies, shared by all arrays of a snapshot. */
typedef struct tm_keep_pool {
  pthread_mutex_t mu;
  pthread_cond_t room;
  tm_keep_copy *head, *tail; /* oldest first */
  size_t bytes;
  uint64_t turn;    /* counts what was given back */
  tm_status status; /* why the snapshot was given up */
  atomic_bool over; /* nothing more need be kept */
} tm_keep_pool;

typedef struct tm_keep {
  struct tm_keep *next; /* of the same shard */
  tm_keep_pool *pool;
  tm_shard *sh;
  int32_t part; /* of the snapshot */
  const unsigned char *data;
  int shift;                 /* 1 << shift rows are a block */
  size_t bytes, block_bytes; /* of the part; of a block as it lies in the array */
  int64_t nblock;
  uint64_t *kept;
  /* Of a part that is only the rows that changed: their bits, and how many come before
   * each block (and at its end).  Else NULL. */
  uint64_t *bits;
  int64_t *rank;
} tm_keep;

/* The stripe of these rows is held, and they are about to change: keep their blocks in
 * all of the list.  False: no room; give the stripe back, tm_keep_wait, and ask again.
 */
bool tm_keep_rows(tm_keep *list, int64_t from, int64_t to);
/* Wait for room; *patience_ns becomes less, and when none is left the snapshot is given
 * up. */
void tm_keep_wait(tm_keep *list, int64_t *patience_ns);
/* Most that a change of so many rows (-1: all) copies aside. */
size_t tm_keep_most(const tm_keep *list, int64_t rows);
/* May whoever copies that much have to wait?  (Others do so at the same time.) */
bool tm_keep_crowded(tm_keep *list, size_t most);

#endif
