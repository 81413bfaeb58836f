/*
 * client.h - one task's way to one ps: direct calls in one process, frames over a
 * socket otherwise.
 *
 * begin sends, wait blocks until the answer is in (spinning shortly, then sleeping);
 * a caller begins on several ps and then waits for each.  At most one request is
 * outstanding a client.  begin and wait fail only when there is no answer (a lost
 * connection is TM_EUNAVAILABLE with the ps's name); what the ps says of the request is
 * in the request.
 *
 * Ownership: close frees it.  Threads: one at a time.
 */
#ifndef TM_PS_CLIENT_H
#define TM_PS_CLIENT_H

#include "base/cancel.h"
#include "ps/store.h"

/* Rows of a tensor of a checkpoint, and where they go. */
typedef struct tm_ps_load_item {
  const char *name;   /* of the tensor */
  int64_t from, rows; /* its rows */
  tm_ps_place place;
} tm_ps_load_item;

/* What a ps of another process is to read itself. */
typedef struct tm_ps_load {
  const char *path; /* of the checkpoint, absolute */
  /* Of its index: so a ps knows that it sees the same one. */
  uint64_t size;
  uint32_t crc;
  bool check; /* compare the checksums of what would be read, and change nothing */
  const tm_ps_load_item *item;
  int32_t n;
  bool unseen; /* the answer: that ps does not see the checkpoint */
} tm_ps_load;

typedef struct tm_ps_client tm_ps_client;
struct tm_ps_client {
  char task[48]; /* "/job:ps/task:0" */
  tm_status (*begin)(tm_ps_client *c, tm_ps_request *rq, tm_err *err);
  tm_status (*wait)(tm_ps_client *c, tm_ps_request *rq, tm_err *err);
  tm_status (*create)(tm_ps_client *c, const tm_shard_spec *spec, int32_t n,
                      tm_err *err);
  tm_status (*drop)(tm_ps_client *c, uint64_t uid, uint32_t shard, tm_err *err);
  tm_status (*refuse)(tm_ps_client *c, uint64_t incarnation, tm_err *err);
  tm_status (*stats)(tm_ps_client *c, tm_store_stats *out, tm_err *err);
  /* End a round (store.h), as begin and wait; it may be said again. */
  tm_status (*commit)(tm_ps_client *c, const tm_ps_commit *end, tm_err *err);
  tm_status (*committed)(tm_ps_client *c, tm_err *err);
  /* Replace rows by these, which come from a checkpoint. */
  tm_status (*put)(tm_ps_client *c, const tm_ps_place *p, const tm_view *rows,
                   tm_err *err);
  /* Load from a checkpoint, as begin and wait; NULL: use put. */
  tm_status (*load)(tm_ps_client *c, tm_ps_load *load, tm_err *err);
  tm_status (*loaded)(tm_ps_client *c, tm_ps_load *load, tm_err *err);
  /* A ps that began anew is told what a checkpoint has; NULL: it never does. */
  tm_status (*tokens)(tm_ps_client *c, const tm_token_list *q, tm_err *err);
  void (*close)(tm_ps_client *c);
};

/* Direct calls into a store of this process. */
TM_CHECKED tm_status tm_ps_client_local(tm_store *store, tm_ps_client **out);

#endif
