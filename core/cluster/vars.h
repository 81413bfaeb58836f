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

#include "data/dataset.h"
#include "graph/state.h"
#include "ps/client.h"

enum { TM_MAX_SHARDS = 4096 };

typedef struct tm_shard_info {
  int32_t ps;     /* index of the ps, -1: this process's local store */
  int64_t offset; /* first row */
  int64_t rows;   /* rows (1 for an unsharded scalar) */
} tm_shard_info;

typedef struct tm_var_info {
  atomic_int refs;
  uint64_t uid;
  tm_dtype dtype;
  tm_shape shape;
  bool user;
  char name[128];
  int32_t nshard;
  tm_shard_info shard[]; /* in order of rows */
} tm_var_info;

TM_CHECKED tm_status tm_var_info_new(uint64_t uid, tm_dtype t, const tm_shape *shape,
                                     const char *name, bool user, int32_t nshard,
                                     tm_var_info **out);
tm_var_info *tm_var_info_ref(tm_var_info *v);
void tm_var_info_unref(tm_var_info *v);

typedef struct tm_catalog tm_catalog;
TM_CHECKED tm_status tm_catalog_new(tm_catalog **out);
tm_catalog *tm_catalog_ref(tm_catalog *c);
void tm_catalog_unref(tm_catalog *c);
TM_CHECKED tm_status tm_catalog_add(tm_catalog *c, tm_var_info *v);
void tm_catalog_del(tm_catalog *c, uint64_t uid);
tm_var_info *tm_catalog_get(tm_catalog *c, uint64_t uid); /* a reference, or NULL */

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
  struct tm_resources *resources; /* iterators by uid; borrowed, may be NULL */
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
TM_CHECKED tm_status tm_vars_drop(tm_vars *v, uint64_t uid, tm_err *err);

/* Send only, then wait: the worker sends READ n+1 with UPDATE n.  tm_vars_begin copies
 * what it needs of the lists but not the memory that views point at. */
TM_CHECKED tm_status tm_vars_begin(tm_vars *v, const tm_update *up, int32_t nup,
                                   tm_read *rd, int32_t nrd, tm_err *err);
/* *up_status, *rd_status: of the two parts; err is of the first failed one. */
TM_CHECKED tm_status tm_vars_wait(tm_vars *v, tm_status *up_status,
                                  tm_status *rd_status, tm_err *err);

/* --- iterators of this task --- */
typedef struct tm_resources tm_resources;
TM_CHECKED tm_status tm_resources_new(tm_resources **out);
void tm_resources_free(tm_resources *r);
TM_CHECKED tm_status tm_resources_add(tm_resources *r, uint64_t uid,
                                      struct tm_iter *it);
void tm_resources_del(tm_resources *r, uint64_t uid); /* frees the iterator */

#endif
