#include "cluster/ps_remote.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/mem.h"
#include "cluster/ps_load.h"
#include "cluster/ps_wire.h"
#include "cluster/save_wire.h"

/*
 * Design.  One request is outstanding; its answer is taken by wait, straight into the
 * places that the request names.  Scratch (metadata, segments) is kept between
 * requests, so a step allocates nothing here.
 *
 * When the connection is cut, whoever waits connects again and sends the same bytes
 * again: a ps that has applied them ignores the UPDATEs (their token says so) and
 * answers the READs.  Making, dropping, refusing and counting may be said twice.
 *
 * Where a lane has a copy on another ps both are tried in turn: only the one that is
 * the primary at that time serves it.  Then silence is a reason to look elsewhere too.
 *
 * Invariants:
 *   (1) From begin to the end of wait meta, seg and what the segments point at stay.
 *   (2) Every UPDATE has a token: without one of a closure it is numbered here, and the
 *       ps remembers the last number of each client.
 *   (3) All connections of a client are to one run of its lane: to what it held before.
 *   (4) A cancelled wait and a ps known to be lost end a request at once, silence too
 *       where there is no copy; a cut does so after the time that silence may take, or
 *       sooner when nobody is there.
 */
enum { REMOTE_META = 16 << 20, REMOTE_PLACES = 2 };
#define REMOTE_SLOW_NS  600000000000 /* making a large shard may take long */
#define REMOTE_TRY_NS   1000000000   /* one try to connect */
#define REMOTE_AGAIN_NS 10000000000  /* how long to try where silence has no end */

typedef struct remote_place {
  char address[280], task[48];
  tm_cancel *lost;
} remote_place;

typedef struct remote_client {
  tm_ps_client c; /* first */
  tm_channel *ch; /* NULL: cut, and not yet connected again */
  tm_buf meta;
  tm_segments seg;
  uint64_t id, number, self; /* of requests, of UPDATEs without a closure; whose */
  uint64_t run;              /* of the lane; 0: not yet known */
  int64_t silence;
  int32_t lane;
  uint16_t kind; /* of the outstanding request */
  bool told;     /* its answer was an error of the ps */
  bool anew;     /* the lane began anew: no use in trying */
  tm_channel_options opt;
  tm_cancel *gone;
  int nplace, at;
  remote_place place[REMOTE_PLACES];
} remote_client;

/* --- connecting --- */

static void remote_disconnect(remote_client *r) {
  tm_channel_close(r->ch);
  r->ch = NULL;
}

static tm_status remote_started_anew(remote_client *r, tm_err *err) {
  r->anew = true;
  if (err) memcpy(err->task, r->c.task, sizeof err->task);
  return tm_fail(err, TM_EUNAVAILABLE, "%s (%s) was started anew: what it held is gone",
                 r->c.task, r->place[r->at].address);
}

static tm_status remote_take_error(remote_client *r, const tm_frame *f,
                                   const uint8_t *meta, tm_err *err) {
  tm_unpacker u;
  tm_err theirs;
  r->told = true;
  tm_unpack_init(&u, meta, f->meta_bytes);
  tm_err_unpack(&u, &theirs);
  TM_TRY(tm_unpack_end(&u, err));
  TM_TRY(tm_channel_end(r->ch, err));
  if (!err) return theirs.code;
  *err = theirs;
  if (!err->task[0]) memcpy(err->task, r->c.task, sizeof err->task);
  return theirs.code;
}

/* Say which lane this is about.  TM_EAGAIN: it is not served there (now). */
static tm_status remote_say_lane(remote_client *r, tm_err *err) {
  tm_buf b = TM_BUF_INIT(64);
  tm_packer w;
  tm_unpacker u;
  tm_frame f = {.kind = TM_F_PS_OPEN};
  const uint8_t *meta;
  tm_pack_init(&w, &b);
  tm_pack_int(&w, r->lane);
  tm_status s = w.status ? tm_nomem(err, "a request")
                         : tm_channel_send(r->ch, &f, &b, NULL, 0, err);
  tm_buf_release(&b);
  TM_TRY(s);
  TM_TRY(tm_channel_head(r->ch, &f, &meta, err));
  if (f.kind == TM_F_ERROR) return remote_take_error(r, &f, meta, err);
  if (f.kind != TM_F_PS_OPENED)
    return tm_fail(err, TM_EDATALOSS, "%s does not answer what it serves", r->c.task);
  tm_unpack_init(&u, meta, f.meta_bytes);
  uint64_t run = tm_unpack_uint(&u);
  TM_TRY(tm_unpack_end(&u, err));
  TM_TRY(tm_channel_end(r->ch, err));
  if (r->run && r->run != run) return remote_started_anew(r, err);
  r->run = run;
  return TM_OK;
}

/* One try at the present place. */
static tm_status remote_connect(remote_client *r, int64_t timeout_ns, tm_err *err) {
  const remote_place *p = &r->place[r->at];
  tm_channel_options o = r->opt;
  o.address = p->address;
  o.expect_task = p->task[0] ? p->task : NULL;
  o.lost = p->lost;
  o.connect_timeout_ns = timeout_ns;
  o.retry = false;
  tm_status s = tm_channel_open(&o, &r->ch, err);
  if (s == TM_OK) {
    tm_channel_set_silence(r->ch, timeout_ns);
    s = remote_say_lane(r, err);
    tm_channel_set_silence(r->ch, r->opt.silence_ns);
  }
  if (s) remote_disconnect(r);
  if (s && err && !err->task[0])
    memcpy(err->task, r->c.task[0] ? r->c.task : p->task, sizeof err->task);
  return s;
}

/* "Not served there" is to whoever asks as good as nobody. */
static tm_status remote_not_served(tm_status s, tm_err *err) {
  if (s != TM_EAGAIN) return s;
  if (err) err->code = TM_EUNAVAILABLE;
  return TM_EUNAVAILABLE;
}

static bool remote_ended(const remote_client *r) {
  return tm_cancelled(r->gone) || tm_cancelled(r->opt.cancel) ||
         (r->nplace == 1 && tm_cancelled(r->place[0].lost));
}

/* The connection is gone; false: it is not, or there is no use in another one. */
static bool remote_cut(remote_client *r, tm_status s) {
  if (s != TM_EUNAVAILABLE || remote_ended(r)) return false;
  return !r->ch || tm_channel_cut(r->ch) || (r->nplace > 1 && tm_channel_broken(r->ch));
}

static tm_status remote_transmit(remote_client *r, tm_err *err) {
  tm_frame f = {.kind = r->kind, .id = r->id};
  return tm_channel_send(r->ch, &f, &r->meta, r->seg.s, r->seg.n, err);
}

/* The next place whose task is not known to be gone. */
static void remote_turn(remote_client *r) {
  int next = (r->at + 1) % r->nplace;
  if (!tm_cancelled(r->place[next].lost)) r->at = next;
}

/* away: nobody serves it at any place, not even a copy. */
static bool remote_give_up(remote_client *r, int64_t since, int64_t tried, bool away) {
  int64_t now = tm_now_ns(), all = r->silence;
  if (remote_ended(r) || r->anew) return true;
  if (all <= 0) all = REMOTE_AGAIN_NS;
  bool nobody = now - tried < REMOTE_TRY_NS / 2; /* said so, not just silent */
  bool told = r->gone || r->place[0].lost;       /* there is who will say it */
  if (nobody && !told) all /= away ? 10 : 2;
  return now - since > all;
}

/* One try to connect at the present place and to send what is outstanding. */
static tm_status remote_retry(remote_client *r, int *kept, tm_err *why) {
  tm_err_clear(why);
  tm_status s = remote_connect(r, REMOTE_TRY_NS, why);
  if (s == TM_OK && (s = remote_transmit(r, why)) == TM_OK) return TM_OK;
  remote_disconnect(r);
  if (s == TM_EAGAIN) *kept = r->at;
  if (s == TM_EUNAVAILABLE && *kept == r->at) *kept = -1;
  return s;
}

/* Connect and send what is outstanding.  *err is of the cut, and stays where there is
 * no more to say.  since: when it was cut first. */
static tm_status remote_again(remote_client *r, int64_t since, tm_err *err) {
  int64_t pause = 2000000, tried;
  tm_status s;
  tm_err why;
  int kept = -1; /* the place that keeps a copy, which may become the primary */
  bool silent = r->ch && !tm_channel_cut(r->ch);
  remote_disconnect(r);
  if (silent || tm_cancelled(r->place[r->at].lost)) remote_turn(r);
  while (tried = tm_now_ns(), (s = remote_retry(r, &kept, &why)) != TM_OK) {
    bool away = s == TM_EUNAVAILABLE || s == TM_EAGAIN;
    if (!away || remote_give_up(r, since, tried, kept < 0)) break;
    remote_turn(r);
    if (r->at == 0 || r->nplace == 1) tm_sleep_ns(pause);
    if (pause < 100000000) pause += pause / 2;
  }
  if (s == TM_OK) return s;
  s = remote_not_served(s, NULL);
  if (s == TM_EUNAVAILABLE && !r->anew) return err->code;
  *err = why;
  if (!err->task[0]) memcpy(err->task, r->c.task, sizeof err->task);
  return s;
}

/* The first connection: until somebody serves the lane, if opt.retry. */
static tm_status remote_first(remote_client *r, tm_err *err) {
  int64_t timeout = r->opt.connect_timeout_ns, pause = 2000000;
  if (timeout <= 0) timeout = REMOTE_AGAIN_NS;
  int64_t end = tm_now_ns() + timeout;
  for (;;) {
    if (err) tm_err_clear(err);
    tm_status s = remote_connect(r, timeout, err);
    bool away = s == TM_EUNAVAILABLE || s == TM_EAGAIN;
    bool other = r->nplace > 1 && r->at == 0;
    if (!away || remote_ended(r)) return remote_not_served(s, err);
    if (!other && (!r->opt.retry || tm_now_ns() >= end))
      return remote_not_served(s, err);
    remote_turn(r);
    if (other) continue;
    tm_sleep_ns(pause);
    if (pause < 200000000) pause *= 2;
  }
}

/* --- one request --- */

/* Send what is packed.  A cut is dealt with by whoever takes the answer. */
static tm_status remote_send(remote_client *r, tm_frame_kind kind, tm_status packed,
                             tm_err *err) {
  r->kind = (uint16_t)kind;
  r->id++;
  if (packed == TM_EEXHAUSTED)
    return tm_fail(err, packed, "%s: a request of more than %d bytes of metadata",
                   r->c.task, (int)REMOTE_META);
  if (packed) return tm_nomem(err, "a request");
  if (r->anew) return remote_started_anew(r, err);
  if (r->ch && tm_channel_broken(r->ch)) remote_disconnect(r);
  if (!r->ch && r->nplace > 1) return TM_OK; /* wait looks for who serves it */
  tm_status s = r->ch ? TM_OK : remote_connect(r, REMOTE_TRY_NS, err);
  if (s) return remote_not_served(s, err);
  s = remote_transmit(r, err);
  if (!remote_cut(r, s)) return s;
  remote_disconnect(r);
  return TM_OK;
}

static void remote_start(remote_client *r, tm_packer *w) {
  tm_buf_clear(&r->meta);
  r->seg.n = 0;
  tm_pack_init(w, &r->meta);
}

/* Takes an answer's content out of the channel. */
typedef tm_status (*remote_take)(remote_client *r, const tm_frame *f,
                                 const uint8_t *meta, void *ud, tm_err *err);

/* Wait for the answer of the given kind; an error of the ps becomes ours. */
static tm_status remote_answer(remote_client *r, tm_frame_kind kind, remote_take take,
                               void *ud, tm_err *err) {
  tm_frame f;
  const uint8_t *meta;
  if (!r->ch) {
    memcpy(err->task, r->c.task, sizeof err->task);
    return tm_fail(err, TM_EUNAVAILABLE, "%s (%s): the connection was cut", r->c.task,
                   r->place[r->at].address);
  }
  TM_TRY(tm_channel_head(r->ch, &f, &meta, err));
  if (f.id != r->id || (f.kind != kind && f.kind != TM_F_ERROR))
    return tm_fail(err, TM_EDATALOSS, "%s answered a question that was not asked",
                   r->c.task);
  return f.kind == kind ? take(r, &f, meta, ud, err)
                        : remote_take_error(r, &f, meta, err);
}

/* The same, through cuts of the connection. */
static tm_status remote_finish(remote_client *r, tm_frame_kind kind, remote_take take,
                               void *ud, tm_err *err) {
  tm_err own;
  int64_t since = 0;
  if (!err) err = &own;
  for (;;) {
    tm_err_clear(err);
    r->told = false;
    tm_status s = remote_answer(r, kind, take, ud, err);
    bool heard = r->told && r->ch && !tm_channel_broken(r->ch);
    bool moved =
        heard && s == TM_EUNAVAILABLE && r->nplace > 1; /* it was started anew */
    if (moved) remote_disconnect(r);
    if (s == TM_OK || (heard && !moved)) return s;
    if (!remote_cut(r, s)) {
      remote_disconnect(r); /* an answer may be half taken */
      return s;
    }
    if (since == 0) since = tm_now_ns();
    TM_TRY(remote_again(r, since, err));
  }
}

/* An UPDATE without a closure gets a number (2). */
static tm_status remote_begin(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  tm_ps_token token = rq->token;
  if (rq->nup && token.closure == 0)
    rq->token = (tm_ps_token){.incarnation = r->self, .lowest = ++r->number};
  remote_start(r, &w);
  tm_status s = tm_ps_request_pack(rq, &w, &r->seg);
  rq->token = token;
  return remote_send(r, TM_F_PS_REQUEST, s, err);
}

static tm_status remote_take_reply(remote_client *r, const tm_frame *f,
                                   const uint8_t *meta, void *ud, tm_err *err) {
  return tm_ps_reply_take(r->ch, f, meta, ud, err);
}

static tm_status remote_wait(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  return remote_finish((remote_client *)c, TM_F_PS_REPLY, remote_take_reply, rq, err);
}

static tm_status remote_take_ok(remote_client *r, const tm_frame *f,
                                const uint8_t *meta, void *ud, tm_err *err) {
  (void)f;
  (void)meta;
  (void)ud;
  return tm_channel_end(r->ch, err);
}

/* Send what is packed and wait for an answer without content. */
static tm_status remote_call(remote_client *r, tm_frame_kind kind, tm_status packed,
                             tm_err *err) {
  TM_TRY(remote_send(r, kind, packed, err));
  return remote_finish(r, TM_F_OK, remote_take_ok, NULL, err);
}

/* Of this connection and those after it. */
static void remote_silence(remote_client *r, int64_t ns) {
  r->opt.silence_ns = ns;
  if (r->ch) tm_channel_set_silence(r->ch, ns);
}

static tm_status remote_create(tm_ps_client *c, const tm_shard_spec *spec, int32_t n,
                               tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_status s = tm_ps_specs_pack(spec, n, &w, &r->seg);
  remote_silence(r, REMOTE_SLOW_NS);
  s = remote_call(r, TM_F_PS_CREATE, s, err);
  remote_silence(r, r->silence);
  return s;
}

static tm_status remote_drop(tm_ps_client *c, uint64_t uid, uint32_t shard,
                             tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_pack_array(&w, 2);
  tm_pack_uint(&w, uid);
  tm_pack_uint(&w, shard);
  return remote_call(r, TM_F_PS_DROP, w.status, err);
}

static tm_status remote_refuse(tm_ps_client *c, uint64_t incarnation, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_pack_uint(&w, incarnation);
  return remote_call(r, TM_F_PS_REFUSE, w.status, err);
}

static tm_status remote_tokens(tm_ps_client *c, const tm_token_list *q, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_save_tokens_pack(&w, q);
  return remote_call(r, TM_F_PS_TOKENS, w.status, err);
}

static tm_status remote_commit(tm_ps_client *c, const tm_ps_commit *end, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_ps_commit_pack(&w, end);
  return remote_send(r, TM_F_PS_COMMIT, w.status, err);
}

static tm_status remote_committed(tm_ps_client *c, tm_err *err) {
  return remote_finish((remote_client *)c, TM_F_OK, remote_take_ok, NULL, err);
}

static tm_status remote_take_stats(remote_client *r, const tm_frame *f,
                                   const uint8_t *meta, void *ud, tm_err *err) {
  TM_TRY(tm_ps_stats_unpack(meta, f->meta_bytes, ud, err));
  return tm_channel_end(r->ch, err);
}

static tm_status remote_stats(tm_ps_client *c, tm_store_stats *out, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  TM_TRY(remote_send(r, TM_F_PS_STATS, TM_OK, err));
  return remote_finish(r, TM_F_PS_STATS_REPLY, remote_take_stats, out, err);
}

static tm_status remote_put(tm_ps_client *c, const tm_ps_place *p, const tm_view *rows,
                            tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_ps_put_pack(&w, p, rows);
  tm_status s = w.status;
  if (s == TM_OK) s = tm_segments_push(&r->seg, rows->data, tm_view_bytes(rows));
  TM_TRY(remote_send(r, TM_F_PS_LOAD, s, err));
  return remote_finish(r, TM_F_PS_LOAD_REPLY, remote_take_ok, NULL, err);
}

static tm_status remote_load(tm_ps_client *c, tm_ps_load *load, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_ps_load_pack(&w, load);
  return remote_send(r, TM_F_PS_LOAD, w.status, err);
}

static tm_status remote_take_loaded(remote_client *r, const tm_frame *f,
                                    const uint8_t *meta, void *ud, tm_err *err) {
  tm_unpacker u;
  tm_ps_load *load = ud;
  tm_unpack_init(&u, meta, f->meta_bytes);
  load->unseen = tm_unpack_bool(&u);
  TM_TRY(tm_unpack_end(&u, err));
  return tm_channel_end(r->ch, err);
}

/* Reading may take long; that the ps is there its control connection shows. */
static tm_status remote_loaded(tm_ps_client *c, tm_ps_load *load, tm_err *err) {
  remote_client *r = (remote_client *)c;
  remote_silence(r, REMOTE_SLOW_NS);
  tm_status s = remote_finish(r, TM_F_PS_LOAD_REPLY, remote_take_loaded, load, err);
  remote_silence(r, r->silence);
  return s;
}

static void remote_close(tm_ps_client *c) {
  remote_client *r = (remote_client *)c;
  tm_channel_close(r->ch);
  tm_buf_release(&r->meta);
  tm_segments_release(&r->seg);
  tm_free(r, sizeof *r);
}

static void remote_set_place(remote_place *p, const char *address, const char *task,
                             tm_cancel *lost) {
  snprintf(p->address, sizeof p->address, "%s", address);
  snprintf(p->task, sizeof p->task, "%s", task ? task : "");
  p->lost = lost;
}

static void remote_options(remote_client *r, const tm_ps_remote_options *o) {
  const tm_channel_options *ch = &o->channel;
  r->opt = *ch;
  r->gone = o->gone;
  r->lane = o->lane;
  r->silence = ch->silence_ns;
  snprintf(r->opt.self.purpose, sizeof r->opt.self.purpose, "data");
  remote_set_place(&r->place[r->nplace++], ch->address, ch->expect_task, ch->lost);
  if (o->other.address)
    remote_set_place(&r->place[r->nplace++], o->other.address, o->other.task,
                     o->other.lost);
  if (ch->expect_task) snprintf(r->c.task, sizeof r->c.task, "%s", ch->expect_task);
}

tm_status tm_ps_client_lane(const tm_ps_remote_options *opt, tm_ps_client **out,
                            tm_err *err) {
  *out = NULL;
  remote_client *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, "a client");
  remote_options(r, opt);
  tm_status s = remote_first(r, err);
  if (s) {
    tm_free(r, sizeof *r);
    return s;
  }
  r->self = tm_random_id();
  r->meta.max = REMOTE_META;
  if (!r->c.task[0]) memcpy(r->c.task, tm_channel_peer(r->ch)->task, sizeof r->c.task);
  r->c.begin = remote_begin;
  r->c.wait = remote_wait;
  r->c.create = remote_create;
  r->c.drop = remote_drop;
  r->c.refuse = remote_refuse;
  r->c.stats = remote_stats;
  r->c.tokens = remote_tokens;
  r->c.commit = remote_commit;
  r->c.committed = remote_committed;
  r->c.put = remote_put;
  if (r->nplace == 1) { /* a copy has to be told the rows */
    r->c.load = remote_load;
    r->c.loaded = remote_loaded;
  }
  r->c.close = remote_close;
  *out = &r->c;
  return TM_OK;
}

tm_status tm_ps_client_remote(const tm_channel_options *opt, tm_ps_client **out,
                              tm_err *err) {
  tm_ps_remote_options o = {.channel = *opt, .lane = -1};
  return tm_ps_client_lane(&o, out, err);
}
