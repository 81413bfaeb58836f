#include "cluster/vars_rows.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "cluster/vars_split.h"
#include "kernel/rows.h"

/*
 * Design.  Ids are checked and made distinct, then sorted by shard with a stable
 * counting sort, so that the rows of a shard lie together.
 *
 * The UPDATE of a step names the ids that its READ named, one exchange before.  So what
 * a READ found out is kept for one exchange more: two arenas take turns.  It is found
 * again by variable and by the ids themselves, of which it keeps a copy: the caller may
 * write to its memory meanwhile.
 *
 * Invariant: seen[t] holds entries of arena[t] only, and is emptied with it.
 */

const char *tm_vars_name(const tm_var_info *info) {
  return info->name[0] ? info->name : "variable";
}

void tm_vars_rows_forget(tm_vars_memory *m) { memset(m->seen, 0, sizeof m->seen); }

void tm_vars_rows_turn(tm_vars_memory *m) {
  m->now ^= 1;
  tm_arena_reset(&m->arena[m->now]);
  memset(m->seen[m->now], 0, sizeof m->seen[m->now]);
}

void tm_vars_rows_release(tm_vars_memory *m) {
  tm_vars_rows_forget(m);
  tm_arena_release(&m->arena[0]);
  tm_arena_release(&m->arena[1]);
}

static tm_vars_rows **rows_bucket(tm_vars_memory *m, int turn, uint64_t uid) {
  return &m->seen[turn][tm_mix64(uid) & 63];
}

/* Known from the READs before?  ids are int64. */
static tm_vars_rows *rows_find(tm_vars_memory *m, const tm_var_info *info, int32_t only,
                               const tm_view *ids) {
  int64_t n = tm_view_count(ids);
  tm_vars_rows *r = *rows_bucket(m, m->now ^ 1, info->uid);
  for (; r; r = r->next)
    if (r->info == info && r->only == only && r->n == n &&
        (n == 0 || memcmp(r->ids, ids->data, (size_t)n * sizeof *r->ids) == 0))
      return r;
  return NULL;
}

/* The ids as int64; a copy where they are kept. */
static tm_status rows_ids(tm_arena *a, const tm_view *ids, bool keep, tm_vars_rows *r,
                          tm_err *err) {
  r->n = tm_view_count(ids);
  if (r->n > INT32_MAX)
    return tm_fail(err, TM_EEXHAUSTED, "%" PRId64 " ids in one lookup", r->n);
  r->ids = ids->data;
  if (ids->dtype == TM_I64 && !keep) return TM_OK;
  int64_t *own = tm_arena_alloc(a, (size_t)(r->n + 1) * 8);
  if (!own) return tm_nomem(err, "ids");
  if (ids->dtype == TM_I64 && r->n) memcpy(own, ids->data, (size_t)r->n * 8);
  for (int64_t i = 0; ids->dtype != TM_I64 && i < r->n; i++)
    own[i] = tm_view_get_i64(ids, i);
  r->ids = own;
  return TM_OK;
}

static tm_status rows_check(const tm_vars_rows *r, const int64_t *id, int64_t n,
                            tm_err *err) {
  int64_t rows = r->only < 0 ? r->info->shape.dim[0] : r->info->shard[r->only].rows;
  for (int64_t i = 0; i < n; i++)
    if (id[i] < 0 || id[i] >= rows)
      return tm_fail(err, TM_EINVAL,
                     "%s has no row %" PRId64 ": it has %" PRId64
                     " rows, ids count from 0",
                     tm_vars_name(r->info), id[i], rows);
  return TM_OK;
}

/* Distinct ids in order of appearance; PLAIN: all of them. */
static tm_status rows_unique(tm_arena *a, tm_vars_rows *r, bool plain,
                             const int64_t **uniq, tm_err *err) {
  size_t room = (size_t)(r->n + 1);
  r->first = tm_arena_alloc(a, room * 4);
  if (!r->first) return tm_nomem(err, "unique ids");
  if (plain) {
    for (int64_t i = 0; i < r->n; i++) r->first[i] = (int32_t)i;
    *uniq = r->ids;
    r->nu = r->n;
    return rows_check(r, *uniq, r->nu, err);
  }
  int64_t *u = tm_arena_alloc(a, room * 8);
  r->inv = tm_arena_alloc(a, room * 4);
  void *scratch = tm_arena_alloc(a, tm_k_unique_scratch(r->n));
  if (!u || !r->inv || !scratch) return tm_nomem(err, "unique ids");
  r->nu = tm_k_unique_i64(u, r->first, r->inv, r->ids, r->n, scratch);
  *uniq = u;
  return rows_check(r, u, r->nu, err);
}

/* Shards are a "div" split: the first ones may have one row more. */
static int32_t rows_shard(const tm_var_info *info, int64_t id) {
  int32_t lo = 0, hi = info->nshard - 1;
  if (hi < 8) { /* no branches to mispredict */
    for (int32_t k = 1; k <= hi; k++) lo += info->shard[k].offset <= id;
    return lo;
  }
  while (lo < hi) {
    int32_t mid = (lo + hi + 1) / 2;
    if (info->shard[mid].offset <= id) {
      lo = mid;
    } else {
      hi = mid - 1;
    }
  }
  return lo;
}

/* All in one shard: the order is right. */
static void rows_one_shard(tm_vars_rows *r, const int64_t *uniq) {
  for (int32_t k = r->only < 0 ? 1 : r->only + 1; k <= r->info->nshard; k++)
    r->start[k] = r->nu;
  if (r->nu) memcpy(r->local, uniq, (size_t)r->nu * sizeof *uniq);
}

/* place[u]: where the u-th distinct id goes; `start` becomes final. */
static void rows_places(tm_vars_rows *r, const int64_t *uniq, int32_t *place) {
  const tm_var_info *info = r->info;
  for (int64_t u = 0; u < r->nu; u++) {
    place[u] = rows_shard(info, uniq[u]);
    r->start[place[u] + 2]++;
  }
  for (int32_t k = 0; k < info->nshard; k++) r->start[k + 2] += r->start[k + 1];
  for (int64_t u = 0; u < r->nu; u++) {
    int32_t k = place[u];
    place[u] = (int32_t)r->start[k + 1]++;
    r->local[place[u]] = uniq[u] - info->shard[k].offset;
  }
}

static tm_status rows_sort(tm_arena *a, tm_vars_rows *r, const int64_t *uniq,
                           tm_err *err) {
  size_t room = (size_t)(r->nu + 1);
  r->local = tm_arena_alloc(a, room * 8);
  r->start = tm_arena_calloc(a, (size_t)(r->info->nshard + 2) * 8);
  if (!r->local || !r->start) return tm_nomem(err, "row ids");
  if (r->only >= 0 || r->info->nshard == 1) {
    rows_one_shard(r, uniq);
    return TM_OK;
  }
  int32_t *place = tm_arena_alloc(a, room * 4), *first = tm_arena_alloc(a, room * 4);
  if (!place || !first) return tm_nomem(err, "row ids");
  rows_places(r, uniq, place);
  for (int64_t u = 0; u < r->nu; u++) first[place[u]] = r->first[u];
  r->first = first;
  for (int64_t i = 0; r->inv && i < r->n; i++) r->inv[i] = place[r->inv[i]];
  return TM_OK;
}

static tm_status rows_make(tm_arena *a, const tm_view *ids, tm_rows_use use,
                           tm_vars_rows *r, tm_err *err) {
  const int64_t *uniq = NULL;
  TM_TRY(rows_ids(a, ids, use == TM_ROWS_READ, r, err));
  TM_TRY(rows_unique(a, r, use == TM_ROWS_PLAIN, &uniq, err));
  return rows_sort(a, r, uniq, err);
}

tm_status tm_vars_rows_of(tm_vars *v, const tm_var_info *info, int32_t only,
                          const tm_view *ids, tm_rows_use use, tm_vars_rows **out,
                          tm_err *err) {
  tm_vars_memory *m = &v->scratch->rows;
  if (use == TM_ROWS_UPDATE && ids->dtype == TM_I64) {
    *out = rows_find(m, info, only, ids);
    if (*out) return TM_OK;
  }
  tm_vars_rows *r = *out = tm_arena_calloc(&m->arena[m->now], sizeof *r);
  if (!r) return tm_nomem(err, "row ids");
  r->info = info;
  r->only = only;
  TM_TRY(rows_make(&m->arena[m->now], ids, use, r, err));
  if (use != TM_ROWS_READ) return TM_OK;
  tm_vars_rows **at = rows_bucket(m, m->now, info->uid);
  r->next = *at;
  *at = r;
  return TM_OK;
}

tm_status tm_vars_rows_distinct(tm_vars *v, const tm_var_info *info, int32_t only,
                                const tm_view *ids, int64_t n, tm_vars_rows **out,
                                tm_err *err) {
  tm_view some = {ids->dtype, {1, {n}}, ids->data};
  if (n < 0 || n > tm_view_count(ids))
    return tm_fail(err, TM_EINVAL, "%" PRId64 " distinct ids of %" PRId64, n,
                   tm_view_count(ids));
  return tm_vars_rows_of(v, info, only, &some, TM_ROWS_PLAIN, out, err);
}
