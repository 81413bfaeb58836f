/*
 * loop.h - threads that drive connections (libuv), and listening.
 *
 *     tm_netloop *l;
 *     TM_TRY(tm_netloop_new(1, &l));
 *     TM_TRY(tm_netloop_listen(l, &opt, &port, err));     -- a server
 *     TM_TRY(tm_netloop_adopt(l, channel, &limits, &events, &conn, err)); -- a client
 *     tm_netloop_free(l);     -- closes everything, joins
 *
 * Ownership: the caller's.  Threads: any; free from outside its threads.
 */
#ifndef TM_NET_LOOP_H
#define TM_NET_LOOP_H

#include "net/conn.h"

typedef struct tm_netloop tm_netloop;

enum { TM_NET_MAX_CONNS = 4096 };

typedef struct tm_listen_options {
  const char *address;          /* port 0: any */
  tm_hello self;                /* the cluster's id must be that of who connects */
  tm_conn_limits data, control; /* by the purpose of who connects */
  tm_conn_events events;
  int max_conns; /* 0: TM_NET_MAX_CONNS */
} tm_listen_options;

TM_CHECKED tm_status tm_netloop_new(int threads, tm_netloop **out);
void tm_netloop_free(tm_netloop *l); /* l may be NULL */

/* Once a loop.  *port: the real one. */
TM_CHECKED tm_status tm_netloop_listen(tm_netloop *l, const tm_listen_options *opt,
                                       uint16_t *port, tm_err *err);
/* Go on with an open channel (taken, also on failure).  *out: a reference; its user
 * pointer is `user`. */
TM_CHECKED tm_status tm_netloop_adopt(tm_netloop *l, tm_channel *ch,
                                      const tm_conn_limits *limits,
                                      const tm_conn_events *events, void *user,
                                      tm_conn **out, tm_err *err);

#endif
