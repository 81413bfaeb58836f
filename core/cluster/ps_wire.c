#include "cluster/ps_wire.h"

#include <string.h>

#include "base/check.h"

/*
 * Design.  Metadata are short arrays; the payload's segments follow each other in the
 * order of the items: of each update its ids (rows only) and its value, then of each
 * row read its ids.  Sizes are never sent: they follow from dtype and dims, so there is
 * nothing that could disagree.
 */
enum { WIRE_NAME = 24, WIRE_NO_IDS = -1, WIRE_ONCE = 16 };

void tm_type_pack(tm_packer *w, tm_dtype t, const tm_shape *s) {
  tm_pack_int(w, t);
  tm_pack_i64s(w, s->dim, (uint32_t)s->rank);
}

/* Strings are no numbers of a fixed size and never travel this way. */
void tm_type_unpack(tm_unpacker *r, tm_dtype *t, tm_shape *s) {
  memset(s, 0, sizeof *s);
  *t = (tm_dtype)tm_unpack_range(r, TM_F32, TM_BOOL);
  s->rank = (int32_t)tm_unpack_i64s(r, s->dim, TM_MAX_RANK);
  for (int32_t i = 0; i < s->rank; i++)
    if (s->dim[i] < 0) tm_unpack_fail(r, "has a negative size");
  if (r->status == TM_OK && tm_shape_check(s, (int64_t)tm_dtype_size(*t), NULL))
    tm_unpack_fail(r, "has a shape that is too large");
}

/* --- request --- */

static tm_status wire_put_view(const tm_view *v, tm_segments *seg) {
  return tm_segments_push(seg, v->data, tm_view_bytes(v));
}

static tm_status wire_pack_update(const tm_ps_update *up, tm_packer *w,
                                  tm_segments *seg) {
  bool rule = up->kind == TM_PS_APPLY || up->kind == TM_PS_APPLY_ROWS;
  tm_pack_array(w, rule ? 10 : 6);
  tm_pack_int(w, up->kind + (up->once ? WIRE_ONCE : 0));
  tm_pack_uint(w, up->uid);
  tm_pack_uint(w, up->shard);
  tm_pack_int(w, tm_ps_is_rows(up->kind) ? tm_view_count(&up->ids) : WIRE_NO_IDS);
  tm_type_pack(w, up->value.dtype, &up->value.shape);
  if (rule) {
    tm_pack_cstr(w, up->rule ? up->rule : "");
    tm_pack_uint(w, up->optimizer);
    tm_pack_array(w, (uint32_t)up->nhyper);
    for (int32_t i = 0; i < up->nhyper; i++) tm_pack_double(w, up->hyper[i]);
    tm_pack_int(w, up->t);
  }
  if (tm_ps_is_rows(up->kind)) TM_TRY(wire_put_view(&up->ids, seg));
  return wire_put_view(&up->value, seg);
}

static tm_status wire_pack_read(const tm_ps_read *rd, tm_packer *w, tm_segments *seg) {
  tm_pack_array(w, rd->kind == TM_PS_ROWS ? 6 : rd->kind == TM_PS_SLOT ? 5 : 3);
  tm_pack_int(w, rd->kind);
  tm_pack_uint(w, rd->uid);
  tm_pack_uint(w, rd->shard);
  if (rd->kind == TM_PS_SLOT) {
    tm_pack_uint(w, rd->optimizer);
    tm_pack_cstr(w, rd->slot ? rd->slot : "");
  }
  if (rd->kind != TM_PS_ROWS) return TM_OK;
  tm_pack_int(w, tm_view_count(&rd->ids));
  tm_type_pack(w, rd->dst.dtype, &rd->dst.shape);
  return wire_put_view(&rd->ids, seg);
}

tm_status tm_ps_request_pack(const tm_ps_request *rq, tm_packer *w, tm_segments *seg) {
  tm_pack_array(w, 8);
  tm_pack_uint(w, rq->token.incarnation);
  tm_pack_uint(w, rq->token.closure);
  tm_pack_uint(w, rq->token.turn);
  tm_pack_uint(w, rq->token.lowest);
  tm_pack_uint(w, rq->token.round);
  tm_pack_uint(w, rq->token.share);
  tm_pack_array(w, (uint32_t)rq->nup);
  for (int32_t i = 0; i < rq->nup; i++) TM_TRY(wire_pack_update(&rq->up[i], w, seg));
  tm_pack_array(w, (uint32_t)rq->nrd);
  for (int32_t i = 0; i < rq->nrd; i++) TM_TRY(wire_pack_read(&rq->rd[i], w, seg));
  return w->status;
}

/* Where the next segments of a payload lie. */
typedef struct wire_in {
  tm_unpacker r;
  uint8_t *payload;
  uint64_t bytes, at, rows_bytes;
  tm_arena *arena;
} wire_in;

static void *wire_take(wire_in *in, uint64_t n) {
  if (in->r.status) return NULL;
  if (n > in->bytes - in->at) {
    tm_unpack_fail(&in->r, "describes more payload than came");
    return NULL;
  }
  void *p = in->payload ? in->payload + in->at : NULL;
  uint64_t step = tm_frame_pad(n);
  in->at += step < in->bytes - in->at ? step : in->bytes - in->at;
  /* Empty views need an address too: kernels may hand it to memcpy. */
  static uint64_t nothing;
  return p ? p : &nothing;
}

static uint64_t wire_bytes(const tm_view *v) { return tm_view_bytes(v); }

static void wire_take_ids(wire_in *in, int64_t n, tm_view *ids) {
  if (n < 0 || n > INT64_MAX / 16) {
    tm_unpack_fail(&in->r, "lacks row ids");
    return;
  }
  *ids = (tm_view){TM_I64, {1, {n}}, NULL};
  ids->data = wire_take(in, (uint64_t)n * sizeof(int64_t));
}

static const char *wire_text(wire_in *in) {
  size_t len;
  const char *s = tm_unpack_str(&in->r, WIRE_NAME - 1, &len);
  char *copy = s ? tm_arena_strndup(in->arena, s, len) : NULL;
  if (s && !copy) in->r.status = TM_ENOMEM;
  return copy ? copy : "";
}

static void wire_unpack_update(wire_in *in, tm_ps_update *up) {
  tm_unpacker *r = &in->r;
  memset(up, 0, sizeof *up);
  uint32_t n = tm_unpack_array(r, 6, 10);
  int64_t kind = tm_unpack_range(r, TM_PS_ASSIGN, WIRE_ONCE + TM_PS_SCATTER_SUB);
  up->once = kind >= WIRE_ONCE;
  up->kind = (tm_ps_up_kind)(up->once ? kind - WIRE_ONCE : kind);
  if (up->kind < TM_PS_ASSIGN || up->kind > TM_PS_APPLY_ROWS ||
      (up->once && !tm_ps_is_sum(up->kind)))
    tm_unpack_fail(r, "has an update of an unknown kind");
  up->uid = tm_unpack_uint(r);
  up->shard = (uint32_t)tm_unpack_range(r, 0, UINT32_MAX);
  int64_t ids = tm_unpack_int(r);
  tm_type_unpack(r, &up->value.dtype, &up->value.shape);
  bool rule = up->kind == TM_PS_APPLY || up->kind == TM_PS_APPLY_ROWS;
  if (r->status == TM_OK && n != (rule ? 10u : 6u))
    tm_unpack_fail(r, "has an update of the wrong length");
  if (rule) {
    up->rule = wire_text(in);
    up->optimizer = tm_unpack_uint(r);
    up->nhyper = (int32_t)tm_unpack_array(r, 0, TM_RULE_MAX_HYPER);
    for (int32_t i = 0; i < up->nhyper; i++) up->hyper[i] = tm_unpack_double(r);
    up->t = tm_unpack_int(r);
  }
  if (r->status) return;
  if (tm_ps_is_rows(up->kind)) wire_take_ids(in, ids, &up->ids);
  up->value.data = wire_take(in, wire_bytes(&up->value));
}

static void wire_unpack_read(wire_in *in, tm_ps_read *rd) {
  tm_unpacker *r = &in->r;
  memset(rd, 0, sizeof *rd);
  uint32_t n = tm_unpack_array(r, 3, 6);
  rd->kind = (tm_ps_rd_kind)tm_unpack_range(r, TM_PS_DENSE, TM_PS_SLOT);
  rd->uid = tm_unpack_uint(r);
  rd->shard = (uint32_t)tm_unpack_range(r, 0, UINT32_MAX);
  uint32_t want = rd->kind == TM_PS_ROWS ? 6 : rd->kind == TM_PS_SLOT ? 5 : 3;
  if (r->status == TM_OK && n != want)
    tm_unpack_fail(r, "has a read of the wrong length");
  if (rd->kind == TM_PS_SLOT) {
    rd->optimizer = tm_unpack_uint(r);
    rd->slot = wire_text(in);
  }
  if (rd->kind != TM_PS_ROWS) return;
  int64_t ids = tm_unpack_int(r);
  tm_type_unpack(r, &rd->dst.dtype, &rd->dst.shape);
  if (r->status) return;
  wire_take_ids(in, ids, &rd->ids);
  uint64_t bytes = tm_frame_pad(wire_bytes(&rd->dst));
  if (bytes > UINT64_MAX / 4 - in->rows_bytes)
    tm_unpack_fail(r, "asks for too many rows");
  else
    in->rows_bytes += bytes;
}

static void *wire_items(wire_in *in, int32_t *n, size_t size) {
  *n = (int32_t)tm_unpack_array(&in->r, 0, TM_PS_MAX_ITEMS);
  void *p = tm_arena_calloc(in->arena, ((size_t)*n + 1) * size);
  if (!p && in->r.status == TM_OK) in->r.status = TM_ENOMEM;
  if (in->r.status) *n = 0;
  return p;
}

static tm_status wire_end(wire_in *in, tm_err *err) {
  if (in->r.status == TM_ENOMEM) return tm_nomem(err, "a request");
  if (in->r.status == TM_OK && in->at != in->bytes)
    tm_unpack_fail(&in->r, "describes less payload than came");
  return tm_unpack_end(&in->r, err);
}

tm_status tm_ps_request_unpack(const void *meta, size_t n, void *payload,
                               uint64_t payload_bytes, tm_arena *a, tm_ps_request *rq,
                               uint64_t *rows_bytes, tm_err *err) {
  wire_in in = {.payload = payload, .bytes = payload_bytes, .arena = a};
  memset(rq, 0, sizeof *rq);
  *rows_bytes = 0;
  tm_unpack_init(&in.r, meta, n);
  tm_unpack_array(&in.r, 8, 8);
  rq->token.incarnation = tm_unpack_uint(&in.r);
  rq->token.closure = tm_unpack_uint(&in.r);
  rq->token.turn = (uint32_t)tm_unpack_range(&in.r, 0, UINT32_MAX);
  rq->token.lowest = tm_unpack_uint(&in.r);
  rq->token.round = tm_unpack_uint(&in.r);
  rq->token.share = tm_unpack_uint(&in.r);
  tm_ps_update *up = wire_items(&in, &rq->nup, sizeof *up);
  for (int32_t i = 0; i < rq->nup && in.r.status == TM_OK; i++)
    wire_unpack_update(&in, &up[i]);
  rq->up = up;
  rq->rd = wire_items(&in, &rq->nrd, sizeof *rq->rd);
  for (int32_t i = 0; i < rq->nrd && in.r.status == TM_OK; i++)
    wire_unpack_read(&in, &rq->rd[i]);
  *rows_bytes = in.rows_bytes;
  return wire_end(&in, err);
}

/* --- reply --- */

tm_status tm_ps_reply_pack(const tm_ps_request *rq, tm_packer *w, tm_segments *seg) {
  tm_pack_array(w, 4);
  tm_pack_int(w, rq->up_status);
  tm_pack_int(w, rq->rd_status);
  if (rq->up_status || rq->rd_status)
    tm_err_pack(w, &rq->err);
  else
    tm_pack_nil(w);
  int32_t n = rq->rd_status ? 0 : rq->nrd;
  tm_pack_array(w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) {
    const tm_ps_read *rd = &rq->rd[i];
    const tm_view *v = rd->kind == TM_PS_ROWS ? &rd->dst : &rd->out->v;
    tm_pack_array(w, 2);
    tm_type_pack(w, v->dtype, &v->shape);
    TM_TRY(wire_put_view(v, seg));
  }
  return w->status;
}

static tm_status wire_status(int64_t v) {
  return v <= 0 && v >= TM_EAGAIN ? (tm_status)v : TM_EUNKNOWN;
}

/* Rows go to their places one by one: small ones out of the channel's buffer, large
 * ones straight from the socket. */
static tm_status wire_take_rows(tm_channel *ch, tm_ps_read *rd, tm_err *err) {
  uint64_t all = tm_view_bytes(&rd->dst);
  int64_t n = rd->dst.shape.dim[0];
  if (!rd->rows_at || n == 0) return tm_channel_take(ch, rd->dst.data, all, err);
  uint64_t row = all / (uint64_t)n;
  for (int64_t i = 0; i < n; i++)
    TM_TRY(tm_channel_piece(ch, rd->rows_at[i], row, err));
  return tm_channel_piece(ch, NULL, tm_frame_pad(all) - all, err);
}

static tm_status wire_take_read(tm_channel *ch, tm_dtype t, const tm_shape *s,
                                tm_ps_read *rd, tm_err *err) {
  bool known = rd->dst.dtype != TM_DTYPE_NONE;
  if (known && (rd->dst.dtype != t || !tm_shape_equal(&rd->dst.shape, s)))
    return tm_fail(err, TM_EDATALOSS,
                   "a ps answered with another shape than asked for");
  if (rd->kind == TM_PS_ROWS) return wire_take_rows(ch, rd, err);
  if (rd->dst.data)
    return tm_channel_take(ch, rd->dst.data, tm_view_bytes(&rd->dst), err);
  TM_TRY(tm_tensor_new(t, s, &rd->out, err));
  return tm_channel_take(ch, rd->out->v.data, tm_view_bytes(&rd->out->v), err);
}

static void wire_forget(tm_ps_request *rq) {
  for (int32_t i = 0; i < rq->nrd; i++) {
    tm_tensor_unref(rq->rd[i].out);
    rq->rd[i].out = NULL;
  }
}

tm_status tm_ps_reply_take(tm_channel *ch, const tm_frame *f, const void *meta,
                           tm_ps_request *rq, tm_err *err) {
  tm_unpacker r;
  tm_status s = TM_OK;
  for (int32_t i = 0; i < rq->nrd; i++) rq->rd[i].out = NULL;
  tm_unpack_init(&r, meta, f->meta_bytes);
  tm_unpack_array(&r, 4, 4);
  rq->up_status = wire_status(tm_unpack_int(&r));
  rq->rd_status = wire_status(tm_unpack_int(&r));
  tm_err_clear(&rq->err);
  if (!tm_unpack_nil(&r)) tm_err_unpack(&r, &rq->err);
  uint32_t n = tm_unpack_array(&r, 0, TM_PS_MAX_ITEMS);
  if (r.status == TM_OK && n != (rq->rd_status ? 0u : (uint32_t)rq->nrd))
    tm_unpack_fail(&r, "answers another number of reads than asked for");
  for (uint32_t i = 0; i < n && r.status == TM_OK && s == TM_OK; i++) {
    tm_dtype t;
    tm_shape shape;
    tm_unpack_array(&r, 2, 2);
    tm_type_unpack(&r, &t, &shape);
    if (r.status == TM_OK) s = wire_take_read(ch, t, &shape, &rq->rd[i], err);
  }
  if (s == TM_OK) s = tm_unpack_end(&r, err);
  if (s == TM_OK) s = tm_channel_end(ch, err);
  if (s) wire_forget(rq);
  return s;
}

/* --- shards --- */

tm_status tm_ps_specs_pack(const tm_shard_spec *sp, int32_t n, tm_packer *w,
                           tm_segments *seg) {
  tm_pack_array(w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++, sp++) {
    bool value = strcmp(sp->init.kind, "value") == 0 && sp->init.value;
    tm_pack_array(w, 12); /* the type counts as two */
    tm_pack_uint(w, sp->uid);
    tm_pack_uint(w, sp->shard);
    tm_type_pack(w, sp->dtype, &sp->shape);
    tm_pack_i64s(w, sp->full_shape.dim, (uint32_t)sp->full_shape.rank);
    tm_pack_int(w, sp->row_offset);
    tm_pack_bool(w, sp->user);
    tm_pack_cstr(w, sp->init.kind);
    tm_pack_double(w, sp->init.a);
    tm_pack_double(w, sp->init.b);
    tm_pack_uint(w, sp->init.seed);
    if (!value) {
      tm_pack_nil(w);
      continue;
    }
    tm_pack_array(w, 2);
    tm_type_pack(w, sp->init.value->v.dtype, &sp->init.value->v.shape);
    TM_TRY(wire_put_view(&sp->init.value->v, seg));
  }
  return w->status;
}

static void wire_unpack_value(wire_in *in, tm_tensor **value) {
  tm_view v = {TM_DTYPE_NONE, {0, {0}}, NULL};
  if (tm_unpack_nil(&in->r)) return;
  tm_unpack_array(&in->r, 2, 2);
  tm_type_unpack(&in->r, &v.dtype, &v.shape);
  if (in->r.status) return;
  v.data = wire_take(in, wire_bytes(&v));
  if (in->r.status == TM_OK) in->r.status = tm_tensor_copy(&v, value, NULL);
}

tm_status tm_ps_spec_unpack(tm_unpacker *r, const void *payload, uint64_t payload_bytes,
                            uint64_t *at, tm_shard_spec *sp, tm_tensor **value,
                            tm_err *err) {
  wire_in in = {.r = *r,
                .payload = (uint8_t *)(uintptr_t)payload,
                .bytes = payload_bytes,
                .at = *at};
  memset(sp, 0, sizeof *sp);
  *value = NULL;
  tm_unpack_array(&in.r, 12, 12);
  sp->uid = tm_unpack_uint(&in.r);
  sp->shard = (uint32_t)tm_unpack_range(&in.r, 0, UINT32_MAX);
  tm_type_unpack(&in.r, &sp->dtype, &sp->shape);
  sp->full_shape.rank = (int32_t)tm_unpack_i64s(&in.r, sp->full_shape.dim, TM_MAX_RANK);
  sp->row_offset = tm_unpack_int(&in.r);
  sp->user = tm_unpack_bool(&in.r);
  tm_unpack_cstr(&in.r, sp->init.kind, sizeof sp->init.kind);
  sp->init.a = tm_unpack_double(&in.r);
  sp->init.b = tm_unpack_double(&in.r);
  sp->init.seed = tm_unpack_uint(&in.r);
  wire_unpack_value(&in, value);
  sp->init.value = *value;
  *r = in.r;
  *at = in.at;
  if (in.r.status == TM_OK) return TM_OK;
  tm_tensor_unref(*value);
  *value = sp->init.value = NULL;
  if (in.r.status == TM_ENOMEM) return tm_nomem(err, "an initial value");
  return tm_unpack_end(&in.r, err);
}

/* --- the end of a round --- */

void tm_ps_commit_pack(tm_packer *w, const tm_ps_commit *c) {
  tm_pack_array(w, 2);
  tm_pack_uint(w, c->round);
  tm_pack_array(w, (uint32_t)c->n);
  for (int32_t i = 0; i < c->n; i++) tm_pack_uint(w, c->share[i]);
}

tm_status tm_ps_commit_unpack(const void *meta, size_t n, tm_arena *a, tm_ps_commit *c,
                              tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, meta, n);
  tm_unpack_array(&r, 2, 2);
  c->round = tm_unpack_uint(&r);
  c->n = (int32_t)tm_unpack_array(&r, 0, TM_ROUNDS_MAX);
  uint64_t *share = tm_arena_calloc(a, ((size_t)c->n + 1) * sizeof *share);
  if (!share) return tm_nomem(err, "the end of a round");
  c->share = share;
  for (int32_t i = 0; i < c->n && r.status == TM_OK; i++) share[i] = tm_unpack_uint(&r);
  return tm_unpack_end(&r, err);
}

/* --- stats --- */

void tm_ps_stats_pack(tm_packer *w, const tm_store_stats *st) {
  const uint64_t v[] = {st->reads,     st->updates, st->bytes_in,  st->bytes_out,
                        st->variables, st->slots,   st->bytes_held};
  tm_pack_array(w, TM_COUNT(v));
  for (size_t i = 0; i < TM_COUNT(v); i++) tm_pack_uint(w, v[i]);
}

tm_status tm_ps_stats_unpack(const void *meta, size_t n, tm_store_stats *st,
                             tm_err *err) {
  tm_unpacker r;
  uint64_t *v[] = {&st->reads,     &st->updates, &st->bytes_in,  &st->bytes_out,
                   &st->variables, &st->slots,   &st->bytes_held};
  tm_unpack_init(&r, meta, n);
  tm_unpack_array(&r, TM_COUNT(v), TM_COUNT(v));
  for (size_t i = 0; i < TM_COUNT(v); i++) *v[i] = tm_unpack_uint(&r);
  return tm_unpack_end(&r, err);
}
