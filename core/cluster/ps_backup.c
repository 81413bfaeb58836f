#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "cluster/ps_service_parts.h"
#include "cluster/ps_wire.h"
#include "ps/copy.h"

/*
 * Design.  The backup of a lane applies the frames of its primary one after the other.
 * Until it is whole it knows some shards only; an UPDATE of one that was not said yet
 * is passed over, because the shard will come as it is after that UPDATE.
 *
 * Invariants:
 *   (1) A copy is changed under its lane's order, in the epoch in which it began.
 *   (2) Only a whole copy becomes a primary; then the epoch grows, and the primary
 *       before it is answered TM_EABORTED: it is one no more.
 */

/* --- copies --- */

/* Only what is said already: the rest comes with its shard. */
static void service_known(tm_ps_lane *l, tm_ps_request *rq) {
  tm_ps_update *up = (tm_ps_update *)(uintptr_t)rq->up; /* of the arena */
  int32_t n = 0;
  for (int32_t i = 0; i < rq->nup; i++)
    if (tm_store_has(l->store, up[i].uid, up[i].shard)) up[n++] = up[i];
  rq->nup = n;
}

static tm_status service_copy_update(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_arena a = TM_ARENA_INIT;
  tm_ps_request rq;
  uint64_t rows_bytes;
  tm_status st = tm_ps_request_unpack(m->meta, m->f.meta_bytes, m->payload,
                                      m->f.payload_bytes, &a, &rq, &rows_bytes, err);
  if (st == TM_OK) {
    rq.nrd = 0;
    if (!l->whole) service_known(l, &rq);
    st = tm_store_handle(l->store, &rq);
    if (st && err) *err = rq.err;
  }
  tm_arena_release(&a);
  return st;
}

static tm_status service_copy_tokens(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_store_unpack_tokens(l->store, &r);
  return tm_unpack_end(&r, err);
}

/* The next segment of a shard into its place. */
static tm_status service_copy_part(tm_ps_lane *l, tm_message *m, uint64_t *at,
                                   const tm_shard_spec *sp, uint64_t optimizer,
                                   int32_t slot, tm_err *err) {
  static uint64_t nothing;
  tm_ps_place p = {
      .uid = sp->uid, .shard = sp->shard, .slot = slot, .optimizer = optimizer};
  tm_view v = {sp->dtype, sp->shape, &nothing};
  uint64_t bytes = tm_view_bytes(&v);
  if (bytes > m->f.payload_bytes - *at)
    return tm_fail(err, TM_EDATALOSS, "a copy of a shard with too few bytes");
  if (bytes) v.data = (uint8_t *)m->payload + *at;
  uint64_t step = tm_frame_pad(bytes), left = m->f.payload_bytes - *at;
  *at += step < left ? step : left;
  return tm_store_put(l->store, &p, &v, err);
}

/* A shard as it is now, in place of what there may be by its name. */
static tm_status service_copy_shard(tm_ps_lane *l, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_shard_spec sp;
  tm_tensor *value;
  uint64_t at = 0;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 2, 2);
  tm_unpack_array(&r, 1, 1);
  TM_TRY(tm_ps_spec_unpack(&r, m->payload, m->f.payload_bytes, &at, &sp, &value, err));
  tm_tensor_unref(value);
  if (value) return tm_fail(err, TM_EDATALOSS, "a copy of a shard with a first value");
  uint32_t n = tm_unpack_array(&r, 0, TM_COPY_SLOTS * 2);
  if (r.status) return tm_unpack_end(&r, err);
  tm_store_drop(l->store, sp.uid, sp.shard);
  TM_TRY(tm_store_create(l->store, &sp, err));
  TM_TRY(service_copy_part(l, m, &at, &sp, 0, -1, err));
  for (uint32_t i = 0; i < n / 2; i++) {
    uint64_t optimizer = tm_unpack_uint(&r);
    int32_t slot = (int32_t)tm_unpack_range(&r, 0, INT32_MAX);
    if (r.status) break;
    TM_TRY(service_copy_part(l, m, &at, &sp, optimizer, slot, err));
  }
  return tm_unpack_end(&r, err);
}

static tm_status service_copy_frame(tm_ps_lane *l, tm_message *m, tm_err *err) {
  switch (m->f.kind) {
    case TM_F_PS_REQUEST:
      return service_copy_update(l, m, err);
    case TM_F_REPLICA_TOKENS:
      return service_copy_tokens(l, m, err);
    case TM_F_REPLICA_SHARD:
      return service_copy_shard(l, m, err);
    case TM_F_REPLICA_DONE:
      l->whole = true;
      return TM_OK;
    default:
      break;
  }
  /* Rows for a shard that was not said yet come with it. */
  tm_status st = tm_service_change(l, m, err);
  return st == TM_ENOTFOUND && !l->whole ? TM_OK : st;
}

/* A frame of the primary for its copy here. */
tm_status tm_service_copy(tm_ps_service *s, tm_conn *c, tm_message *m, tm_err *err) {
  const service_door *door = tm_conn_tag(c);
  pthread_rwlock_rdlock(&s->lock);
  tm_ps_lane *l = tm_service_lane(s, door->lane);
  tm_status st = tm_service_check_start(s, c, err) ? TM_EUNAVAILABLE : TM_EABORTED;
  if (l && st == TM_EABORTED) {
    pthread_mutex_lock(&l->order);
    if (tm_ps_lane_role(l) == TM_LANE_BACKUP && l->epoch == door->epoch)
      st = service_copy_frame(l, m, err);
    pthread_mutex_unlock(&l->order);
  }
  pthread_rwlock_unlock(&s->lock);
  if (st == TM_EABORTED && err->code == TM_OK)
    return tm_fail(err, st, "%s: lane %d has another primary now", s->task, door->lane);
  TM_TRY(st);
  st = tm_service_ok(c, m->f.id);
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

/* Put a lane into its place; what was there is the caller's (lock held). */
static tm_status service_put_lane(tm_ps_service *s, tm_ps_lane *l, tm_ps_lane **old) {
  int at = -1;
  *old = NULL;
  for (int i = SERVICE_LANES; i-- > 0;)
    if (!s->lane[i]) at = i;
  for (int i = 0; i < SERVICE_LANES; i++)
    if (s->lane[i] && s->lane[i]->index == l->index) at = i;
  if (at < 0) return TM_EEXHAUSTED;
  *old = s->lane[at];
  s->lane[at] = l;
  return TM_OK;
}

static tm_status service_new_lane(tm_ps_service *s, const tm_conn *c, int32_t index,
                                  uint64_t run, uint64_t epoch, tm_err *err) {
  tm_ps_lane *l, *old = NULL;
  if (tm_ps_lane_new(s->task, index, true, run, &l)) return tm_nomem(err, "a lane");
  l->epoch = epoch;
  pthread_rwlock_wrlock(&s->lock);
  tm_ps_lane *now = tm_service_lane(s, index);
  tm_status st = tm_service_check_start(s, c, err);
  if (st == TM_OK && now) {
    pthread_mutex_lock(&now->order);
    if (now->epoch >= epoch)
      st = tm_fail(err, TM_EABORTED, "%s: lane %d is in a later epoch", s->task, index);
    pthread_mutex_unlock(&now->order);
  }
  if (st == TM_OK && service_put_lane(s, l, &old))
    st = tm_fail(err, TM_EEXHAUSTED, "%s holds %d lanes", s->task, (int)SERVICE_LANES);
  pthread_rwlock_unlock(&s->lock);
  tm_service_end_lane(st ? l : old);
  return st;
}

/* A primary begins to make a copy here. */
tm_status tm_service_begin_copy(tm_ps_service *s, tm_conn *c, tm_message *m,
                                tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 3, 3);
  int32_t index = (int32_t)tm_unpack_range(&r, 0, INT32_MAX);
  uint64_t run = tm_unpack_uint(&r), epoch = tm_unpack_uint(&r);
  if (run == 0) tm_unpack_fail(&r, "has no run");
  TM_TRY(tm_unpack_end(&r, err));
  service_door *door = tm_calloc(1, sizeof *door);
  if (!door) return tm_nomem(err, "a connection");
  *door = (service_door){index, true, epoch};
  tm_conn_set_tag(c, door, tm_service_door_free);
  TM_TRY(service_new_lane(s, c, index, run, epoch, err));
  tm_status st = tm_service_ok(c, m->f.id);
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

/* --- orders of the chief --- */

/* Serve this lane from now on (read lock held). */
static tm_status service_promote(tm_ps_service *s, tm_ps_lane *l, uint64_t epoch,
                                 tm_err *err) {
  tm_status st = TM_OK;
  pthread_mutex_lock(&l->order);
  tm_lane_role role = tm_ps_lane_role(l);
  if (epoch < l->epoch || role == TM_LANE_GONE) {
    st =
        tm_fail(err, TM_EABORTED, "%s: lane %d is in a later epoch", s->task, l->index);
  } else if (role == TM_LANE_BACKUP && !l->whole) {
    st = tm_fail(err, TM_EPRECOND, "%s: the copy of lane %d is not whole", s->task,
                 l->index);
  } else {
    if (role == TM_LANE_BACKUP)
      tm_log(TM_LOG_INFO, "%s serves lane %d now", s->task, l->index);
    l->epoch = epoch;
    atomic_store(&l->role, TM_LANE_PRIMARY);
  }
  pthread_mutex_unlock(&l->order);
  return st;
}

static tm_status service_host(tm_ps_service *s, tm_err *err) {
  pthread_rwlock_wrlock(&s->lock);
  tm_status st = s->host ? TM_OK : tm_replica_host_new(s->task, &s->host);
  pthread_rwlock_unlock(&s->lock);
  return st ? tm_nomem(err, "copies of lanes") : TM_OK;
}

typedef struct service_order {
  int32_t lane;
  uint64_t epoch;
  bool fresh;        /* begin it empty */
  char address[280]; /* who is to keep a copy; "": nobody */
} service_order;

static tm_status service_obey(tm_ps_service *s, tm_conn *c, uint64_t id,
                              const service_order *o, tm_err *err) {
  bool copy = o->address[0] != 0;
  if (o->fresh) TM_TRY(service_new_lane(s, c, o->lane, 0, o->epoch, err));
  if (copy) TM_TRY(service_host(s, err));
  pthread_rwlock_rdlock(&s->lock);
  tm_ps_lane *l = tm_service_lane(s, o->lane);
  tm_status st = tm_service_check_start(s, c, err);
  if (st == TM_OK && !l)
    st = tm_fail(err, TM_ENOTFOUND, "%s has no lane %d", s->task, o->lane);
  if (st == TM_OK) st = service_promote(s, l, o->epoch, err);
  if (st == TM_OK && copy) {
    tm_replica_order ro = {.address = o->address,
                           .self = *tm_conn_peer(c),
                           .epoch = o->epoch,
                           .chief = c,
                           .id = id};
    memcpy(ro.self.task, s->task, sizeof ro.self.task);
    st = tm_replica_begin(s->host, l, &ro, err);
  } else if (st == TM_OK) {
    tm_replica_drop(l, false);
  }
  pthread_rwlock_unlock(&s->lock);
  if (st || copy) return st;
  st = tm_service_ok(c, id);
  return st == TM_ENOMEM ? tm_nomem(err, "an answer") : TM_OK;
}

tm_status tm_service_order_lane(tm_ps_service *s, tm_conn *c, tm_message *m,
                                tm_err *err) {
  tm_unpacker r;
  service_order o = {.lane = 0};
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 4, 4);
  o.lane = (int32_t)tm_unpack_range(&r, 0, INT32_MAX);
  o.epoch = tm_unpack_uint(&r);
  o.fresh = tm_unpack_bool(&r);
  if (!tm_unpack_nil(&r)) tm_unpack_cstr(&r, o.address, sizeof o.address);
  TM_TRY(tm_unpack_end(&r, err));
  return service_obey(s, c, m->f.id, &o, err);
}
