#include "cluster/ps_service.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/ps_lane.h"
#include "cluster/ps_saver.h"
#include "cluster/ps_wire.h"

/*
 * Design.  A request is decoded with ids and values left in the frame's payload,
 * handled in the loop's thread, and answered from the shards' own memory: dense
 * versions are held until they are written out; rows are gathered into one buffer.
 *
 * Invariants:
 *   (1) Lanes are used under a read lock, so a reset waits for running requests.
 *   (2) A reply in flight holds tensors, not the store.
 *   (3) A request is answered by the primary of its lane only: where the lane is not
 *       served (any more) the connection ends, and the client looks elsewhere.
 */
enum { SERVICE_LANES = 8 };

struct tm_ps_service {
  char task[48];
  pthread_rwlock_t lock;
  tm_ps_lane *lane[SERVICE_LANES]; /* guarded by lock; NULL: none */
};

/* What a data connection speaks of: its tag. */
typedef struct service_door {
  int32_t lane;
} service_door;

/* What an answer keeps until it is written. */
typedef struct ps_reply {
  void *rows;
  size_t rows_bytes, size;
  int32_t n;
  tm_tensor *held[];
} ps_reply;

tm_status tm_ps_service_new(const char *task, tm_ps_service **out) {
  *out = NULL;
  tm_ps_service *s = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  strncpy(s->task, task, sizeof s->task - 1);
  if (tm_ps_lane_new(task, 0, 0, TM_LANE_PRIMARY, &s->lane[0])) {
    tm_free(s, sizeof *s);
    return TM_ENOMEM;
  }
  pthread_rwlock_init(&s->lock, NULL);
  *out = s;
  return TM_OK;
}

void tm_ps_service_free(tm_ps_service *s) {
  if (!s) return;
  for (int i = 0; i < SERVICE_LANES; i++) {
    if (s->lane[i]) tm_ps_saver_stop(s->lane[i]->saver);
    tm_ps_lane_unref(s->lane[i]);
  }
  pthread_rwlock_destroy(&s->lock);
  tm_free(s, sizeof *s);
}

tm_status tm_ps_service_reset(tm_ps_service *s, int32_t lane) {
  tm_ps_lane *old[SERVICE_LANES], *fresh = NULL;
  if (lane >= 0) TM_TRY(tm_ps_lane_new(s->task, lane, 0, TM_LANE_PRIMARY, &fresh));
  pthread_rwlock_wrlock(&s->lock);
  memcpy(old, s->lane, sizeof old);
  memset(s->lane, 0, sizeof s->lane);
  s->lane[0] = fresh;
  pthread_rwlock_unlock(&s->lock);
  for (int i = 0; i < SERVICE_LANES; i++) {
    if (old[i]) tm_ps_saver_give_up(old[i]->saver);
    tm_ps_lane_unref(old[i]);
  }
  return TM_OK;
}

void tm_ps_service_closed(tm_ps_service *s, tm_conn *c) {
  pthread_rwlock_rdlock(&s->lock);
  for (int i = 0; i < SERVICE_LANES; i++)
    if (s->lane[i]) tm_ps_saver_closed(s->lane[i]->saver, c);
  pthread_rwlock_unlock(&s->lock);
}

/* NULL: it is not here (lock held). */
static tm_ps_lane *service_lane(tm_ps_service *s, int32_t index) {
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

static tm_status service_answer(tm_conn *c, uint64_t id, tm_ps_request *rq,
                                ps_reply *r) {
  tm_buf meta = TM_BUF_INIT(TM_FRAME_MAX_META);
  tm_segments seg = {NULL, 0, 0};
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_REPLY, .id = id};
  tm_pack_init(&w, &meta);
  tm_status s = tm_ps_reply_pack(rq, &w, &seg);
  if (s)
    service_release(r);
  else
    s = tm_conn_send(c, &f, &meta, seg.s, seg.n, service_release, r);
  tm_buf_release(&meta);
  tm_segments_release(&seg);
  return s;
}

static tm_status service_handle(tm_ps_lane *l, tm_conn *c, tm_message *m, tm_arena *a,
                                tm_err *err) {
  tm_ps_request rq;
  uint64_t rows_bytes;
  TM_TRY(tm_ps_request_unpack(m->meta, m->f.meta_bytes, m->payload, m->f.payload_bytes,
                              a, &rq, &rows_bytes, err));
  ps_reply *r = service_reply_new(rq.nrd, rows_bytes);
  if (!r) return tm_nomem(err, "an answer");
  service_place_rows(&rq, r);
  tm_store_handle(l->store, &rq);
  service_hold(&rq, r);
  tm_status st = service_answer(c, m->f.id, &rq, r);
  /* A connection that is gone needs no answer. */
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

static tm_status service_request(tm_ps_lane *l, tm_conn *c, tm_message *m,
                                 tm_err *err) {
  tm_arena a = TM_ARENA_INIT;
  tm_status st = service_handle(l, c, m, &a, err);
  tm_arena_release(&a);
  return st;
}

static tm_status service_ok(tm_conn *c, uint64_t id) {
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

static void service_door_free(void *door) { tm_free(door, sizeof(service_door)); }

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
  tm_ps_lane *l = index < 0 ? s->lane[0] : service_lane(s, index);
  if (l) index = l->index;
  bool served = l && tm_ps_lane_role(l) == TM_LANE_PRIMARY;
  uint64_t run = served ? l->run : 0;
  pthread_rwlock_unlock(&s->lock);
  if (!served)
    return tm_fail(err, TM_EAGAIN, "%s does not serve lane %d", s->task, index);
  service_door *door = tm_malloc(sizeof *door);
  if (!door) return tm_nomem(err, "a connection");
  door->lane = index;
  tm_conn_set_tag(c, door, service_door_free);
  tm_pack_init(&w, &meta);
  tm_pack_uint(&w, run);
  tm_status st = w.status ? w.status : tm_conn_send(c, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return st;
}

/* Kinds that are answered by OK. */
static bool service_plain(uint16_t kind) {
  return kind >= TM_F_PS_CREATE && kind <= TM_F_PS_REFUSE;
}

static tm_status service_ask(tm_ps_lane *l, tm_conn *c, tm_message *m, tm_err *err) {
  switch (m->f.kind) {
    case TM_F_PS_REQUEST:
      return service_request(l, c, m, err);
    case TM_F_PS_CREATE:
      return service_create(l, m, err);
    case TM_F_PS_DROP:
      return service_drop(l, m, err);
    case TM_F_PS_REFUSE:
      return service_refuse(l, m, err);
    case TM_F_PS_STATS:
      return service_stats(l, c, m->f.id);
    case TM_F_PS_SNAPSHOT:
    case TM_F_PS_SAVE:
    case TM_F_PS_SNAPSHOT_READ:
    case TM_F_PS_RELEASE:
      return tm_ps_saver_message(l->saver, l, c, m, err);
    default:
      return tm_ps_loader_message(l->loader, c, m, err);
  }
}

/* A request to the lane that the connection speaks of. */
static tm_status service_message(tm_ps_service *s, tm_conn *c, tm_message *m,
                                 tm_err *err) {
  const service_door *door = tm_conn_tag(c);
  pthread_rwlock_rdlock(&s->lock);
  tm_ps_lane *l = door ? service_lane(s, door->lane) : s->lane[0];
  bool served = l && tm_ps_lane_role(l) == TM_LANE_PRIMARY;
  tm_status st = served ? service_ask(l, c, m, err) : TM_EUNAVAILABLE;
  pthread_rwlock_unlock(&s->lock);
  if (!served)
    tm_conn_close(c, TM_EUNAVAILABLE, "these shards are not served here"); /* (3) */
  if (st == TM_OK && service_plain(m->f.kind)) st = service_ok(c, m->f.id);
  return st;
}

static bool service_knows(uint16_t kind) {
  return (kind >= TM_F_PS_REQUEST && kind <= TM_F_PS_STATS && kind != TM_F_PS_REPLY) ||
         kind == TM_F_PS_LOAD || kind == TM_F_PS_SNAPSHOT || kind == TM_F_PS_SAVE ||
         kind == TM_F_PS_SNAPSHOT_READ || kind == TM_F_PS_RELEASE;
}

bool tm_ps_service_message(tm_ps_service *s, tm_conn *c, tm_message *m) {
  tm_err err;
  tm_status st;
  tm_err_clear(&err);
  if (m->f.kind == TM_F_PS_OPEN)
    st = service_open(s, c, m, &err);
  else if (service_knows(m->f.kind))
    st = service_message(s, c, m, &err);
  else
    return false;
  if (st == TM_OK || st == TM_EUNAVAILABLE) return true;
  if (err.code == TM_OK) tm_fail(&err, st, "the ps could not answer");
  if (!err.task[0]) memcpy(err.task, s->task, sizeof err.task);
  if (tm_conn_send_error(c, m->f.id, &err))
    tm_conn_close(c, TM_ENOMEM, "no memory for an answer");
  return true;
}
