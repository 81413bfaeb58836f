/*
 * store.h - the shards that one ps holds, and their slots.
 *
 * A dense shard is a versioned buffer: a reader takes a reference to the current
 * version, a writer works in place when nobody holds it and on a copy when somebody
 * does.  There is at most one extra version: while it is held, readers get copies of
 * their own, so a writer never waits for them (see ps/shard.c).  A shard
 * that was ever used by rows (gathered, scattered, applied by rows) is a row table:
 * it is updated in place under striped row locks and dense reads copy under them.
 * Slots of an optimizer are made at its first APPLY, beside the shard.
 *
 * Ownership: the store owns shards.  Threads: any thread may call tm_store_handle.
 */
#ifndef TM_PS_STORE_H
#define TM_PS_STORE_H

#include "ps/init.h"
#include "ps/request.h"
#include "ps/rounds.h"

typedef struct tm_store tm_store;

typedef struct tm_shard_spec {
  uint64_t uid;
  uint32_t shard;
  tm_dtype dtype;
  tm_shape shape;      /* of this shard */
  tm_shape full_shape; /* of the variable */
  int64_t row_offset;  /* first row of the shard in the variable */
  bool user;           /* made by a user (counted as a variable), not by the library */
  tm_init init;        /* how it starts */
} tm_shard_spec;

/* task: "/job:ps/task:0", for errors. */
TM_CHECKED tm_status tm_store_new(const char *task, tm_store **out);
void tm_store_free(tm_store *s);              /* s may be NULL */
const char *tm_store_task(const tm_store *s); /* a char[48] */
/* TM_EEXISTS when there is one with another shape or dtype; the same again is fine
 * and re-initialises nothing. */
TM_CHECKED tm_status tm_store_create(tm_store *s, const tm_shard_spec *spec,
                                     tm_err *err);
void tm_store_drop(tm_store *s, uint64_t uid, uint32_t shard);
/* Apply and answer.  Statuses are in the request; the return value is the worse. */
tm_status tm_store_handle(tm_store *s, tm_ps_request *rq);
/* Would handling it have to wait until the reader of a snapshot makes room, or (busy)
 * would it overtake one that waits for that?  Always false without a snapshot. */
bool tm_store_must_wait(tm_store *s, const tm_ps_request *rq, bool busy);
/* Replace rows by those of a checkpoint: (rows, row...), or a scalar.  Rows of a dense
 * shard change at one moment, those of a table one by one. */
TM_CHECKED tm_status tm_store_put(tm_store *s, const tm_ps_place *p,
                                  const tm_view *rows, tm_err *err);
/* Refuse this incarnation's UPDATEs from now on (TM_EABORTED). */
void tm_store_refuse(tm_store *s, uint64_t incarnation);
/* Closures, and how many turns of each were applied (the highest and 1; 0: none). */
typedef struct tm_token_list {
  uint64_t *closure, *turns;
  int32_t n;
} tm_token_list;
/* What a checkpoint has of these closures is in: it will not be applied again. */
TM_CHECKED tm_status tm_store_add_tokens(tm_store *s, const tm_token_list *q,
                                         tm_err *err);
/* End a round (ps/rounds.h): the mean of these shares is applied at one moment, once.
 * Shards that were dropped are passed over. */
TM_CHECKED tm_status tm_store_commit(tm_store *s, const tm_ps_commit *c, tm_err *err);
/* Would it perhaps have to wait for the reader of a snapshot? */
bool tm_store_commit_waits(tm_store *s);
/* For a new coordinator, which counts closures from 1 again: forget all tokens, and
 * what is left of a round. */
void tm_store_forget_tokens(tm_store *s);

typedef struct tm_store_stats {
  uint64_t reads, updates;      /* requests with that part, from workers */
  uint64_t bytes_in, bytes_out; /* payload */
  uint64_t variables, slots;    /* shards that users made; slot arrays */
  uint64_t bytes_held;          /* shards, slots, extra versions */
} tm_store_stats;
void tm_store_get_stats(tm_store *s, tm_store_stats *out);

#endif
