#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/conn_impl.h"
#include "net/loop.h"

/*
 * Design.  Bytes come into `in` until a head and its metadata are there; a payload gets
 * memory of its own (address space first: pages come with the bytes) and is read
 * straight into it.  Frames go out in order from a list.
 *
 * Invariants:
 *   (1) in.data[in_at..len) are bytes received and not yet used.
 *   (2) pay != NULL: f is its frame, meta a copy of its metadata, pay_at < its size.
 *   (3) out_bytes is the sum of what the frames of `out` still have to write.
 *   (4) After want_close nothing is added to out.
 */
enum { CONN_FULL = 4 << 20, CONN_IOV = 256, CONN_ROUNDS = 64, CONN_KEEP = 1 << 20 };

tm_status tm_conn_make(int fd, tm_conn **out) {
  *out = NULL;
  tm_conn *c = tm_calloc(1, sizeof *c);
  if (!c) return TM_ENOMEM;
  atomic_init(&c->refs, 1);
  pthread_mutex_init(&c->mu, NULL);
  tm_err_clear(&c->why);
  c->fd = fd;
  c->in.max = TM_FRAME_HEAD + TM_FRAME_MAX_META + TM_CONN_READ;
  c->born = tm_now_ns();
  atomic_init(&c->last_in, c->born);
  atomic_init(&c->last_out, c->born);
  atomic_init(&c->excused, false);
  atomic_init(&c->held, false);
  *out = c;
  return TM_OK;
}

void tm_conn_excuse(tm_conn *c, bool on) {
  atomic_store(&c->last_in, tm_now_ns());
  atomic_store(&c->excused, on);
}

void tm_conn_hold(tm_conn *c, bool on) {
  if (!on) atomic_store(&c->last_in, tm_now_ns());
  atomic_store(&c->held, on);
  if (!on) tm_conn_attend(c);
}

tm_conn *tm_conn_ref(tm_conn *c) {
  atomic_fetch_add(&c->refs, 1);
  return c;
}

/* Never 0, so that a payload without metadata has a pointer too. */
static size_t conn_meta_size(const tm_frame *f) {
  return f->meta_bytes ? f->meta_bytes : 1;
}

static void conn_free_payload(tm_conn *c) {
  if (!c->pay) return;
  tm_free_aligned(c->pay, c->f.payload_bytes);
  tm_free(c->meta, conn_meta_size(&c->f));
  c->pay = c->meta = NULL;
}

void tm_conn_set_tag(tm_conn *c, void *tag, void (*drop)(void *tag)) {
  if (c->tag && c->drop_tag) c->drop_tag(c->tag);
  c->tag = tag;
  c->drop_tag = drop;
}

void *tm_conn_tag(const tm_conn *c) { return c->tag; }

void tm_conn_unref(tm_conn *c) {
  if (!c || atomic_fetch_sub(&c->refs, 1) != 1) return;
  TM_DCHECK(!c->out);
  tm_conn_set_tag(c, NULL, NULL);
  conn_free_payload(c);
  tm_buf_release(&c->in);
  pthread_mutex_destroy(&c->mu);
  tm_free(c, sizeof *c);
}

const tm_hello *tm_conn_peer(const tm_conn *c) { return &c->peer; }
void tm_conn_set_user(tm_conn *c, void *user) { atomic_store(&c->user, user); }
void *tm_conn_user(const tm_conn *c) {
  return atomic_load(&((tm_conn *)(uintptr_t)c)->user);
}

void tm_conn_set_limits(tm_conn *c, const tm_conn_limits *limits) { c->lim = *limits; }

void tm_conn_fail(tm_conn *c, tm_status s, const char *why) {
  pthread_mutex_lock(&c->mu);
  if (c->why.code == TM_OK) tm_fail(&c->why, s, "%s", why);
  c->want_close = true;
  pthread_mutex_unlock(&c->mu);
}

void tm_conn_cut(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  c->cut = true;
  pthread_mutex_unlock(&c->mu);
  tm_conn_fail(c, TM_EUNAVAILABLE, "the connection was lost");
}

void tm_conn_close(tm_conn *c, tm_status s, const char *why) {
  tm_conn_fail(c, s, why);
  tm_conn_attend(c);
}

/* --- out --- */

static void conn_out_free(conn_out *o) {
  if (o->release) o->release(o->ud);
  tm_free(o, o->size);
}

/* One frame as a list of pieces. */
static conn_out *conn_out_new(const tm_frame *f, const tm_buf *meta,
                              const tm_segment *seg, int32_t nseg, size_t *bytes) {
  static const uint8_t zeros[TM_FRAME_ALIGN];
  size_t nmeta = meta ? meta->len : 0;
  size_t most = 2 + 2 * (size_t)nseg;
  size_t size = sizeof(conn_out) + most * sizeof(struct iovec) + nmeta;
  conn_out *o = tm_malloc(size);
  if (!o) return NULL;
  *o = (conn_out){.size = size};
  tm_frame frame = *f;
  frame.meta_bytes = (uint32_t)nmeta;
  frame.payload_bytes = 0;
  o->io[o->nio++] = (struct iovec){o->head, TM_FRAME_HEAD};
  if (nmeta) {
    void *copy = (char *)o + size - nmeta;
    memcpy(copy, meta->data, nmeta);
    o->io[o->nio++] = (struct iovec){copy, nmeta};
  }
  for (int32_t i = 0; i < nseg; i++) {
    uint64_t pad = tm_frame_pad(seg[i].n) - seg[i].n;
    frame.payload_bytes += seg[i].n + pad;
    if (seg[i].n)
      o->io[o->nio++] = (struct iovec){(void *)(uintptr_t)seg[i].p, (size_t)seg[i].n};
    if (pad) o->io[o->nio++] = (struct iovec){(void *)(uintptr_t)zeros, (size_t)pad};
  }
  tm_frame_pack(&frame, o->head);
  *bytes = (size_t)(TM_FRAME_HEAD + nmeta + frame.payload_bytes);
  return o;
}

/* Note that k bytes of the first frames are written; frames that are through are
 * unlinked and given back to the caller, who frees them without the lock. */
static conn_out *conn_written(tm_conn *c, size_t k) {
  conn_out *through = NULL, **tail = &through;
  c->out_bytes -= k;
  while (c->out) {
    conn_out *o = c->out;
    for (; o->at < o->nio && k >= o->io[o->at].iov_len; o->at++)
      k -= o->io[o->at].iov_len;
    if (o->at < o->nio) {
      o->io[o->at].iov_base = (char *)o->io[o->at].iov_base + k;
      o->io[o->at].iov_len -= k;
      break;
    }
    c->out = o->next;
    if (!c->out) c->out_last = NULL;
    o->next = NULL;
    *tail = o;
    tail = &o->next;
  }
  return through;
}

static void conn_free_list(conn_out *o) {
  for (conn_out *next; o; o = next) {
    next = o->next;
    conn_out_free(o);
  }
}

/* One sendmsg under mu.  1: wrote, 0: no room, -1: broken. */
static int conn_write_once(tm_conn *c, conn_out **through) {
  struct iovec io[CONN_IOV];
  size_t n = 0;
  for (conn_out *o = c->out; o && n < CONN_IOV; o = o->next)
    for (size_t i = o->at; i < o->nio && n < CONN_IOV; i++) io[n++] = o->io[i];
  struct msghdr m = {.msg_iov = io, .msg_iovlen = n};
  ssize_t k = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (k < 0)
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : errno == EINTR ? 1 : -1;
  atomic_store_explicit(&c->last_out, tm_now_ns(), memory_order_relaxed);
  *through = conn_written(c, (size_t)k);
  return 1;
}

bool tm_conn_flush(tm_conn *c) {
  int r = 1;
  while (r > 0) {
    conn_out *through = NULL;
    pthread_mutex_lock(&c->mu);
    r = c->out && c->fd >= 0 ? conn_write_once(c, &through) : 0;
    pthread_mutex_unlock(&c->mu);
    conn_free_list(through);
  }
  if (r < 0) tm_conn_cut(c);
  return r == 0;
}

bool tm_conn_waiting(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  bool waiting = c->out != NULL;
  pthread_mutex_unlock(&c->mu);
  return waiting;
}

bool tm_conn_full(tm_conn *c) {
  if (atomic_load_explicit(&c->held, memory_order_acquire)) return true;
  pthread_mutex_lock(&c->mu);
  bool full = c->out_bytes > CONN_FULL;
  pthread_mutex_unlock(&c->mu);
  return full;
}

tm_status tm_conn_send(tm_conn *c, const tm_frame *f, const tm_buf *meta,
                       const tm_segment *seg, int32_t nseg, void (*release)(void *ud),
                       void *ud) {
  size_t bytes = 0;
  conn_out *o = conn_out_new(f, meta, seg, nseg, &bytes);
  if (!o) {
    if (release) release(ud);
    return TM_ENOMEM;
  }
  o->release = release;
  o->ud = ud;
  pthread_mutex_lock(&c->mu);
  bool gone = c->want_close || c->fd < 0, first = !c->out;
  if (!gone) {
    if (c->out_last)
      c->out_last->next = o;
    else
      c->out = o;
    c->out_last = o;
    c->out_bytes += bytes;
  }
  pthread_mutex_unlock(&c->mu);
  if (gone) {
    conn_out_free(o);
    return TM_EUNAVAILABLE;
  }
  /* When others wait already the loop is watching for room. */
  if (first && (!tm_conn_flush(c) || tm_conn_waiting(c))) tm_conn_attend(c);
  return TM_OK;
}

tm_status tm_conn_send_error(tm_conn *c, uint64_t id, const tm_err *e) {
  tm_buf b = TM_BUF_INIT(TM_HELLO_MAX);
  tm_packer w;
  tm_frame f = {.kind = TM_F_ERROR, .id = id};
  tm_pack_init(&w, &b);
  tm_err_pack(&w, e);
  tm_status s = w.status ? w.status : tm_conn_send(c, &f, &b, NULL, 0, NULL, NULL);
  tm_buf_release(&b);
  return s;
}

void tm_conn_drop(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  conn_out *o = c->out;
  int fd = c->fd;
  c->out = c->out_last = NULL;
  c->out_bytes = 0;
  c->fd = -1;
  c->want_close = true;
  pthread_mutex_unlock(&c->mu);
  if (fd >= 0) close(fd);
  conn_free_list(o);
}

/* --- in --- */

static bool conn_fail(tm_conn *c, const tm_err *e) {
  tm_conn_fail(c, e->code, e->msg);
  return false;
}

static tm_status conn_check_hello(tm_conn *c, const tm_hello *peer, tm_err *err) {
  const tm_hello *self = &c->listen->self;
  if (strcmp(peer->cluster, self->cluster) != 0)
    return tm_fail(
        err, TM_EPERM,
        "%s is of cluster \"%s\", %s of cluster \"%s\": start all tasks with "
        "the same cluster description, or cluster_id",
        self->task, self->cluster, peer->task, peer->cluster);
  if (strcmp(peer->purpose, "data") != 0 && strcmp(peer->purpose, "control") != 0)
    return tm_fail(err, TM_EINVAL, "a hello for purpose \"%s\"", peer->purpose);
  return c->ev.hello ? c->ev.hello(c->ev.ud, c, peer, err) : TM_OK;
}

static tm_status conn_answer_hello(tm_conn *c, uint64_t id) {
  tm_buf b = TM_BUF_INIT(TM_HELLO_MAX);
  tm_packer w;
  tm_frame f = {.kind = TM_F_HELLO_OK, .id = id};
  tm_pack_init(&w, &b);
  tm_hello_pack(&w, &c->listen->self);
  tm_status s = w.status ? w.status : tm_conn_send(c, &f, &b, NULL, 0, NULL, NULL);
  tm_buf_release(&b);
  return s;
}

static bool conn_hello(tm_conn *c, const tm_frame *f, const uint8_t *meta) {
  tm_err err;
  tm_hello peer;
  tm_err_clear(&err);
  tm_status s = TM_OK;
  if (f->kind != TM_F_HELLO || f->payload_bytes || f->meta_bytes > TM_HELLO_MAX)
    s = tm_fail(&err, TM_EINVAL, "the first frame of a connection is not a hello");
  if (s == TM_OK) s = tm_hello_unpack(meta, f->meta_bytes, &peer, &err);
  if (s == TM_OK) {
    bool data = strcmp(peer.purpose, "data") == 0;
    c->lim = data ? c->listen->data : c->listen->control;
    c->peer = peer;
    s = conn_check_hello(c, &peer, &err);
  }
  if (s == TM_OK) s = conn_answer_hello(c, f->id);
  if (s == TM_OK) {
    c->greeted = true;
    return true;
  }
  err.code = s;
  tm_conn_send_error(c, f->id, &err);
  return conn_fail(c, &err);
}

static bool conn_deliver(tm_conn *c, const tm_frame *f, const uint8_t *meta) {
  if (!c->greeted) return conn_hello(c, f, meta);
  if (f->kind != TM_F_PING) {
    tm_message m = {*f, meta, c->pay};
    uint8_t *pay = c->pay, *copy = c->meta;
    size_t size = conn_meta_size(f);
    c->pay = c->meta = NULL;
    c->ev.message(c->ev.ud, c, &m);
    if (pay && m.payload) tm_free_aligned(pay, f->payload_bytes);
    if (pay) tm_free(copy, size);
  }
  conn_free_payload(c);
  return true;
}

/* A head and its metadata are there: begin its payload. */
static bool conn_begin_payload(tm_conn *c, const tm_frame *f, const uint8_t *meta,
                               size_t *at) {
  if (!c->greeted) return conn_hello(c, f, meta); /* refuses */
  uint8_t *pay = tm_malloc_aligned((size_t)f->payload_bytes);
  uint8_t *copy = tm_malloc(conn_meta_size(f));
  if (!pay || !copy) {
    tm_free_aligned(pay, (size_t)f->payload_bytes);
    tm_free(copy, conn_meta_size(f));
    tm_conn_fail(c, TM_ENOMEM, "no memory for a frame's payload");
    return false;
  }
  if (f->meta_bytes) memcpy(copy, meta, f->meta_bytes);
  size_t n = c->in.len - *at;
  if (n > f->payload_bytes) n = (size_t)f->payload_bytes;
  memcpy(pay, c->in.data + *at, n);
  *at += n;
  c->f = *f;
  c->pay = pay;
  c->meta = copy;
  c->pay_at = n;
  return n < f->payload_bytes || conn_deliver(c, &c->f, c->meta);
}

/* Use one frame of `in`.  *more: there was one. */
static bool conn_parse_one(tm_conn *c, bool *more) {
  tm_frame f;
  tm_err err = {0};
  size_t n = c->in.len - c->in_at;
  *more = false;
  if (c->pay || n < TM_FRAME_HEAD) return true;
  const uint8_t *p = c->in.data + c->in_at;
  uint64_t most = c->greeted ? c->lim.max_payload : 0;
  if (tm_frame_unpack(p, most, &f, &err)) return conn_fail(c, &err);
  if (!c->greeted && f.meta_bytes > TM_HELLO_MAX) f.meta_bytes = 0; /* refused */
  if (n < TM_FRAME_HEAD + (size_t)f.meta_bytes) return true;
  size_t at = c->in_at + TM_FRAME_HEAD + f.meta_bytes;
  *more = true;
  bool ok = f.payload_bytes ? conn_begin_payload(c, &f, p + TM_FRAME_HEAD, &at)
                            : conn_deliver(c, &f, p + TM_FRAME_HEAD);
  c->in_at = at;
  return ok;
}

static bool conn_stopped(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  bool stopped = c->want_close && !c->cut;
  pthread_mutex_unlock(&c->mu);
  return stopped;
}

/* Use what came; stops early where much waits to go out. */
static bool conn_parse(tm_conn *c) {
  bool more = true;
  while (more && !tm_conn_full(c)) {
    if (!conn_parse_one(c, &more) || conn_stopped(c)) return false;
  }
  if (c->in_at == c->in.len) {
    tm_buf_clear(&c->in);
    c->in_at = 0;
    if (c->in.cap > CONN_KEEP) tm_buf_release(&c->in);
  }
  return true;
}

/* Where the next bytes go. */
static bool conn_room(tm_conn *c, void **p, size_t *n) {
  if (c->pay) {
    *p = c->pay + c->pay_at;
    *n = (size_t)(c->f.payload_bytes - c->pay_at);
    return true;
  }
  if (c->in_at > 0 && c->in.cap - c->in.len < TM_CONN_READ / 2) {
    memmove(c->in.data, c->in.data + c->in_at, c->in.len - c->in_at);
    c->in.len -= c->in_at;
    c->in_at = 0;
  }
  if (c->in.cap - c->in.len < TM_CONN_READ / 2 &&
      tm_buf_reserve(&c->in, TM_CONN_READ)) {
    tm_conn_fail(c, TM_ENOMEM, "no memory for a connection's buffer");
    return false;
  }
  *p = c->in.data + c->in.len;
  *n = c->in.cap - c->in.len;
  return true;
}

static bool conn_received(tm_conn *c, size_t n) {
  if (!c->pay) {
    c->in.len += n;
    return conn_parse(c);
  }
  c->pay_at += n;
  if (c->pay_at < c->f.payload_bytes) return true;
  return conn_deliver(c, &c->f, c->meta) && conn_parse(c);
}

bool tm_conn_readable(tm_conn *c) {
  if (!conn_parse(c)) return false; /* what was left when it was full */
  for (int round = 0; round < CONN_ROUNDS && !tm_conn_full(c); round++) {
    void *p;
    size_t n;
    if (!conn_room(c, &p, &n)) return false;
    ssize_t k = recv(c->fd, p, n, MSG_DONTWAIT);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (k <= 0) {
      tm_conn_fail(c, TM_EUNAVAILABLE,
                   k == 0 ? "the connection was closed" : strerror(errno));
      return false;
    }
    atomic_store_explicit(&c->last_in, tm_now_ns(), memory_order_relaxed);
    if (!conn_received(c, (size_t)k)) return false;
    if ((size_t)k < n && !c->pay) return true;
  }
  return true;
}

void tm_conn_last_words(tm_conn *c) {
  pthread_mutex_lock(&c->mu);
  bool cut = c->cut;
  pthread_mutex_unlock(&c->mu);
  if (cut && c->greeted) (void)tm_conn_readable(c);
}
