#include "cluster/ps_service.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/ps_saver.h"
#include "cluster/ps_service_parts.h"
#include "cluster/ps_wire.h"
#include "cluster/save_wire.h"

/*
 * Design.  A request is decoded with ids and values left in the frame's payload,
 * handled in the loop's thread, and answered from the shards' own memory: dense
 * versions are held until they are written out; rows are gathered into one buffer.
 *
 * Invariants:
 *   (1) Lanes are used under a read lock, under which the start of the connection was
 *       looked at, so a reset waits for running requests and none comes after it.
 *   (2) A reply in flight holds tensors, not the store.
 *   (3) A request is answered by the primary of its lane only: where the lane is not
 *       served (any more) the connection ends, and the client looks elsewhere.
 *   (4) What changes a lane that may have a copy is applied and passed on under its
 *       order; a copy is changed by frames of its primary alone, on a connection with
 *       the lane's present epoch.
 *   (5) No UPDATE waits in a loop's thread for the reader of a snapshot, which may need
 *       that thread: it is parked, and so are those after it, which it might keep from
 *       the lane's order.
 */
/* What an answer keeps until it is written. */
typedef struct ps_reply {
  void *rows;
  size_t rows_bytes, size;
  int32_t n;
  tm_tensor *held[];
} ps_reply;

static void service_serve_parked(void *ud, tm_conn *c, tm_message *m);

tm_status tm_ps_service_new(const char *task, tm_ps_service **out) {
  *out = NULL;
  tm_ps_service *s = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  strncpy(s->task, task, sizeof s->task - 1);
  if (tm_ps_park_new(service_serve_parked, s, &s->park) ||
      tm_ps_lane_new(task, 0, false, 0, &s->lane[0])) {
    tm_ps_park_free(s->park);
    tm_free(s, sizeof *s);
    return TM_ENOMEM;
  }
  pthread_rwlock_init(&s->lock, NULL);
  *out = s;
  return TM_OK;
}

/* It is not served here any more; l may be NULL. */
void tm_service_end_lane(tm_ps_lane *l) {
  if (!l) return;
  pthread_mutex_lock(&l->order);
  atomic_store(&l->role, TM_LANE_GONE);
  pthread_mutex_unlock(&l->order);
  tm_replica_drop(l, true);
  tm_ps_saver_give_up(l->saver);
  tm_ps_lane_unref(l);
}

void tm_ps_service_stop(tm_ps_service *s) {
  pthread_rwlock_rdlock(&s->lock);
  for (int i = 0; i < SERVICE_LANES; i++) /* who waits for room goes on */
    if (s->lane[i]) tm_ps_saver_stop(s->lane[i]->saver);
  pthread_rwlock_unlock(&s->lock);
  tm_ps_park_stop(s->park);
}

void tm_ps_service_free(tm_ps_service *s) {
  if (!s) return;
  tm_ps_service_stop(s);
  for (int i = 0; i < SERVICE_LANES; i++) tm_service_end_lane(s->lane[i]);
  tm_ps_park_free(s->park);
  tm_replica_host_free(s->host);
  pthread_rwlock_destroy(&s->lock);
  tm_free(s, sizeof *s);
}

tm_status tm_ps_service_reset(tm_ps_service *s, int32_t lane, uintptr_t starts) {
  tm_ps_lane *old[SERVICE_LANES], *fresh = NULL;
  if (lane >= 0) TM_TRY(tm_ps_lane_new(s->task, lane, false, 0, &fresh));
  pthread_rwlock_wrlock(&s->lock);
  memcpy(old, s->lane, sizeof old);
  memset(s->lane, 0, sizeof s->lane);
  s->lane[0] = fresh;
  s->starts = starts;
  pthread_rwlock_unlock(&s->lock);
  for (int i = 0; i < SERVICE_LANES; i++) tm_service_end_lane(old[i]);
  return TM_OK;
}

void tm_ps_service_closed(tm_ps_service *s, tm_conn *c) {
  pthread_rwlock_rdlock(&s->lock);
  for (int i = 0; i < SERVICE_LANES; i++)
    if (s->lane[i]) tm_ps_saver_closed(s->lane[i]->saver, c);
  pthread_rwlock_unlock(&s->lock);
}

tm_status tm_service_check_start(const tm_ps_service *s, const tm_conn *c,
                                 tm_err *err) {
  if ((uintptr_t)tm_conn_user(c) == s->starts) return TM_OK;
  return tm_fail(err, TM_EUNAVAILABLE, "%s was started anew meanwhile", s->task);
}

/* NULL: it is not here (lock held). */
tm_ps_lane *tm_service_lane(tm_ps_service *s, int32_t index) {
  for (int i = 0; i < SERVICE_LANES; i++)
    if (s->lane[i] && s->lane[i]->index == index) return s->lane[i];
  return NULL;
}

static void service_release(void *ud) {
  ps_reply *r = ud;
  for (int32_t i = 0; i < r->n; i++) tm_tensor_unref(r->held[i]);
  tm_free_aligned(r->rows, r->rows_bytes);
  tm_free(r, r->size);
}

static ps_reply *service_reply_new(int32_t nrd, uint64_t rows_bytes) {
  size_t size = sizeof(ps_reply) + (size_t)nrd * sizeof(tm_tensor *);
  ps_reply *r = tm_calloc(1, size);
  if (!r) return NULL;
  r->size = size;
  r->rows_bytes = (size_t)rows_bytes;
  if (rows_bytes && !(r->rows = tm_malloc_aligned(r->rows_bytes))) {
    tm_free(r, size);
    return NULL;
  }
  return r;
}

/* Give every row read its place in the reply's buffer. */
static void service_place_rows(tm_ps_request *rq, ps_reply *r) {
  uint64_t at = 0;
  for (int32_t i = 0; i < rq->nrd; i++) {
    tm_ps_read *rd = &rq->rd[i];
    if (rd->kind != TM_PS_ROWS) continue;
    /* Without any bytes there is no buffer, but there must be an address. */
    rd->dst.data = r->rows ? (uint8_t *)r->rows + at : (void *)r;
    at += tm_frame_pad(tm_view_bytes(&rd->dst));
  }
}

static void service_hold(tm_ps_request *rq, ps_reply *r) {
  for (int32_t i = 0; i < rq->nrd; i++)
    if (rq->rd[i].out) r->held[r->n++] = rq->rd[i].out;
}

/* The reply as an answer that waits for the copy; takes r. */
static tm_status service_answer(tm_conn *c, uint64_t id, tm_ps_request *rq, ps_reply *r,
                                tm_replica_answer *a) {
  tm_packer w;
  *a = (tm_replica_answer){.conn = tm_conn_ref(c),
                           .f = {.kind = TM_F_PS_REPLY, .id = id},
                           .meta = TM_BUF_INIT(TM_FRAME_MAX_META),
                           .release = service_release,
                           .ud = r};
  tm_pack_init(&w, &a->meta);
  return tm_ps_reply_pack(rq, &w, &a->seg);
}

static tm_status service_send(tm_replica_answer *a, tm_status packed) {
  tm_conn *c = a->conn;
  if (packed == TM_OK) {
    tm_replica_answer_send(a);
    return TM_OK;
  }
  a->conn = NULL;
  tm_replica_answer_send(a);
  tm_conn_unref(c);
  return TM_ENOMEM;
}

/* Of an UPDATE where there may be a copy (4). */
static tm_status service_update(tm_ps_lane *l, tm_conn *c, tm_message *m,
                                tm_ps_request *rq, ps_reply *r) {
  tm_replica_answer a;
  pthread_mutex_lock(&l->order);
  if (tm_ps_lane_role(l) != TM_LANE_PRIMARY) {
    pthread_mutex_unlock(&l->order);
    service_release(r);
    tm_conn_close(c, TM_EUNAVAILABLE, "these shards are not served here");
    return TM_OK;
  }
  tm_store_handle(l->store, rq);
  service_hold(rq, r);
  tm_status st = service_answer(c, m->f.id, rq, r, &a);
  if (rq->up_status == TM_OK && tm_ps_lane_replicated(l)) {
    if (st) tm_conn_close(c, st, "no memory for an answer");
    tm_replica_forward(l, m, &a);
    st = TM_OK;
  } else {
    st = service_send(&a, st);
  }
  pthread_mutex_unlock(&l->order);
  return st;
}

/* True: it is parked (5).  park NULL: this is the park's thread. */
static bool service_park(tm_ps_park *park, tm_ps_lane *l, tm_conn *c, tm_message *m,
                         const tm_ps_request *rq) {
  return park && tm_store_must_wait(l->store, rq, tm_ps_park_busy(park)) &&
         tm_ps_park_put(park, c, m) == TM_OK;
}

static tm_status service_handle(tm_ps_lane *l, tm_conn *c, tm_message *m,
                                tm_ps_park *park, tm_arena *arena, tm_err *err) {
  tm_ps_request rq;
  tm_replica_answer a;
  uint64_t rows_bytes;
  TM_TRY(tm_ps_request_unpack(m->meta, m->f.meta_bytes, m->payload, m->f.payload_bytes,
                              arena, &rq, &rows_bytes, err));
  if (service_park(park, l, c, m, &rq)) return TM_OK;
  ps_reply *r = service_reply_new(rq.nrd, rows_bytes);
  if (!r) return tm_nomem(err, "an answer");
  service_place_rows(&rq, r);
  tm_status st;
  if (l->ordered && rq.nup) {
    st = service_update(l, c, m, &rq, r);
  } else {
    tm_store_handle(l->store, &rq);
    service_hold(&rq, r);
    st = service_answer(c, m->f.id, &rq, r, &a);
    st = service_send(&a, st);
  }
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

static tm_status service_request(tm_ps_lane *l, tm_conn *c, tm_message *m,
                                 tm_ps_park *park, tm_err *err) {
  tm_arena a = TM_ARENA_INIT;
  tm_status st = service_handle(l, c, m, park, &a, err);
  tm_arena_release(&a);
  return st;
}

tm_status tm_service_ok(tm_conn *c, uint64_t id) {
  tm_frame f = {.kind = TM_F_OK, .id = id};
  return tm_conn_send(c, &f, NULL, NULL, 0, NULL, NULL);
}

static tm_status service_create(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_unpacker r;
  uint64_t at = 0;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  uint32_t n = tm_unpack_array(&r, 0, TM_PS_MAX_ITEMS);
  for (uint32_t i = 0; i < n; i++) {
    tm_shard_spec sp;
    tm_tensor *value;
    TM_TRY(
        tm_ps_spec_unpack(&r, m->payload, m->f.payload_bytes, &at, &sp, &value, err));
    tm_status st = tm_store_create(l->store, &sp, err);
    tm_tensor_unref(value);
    TM_TRY(st);
  }
  return tm_unpack_end(&r, err);
}

static tm_status service_drop(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 2, 2);
  uint64_t uid = tm_unpack_uint(&r);
  uint32_t shard = (uint32_t)tm_unpack_range(&r, 0, UINT32_MAX);
  TM_TRY(tm_unpack_end(&r, err));
  tm_store_drop(l->store, uid, shard);
  return TM_OK;
}

static tm_status service_refuse(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  uint64_t incarnation = tm_unpack_uint(&r);
  TM_TRY(tm_unpack_end(&r, err));
  tm_store_refuse(l->store, incarnation);
  return TM_OK;
}

static tm_status service_tokens(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_arena a = TM_ARENA_INIT;
  tm_token_list q;
  tm_status st = tm_save_tokens_unpack(m->meta, m->f.meta_bytes, &a, &q, err);
  if (st == TM_OK) st = tm_store_add_tokens(l->store, &q, err);
  tm_arena_release(&a);
  return st;
}

static tm_status service_commit(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_arena a = TM_ARENA_INIT;
  tm_ps_commit c;
  tm_status st = tm_ps_commit_unpack(m->meta, m->f.meta_bytes, &a, &c, err);
  if (st == TM_OK) st = tm_store_commit(l->store, &c, err);
  tm_arena_release(&a);
  return st;
}

static tm_status service_stats(tm_ps_lane *l, tm_conn *c, uint64_t id) {
  tm_store_stats st;
  tm_buf meta = TM_BUF_INIT(1024);
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_STATS_REPLY, .id = id};
  tm_store_get_stats(l->store, &st);
  tm_pack_init(&w, &meta);
  tm_ps_stats_pack(&w, &st);
  tm_status sent =
      w.status ? w.status : tm_conn_send(c, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return sent;
}

/* --- lanes --- */

void tm_service_door_free(void *door) { tm_free(door, sizeof(service_door)); }

/* The connection will speak of this lane, if it is served here. */
static tm_status service_open(tm_ps_service *s, tm_conn *c, tm_message *m,
                              tm_err *err) {
  tm_unpacker r;
  tm_packer w;
  tm_buf meta = TM_BUF_INIT(64);
  tm_frame f = {.kind = TM_F_PS_OPENED, .id = m->f.id};
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  int32_t index = (int32_t)tm_unpack_range(&r, -1, INT32_MAX);
  TM_TRY(tm_unpack_end(&r, err));
  pthread_rwlock_rdlock(&s->lock);
  tm_ps_lane *l = index < 0 ? s->lane[0] : tm_service_lane(s, index);
  if (l) index = l->index;
  bool served = l && tm_ps_lane_role(l) == TM_LANE_PRIMARY;
  uint64_t run = served ? l->run : 0;
  pthread_rwlock_unlock(&s->lock);
  if (!served)
    return tm_fail(err, TM_EAGAIN, "%s does not serve lane %d", s->task, index);
  service_door *door = tm_calloc(1, sizeof *door);
  if (!door) return tm_nomem(err, "a connection");
  door->lane = index;
  tm_conn_set_tag(c, door, tm_service_door_free);
  tm_pack_init(&w, &meta);
  tm_pack_uint(&w, run);
  tm_status st = w.status ? w.status : tm_conn_send(c, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

/* --- requests --- */

tm_status tm_service_change(tm_ps_lane *l, tm_message *m, tm_err *err) {
  switch (m->f.kind) {
    case TM_F_PS_CREATE:
      return service_create(l, m, err);
    case TM_F_PS_DROP:
      return service_drop(l, m, err);
    case TM_F_PS_REFUSE:
      return service_refuse(l, m, err);
    case TM_F_PS_TOKENS:
      return service_tokens(l, m, err);
    case TM_F_PS_COMMIT:
      return service_commit(l, m, err);
    default:
      return tm_ps_loader_put(l->loader, m, err);
  }
}

/* A change by the chief where there may be a copy (4). */
static tm_status service_ordered(tm_ps_lane *l, tm_conn *c, tm_message *m,
                                 tm_err *err) {
  bool load = m->f.kind == TM_F_PS_LOAD;
  tm_replica_answer a = {
      .f = {.kind = load ? TM_F_PS_LOAD_REPLY : TM_F_OK, .id = m->f.id},
      .meta = TM_BUF_INIT(64)};
  if (load) {
    tm_packer w;
    tm_pack_init(&w, &a.meta);
    tm_pack_bool(&w, false); /* it saw what it was sent */
    if (w.status) return tm_nomem(err, "an answer");
  }
  pthread_mutex_lock(&l->order);
  bool served = tm_ps_lane_role(l) == TM_LANE_PRIMARY;
  tm_status st = served ? tm_service_change(l, m, err) : TM_OK;
  if (!served) {
    tm_conn_close(c, TM_EUNAVAILABLE, "these shards are not served here");
  } else if (st == TM_OK) {
    a.conn = tm_conn_ref(c);
    if (tm_ps_lane_replicated(l))
      tm_replica_forward(l, m, &a);
    else
      tm_replica_answer_send(&a);
  }
  pthread_mutex_unlock(&l->order);
  tm_buf_release(&a.meta);
  return st;
}

static tm_status service_ask(tm_ps_lane *l, tm_conn *c, tm_message *m, tm_ps_park *park,
                             tm_err *err) {
  switch (m->f.kind) {
    case TM_F_PS_REQUEST:
      return service_request(l, c, m, park, err);
    case TM_F_PS_STATS:
      return service_stats(l, c, m->f.id);
    case TM_F_PS_SNAPSHOT:
    case TM_F_PS_SAVE:
    case TM_F_PS_SNAPSHOT_READ:
    case TM_F_PS_RELEASE:
      return tm_ps_saver_message(l->saver, l, c, m, err);
    case TM_F_PS_COMMIT: /* it changes rows: see (5) */
      if (park && tm_store_commit_waits(l->store) &&
          tm_ps_park_put(park, c, m) == TM_OK)
        return TM_OK;
      break;
    default:
      break;
  }
  if (l->ordered) return service_ordered(l, c, m, err);
  if (m->f.kind == TM_F_PS_LOAD) return tm_ps_loader_message(l->loader, c, m, err);
  TM_TRY(tm_service_change(l, m, err));
  tm_status st = tm_service_ok(c, m->f.id);
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

/* --- frames --- */

/* A request to the lane that the connection speaks of. */
static tm_status service_message(tm_ps_service *s, tm_conn *c, tm_message *m,
                                 tm_ps_park *park, tm_err *err) {
  const service_door *door = tm_conn_tag(c);
  if (door && door->copy) return tm_service_copy(s, c, m, err);
  pthread_rwlock_rdlock(&s->lock);
  tm_ps_lane *l = door ? tm_service_lane(s, door->lane) : s->lane[0];
  bool served = l && tm_ps_lane_role(l) == TM_LANE_PRIMARY;
  tm_status st = tm_service_check_start(s, c, err);
  if (st == TM_OK && served) st = service_ask(l, c, m, park, err);
  pthread_rwlock_unlock(&s->lock);
  if (st == TM_OK && !served) /* (3) */
    tm_conn_close(c, TM_EUNAVAILABLE, "these shards are not served here");
  return st;
}

static bool service_knows(const tm_conn *c, uint16_t kind) {
  const service_door *door = tm_conn_tag(c);
  if (kind > TM_F_REPLICA && kind < TM_F_REPLICA_LOST) return door && door->copy;
  return (kind >= TM_F_PS_REQUEST && kind <= TM_F_PS_STATS && kind != TM_F_PS_REPLY) ||
         kind == TM_F_PS_LOAD || kind == TM_F_PS_SNAPSHOT || kind == TM_F_PS_SAVE ||
         kind == TM_F_PS_SNAPSHOT_READ || kind == TM_F_PS_RELEASE ||
         kind == TM_F_PS_TOKENS || kind == TM_F_PS_COMMIT;
}

static bool service_serve(tm_ps_service *s, tm_conn *c, tm_message *m,
                          tm_ps_park *park) {
  tm_err err;
  tm_status st;
  bool control = strcmp(tm_conn_peer(c)->purpose, "control") == 0;
  tm_err_clear(&err);
  if (m->f.kind == TM_F_PS_OPEN)
    st = service_open(s, c, m, &err);
  else if (m->f.kind == TM_F_REPLICA && !control)
    st = tm_service_begin_copy(s, c, m, &err);
  else if (m->f.kind == TM_F_LANE && control)
    st = tm_service_order_lane(s, c, m, &err);
  else if (service_knows(c, m->f.kind))
    st = service_message(s, c, m, park, &err);
  else
    return false;
  if (st == TM_OK) return true;
  if (err.code == TM_OK) tm_fail(&err, st, "the ps could not answer");
  if (!err.task[0]) memcpy(err.task, s->task, sizeof err.task);
  if (tm_conn_send_error(c, m->f.id, &err) == TM_ENOMEM)
    tm_conn_close(c, TM_ENOMEM, "no memory for an answer");
  return true;
}

bool tm_ps_service_message(tm_ps_service *s, tm_conn *c, tm_message *m) {
  return service_serve(s, c, m, s->park);
}

static void service_serve_parked(void *ud, tm_conn *c, tm_message *m) {
  service_serve(ud, c, m, NULL);
}
