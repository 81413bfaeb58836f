#include "cluster/save_wire.h"

#include <string.h>

#include "cluster/save_lane.h"
#include "ps/tokens.h"

static const char *wire_text(tm_unpacker *r, size_t max, tm_arena *a) {
  size_t n;
  const char *s = tm_unpack_str(r, max, &n);
  char *copy = s ? tm_arena_strndup(a, s, n) : NULL;
  if (s && !copy) r->status = TM_ENOMEM;
  return copy ? copy : "";
}

static tm_status wire_end(tm_unpacker *r, tm_err *err) {
  return r->status == TM_ENOMEM ? tm_nomem(err, "a checkpoint") : tm_unpack_end(r, err);
}

static void wire_put_list(tm_packer *w, const uint64_t *v, int32_t n) {
  tm_pack_array(w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) tm_pack_uint(w, v[i]);
}

/* As many as come, up to TM_TOKENS_MAX. */
static uint64_t *wire_list(tm_unpacker *r, tm_arena *a, int32_t *n) {
  *n = (int32_t)tm_unpack_array(r, 0, TM_TOKENS_MAX);
  uint64_t *v = tm_arena_calloc(a, ((size_t)*n + 1) * sizeof *v);
  if (!v && r->status == TM_OK) r->status = TM_ENOMEM;
  for (int32_t i = 0; i < *n && r->status == TM_OK; i++) v[i] = tm_unpack_uint(r);
  return v;
}

void tm_save_items_pack(tm_packer *w, const tm_snapshot_item *it, int32_t n,
                        const tm_token_list *q) {
  tm_pack_array(w, 2);
  tm_pack_array(w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) {
    tm_pack_array(w, 6);
    tm_pack_uint(w, it[i].uid);
    tm_pack_uint(w, it[i].shard);
    tm_pack_uint(w, it[i].optimizer);
    tm_pack_cstr(w, it[i].slot);
    tm_pack_uint(w, it[i].mark);
    tm_pack_uint(w, it[i].base);
  }
  wire_put_list(w, q ? q->closure : NULL, q ? q->n : 0);
}

tm_status tm_save_items_unpack(const void *p, size_t bytes, tm_arena *a,
                               tm_snapshot_item **item, int32_t *n, tm_token_list *q,
                               tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 2, 2);
  *n = (int32_t)tm_unpack_array(&r, 0, TM_SNAPSHOT_MAX_ITEMS);
  tm_snapshot_item *it = tm_arena_calloc(a, ((size_t)*n + 1) * sizeof *it);
  if (!it && r.status == TM_OK) r.status = TM_ENOMEM;
  for (int32_t i = 0; i < *n && r.status == TM_OK; i++) {
    tm_unpack_array(&r, 6, 6);
    it[i].uid = tm_unpack_uint(&r);
    it[i].shard = (uint32_t)tm_unpack_range(&r, 0, UINT32_MAX);
    it[i].optimizer = tm_unpack_uint(&r);
    tm_unpack_cstr(&r, it[i].slot, sizeof it[i].slot);
    it[i].mark = tm_unpack_uint(&r);
    it[i].base = tm_unpack_uint(&r);
  }
  *item = it;
  q->closure = wire_list(&r, a, &q->n);
  q->turns = tm_arena_calloc(a, ((size_t)q->n + 1) * sizeof *q->turns);
  if (!q->turns && r.status == TM_OK) r.status = TM_ENOMEM;
  return wire_end(&r, err);
}

void tm_save_tokens_pack(tm_packer *w, const tm_token_list *q) {
  tm_pack_array(w, 2);
  wire_put_list(w, q->closure, q->n);
  wire_put_list(w, q->turns, q->n);
}

tm_status tm_save_tokens_unpack(const void *p, size_t bytes, tm_arena *a,
                                tm_token_list *q, tm_err *err) {
  tm_unpacker r;
  int32_t n = 0;
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 2, 2);
  q->closure = wire_list(&r, a, &q->n);
  q->turns = wire_list(&r, a, &n);
  if (r.status == TM_OK && n != q->n) tm_unpack_fail(&r, "has closures without turns");
  for (int32_t i = 0; i < n && r.status == TM_OK; i++)
    if (q->turns[i] < 1 || q->turns[i] > (uint64_t)UINT32_MAX + 1)
      tm_unpack_fail(&r, "has turns that nobody counts to");
  return wire_end(&r, err);
}

int64_t tm_save_there(const tm_snapshot_part *p) {
  return !p->there ? TM_SAVE_ABSENT : p->diff ? p->shape.dim[0] : TM_SAVE_WHOLE;
}

void tm_save_there_pack(tm_packer *w, uint64_t id, const tm_snapshot *sn,
                        const tm_token_list *q) {
  int32_t n = tm_snapshot_count(sn);
  tm_pack_array(w, 3);
  tm_pack_uint(w, id);
  tm_pack_array(w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++)
    tm_pack_int(w, tm_save_there(tm_snapshot_part_at(sn, i)));
  wire_put_list(w, q->turns, q->n);
}

tm_status tm_save_there_unpack(const void *p, size_t bytes, uint64_t *id,
                               int64_t *there, int32_t n, tm_token_list *q,
                               tm_err *err) {
  tm_unpacker r;
  uint32_t asked = q ? (uint32_t)q->n : 0;
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 3, 3);
  *id = tm_unpack_uint(&r);
  tm_unpack_array(&r, (uint32_t)n, (uint32_t)n);
  for (int32_t i = 0; i < n; i++)
    there[i] = tm_unpack_range(&r, TM_SAVE_ABSENT, INT64_MAX);
  tm_unpack_array(&r, asked, asked);
  for (uint32_t i = 0; i < asked; i++) q->turns[i] = tm_unpack_uint(&r);
  return tm_unpack_end(&r, err);
}

void tm_save_job_pack(tm_packer *w, uint64_t id, const tm_snapshot_job *job) {
  tm_pack_array(w, 6);
  tm_pack_uint(w, id);
  tm_pack_cstr(w, job->dir);
  tm_pack_cstr(w, job->file);
  tm_pack_cstr(w, job->token ? job->token : "");
  tm_pack_array(w, (uint32_t)job->n);
  for (int32_t i = 0; i < job->n; i++) tm_pack_cstr(w, job->name[i]);
  tm_pack_array(w, job->ids ? 2 * (uint32_t)job->n : 0);
  for (int32_t i = 0; job->ids && i < job->n; i++) {
    tm_pack_cstr(w, job->ids[i]);
    tm_pack_int(w, job->first[i]);
  }
}

/* Names of the entries for row numbers, and first rows; none, or of all parts. */
static void wire_ids(tm_unpacker *r, tm_arena *a, tm_snapshot_job *job) {
  uint32_t n = tm_unpack_array(r, 0, 2 * TM_SNAPSHOT_MAX_ITEMS);
  if (n == 0 || r->status) return;
  if (n != 2 * (uint32_t)job->n) {
    tm_unpack_fail(r, "has row numbers of other arrays");
    return;
  }
  const char **ids = tm_arena_calloc(a, (size_t)job->n * sizeof *ids);
  int64_t *first = tm_arena_calloc(a, (size_t)job->n * sizeof *first);
  if (!ids || !first) r->status = TM_ENOMEM;
  for (int32_t i = 0; i < job->n && r->status == TM_OK; i++) {
    if (!tm_unpack_nil(r)) ids[i] = wire_text(r, TM_SAVE_NAME, a);
    first[i] = tm_unpack_range(r, 0, INT64_MAX);
  }
  job->ids = ids;
  job->first = first;
}

tm_status tm_save_job_unpack(const void *p, size_t bytes, tm_arena *a, uint64_t *id,
                             tm_snapshot_job *job, tm_err *err) {
  tm_unpacker r;
  memset(job, 0, sizeof *job);
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 6, 6);
  *id = tm_unpack_uint(&r);
  job->dir = wire_text(&r, TM_SAVE_PATH, a);
  job->file = wire_text(&r, TM_SAVE_NAME, a);
  job->token = wire_text(&r, TM_SNAPSHOT_TOKEN, a);
  job->n = (int32_t)tm_unpack_array(&r, 0, TM_SNAPSHOT_MAX_ITEMS);
  const char **name = tm_arena_calloc(a, ((size_t)job->n + 1) * sizeof *name);
  if (!name && r.status == TM_OK) r.status = TM_ENOMEM;
  for (int32_t i = 0; i < job->n && r.status == TM_OK; i++)
    if (!tm_unpack_nil(&r)) name[i] = wire_text(&r, TM_SAVE_NAME, a);
  job->name = name;
  wire_ids(&r, a, job);
  return wire_end(&r, err);
}

void tm_save_answer_pack(tm_packer *w, const tm_snapshot_job *job) {
  tm_pack_array(w, 3);
  tm_pack_bool(w, job->unseen);
  tm_pack_uint(w, job->size);
  tm_pack_uint(w, job->crc);
}

tm_status tm_save_answer_unpack(const void *p, size_t bytes, tm_snapshot_job *job,
                                tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 3, 3);
  job->unseen = tm_unpack_bool(&r);
  job->size = (uint64_t)tm_unpack_range(&r, 0, INT64_MAX);
  job->crc = (uint32_t)tm_unpack_range(&r, 0, UINT32_MAX);
  return tm_unpack_end(&r, err);
}

void tm_save_read_pack(tm_packer *w, const tm_save_read *r) {
  tm_pack_array(w, 4);
  tm_pack_uint(w, r->id);
  tm_pack_int(w, r->part);
  tm_pack_uint(w, r->at);
  tm_pack_uint(w, r->cap);
}

tm_status tm_save_read_unpack(const void *p, size_t bytes, tm_save_read *out,
                              tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, p, bytes);
  tm_unpack_array(&r, 4, 4);
  out->id = tm_unpack_uint(&r);
  out->part = (int32_t)tm_unpack_range(&r, -1, INT32_MAX);
  out->at = (uint64_t)tm_unpack_range(&r, 0, INT64_MAX);
  out->cap = (uint32_t)tm_unpack_range(&r, 0, TM_SAVE_PIECE);
  return tm_unpack_end(&r, err);
}
