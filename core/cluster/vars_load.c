#include "cluster/vars_load.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/ps_load.h"

/*
 * Design.  Items are cut by shard and sorted by lane (lane nps is the local store).
 * Lanes with a `load` of their own get a frame of items at a time (each makes the ps
 * read the checkpoint's index, so there are few), all lanes before any is
 * waited for.  One that answers "unseen" is served from here, as are lanes that lie in
 * this process: pieces of 8 MB over a socket, of 64 MB directly.
 *
 * Invariant: after an error nothing is outstanding.
 */
enum { LOAD_BYTES = 8 << 20, LOAD_ITEM_BYTES = 80 }; /* of metadata; at most, of one */

typedef struct load_lane {
  tm_ps_client *c;
  tm_ps_load_item *item;
  int32_t n, at;
  bool here; /* rows are read in this process */
  bool sent;
  tm_ps_load ask;
} load_lane;

static void load_release(load_lane *lane, int32_t n) {
  for (int32_t k = 0; k < n; k++)
    tm_free(lane[k].item, (size_t)lane[k].n * sizeof(tm_ps_load_item));
  tm_free(lane, (size_t)n * sizeof *lane);
}

static tm_status load_check(const tm_var_info *info, const tm_vars_load_item *it,
                            tm_err *err) {
  tm_shape want = info->shape;
  bool part = it->shard >= 0 || it->from > 0;
  if (part && want.rank) {
    want.dim[0] = it->shard < 0 ? info->shape.dim[0] : info->shard[it->shard].rows;
    bool fits = it->t->shape.rank == want.rank && it->from <= it->t->shape.dim[0] &&
                want.dim[0] <= it->t->shape.dim[0] - it->from;
    if (fits) want.dim[0] = it->t->shape.dim[0];
  }
  if (it->t->dtype == info->dtype && tm_shape_equal(&it->t->shape, &want)) return TM_OK;
  char a[96], b[96];
  return tm_fail(err, TM_EINVAL,
                 "\"%.200s\" is %s %s in the checkpoint, and %s %s here", it->t->name,
                 tm_dtype_name(it->t->dtype), tm_shape_text(&it->t->shape, a, sizeof a),
                 tm_dtype_name(info->dtype), tm_shape_text(&want, b, sizeof b));
}

/* Count (item NULL) or note the pieces of one item. */
static tm_status load_cut(tm_vars *v, load_lane *lane, const tm_vars_load_item *it,
                          bool count, tm_err *err) {
  tm_var_info *info = tm_catalog_get(v->catalog, it->uid);
  if (!info)
    return tm_fail(err, TM_ENOTFOUND, "variable %" PRIx64 " is not known here",
                   it->uid);
  tm_status s = TM_OK;
  if (it->shard >= info->nshard) s = tm_fail(err, TM_EINVAL, "no such shard");
  if (s == TM_OK) s = load_check(info, it, err);
  int64_t base = it->shard >= 0 && s == TM_OK ? info->shard[it->shard].offset : 0;
  for (int32_t k = 0; s == TM_OK && k < info->nshard; k++) {
    const tm_shard_info *sh = &info->shard[k];
    load_lane *l = &lane[sh->ps < 0 || sh->ps > v->nps ? v->nps : sh->ps];
    if (it->shard >= 0 && k != it->shard) continue;
    if (!count)
      l->item[l->at++] =
          (tm_ps_load_item){it->t->name,
                            it->from + sh->offset - base,
                            sh->rows,
                            {it->uid, (uint32_t)k, it->slot, it->optimizer, 0}};
    else if (l->n < INT32_MAX)
      l->n++;
  }
  tm_var_info_unref(info);
  return s;
}

static tm_status load_sort(tm_vars *v, load_lane *lane, const tm_vars_load_item *item,
                           size_t n, tm_err *err) {
  for (size_t i = 0; i < n; i++) TM_TRY(load_cut(v, lane, &item[i], true, err));
  for (int32_t k = 0; k <= v->nps; k++) {
    load_lane *l = &lane[k];
    l->c = k < v->nps ? v->ps[k] : v->local;
    int32_t count = l->n;
    l->n = 0;
    if (!count) continue;
    if (!l->c)
      return tm_fail(err, TM_EUNAVAILABLE, "/job:ps/task:%d is not connected", k);
    l->here = !l->c->load;
    l->item = tm_calloc((size_t)count, sizeof *l->item);
    if (!l->item) return tm_nomem(err, "a restore");
    l->n = count;
  }
  for (size_t i = 0; i < n; i++) TM_TRY(load_cut(v, lane, &item[i], false, err));
  for (int32_t k = 0; k <= v->nps; k++) lane[k].at = 0;
  return TM_OK;
}

/* --- ps that read themselves --- */

static bool load_left(const load_lane *l) { return !l->here && l->at < l->n; }

/* How many of the next items one frame holds. */
static int32_t load_batch(const load_lane *l) {
  size_t bytes = 0;
  int32_t n = 0;
  while (n < TM_LOAD_ITEMS && l->at + n < l->n && bytes < LOAD_BYTES)
    bytes += strlen(l->item[l->at + n++].name) + LOAD_ITEM_BYTES;
  return n;
}

static tm_status load_send(load_lane *l, const tm_ps_load *ask, tm_err *err) {
  l->ask = *ask;
  l->ask.item = l->item + l->at;
  l->ask.n = load_batch(l);
  TM_TRY(l->c->load(l->c, &l->ask, err));
  l->sent = true;
  return TM_OK;
}

static tm_status load_wait(load_lane *l, tm_err *err) {
  l->sent = false;
  TM_TRY(l->c->loaded(l->c, &l->ask, err));
  if (l->ask.unseen)
    l->here = true;
  else
    l->at += l->ask.n;
  return TM_OK;
}

/* One turn of all lanes; the first error is told when all have answered. */
static tm_status load_turn(load_lane *lane, int32_t n, const tm_ps_load *ask,
                           tm_err *err) {
  tm_status first = TM_OK;
  for (int32_t k = 0; k < n && first == TM_OK; k++)
    if (load_left(&lane[k])) first = load_send(&lane[k], ask, err);
  for (int32_t k = 0; k < n; k++) {
    tm_err one;
    tm_err_clear(&one);
    tm_status s = lane[k].sent ? load_wait(&lane[k], &one) : TM_OK;
    if (s == TM_OK || first) continue;
    first = s;
    if (err) *err = one;
  }
  return first;
}

/* --- rows that go through this process --- */

static tm_status load_put(void *ud, const tm_ps_place *p, const tm_view *rows,
                          tm_err *err) {
  tm_ps_client *c = ud;
  return c->put(c, p, rows, err);
}

static tm_status load_here(load_lane *l, tm_ckpt_reader *r, bool check,
                           tm_cancel *cancel, tm_err *err) {
  uint64_t piece = l->c->load ? TM_LOAD_PIECE : TM_LOAD_WHOLE;
  for (; l->at < l->n; l->at++) {
    const tm_ps_load_item *it = &l->item[l->at];
    const tm_ckpt_tensor *t = tm_ckpt_find(r, it->name);
    if (!t) return tm_fail(err, TM_ENOTFOUND, "no \"%.300s\"", it->name);
    if (tm_cancelled(cancel))
      return tm_fail(err, TM_ECANCELLED, "the restore was given up");
    if (check)
      TM_TRY(tm_ckpt_verify_rows(r, t, it->from, it->rows, err));
    else
      TM_TRY(tm_load_rows(r, t, it, piece, cancel, load_put, l->c, err));
  }
  return TM_OK;
}

static tm_status load_lanes(load_lane *lane, int32_t n, tm_ckpt_reader *r,
                            const tm_ps_load *ask, tm_cancel *cancel, tm_err *err) {
  bool left = true;
  while (left) {
    if (tm_cancelled(cancel))
      return tm_fail(err, TM_ECANCELLED, "the restore was given up");
    TM_TRY(load_turn(lane, n, ask, err));
    left = false;
    for (int32_t k = 0; k < n; k++) left = left || load_left(&lane[k]);
  }
  for (int32_t k = 0; k < n; k++)
    if (lane[k].here) TM_TRY(load_here(&lane[k], r, ask->check, cancel, err));
  return TM_OK;
}

tm_status tm_vars_load(tm_vars *v, tm_ckpt_reader *r, const char *path,
                       const tm_vars_load_item *item, size_t n, bool check,
                       tm_cancel *cancel, tm_err *err) {
  tm_ps_load ask = {.path = path, .check = check};
  int32_t lanes = v->nps + 1;
  load_lane *lane = tm_calloc((size_t)lanes, sizeof *lane);
  if (!lane) return tm_nomem(err, "a restore");
  tm_ckpt_identity(r, &ask.size, &ask.crc);
  tm_status s = load_sort(v, lane, item, n, err);
  if (s == TM_OK) s = load_lanes(lane, lanes, r, &ask, cancel, err);
  load_release(lane, lanes);
  return s;
}
