#include "cluster/ps_remote.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "cluster/ps_load.h"
#include "cluster/ps_wire.h"

/*
 * Design.  One request is outstanding; its answer is taken by wait, straight into the
 * places that the request names.  Scratch (metadata, segments) is kept between
 * requests, so a step allocates nothing here.
 */
enum { REMOTE_META = 16 << 20 };
#define REMOTE_SLOW_NS 600000000000 /* making a large shard may take long */

typedef struct remote_client {
  tm_ps_client c; /* first */
  tm_channel *ch;
  tm_buf meta;
  tm_segments seg;
  uint64_t id;
  int64_t silence;
} remote_client;

static tm_status remote_send(remote_client *r, tm_frame_kind kind, tm_status packed,
                             tm_err *err) {
  tm_frame f = {.kind = (uint16_t)kind, .id = ++r->id};
  if (packed == TM_EEXHAUSTED)
    return tm_fail(err, packed, "%s: a request of more than %d bytes of metadata",
                   r->c.task, (int)REMOTE_META);
  if (packed) return tm_nomem(err, "a request");
  return tm_channel_send(r->ch, &f, &r->meta, r->seg.s, r->seg.n, err);
}

static void remote_start(remote_client *r, tm_packer *w) {
  tm_buf_clear(&r->meta);
  r->seg.n = 0;
  tm_pack_init(w, &r->meta);
}

/* Wait for the answer of the given kind; an error of the ps becomes ours. */
static tm_status remote_answer(remote_client *r, tm_frame_kind kind, tm_frame *f,
                               const uint8_t **meta, tm_err *err) {
  TM_TRY(tm_channel_head(r->ch, f, meta, err));
  if (f->id != r->id || (f->kind != kind && f->kind != TM_F_ERROR))
    return tm_fail(err, TM_EDATALOSS, "%s answered a question that was not asked",
                   r->c.task);
  if (f->kind == kind) return TM_OK;
  tm_unpacker u;
  tm_err theirs;
  tm_unpack_init(&u, *meta, f->meta_bytes);
  tm_err_unpack(&u, &theirs);
  TM_TRY(tm_unpack_end(&u, err));
  TM_TRY(tm_channel_end(r->ch, err));
  if (err) *err = theirs;
  if (err && !err->task[0]) memcpy(err->task, r->c.task, sizeof err->task);
  return theirs.code;
}

static tm_status remote_begin(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  return remote_send(r, TM_F_PS_REQUEST, tm_ps_request_pack(rq, &w, &r->seg), err);
}

static tm_status remote_wait(tm_ps_client *c, tm_ps_request *rq, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_frame f;
  const uint8_t *meta;
  TM_TRY(remote_answer(r, TM_F_PS_REPLY, &f, &meta, err));
  return tm_ps_reply_take(r->ch, &f, meta, rq, err);
}

/* Send what is packed and wait for an answer without content. */
static tm_status remote_call(remote_client *r, tm_frame_kind kind, tm_status packed,
                             tm_err *err) {
  tm_frame f;
  const uint8_t *meta;
  TM_TRY(remote_send(r, kind, packed, err));
  TM_TRY(remote_answer(r, TM_F_OK, &f, &meta, err));
  return tm_channel_end(r->ch, err);
}

static tm_status remote_create(tm_ps_client *c, const tm_shard_spec *spec, int32_t n,
                               tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_status s = tm_ps_specs_pack(spec, n, &w, &r->seg);
  tm_channel_set_silence(r->ch, REMOTE_SLOW_NS);
  s = remote_call(r, TM_F_PS_CREATE, s, err);
  tm_channel_set_silence(r->ch, r->silence);
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

static tm_status remote_stats(tm_ps_client *c, tm_store_stats *out, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  tm_frame f;
  const uint8_t *meta;
  remote_start(r, &w);
  TM_TRY(remote_send(r, TM_F_PS_STATS, TM_OK, err));
  TM_TRY(remote_answer(r, TM_F_PS_STATS_REPLY, &f, &meta, err));
  TM_TRY(tm_ps_stats_unpack(meta, f.meta_bytes, out, err));
  return tm_channel_end(r->ch, err);
}

static tm_status remote_put(tm_ps_client *c, const tm_ps_place *p, const tm_view *rows,
                            tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  tm_frame f;
  const uint8_t *meta;
  remote_start(r, &w);
  tm_ps_put_pack(&w, p, rows);
  tm_status s = w.status;
  if (s == TM_OK) s = tm_segments_push(&r->seg, rows->data, tm_view_bytes(rows));
  TM_TRY(remote_send(r, TM_F_PS_LOAD, s, err));
  TM_TRY(remote_answer(r, TM_F_PS_LOAD_REPLY, &f, &meta, err));
  return tm_channel_end(r->ch, err);
}

static tm_status remote_load(tm_ps_client *c, tm_ps_load *load, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_packer w;
  remote_start(r, &w);
  tm_ps_load_pack(&w, load);
  return remote_send(r, TM_F_PS_LOAD, w.status, err);
}

static tm_status remote_loaded_answer(remote_client *r, tm_ps_load *load, tm_err *err) {
  tm_frame f;
  tm_unpacker u;
  const uint8_t *meta;
  TM_TRY(remote_answer(r, TM_F_PS_LOAD_REPLY, &f, &meta, err));
  tm_unpack_init(&u, meta, f.meta_bytes);
  load->unseen = tm_unpack_bool(&u);
  TM_TRY(tm_unpack_end(&u, err));
  return tm_channel_end(r->ch, err);
}

/* Reading may take long; that the ps is there its control connection shows. */
static tm_status remote_loaded(tm_ps_client *c, tm_ps_load *load, tm_err *err) {
  remote_client *r = (remote_client *)c;
  tm_channel_set_silence(r->ch, REMOTE_SLOW_NS);
  tm_status s = remote_loaded_answer(r, load, err);
  tm_channel_set_silence(r->ch, r->silence);
  return s;
}

static void remote_close(tm_ps_client *c) {
  remote_client *r = (remote_client *)c;
  tm_channel_close(r->ch);
  tm_buf_release(&r->meta);
  tm_segments_release(&r->seg);
  tm_free(r, sizeof *r);
}

tm_status tm_ps_client_remote(const tm_channel_options *opt, tm_ps_client **out,
                              tm_err *err) {
  tm_channel_options o = *opt;
  *out = NULL;
  remote_client *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, "a client");
  snprintf(o.self.purpose, sizeof o.self.purpose, "data");
  tm_status s = tm_channel_open(&o, &r->ch, err);
  if (s) {
    tm_free(r, sizeof *r);
    return s;
  }
  r->silence = o.silence_ns;
  r->meta.max = REMOTE_META;
  memcpy(r->c.task, tm_channel_peer(r->ch)->task, sizeof r->c.task);
  r->c.begin = remote_begin;
  r->c.wait = remote_wait;
  r->c.create = remote_create;
  r->c.drop = remote_drop;
  r->c.refuse = remote_refuse;
  r->c.stats = remote_stats;
  r->c.put = remote_put;
  r->c.load = remote_load;
  r->c.loaded = remote_loaded;
  r->c.close = remote_close;
  *out = &r->c;
  return TM_OK;
}
