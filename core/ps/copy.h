/*
 * copy.h - a shard with its slots as it is at one moment, to be made again elsewhere.
 *
 *     tm_shard_key *key; size_t n;
 *     TM_TRY(tm_store_keys(s, &key, &n));
 *     TM_TRY(tm_shard_copy_take(s, &key[0], &copy, err));
 *
 * In another store it is made by tm_store_create (of zeros) and tm_store_put.
 *
 * Nobody may UPDATE the store during take.  The elements of a dense shard are shared
 * with it; tables and slots are copied.
 *
 * Ownership: the caller's.  Threads: any.
 */
#ifndef TM_PS_COPY_H
#define TM_PS_COPY_H

#include "base/pack.h"
#include "ps/store.h"

enum { TM_COPY_SLOTS = 256 };

typedef struct tm_shard_key {
  uint64_t uid;
  uint32_t shard;
} tm_shard_key;

typedef struct tm_copy_slot {
  uint64_t optimizer;
  int32_t number; /* ps/rule.h */
  tm_tensor *t;
} tm_copy_slot;

typedef struct tm_shard_copy {
  tm_shard_spec spec; /* of zeros */
  tm_tensor *value;
  int32_t nslot;
  tm_copy_slot *slot; /* nslot */
} tm_shard_copy;

/* What is there now; tm_free(*out, *n * sizeof **out). */
TM_CHECKED tm_status tm_store_keys(tm_store *s, tm_shard_key **out, size_t *n);
/* TM_ENOTFOUND: it was dropped. */
TM_CHECKED tm_status tm_shard_copy_take(tm_store *s, const tm_shard_key *key,
                                        tm_shard_copy *out, tm_err *err);
void tm_shard_copy_release(tm_shard_copy *c);

/* What the store remembers of UPDATEs, as one value. */
void tm_store_pack_tokens(tm_store *s, tm_packer *w);
void tm_store_unpack_tokens(tm_store *s, tm_unpacker *r);
/* What waits for the end of a round in this shard; fn must not call the store. */
TM_CHECKED tm_status tm_store_waiting(tm_store *s, const tm_shard_key *key,
                                      tm_rounds_each fn, void *ud, tm_err *err);
/* Is this shard here? */
bool tm_store_has(tm_store *s, uint64_t uid, uint32_t shard);

#endif
