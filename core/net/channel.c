#include "net/channel.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "net/addr.h"

/*
 * Design.  Everything that comes goes through `in`, except the rest of a payload piece
 * that is larger than what `in` holds: that is read straight to its place.  A small
 * answer thus costs one system call.
 *
 * Invariants:
 *   (1) in[at..have) are bytes received and not yet used.
 *   (2) `left` bytes of the current frame's payload are not yet taken; `pos` were.
 *   (3) Once broken, every call fails.
 */
enum { CHANNEL_IN = 64 << 10, CHANNEL_IOV = 64 };
#define CHANNEL_MAX_PAYLOAD ((uint64_t)1 << 40)
#define CHANNEL_SPIN_NS     20000

struct tm_channel {
  int fd;
  bool is_unix, broken;
  bool cut; /* broken by the network or the peer's end */
  int64_t silence, spin;
  uint64_t max_payload;
  tm_cancel *cancel, *lost;
  tm_hello peer;
  char address[280], task[48];
  tm_buf meta; /* of the current frame */
  uint64_t left, pos;
  size_t at, have;
  uint8_t in[CHANNEL_IN];
};

const tm_hello *tm_channel_peer(const tm_channel *ch) { return &ch->peer; }
bool tm_channel_is_unix(const tm_channel *ch) { return ch->is_unix; }
bool tm_channel_broken(const tm_channel *ch) { return ch->broken; }
bool tm_channel_cut(const tm_channel *ch) { return ch->cut; }
void tm_channel_set_silence(tm_channel *ch, int64_t ns) { ch->silence = ns; }

static const char *channel_name(const tm_channel *ch) {
  if (ch->peer.task[0]) return ch->peer.task;
  return ch->task[0] ? ch->task : ch->address;
}

static tm_status channel_lost(tm_channel *ch, const char *why, tm_err *err) {
  ch->broken = true;
  tm_status s =
      tm_fail(err, TM_EUNAVAILABLE, "%s (%s): %s", channel_name(ch), ch->address, why);
  const char *task = ch->peer.task[0] ? ch->peer.task : ch->task;
  if (err && task[0]) memcpy(err->task, task, sizeof err->task);
  return s;
}

/* The connection ended; the peer may live. */
static tm_status channel_cut(tm_channel *ch, const char *why, tm_err *err) {
  if (!ch->broken) ch->cut = true;
  return channel_lost(ch, why, err);
}

static tm_status channel_bad(tm_channel *ch, tm_status s, tm_err *err) {
  ch->broken = true;
  return tm_err_prefix(err, s, "%s (%s)", channel_name(ch), ch->address);
}

/* --- waiting --- */

static tm_status channel_sleep(tm_channel *ch, short events, int64_t deadline,
                               tm_err *err) {
  for (;;) {
    if (tm_cancelled(ch->cancel)) {
      ch->broken = true;
      return tm_fail(err, TM_ECANCELLED, "the wait for %s was cancelled",
                     channel_name(ch));
    }
    if (tm_cancelled(ch->lost)) return channel_lost(ch, "the task is lost", err);
    /* With a flag look at it now and then. */
    int64_t ms = ch->cancel || ch->lost ? 50 : 1000;
    if (ch->silence > 0) {
      int64_t left = deadline - tm_now_ns();
      if (left <= 0)
        return channel_lost(ch, "silent for too long (it hangs, or the network does)",
                            err);
      if (left / 1000000 + 1 < ms) ms = left / 1000000 + 1;
    }
    struct pollfd p = {.fd = ch->fd, .events = events};
    int n = poll(&p, 1, (int)ms);
    if (n > 0) return TM_OK;
    if (n < 0 && errno != EINTR) return channel_cut(ch, strerror(errno), err);
  }
}

/* recvmsg/sendmsg once, waiting until it moves at least one byte. */
static tm_status channel_move(tm_channel *ch, bool out, struct iovec *io, size_t n,
                              size_t *moved, tm_err *err) {
  struct msghdr m = {.msg_iov = io, .msg_iovlen = n};
  int64_t start = 0;
  if (ch->broken) return channel_lost(ch, "the connection is broken", err);
  for (;;) {
    ssize_t k = out ? sendmsg(ch->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT)
                    : recvmsg(ch->fd, &m, MSG_DONTWAIT);
    if (k > 0) {
      *moved = (size_t)k;
      return TM_OK;
    }
    if (k == 0 && !out) return channel_cut(ch, "the connection was closed", err);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK)
      return channel_cut(ch, strerror(errno), err);
    int64_t now = tm_now_ns();
    if (start == 0) start = now;
    if (now - start < ch->spin)
      sched_yield();
    else
      TM_TRY(channel_sleep(ch, out ? POLLOUT : POLLIN, start + ch->silence, err));
  }
}

/* --- sending --- */

typedef struct channel_out {
  struct iovec io[CHANNEL_IOV];
  size_t n;
} channel_out;

static tm_status channel_flush(tm_channel *ch, channel_out *o, tm_err *err) {
  size_t at = 0;
  while (at < o->n) {
    size_t k = 0;
    TM_TRY(channel_move(ch, true, o->io + at, o->n - at, &k, err));
    for (; at < o->n && k >= o->io[at].iov_len; at++) k -= o->io[at].iov_len;
    if (at == o->n) break;
    o->io[at].iov_base = (char *)o->io[at].iov_base + k;
    o->io[at].iov_len -= k;
  }
  o->n = 0;
  return TM_OK;
}

static tm_status channel_put(tm_channel *ch, channel_out *o, const void *p, size_t n,
                             tm_err *err) {
  if (n == 0) return TM_OK;
  if (o->n == CHANNEL_IOV) TM_TRY(channel_flush(ch, o, err));
  o->io[o->n].iov_base = (void *)(uintptr_t)p;
  o->io[o->n++].iov_len = n;
  return TM_OK;
}

tm_status tm_channel_send(tm_channel *ch, tm_frame *f, const tm_buf *meta,
                          const tm_segment *seg, int32_t nseg, tm_err *err) {
  static const uint8_t zeros[TM_FRAME_ALIGN];
  uint8_t head[TM_FRAME_HEAD];
  channel_out o;
  o.n = 0;
  f->meta_bytes = meta ? (uint32_t)meta->len : 0;
  f->payload_bytes = 0;
  for (int32_t i = 0; i < nseg; i++) f->payload_bytes += tm_frame_pad(seg[i].n);
  tm_frame_pack(f, head);
  TM_TRY(channel_put(ch, &o, head, sizeof head, err));
  if (meta) TM_TRY(channel_put(ch, &o, meta->data, meta->len, err));
  for (int32_t i = 0; i < nseg; i++) {
    TM_TRY(channel_put(ch, &o, seg[i].p, (size_t)seg[i].n, err));
    TM_TRY(
        channel_put(ch, &o, zeros, (size_t)(tm_frame_pad(seg[i].n) - seg[i].n), err));
  }
  return channel_flush(ch, &o, err);
}

/* --- receiving --- */

/* Wait for more bytes in `in`. */
static tm_status channel_fill(tm_channel *ch, tm_err *err) {
  if (ch->at == ch->have) ch->at = ch->have = 0;
  if (ch->have == CHANNEL_IN) {
    memmove(ch->in, ch->in + ch->at, ch->have - ch->at);
    ch->have -= ch->at;
    ch->at = 0;
  }
  struct iovec io = {ch->in + ch->have, CHANNEL_IN - ch->have};
  size_t k = 0;
  TM_TRY(channel_move(ch, false, &io, 1, &k, err));
  ch->have += k;
  return TM_OK;
}

static size_t channel_buffered(tm_channel *ch, void *dst, size_t n) {
  size_t k = ch->have - ch->at < n ? ch->have - ch->at : n;
  if (dst && k) memcpy(dst, ch->in + ch->at, k);
  ch->at += k;
  return k;
}

/* Exactly n bytes to dst (NULL: nowhere). */
static tm_status channel_read(tm_channel *ch, void *dst, size_t n, tm_err *err) {
  while (n > 0) {
    size_t k = channel_buffered(ch, dst, n);
    if (k == 0 && dst && n >= CHANNEL_IN / 4) {
      /* Straight to its place, and what follows it into `in`. */
      struct iovec io[2] = {{dst, n}, {ch->in, CHANNEL_IN}};
      TM_TRY(channel_move(ch, false, io, 2, &k, err));
      ch->at = 0;
      ch->have = k > n ? k - n : 0;
      if (k > n) k = n;
    } else if (k == 0) {
      TM_TRY(channel_fill(ch, err));
    }
    n -= k;
    if (dst) dst = (char *)dst + k;
  }
  return TM_OK;
}

static tm_status channel_meta(tm_channel *ch, size_t n, tm_err *err) {
  enum { STEP = 1 << 20 }; /* memory follows the bytes that came, not the claim */
  tm_buf_clear(&ch->meta);
  while (n > 0) {
    size_t k = n < STEP ? n : STEP;
    void *p;
    if (tm_buf_grow(&ch->meta, k, &p)) {
      ch->broken = true;
      return tm_nomem(err, "a frame's metadata");
    }
    TM_TRY(channel_read(ch, p, k, err));
    n -= k;
  }
  return TM_OK;
}

tm_status tm_channel_head(tm_channel *ch, tm_frame *f, const uint8_t **meta,
                          tm_err *err) {
  uint8_t head[TM_FRAME_HEAD];
  TM_DCHECK(ch->left == 0);
  do {
    TM_TRY(channel_read(ch, head, sizeof head, err));
    tm_status s = tm_frame_unpack(head, ch->max_payload, f, err);
    if (s) return channel_bad(ch, s, err);
    TM_TRY(channel_meta(ch, f->meta_bytes, err));
    ch->left = f->payload_bytes;
    ch->pos = 0;
    if (f->kind == TM_F_PING) TM_TRY(tm_channel_end(ch, err));
  } while (f->kind == TM_F_PING);
  *meta = ch->meta.data;
  return TM_OK;
}

tm_status tm_channel_piece(tm_channel *ch, void *dst, uint64_t n, tm_err *err) {
  if (n > ch->left)
    return channel_bad(
        ch, tm_fail(err, TM_EDATALOSS, "a frame's payload is shorter than it says"),
        err);
  ch->left -= n;
  ch->pos += n;
  return channel_read(ch, dst, (size_t)n, err);
}

tm_status tm_channel_take(tm_channel *ch, void *dst, uint64_t n, tm_err *err) {
  TM_TRY(tm_channel_piece(ch, dst, n, err));
  uint64_t pad = tm_frame_pad(ch->pos) - ch->pos;
  return tm_channel_piece(ch, NULL, pad < ch->left ? pad : ch->left, err);
}

tm_status tm_channel_end(tm_channel *ch, tm_err *err) {
  return tm_channel_piece(ch, NULL, ch->left, err);
}

/* --- opening --- */

static tm_status channel_refused(tm_channel *ch, const uint8_t *meta, size_t n,
                                 tm_err *err) {
  tm_unpacker r;
  tm_err from;
  tm_unpack_init(&r, meta, n);
  tm_err_unpack(&r, &from);
  TM_TRY(tm_unpack_end(&r, err));
  tm_fail(err, from.code, "%s", from.msg);
  if (err && !err->task[0]) memcpy(err->task, from.task, sizeof err->task);
  return channel_bad(ch, from.code, err);
}

static tm_status channel_greet(tm_channel *ch, const tm_channel_options *opt,
                               tm_err *err) {
  tm_buf b = TM_BUF_INIT(TM_HELLO_MAX);
  tm_packer w;
  tm_frame f = {.kind = TM_F_HELLO};
  const uint8_t *meta;
  tm_pack_init(&w, &b);
  tm_hello_pack(&w, &opt->self);
  tm_status s = w.status;
  if (s == TM_OK) s = tm_channel_send(ch, &f, &b, NULL, 0, err);
  tm_buf_release(&b);
  TM_TRY(s);
  TM_TRY(tm_channel_head(ch, &f, &meta, err));
  if (f.kind == TM_F_ERROR) return channel_refused(ch, meta, f.meta_bytes, err);
  if (f.kind != TM_F_HELLO_OK)
    return channel_lost(ch, "it does not answer a hello", err);
  TM_TRY(tm_hello_unpack(meta, f.meta_bytes, &ch->peer, err));
  if (opt->expect_task && strcmp(opt->expect_task, ch->peer.task) != 0)
    return tm_fail(err, TM_EINVAL,
                   "at %s is %s, not %s: the cluster is described wrongly", ch->address,
                   ch->peer.task, opt->expect_task);
  return tm_channel_end(ch, err);
}

static tm_status channel_open(const tm_channel_options *opt, tm_channel **out,
                              tm_err *err) {
  *out = NULL;
  tm_channel *ch = tm_calloc(1, sizeof *ch);
  if (!ch) return tm_nomem(err, "a connection");
  int64_t timeout = opt->connect_timeout_ns > 0 ? opt->connect_timeout_ns : 10000000000;
  ch->fd = -1;
  ch->meta.max = TM_FRAME_MAX_META;
  ch->max_payload = opt->max_payload ? opt->max_payload : CHANNEL_MAX_PAYLOAD;
  ch->cancel = opt->cancel;
  ch->lost = opt->lost;
  ch->spin = opt->spin_ns;
  if (ch->spin < 0) ch->spin = sysconf(_SC_NPROCESSORS_ONLN) > 1 ? CHANNEL_SPIN_NS : 0;
  strncpy(ch->address, opt->address, sizeof ch->address - 1);
  if (opt->expect_task) strncpy(ch->task, opt->expect_task, sizeof ch->task - 1);
  tm_status s = tm_addr_connect(opt->address, !opt->no_unix, timeout, opt->cancel,
                                &ch->fd, &ch->is_unix, err);
  ch->silence = timeout;
  if (s == TM_OK) s = channel_greet(ch, opt, err);
  ch->silence = opt->silence_ns;
  if (s && err && !err->task[0]) memcpy(err->task, ch->task, sizeof err->task);
  if (opt->cut) *opt->cut = ch->cut;
  if (s == TM_OK)
    *out = ch;
  else
    tm_channel_close(ch);
  return s;
}

tm_status tm_channel_open(const tm_channel_options *opt, tm_channel **out,
                          tm_err *err) {
  int64_t timeout = opt->connect_timeout_ns > 0 ? opt->connect_timeout_ns : 10000000000;
  int64_t end = tm_now_ns() + timeout, pause = 2000000;
  tm_status s;
  do {
    if (err) tm_err_clear(err);
    s = channel_open(opt, out, err);
    if (s != TM_EUNAVAILABLE || !opt->retry || tm_cancelled(opt->cancel)) return s;
    tm_sleep_ns(pause);
    pause = pause < 200000000 ? pause * 2 : pause;
  } while (tm_now_ns() < end);
  return s;
}

void tm_channel_close(tm_channel *ch) {
  if (!ch) return;
  if (ch->fd >= 0) close(ch->fd);
  tm_buf_release(&ch->meta);
  tm_free(ch, sizeof *ch);
}

tm_status tm_channel_detach(tm_channel *ch, tm_buf *rest, int *fd) {
  TM_DCHECK(ch->left == 0 && !ch->broken);
  tm_status s = tm_buf_put(rest, ch->in + ch->at, ch->have - ch->at);
  *fd = -1;
  if (s == TM_OK) {
    *fd = ch->fd;
    ch->fd = -1;
  }
  tm_channel_close(ch);
  return s;
}
