#include "cluster/ps_replica.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/ps_wire.h"
#include "cluster/remote_value.h"
#include "net/loop.h"
#include "ps/copy.h"

/*
 * Design.  A link is made by an order of the chief.  Its thread connects, begins the
 * copy and says shard after shard; UPDATEs are sent by whoever applied them, at once;
 * what the backup has is told by its OKs, in a loop of their own, which then answers.
 *
 *   DIALLING   nothing is passed on yet
 *   COPYING    UPDATEs are passed on; the backup is not whole: it may be given up
 *   WHOLE      the backup may become the primary at any time
 *   LOST       it was whole, and cannot be reached: the chief is asked
 *   ENDED      not the lane's any more
 *
 * Invariants (under the lane's order):
 *   (1) `waits` are in order of seq; each is a frame that the backup does not have yet,
 *       as far as is known.  A client has one request outstanding, so its connections
 *       bound the list; the copying thread keeps its part below REPLICA_AHEAD.
 *   (2) state is not ENDED exactly while lane->link is this.
 *   (3) The backup applies frames in the order of seq, on one connection.
 */
enum { REPLICA_AHEAD = 32 << 20 };
#define REPLICA_CONNECT_NS 5000000000

typedef enum replica_state {
  REPLICA_DIALLING,
  REPLICA_COPYING,
  REPLICA_WHOLE,
  REPLICA_LOST,
  REPLICA_ENDED
} replica_state;

typedef struct replica_wait {
  struct replica_wait *next;
  uint64_t seq;
  size_t copied; /* bytes of a shard */
  tm_replica_answer answer;
} replica_wait;

typedef struct tm_replica_link {
  atomic_int refs;
  tm_replica_host *host;
  tm_ps_lane *lane;     /* a reference */
  tm_conn *conn;        /* under order; NULL: not yet, or no more */
  replica_state state;  /* under order */
  uint64_t seq;         /* under order: of the last frame */
  replica_wait *first;  /* under order */
  replica_wait **last;  /* under order */
  size_t ahead;         /* under order: copied bytes that the backup does not have */
  bool told;            /* under order: the chief has its answer */
  pthread_cond_t moved; /* with order: ahead or state changed */
  tm_conn *chief;       /* a reference */
  uint64_t id, epoch;
  tm_hello self;
  char address[280];
} replica_link;

struct tm_replica_host {
  char task[48];
  tm_netloop *loop;
  tm_cancel stop;
  pthread_mutex_t mu;
  pthread_cond_t idle;
  int threads; /* under mu */
};

/* --- answers --- */

static void answer_drop(tm_replica_answer *a) {
  if (a->release) a->release(a->ud);
  tm_conn_unref(a->conn);
  tm_buf_release(&a->meta);
  tm_segments_release(&a->seg);
  memset(a, 0, sizeof *a);
}

void tm_replica_answer_send(tm_replica_answer *a) {
  if (a->conn) {
    tm_status s = tm_conn_send(a->conn, &a->f, a->meta.len ? &a->meta : NULL, a->seg.s,
                               a->seg.n, a->release, a->ud);
    a->release = NULL;
    if (s == TM_ENOMEM) tm_conn_close(a->conn, s, "no memory for an answer");
  }
  answer_drop(a);
}

static void waits_send(replica_wait *w) {
  for (replica_wait *next; w; w = next) {
    next = w->next;
    tm_replica_answer_send(&w->answer);
    tm_free(w, sizeof *w);
  }
}

static void waits_cut(replica_wait *w, const char *why) {
  for (replica_wait *next; w; w = next) {
    next = w->next;
    if (w->answer.conn) tm_conn_close(w->answer.conn, TM_EUNAVAILABLE, why);
    answer_drop(&w->answer);
    tm_free(w, sizeof *w);
  }
}

/* --- links --- */

static void link_unref(replica_link *k) {
  if (!k || atomic_fetch_sub(&k->refs, 1) != 1) return;
  waits_cut(k->first, "the copy ended");
  tm_conn_unref(k->conn);
  tm_conn_unref(k->chief);
  tm_ps_lane_unref(k->lane);
  pthread_cond_destroy(&k->moved);
  tm_free(k, sizeof *k);
}

static replica_wait *link_take_all(replica_link *k) {
  replica_wait *all = k->first;
  k->first = NULL;
  k->last = &k->first;
  return all;
}

/* Not the lane's any more (order held); what waited. The caller unrefs k. */
static replica_wait *link_detach(replica_link *k) {
  k->state = REPLICA_ENDED;
  k->lane->link = NULL;
  atomic_store(&k->lane->replicated, false);
  if (k->conn) tm_conn_close(k->conn, TM_ECANCELLED, "no copy is wanted any more");
  pthread_cond_broadcast(&k->moved);
  return link_take_all(k);
}

/* Tell the chief how its order went, once (order held). */
static void link_tell(replica_link *k, const tm_err *why) {
  tm_frame f = {.kind = TM_F_OK, .id = k->id};
  if (k->told) return;
  k->told = true;
  tm_status s = why ? tm_conn_send_error(k->chief, k->id, why)
                    : tm_conn_send(k->chief, &f, NULL, NULL, 0, NULL, NULL);
  if (s == TM_ENOMEM) tm_conn_close(k->chief, s, "no memory for an answer");
}

/* May this go on alone? */
static void link_ask(replica_link *k) {
  tm_buf b = TM_BUF_INIT(1024);
  tm_packer w;
  tm_frame f = {.kind = TM_F_REPLICA_LOST};
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 2);
  tm_pack_int(&w, k->lane->index);
  tm_pack_uint(&w, k->epoch);
  tm_status s =
      w.status ? w.status : tm_conn_send(k->chief, &f, &b, NULL, 0, NULL, NULL);
  if (s == TM_ENOMEM) tm_conn_close(k->chief, s, "no memory for a question");
  tm_buf_release(&b);
}

/* The backup cannot be reached or failed.  A fenced link is one whose lane has another
 * primary by now. */
static void link_fail(replica_link *k, bool fenced, const tm_err *why) {
  tm_ps_lane *l = k->lane;
  replica_wait *waits = NULL;
  bool ended = false;
  pthread_mutex_lock(&l->order);
  bool was_copying = k->state == REPLICA_DIALLING || k->state == REPLICA_COPYING;
  if (k->state == REPLICA_ENDED || k->state == REPLICA_LOST) {
    fenced = fenced && k->state == REPLICA_LOST;
    was_copying = false;
  } else if (!was_copying && !fenced) {
    tm_log(TM_LOG_DEBUG, "%s: the copy of lane %d is lost: %s", k->host->task, l->index,
           why->msg);
    k->state = REPLICA_LOST;
    pthread_cond_broadcast(&k->moved);
    link_ask(k);
  }
  if (fenced) atomic_store(&l->role, TM_LANE_GONE);
  if (was_copying || fenced) {
    link_tell(k, why);
    waits = link_detach(k);
    ended = true;
  }
  pthread_mutex_unlock(&l->order);
  if (fenced)
    waits_cut(waits, "these shards are served by another ps now");
  else
    waits_send(waits);
  if (ended) link_unref(k);
}

/* --- from the backup (the loop's thread) --- */

static void link_has(replica_link *k, uint64_t seq) {
  replica_wait *has = NULL, **at = &has;
  pthread_mutex_lock(&k->lane->order);
  while (k->first && k->first->seq <= seq) {
    replica_wait *w = k->first;
    k->first = w->next;
    k->ahead -= w->copied;
    w->next = NULL;
    *at = w;
    at = &w->next;
  }
  if (!k->first) k->last = &k->first;
  pthread_cond_broadcast(&k->moved);
  pthread_mutex_unlock(&k->lane->order);
  waits_send(has);
}

static void link_message(void *ud, tm_conn *c, tm_message *m) {
  replica_link *k = tm_conn_user(c);
  tm_unpacker r;
  tm_err err;
  (void)ud;
  if (m->f.kind == TM_F_OK) {
    link_has(k, m->f.id);
    return;
  }
  tm_err_clear(&err);
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_err_unpack(&r, &err);
  link_fail(k, err.code == TM_EABORTED, &err);
  tm_conn_close(c, err.code, err.msg);
}

static void link_closed(void *ud, tm_conn *c, const tm_err *why) {
  replica_link *k = tm_conn_user(c);
  tm_err e;
  (void)ud;
  tm_err_clear(&e);
  tm_fail(&e, TM_EUNAVAILABLE, "%s", why->msg);
  link_fail(k, false, &e);
  link_unref(k);
}

/* --- to the backup (order held) --- */

static void link_push(replica_link *k, replica_wait *w) {
  w->seq = ++k->seq;
  w->next = NULL;
  *k->last = w;
  k->last = &w->next;
  k->ahead += w->copied;
}

static void free_payload(void *ud) {
  tm_message *m = ud;
  tm_free_aligned(m->payload, m->f.payload_bytes);
  tm_free(m, sizeof *m);
}

void tm_replica_forward(tm_ps_lane *l, tm_message *m, tm_replica_answer *a) {
  replica_link *k = l->link;
  replica_wait *w = tm_calloc(1, sizeof *w);
  tm_message *kept = tm_malloc(sizeof *kept);
  if (!w || !kept) { /* applied, and not passed on: nobody may rely on it */
    tm_free(w, sizeof *w);
    tm_free(kept, sizeof *kept);
    if (k->conn) tm_conn_close(k->conn, TM_ENOMEM, "no memory to pass an UPDATE on");
    if (a->conn) tm_conn_close(a->conn, TM_ENOMEM, "no memory for an answer");
    answer_drop(a);
    return;
  }
  w->answer = *a;
  memset(a, 0, sizeof *a);
  link_push(k, w);
  *kept = *m;
  m->payload = NULL;
  tm_buf meta = {.data = (uint8_t *)(uintptr_t)m->meta, .len = m->f.meta_bytes};
  tm_segment seg = {kept->payload, kept->f.payload_bytes};
  tm_frame f = {.kind = m->f.kind, .id = w->seq};
  if (k->state == REPLICA_LOST || !k->conn) {
    free_payload(kept);
    return;
  }
  /* A connection that is gone says so to link_closed. */
  tm_status s =
      tm_conn_send(k->conn, &f, &meta, &seg, seg.n ? 1 : 0, free_payload, kept);
  if (s == TM_ENOMEM) tm_conn_close(k->conn, s, "no memory to pass an UPDATE on");
}

/* --- the copying thread --- */

typedef struct replica_letter {
  tm_buf meta;
  tm_packer w;
  tm_segments seg;
  tm_shard_copy copy;
  void *own; /* what the segments point at, if it is nobody else's */
  size_t own_bytes;
} replica_letter;

static void letter_free(void *ud) {
  replica_letter *l = ud;
  tm_shard_copy_release(&l->copy);
  tm_free_aligned(l->own, l->own_bytes);
  tm_segments_release(&l->seg);
  tm_buf_release(&l->meta);
  tm_free(l, sizeof *l);
}

static replica_letter *letter_new(void) {
  replica_letter *l = tm_calloc(1, sizeof *l);
  if (!l) return NULL;
  l->meta.max = TM_FRAME_MAX_META;
  tm_pack_init(&l->w, &l->meta);
  return l;
}

/* The segments become copies. */
static tm_status letter_own(replica_letter *l) {
  uint64_t at = 0;
  for (int32_t i = 0; i < l->seg.n; i++) at += tm_frame_pad(l->seg.s[i].n);
  if (at == 0) return TM_OK;
  l->own_bytes = (size_t)at;
  l->own = tm_malloc_aligned(l->own_bytes);
  if (!l->own) return TM_ENOMEM;
  at = 0;
  for (int32_t i = 0; i < l->seg.n; i++) {
    tm_segment *g = &l->seg.s[i];
    if (g->n) memcpy((uint8_t *)l->own + at, g->p, g->n);
    g->p = (uint8_t *)l->own + at;
    at += tm_frame_pad(g->n);
  }
  return TM_OK;
}

/* Send a letter as the next frame (order held); takes it. */
static tm_status link_say(replica_link *k, tm_frame_kind kind, replica_letter *l,
                          tm_err *err) {
  replica_wait *w = l->w.status ? NULL : tm_calloc(1, sizeof *w);
  if (!w) {
    letter_free(l);
    return tm_nomem(err, "a copy of a lane");
  }
  for (int32_t i = 0; i < l->seg.n; i++) w->copied += l->seg.s[i].n;
  link_push(k, w);
  tm_frame f = {.kind = (uint16_t)kind, .id = w->seq};
  tm_status s = tm_conn_send(k->conn, &f, &l->meta, l->seg.s, l->seg.n, letter_free, l);
  if (s) return tm_fail(err, s, "a copy of a lane cannot be sent");
  return TM_OK;
}

static tm_status link_say_tokens(replica_link *k, tm_err *err) {
  replica_letter *l = letter_new();
  if (!l) return tm_nomem(err, "a copy of a lane");
  tm_store_pack_tokens(k->lane->store, &l->w);
  return link_say(k, TM_F_REPLICA_TOKENS, l, err);
}

static tm_status link_pack_shard(replica_letter *l, tm_err *err) {
  tm_shard_copy *c = &l->copy;
  tm_pack_array(&l->w, 2);
  tm_status s = tm_ps_specs_pack(&c->spec, 1, &l->w, &l->seg);
  if (s == TM_OK)
    s = tm_segments_push(&l->seg, c->value->v.data, tm_view_bytes(&c->value->v));
  tm_pack_array(&l->w, (uint32_t)c->nslot * 2);
  for (int32_t i = 0; i < c->nslot && s == TM_OK; i++) {
    const tm_view *v = &c->slot[i].t->v;
    tm_pack_uint(&l->w, c->slot[i].optimizer);
    tm_pack_int(&l->w, c->slot[i].number);
    s = tm_segments_push(&l->seg, v->data, tm_view_bytes(v));
  }
  return s ? tm_nomem(err, "a copy of a shard") : TM_OK;
}

static tm_status link_say_shard(replica_link *k, const tm_shard_key *key, tm_err *err) {
  replica_letter *l = letter_new();
  if (!l) return tm_nomem(err, "a copy of a shard");
  tm_status s = tm_shard_copy_take(k->lane->store, key, &l->copy, err);
  if (s == TM_OK) s = link_pack_shard(l, err);
  if (s == TM_OK) return link_say(k, TM_F_REPLICA_SHARD, l, err);
  letter_free(l);
  return s == TM_ENOTFOUND ? TM_OK : s; /* it was dropped meanwhile */
}

/* An UPDATE that waits for the end of a round.  That it came was told with the tokens;
 * whose it was may be refused by now. */
static tm_status link_say_waiting(void *ud, const tm_ps_token *token,
                                  const tm_ps_update *up, tm_err *err) {
  replica_link *k = ud;
  tm_ps_request rq = {
      .token = {.turn = token->turn, .round = token->round, .share = token->share},
      .nup = 1,
      .up = up};
  replica_letter *l = letter_new();
  if (!l) return tm_nomem(err, "a copy of a shard");
  tm_status s = tm_ps_request_pack(&rq, &l->w, &l->seg);
  if (s == TM_OK) s = letter_own(l);
  if (s == TM_OK) return link_say(k, TM_F_PS_REQUEST, l, err);
  letter_free(l);
  return tm_nomem(err, "a copy of a shard");
}

static tm_status link_dial(replica_link *k, tm_channel **out, tm_err *err) {
  tm_channel_options o = {.address = k->address,
                          .self = k->self,
                          .connect_timeout_ns = REPLICA_CONNECT_NS,
                          .silence_ns = REPLICA_CONNECT_NS,
                          .retry = true,
                          .cancel = &k->host->stop};
  tm_buf b = TM_BUF_INIT(1024);
  tm_packer w;
  tm_frame f = {.kind = TM_F_REPLICA};
  const uint8_t *meta;
  snprintf(o.self.purpose, sizeof o.self.purpose, "data");
  TM_TRY(tm_channel_open(&o, out, err));
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 3);
  tm_pack_int(&w, k->lane->index);
  tm_pack_uint(&w, k->lane->run);
  tm_pack_uint(&w, k->epoch);
  tm_status s = w.status ? tm_nomem(err, "a copy of a lane")
                         : tm_channel_send(*out, &f, &b, NULL, 0, err);
  tm_buf_release(&b);
  if (s == TM_OK) s = tm_channel_head(*out, &f, &meta, err);
  if (s == TM_OK && f.kind == TM_F_ERROR) {
    tm_unpacker r;
    tm_err theirs;
    tm_unpack_init(&r, meta, f.meta_bytes);
    tm_err_unpack(&r, &theirs);
    if (err) *err = theirs;
    s = theirs.code;
  } else if (s == TM_OK) {
    s = tm_channel_end(*out, err);
  }
  if (s == TM_OK) return TM_OK;
  tm_channel_close(*out);
  *out = NULL;
  return s;
}

/* From here on UPDATEs are passed on (order held). */
static tm_status link_open(replica_link *k, tm_channel *ch, tm_err *err) {
  static const tm_conn_events events = {NULL, link_message, link_closed, NULL};
  const tm_conn_limits lim = {1 << 20, 0, 60000000000};
  if (k->state != REPLICA_DIALLING) {
    tm_channel_close(ch);
    return tm_fail(err, TM_ECANCELLED, "no copy is wanted any more");
  }
  atomic_fetch_add(&k->refs, 1); /* the connection's, until `closed` */
  tm_status s = tm_netloop_adopt(k->host->loop, ch, &lim, &events, k, &k->conn, err);
  if (s) {
    link_unref(k);
    return s;
  }
  k->state = REPLICA_COPYING;
  atomic_store(&k->lane->replicated, true);
  return link_say_tokens(k, err);
}

/* Still wanted?  (order held) */
static tm_status link_going(replica_link *k, tm_err *err) {
  if (k->state == REPLICA_COPYING && !tm_cancelled(&k->host->stop)) return TM_OK;
  return tm_fail(err, TM_ECANCELLED, "the copy ended before it was whole");
}

/* Something moved, or some time went by (order held). */
static void link_sleep(replica_link *k) {
  tm_status s =
      tm_cond_wait_until(&k->moved, &k->lane->order, tm_now_ns() + 100000000, NULL);
  (void)s; /* whoever waits looks itself */
}

/* Wait until the backup has nearly all of the shards (order held). */
static tm_status link_wait(replica_link *k, tm_err *err) {
  tm_status s;
  while ((s = link_going(k, err)) == TM_OK && k->ahead > REPLICA_AHEAD) link_sleep(k);
  return s;
}

static tm_status link_copy(replica_link *k, const tm_shard_key *key, size_t n,
                           tm_err *err) {
  tm_status s = TM_OK;
  for (size_t i = 0; i < n && s == TM_OK; i++) {
    pthread_mutex_lock(&k->lane->order);
    s = link_wait(k, err);
    if (s == TM_OK) s = link_say_shard(k, &key[i], err);
    if (s == TM_OK)
      s = tm_store_waiting(k->lane->store, &key[i], link_say_waiting, k, err);
    pthread_mutex_unlock(&k->lane->order);
  }
  return s;
}

/* All was said: wait until the backup says that it is whole. */
static tm_status link_finish(replica_link *k, tm_err *err) {
  replica_letter *l = letter_new();
  if (!l) return tm_nomem(err, "a copy of a lane");
  pthread_mutex_lock(&k->lane->order);
  tm_status s = link_wait(k, err);
  if (s)
    letter_free(l);
  else
    s = link_say(k, TM_F_REPLICA_DONE, l, err);
  uint64_t last = k->seq;
  while (s == TM_OK && (s = link_going(k, err)) == TM_OK && k->first &&
         k->first->seq <= last)
    link_sleep(k);
  if (s == TM_OK) {
    k->state = REPLICA_WHOLE;
    link_tell(k, NULL);
  }
  pthread_mutex_unlock(&k->lane->order);
  return s;
}

static tm_status link_run(replica_link *k, tm_err *err) {
  tm_channel *ch;
  tm_shard_key *key = NULL;
  size_t n = 0;
  TM_TRY(link_dial(k, &ch, err));
  pthread_mutex_lock(&k->lane->order);
  tm_status s = link_open(k, ch, err);
  if (s == TM_OK && tm_store_keys(k->lane->store, &key, &n))
    s = tm_nomem(err, "a copy of a lane");
  pthread_mutex_unlock(&k->lane->order);
  if (s == TM_OK) s = link_copy(k, key, n, err);
  if (s == TM_OK) s = link_finish(k, err);
  tm_free(key, n * sizeof *key);
  return s;
}

static void *link_main(void *ud) {
  replica_link *k = ud;
  tm_replica_host *h = k->host;
  tm_err err;
  tm_err_clear(&err);
  tm_status s = link_run(k, &err);
  if (s && err.code == TM_OK) tm_fail(&err, s, "a copy cannot be made");
  if (s) link_fail(k, false, &err);
  link_unref(k);
  pthread_mutex_lock(&h->mu);
  if (--h->threads == 0) pthread_cond_broadcast(&h->idle);
  pthread_mutex_unlock(&h->mu);
  return NULL;
}

/* --- orders --- */

static bool host_thread(tm_replica_host *h, replica_link *k) {
  pthread_t id;
  pthread_mutex_lock(&h->mu);
  h->threads++;
  bool ok = pthread_create(&id, NULL, link_main, k) == 0;
  if (ok)
    pthread_detach(id);
  else
    h->threads--;
  pthread_mutex_unlock(&h->mu);
  return ok;
}

tm_status tm_replica_begin(tm_replica_host *h, tm_ps_lane *l, const tm_replica_order *o,
                           tm_err *err) {
  replica_link *k = tm_calloc(1, sizeof *k);
  if (!k) return tm_nomem(err, "a copy of a lane");
  atomic_init(&k->refs, 2); /* the lane's and the thread's */
  k->host = h;
  k->lane = tm_ps_lane_ref(l);
  k->chief = tm_conn_ref(o->chief);
  k->id = o->id;
  k->epoch = o->epoch;
  k->self = o->self;
  k->last = &k->first;
  tm_cond_init_monotonic(&k->moved);
  snprintf(k->address, sizeof k->address, "%s", o->address);
  tm_replica_drop(l, false);
  pthread_mutex_lock(&l->order);
  l->link = k;
  l->epoch = o->epoch;
  pthread_mutex_unlock(&l->order);
  if (host_thread(h, k)) return TM_OK;
  pthread_mutex_lock(&l->order);
  k->told = true; /* the caller tells */
  (void)link_detach(k);
  pthread_mutex_unlock(&l->order);
  link_unref(k);
  link_unref(k);
  return tm_fail(err, TM_EEXHAUSTED, "no thread to copy a lane with");
}

void tm_replica_drop(tm_ps_lane *l, bool cut) {
  tm_err err;
  tm_err_clear(&err);
  tm_fail(&err, TM_ECANCELLED, "the copy is not wanted any more");
  pthread_mutex_lock(&l->order);
  replica_link *k = l->link;
  replica_wait *waits = NULL;
  if (k) {
    link_tell(k, &err);
    waits = link_detach(k);
  }
  pthread_mutex_unlock(&l->order);
  if (cut)
    waits_cut(waits, "these shards are served by another ps now");
  else
    waits_send(waits);
  link_unref(k);
}

tm_status tm_replica_host_new(const char *task, tm_replica_host **out) {
  tm_replica_host *h = *out = tm_calloc(1, sizeof *h);
  if (!h) return TM_ENOMEM;
  strncpy(h->task, task, sizeof h->task - 1);
  pthread_mutex_init(&h->mu, NULL);
  pthread_cond_init(&h->idle, NULL);
  if (tm_netloop_new(1, &h->loop) == TM_OK) return TM_OK;
  tm_replica_host_free(h);
  *out = NULL;
  return TM_ENOMEM;
}

void tm_replica_host_free(tm_replica_host *h) {
  if (!h) return;
  tm_cancel_set(&h->stop);
  pthread_mutex_lock(&h->mu);
  while (h->threads) pthread_cond_wait(&h->idle, &h->mu);
  pthread_mutex_unlock(&h->mu);
  tm_netloop_free(h->loop);
  pthread_mutex_destroy(&h->mu);
  pthread_cond_destroy(&h->idle);
  tm_free(h, sizeof *h);
}
