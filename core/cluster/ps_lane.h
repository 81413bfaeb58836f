/*
 * ps_lane.h - one lane on one ps: a store, and what it is there for.
 *
 * Lane k holds the shards of ps k.  Its primary serves it; with `replicas = 1` the next
 * ps keeps a copy, the backup, which may become the primary (ps_replica.h).
 *
 * Ownership: refcounted.  Threads: any; `order` guards what says so.
 */
#ifndef TM_CLUSTER_PS_LANE_H
#define TM_CLUSTER_PS_LANE_H

#include <pthread.h>

#include "cluster/ps_load.h"
#include "ps/store.h"

typedef enum tm_lane_role {
  TM_LANE_GONE,
  TM_LANE_PRIMARY,
  TM_LANE_BACKUP
} tm_lane_role;

typedef struct tm_ps_lane {
  atomic_int refs;
  atomic_int role; /* tm_lane_role; changed under order */
  int32_t index;
  uint64_t run; /* of what it holds: another one knows nothing of what was before */
  tm_store *store;
  tm_ps_loader *loader;
  struct tm_ps_saver *saver;

  /* UPDATEs of a lane with a copy are applied and passed on under order, so that both
   * sides apply them in the same one. */
  bool ordered; /* one that may get a copy: constant */
  pthread_mutex_t order;
  atomic_bool replicated;       /* changed under order: UPDATEs are passed on */
  uint64_t epoch;               /* under order: grows with each word of the chief */
  bool whole;                   /* under order: a backup that may become the primary */
  struct tm_replica_link *link; /* under order: to the backup; NULL: none */
} tm_ps_lane;

/* An empty lane that is served, or (run not 0) the beginning of a copy. */
TM_CHECKED tm_status tm_ps_lane_new(const char *task, int32_t index, bool ordered,
                                    uint64_t run, tm_ps_lane **out);
tm_ps_lane *tm_ps_lane_ref(tm_ps_lane *l);
void tm_ps_lane_unref(tm_ps_lane *l); /* l may be NULL */

static inline tm_lane_role tm_ps_lane_role(tm_ps_lane *l) {
  return (tm_lane_role)atomic_load_explicit(&l->role, memory_order_acquire);
}
static inline bool tm_ps_lane_replicated(tm_ps_lane *l) {
  return atomic_load_explicit(&l->replicated, memory_order_acquire);
}

#endif
