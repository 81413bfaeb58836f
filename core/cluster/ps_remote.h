/*
 * ps_remote.h - a tm_ps_client over a channel to a ps of another process.
 *
 * Threads: one at a time, as every tm_ps_client.
 */
#ifndef TM_CLUSTER_PS_REMOTE_H
#define TM_CLUSTER_PS_REMOTE_H

#include "net/channel.h"
#include "ps/client.h"

/* Connect.  opt->self.purpose becomes "data"; silence_ns is how long an answer may
 * take before the ps counts as dead. */
TM_CHECKED tm_status tm_ps_client_remote(const tm_channel_options *opt,
                                         tm_ps_client **out, tm_err *err);

#endif
