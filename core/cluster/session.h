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

#include "cluster/board.h"
#include "cluster/coordinator.h"

enum { TM_MAX_TASKS = 4096 };

typedef struct tm_session tm_session;

/* What is done when a ps is lost: requests and the coordinator fail for good; or what
 * is on all ps, or on the lost ones, is to be restored (see below). */
typedef enum tm_ps_failure {
  TM_PS_RAISE,
  TM_PS_RESTORE,
  TM_PS_RESTORE_SHARDS
} tm_ps_failure;

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
  tm_ps_failure on_ps_failure;
  tm_mode mode; /* of its coordinator, as these two */
  int64_t staleness;
  int32_t backup_workers;
  int32_t replicas;  /* 1: each ps keeps a copy of the one before it (2 ps or more) */
  tm_board *board;   /* where tasks that will leave are noted; may be NULL */
  tm_cancel *cancel; /* of the host: ends what its thread waits for; may be NULL */
} tm_session_options;

/* Start (in this process) or connect to the tasks of a cluster. */
TM_CHECKED tm_status tm_session_open(const tm_session_options *opt, tm_session **out,
                                     tm_err *err);
/* End the processes of its tasks too (nothing to do for a cluster in this process);
 * before tm_session_close.  Tasks that cannot be reached are passed over. */
void tm_session_stop_tasks(tm_session *s);
/* The same for one task ("/job:ps/task:0"). */
void tm_session_stop_task(tm_session *s, const char *task);
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
/* One more worker, at "host:port" (any name in a cluster inside this process; "" does
 * too): *index is the next one.  Its coordinator reaches it when it is there.
 * TM_EEXISTS: there is one at that address. */
TM_CHECKED tm_status tm_session_add_worker(tm_session *s, const char *address,
                                           int32_t *index, tm_err *err);
const char *tm_session_worker_task(const tm_session *s, int32_t index);
/* It finishes what it started, and is left. */
TM_CHECKED tm_status tm_session_remove_worker(tm_session *s, int32_t index,
                                              tm_err *err);
/* Free its coordinator (cancels, awaits, closes the links). */
void tm_session_coordinator_close(tm_session *s);
/* The first variable of g that is none of this cluster's into *uid; 0: all are. */
TM_CHECKED tm_status tm_session_foreign(tm_session *s, const tm_graph *g, uint64_t *uid,
                                        tm_err *err);
/* "ready", "connecting" or "down".  *copied: another ps has all that it held. */
const char *tm_session_ps_state(tm_session *s, int32_t ps, bool *copied);
TM_CHECKED tm_status tm_session_ps_stats(tm_session *s, int32_t ps, tm_store_stats *out,
                                         tm_err *err);

/* --- restoring ---
 *
 * A ps that is lost ends requests to it with TM_EUNAVAILABLE; a thread of the session's
 * suspends the coordinator and starts the ps anew as soon as it is there again (all of
 * them under TM_PS_RESTORE).  The rest is done by the host's thread:
 *
 *     while (tm_session_lost(s, &why)) {
 *       tm_session_await(s, -1, cancel, err);   -- they are there again
 *       tm_session_remake(s, fresh, err);       -- variables with their initial values
 *       ...values from a checkpoint...
 *       tm_session_go_on(s, &on);               -- training goes on
 *     }
 *
 * One that is lost meanwhile takes it back to the beginning.
 */

/* Is a ps lost, and not yet restored?  *why names the first one. */
bool tm_session_lost(tm_session *s, tm_err *why);
/* A request to this task failed ("/job:ps/task:0"): it counts as lost, unless others
 * keep copies of what it holds.  NULL: all that
 * began anew and was not restored is to begin again. */
void tm_session_suspect(tm_session *s, const char *task);
/* TM_ETIMEOUT: not all are there yet. TM_EABORTED: another chief is in charge. */
TM_CHECKED tm_status tm_session_await(tm_session *s, int64_t timeout_ns,
                                      tm_cancel *cancel, tm_err *err);
/* fresh[k]: ps k began anew.  Its shards are made again. */
TM_CHECKED tm_status tm_session_remake(tm_session *s, bool *fresh, tm_err *err);
/* *on: nothing is lost any more, the coordinator works. */
void tm_session_go_on(tm_session *s, bool *on);
/* Variable i of those that are made again; false: there are no more.  *lossy: it is
 * made of zeros, its first value was too large to be kept. */
bool tm_session_recipe(tm_session *s, size_t i, tm_var_info **info, bool *lossy);

#endif
