#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/ids.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/rows.h"

/*
 * Design.  A gradient by rows is a pair: ids (any shape) and rows (the shape of ids,
 * then that of a row).  densify makes the whole tensor of it, sum_by_row sums rows of
 * equal ids.
 */

/* rows = ids.shape + row; *row gets the rest. */
static tm_status sparse_row(tm_infer *c, tm_shape *row) {
  const tm_shape *ids = &c->in[0].shape, *rows = &c->in[1].shape;
  tm_shape lead = *rows;
  TM_TRY(tm_infer_want(c, 0, TM_WANT_INT));
  TM_TRY(tm_infer_want(c, 1, TM_WANT_FLOAT));
  lead.rank = ids->rank;
  if (ids->rank > rows->rank || !tm_shape_compatible(&lead, ids))
    return tm_fail(c->err, TM_EINVAL,
                   "rows of shape %s must have the shape of ids %s, then that of a row",
                   tm_shape_text(rows, (char[128]){0}, 128),
                   tm_shape_text(ids, (char[128]){0}, 128));
  *row = tm_shape_scalar();
  for (int32_t i = ids->rank; i < rows->rank; i++) row->dim[row->rank++] = rows->dim[i];
  return TM_OK;
}

static size_t densify_scratch(const tm_kctx *c) { return tm_ids_scratch(&c->in[0]); }

static tm_status densify_infer(tm_infer *c) {
  tm_shape s, row, rest = tm_shape_scalar();
  TM_TRY(tm_infer_shape_attr(c, 0, &s));
  TM_TRY(sparse_row(c, &row));
  if (s.rank < 1) return tm_fail(c->err, TM_EINVAL, "shape has no rows");
  for (int32_t i = 1; i < s.rank; i++) rest.dim[rest.rank++] = s.dim[i];
  if (!tm_shape_compatible(&rest, &row))
    return tm_fail(c->err, TM_EINVAL, "rows of shape %s do not fit shape %s",
                   tm_shape_text(&c->in[1].shape, (char[128]){0}, 128),
                   tm_shape_text(&s, (char[128]){0}, 128));
  return tm_infer_out(c, c->in[1].dtype, &s);
}

static void densify_add(const tm_kctx *c, const int64_t *ids, int64_t n,
                        int64_t width) {
  if (c->out[0].dtype == TM_F32)
    tm_k_add_rows_f32(c->out[0].data, c->in[1].data, ids, n, width);
  else
    tm_k_add_rows_f64(c->out[0].data, c->in[1].data, ids, n, width);
}

static tm_status densify_kernel(tm_kctx *c) {
  const tm_shape *s = &c->out[0].shape;
  const int64_t *ids;
  TM_TRY(tm_ids_read(&c->in[0], "ids", s->dim[0], "the variable", c->scratch, &ids,
                     c->err));
  memset(c->out[0].data, 0, tm_view_bytes(&c->out[0]));
  densify_add(c, ids, tm_view_count(&c->in[0]), tm_shape_part(s, 1, s->rank));
  return TM_OK;
}

static tm_status densify_grad(tm_gctx *c) {
  return tm_g_set(c, 1, tm_g2(c, "gather", c->dout[0], c->in[0]));
}

/* --- sum_by_row --- */

static tm_status sum_infer(tm_infer *c) {
  tm_shape row, s = tm_shape_of(1, &(int64_t){-1});
  TM_TRY(sparse_row(c, &row));
  if (tm_shape_count(&c->in[0].shape) > INT32_MAX)
    return tm_fail(c->err, TM_EINVAL, "more than 2^31 - 1 ids");
  TM_TRY(tm_infer_out(c, TM_I64, &s));
  if (row.rank + 1 > TM_MAX_RANK)
    return tm_fail(c->err, TM_EINVAL, "rows have too many axes");
  for (int32_t i = 0; i < row.rank; i++) s.dim[s.rank++] = row.dim[i];
  return tm_infer_out(c, c->in[1].dtype, &s);
}

/* ids as int64, distinct ids, first, inv, slots of the hash */
static size_t sum_scratch(const tm_kctx *c) {
  size_t n = (size_t)tm_view_count(&c->in[0]);
  return n * 2 * (sizeof(int64_t) + sizeof(int32_t)) + tm_k_unique_scratch((int64_t)n);
}

static tm_status sum_kernel(tm_kctx *c) {
  const tm_shape *rows = &c->in[1].shape;
  int32_t rank = c->in[0].shape.rank;
  int64_t n = tm_view_count(&c->in[0]);
  int64_t *wide = c->scratch, *uniq = wide + n;
  int32_t *first = (int32_t *)(void *)(uniq + n), *inv = first + n;
  const int64_t *ids = c->in[0].data;
  if (c->in[0].dtype != TM_I64) {
    for (int64_t i = 0; i < n; i++) wide[i] = tm_view_get_i64(&c->in[0], i);
    ids = wide;
  }
  int64_t count = tm_k_unique_i64(uniq, first, inv, ids, n, inv + n);
  tm_shape s = tm_shape_of(1, &count);
  TM_TRY(tm_kctx_make(c, 0, TM_I64, &s));
  if (count > 0) memcpy(c->out[0].data, uniq, (size_t)count * sizeof *uniq);
  for (int32_t i = rank; i < rows->rank; i++) s.dim[s.rank++] = rows->dim[i];
  TM_TRY(tm_kctx_make(c, 1, c->in[1].dtype, &s));
  int64_t width = tm_shape_part(rows, rank, rows->rank);
  if (c->in[1].dtype == TM_F32)
    tm_k_sum_rows_f32(c->out[1].data, c->in[1].data, first, inv, n, width);
  else
    tm_k_sum_rows_f64(c->out[1].data, c->in[1].data, first, inv, n, width);
  return TM_OK;
}

static const tm_op sparse_ops[] = {
    {.name = "densify",
     .sig = "ids, rows; shape:shape",
     .help = "Zeros of this shape with the rows added at their ids.",
     .flags = TM_OP_HIDDEN,
     .infer = densify_infer,
     .kernel = densify_kernel,
     .grad = densify_grad,
     .scratch = densify_scratch},
    {.name = "sum_by_row",
     .sig = "ids, rows",
     .help = "Distinct ids in order of appearance, and the sum of each one's rows.",
     .flags = TM_OP_HIDDEN | TM_OP_DYNAMIC,
     .infer = sum_infer,
     .kernel = sum_kernel,
     .scratch = sum_scratch},
};

const tm_op_group tm_ops_sparse = {sparse_ops, TM_COUNT(sparse_ops)};
