#include "cluster/remote.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "data/codec.h"

/*
 * Design.  The start is said and answered on the caller's thread; then the connection
 * goes to the loop.  Messages go out from the caller's thread.
 *
 * Invariants:
 *   (1) on_down is called at most once, on_done not after it (`down`, loop thread).
 *       The link's fields are its user's until start: a connection that was lost, or a
 *       worker that said that it leaves, before start is told by start.
 *   (2) `sent` holds the hash of each graph that the worker has; both ends forget all
 * of them at once when there are TM_CONTROL_GRAPHS. (3) close returns after `closed`
 * was called: nothing calls back after it.
 */
#define REMOTE_PAUSE_NS  ((int64_t)50000000) /* between two starts */
#define REMOTE_BYTES_MAX ((size_t)1 << 40)
#define REMOTE_ONCE_NS   2000000000

typedef struct remote {
  tm_worker_link link; /* first */
  tm_conn *conn;
  tm_map *sent; /* under mu: hash[0] to a non-NULL pointer */
  pthread_mutex_t mu;
  pthread_cond_t ended;
  bool closing, gone; /* under mu */
  /* under mu; pending, leaving: `why`, `farewell` is to be told by start */
  bool started, pending, leaving;
  tm_err why;
  char farewell[TM_LEAVING_TEXT];
  bool down;       /* loop thread */
  tm_board *board; /* may be NULL */
  tm_hello self;
  char address[280];
} remote;

/* --- from the worker (loop thread) --- */

static void remote_down(remote *r, const tm_err *why) {
  if (r->down) return;
  r->down = true;
  tm_err e = *why;
  if (!e.task[0]) memcpy(e.task, r->link.task, sizeof e.task);
  pthread_mutex_lock(&r->mu);
  bool tell = r->started && !r->closing;
  r->pending = !r->started;
  if (r->pending) r->why = e;
  pthread_mutex_unlock(&r->mu);
  if (tell) r->link.on_down(r->link.ud, &e);
}

static void remote_start(tm_worker_link *l) {
  remote *r = (remote *)l;
  pthread_mutex_lock(&r->mu);
  r->started = true;
  bool tell = r->pending, leaves = r->leaving && l->on_leave;
  r->pending = r->leaving = false;
  pthread_mutex_unlock(&r->mu);
  if (leaves) l->on_leave(l->ud, r->farewell);
  if (tell) l->on_down(l->ud, &r->why);
}

static void remote_no_done(void *ud, const tm_completion *d, int32_t n) {
  (void)ud;
  (void)d;
  (void)n;
}

bool tm_remote_leaving(tm_board *board, tm_conn *c, const tm_message *m,
                       const char *address, const tm_hello *self,
                       char why[TM_LEAVING_TEXT]) {
  const tm_hello *peer = tm_conn_peer(c);
  tm_departure d;
  if (tm_leaving_unpack(m, why, NULL)) {
    tm_conn_close(c, TM_EDATALOSS, "the task sent a malformed farewell");
    return false;
  }
  if (!board) return true;
  memset(&d, 0, sizeof d);
  d.incarnation = peer->incarnation;
  snprintf(d.task, sizeof d.task, "%s", peer->task);
  snprintf(d.why, sizeof d.why, "%s", why);
  snprintf(d.address, sizeof d.address, "%s", address);
  tm_board_say(board, &d, self);
  return true;
}

static void remote_leaving(remote *r, tm_message *m) {
  char why[TM_LEAVING_TEXT];
  if (!tm_remote_leaving(r->board, r->conn, m, r->address, &r->self, why)) return;
  pthread_mutex_lock(&r->mu);
  bool tell = r->started && !r->down;
  if (!r->started) {
    r->leaving = true;
    memcpy(r->farewell, why, sizeof r->farewell);
  }
  pthread_mutex_unlock(&r->mu);
  if (tell && r->link.on_leave) r->link.on_leave(r->link.ud, why);
}

static void remote_done(remote *r, tm_message *m) {
  tm_letter_in in;
  tm_err err;
  tm_completion d[64];
  tm_err_clear(&err);
  tm_status s = tm_letter_open(&in, m);
  uint32_t n = s ? 0 : tm_unpack_array(&in.r, 0, TM_CONTROL_BATCH), have = 0;
  while (s == TM_OK && n > 0) {
    for (have = 0; have < TM_COUNT(d) && n > 0 && in.r.status == TM_OK; have++, n--)
      tm_completion_take(&in, &d[have]);
    s = in.r.status;
    if (s == TM_OK && !r->down) r->link.on_done(r->link.ud, d, (int32_t)have);
    for (uint32_t i = 0; i < have; i++) tm_completion_release(&d[i]);
  }
  if (s == TM_OK) s = tm_letter_end(&in, &err);
  tm_letter_close(&in);
  if (s) tm_conn_close(r->conn, s, "the worker sent a malformed completion");
}

static void remote_gated(remote *r, tm_message *m) {
  tm_unpacker u;
  tm_unpack_init(&u, m->meta, m->f.meta_bytes);
  uint64_t number = tm_unpack_uint(&u);
  if (tm_unpack_end(&u, NULL))
    tm_conn_close(r->conn, TM_EDATALOSS, "the worker sent a malformed answer");
  else if (!r->down && r->link.on_gated)
    r->link.on_gated(r->link.ud, number);
}

static void remote_message(void *ud, tm_conn *c, tm_message *m) {
  remote *r = tm_conn_user(c);
  tm_unpacker u;
  tm_err err;
  (void)ud;
  if (m->f.kind == TM_F_DONE) {
    remote_done(r, m);
    return;
  }
  if (m->f.kind == TM_F_LEAVING) {
    remote_leaving(r, m);
    return;
  }
  if (m->f.kind == TM_F_GATED) {
    remote_gated(r, m);
    return;
  }
  tm_err_clear(&err);
  if (m->f.kind == TM_F_DOWN || m->f.kind == TM_F_ERROR) {
    tm_unpack_init(&u, m->meta, m->f.meta_bytes);
    tm_err_unpack(&u, &err);
    remote_down(r, &err);
  }
  tm_conn_close(c, TM_EUNAVAILABLE, "the worker ended its work");
}

static void remote_closed(void *ud, tm_conn *c, const tm_err *why) {
  remote *r = tm_conn_user(c);
  tm_err e;
  (void)ud;
  tm_err_clear(&e);
  tm_fail(&e, TM_EUNAVAILABLE, "%s", why->msg);
  remote_down(r, &e);
  if (r->board) tm_board_cut(r->board, tm_conn_peer(c)->incarnation);
  pthread_mutex_lock(&r->mu);
  r->gone = true;
  pthread_cond_broadcast(&r->ended);
  pthread_mutex_unlock(&r->mu);
}

/* --- to the worker --- */

static tm_status remote_fail(remote *r, tm_status s, tm_err *err, const char *what) {
  if (s == TM_OK) return s;
  if (s == TM_ENOMEM) return tm_nomem(err, what);
  return tm_fail(err, s, "%s: %s cannot be sent", r->link.task, what);
}

/* A letter of some numbers and one run of bytes. */
static tm_status remote_send_bytes(remote *r, tm_frame_kind kind, const uint64_t *v,
                                   uint32_t n, tm_buf *b) {
  tm_letter l;
  tm_letter_init(&l);
  tm_pack_array(&l.w, n + 1);
  for (uint32_t i = 0; i < n; i++) tm_pack_uint(&l.w, v[i]);
  tm_letter_bytes(&l, b->data, b->len);
  return tm_letter_send(&l, r->conn, kind, 0);
}

/* mu held. */
static tm_status remote_send_graph(remote *r, tm_graph *g) {
  if (tm_map_get(r->sent, g->hash[0])) return TM_OK;
  bool forget = tm_map_count(r->sent) >= TM_CONTROL_GRAPHS;
  tm_buf b = TM_BUF_INIT(REMOTE_BYTES_MAX);
  if (forget) {
    tm_map *fresh;
    TM_TRY(tm_map_new(&fresh));
    tm_map_free(r->sent);
    r->sent = fresh;
  }
  tm_status s = tm_graph_pack(g, &b);
  if (s == TM_OK) {
    const uint64_t v[3] = {g->hash[0], g->hash[1], forget};
    s = remote_send_bytes(r, TM_F_GRAPH, v, 3, &b);
  }
  tm_buf_release(&b);
  /* Should the note fail, the graph is sent again: harmless. */
  if (s == TM_OK) s = tm_map_put(r->sent, g->hash[0], r);
  return s;
}

static tm_status remote_submit(tm_worker_link *l, const tm_closure *c, int32_t n,
                               tm_err *err) {
  remote *r = (remote *)l;
  tm_status s = TM_OK;
  pthread_mutex_lock(&r->mu);
  for (int32_t i = 0; i < n && s == TM_OK; i++) s = remote_send_graph(r, c[i].graph);
  pthread_mutex_unlock(&r->mu);
  if (s) return remote_fail(r, s, err, "a function");
  tm_letter letter;
  tm_letter_init(&letter);
  tm_pack_array(&letter.w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) tm_closure_pack(&letter, &c[i]);
  s = tm_letter_send(&letter, r->conn, TM_F_CLOSURES, 0);
  return remote_fail(r, s, err, "a closure");
}

static tm_status remote_add_variable(tm_worker_link *l, tm_var_info *v, tm_err *err) {
  remote *r = (remote *)l;
  tm_letter letter;
  tm_letter_init(&letter);
  tm_var_info_pack(&letter.w, v);
  return remote_fail(r, tm_letter_send(&letter, r->conn, TM_F_VARIABLE, 0), err,
                     "a variable");
}

static tm_status remote_add_iterator(tm_worker_link *l, uint64_t uid, tm_dataset *ds,
                                     uint64_t seed, tm_iter_place from, bool dealt,
                                     tm_err *err) {
  remote *r = (remote *)l;
  tm_buf b = TM_BUF_INIT(REMOTE_BYTES_MAX);
  tm_status s = tm_dataset_pack(ds, &b, err);
  if (s == TM_OK) {
    const uint64_t v[5] = {uid, seed, (uint64_t)from.given, (uint64_t)from.failed,
                           dealt};
    s = remote_fail(r, remote_send_bytes(r, TM_F_ITERATOR, v, 5, &b), err, "a dataset");
  }
  tm_buf_release(&b);
  return s;
}

static tm_status remote_add_locals(tm_worker_link *l, uint64_t uid,
                                   tm_var_info *const *v, int32_t n, tm_graph *init,
                                   tm_err *err) {
  remote *r = (remote *)l;
  tm_buf b = TM_BUF_INIT(REMOTE_BYTES_MAX);
  tm_letter letter;
  tm_status s = tm_graph_pack(init, &b);
  tm_letter_init(&letter);
  tm_pack_array(&letter.w, 3);
  tm_pack_uint(&letter.w, uid);
  tm_pack_array(&letter.w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) tm_var_info_pack(&letter.w, v[i]);
  tm_letter_bytes(&letter, b.data, b.len);
  if (s == TM_OK)
    s = tm_letter_send(&letter, r->conn, TM_F_RESOURCE, 0);
  else
    tm_letter_release(&letter);
  tm_buf_release(&b);
  return remote_fail(r, s, err, "variables of a worker");
}

static tm_status remote_send_uint(remote *r, tm_frame_kind kind, uint64_t v) {
  tm_letter letter;
  tm_letter_init(&letter);
  tm_pack_uint(&letter.w, v);
  return tm_letter_send(&letter, r->conn, kind, 0);
}

static tm_status remote_drop(tm_worker_link *l, uint64_t uid) {
  return remote_send_uint((remote *)l, TM_F_RESOURCE_DROP, uid);
}

static void remote_cancel(tm_worker_link *l, uint64_t upto) {
  remote *r = (remote *)l;
  if (remote_send_uint(r, TM_F_CANCEL, upto) == TM_ENOMEM)
    tm_conn_close(r->conn, TM_ENOMEM, "no memory to cancel");
}

static void remote_recall(tm_worker_link *l, int32_t keep) {
  remote *r = (remote *)l;
  if (remote_send_uint(r, TM_F_RECALL, (uint64_t)keep) == TM_ENOMEM)
    tm_conn_close(r->conn, TM_ENOMEM, "no memory to recall");
}

/* A connection that is gone is told to on_down. */
static void remote_gate(tm_worker_link *l, uint64_t number, bool closed) {
  remote *r = (remote *)l;
  tm_letter letter;
  tm_letter_init(&letter);
  tm_pack_array(&letter.w, 2);
  tm_pack_uint(&letter.w, number);
  tm_pack_bool(&letter.w, closed);
  if (tm_letter_send(&letter, r->conn, TM_F_GATE, 0) == TM_ENOMEM)
    tm_conn_close(r->conn, TM_ENOMEM, "no memory to close the gate");
}

static void remote_close(tm_worker_link *l) {
  remote *r = (remote *)l;
  pthread_mutex_lock(&r->mu);
  r->closing = true;
  pthread_mutex_unlock(&r->mu);
  tm_conn_close(r->conn, TM_ECANCELLED, "closed by the chief");
  pthread_mutex_lock(&r->mu);
  while (!r->gone) pthread_cond_wait(&r->ended, &r->mu);
  pthread_mutex_unlock(&r->mu);
  tm_conn_unref(r->conn);
  tm_map_free(r->sent);
  pthread_mutex_destroy(&r->mu);
  pthread_cond_destroy(&r->ended);
  tm_free(r, sizeof *r);
}

/* --- starting --- */

/* Say start and wait for the answer. */
static tm_status remote_say_start(tm_channel *ch, const tm_remote_options *opt,
                                  tm_err *err) {
  tm_buf b = TM_BUF_INIT(TM_FRAME_MAX_META);
  tm_packer w;
  tm_frame f = {.kind = TM_F_START, .id = 1};
  const uint8_t *meta;
  tm_pack_init(&w, &b);
  tm_start_pack(&w, &opt->start, opt->ps);
  tm_status s =
      w.status ? tm_nomem(err, "a start") : tm_channel_send(ch, &f, &b, NULL, 0, err);
  tm_buf_release(&b);
  TM_TRY(s);
  TM_TRY(tm_channel_head(ch, &f, &meta, err));
  if (f.kind == TM_F_OK) return tm_channel_end(ch, err);
  if (f.kind != TM_F_ERROR)
    return tm_fail(err, TM_EDATALOSS, "%s does not answer the start",
                   tm_channel_peer(ch)->task);
  tm_unpacker r;
  tm_err theirs;
  tm_unpack_init(&r, meta, f.meta_bytes);
  tm_err_unpack(&r, &theirs);
  TM_TRY(tm_unpack_end(&r, err));
  if (err) *err = theirs;
  return theirs.code;
}

static tm_status remote_try(const tm_channel_options *o, const tm_remote_options *opt,
                            tm_channel **ch, tm_err *err) {
  TM_TRY(tm_channel_open(o, ch, err));
  tm_status s = remote_say_start(*ch, opt, err);
  if (s == TM_OK) return TM_OK;
  if (opt->cut) *opt->cut = tm_channel_cut(*ch);
  tm_channel_close(*ch);
  *ch = NULL;
  return s;
}

/* A task that is about to end is unavailable too: what replaces it will answer. */
static tm_status remote_dial(const tm_remote_options *opt, const char *task,
                             tm_channel **ch, tm_err *err) {
  tm_channel_options o = {.address = opt->address,
                          .expect_task = task,
                          .self = opt->self,
                          .connect_timeout_ns = opt->start.connect_timeout_ns,
                          .silence_ns = 2 * opt->start.connect_timeout_ns,
                          .retry = !opt->once,
                          .cancel = opt->cancel,
                          .cut = opt->cut};
  if (opt->once && o.connect_timeout_ns > REMOTE_ONCE_NS)
    o.connect_timeout_ns = REMOTE_ONCE_NS;
  snprintf(o.self.purpose, sizeof o.self.purpose, "control");
  int64_t end = tm_now_ns() + o.connect_timeout_ns;
  for (;;) {
    if (err) tm_err_clear(err);
    tm_status s = remote_try(&o, opt, ch, err);
    if (s != TM_EUNAVAILABLE || opt->once || tm_now_ns() >= end ||
        tm_cancelled(opt->cancel))
      return s;
    tm_sleep_ns(REMOTE_PAUSE_NS);
  }
}

static tm_conn_limits remote_limits(const tm_remote_options *opt) {
  return (tm_conn_limits){UINT64_MAX / 4, opt->start.heartbeat_ns,
                          opt->start.silence_ns};
}

tm_status tm_remote_worker(const tm_remote_options *opt, tm_worker_link **out,
                           tm_err *err) {
  tm_channel *ch = NULL;
  *out = NULL;
  remote *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, "a worker");
  r->link = (tm_worker_link){.on_done = remote_no_done,
                             .start = remote_start,
                             .submit = remote_submit,
                             .add_variable = remote_add_variable,
                             .add_iterator = remote_add_iterator,
                             .add_locals = remote_add_locals,
                             .drop = remote_drop,
                             .cancel = remote_cancel,
                             .recall = remote_recall,
                             .gate = remote_gate,
                             .close = remote_close};
  r->board = opt->board;
  r->self = opt->self;
  snprintf(r->address, sizeof r->address, "%s", opt->address);
  snprintf(r->link.task, sizeof r->link.task, "%s", opt->task);
  tm_status s = tm_map_new(&r->sent) ? tm_nomem(err, "a worker") : TM_OK;
  if (s == TM_OK) s = remote_dial(opt, r->link.task, &ch, err);
  if (s == TM_OK) {
    const tm_conn_events ev = {NULL, remote_message, remote_closed, NULL};
    tm_conn_limits lim = remote_limits(opt);
    pthread_mutex_init(&r->mu, NULL);
    pthread_cond_init(&r->ended, NULL);
    s = tm_netloop_adopt(opt->loop, ch, &lim, &ev, r, &r->conn, err);
  }
  if (s) {
    tm_map_free(r->sent);
    tm_free(r, sizeof *r);
    return s;
  }
  *out = &r->link;
  return TM_OK;
}

tm_status tm_remote_ps(const tm_remote_options *opt, const tm_conn_events *events,
                       void *user, tm_conn **out, tm_err *err) {
  tm_channel *ch;
  *out = NULL;
  TM_TRY(remote_dial(opt, opt->task, &ch, err));
  tm_conn_limits lim = remote_limits(opt);
  return tm_netloop_adopt(opt->loop, ch, &lim, events, user, out, err);
}
