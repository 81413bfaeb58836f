/*
 * server.h - a task of a cluster that serves: a worker or a ps.
 *
 *     tm_server *s;
 *     TM_TRY(tm_server_start(&opt, &s, err));
 *     status = tm_server_join(s, &cancel, err);
 *     tm_server_free(s);
 *
 * Ownership: the caller's.  Threads: join from one, stop and leave from any.
 */
#ifndef TM_CLUSTER_SERVER_H
#define TM_CLUSTER_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cancel.h"
#include "base/status.h"

typedef struct tm_server tm_server;

typedef struct tm_server_options {
  const char *job; /* "worker" or "ps" */
  int32_t index;
  const char *address; /* to listen on; port 0: any */
  const char *cluster_id;
  double chief_timeout; /* seconds without a chief until join ends; 0: never; < 0: what
                           the chief's start says, 600 before */
  bool once;            /* join ends when the first chief has gone */
  int threads;          /* that serve connections; 0: as many as good */
} tm_server_options;

/* TM_EEXISTS: the port is in use (err names the address). */
TM_CHECKED tm_status tm_server_start(const tm_server_options *opt, tm_server **out,
                                     tm_err *err);
uint16_t tm_server_port(const tm_server *s);
const char *tm_server_task(const tm_server *s);
/* Serve until stopped (TM_OK), cancelled (TM_ECANCELLED), or without a chief for too
 * long (TM_ETIMEOUT).  cancel may be NULL. */
TM_CHECKED tm_status tm_server_join(tm_server *s, tm_cancel *cancel, tm_err *err);
/* The same for at most timeout_ns; TM_EAGAIN: it serves on. */
TM_CHECKED tm_status tm_server_wait(tm_server *s, int64_t timeout_ns, tm_cancel *cancel,
                                    tm_err *err);
void tm_server_stop(tm_server *s);
/* This task is asked to end: its chief is told why, a worker finishes what it started
 * and hands the rest back, a ps serves on.  join then ends with TM_OK once the chief
 * has nothing here any more (a ps: has gone), else after `grace` seconds: a worker with
 * TM_ETIMEOUT, a ps with TM_OK.  Only the first call counts. */
void tm_server_leave(tm_server *s, const char *why, double grace);
void tm_server_free(tm_server *s); /* s may be NULL */

#endif
