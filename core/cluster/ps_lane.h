/*
 * ps_lane.h - one lane on one ps: a store, and what it is there for.
 *
 * Lane k holds the shards of ps k.  Its primary serves it; with `replicas = 1` the next
 * ps keeps a copy, the backup, which may become the primary.
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
  pthread_mutex_t order;
} tm_ps_lane;

/* An empty lane.  run 0: draw one. */
TM_CHECKED tm_status tm_ps_lane_new(const char *task, int32_t index, uint64_t run,
                                    tm_lane_role role, tm_ps_lane **out);
tm_ps_lane *tm_ps_lane_ref(tm_ps_lane *l);
void tm_ps_lane_unref(tm_ps_lane *l); /* l may be NULL */

static inline tm_lane_role tm_ps_lane_role(const tm_ps_lane *l) {
  return (tm_lane_role)atomic_load(&((tm_ps_lane *)(uintptr_t)l)->role);
}

#endif
