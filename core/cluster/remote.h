/*
 * remote.h - a worker in another process, as a tm_worker_link.
 *
 * Functions travel once, by content hash; closures and completions in letters.  A lost
 * connection is told to on_down at once, a silent one after silence_ns.
 *
 * Ownership: link->close frees it.  Threads: as tm_worker_link; on_done and on_down
 * come from the loop's thread.
 */
#ifndef TM_CLUSTER_REMOTE_H
#define TM_CLUSTER_REMOTE_H

#include "cluster/board.h"
#include "cluster/control.h"
#include "net/loop.h"

typedef struct tm_remote_options {
  tm_netloop *loop;           /* outlives the link */
  tm_hello self;              /* of the chief */
  const char *address, *task; /* what should be there: "/job:ps/task:0" */
  tm_start start;             /* ps is not used: */
  const char *const *ps;
  bool once;         /* one try of at most 2 s, else until start.connect_timeout_ns */
  bool *cut;         /* may be NULL; out: the connection ended before the answer */
  tm_cancel *cancel; /* ends the waiting for an answer; may be NULL */
  tm_board *board; /* where a task's leaving is noted; may be NULL; outlives the link */
} tm_remote_options;

/* Connect (trying until start.connect_timeout_ns), start the worker there.  Tasks wait
 * for each other's ports, so the order in which they are started does not matter. */
TM_CHECKED tm_status tm_remote_worker(const tm_remote_options *opt,
                                      tm_worker_link **out, tm_err *err);

/* A LEAVING on connection c, noted on the board; the reason into why.  False: it was
 * malformed, and the connection is being closed. */
bool tm_remote_leaving(tm_board *board, tm_conn *c, const tm_message *m,
                       const char *address, const tm_hello *self,
                       char why[TM_LEAVING_TEXT]);

/* A control connection to a ps: its store begins anew.  Close with tm_conn_close and
 * unref; `closed` of events is called when it is lost. */
TM_CHECKED tm_status tm_remote_ps(const tm_remote_options *opt,
                                  const tm_conn_events *events, void *user,
                                  tm_conn **out, tm_err *err);

#endif
