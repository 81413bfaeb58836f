#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/gemm.h"
#include "kernel/rows.h"

/*
 * Design.  Hidden ops of the pass in bags.c: products of combined rows, worked out on
 * the distinct rows.  A "bag" is the group of ids whose rows are summed or averaged:
 * row g of the combined matrix is the sum of rows[places[g, :]].  With C for that
 * summing,
 *
 *     (C rows) w            = C (rows w)              bag_matmul
 *     (C rows)^T d          = rows^T (C^T d)          bag_matmul_t
 *     C^T (d w^T)           = (C^T d) w^T             bag_matmul_rows
 *
 * Shapes do not depend on how many ids are distinct, so plans stay: arrays of rows have
 * room for all ids, `count` says how many are filled, and nobody touches the rest
 * (memory that is never touched is never there).
 *
 * Distinct ids come in ascending order when they are few, so that the rows of a shard
 * lie together and travel without a copy; else in order of appearance.
 *
 * Places and counts are checked: a graph may come from a peer that lies.
 */
enum { BAG_MEAN = 0, BAG_SORTED = 1024 };

/* --- unique_rows --- */

static tm_status infer_unique_rows(tm_infer *c) {
  tm_shape s = c->in[0].shape, vec = {.rank = 1}, scalar = tm_shape_scalar();
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  vec.dim[0] = tm_shape_known(&s) ? tm_shape_count(&s) : -1;
  if (vec.dim[0] > INT32_MAX) return tm_fail(c->err, TM_EEXHAUSTED, "too many ids");
  TM_TRY(tm_infer_out(c, TM_I64, &vec));
  TM_TRY(tm_infer_out(c, TM_I32, &s));
  return tm_infer_out(c, TM_I64, &scalar);
}

static size_t bag_round(size_t n) { return (n + 63) & ~(size_t)63; }

/* Scratch: the hash table, first[], ids as int64 (later: where a sorted id was). */
static size_t scratch_unique_rows(const tm_kctx *c) {
  size_t n = (size_t)tm_view_count(&c->in[0]);
  return bag_round(tm_k_unique_scratch((int64_t)n)) + bag_round(n * 4) + n * 8;
}

static void bag_swap(int64_t *id, int32_t *from, int64_t i, int64_t k) {
  int64_t a = id[i];
  int32_t b = from[i];
  id[i] = id[k];
  from[i] = from[k];
  id[k] = a;
  from[k] = b;
}

static void bag_sift(int64_t *id, int32_t *from, int64_t root, int64_t n) {
  for (int64_t kid; (kid = 2 * root + 1) < n; root = kid) {
    if (kid + 1 < n && id[kid + 1] > id[kid]) kid++;
    if (id[root] >= id[kid]) return;
    bag_swap(id, from, root, kid);
  }
}

/* Heap sort of the ids; inv follows. */
static void bag_sort(int64_t *id, int32_t *inv, int64_t n, int64_t nu, int32_t *from,
                     int32_t *to) {
  for (int64_t u = 0; u < nu; u++) from[u] = (int32_t)u;
  for (int64_t i = nu / 2; i-- > 0;) bag_sift(id, from, i, nu);
  for (int64_t i = nu - 1; i > 0; i--) {
    bag_swap(id, from, 0, i);
    bag_sift(id, from, 0, i);
  }
  for (int64_t u = 0; u < nu; u++) to[from[u]] = (int32_t)u;
  for (int64_t i = 0; i < n; i++) inv[i] = to[inv[i]];
}

static tm_status kernel_unique_rows(tm_kctx *c) {
  int64_t n = tm_view_count(&c->in[0]), *count = c->out[2].data;
  uint8_t *at = c->scratch;
  *count = 0;
  if (n == 0) return TM_OK;
  int32_t *first = (void *)(at + bag_round(tm_k_unique_scratch(n)));
  int64_t *wide = (void *)((uint8_t *)first + bag_round((size_t)n * 4));
  const int64_t *ids = c->in[0].data;
  if (c->in[0].dtype != TM_I64) {
    for (int64_t i = 0; i < n; i++) wide[i] = tm_view_get_i64(&c->in[0], i);
    ids = wide;
  }
  int64_t *uniq = c->out[0].data, nu;
  int32_t *inv = c->out[1].data;
  *count = nu = tm_k_unique_i64(uniq, first, inv, ids, n, at);
  if (nu <= BAG_SORTED) bag_sort(uniq, inv, n, nu, first, (int32_t *)(void *)wide);
  memset(uniq + nu, 0, (size_t)(n - nu) * sizeof *uniq);
  return TM_OK;
}

/* --- the products: inputs 1 and 2 are places and count, rows have two axes --- */

/* How many bags, and a check of what all three share.  x, y: the matrices' places. */
static tm_status bag_infer(tm_infer *c, int32_t y) {
  const tm_type *places = &c->in[1], *count = &c->in[2];
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, y, 0));
  TM_TRY(tm_infer_rank(c, 0, 2));
  TM_TRY(tm_infer_rank(c, y, 2));
  if (places->dtype != TM_I32 || places->shape.rank < 1)
    return tm_fail(c->err, TM_EINVAL, "places must be int32, with an axis of bags");
  if (count->dtype != TM_I64 || count->shape.rank != 0)
    return tm_fail(c->err, TM_EINVAL, "the count must be an int64 scalar");
  return TM_OK;
}

static bool bag_differ(int64_t a, int64_t b) { return a >= 0 && b >= 0 && a != b; }

static tm_status bag_misfit(tm_infer *c) {
  return tm_fail(c->err, TM_EINVAL, "rows, places and matrices do not fit together");
}

/* Bags of `groups` need all places in equal parts. */
static tm_status bag_check_groups(tm_infer *c, int64_t groups) {
  const tm_shape *p = &c->in[1].shape;
  if (groups < 0 || !tm_shape_known(p)) return TM_OK;
  int64_t n = tm_shape_count(p);
  return groups == 0 ? (n ? bag_misfit(c) : TM_OK) : n % groups ? bag_misfit(c) : TM_OK;
}

static tm_status bag_out(tm_infer *c, int64_t rows, int64_t cols) {
  tm_shape s = {.rank = 2};
  s.dim[0] = rows;
  s.dim[1] = cols;
  return tm_infer_out(c, c->in[0].dtype, &s);
}

/* rows (n, k), places (g, fan), count, w (k, m) -> (g, m) */
static tm_status infer_bag_matmul(tm_infer *c) {
  TM_TRY(bag_infer(c, 3));
  const int64_t *rows = c->in[0].shape.dim, *w = c->in[3].shape.dim;
  if (bag_differ(rows[1], w[0])) return bag_misfit(c);
  return bag_out(c, c->in[1].shape.dim[0], w[1]);
}

/* rows (n, k), places (n), count, d (g, m) -> (k, m) */
static tm_status infer_bag_matmul_t(tm_infer *c) {
  TM_TRY(bag_infer(c, 3));
  TM_TRY(bag_check_groups(c, c->in[3].shape.dim[0]));
  return bag_out(c, c->in[0].shape.dim[1], c->in[3].shape.dim[1]);
}

/* d (g, m), places (n), count, w (k, m) -> (n, k) */
static tm_status infer_bag_matmul_rows(tm_infer *c) {
  TM_TRY(bag_infer(c, 3));
  const tm_shape *p = &c->in[1].shape;
  const int64_t *d = c->in[0].shape.dim, *w = c->in[3].shape.dim;
  if (bag_differ(d[1], w[1])) return bag_misfit(c);
  TM_TRY(bag_check_groups(c, d[0]));
  return bag_out(c, tm_shape_known(p) ? tm_shape_count(p) : -1, w[0]);
}

typedef struct bag {
  int64_t n, groups, count,
      m; /* places, bags, distinct rows, columns of the thin side */
  double scale;
  const int32_t *places;
  void *thin;     /* (max(n, groups), m): products of rows, or sums of gradients */
  int32_t *start; /* n + groups + 2 */
  int32_t *list;  /* n */
} bag;

static size_t bag_scratch(const tm_kctx *c, int64_t m) {
  size_t n = (size_t)tm_view_count(&c->in[1]);
  return bag_round((n + 1) * (size_t)m * 8) + bag_round((2 * n + 3) * 4) + n * 4;
}
static size_t scratch_bag_matmul(const tm_kctx *c) {
  return bag_scratch(c, c->in[3].shape.dim[1]);
}
static size_t scratch_bag_matmul_rows(const tm_kctx *c) {
  return bag_scratch(c, c->in[0].shape.dim[1]);
}

static tm_status bag_open(tm_kctx *c, int64_t groups, int64_t m, bag *b) {
  size_t n = (size_t)tm_view_count(&c->in[1]);
  *b = (bag){.n = (int64_t)n, .groups = groups, .m = m, .scale = 1.0};
  b->places = c->in[1].data;
  b->count = tm_view_get_i64(&c->in[2], 0);
  b->thin = c->scratch;
  b->start = (void *)((uint8_t *)c->scratch + bag_round((n + 1) * (size_t)m * 8));
  b->list = (void *)((uint8_t *)b->start + bag_round((2 * n + 3) * 4));
  if (tm_at_bool(c->attrs, BAG_MEAN) && n && groups)
    b->scale = (double)groups / (double)n;
  bool good = b->count >= 0 && b->count <= b->n;
  for (int64_t i = 0; i < b->n && good; i++)
    good = b->places[i] >= 0 && b->places[i] < b->count;
  return good ? TM_OK : tm_fail(c->err, TM_EINVAL, "a place is not one of the rows");
}

static void bag_lists(const bag *b, tm_dtype t, void *out, const void *rows,
                      const int32_t *list, int64_t nout) {
  if (t == TM_F32)
    tm_k_sum_lists_f32(out, rows, b->start, list, nout, b->m, (float)b->scale);
  else
    tm_k_sum_lists_f64(out, rows, b->start, list, nout, b->m, b->scale);
}

static void bag_gemm(tm_dtype t, void *out, const void *x, const void *y,
                     const tm_k_gemm *g) {
  if (t == TM_F32)
    tm_k_gemm_f32(out, x, y, g);
  else
    tm_k_gemm_f64(out, x, y, g);
}

/* thin = C^T d, by lists of the bags that a row is in. */
static void bag_spread(const bag *b, tm_dtype t, const void *d) {
  int64_t fan = b->groups ? b->n / b->groups : 1;
  memset(b->start, 0, (size_t)(b->count + 2) * sizeof *b->start);
  for (int64_t i = 0; i < b->n; i++) b->start[b->places[i] + 2]++;
  for (int64_t u = 0; u < b->count; u++) b->start[u + 2] += b->start[u + 1];
  for (int64_t i = 0; i < b->n; i++)
    b->list[b->start[b->places[i] + 1]++] = (int32_t)(i / fan);
  bag_lists(b, t, b->thin, d, b->list, b->count);
}

static tm_status kernel_bag_matmul(tm_kctx *c) {
  bag b;
  tm_dtype t = c->out[0].dtype;
  TM_TRY(bag_open(c, c->out[0].shape.dim[0], c->in[3].shape.dim[1], &b));
  if (b.n == 0) {
    memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
    return TM_OK;
  }
  if (b.count > c->in[0].shape.dim[0])
    return tm_fail(c->err, TM_EINVAL, "there are fewer rows than the count says");
  tm_k_gemm g = {.m = b.count, .n = b.m, .k = c->in[0].shape.dim[1]};
  bag_gemm(t, b.thin, c->in[0].data, c->in[3].data, &g);
  for (int64_t i = 0; i <= b.groups; i++) b.start[i] = (int32_t)(i * (b.n / b.groups));
  bag_lists(&b, t, c->out[0].data, b.thin, b.places, b.groups);
  return TM_OK;
}

static tm_status kernel_bag_matmul_t(tm_kctx *c) {
  bag b;
  tm_dtype t = c->out[0].dtype;
  TM_TRY(bag_open(c, c->in[3].shape.dim[0], c->in[3].shape.dim[1], &b));
  if (b.count > c->in[0].shape.dim[0])
    return tm_fail(c->err, TM_EINVAL, "there are fewer rows than the count says");
  bag_spread(&b, t, c->in[3].data);
  tm_k_gemm g = {.m = c->in[0].shape.dim[1], .n = b.m, .k = b.count, .ta = true};
  bag_gemm(t, c->out[0].data, c->in[0].data, b.thin, &g);
  return TM_OK;
}

static tm_status kernel_bag_matmul_rows(tm_kctx *c) {
  bag b;
  tm_dtype t = c->out[0].dtype;
  TM_TRY(bag_open(c, c->in[0].shape.dim[0], c->in[0].shape.dim[1], &b));
  bag_spread(&b, t, c->in[0].data);
  tm_k_gemm g = {.m = b.count, .n = c->in[3].shape.dim[0], .k = b.m, .tb = true};
  bag_gemm(t, c->out[0].data, b.thin, c->in[3].data, &g);
  return TM_OK;
}

#define BAG(n, s, h, scr)                                                       \
  {                                                                             \
    .name = #n, .sig = s "; mean:bool=false", .help = h, .flags = TM_OP_HIDDEN, \
    .infer = infer_##n, .kernel = kernel_##n, .scratch = scr                    \
  }

static const tm_op bag_ops[] = {
    {.name = "unique_rows",
     .sig = "ids",
     .help = "Distinct ids (n), the place of each id among them, their number.",
     .flags = TM_OP_HIDDEN,
     .infer = infer_unique_rows,
     .kernel = kernel_unique_rows,
     .scratch = scratch_unique_rows},
    BAG(bag_matmul, "rows, places, count, w",
        "matmul(x, w) where row g of x sums rows[places[g]].", scratch_bag_matmul),
    BAG(bag_matmul_t, "rows, places, count, d",
        "matmul(x, d, transpose_a) where row g of x sums rows[places[g]].",
        scratch_bag_matmul),
    BAG(bag_matmul_rows, "d, places, count, w",
        "What matmul(d, w, transpose_b) gives each row, summed over its places.",
        scratch_bag_matmul_rows),
};

const tm_op_group tm_ops_bags = {bag_ops, TM_COUNT(bag_ops)};
