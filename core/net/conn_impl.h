/* conn_impl.h - what conn.c and loop.c share: a connection's insides. */
#ifndef TM_NET_CONN_IMPL_H
#define TM_NET_CONN_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>
#include <uv.h>

#include "net/conn.h"

enum { TM_CONN_READ = 64 << 10 };

/* A frame on its way out: `io` from `at` on is not yet written. */
typedef struct conn_out {
  struct conn_out *next;
  void (*release)(void *ud);
  void *ud;
  size_t at, nio, size; /* size: of this struct in memory */
  uint8_t head[TM_FRAME_HEAD];
  struct iovec io[];
} conn_out;

struct tm_conn {
  atomic_int refs;
  struct net_thread *thread;   /* that drives it */
  struct tm_conn *prev, *next; /* the thread's list */
  struct tm_conn *attend;      /* the thread's list of those that want attention */
  uv_poll_t poll;              /* loop thread */
  int events_on;               /* loop thread: what poll watches */
  bool server, greeted, begun, closing; /* loop thread */
  tm_conn_events ev;
  tm_conn_limits lim;
  const struct tm_listen_options *listen; /* of a server's connection */
  tm_hello peer;
  void *_Atomic user;
  void *tag; /* loop thread */
  void (*drop_tag)(void *tag);

  /* in: loop thread */
  tm_buf in;
  size_t in_at;
  tm_frame f;      /* of the payload that is coming */
  uint8_t *meta;   /* copied, while its payload is coming; f.meta_bytes */
  uint8_t *pay;    /* NULL: no payload is coming */
  uint64_t pay_at; /* bytes of it that came */
  atomic_llong last_in, last_out;
  atomic_bool excused; /* its silence is not counted */
  atomic_bool held;    /* nothing more is read */
  int64_t born;

  /* out */
  pthread_mutex_t mu;
  int fd;                     /* guarded by mu; -1 when closed */
  conn_out *out, *out_last;   /* guarded by mu */
  size_t out_bytes;           /* guarded by mu */
  bool want_close, attending; /* guarded by mu */
  bool cut;                   /* guarded by mu: the peer is gone; what it sent before is
                                 still read */
  tm_err why;                 /* guarded by mu: first reason to close */
};

TM_CHECKED tm_status tm_conn_make(int fd, tm_conn **out);
/* Loop thread: the socket can be read.  False: close it (why is set). */
bool tm_conn_readable(tm_conn *c);
/* Write what waits; false: close it. */
bool tm_conn_flush(tm_conn *c);
/* Nothing more is to be read: too many bytes wait to go out, or it is on hold. */
bool tm_conn_full(tm_conn *c);
bool tm_conn_waiting(tm_conn *c);
void tm_conn_fail(tm_conn *c, tm_status s, const char *why);
/* The same where the peer is gone. */
void tm_conn_cut(tm_conn *c);
/* Loop thread, before a close: the last that a peer said before it went, which may be
 * why. */
void tm_conn_last_words(tm_conn *c);
/* Loop thread, at the end: drop what waits and close the socket. */
void tm_conn_drop(tm_conn *c);
/* Ask the loop's thread to look at c (loop.c). */
void tm_conn_attend(tm_conn *c);

#endif
