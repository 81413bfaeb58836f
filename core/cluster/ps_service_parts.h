/*
 * ps_service_parts.h - inside of a ps's service.  Included by ps_service.c and
 * ps_backup.c only.
 */
#ifndef TM_CLUSTER_PS_SERVICE_PARTS_H
#define TM_CLUSTER_PS_SERVICE_PARTS_H

#include "cluster/ps_park.h"
#include "cluster/ps_replica.h"
#include "cluster/ps_service.h"

enum { SERVICE_LANES = 8 };

struct tm_ps_service {
  char task[48];
  pthread_rwlock_t lock;
  uintptr_t starts;                /* guarded by lock */
  tm_ps_lane *lane[SERVICE_LANES]; /* guarded by lock; NULL: none */
  tm_replica_host *host;           /* guarded by lock; made when it is needed */
  tm_ps_park *park;
};

/* What a data connection speaks of: its tag. */
typedef struct service_door {
  int32_t lane;
  bool copy;      /* the lane's primary fills this copy: */
  uint64_t epoch; /* in this epoch */
} service_door;

/* TM_EUNAVAILABLE: c works in the time of another start (lock held). */
tm_status tm_service_check_start(const tm_ps_service *s, const tm_conn *c, tm_err *err);
/* NULL: it is not here (lock held). */
tm_ps_lane *tm_service_lane(tm_ps_service *s, int32_t index);
/* It is not served here any more; l may be NULL. */
void tm_service_end_lane(tm_ps_lane *l);
tm_status tm_service_ok(tm_conn *c, uint64_t id);
void tm_service_door_free(void *door);
/* What a frame of the chief changes: CREATE, DROP, REFUSE, TOKENS, rows. */
tm_status tm_service_change(tm_ps_lane *l, tm_message *m, tm_err *err);

/* --- ps_backup.c --- */

/* A primary begins to make a copy here. */
tm_status tm_service_begin_copy(tm_ps_service *s, tm_conn *c, tm_message *m,
                                tm_err *err);
/* A frame of the primary for its copy here. */
tm_status tm_service_copy(tm_ps_service *s, tm_conn *c, tm_message *m, tm_err *err);
/* The chief says who serves a lane and who keeps its copy. */
tm_status tm_service_order_lane(tm_ps_service *s, tm_conn *c, tm_message *m,
                                tm_err *err);

#endif
