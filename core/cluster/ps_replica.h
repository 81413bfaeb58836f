/*
 * ps_replica.h - the copy of a lane on another ps, seen from its primary.
 *
 * On the chief's word the primary connects to the backup, tells it what the lane's ps
 * remembers of UPDATEs, then shard after shard as it is at that moment; meanwhile and
 * ever after each frame that changes the lane is passed on in the order in which it was
 * applied.  Whoever asked for the change is answered when the backup has it.
 *
 *     pthread_mutex_lock(&l->order);
 *     if (tm_ps_lane_replicated(l)) { apply; tm_replica_forward(l, m, &answer); }
 *     pthread_mutex_unlock(&l->order);
 *
 * A primary whose backup is lost asks the chief whether it may go on alone, and answers
 * nobody until it is told so: the chief may have made the backup the primary.
 *
 * Ownership: the host is the service's; a link is its lane's.
 * Threads:   any.  Lock order: the service's, a lane's order, a connection's.
 */
#ifndef TM_CLUSTER_PS_REPLICA_H
#define TM_CLUSTER_PS_REPLICA_H

#include "cluster/ps_lane.h"
#include "cluster/segments.h"

/* What the links of one ps share: a loop, and the threads that copy. */
typedef struct tm_replica_host tm_replica_host;

TM_CHECKED tm_status tm_replica_host_new(const char *task, tm_replica_host **out);
/* After every lane was dropped; waits for its threads.  h may be NULL. */
void tm_replica_host_free(tm_replica_host *h);

/* An answer that is ready: the connection is a reference, meta and seg are owned, and
 * release(ud) is called once it is out or dropped. */
typedef struct tm_replica_answer {
  tm_conn *conn; /* NULL: nobody waits */
  tm_frame f;
  tm_buf meta;
  tm_segments seg;
  void (*release)(void *ud);
  void *ud;
} tm_replica_answer;

/* Send, and release what it holds. */
void tm_replica_answer_send(tm_replica_answer *a);

/* Pass a frame on that was applied (order held, replicated).  Takes the payload and the
 * answer. */
void tm_replica_forward(tm_ps_lane *l, tm_message *m, tm_replica_answer *a);

typedef struct tm_replica_order {
  const char *address; /* of the backup */
  tm_hello self;       /* as whom this ps calls there */
  uint64_t epoch;
  tm_conn *chief; /* who ordered it and is answered when the copy is whole */
  uint64_t id;    /* of the order */
} tm_replica_order;

/* Make a copy: a thread begins, the chief is answered later. */
TM_CHECKED tm_status tm_replica_begin(tm_replica_host *h, tm_ps_lane *l,
                                      const tm_replica_order *o, tm_err *err);
/* No copy any more.  Those who wait are answered; or, with `cut`, their connections
 * end: the lane is served elsewhere. */
void tm_replica_drop(tm_ps_lane *l, bool cut);

#endif
