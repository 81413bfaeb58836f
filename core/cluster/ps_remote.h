/*
 * ps_remote.h - a tm_ps_client over channels to the ps of other processes that serve a
 * lane: one at a time, connected again when the connection is cut.
 *
 * Threads: one at a time, as every tm_ps_client.
 */
#ifndef TM_CLUSTER_PS_REMOTE_H
#define TM_CLUSTER_PS_REMOTE_H

#include "net/channel.h"
#include "ps/client.h"

typedef struct tm_ps_where {
  const char *address;
  const char *task; /* that should be there; NULL: any */
  tm_cancel *lost;  /* may be NULL: set when that task is known to be gone */
} tm_ps_where;

typedef struct tm_ps_remote_options {
  /* The address, expect_task and lost are those of ps `lane`.  self.purpose becomes
   * "data"; silence_ns is how long an answer may take before the ps counts as dead. */
  tm_channel_options channel;
  int32_t lane;      /* whose shards: those of ps `lane`; -1: what ps serves there */
  tm_ps_where other; /* where they may be served as well; address NULL: nowhere */
  tm_cancel *gone;   /* may be NULL: set when nobody serves the lane any more */
} tm_ps_remote_options;

/* Connect. */
TM_CHECKED tm_status tm_ps_client_lane(const tm_ps_remote_options *opt,
                                       tm_ps_client **out, tm_err *err);
/* To whatever the one ps at that address serves. */
TM_CHECKED tm_status tm_ps_client_remote(const tm_channel_options *opt,
                                         tm_ps_client **out, tm_err *err);

#endif
