#include "cluster/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ckpt/base.h"
#include "ckpt/file.h"
#include "cluster/save_lane.h"
#include "cluster/save_wire.h"
#include "cluster/session_parts.h"

/*
 * Design.  Items become pieces, one a shard; pieces are put on lanes, one a ps.  All
 * lanes take their snapshot while no UPDATE is under way; then each writes its file,
 * and the chief writes those of ps that do not see its directory.  At last the index is
 * told of the pieces, in order of the items.
 *
 * Invariants:
 *   (1) A piece is array `at` of its lane's snapshot; name[at] is its entry in the
 * file, where it is there. (2) Lanes without pieces have no connection (lane NULL).
 */
enum { SAVE_MAX_PIECES = 1 << 20, SAVE_FILL = 4 << 20 };
#define SAVE_GATE_NS 2000000000  /* one try to come to a moment without UPDATEs */
#define SAVE_WAIT_NS 60000000000 /* all tries */

typedef struct save_piece {
  const tm_save_item *item;
  tm_dtype dtype;
  tm_shape shape;
  int64_t first, rows; /* of the tensor */
  int32_t shard, lane, at;
  bool lent; /* its tensor is the base's with patches, of which this is one */
} save_piece;

typedef struct save_ps {
  tm_save_lane *lane;
  tm_snapshot_item *item; /* n */
  int64_t *there;         /* tm_save_there of each part */
  tm_token_list tokens;   /* the moment's */
  char **name, **ids;
  int64_t *first;
  int32_t n, nthere;
  size_t file; /* of the writer */
  char file_name[TM_CKPT_FILE_NAME];
  tm_snapshot_job job;
} save_ps;

typedef struct save {
  tm_session *s;
  tm_ckpt_writer *w;
  tm_save_options opt;
  tm_save_report report;
  save_piece *piece;
  size_t n, cap;
  save_ps *ps; /* nps */
  char dir[TM_PATH_MAX];
  char token[TM_SNAPSHOT_TOKEN];
  bool asked;                                 /* the snapshots were asked for */
  tm_status (*moment)(void *ud, tm_err *err); /* while no UPDATE begins */
  tm_ckpt_base *base;                         /* NULL: everything is written */
} save;

static tm_status save_nomem(tm_err *err) { return tm_nomem(err, "a checkpoint"); }

/* --- pieces --- */

static tm_status save_add(save *v, const tm_save_item *it, const tm_var_info *info,
                          int32_t k, tm_err *err) {
  const tm_shard_info *sh = &info->shard[k];
  if (v->n == SAVE_MAX_PIECES || sh->ps < 0 || sh->ps >= v->s->nps)
    return tm_fail(err, TM_EINVAL, "\"%.200s\" cannot be saved: %s", it->name,
                   sh->ps < 0 ? "it lives in this process" : "too many shards");
  if (v->n == v->cap) {
    size_t cap = v->cap ? 2 * v->cap : 64;
    save_piece *p = tm_realloc(v->piece, v->cap * sizeof *p, cap * sizeof *p);
    if (!p) return save_nomem(err);
    v->piece = p;
    v->cap = cap;
  }
  save_piece *p = &v->piece[v->n++];
  *p = (save_piece){.item = it,
                    .dtype = info->dtype,
                    .shape = info->shape,
                    .first = it->first + (it->shard < 0 ? sh->offset : 0),
                    .rows = sh->rows,
                    .shard = k,
                    .lane = sh->ps,
                    .at = v->ps[sh->ps].n++};
  if (p->shape.rank) p->shape.dim[0] = sh->rows;
  return TM_OK;
}

static tm_status save_item(save *v, const tm_save_item *it, tm_err *err) {
  tm_var_info *info = tm_catalog_get(v->s->vars->catalog, it->uid);
  if (!info)
    return tm_fail(err, TM_EPRECOND, "\"%.200s\" is no variable of this cluster",
                   it->name);
  tm_status s = TM_OK;
  int32_t from = it->shard < 0 ? 0 : it->shard;
  int32_t to = it->shard < 0 ? info->nshard : it->shard + 1;
  for (int32_t k = from; k < to && k < info->nshard && s == TM_OK; k++)
    s = save_add(v, it, info, k, err);
  tm_var_info_unref(info);
  return s;
}

static tm_status save_lane_arrays(save_ps *p, tm_err *err) {
  p->item = tm_calloc((size_t)p->n + 1, sizeof *p->item);
  p->there = tm_calloc((size_t)p->n + 1, sizeof *p->there);
  p->name = tm_calloc((size_t)p->n + 1, sizeof *p->name);
  p->ids = tm_calloc((size_t)p->n + 1, sizeof *p->ids);
  p->first = tm_calloc((size_t)p->n + 1, sizeof *p->first);
  bool all = p->item && p->there && p->name && p->ids && p->first;
  return all ? TM_OK : save_nomem(err);
}

static tm_status save_pieces(save *v, const tm_save_item *item, size_t n, tm_err *err) {
  v->ps = tm_calloc((size_t)v->s->nps, sizeof *v->ps);
  if (!v->ps) return save_nomem(err);
  for (size_t i = 0; i < n; i++) TM_TRY(save_item(v, &item[i], err));
  for (int32_t k = 0; k < v->s->nps; k++) TM_TRY(save_lane_arrays(&v->ps[k], err));
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *p = &v->piece[i];
    tm_snapshot_item *it = &v->ps[p->lane].item[p->at];
    it->uid = p->item->uid;
    it->shard = (uint32_t)p->shard;
    it->optimizer = p->item->optimizer;
    snprintf(it->slot, sizeof it->slot, "%s", p->item->slot ? p->item->slot : "");
    it->mark = v->opt.mark;
    if (v->base && tm_ckpt_base_has(v->base, p->item->name, p->dtype, p->item->shape))
      it->base = v->opt.base_mark;
  }
  return TM_OK;
}

/* --- one moment --- */

/* What is asked of ps k. */
static tm_token_list *save_tokens(save *v, int32_t k) {
  save_ps *p = &v->ps[k];
  if (!v->report.moment) return NULL;
  p->tokens = tm_moment_tokens(v->report.moment, k);
  return &p->tokens;
}

static tm_status save_take(void *ud, tm_err *err) {
  save *v = ud;
  tm_status s = TM_OK;
  v->asked = true;
  TM_TRY(tm_moment_note(v->s, &v->report.moment, err));
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->lane) s = p->lane->take(p->lane, p->item, p->n, save_tokens(v, k), err);
  }
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->lane) s = p->lane->taken(p->lane, p->there, err);
  }
  if (s == TM_OK && v->report.moment) s = tm_moment_deals(v->report.moment, v->s, err);
  return s;
}

static tm_status save_moment(save *v, tm_err *err) {
  int64_t end = tm_now_ns() + SAVE_WAIT_NS;
  tm_coordinator *c = v->s->coordinator;
  if (!c) return v->moment(v, err);
  for (;;) {
    if (tm_cancelled(v->opt.cancel))
      return tm_fail(err, TM_ECANCELLED, "the checkpoint was given up");
    if (tm_session_lost(v->s, err)) return TM_EUNAVAILABLE;
    tm_status s =
        tm_coordinator_barrier(c, SAVE_GATE_NS, v->opt.cancel, v->moment, v, err);
    if (s && tm_session_lost(v->s, err)) return TM_EUNAVAILABLE;
    if (s != TM_ETIMEOUT || v->asked || tm_now_ns() > end) return s;
    if (err) tm_err_clear(err);
    tm_sleep_ns(50000000);
  }
}

static tm_status save_lane_open(save *v, int32_t k, tm_err *err) {
  tm_session *s = v->s;
  if (s->save_lane) return s->save_lane(s, k, v->opt.cancel, &v->ps[k].lane, err);
  return tm_save_lane_local(s->store[k], v->opt.cancel, &v->ps[k].lane, err);
}

static tm_status save_lanes(save *v, tm_err *err) {
  for (int32_t k = 0; k < v->s->nps; k++)
    if (v->ps[k].n) TM_TRY(save_lane_open(v, k, err));
  return TM_OK;
}

/* --- files --- */

static int64_t save_there(const save *v, const save_piece *p) {
  return v->ps[p->lane].there[p->at];
}

static bool save_is_there(const save *v, const save_piece *p) {
  return save_there(v, p) != TM_SAVE_ABSENT;
}

/* Rows of a piece that are written. */
static int64_t save_rows(const save *v, const save_piece *p) {
  int64_t n = save_there(v, p);
  return n == TM_SAVE_WHOLE ? p->rows : n;
}

/* The piece after the last one of the tensor that begins at i. */
static size_t save_tensor_end(const save *v, size_t i) {
  size_t end = i + 1;
  while (end < v->n && strcmp(v->piece[end].item->name, v->piece[i].item->name) == 0)
    end++;
  return end;
}

/* A tensor of which any ps gave only what changed has the rows of the base. */
static void save_lend(save *v) {
  for (size_t i = 0, end; i < v->n; i = end) {
    bool lent = false;
    end = save_tensor_end(v, i);
    for (size_t k = i; k < end; k++) lent = lent || save_there(v, &v->piece[k]) >= 0;
    for (size_t k = i; k < end; k++) v->piece[k].lent = lent;
  }
}

static tm_status save_name(save *v, const save_piece *p, tm_err *err) {
  char entry[TM_CKPT_ENTRY_NAME];
  save_ps *ps = &v->ps[p->lane];
  const char *name = p->item->name;
  if (p->lent) {
    tm_ckpt_patch_entry(entry, name, "ids", p->first);
    if (!(ps->ids[p->at] = tm_strdup(entry))) return save_nomem(err);
    tm_ckpt_patch_entry(entry, name, "rows", p->first);
  } else {
    tm_ckpt_entry(entry, name, p->item->shape, p->first, p->rows);
  }
  ps->first[p->at] = p->first;
  return (ps->name[p->at] = tm_strdup(entry)) ? TM_OK : save_nomem(err);
}

static tm_status save_names(save *v, tm_err *err) {
  save_lend(v);
  for (size_t i = 0; i < v->n; i++) {
    if (!save_is_there(v, &v->piece[i])) continue;
    v->ps[v->piece[i].lane].nthere++;
    TM_TRY(save_name(v, &v->piece[i], err));
  }
  return TM_OK;
}

static tm_status save_reserve(save *v, tm_err *err) {
  for (int32_t k = 0; k < v->s->nps; k++) {
    save_ps *p = &v->ps[k];
    if (p->nthere == 0) continue;
    TM_TRY(tm_ckpt_reserve(v->w, p->file_name, &p->file, err));
    p->job = (tm_snapshot_job){.dir = v->dir,
                               .file = p->file_name,
                               .token = v->token,
                               .name = (const char *const *)p->name,
                               .ids = v->base ? (const char *const *)p->ids : NULL,
                               .first = p->first,
                               .n = p->n,
                               .unseen = true};
  }
  return TM_OK;
}

static tm_status save_write(save *v, tm_err *err) {
  tm_status s = TM_OK;
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->nthere) s = p->lane->write(p->lane, &p->job, err);
  }
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->nthere) s = p->lane->written(p->lane, &p->job, err);
  }
  return s;
}

/* --- files that the chief writes --- */

static tm_shape stream_shape(const save *v, const save_piece *c) {
  tm_shape s = c->shape;
  if (s.rank) s.dim[0] = save_rows(v, c);
  return s;
}

static bool stream_has(const save *v, const save_piece *c, int32_t k, bool ids) {
  return c->lane == k && save_is_there(v, c) && (!ids || c->lent);
}

/* As the ps would write it: numbers of rows, then the arrays. */
static size_t stream_items(const save *v, int32_t k, tm_st_item *items) {
  const save_ps *p = &v->ps[k];
  size_t n = 0;
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *c = &v->piece[i];
    if (stream_has(v, c, k, true))
      items[n++] = (tm_st_item){p->ids[c->at], TM_I64,
                                tm_shape_of(1, (int64_t[]){save_rows(v, c)})};
  }
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *c = &v->piece[i];
    if (stream_has(v, c, k, false))
      items[n++] = (tm_st_item){p->name[c->at], c->dtype, stream_shape(v, c)};
  }
  return n;
}

static tm_status stream_header(save *v, int32_t k, tm_sink *f, tm_err *err) {
  size_t room = 2 * (size_t)v->ps[k].n + 1;
  tm_st_item *items = tm_calloc(room, sizeof *items);
  if (!items) return save_nomem(err);
  size_t n = stream_items(v, k, items);
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER + TM_ST_ALIGN);
  tm_status s = tm_st_header(items, n, &head, err);
  if (s == TM_OK) s = tm_sink_put(f, head.data, head.len, err);
  tm_buf_release(&head);
  tm_free(items, room * sizeof *items);
  return s;
}

/* Part `part` of a lane, `bytes` of it; `add` is added to each number (of rows). */
static tm_status stream_part(save *v, int32_t k, int32_t part, uint64_t bytes,
                             int64_t add, tm_sink *f, void *room, tm_err *err) {
  tm_save_lane *l = v->ps[k].lane;
  for (uint64_t at = 0; at < bytes;) {
    size_t n = 0;
    TM_TRY(l->read(l, part, at, room, TM_SAVE_PIECE, &n, err));
    int64_t *id = room;
    for (size_t i = 0; add && i < n / sizeof *id; i++) id[i] += add;
    TM_TRY(tm_sink_put(f, room, n, err));
    at += n;
  }
  return TM_OK;
}

/* Numbers of rows are the parts behind those that were asked for. */
static tm_status stream_parts(save *v, int32_t k, tm_sink *f, void *room, tm_err *err) {
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *c = &v->piece[i];
    uint64_t bytes = (uint64_t)save_rows(v, c) * sizeof(int64_t);
    if (stream_has(v, c, k, true))
      TM_TRY(stream_part(v, k, v->ps[k].n + c->at, bytes, c->first, f, room, err));
  }
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *c = &v->piece[i];
    if (!stream_has(v, c, k, false)) continue;
    tm_shape shape = stream_shape(v, c);
    uint64_t bytes = (uint64_t)tm_shape_count(&shape) * tm_dtype_size(c->dtype);
    TM_TRY(stream_part(v, k, c->at, bytes, 0, f, room, err));
  }
  return TM_OK;
}

static tm_status stream_file(save *v, int32_t k, void *room, tm_err *err) {
  char path[TM_PATH_MAX];
  save_ps *p = &v->ps[k];
  tm_sink f;
  TM_TRY(tm_path_join(path, v->dir, p->file_name, err));
  TM_TRY(tm_sink_open(&f, path, err));
  tm_status s = stream_header(v, k, &f, err);
  if (s == TM_OK) s = stream_parts(v, k, &f, room, err);
  if (s == TM_OK) s = p->lane->finish(p->lane, err);
  if (s == TM_OK) s = tm_sink_close(&f, err);
  tm_sink_abort(&f);
  p->job.size = f.size;
  p->job.crc = f.crc;
  v->report.streamed++;
  return s;
}

static tm_status save_stream(save *v, tm_err *err) {
  void *room = NULL;
  tm_status s = TM_OK;
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    if (v->ps[k].nthere == 0 || !v->ps[k].job.unseen) continue;
    if (!room && !(room = tm_malloc(TM_SAVE_PIECE))) return save_nomem(err);
    s = stream_file(v, k, room, err);
  }
  tm_free(room, TM_SAVE_PIECE);
  return s;
}

static tm_status save_files(save *v, tm_err *err) {
  TM_TRY(save_names(v, err));
  TM_TRY(save_reserve(v, err));
  if (!v->opt.stream) {
    TM_TRY(tm_snapshot_probe(v->dir, v->token, err));
    tm_status s = save_write(v, err);
    tm_snapshot_unprobe(v->dir);
    TM_TRY(s);
  }
  TM_TRY(save_stream(v, err));
  for (int32_t k = 0; k < v->s->nps; k++) {
    save_ps *p = &v->ps[k];
    if (p->nthere == 0) continue;
    TM_TRY(tm_ckpt_filled(v->w, p->file, p->job.size, p->job.crc, err));
    v->report.bytes += p->job.size;
  }
  return TM_OK;
}

/* --- the index --- */

/* A shard that has not made the slot yet: rows of its start value. */
static tm_status index_fill(save *v, const save_piece *c, tm_err *err) {
  tm_shape row = c->shape;
  if (row.rank) row.dim[0] = 1;
  int64_t bytes = tm_shape_count(&row) * (int64_t)tm_dtype_size(c->dtype);
  int64_t step = bytes > 0 && bytes < SAVE_FILL ? SAVE_FILL / bytes : 1;
  tm_init in = {.kind = "constant", .a = c->item->start};
  for (int64_t done = 0; done < c->rows; done += step) {
    tm_tensor *t;
    tm_shape shape = c->shape;
    if (shape.rank) shape.dim[0] = c->rows - done < step ? c->rows - done : step;
    TM_TRY(tm_tensor_new(c->dtype, &shape, &t, err));
    tm_status s = tm_init_fill(&in, 0, &t->v, err);
    if (s == TM_OK)
      s = tm_ckpt_put(v->w, c->item->name, c->item->shape, c->first + done, t, err);
    tm_tensor_unref(t);
    TM_TRY(s);
  }
  return TM_OK;
}

static bool index_any(const save *v, size_t from, size_t to) {
  for (size_t i = from; i < to; i++)
    if (save_is_there(v, &v->piece[i])) return true;
  return false;
}

static uint64_t index_bytes(const save *v, const save_piece *c, int64_t rows) {
  tm_shape s = c->shape;
  (void)v;
  if (s.rank) s.dim[0] = rows;
  return (uint64_t)tm_shape_count(&s) * tm_dtype_size(c->dtype);
}

/* Rows of the base, and over them what changed.  A slot that a shard has not made yet
 * is as it was. */
static tm_status index_patches(save *v, size_t from, size_t to, tm_err *err) {
  TM_TRY(tm_ckpt_base_lend(v->base, v->w, v->piece[from].item->name, err));
  for (size_t i = from; i < to; i++) {
    const save_piece *c = &v->piece[i];
    v->report.lent += index_bytes(v, c, c->rows);
    if (!save_is_there(v, c)) continue;
    v->report.patched += index_bytes(v, c, save_rows(v, c));
    TM_TRY(tm_ckpt_note_patch(v->w, c->item->name, c->first, save_rows(v, c),
                              v->ps[c->lane].file, err));
  }
  return TM_OK;
}

static tm_status index_tensor(save *v, size_t from, size_t to, tm_err *err) {
  if (v->piece[from].lent) return index_patches(v, from, to, err);
  for (size_t i = from; i < to; i++) {
    const save_piece *c = &v->piece[i];
    TM_TRY(save_is_there(v, c)
               ? tm_ckpt_note(v->w, c->item->name, c->item->shape, c->dtype, c->first,
                              c->rows, v->ps[c->lane].file, err)
               : index_fill(v, c, err));
  }
  return TM_OK;
}

static tm_status save_index(save *v, tm_err *err) {
  for (size_t i = 0, end; i < v->n; i = end) {
    end = save_tensor_end(v, i);
    if (index_any(v, i, end)) TM_TRY(index_tensor(v, i, end, err));
  }
  return TM_OK;
}

/* --- all of it --- */

static void save_release(save *v) {
  for (int32_t k = 0; v->ps && k < v->s->nps; k++) {
    save_ps *p = &v->ps[k];
    if (p->lane) p->lane->close(p->lane);
    for (int32_t i = 0; p->name && i < p->n; i++) tm_strfree(p->name[i]);
    for (int32_t i = 0; p->ids && i < p->n; i++) tm_strfree(p->ids[i]);
    tm_free(p->ids, ((size_t)p->n + 1) * sizeof *p->ids);
    tm_free(p->first, ((size_t)p->n + 1) * sizeof *p->first);
    tm_free(p->item, ((size_t)p->n + 1) * sizeof *p->item);
    tm_free(p->there, ((size_t)p->n + 1) * sizeof *p->there);
    tm_free(p->name, ((size_t)p->n + 1) * sizeof *p->name);
  }
  tm_free(v->ps, (size_t)v->s->nps * sizeof *v->ps);
  tm_free(v->piece, v->cap * sizeof *v->piece);
  tm_ckpt_base_close(v->base);
}

/* Without the base everything is written. */
static void save_open_base(save *v) {
  tm_err err;
  tm_err_clear(&err);
  if (!v->opt.base || !v->opt.base_mark) return;
  if (tm_ckpt_base_open(v->opt.base, &v->base, &err))
    tm_log(TM_LOG_WARN, "a whole checkpoint is saved, since the one before is gone: %s",
           err.msg);
}

/* All of it while no UPDATE begins: nothing can outrun the disk. */
static tm_status save_still(void *ud, tm_err *err) {
  TM_TRY(save_take(ud, err));
  return save_files(ud, err);
}

static tm_status save_run(save *v, const tm_save_item *item, size_t n, tm_err *err) {
  TM_TRY(tm_path_absolute(v->dir, tm_ckpt_directory(v->w), err));
  save_open_base(v);
  TM_TRY(save_pieces(v, item, n, err));
  TM_TRY(save_lanes(v, err));
  int64_t start = tm_now_ns();
  v->moment = v->opt.still ? save_still : save_take;
  TM_TRY(save_moment(v, err));
  v->report.pause_ns = tm_now_ns() - start;
  if (!v->opt.still) TM_TRY(save_files(v, err));
  return save_index(v, err);
}

tm_status tm_session_save(tm_session *s, tm_ckpt_writer *w, const tm_save_item *item,
                          size_t n, const tm_save_options *opt, tm_save_report *report,
                          tm_err *err) {
  save *v = tm_calloc(1, sizeof *v);
  if (!v) return save_nomem(err);
  v->s = s;
  v->w = w;
  v->opt = *opt;
  tm_status st = save_run(v, item, n, err);
  if (st || !report) {
    tm_moment_free(v->report.moment);
    v->report.moment = NULL;
  }
  if (report) *report = v->report;
  save_release(v);
  tm_free(v, sizeof *v);
  return st;
}
