#include "net/loop.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "net/addr.h"
#include "net/conn_impl.h"

/*
 * Design.  Each thread runs a libuv loop with a wake-up, a timer, and one poll handle a
 * connection.  Other threads reach a connection's thread by its `attend` list: there it
 * adjusts what it watches, or closes.
 *
 * Invariants:
 *   (1) A connection is on `conns` of its thread from its start to its end; the list is
 *       the thread's alone.
 *   (2) A connection on `attend` is held by a reference, and on it at most once
 *       (`attending`).
 *   (3) poll handles are closed before their socket is.
 */
enum { LOOP_TICK_MS = 100, LOOP_GREET_NS = 1000000000, LOOP_GREETS = 10 };
#define LOOP_LATE_NS 500000000

typedef struct net_thread {
  tm_netloop *loop;
  pthread_t id;
  uv_loop_t uv;
  uv_async_t wake;
  uv_timer_t tick;
  uv_poll_t lpoll[2]; /* the first thread: TCP and Unix listeners */
  int lfd[2];
  int lopen; /* loop thread: poll handles of listeners that are open */
  tm_conn *conns;
  int64_t ticked;         /* loop thread: when the timer last ran */
  bool started, stopping; /* stopping: loop thread */
  pthread_mutex_t mu;
  tm_conn *attend;   /* guarded by mu */
  bool stop, listen; /* guarded by mu: orders from outside */
} net_thread;

struct tm_netloop {
  int n;
  atomic_uint turn; /* whose is the next connection */
  atomic_int conns;
  tm_listen_options opt;
  char address[280];
  net_thread t[];
};

/* --- a connection's life in its thread --- */

static void loop_closed(uv_handle_t *h) {
  tm_conn *c = h->data;
  tm_conn_drop(c);
  if (c->ev.closed && c->greeted) c->ev.closed(c->ev.ud, c, &c->why);
  atomic_fetch_sub(&c->thread->loop->conns, 1);
  tm_conn_unref(c);
}

static void loop_close_conn(tm_conn *c) {
  net_thread *t = c->thread;
  if (c->closing) return;
  c->closing = true;
  tm_conn_last_words(c);
  tm_conn_fail(c, TM_ECANCELLED, "closed here");
  if (c->prev)
    c->prev->next = c->next;
  else
    t->conns = c->next;
  if (c->next) c->next->prev = c->prev;
  uv_poll_stop(&c->poll);
  uv_close((uv_handle_t *)&c->poll, loop_closed);
}

static void loop_poll(uv_poll_t *h, int status, int events);

/* Watch for what the connection waits for now. */
static void loop_watch(tm_conn *c) {
  int want =
      (tm_conn_full(c) ? 0 : UV_READABLE) | (tm_conn_waiting(c) ? UV_WRITABLE : 0);
  if (c->closing || want == c->events_on) return;
  c->events_on = want;
  if (uv_poll_start(&c->poll, want, loop_poll)) {
    tm_conn_fail(c, TM_EINTERNAL, "the loop cannot watch the connection");
    loop_close_conn(c);
  }
}

static void loop_serve(tm_conn *c, bool in) {
  bool ok = tm_conn_flush(c);
  if (ok && (in || c->in.len > c->in_at)) ok = tm_conn_readable(c);
  if (!ok)
    loop_close_conn(c);
  else
    loop_watch(c);
}

static void loop_poll(uv_poll_t *h, int status, int events) {
  tm_conn *c = h->data;
  if (status < 0) {
    tm_conn_cut(c);
    loop_close_conn(c);
    return;
  }
  loop_serve(c, (events & UV_READABLE) != 0);
}

/* A new connection begins in its thread. */
static void loop_begin(net_thread *t, tm_conn *c) {
  c->prev = NULL;
  c->next = t->conns;
  if (t->conns) t->conns->prev = c;
  t->conns = c;
  c->poll.data = c;
  c->begun = true;
  if (uv_poll_init(&t->uv, &c->poll, c->fd)) {
    /* Never initialised, so there is nothing for libuv to close. */
    t->conns = c->next;
    if (c->next) c->next->prev = NULL;
    c->closing = true;
    tm_conn_fail(c, TM_EINTERNAL, "the loop cannot watch the connection");
    uv_handle_t h = {.data = c};
    loop_closed(&h);
    return;
  }
  c->events_on = -1;
  loop_serve(c, c->in.len > 0);
}

static bool loop_wants_close(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  bool close = c->want_close;
  c->attending = false;
  pthread_mutex_unlock(&c->mu);
  return close;
}

static void loop_attend_one(net_thread *t, tm_conn *c) {
  bool close = loop_wants_close(c);
  if (!c->begun) {
    loop_begin(t, c);
    if (!close || c->closing) return;
  }
  if (close)
    loop_close_conn(c);
  else if (!c->closing)
    loop_serve(c, false);
}

/* --- the wake-up and the timer --- */

static void loop_close_listener(net_thread *t) {
  for (int i = 0; i < 2; i++) {
    if (t->lfd[i] < 0) continue;
    uv_poll_stop(&t->lpoll[i]);
    uv_close((uv_handle_t *)&t->lpoll[i], NULL);
    close(t->lfd[i]);
    t->lfd[i] = -1;
  }
}

static void loop_stop(net_thread *t) {
  if (t->stopping) return;
  t->stopping = true;
  if (t->lopen) loop_close_listener(t);
  while (t->conns) loop_close_conn(t->conns);
  uv_close((uv_handle_t *)&t->wake, NULL);
  uv_close((uv_handle_t *)&t->tick, NULL);
}

static void loop_accept(uv_poll_t *h, int status, int events);

static void loop_start_listener(net_thread *t) {
  for (int i = 0; i < 2; i++) {
    if (t->lfd[i] < 0) continue;
    t->lpoll[i].data = t;
    if (uv_poll_init(&t->uv, &t->lpoll[i], t->lfd[i])) continue;
    uv_poll_start(&t->lpoll[i], UV_READABLE, loop_accept);
    t->lopen++;
  }
}

static void loop_wake(uv_async_t *h) {
  net_thread *t = h->data;
  pthread_mutex_lock(&t->mu);
  tm_conn *list = t->attend;
  bool stop = t->stop, listen_now = t->listen;
  t->attend = NULL;
  t->listen = false;
  pthread_mutex_unlock(&t->mu);
  for (tm_conn *next; list; list = next) {
    next = list->attend;
    list->attend = NULL;
    loop_attend_one(t, list);
    tm_conn_unref(list);
  }
  if (listen_now) loop_start_listener(t);
  if (stop) loop_stop(t);
}

static void loop_check(tm_conn *c, int64_t now, bool late) {
  int64_t in = now - atomic_load(&c->last_in), out = now - atomic_load(&c->last_out);
  if (!c->greeted) {
    if (now - c->born < (int64_t)LOOP_GREETS * LOOP_GREET_NS) return;
    tm_conn_fail(c, TM_ETIMEOUT, "no hello came");
    loop_close_conn(c);
    return;
  }
  bool stuck =
      !late && tm_conn_waiting(c) && c->lim.silence_ns > 0 && out > c->lim.silence_ns;
  if (stuck ||
      (c->lim.heartbeat_ns > 0 && c->lim.silence_ns > 0 && in > c->lim.silence_ns)) {
    tm_conn_fail(c, TM_ETIMEOUT,
                 stuck ? "it takes no bytes (it hangs, or the network does)"
                       : "silent for too long (it hangs, or the network does)");
    loop_close_conn(c);
    return;
  }
  if (c->lim.heartbeat_ns > 0 && out > c->lim.heartbeat_ns) {
    tm_frame f = {.kind = TM_F_PING};
    tm_conn_send(c, &f, NULL, NULL, 0, NULL, NULL); /* a failure closes it anyway */
  }
}

static void loop_tick(uv_timer_t *h) {
  net_thread *t = h->data;
  int64_t now = tm_now_ns();
  /* A late tick: this thread was busy, or the process stopped, and what came meanwhile
   * is not read yet.  Nobody is blamed for that silence. */
  bool late = now - t->ticked > LOOP_LATE_NS;
  t->ticked = now;
  for (tm_conn *c = t->conns, *next; c; c = next) {
    next = c->next;
    if (late || atomic_load(&c->excused) || atomic_load(&c->held))
      atomic_store(&c->last_in, now);
    loop_check(c, now, late);
  }
}

void tm_conn_attend(tm_conn *c) {
  net_thread *t = c->thread;
  pthread_mutex_lock(&c->mu);
  bool already = c->attending || c->fd < 0;
  c->attending = true;
  pthread_mutex_unlock(&c->mu);
  if (already) return;
  tm_conn_ref(c);
  pthread_mutex_lock(&t->mu);
  c->attend = t->attend;
  t->attend = c;
  /* Under mu: the thread's end closes the wake-up after it saw stop under mu. */
  if (!t->stop) uv_async_send(&t->wake);
  pthread_mutex_unlock(&t->mu);
}

/* --- accepting --- */

static net_thread *loop_pick(tm_netloop *l) {
  return &l->t[atomic_fetch_add(&l->turn, 1) % (unsigned)l->n];
}

static void loop_accepted(tm_netloop *l, int fd, bool is_unix) {
  tm_conn *c = NULL;
  int most = l->opt.max_conns > 0 ? l->opt.max_conns : TM_NET_MAX_CONNS;
  if (atomic_load(&l->conns) >= most || tm_addr_prepare(fd, is_unix) ||
      tm_conn_make(fd, &c)) {
    tm_log(TM_LOG_WARN, "%s: a connection was turned away: %d are open",
           l->opt.self.task, atomic_load(&l->conns));
    close(fd);
    return;
  }
  atomic_fetch_add(&l->conns, 1);
  c->server = true;
  c->listen = &l->opt;
  c->ev = l->opt.events;
  c->lim = l->opt.control;
  c->thread = loop_pick(l);
  tm_conn_attend(c);
}

static void loop_accept(uv_poll_t *h, int status, int events) {
  net_thread *t = h->data;
  (void)events;
  if (status < 0) return;
  bool is_unix = h == &t->lpoll[1];
  for (int i = 0; i < 64; i++) {
    int fd = accept(t->lfd[is_unix], NULL, NULL);
    if (fd < 0) return;
    loop_accepted(t->loop, fd, is_unix);
  }
}

tm_status tm_netloop_listen(tm_netloop *l, const tm_listen_options *opt, uint16_t *port,
                            tm_err *err) {
  net_thread *t = &l->t[0];
  TM_TRY(tm_addr_listen(opt->address, &t->lfd[0], &t->lfd[1], port, err));
  l->opt = *opt;
  strncpy(l->address, opt->address, sizeof l->address - 1);
  l->opt.address = l->address;
  pthread_mutex_lock(&t->mu);
  t->listen = true;
  uv_async_send(&t->wake);
  pthread_mutex_unlock(&t->mu);
  return TM_OK;
}

tm_status tm_netloop_adopt(tm_netloop *l, tm_channel *ch, const tm_conn_limits *limits,
                           const tm_conn_events *events, void *user, tm_conn **out,
                           tm_err *err) {
  tm_conn *c;
  *out = NULL;
  if (tm_conn_make(-1, &c)) {
    tm_channel_close(ch);
    return tm_nomem(err, "a connection");
  }
  c->peer = *tm_channel_peer(ch);
  if (tm_channel_detach(ch, &c->in, &c->fd)) {
    tm_conn_unref(c);
    return tm_nomem(err, "a connection");
  }
  c->greeted = true;
  c->ev = *events;
  c->lim = *limits;
  c->thread = loop_pick(l);
  atomic_store(&c->user, user);
  atomic_fetch_add(&l->conns, 1);
  *out = tm_conn_ref(c);
  tm_conn_attend(c);
  return TM_OK;
}

/* --- threads --- */

static void *loop_run(void *ud) {
  net_thread *t = ud;
  uv_run(&t->uv, UV_RUN_DEFAULT);
  return NULL;
}

static bool loop_start(tm_netloop *l, net_thread *t) {
  t->loop = l;
  t->ticked = tm_now_ns();
  t->lfd[0] = t->lfd[1] = -1;
  if (uv_loop_init(&t->uv)) return false;
  t->wake.data = t->tick.data = t;
  pthread_mutex_init(&t->mu, NULL);
  if (uv_async_init(&t->uv, &t->wake, loop_wake) == 0 &&
      uv_timer_init(&t->uv, &t->tick) == 0 &&
      uv_timer_start(&t->tick, loop_tick, LOOP_TICK_MS, LOOP_TICK_MS) == 0 &&
      pthread_create(&t->id, NULL, loop_run, t) == 0) {
    t->started = true;
    return true;
  }
  uv_close((uv_handle_t *)&t->wake, NULL);
  uv_close((uv_handle_t *)&t->tick, NULL);
  uv_run(&t->uv, UV_RUN_DEFAULT);
  uv_loop_close(&t->uv);
  pthread_mutex_destroy(&t->mu);
  return false;
}

static size_t loop_size(int n) {
  return sizeof(tm_netloop) + (size_t)n * sizeof(net_thread);
}

tm_status tm_netloop_new(int threads, tm_netloop **out) {
  *out = NULL;
  TM_DCHECK(threads > 0 && threads <= 64);
  tm_netloop *l = tm_calloc(1, loop_size(threads));
  if (!l) return TM_ENOMEM;
  l->n = threads;
  for (int i = 0; i < threads; i++)
    if (!loop_start(l, &l->t[i])) {
      tm_netloop_free(l);
      return TM_ENOMEM;
    }
  *out = l;
  return TM_OK;
}

/* What was to begin when the loops ended never began. */
static void loop_forget(net_thread *t) {
  for (tm_conn *c = t->attend, *next; c; c = next) {
    next = c->attend;
    if (!c->begun && !c->closing) {
      tm_conn_drop(c);
      if (c->ev.closed && c->greeted) c->ev.closed(c->ev.ud, c, &c->why);
      tm_conn_unref(c); /* the loop's */
    }
    tm_conn_unref(c);
  }
  t->attend = NULL;
}

void tm_netloop_free(tm_netloop *l) {
  if (!l) return;
  for (int i = 0; i < l->n; i++) {
    net_thread *t = &l->t[i];
    if (!t->started) continue;
    pthread_mutex_lock(&t->mu);
    uv_async_send(&t->wake);
    t->stop = true;
    pthread_mutex_unlock(&t->mu);
  }
  for (int i = 0; i < l->n; i++) {
    net_thread *t = &l->t[i];
    if (!t->started) continue;
    pthread_join(t->id, NULL);
  }
  for (int i = 0; i < l->n; i++) {
    net_thread *t = &l->t[i];
    if (!t->started) continue;
    loop_forget(t);
    uv_loop_close(&t->uv);
    pthread_mutex_destroy(&t->mu);
  }
  tm_free(l, loop_size(l->n));
}
