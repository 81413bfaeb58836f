/*
 * vars.h - the catalogue of variables that one task knows, and the way to them: the
 * tm_state that executors and eager ops use.
 *
 * A variable has a uid, dtype, shape and shards; each shard lives on a ps (index into
 * the clients of this task) or in the task's own local store (ps = -1).  An exchange is
 * split by ps: one request each, all sent before any is waited for.  Ids of row reads
 * are made unique and routed by shard; repeated ids of APPLY_ROWS are summed first.
 * Iterators of this task are resources here too.
 *
 * Ownership: refcounted infos.  Threads: a tm_vars handle is used by one thread; the
 * catalogue behind handles of one task (tm_catalog) is shared and locked.
 */
#ifndef TM_CLUSTER_VARS_H
#define TM_CLUSTER_VARS_H

#include "cluster/catalog.h"
#include "cluster/resources.h"
#include "graph/state.h"
#include "ps/client.h"

/* Counters of one handle: requests and payload bytes. */
typedef struct tm_vars_counters {
  uint64_t reads, updates, bytes_read, bytes_updated;
} tm_vars_counters;

typedef struct tm_vars tm_vars;
struct tm_vars {
  tm_state state; /* first: a tm_vars is a tm_state */
  tm_catalog *catalog;
  int32_t nps;
  tm_ps_client **ps;   /* owned; nps of them, may be NULL where not connected */
  tm_ps_client *local; /* owned: the local store's, may be NULL */
  tm_ps_token token;   /* put on every request; turn counts up by exchange */
  tm_vars_counters count;
  struct tm_vars_scratch *scratch;
  tm_resources *resources;    /* iterators by uid; borrowed, may be NULL */
  struct tm_session *session; /* whose they are; NULL: not a chief's of a cluster */
  /* Asked before anything is; its failure is what is told.  May be NULL. */
  tm_status (*guard)(struct tm_session *session, tm_err *err);
};

/* Takes the clients (the array is copied). */
TM_CHECKED tm_status tm_vars_new(tm_catalog *catalog, tm_ps_client *const *ps,
                                 int32_t nps, tm_ps_client *local, tm_vars **out);
void tm_vars_free(tm_vars *v);
/* Make a variable on its ps (catalogue entry included).  `init` applies to the whole
 * variable; kind "value" is sliced by shard. */
TM_CHECKED tm_status tm_vars_create(tm_vars *v, tm_var_info *info, const tm_init *init,
                                    tm_err *err);
/* The same with one value a shard (init functions of users). */
TM_CHECKED tm_status tm_vars_create_pieces(tm_vars *v, tm_var_info *info,
                                           tm_tensor *const *piece, tm_err *err);
/* Make the shards of a known variable again that live on ps k with lane[k].  piece as
 * above, or NULL: init. */
TM_CHECKED tm_status tm_vars_remake(tm_vars *v, tm_var_info *info, const tm_init *init,
                                    tm_tensor *const *piece, const bool *lane,
                                    tm_err *err);
TM_CHECKED tm_status tm_vars_drop(tm_vars *v, uint64_t uid, tm_err *err);

/* The client of ps k from now on (taken); the one before is closed.  That ps holds
 * nothing of what was there. */
void tm_vars_replace(tm_vars *v, int32_t k, tm_ps_client *c);

/* After an exchange failed: which ps have applied their UPDATEs.  NULL: no memory. */
typedef struct tm_vars_half tm_vars_half;
tm_vars_half *tm_vars_half_take(tm_vars *v);
/* The next exchange is the same again: UPDATEs that are in are not sent, but to a ps
 * whose client was replaced since.  h is freed; it may be NULL. */
void tm_vars_half_again(tm_vars *v, tm_vars_half *h);
void tm_vars_half_free(const tm_vars *v, tm_vars_half *h);

/* Send only, then wait: the worker sends READ n+1 with UPDATE n.  tm_vars_begin copies
 * what it needs of the lists but not the memory that views point at. */
TM_CHECKED tm_status tm_vars_begin(tm_vars *v, const tm_update *up, int32_t nup,
                                   tm_read *rd, int32_t nrd, tm_err *err);
/* *up_status, *rd_status: of the two parts; err is of the first failed one. */
TM_CHECKED tm_status tm_vars_wait(tm_vars *v, tm_status *up_status,
                                  tm_status *rd_status, tm_err *err);

#endif
