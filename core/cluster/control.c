#include "cluster/control.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/ps_wire.h"

/* Design.  Short arrays in a fixed order; whoever reads checks every number against
 * what it will index or allocate. */

enum { CONTROL_MAX_ARGS = 65536, CONTROL_MAX_OUTS = 65536 };

/* --- start --- */

void tm_start_pack(tm_packer *w, const tm_start *s, const char *const *ps) {
  tm_pack_array(w, 12);
  tm_pack_int(w, s->index);
  tm_pack_int(w, s->nworker);
  tm_pack_int(w, s->threads);
  tm_pack_uint(w, s->seed);
  tm_pack_uint(w, s->incarnation);
  tm_pack_int(w, s->heartbeat_ns);
  tm_pack_int(w, s->silence_ns);
  tm_pack_int(w, s->connect_timeout_ns);
  tm_pack_int(w, s->chief_timeout_ns);
  tm_pack_int(w, s->replicas);
  tm_pack_bool(w, s->resume);
  tm_pack_array(w, (uint32_t)s->nps);
  for (int32_t i = 0; i < s->nps; i++) tm_pack_cstr(w, ps[i]);
}

tm_status tm_start_unpack(const void *p, size_t n, tm_start *s, tm_err *err) {
  tm_unpacker r;
  memset(s, 0, sizeof *s);
  tm_unpack_init(&r, p, n);
  tm_unpack_array(&r, 12, 12);
  s->index = (int32_t)tm_unpack_range(&r, 0, TM_CONTROL_MAX_PS);
  s->nworker = (int32_t)tm_unpack_range(&r, 0, TM_CONTROL_MAX_PS);
  s->threads = (int32_t)tm_unpack_range(&r, 0, 1024);
  s->seed = tm_unpack_uint(&r);
  s->incarnation = tm_unpack_uint(&r);
  s->heartbeat_ns = tm_unpack_range(&r, 0, INT64_MAX);
  s->silence_ns = tm_unpack_range(&r, 0, INT64_MAX);
  s->connect_timeout_ns = tm_unpack_range(&r, 0, INT64_MAX);
  s->chief_timeout_ns = tm_unpack_range(&r, 0, INT64_MAX);
  s->replicas = (int32_t)tm_unpack_range(&r, 0, 1);
  s->resume = tm_unpack_bool(&r);
  s->nps = (int32_t)tm_unpack_array(&r, 0, TM_CONTROL_MAX_PS);
  if (s->nps) s->ps = tm_calloc((size_t)s->nps, sizeof *s->ps);
  if (s->nps && !s->ps) return tm_nomem(err, "the addresses of a cluster");
  for (int32_t i = 0; i < s->nps; i++) tm_unpack_cstr(&r, s->ps[i], sizeof s->ps[i]);
  tm_status st = tm_unpack_end(&r, err);
  if (st) tm_start_release(s);
  return st;
}

void tm_start_release(tm_start *s) {
  tm_free(s->ps, (size_t)s->nps * sizeof *s->ps);
  s->ps = NULL;
  s->nps = 0;
}

/* --- variables --- */

void tm_var_info_pack(tm_packer *w, const tm_var_info *v) {
  tm_pack_array(w, 6);
  tm_pack_uint(w, v->uid);
  tm_type_pack(w, v->dtype, &v->shape);
  tm_pack_bool(w, v->user);
  tm_pack_cstr(w, v->name);
  tm_pack_array(w, (uint32_t)v->nshard * 3);
  for (int32_t i = 0; i < v->nshard; i++) {
    tm_pack_int(w, v->shard[i].ps);
    tm_pack_int(w, v->shard[i].offset);
    tm_pack_int(w, v->shard[i].rows);
  }
}

/* Shards follow each other and cover the rows. */
static void control_take_shards(tm_unpacker *r, bool local, tm_var_info *v) {
  int64_t at = 0, rows = v->shape.rank ? v->shape.dim[0] : 1;
  for (int32_t i = 0; i < v->nshard; i++) {
    v->shard[i].ps =
        (int32_t)tm_unpack_range(r, local ? -1 : 0, local ? -1 : TM_CONTROL_MAX_PS);
    v->shard[i].offset = tm_unpack_range(r, at, at);
    v->shard[i].rows = tm_unpack_range(r, 0, rows - at);
    at += v->shard[i].rows;
  }
  if (r->status == TM_OK && at != rows)
    tm_unpack_fail(r, "has shards that do not cover the variable");
}

tm_status tm_var_info_take(tm_unpacker *r, bool local, tm_var_info **out) {
  tm_dtype t;
  tm_shape shape;
  char name[128];
  *out = NULL;
  tm_unpack_array(r, 6, 6);
  uint64_t uid = tm_unpack_uint(r);
  tm_type_unpack(r, &t, &shape);
  bool user = tm_unpack_bool(r);
  tm_unpack_cstr(r, name, sizeof name);
  uint32_t numbers = tm_unpack_array(r, 3, local ? 3 : TM_MAX_SHARDS * 3);
  if (r->status == TM_OK && numbers % 3) tm_unpack_fail(r, "has half a shard");
  if (r->status) return r->status;
  tm_var_info *v;
  TM_TRY(tm_var_info_new(uid, t, &shape, name, user, (int32_t)numbers / 3, &v));
  control_take_shards(r, local, v);
  if (r->status == TM_OK)
    *out = v;
  else
    tm_var_info_unref(v);
  return r->status;
}

tm_status tm_var_info_unpack(const void *p, size_t n, tm_var_info **out, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, p, n);
  if (tm_var_info_take(&r, false, out) == TM_ENOMEM) return tm_nomem(err, "a variable");
  tm_status s = tm_unpack_end(&r, err);
  if (s) {
    tm_var_info_unref(*out);
    *out = NULL;
  }
  return s;
}

/* --- closures --- */

/* Four numbers for each argument that elements were dealt to. */
static void closure_pack_deals(tm_packer *w, const tm_closure *c) {
  uint32_t n = 0;
  for (int32_t i = 0; c->deal && i < c->narg; i++) n += c->deal[i].count > 0;
  tm_pack_array(w, 4 * n);
  for (int32_t i = 0; n && i < c->narg; i++) {
    const tm_deal *d = &c->deal[i];
    if (d->count == 0) continue;
    tm_pack_int(w, i);
    tm_pack_uint(w, d->pass);
    tm_pack_int(w, d->first);
    tm_pack_int(w, d->count);
  }
}

void tm_closure_pack(tm_letter *l, const tm_closure *c) {
  tm_packer *w = &l->w;
  tm_pack_array(w, 10);
  tm_pack_uint(w, c->id);
  tm_pack_uint(w, c->lowest);
  tm_pack_uint(w, c->round);
  tm_pack_uint(w, c->share);
  tm_pack_uint(w, c->draw);
  tm_pack_uint(w, c->graph->hash[0]);
  tm_pack_uint(w, c->graph->hash[1]);
  tm_pack_bool(w, c->want);
  tm_pack_array(w, (uint32_t)c->narg);
  for (int32_t i = 0; i < c->narg; i++) {
    if (c->arg[i].t)
      tm_letter_tensor(l, c->arg[i].t);
    else
      tm_pack_uint(w, c->arg[i].iterator);
  }
  closure_pack_deals(w, c);
}

static void closure_take_deals(tm_unpacker *r, tm_closure *c) {
  uint32_t n = tm_unpack_array(r, 0, 4 * (uint32_t)c->narg);
  if (r->status == TM_OK && n % 4) tm_unpack_fail(r, "has half a deal");
  if (n == 0 || r->status) return;
  tm_deal *deal = tm_calloc((size_t)c->narg, sizeof *deal);
  c->deal = deal;
  if (!deal) r->status = TM_ENOMEM;
  for (; n && r->status == TM_OK; n -= 4) {
    int64_t i = tm_unpack_range(r, 0, c->narg - 1);
    uint64_t pass = tm_unpack_uint(r);
    int64_t first = tm_unpack_range(r, 0, INT64_MAX - INT32_MAX);
    int64_t count = tm_unpack_range(r, 1, INT32_MAX);
    if (r->status == TM_OK && c->arg[i].t) tm_unpack_fail(r, "deals to a tensor");
    if (r->status) return;
    deal[i] = (tm_deal){first, (int32_t)count, pass};
  }
}

void tm_closure_take(tm_letter_in *in, tm_closure *c, uint64_t hash[2]) {
  tm_unpacker *r = &in->r;
  memset(c, 0, sizeof *c);
  tm_unpack_array(r, 10, 10);
  c->id = tm_unpack_uint(r);
  c->lowest = tm_unpack_uint(r);
  c->round = tm_unpack_uint(r);
  c->share = tm_unpack_uint(r);
  c->draw = tm_unpack_uint(r);
  hash[0] = tm_unpack_uint(r);
  hash[1] = tm_unpack_uint(r);
  c->want = tm_unpack_bool(r);
  int32_t n = (int32_t)tm_unpack_array(r, 0, CONTROL_MAX_ARGS);
  if (r->status) return;
  if (n == 0) {
    tm_unpack_array(r, 0, 0);
    return;
  }
  c->arg = tm_calloc((size_t)n, sizeof *c->arg);
  if (!c->arg) {
    r->status = TM_ENOMEM;
    return;
  }
  c->narg = n;
  for (int32_t i = 0; i < n && r->status == TM_OK; i++) {
    if (tm_unpack_peek(r) == TM_PACK_INT)
      c->arg[i].iterator = tm_unpack_uint(r);
    else
      c->arg[i].t = tm_letter_take(in);
  }
  closure_take_deals(r, c);
}

void tm_closure_release(tm_closure *c) {
  for (int32_t i = 0; i < c->narg; i++) tm_tensor_unref(c->arg[i].t);
  tm_free(c->arg, (size_t)c->narg * sizeof *c->arg);
  if (c->deal) tm_free((void *)c->deal, (size_t)c->narg * sizeof *c->deal);
  c->arg = NULL;
  c->deal = NULL;
  c->narg = 0;
}

/* --- completions --- */

void tm_completion_pack(tm_letter *l, const tm_completion *d) {
  tm_packer *w = &l->w;
  tm_pack_array(w, 8);
  tm_pack_uint(w, d->id);
  if (d->status)
    tm_err_pack(w, &d->err);
  else
    tm_pack_nil(w);
  tm_pack_uint(w, d->count.reads);
  tm_pack_uint(w, d->count.updates);
  tm_pack_uint(w, d->count.bytes_read);
  tm_pack_uint(w, d->count.bytes_updated);
  tm_pack_array(w, (uint32_t)d->ntook * 2);
  for (int32_t i = 0; i < d->ntook; i++) {
    tm_pack_uint(w, d->took[i].given);
    tm_pack_uint(w, d->took[i].failed);
  }
  tm_pack_array(w, (uint32_t)d->nout);
  for (int32_t i = 0; i < d->nout; i++) tm_letter_tensor(l, d->out[i]);
}

static void completion_take_took(tm_unpacker *r, tm_completion *d) {
  uint32_t n = tm_unpack_array(r, 0, 2 * TM_MAX_TOOK);
  if (r->status == TM_OK && n % 2) tm_unpack_fail(r, "has half a count");
  for (uint32_t i = 0; i < n / 2 && r->status == TM_OK; i++) {
    d->took[i].given = (uint32_t)tm_unpack_range(r, 0, UINT32_MAX);
    d->took[i].failed = (uint32_t)tm_unpack_range(r, 0, UINT32_MAX);
  }
  if (r->status == TM_OK) d->ntook = (int32_t)n / 2;
}

void tm_completion_take(tm_letter_in *in, tm_completion *d) {
  tm_unpacker *r = &in->r;
  memset(d, 0, sizeof *d);
  tm_err_clear(&d->err);
  tm_unpack_array(r, 8, 8);
  d->id = tm_unpack_uint(r);
  if (!tm_unpack_nil(r)) {
    tm_err_unpack(r, &d->err);
    d->status = d->err.code;
  }
  d->count.reads = tm_unpack_uint(r);
  d->count.updates = tm_unpack_uint(r);
  d->count.bytes_read = tm_unpack_uint(r);
  d->count.bytes_updated = tm_unpack_uint(r);
  completion_take_took(r, d);
  int32_t n = (int32_t)tm_unpack_array(r, 0, CONTROL_MAX_OUTS);
  if (n == 0 || r->status) return;
  d->out = tm_calloc((size_t)n, sizeof *d->out);
  if (!d->out) {
    r->status = TM_ENOMEM;
    return;
  }
  d->nout = n;
  for (int32_t i = 0; i < n && r->status == TM_OK; i++) d->out[i] = tm_letter_take(in);
}

void tm_completion_release(tm_completion *d) {
  for (int32_t i = 0; i < d->nout; i++) tm_tensor_unref(d->out[i]);
  tm_free(d->out, (size_t)d->nout * sizeof *d->out);
  d->out = NULL;
  d->nout = 0;
}

/* --- leaving --- */

tm_status tm_leaving_send(tm_conn *c, const char *why) {
  tm_letter l;
  char text[TM_LEAVING_TEXT];
  snprintf(text, sizeof text, "%s", why);
  tm_letter_init(&l);
  tm_pack_cstr(&l.w, text);
  return tm_letter_send(&l, c, TM_F_LEAVING, 0);
}

tm_status tm_leaving_unpack(const tm_message *m, char why[TM_LEAVING_TEXT],
                            tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_cstr(&r, why, TM_LEAVING_TEXT);
  return tm_unpack_end(&r, err);
}
