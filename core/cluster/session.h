/*
 * session.h - what a chief has: its own variables, and clusters it is connected to.
 *
 * A tm_chief is the state of one host process: the catalogue of all variables, a local
 * store for those made outside strategies, iterators, and a tm_vars that reaches all of
 * them.  A tm_session is one cluster: ps as lanes of the chief's tm_vars from `base`
 * on, and a link to each worker.
 *
 * Ownership: free sessions before their chief; tm_session_close closes links that no
 *            coordinator took.
 * Threads:   the host's thread; links go to the coordinator.
 */
#ifndef TM_CLUSTER_SESSION_H
#define TM_CLUSTER_SESSION_H

#include "cluster/coordinator.h"

enum { TM_MAX_TASKS = 4096 };

/* --- the chief --- */
typedef struct tm_chief tm_chief;
TM_CHECKED tm_status tm_chief_new(tm_chief **out, tm_err *err);
void tm_chief_free(tm_chief *c);
tm_vars *tm_chief_vars(tm_chief *c); /* borrowed; its state serves eager ops */
tm_resources *tm_chief_resources(tm_chief *c); /* borrowed */
uint64_t tm_chief_next_uid(tm_chief *c); /* for variables, iterators, optimizers */

/* --- a cluster --- */
typedef struct tm_session tm_session;

typedef struct tm_session_options {
  int32_t nworker, nps;
  uint64_t seed; /* global seed of the workers' random numbers */
  int threads;   /* of a worker's kernels */
  /* Addresses "host:port"; NULL: all tasks run inside this process. */
  const char *const *worker_address, *const *ps_address;
  char cluster_id[64];
  double heartbeat_interval, heartbeat_timeout; /* seconds */
  double connect_timeout;                       /* seconds */
} tm_session_options;

/* Start (in this process) or connect to the tasks of a cluster. */
TM_CHECKED tm_status tm_session_open(tm_chief *chief, const tm_session_options *opt,
                                     tm_session **out, tm_err *err);
void tm_session_close(tm_session *s); /* after its coordinator; s may be NULL */
int32_t tm_session_workers(const tm_session *s);
int32_t tm_session_ps(const tm_session *s);

/* Make a variable: info's shards name ps of this session from 0; it is made there, and
 * all workers are told.  piece: one value a shard, or NULL: init. */
TM_CHECKED tm_status tm_session_create(tm_session *s, tm_var_info *info,
                                       const tm_init *init, tm_tensor *const *piece,
                                       tm_err *err);
/* One coordinator a session; it takes the links. TM_EEXISTS: there is one. */
TM_CHECKED tm_status tm_session_coordinator(tm_session *s, int64_t queue_size,
                                            tm_coordinator **out, tm_err *err);
/* Free its coordinator (cancels, awaits, closes the links). */
void tm_session_coordinator_close(tm_session *s);
/* Every variable of g lives in this session; else TM_EINVAL names the first that does
 * not. */
TM_CHECKED tm_status tm_session_check(tm_session *s, const tm_graph *g, tm_err *err);
TM_CHECKED tm_status tm_session_ps_stats(tm_session *s, int32_t ps, tm_store_stats *out,
                                         tm_err *err);

#endif
