/*
 * store_parts.h - inside of ps: what a snapshot needs of a store.
 *
 * Threads: any.
 */
#ifndef TM_PS_STORE_PARTS_H
#define TM_PS_STORE_PARTS_H

#include "ps/shard.h"

/* A reference, or NULL. */
tm_shard *tm_store_shard(tm_store *s, uint64_t uid, uint32_t shard);
/* Returns when no UPDATE is being applied; none begins until go. */
void tm_store_still(tm_store *s);
void tm_store_go(tm_store *s);
/* A snapshot keeps what UPDATEs change, or does no more, while it stands still. */
void tm_store_keep(tm_store *s, bool on);
/* What is known of the closures of the list (may be NULL), while it stands still. */
void tm_store_look(tm_store *s, tm_token_list *q);
/* One snapshot at a time: false when there is one. */
bool tm_store_claim(tm_store *s);
void tm_store_unclaim(tm_store *s);

#endif
