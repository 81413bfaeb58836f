/*
 * conn.h - a connection that a loop thread drives: messages come by a callback, frames
 * go out from any thread.
 *
 * Callbacks run in the loop's thread, must not block for long, and never run two at a
 * time for one connection.  `closed` comes last, once, also when the connection was
 * closed from here.
 *
 * Sending writes at once in the calling thread what the socket takes; the rest goes out
 * when it has room.  While much is waiting to go out, no new message is read: a peer
 * that asks and does not read stops being served, and one that takes nothing for
 * `silence` is disconnected.
 *
 * Ownership: refcounted; a loop holds one reference until `closed`.
 * Threads:   any, but for the callbacks.
 */
#ifndef TM_NET_CONN_H
#define TM_NET_CONN_H

#include "net/channel.h"

typedef struct tm_conn tm_conn;

typedef struct tm_message {
  tm_frame f;
  const uint8_t *meta; /* valid during the call */
  void *payload;       /* 64-byte aligned; freed after the call unless taken: set it to
                          NULL and tm_free_aligned(payload, f.payload_bytes) later */
} tm_message;

typedef struct tm_conn_events {
  /* Who connected said hello: refuse by a status.  NULL: everybody of the cluster. */
  tm_status (*hello)(void *ud, tm_conn *c, const tm_hello *peer, tm_err *err);
  void (*message)(void *ud, tm_conn *c, tm_message *m);
  /* May be NULL.  TM_ETIMEOUT: the peer was silent, or took no bytes, for too long. */
  void (*closed)(void *ud, tm_conn *c, const tm_err *why);
  void *ud;
} tm_conn_events;

typedef struct tm_conn_limits {
  uint64_t max_payload; /* of one frame that comes in */
  int64_t heartbeat_ns; /* send a PING after so long without sending; 0: none */
  int64_t silence_ns;   /* without a byte for so long: closed; 0: for ever */
} tm_conn_limits;

tm_conn *tm_conn_ref(tm_conn *c);
void tm_conn_unref(tm_conn *c); /* c may be NULL */
const tm_hello *tm_conn_peer(const tm_conn *c);
/* A pointer of the user's, and what the loop's thread sees of it. */
void tm_conn_set_user(tm_conn *c, void *user);
void *tm_conn_user(const tm_conn *c);
/* A second one, for a layer between: only from this connection's callbacks.  drop(tag)
 * is called when another takes its place and when the connection is freed. */
void tm_conn_set_tag(tm_conn *c, void *tag, void (*drop)(void *tag));
void *tm_conn_tag(const tm_conn *c);

/* New limits; only from this connection's callbacks. */
void tm_conn_set_limits(tm_conn *c, const tm_conn_limits *limits);

/* While on, the peer's silence is not counted: it was asked for something long. */
void tm_conn_excuse(tm_conn *c, bool on);

/* While on, no further message is read, and the peer's silence is not counted.  On:
 * only from this connection's callbacks. */
void tm_conn_hold(tm_conn *c, bool on);

/* Metadata is copied; segments must stay until release(ud), which may be NULL, is
 * called (by any thread, also when sending fails: always exactly once).
 * TM_EUNAVAILABLE: the connection is gone. */
tm_status tm_conn_send(tm_conn *c, const tm_frame *f, const tm_buf *meta,
                       const tm_segment *seg, int32_t nseg, void (*release)(void *ud),
                       void *ud);
/* Answer request `id` with an error. */
tm_status tm_conn_send_error(tm_conn *c, uint64_t id, const tm_err *e);
/* Close soon; why goes to `closed`.  What was sent before may be lost. */
void tm_conn_close(tm_conn *c, tm_status s, const char *why);

#endif
