#include "cluster/vars_split.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "kernel/rows.h"

/*
 * Design.  Items are appended to lanes in the order of the lists, so a ps applies
 * UPDATEs in program order.  Ids of rows are made distinct and sorted by shard in
 * vars_rows.c; repeated rows are copied, summed or combined here.
 */
static tm_vars_lane *split_lane(tm_vars *v, int32_t ps) {
  return &v->scratch->lane[ps < 0 ? v->nps : ps];
}

/* Grow an arena array by doubling; old contents stay behind until the next reset. */
static void *split_push(tm_arena *a, void *items, int32_t *n, int32_t *cap,
                        size_t size) {
  if (*n == *cap) {
    int32_t more = *cap ? *cap * 2 : 16;
    void *p = tm_arena_alloc(a, (size_t)more * size);
    if (!p) return NULL;
    if (*n) memcpy(p, items, (size_t)*n * size);
    *cap = more;
    items = p;
  }
  (*n)++;
  return items;
}

static tm_ps_update *split_add_update(tm_vars *v, tm_vars_lane *l) {
  void *p = split_push(&v->scratch->arena, l->up, &l->nup, &l->cap_up, sizeof *l->up);
  if (!p) return NULL;
  l->up = p;
  memset(&l->up[l->nup - 1], 0, sizeof *l->up);
  return &l->up[l->nup - 1];
}

static tm_ps_read *split_add_read(tm_vars *v, tm_vars_lane *l) {
  void *p = split_push(&v->scratch->arena, l->rd, &l->nrd, &l->cap_rd, sizeof *l->rd);
  if (!p) return NULL;
  l->rd = p;
  memset(&l->rd[l->nrd - 1], 0, sizeof *l->rd);
  return &l->rd[l->nrd - 1];
}

static size_t split_row_bytes(const tm_var_info *info) {
  size_t n = tm_dtype_size(info->dtype);
  for (int32_t i = 1; i < info->shape.rank; i++) n *= (size_t)info->shape.dim[i];
  return n;
}

static void split_shards(const tm_var_info *info, int32_t only, int32_t *from,
                         int32_t *to) {
  *from = only < 0 ? 0 : only;
  *to = only < 0 ? info->nshard : only + 1;
}

static tm_status split_check_shard(const tm_var_info *info, int32_t shard,
                                   tm_err *err) {
  if (shard < info->nshard) return TM_OK;
  return tm_fail(err, TM_EINVAL, "%s: shard %d of %d", tm_vars_name(info), shard,
                 info->nshard);
}

static tm_shape split_shard_shape(const tm_var_info *info, int32_t k) {
  tm_shape s = info->shape;
  if (s.rank && info->nshard > 1) s.dim[0] = info->shard[k].rows;
  return s;
}

/* --- views --- */

static tm_view split_i64s(int64_t *p, int64_t n) {
  tm_view v = {TM_I64, {1, {n}}, p};
  return v;
}

static tm_view split_row_view(const tm_var_info *info, void *p, int64_t n) {
  tm_view v = {info->dtype, info->shape, p};
  v.shape.dim[0] = n;
  return v;
}

/* --- reads --- */

/* Where each distinct row of the answer goes: to its first place in dst or, when rows
 * are combined, into memory of our own (*rows). */
static tm_status split_rows_places(tm_vars *v, const tm_read *rd, const tm_vars_rows *r,
                                   size_t row, void **at, uint8_t **rows, tm_err *err) {
  *rows = NULL;
  if (rd->fan > 0) {
    *rows = tm_arena_alloc(&v->scratch->arena, (size_t)(r->nu + 1) * row + 64);
    if (!*rows) return tm_nomem(err, "rows");
    *rows = (uint8_t *)(((uintptr_t)*rows + 63) & ~(uintptr_t)63);
  }
  for (int64_t u = 0; u < r->nu; u++)
    at[u] = *rows ? *rows + (size_t)u * row
                  : (uint8_t *)rd->dst.data + (size_t)r->first[u] * row;
  return TM_OK;
}

static tm_status split_groups(tm_vars *v, int64_t n, int32_t fan, int32_t **start,
                              tm_err *err) {
  int64_t groups = n / fan;
  *start = tm_arena_alloc(&v->scratch->arena, (size_t)(groups + 1) * sizeof **start);
  if (!*start) return tm_nomem(err, "rows");
  for (int64_t g = 0; g <= groups; g++) (*start)[g] = (int32_t)(g * fan);
  return TM_OK;
}

static tm_status split_read_rows(tm_vars *v, const tm_var_info *info, tm_read *rd,
                                 tm_err *err) {
  tm_vars_rows *r;
  tm_arena *a = &v->scratch->arena;
  size_t row = split_row_bytes(info);
  if (info->shape.rank < 1)
    return tm_fail(err, TM_EINVAL, "%s is a scalar: it has no rows",
                   tm_vars_name(info));
  TM_TRY(rd->nunique
             ? tm_vars_rows_distinct(v, info, rd->shard, rd->ids, rd->nunique, &r, err)
             : tm_vars_rows_of(v, info, rd->shard, rd->ids, TM_ROWS_READ, &r, err));
  void **at = tm_arena_alloc(a, (size_t)(r->nu + 1) * sizeof(void *));
  if (!at) return tm_nomem(err, "rows");
  uint8_t *rows;
  TM_TRY(split_rows_places(v, rd, r, row, at, &rows, err));
  for (int32_t k = 0; k < info->nshard; k++) {
    int64_t from = r->start[k], n = r->start[k + 1] - from;
    if (n == 0) continue;
    tm_vars_lane *l = split_lane(v, info->shard[k].ps);
    tm_ps_read *it = split_add_read(v, l);
    if (!it) return tm_nomem(err, "a READ");
    it->kind = TM_PS_ROWS;
    it->uid = info->uid;
    it->shard = (uint32_t)k;
    it->ids = split_i64s(r->local + from, n);
    it->rows_at = at + from;
    it->dst = split_row_view(info, rd->dst.data, n);
    l->bytes_rd += (size_t)n * row;
  }
  if (r->nu == r->n && !rows) return TM_OK;
  tm_vars_repeat *rep = tm_arena_alloc(a, sizeof *rep);
  int32_t *start = NULL;
  if (!rep) return tm_nomem(err, "rows");
  if (rows) TM_TRY(split_groups(v, r->n, rd->fan, &start, err));
  *rep = (tm_vars_repeat){.next = v->scratch->repeats,
                          .dst = rd->dst.data,
                          .row_bytes = row,
                          .n = r->n,
                          .first = r->first,
                          .inv = r->inv,
                          .rows = rows,
                          .start = start,
                          .rd = rd,
                          .dtype = info->dtype};
  v->scratch->repeats = rep;
  return TM_OK;
}

static tm_status split_read_item(tm_vars *v, const tm_var_info *info, tm_read *rd,
                                 int32_t k, uint8_t *dst, tm_err *err) {
  tm_vars_lane *l = split_lane(v, info->shard[k].ps);
  tm_ps_read *it = split_add_read(v, l);
  if (!it) return tm_nomem(err, "a READ");
  it->kind = rd->kind == TM_READ_SLOT ? TM_PS_SLOT : TM_PS_DENSE;
  it->uid = info->uid;
  it->shard = (uint32_t)k;
  it->optimizer = rd->optimizer;
  it->slot = rd->slot;
  tm_view view = {info->dtype, split_shard_shape(info, k), dst};
  it->dst = view;
  l->bytes_rd += tm_view_bytes(&view);
  if (dst) return TM_OK;
  tm_vars_whole *w = tm_arena_alloc(&v->scratch->arena, sizeof *w);
  if (!w) return tm_nomem(err, "a READ");
  *w = (tm_vars_whole){v->scratch->wholes, (int32_t)(l - v->scratch->lane), l->nrd - 1,
                       rd};
  v->scratch->wholes = w;
  return TM_OK;
}

static tm_status split_read_dense(tm_vars *v, const tm_var_info *info, tm_read *rd,
                                  tm_err *err) {
  int32_t from, to;
  rd->out = NULL;
  split_shards(info, rd->shard, &from, &to);
  if (to - from == 1) return split_read_item(v, info, rd, from, NULL, err);
  TM_TRY(tm_tensor_new(info->dtype, &info->shape, &rd->out, err));
  size_t row = split_row_bytes(info);
  for (int32_t k = from; k < to; k++)
    TM_TRY(split_read_item(
        v, info, rd, k,
        (uint8_t *)rd->out->v.data + (size_t)info->shard[k].offset * row, err));
  return TM_OK;
}

static tm_status split_read(tm_vars *v, tm_read *rd, tm_err *err) {
  tm_var_info *info;
  TM_TRY(tm_vars_info(v, rd->uid, &info, err));
  TM_TRY(split_check_shard(info, rd->shard, err));
  if (rd->kind == TM_READ_ROWS) return split_read_rows(v, info, rd, err);
  return split_read_dense(v, info, rd, err);
}

/* --- updates --- */

static tm_status split_update_item(tm_vars *v, const tm_var_info *info,
                                   const tm_update *up, int32_t k, const tm_view *value,
                                   const tm_view *ids, tm_err *err) {
  tm_vars_lane *l = split_lane(v, info->shard[k].ps);
  tm_ps_update *it = split_add_update(v, l);
  if (!it) return tm_nomem(err, "an UPDATE");
  it->kind = (tm_ps_up_kind)up->kind; /* the same values, see the assertion below */
  it->uid = info->uid;
  it->shard = (uint32_t)k;
  it->rule = up->rule;
  it->optimizer = up->optimizer;
  it->nhyper = up->nhyper;
  memcpy(it->hyper, up->hyper, sizeof it->hyper);
  it->t = up->t;
  it->once = up->once;
  it->value = *value;
  if (ids) it->ids = *ids;
  l->bytes_up += tm_view_bytes(value);
  return TM_OK;
}

_Static_assert((int)TM_UP_APPLY_ROWS == (int)TM_PS_APPLY_ROWS, "kinds agree");
_Static_assert((int)TM_UP_SCATTER_SET == (int)TM_PS_SCATTER_SET, "kinds agree");
_Static_assert((int)TM_MAX_HYPER == (int)TM_RULE_MAX_HYPER, "hyper-parameters agree");

static tm_status split_update_dense(tm_vars *v, const tm_var_info *info,
                                    const tm_update *up, tm_err *err) {
  int32_t from, to;
  split_shards(info, up->shard, &from, &to);
  tm_shape want = up->shard < 0 ? info->shape : split_shard_shape(info, up->shard);
  if (up->value.dtype != info->dtype || !tm_shape_equal(&up->value.shape, &want)) {
    char a[96], b[96];
    return tm_fail(err, TM_EINVAL, "%s is %s %s, the value is %s %s",
                   tm_vars_name(info), tm_dtype_name(info->dtype),
                   tm_shape_text(&want, a, sizeof a), tm_dtype_name(up->value.dtype),
                   tm_shape_text(&up->value.shape, b, sizeof b));
  }
  size_t row = split_row_bytes(info);
  for (int32_t k = from; k < to; k++) {
    tm_view piece = {info->dtype, split_shard_shape(info, k), up->value.data};
    if (up->shard < 0)
      piece.data = (uint8_t *)up->value.data + (size_t)info->shard[k].offset * row;
    TM_TRY(split_update_item(v, info, up, k, &piece, NULL, err));
  }
  return TM_OK;
}

static void split_sum_lists(tm_dtype t, void *out, const void *rows,
                            const int32_t *start, const int32_t *list, int64_t nout,
                            int64_t width, int32_t fan, bool mean) {
  double scale = mean ? 1.0 / (double)fan : 1.0;
  if (t == TM_F32)
    tm_k_sum_lists_f32(out, rows, start, list, nout, width, (float)scale);
  else
    tm_k_sum_lists_f64(out, rows, start, list, nout, width, scale);
}

/* Gradients that stand for groups of ids (floats only, see ops_state.c): for each
 * distinct id the rows of the groups that hold it, by a counting sort. */
static tm_status split_spread(tm_vars *v, tm_dtype t, const tm_update *up,
                              const tm_vars_rows *r, void *sum, int64_t width,
                              tm_err *err) {
  tm_arena *a = &v->scratch->arena;
  int32_t *start = tm_arena_calloc(a, (size_t)(r->nu + 2) * sizeof *start);
  int32_t *list = tm_arena_alloc(a, (size_t)(r->n + 1) * sizeof *list);
  if (!start || !list) return tm_nomem(err, "summed rows");
  for (int64_t i = 0; i < r->n; i++) start[r->inv[i] + 2]++;
  for (int64_t u = 0; u < r->nu; u++) start[u + 2] += start[u + 1];
  for (int64_t i = 0; i < r->n; i++)
    list[start[r->inv[i] + 1]++] = (int32_t)(i / up->fan);
  split_sum_lists(t, sum, up->value.data, start, list, r->nu, width, up->fan, up->mean);
  return TM_OK;
}

/* Sum (APPLY_ROWS, SCATTER_ADD and SUB) or keep the last of (SCATTER_SET) repeated
 * ids' rows: one row a unique id, in the order of `r`. */
static tm_status split_fold_rows(tm_vars *v, const tm_var_info *info,
                                 const tm_update *up, const tm_vars_rows *r,
                                 uint8_t **out, tm_err *err) {
  size_t row = split_row_bytes(info);
  uint8_t *sum = tm_arena_alloc(&v->scratch->arena, (size_t)(r->nu + 1) * row + 64);
  if (!sum) return tm_nomem(err, "summed rows");
  sum = (uint8_t *)(((uintptr_t)sum + 63) & ~(uintptr_t)63);
  *out = sum;
  int64_t width = (int64_t)(row / tm_dtype_size(info->dtype));
  if (up->fan > 0) {
    return split_spread(v, info->dtype, up, r, sum, width, err);
  } else if (up->kind == TM_UP_SCATTER_SET) {
    for (int64_t i = 0; i < r->n; i++)
      memcpy(sum + (size_t)r->inv[i] * row,
             (const uint8_t *)up->value.data + (size_t)i * row, row);
  } else if (info->dtype == TM_F32) {
    tm_k_sum_rows_f32((float *)(void *)sum, up->value.data, r->first, r->inv, r->n,
                      width);
  } else {
    tm_k_sum_rows_f64((double *)(void *)sum, up->value.data, r->first, r->inv, r->n,
                      width);
  }
  return TM_OK;
}

static tm_status split_update_check_rows(const tm_var_info *info, const tm_update *up,
                                         int64_t n, tm_err *err) {
  tm_shape want = info->shape;
  if (want.rank < 1)
    return tm_fail(err, TM_EINVAL, "%s is a scalar: it has no rows",
                   tm_vars_name(info));
  want.dim[0] = n;
  if (up->value.dtype == info->dtype && tm_shape_equal(&up->value.shape, &want))
    return TM_OK;
  char a[96], b[96];
  return tm_fail(err, TM_EINVAL, "%s: rows for %" PRId64 " ids are %s %s, not %s %s",
                 tm_vars_name(info), n, tm_dtype_name(info->dtype),
                 tm_shape_text(&want, a, sizeof a), tm_dtype_name(up->value.dtype),
                 tm_shape_text(&up->value.shape, b, sizeof b));
}

/* Rows from .. from + n - 1 of r, contiguous: in place when they lie so. */
static tm_status split_pick_rows(tm_vars *v, const tm_vars_rows *r, int64_t from,
                                 int64_t n, size_t row, uint8_t *rows, uint8_t **out,
                                 tm_err *err) {
  const int32_t *first = r->first + from;
  bool straight = true;
  for (int64_t i = 0; i < n && straight; i++) straight = first[i] == first[0] + i;
  *out = rows + (size_t)first[0] * row;
  if (straight) return TM_OK;
  uint8_t *to = tm_arena_alloc(&v->scratch->arena, (size_t)n * row + 64);
  if (!to) return tm_nomem(err, "rows of a shard");
  to = (uint8_t *)(((uintptr_t)to + 63) & ~(uintptr_t)63);
  for (int64_t i = 0; i < n; i++)
    memcpy(to + (size_t)i * row, rows + (size_t)first[i] * row, row);
  *out = to;
  return TM_OK;
}

/* Integers are sent as they are, and the store adds them one by one. */
static bool split_may_fold(const tm_update *up, const tm_var_info *info) {
  return tm_dtype_is_float(info->dtype) || up->kind == TM_UP_SCATTER_SET;
}

static tm_status split_update_rows(tm_vars *v, const tm_var_info *info,
                                   const tm_update *up, tm_err *err) {
  tm_vars_rows *r;
  uint8_t *sum = NULL, *p;
  size_t row = split_row_bytes(info);
  int64_t n_ids = tm_view_count(up->ids);
  if (up->fan > 0 && (n_ids % up->fan || !tm_dtype_is_float(info->dtype)))
    return tm_fail(err, TM_EINVAL, "%s: ids do not make groups of %d",
                   tm_vars_name(info), up->fan);
  TM_TRY(split_update_check_rows(info, up, up->fan > 0 ? n_ids / up->fan : n_ids, err));
  tm_rows_use use = split_may_fold(up, info) ? TM_ROWS_UPDATE : TM_ROWS_PLAIN;
  TM_TRY(up->nunique
             ? tm_vars_rows_distinct(v, info, up->shard, up->ids, up->nunique, &r, err)
             : tm_vars_rows_of(v, info, up->shard, up->ids, use, &r, err));
  if (r->nu < r->n || up->fan > 1) TM_TRY(split_fold_rows(v, info, up, r, &sum, err));
  for (int32_t k = 0; k < info->nshard; k++) {
    int64_t from = r->start[k], n = r->start[k + 1] - from;
    if (n == 0) continue;
    if (sum)
      p = sum + (size_t)from * row;
    else
      TM_TRY(split_pick_rows(v, r, from, n, row, up->value.data, &p, err));
    tm_view value = split_row_view(info, p, n), ids = split_i64s(r->local + from, n);
    TM_TRY(split_update_item(v, info, up, k, &value, &ids, err));
  }
  return TM_OK;
}

static tm_status split_update(tm_vars *v, const tm_update *up, tm_err *err) {
  tm_var_info *info;
  TM_TRY(tm_vars_info(v, up->uid, &info, err));
  TM_TRY(split_check_shard(info, up->shard, err));
  return up->ids ? split_update_rows(v, info, up, err)
                 : split_update_dense(v, info, up, err);
}

/* --- the whole exchange --- */

/* The op that a failure is about: the user's, where it asked for this. */
static tm_status split_name(tm_err *err, tm_status s, const char *op) {
  if (err && !err->op[0]) snprintf(err->op, sizeof err->op, "%s", op);
  return s;
}

static const char *split_read_op(tm_read_kind kind) {
  return kind == TM_READ_ROWS   ? "gather_variable"
         : kind == TM_READ_SLOT ? "read_slot"
                                : "read_variable";
}

static const char *split_update_op(tm_update_kind kind) {
  if (kind <= TM_UP_SUB) return "assign_variable";
  if (kind <= TM_UP_SCATTER_SUB) return "scatter_variable";
  return kind == TM_UP_APPLY ? "apply_optimizer" : "apply_optimizer_rows";
}

tm_status tm_vars_split(tm_vars *v, const tm_update *up, int32_t nup, tm_read *rd,
                        int32_t nrd, tm_err *err) {
  tm_vars_scratch *sc = v->scratch;
  for (int32_t k = 0; k <= v->nps; k++)
    memset(&sc->lane[k], 0, offsetof(tm_vars_lane, applied));
  sc->repeats = NULL;
  sc->wholes = NULL;
  for (int32_t i = 0; i < nrd; i++) rd[i].out = NULL;
  for (int32_t i = 0; i < nup; i++) {
    tm_status s = split_update(v, &up[i], err);
    if (s) return split_name(err, s, split_update_op(up[i].kind));
  }
  for (int32_t i = 0; i < nrd; i++) {
    tm_status s = split_read(v, &rd[i], err);
    if (s) return split_name(err, s, split_read_op(rd[i].kind));
  }
  return TM_OK;
}

static void split_copy_repeats(const tm_vars_repeat *r) {
  for (int64_t i = 0; i < r->n; i++)
    if (r->first[r->inv[i]] != i)
      memcpy(r->dst + (size_t)i * r->row_bytes,
             r->dst + (size_t)r->first[r->inv[i]] * r->row_bytes, r->row_bytes);
}

static void split_combine(const tm_vars_repeat *r) {
  int64_t width = (int64_t)(r->row_bytes / tm_dtype_size(r->dtype));
  split_sum_lists(r->dtype, r->dst, r->rows, r->start, r->inv, r->n / r->rd->fan, width,
                  r->rd->fan, r->rd->mean);
}

void tm_vars_join_reads(tm_vars *v) {
  tm_vars_scratch *sc = v->scratch;
  for (tm_vars_whole *w = sc->wholes; w; w = w->next) {
    tm_ps_read *it = &sc->lane[w->lane].rd[w->item];
    w->rd->out = it->out;
    it->out = NULL;
  }
  for (tm_vars_repeat *r = sc->repeats; r; r = r->next) {
    if (r->rows)
      split_combine(r);
    else
      split_copy_repeats(r);
  }
}

void tm_vars_forget_reads(tm_vars *v) {
  tm_vars_scratch *sc = v->scratch;
  for (tm_vars_whole *w = sc->wholes; w; w = w->next) {
    tm_ps_read *it = &sc->lane[w->lane].rd[w->item];
    tm_tensor_unref(it->out);
    it->out = NULL;
  }
  sc->wholes = NULL;
  for (int32_t i = 0; i < sc->nrd; i++) {
    tm_tensor_unref(sc->rd[i].out);
    sc->rd[i].out = NULL;
  }
}
