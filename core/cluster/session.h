/*
 * session.h - a chief's connection to one cluster: its ps, its workers.
 *
 * The session has a tm_vars of its own (lane k is ps k, no local store), a link to each
 * worker, and for a cluster inside this process the stores themselves.
 *
 * Ownership: tm_session_close closes what no coordinator took.
 * Threads:   the host's thread; links go to the coordinator.
 */
#ifndef TM_CLUSTER_SESSION_H
#define TM_CLUSTER_SESSION_H

#include "cluster/coordinator.h"

enum { TM_MAX_TASKS = 4096 };

typedef struct tm_session tm_session;

typedef struct tm_session_options {
  int32_t nworker, nps;
  uint64_t seed; /* global seed of the workers' random numbers */
  int threads;   /* of a worker's kernels */
  /* Addresses "host:port"; NULL: all tasks run inside this process. */
  const char *const *worker_address, *const *ps_address;
  const char *const *worker_task, *const *ps_task; /* names; NULL: tasks 0, 1, ... */
  char cluster_id[64]; /* "": tm_cluster_id of the addresses (cluster/spec.h) */
  double heartbeat_interval, heartbeat_timeout; /* seconds */
  double connect_timeout;                       /* seconds */
  double chief_timeout;  /* seconds that tasks wait for the next chief; 0: for ever */
  double worker_timeout; /* seconds that work waits without any worker; 0: for ever */
} tm_session_options;

/* Start (in this process) or connect to the tasks of a cluster. */
TM_CHECKED tm_status tm_session_open(const tm_session_options *opt, tm_session **out,
                                     tm_err *err);
/* End the processes of its tasks too (nothing to do for a cluster in this process);
 * before tm_session_close.  Tasks that cannot be reached are passed over. */
void tm_session_stop_tasks(tm_session *s);
void tm_session_close(tm_session *s);    /* after its coordinator; s may be NULL */
tm_vars *tm_session_vars(tm_session *s); /* borrowed: for eager ops of the chief */
int32_t tm_session_workers(const tm_session *s);
int32_t tm_session_ps(const tm_session *s);

/* Make a variable on its ps and tell all workers.  piece: one value a shard, or NULL:
 * init. */
TM_CHECKED tm_status tm_session_create(tm_session *s, tm_var_info *info,
                                       const tm_init *init, tm_tensor *const *piece,
                                       tm_err *err);
/* One coordinator a session; it takes the links. TM_EEXISTS: there is one. */
TM_CHECKED tm_status tm_session_coordinator(tm_session *s, int64_t queue_size,
                                            tm_coordinator **out, tm_err *err);
/* Free its coordinator (cancels, awaits, closes the links). */
void tm_session_coordinator_close(tm_session *s);
/* The first variable of g that is none of this cluster's into *uid; 0: all are. */
TM_CHECKED tm_status tm_session_foreign(tm_session *s, const tm_graph *g, uint64_t *uid,
                                        tm_err *err);
TM_CHECKED tm_status tm_session_ps_stats(tm_session *s, int32_t ps, tm_store_stats *out,
                                         tm_err *err);

#endif
