#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/save_lane.h"
#include "cluster/save_wire.h"

/*
 * Design.  A connection of its own, so that a save neither waits for the chief's
 * requests nor holds them up, and so that the ps knows when its chief is gone: the
 * snapshot lives as long as the connection.
 *
 * Writing may take long, and the ps says nothing meanwhile; that it is alive its
 * control connection shows (`lost` of the channel).
 */
enum { LANE_META = 16 << 20 };
#define LANE_SLOW_NS 600000000000

typedef struct remote_lane {
  tm_save_lane l; /* first */
  tm_channel *ch;
  tm_buf meta;
  uint64_t id, snapshot;
  int64_t silence;
  int32_t n;
  tm_token_list *asked;
} remote_lane;

static tm_status lane_send(remote_lane *a, tm_frame_kind kind, tm_status packed,
                           tm_err *err) {
  tm_frame f = {.kind = (uint16_t)kind, .id = ++a->id};
  if (packed == TM_EEXHAUSTED)
    return tm_fail(err, packed, "%s: names of more than %d bytes in one checkpoint",
                   a->l.task, (int)LANE_META);
  if (packed) return tm_nomem(err, "a checkpoint");
  return tm_channel_send(a->ch, &f, &a->meta, NULL, 0, err);
}

static void lane_start(remote_lane *a, tm_packer *w) {
  tm_buf_clear(&a->meta);
  tm_pack_init(w, &a->meta);
}

static tm_status lane_answer(remote_lane *a, tm_frame_kind kind, tm_frame *f,
                             const uint8_t **meta, tm_err *err) {
  TM_TRY(tm_channel_head(a->ch, f, meta, err));
  if (f->id == a->id && f->kind == kind) return TM_OK;
  if (f->id != a->id || f->kind != TM_F_ERROR)
    return tm_fail(err, TM_EDATALOSS, "%s answered a question that was not asked",
                   a->l.task);
  tm_unpacker u;
  tm_err theirs;
  tm_unpack_init(&u, *meta, f->meta_bytes);
  tm_err_unpack(&u, &theirs);
  TM_TRY(tm_unpack_end(&u, err));
  TM_TRY(tm_channel_end(a->ch, err));
  if (err) *err = theirs;
  if (err && !err->task[0]) memcpy(err->task, a->l.task, sizeof err->task);
  return theirs.code;
}

static tm_status remote_take(tm_save_lane *l, const tm_snapshot_item *item, int32_t n,
                             tm_token_list *q, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_packer w;
  a->n = n;
  a->asked = q;
  lane_start(a, &w);
  tm_save_items_pack(&w, item, n, q);
  return lane_send(a, TM_F_PS_SNAPSHOT, w.status, err);
}

static tm_status remote_taken(tm_save_lane *l, int64_t *there, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_frame f;
  const uint8_t *meta;
  TM_TRY(lane_answer(a, TM_F_PS_SNAPSHOT_REPLY, &f, &meta, err));
  TM_TRY(tm_save_there_unpack(meta, f.meta_bytes, &a->snapshot, there, a->n, a->asked,
                              err));
  return tm_channel_end(a->ch, err);
}

static tm_status remote_write(tm_save_lane *l, tm_snapshot_job *job, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_packer w;
  lane_start(a, &w);
  tm_save_job_pack(&w, a->snapshot, job);
  tm_channel_set_silence(a->ch, LANE_SLOW_NS);
  return lane_send(a, TM_F_PS_SAVE, w.status, err);
}

static tm_status remote_written(tm_save_lane *l, tm_snapshot_job *job, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_frame f;
  const uint8_t *meta;
  TM_TRY(lane_answer(a, TM_F_PS_SAVE_REPLY, &f, &meta, err));
  tm_channel_set_silence(a->ch, a->silence);
  TM_TRY(tm_save_answer_unpack(meta, f.meta_bytes, job, err));
  return tm_channel_end(a->ch, err);
}

static tm_status lane_ask(remote_lane *a, int32_t part, uint64_t at, uint32_t cap,
                          tm_frame *f, tm_err *err) {
  tm_packer w;
  const uint8_t *meta;
  tm_save_read rd = {a->snapshot, at, part, cap};
  lane_start(a, &w);
  tm_save_read_pack(&w, &rd);
  TM_TRY(lane_send(a, TM_F_PS_SNAPSHOT_READ, w.status, err));
  TM_TRY(lane_answer(a, TM_F_PS_SNAPSHOT_PIECE, f, &meta, err));
  tm_unpacker u;
  tm_unpack_init(&u, meta, f->meta_bytes);
  uint64_t n = (uint64_t)tm_unpack_range(&u, 0, cap);
  if (u.status == TM_OK && tm_frame_pad(n) != f->payload_bytes)
    tm_unpack_fail(&u, "describes another payload than came");
  f->payload_bytes = n;
  return tm_unpack_end(&u, err);
}

static tm_status remote_read(tm_save_lane *l, int32_t part, uint64_t at, void *dst,
                             size_t cap, size_t *n, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_frame f;
  TM_TRY(lane_ask(a, part, at, (uint32_t)cap, &f, err));
  *n = (size_t)f.payload_bytes;
  if (*n == 0)
    return tm_fail(err, TM_EDATALOSS, "%s: a snapshot has less than it said",
                   a->l.task);
  TM_TRY(tm_channel_take(a->ch, dst, *n, err));
  return tm_channel_end(a->ch, err);
}

static tm_status remote_finish(tm_save_lane *l, tm_err *err) {
  remote_lane *a = (remote_lane *)l;
  tm_frame f;
  TM_TRY(lane_ask(a, -1, 0, 0, &f, err));
  return tm_channel_end(a->ch, err);
}

/* The ps releases the snapshot when it sees that the connection has ended, which may be
 * after the next save has begun; so it is told, and has done it, before. */
static void lane_release(remote_lane *a) {
  tm_packer w;
  tm_frame f;
  const uint8_t *meta;
  tm_channel_set_silence(a->ch, a->silence);
  if (tm_channel_end(a->ch, NULL)) return; /* of an answer that was read in part */
  lane_start(a, &w);
  tm_pack_uint(&w, a->snapshot);
  if (lane_send(a, TM_F_PS_RELEASE, w.status, NULL)) return;
  do { /* an answer that nobody waited for may come first */
    if (tm_channel_head(a->ch, &f, &meta, NULL) || tm_channel_end(a->ch, NULL)) return;
  } while (f.id != a->id);
}

static void remote_close(tm_save_lane *l) {
  remote_lane *a = (remote_lane *)l;
  if (a->snapshot && a->silence && a->ch && !tm_channel_broken(a->ch)) lane_release(a);
  tm_channel_close(a->ch);
  tm_buf_release(&a->meta);
  tm_free(a, sizeof *a);
}

/* Say which lane this is about.  TM_EAGAIN: it is not served there. */
static tm_status lane_open(remote_lane *a, int32_t index, tm_err *err) {
  tm_packer w;
  tm_frame f;
  const uint8_t *meta;
  lane_start(a, &w);
  tm_pack_int(&w, index);
  TM_TRY(lane_send(a, TM_F_PS_OPEN, w.status, err));
  TM_TRY(lane_answer(a, TM_F_PS_OPENED, &f, &meta, err));
  return tm_channel_end(a->ch, err);
}

static tm_status lane_try(remote_lane *a, const tm_ps_remote_options *opt,
                          const tm_ps_where *at, tm_err *err) {
  tm_channel_options o = opt->channel;
  o.address = at->address;
  o.expect_task = at->task;
  o.lost = at->lost;
  snprintf(o.self.purpose, sizeof o.self.purpose, "data");
  TM_TRY(tm_channel_open(&o, &a->ch, err));
  memcpy(a->l.task, tm_channel_peer(a->ch)->task, sizeof a->l.task);
  tm_status s = lane_open(a, opt->lane, err);
  if (s == TM_OK) return s;
  tm_channel_close(a->ch);
  a->ch = NULL;
  return s;
}

static tm_status lane_connect(remote_lane *a, const tm_ps_remote_options *opt,
                              tm_err *err) {
  const tm_ps_where home = {opt->channel.address, opt->channel.expect_task,
                            opt->channel.lost};
  tm_err other;
  tm_status s = lane_try(a, opt, &home, err);
  if (s == TM_OK || !opt->other.address) return s;
  tm_err_clear(&other);
  if (lane_try(a, opt, &opt->other, &other)) return s;
  if (err) tm_err_clear(err);
  return TM_OK;
}

tm_status tm_save_lane_remote(const tm_ps_remote_options *opt, tm_save_lane **out,
                              tm_err *err) {
  *out = NULL;
  remote_lane *a = tm_calloc(1, sizeof *a);
  if (!a) return tm_nomem(err, "a checkpoint");
  a->l = (tm_save_lane){.take = remote_take,
                        .taken = remote_taken,
                        .write = remote_write,
                        .written = remote_written,
                        .read = remote_read,
                        .finish = remote_finish,
                        .close = remote_close};
  a->silence = opt->channel.silence_ns;
  a->meta.max = LANE_META;
  tm_status s = lane_connect(a, opt, err);
  if (s) {
    remote_close(&a->l);
    return s;
  }
  *out = &a->l;
  return TM_OK;
}
