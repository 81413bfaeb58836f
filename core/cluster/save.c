#include "cluster/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "ckpt/file.h"
#include "cluster/save_lane.h"
#include "cluster/session_parts.h"

/*
 * Design.  Items become pieces, one a shard; pieces are put on lanes, one a ps.  All
 * lanes take their snapshot while no UPDATE is under way; then each writes its file,
 * and the chief writes those of ps that do not see its directory.  At last the index is
 * told of the pieces, in order of the items.
 *
 * Invariants:
 *   (1) A piece is array `at` of its lane's snapshot; names[at] is its entry in the
 * file where it is there. (2) Lanes without pieces have no connection (lane NULL).
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
} save_piece;

typedef struct save_ps {
  tm_save_lane *lane;
  tm_snapshot_item *item; /* n */
  bool *there;
  char **name;
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
  bool asked; /* the snapshots were asked for */
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
  return p->item && p->there && p->name ? TM_OK : save_nomem(err);
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
  }
  return TM_OK;
}

/* --- one moment --- */

static tm_status save_take(void *ud, tm_err *err) {
  save *v = ud;
  tm_status s = TM_OK;
  v->asked = true;
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->lane) s = p->lane->take(p->lane, p->item, p->n, err);
  }
  for (int32_t k = 0; k < v->s->nps && s == TM_OK; k++) {
    save_ps *p = &v->ps[k];
    if (p->lane) s = p->lane->taken(p->lane, p->there, err);
  }
  return s;
}

static tm_status save_moment(save *v, tm_err *err) {
  int64_t end = tm_now_ns() + SAVE_WAIT_NS;
  tm_coordinator *c = v->s->coordinator;
  if (!c) return save_take(v, err);
  for (;;) {
    if (tm_cancelled(v->opt.cancel))
      return tm_fail(err, TM_ECANCELLED, "the checkpoint was given up");
    tm_status s = tm_coordinator_barrier(c, SAVE_GATE_NS, save_take, v, err);
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

static tm_status save_names(save *v, tm_err *err) {
  char entry[TM_CKPT_ENTRY_NAME];
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *p = &v->piece[i];
    save_ps *ps = &v->ps[p->lane];
    if (!ps->there[p->at]) continue;
    ps->nthere++;
    tm_ckpt_entry(entry, p->item->name, p->item->shape, p->first, p->rows);
    if (!(ps->name[p->at] = tm_strdup(entry))) return save_nomem(err);
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

static tm_status stream_header(save *v, int32_t k, tm_sink *f, tm_err *err) {
  save_ps *p = &v->ps[k];
  tm_st_item *items = tm_calloc((size_t)p->n + 1, sizeof *items);
  size_t n = 0;
  if (!items) return save_nomem(err);
  for (size_t i = 0; i < v->n; i++) {
    const save_piece *c = &v->piece[i];
    if (c->lane == k && p->there[c->at])
      items[n++] = (tm_st_item){p->name[c->at], c->dtype, c->shape};
  }
  tm_buf head = TM_BUF_INIT(TM_ST_MAX_HEADER + TM_ST_ALIGN);
  tm_status s = tm_st_header(items, n, &head, err);
  if (s == TM_OK) s = tm_sink_put(f, head.data, head.len, err);
  tm_buf_release(&head);
  tm_free(items, ((size_t)p->n + 1) * sizeof *items);
  return s;
}

static tm_status stream_piece(save *v, const save_piece *c, tm_sink *f, void *room,
                              tm_err *err) {
  tm_save_lane *l = v->ps[c->lane].lane;
  uint64_t bytes = (uint64_t)tm_shape_count(&c->shape) * tm_dtype_size(c->dtype);
  for (uint64_t at = 0; at < bytes;) {
    size_t n = 0;
    TM_TRY(l->read(l, c->at, at, room, TM_SAVE_PIECE, &n, err));
    TM_TRY(tm_sink_put(f, room, n, err));
    at += n;
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
  for (size_t i = 0; i < v->n && s == TM_OK; i++) {
    const save_piece *c = &v->piece[i];
    if (c->lane == k && p->there[c->at]) s = stream_piece(v, c, &f, room, err);
  }
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
    if (v->ps[v->piece[i].lane].there[v->piece[i].at]) return true;
  return false;
}

static tm_status index_tensor(save *v, size_t from, size_t to, tm_err *err) {
  for (size_t i = from; i < to; i++) {
    const save_piece *c = &v->piece[i];
    const save_ps *p = &v->ps[c->lane];
    TM_TRY(p->there[c->at] ? tm_ckpt_note(v->w, c->item->name, c->item->shape, c->dtype,
                                          c->first, c->rows, p->file, err)
                           : index_fill(v, c, err));
  }
  return TM_OK;
}

static tm_status save_index(save *v, tm_err *err) {
  for (size_t i = 0, end; i < v->n; i = end) {
    const char *name = v->piece[i].item->name;
    for (end = i + 1; end < v->n; end++)
      if (strcmp(v->piece[end].item->name, name) != 0) break;
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
    tm_free(p->item, ((size_t)p->n + 1) * sizeof *p->item);
    tm_free(p->there, ((size_t)p->n + 1) * sizeof *p->there);
    tm_free(p->name, ((size_t)p->n + 1) * sizeof *p->name);
  }
  tm_free(v->ps, (size_t)v->s->nps * sizeof *v->ps);
  tm_free(v->piece, v->cap * sizeof *v->piece);
}

static tm_status save_run(save *v, const tm_save_item *item, size_t n, tm_err *err) {
  TM_TRY(tm_path_absolute(v->dir, tm_ckpt_directory(v->w), err));
  TM_TRY(save_pieces(v, item, n, err));
  TM_TRY(save_lanes(v, err));
  int64_t start = tm_now_ns();
  TM_TRY(save_moment(v, err));
  v->report.pause_ns = tm_now_ns() - start;
  TM_TRY(save_files(v, err));
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
  if (report) *report = v->report;
  save_release(v);
  tm_free(v, sizeof *v);
  return st;
}
