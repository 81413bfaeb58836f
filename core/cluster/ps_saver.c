#include "cluster/ps_saver.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/save_lane.h"
#include "cluster/save_wire.h"

/*
 * Design.  There is one hold at a time: a snapshot, whose it is, and the thread that
 * writes it.  Giving it up sets `cancel`; if the thread is at work it frees the hold
 * when it has stopped, else that is done at once.
 *
 * Invariants:
 *   (1) `hold` is changed under mu.  While `busy`, its snapshot is the thread's, else
 *       that of whoever has mu.
 *   (2) A thread holds a reference on its lane and on the connection.
 *   (3) `working` counts threads.
 */
typedef struct saver_hold {
  tm_ps_saver *owner;
  tm_ps_lane *lane; /* a reference only while busy */
  tm_conn *conn;    /* so too; compared */
  tm_snapshot *sn;
  uint64_t id, request;
  bool busy, over;
  tm_cancel cancel;
  tm_arena arena; /* of the job */
  tm_snapshot_job job;
} saver_hold;

struct tm_ps_saver {
  pthread_mutex_t mu;
  pthread_cond_t idle;
  saver_hold *hold; /* NULL: none */
  uint64_t ids;
  int working;
};

tm_status tm_ps_saver_new(tm_ps_saver **out) {
  tm_ps_saver *s = *out = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  pthread_mutex_init(&s->mu, NULL);
  pthread_cond_init(&s->idle, NULL);
  return TM_OK;
}

/* Nobody else knows of it any more. */
static void hold_free(saver_hold *h) {
  if (!h) return;
  tm_snapshot_free(h->sn);
  tm_arena_release(&h->arena);
  tm_free(h, sizeof *h);
}

/* mu held: take the hold away.  What is returned is to be freed without mu; NULL: its
 * thread will. */
static saver_hold *saver_take_hold(tm_ps_saver *s) {
  saver_hold *h = s->hold;
  if (!h) return NULL;
  s->hold = NULL;
  h->over = true;
  tm_cancel_set(&h->cancel);
  return h->busy ? NULL : h;
}

void tm_ps_saver_give_up(tm_ps_saver *s) {
  pthread_mutex_lock(&s->mu);
  saver_hold *h = saver_take_hold(s);
  pthread_mutex_unlock(&s->mu);
  hold_free(h);
}

void tm_ps_saver_stop(tm_ps_saver *s) {
  tm_ps_saver_give_up(s);
  pthread_mutex_lock(&s->mu);
  while (s->working > 0) pthread_cond_wait(&s->idle, &s->mu);
  pthread_mutex_unlock(&s->mu);
}

void tm_ps_saver_free(tm_ps_saver *s) {
  if (!s) return;
  hold_free(s->hold); /* threads keep the lane, so there is none */
  pthread_mutex_destroy(&s->mu);
  pthread_cond_destroy(&s->idle);
  tm_free(s, sizeof *s);
}

void tm_ps_saver_closed(tm_ps_saver *s, tm_conn *c) {
  pthread_mutex_lock(&s->mu);
  saver_hold *h = s->hold && s->hold->conn == c ? saver_take_hold(s) : NULL;
  pthread_mutex_unlock(&s->mu);
  hold_free(h);
}

/* mu held. */
static tm_status saver_hold_of(tm_ps_saver *s, tm_conn *c, uint64_t id,
                               saver_hold **out, tm_err *err) {
  saver_hold *h = *out = s->hold;
  if (h && h->conn == c && h->id == id && !h->busy) return TM_OK;
  return tm_fail(err, TM_EPRECOND,
                 h && h->busy ? "the checkpoint is being written"
                              : "there is no such snapshot any more");
}

/* --- taking --- */

static tm_status saver_answer_there(tm_conn *c, uint64_t request, const saver_hold *h,
                                    const tm_token_list *q) {
  tm_buf meta = TM_BUF_INIT(TM_FRAME_MAX_META);
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_SNAPSHOT_REPLY, .id = request};
  tm_pack_init(&w, &meta);
  tm_save_there_pack(&w, h->id, h->sn, q);
  tm_status s = w.status ? w.status : tm_conn_send(c, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return s;
}

/* mu held; the hold is not known to anybody yet. */
static tm_status saver_take(tm_ps_saver *s, saver_hold *h, tm_message *m, tm_err *err) {
  tm_snapshot_item *item;
  int32_t n;
  tm_token_list q = {0};
  if (s->hold)
    return tm_fail(err, TM_EEXISTS, "another checkpoint is being saved from here");
  TM_TRY(tm_save_items_unpack(m->meta, m->f.meta_bytes, &h->arena, &item, &n, &q, err));
  TM_TRY(tm_snapshot_take_tokens(h->lane->store, item, n, &q, &h->sn, err));
  h->id = ++s->ids;
  return saver_answer_there(h->conn, m->f.id, h, &q);
}

static tm_status saver_snapshot(tm_ps_saver *s, tm_ps_lane *lane, tm_conn *c,
                                tm_message *m, tm_err *err) {
  saver_hold *h = tm_calloc(1, sizeof *h);
  if (!h) return tm_nomem(err, "a snapshot");
  h->owner = s;
  h->lane = lane;
  h->conn = c;
  h->arena = (tm_arena)TM_ARENA_INIT;
  pthread_mutex_lock(&s->mu);
  tm_status st = saver_take(s, h, m, err);
  if (st == TM_OK) s->hold = h;
  pthread_mutex_unlock(&s->mu);
  if (st) hold_free(h);
  return st == TM_ENOMEM ? tm_nomem(err, "a snapshot") : st;
}

/* --- writing --- */

static tm_status saver_answer_saved(saver_hold *h) {
  tm_buf meta = TM_BUF_INIT(128);
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_SAVE_REPLY, .id = h->request};
  tm_pack_init(&w, &meta);
  tm_save_answer_pack(&w, &h->job);
  tm_status s =
      w.status ? w.status : tm_conn_send(h->conn, &f, &meta, NULL, 0, NULL, NULL);
  tm_buf_release(&meta);
  return s;
}

/* mu held. */
static void saver_say(saver_hold *h, tm_status st, const tm_err *err) {
  tm_status sent =
      st ? tm_conn_send_error(h->conn, h->request, err) : saver_answer_saved(h);
  if (sent == TM_ENOMEM) tm_conn_close(h->conn, sent, "no memory for an answer");
}

static void *saver_thread(void *ud) {
  saver_hold *h = ud;
  tm_ps_saver *s = h->owner;
  tm_ps_lane *lane = h->lane;
  tm_conn *c = h->conn;
  tm_err err;
  tm_err_clear(&err);
  tm_status st = tm_snapshot_write(h->sn, &h->job, &h->cancel, &err);
  if (st && err.code == TM_OK) tm_fail(&err, st, "the checkpoint cannot be written");
  if (st && !err.task[0]) memcpy(err.task, tm_store_task(lane->store), sizeof err.task);
  pthread_mutex_lock(&s->mu);
  h->busy = false; /* before the answer, which may be followed by a request */
  bool over = h->over;
  if (!over) saver_say(h, st, &err);
  pthread_mutex_unlock(&s->mu);
  if (over) hold_free(h);
  tm_conn_unref(c);
  pthread_mutex_lock(&s->mu);
  if (--s->working == 0) pthread_cond_broadcast(&s->idle);
  pthread_mutex_unlock(&s->mu);
  tm_ps_lane_unref(lane);
  return NULL;
}

/* mu held. */
static tm_status saver_start(tm_ps_saver *s, tm_conn *c, tm_message *m, tm_err *err) {
  saver_hold *h;
  tm_snapshot_job job;
  uint64_t id;
  pthread_t thread;
  tm_arena a = TM_ARENA_INIT;
  tm_status st = tm_save_job_unpack(m->meta, m->f.meta_bytes, &a, &id, &job, err);
  if (st == TM_OK) st = saver_hold_of(s, c, id, &h, err);
  if (st) {
    tm_arena_release(&a);
    return st;
  }
  tm_arena_release(&h->arena);
  h->arena = a;
  h->job = job;
  h->request = m->f.id;
  h->busy = true;
  tm_conn_ref(c);
  tm_ps_lane_ref(h->lane);
  if (pthread_create(&thread, NULL, saver_thread, h)) {
    tm_conn_unref(c);
    tm_ps_lane_unref(h->lane);
    h->busy = false;
    return tm_fail(err, TM_EEXHAUSTED, "no thread to write a checkpoint with");
  }
  pthread_detach(thread);
  s->working++;
  return TM_OK;
}

/* --- reading --- */

typedef struct saver_piece {
  size_t cap;
  _Alignas(64) unsigned char data[];
} saver_piece;

static void piece_free(void *ud) {
  saver_piece *p = ud;
  tm_free_aligned(p, sizeof *p + p->cap);
}

/* mu held: numbers of rows. */
static tm_status saver_next_ids(saver_hold *h, const tm_save_read *rd, saver_piece *p,
                                size_t *n, tm_err *err) {
  int32_t part = rd->part - tm_snapshot_count(h->sn);
  if (part >= tm_snapshot_count(h->sn) || !tm_snapshot_part_at(h->sn, part)->there)
    return tm_fail(err, TM_EINVAL, "the snapshot has no part %d", rd->part);
  *n = sizeof(int64_t) *
       tm_snapshot_ids(h->sn, part, (int64_t)(rd->at / sizeof(int64_t)),
                       (int64_t *)(void *)p->data, p->cap / sizeof(int64_t));
  return TM_OK;
}

/* mu held. */
static tm_status saver_next(saver_hold *h, const tm_save_read *rd, saver_piece *p,
                            size_t *n, tm_err *err) {
  tm_snapshot_piece got;
  TM_TRY(tm_snapshot_status(h->sn, err));
  if (rd->part < 0) return TM_OK;
  if (rd->cap == 0) return tm_fail(err, TM_EINVAL, "a piece of no bytes");
  if (rd->part >= tm_snapshot_count(h->sn)) return saver_next_ids(h, rd, p, n, err);
  const tm_snapshot_part *part = tm_snapshot_part_at(h->sn, rd->part);
  if (!part->there || rd->at >= part->bytes)
    return tm_fail(err, TM_ERANGE, "part %d of the snapshot ends before that",
                   rd->part);
  tm_snapshot_next(h->sn, rd->part, rd->at, p->data, p->cap, &got);
  if (!got.p) return tm_fail(err, TM_EPRECOND, "the snapshot was written already");
  if (got.p != p->data) memcpy(p->data, got.p, got.n);
  *n = got.n;
  return TM_OK;
}

static tm_status saver_answer_piece(tm_conn *c, uint64_t request, saver_piece *p,
                                    size_t n) {
  tm_buf meta = TM_BUF_INIT(64);
  tm_packer w;
  tm_frame f = {.kind = TM_F_PS_SNAPSHOT_PIECE, .id = request};
  tm_segment seg = {p->data, n};
  tm_pack_init(&w, &meta);
  tm_pack_uint(&w, n);
  tm_status s = w.status;
  if (s)
    piece_free(p);
  else
    s = tm_conn_send(c, &f, &meta, &seg, n > 0, piece_free, p);
  tm_buf_release(&meta);
  return s;
}

static tm_status saver_read(tm_ps_saver *s, tm_conn *c, tm_message *m, tm_err *err) {
  tm_save_read rd;
  saver_hold *h;
  size_t n = 0;
  TM_TRY(tm_save_read_unpack(m->meta, m->f.meta_bytes, &rd, err));
  saver_piece *p = tm_malloc_aligned(sizeof *p + rd.cap);
  if (!p) return tm_nomem(err, "a piece of a checkpoint");
  p->cap = rd.cap;
  pthread_mutex_lock(&s->mu);
  tm_status st = saver_hold_of(s, c, rd.id, &h, err);
  if (st == TM_OK) st = saver_next(h, &rd, p, &n, err);
  pthread_mutex_unlock(&s->mu);
  if (st) {
    piece_free(p);
    return st;
  }
  st = saver_answer_piece(c, m->f.id, p, n);
  return st == TM_ENOMEM ? tm_nomem(err, "a piece of a checkpoint") : st;
}

/* --- releasing --- */

static tm_status saver_release(tm_ps_saver *s, tm_conn *c, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_frame f = {.kind = TM_F_OK, .id = m->f.id};
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  uint64_t id = tm_unpack_uint(&r);
  TM_TRY(tm_unpack_end(&r, err));
  pthread_mutex_lock(&s->mu);
  saver_hold *h = s->hold;
  h = h && h->conn == c && h->id == id ? saver_take_hold(s) : NULL;
  pthread_mutex_unlock(&s->mu);
  hold_free(h);
  return tm_conn_send(c, &f, NULL, NULL, 0, NULL, NULL);
}

tm_status tm_ps_saver_message(tm_ps_saver *s, tm_ps_lane *lane, tm_conn *c,
                              tm_message *m, tm_err *err) {
  switch (m->f.kind) {
    case TM_F_PS_SNAPSHOT:
      return saver_snapshot(s, lane, c, m, err);
    case TM_F_PS_SAVE: {
      pthread_mutex_lock(&s->mu);
      tm_status st = saver_start(s, c, m, err);
      pthread_mutex_unlock(&s->mu);
      return st;
    }
    case TM_F_PS_SNAPSHOT_READ:
      return saver_read(s, c, m, err);
    default:
      return saver_release(s, c, m, err);
  }
}
