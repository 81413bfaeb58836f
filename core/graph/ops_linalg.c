#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/infer.h"
#include "graph/rules.h"
#include "kernel/gemm.h"

/*
 * Design.  matmul is a loop of gemm over the broadcast batch axes.  A batched a times a
 * plain b is one tall product.  A product above some GFLOP goes in pieces of rows, so
 * that a cancelled step stops soon.
 */

static const double matmul_piece = 4e9; /* multiplications between looks at cancel */

static tm_status matmul_misfit(tm_infer *c, const char *what) {
  return tm_fail(c->err, TM_EINVAL, "%s: a has shape %s%s, b has shape %s%s", what,
                 tm_shape_text(&c->in[0].shape, (char[128]){0}, 128),
                 tm_at_bool(c->attrs, 0) ? " (transposed)" : "",
                 tm_shape_text(&c->in[1].shape, (char[128]){0}, 128),
                 tm_at_bool(c->attrs, 1) ? " (transposed)" : "");
}

static tm_shape matmul_batch(const tm_shape *s) {
  tm_shape b = *s;
  b.dim[--b.rank] = 0;
  b.dim[--b.rank] = 0;
  return b;
}

/* The batch axes of the result. */
static tm_status matmul_join(tm_infer *c, tm_shape *s) {
  tm_shape a = matmul_batch(&c->in[0].shape), b = matmul_batch(&c->in[1].shape);
  if (tm_shape_broadcast(&a, &b, s, NULL))
    return matmul_misfit(c, "batch axes do not broadcast");
  return s->rank + 2 > TM_MAX_RANK ? matmul_misfit(c, "too many axes") : TM_OK;
}

static tm_status matmul_infer(tm_infer *c) {
  const tm_shape *a = &c->in[0].shape, *b = &c->in[1].shape;
  bool ta = tm_at_bool(c->attrs, 0), tb = tm_at_bool(c->attrs, 1);
  TM_TRY(tm_infer_want(c, 0, TM_WANT_FLOAT));
  TM_TRY(tm_infer_same_dtype(c, 1, 0));
  if (a->rank < 2 || b->rank < 2)
    return matmul_misfit(c, "both must have at least two axes");
  int64_t m = a->dim[a->rank - (ta ? 1 : 2)], k = a->dim[a->rank - (ta ? 2 : 1)];
  int64_t bk = b->dim[b->rank - (tb ? 1 : 2)], n = b->dim[b->rank - (tb ? 2 : 1)];
  if (k >= 0 && bk >= 0 && k != bk) return matmul_misfit(c, "inner sizes differ");
  if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || bk > INT32_MAX)
    return matmul_misfit(c, "a size is above 2^31 - 1");
  tm_shape s;
  TM_TRY(matmul_join(c, &s));
  s.dim[s.rank++] = m;
  s.dim[s.rank++] = n;
  return tm_infer_out(c, c->in[0].dtype, &s);
}

static void matmul_one(const tm_kctx *c, int64_t out, int64_t a, int64_t b,
                       const tm_k_gemm *g) {
  if (c->out[0].dtype == TM_F32)
    tm_k_gemm_f32((float *)c->out[0].data + out, (const float *)c->in[0].data + a,
                  (const float *)c->in[1].data + b, g);
  else
    tm_k_gemm_f64((double *)c->out[0].data + out, (const double *)c->in[0].data + a,
                  (const double *)c->in[1].data + b, g);
}

static tm_status matmul_cancelled(tm_kctx *c) {
  if (!c->env || !tm_cancelled(c->env->cancel)) return TM_OK;
  return tm_fail(c->err, TM_ECANCELLED, "cancelled");
}

/* In pieces of rows when it is long; a stored (k, m) cannot be cut by rows. */
static tm_status matmul_pieces(tm_kctx *c, int64_t out, int64_t a, int64_t b,
                               tm_k_gemm g) {
  double row = (double)g.n * (double)g.k;
  int64_t most = row > 0 && row * (double)g.m > matmul_piece && !g.ta
                     ? (int64_t)(matmul_piece / row) + 1
                     : g.m;
  int64_t m = g.m;
  if (m == 0) return TM_OK;
  for (int64_t at = 0; at < m; at += most) {
    g.m = m - at < most ? m - at : most;
    TM_TRY(matmul_cancelled(c));
    matmul_one(c, out + at * g.n, a + at * g.k, b, &g);
  }
  return TM_OK;
}

/* Elements between neighbours of each batch axis; 0 where it is broadcast. */
static void matmul_steps(const tm_shape *in, const tm_shape *batch, int64_t *step) {
  int64_t n = in->dim[in->rank - 1] * in->dim[in->rank - 2];
  int32_t lead = batch->rank - (in->rank - 2);
  for (int32_t i = batch->rank - 1; i >= 0; i--) {
    int64_t size = i < lead ? 1 : in->dim[i - lead];
    step[i] = size == 1 ? 0 : n;
    n *= size;
  }
}

static tm_status matmul_batched(tm_kctx *c, const tm_k_gemm *g) {
  tm_shape batch = matmul_batch(&c->out[0].shape);
  int64_t sa[TM_MAX_RANK], sb[TM_MAX_RANK], at[TM_MAX_RANK] = {0};
  int64_t n = tm_shape_count(&batch), a = 0, b = 0;
  matmul_steps(&c->in[0].shape, &batch, sa);
  matmul_steps(&c->in[1].shape, &batch, sb);
  for (int64_t i = 0; i < n; i++) {
    TM_TRY(matmul_pieces(c, i * g->m * g->n, a, b, *g));
    for (int32_t k = batch.rank - 1; k >= 0; k--) {
      a += sa[k];
      b += sb[k];
      if (++at[k] < batch.dim[k]) break;
      a -= sa[k] * batch.dim[k];
      b -= sb[k] * batch.dim[k];
      at[k] = 0;
    }
  }
  return TM_OK;
}

static tm_status matmul_kernel(tm_kctx *c) {
  const tm_shape *a = &c->in[0].shape, *o = &c->out[0].shape;
  tm_k_gemm g = {.ta = tm_at_bool(c->attrs, 0), .tb = tm_at_bool(c->attrs, 1)};
  g.m = o->dim[o->rank - 2];
  g.n = o->dim[o->rank - 1];
  g.k = a->dim[a->rank - (g.ta ? 2 : 1)];
  if (c->in[1].shape.rank == 2 && !g.ta) {
    int64_t rows = tm_shape_part(o, 0, o->rank - 1);
    if (rows <= INT32_MAX) {
      g.m = rows;
      return matmul_pieces(c, 0, 0, 0, g);
    }
  }
  return matmul_batched(c, &g);
}

static tm_value *g_matmul(tm_gctx *c, tm_value *a, tm_value *b, bool ta, bool tb) {
  tm_attrs at;
  tm_value *in[2] = {a, b};
  if (!a || !b || c->status || tm_g_attrs(c, "matmul", &at)) return NULL;
  tm_attr_set_bool(&at.a[0], ta);
  tm_attr_set_bool(&at.a[1], tb);
  return tm_gn(c, "matmul", in, 2, &at, 0);
}

/* v as a matrix with the last axis kept. */
static tm_value *g_rows(tm_gctx *c, tm_value *v) {
  tm_attrs at;
  const tm_shape *s = &v->type.shape;
  int64_t dim[2] = {-1, s->dim[s->rank - 1]};
  if (tm_g_attrs(c, "reshape", &at)) return NULL;
  if (tm_attr_set_ints(&at.a[0], TM_ATTR_SHAPE, dim, 2)) return NULL;
  return tm_gn(c, "reshape", &v, 1, &at, 0);
}

/* Batched a, plain b: the sum over the batch is one tall product. */
static bool matmul_tall(const tm_gctx *c, bool ta) {
  const tm_shape *a = &c->in[0]->type.shape, *dy = &c->dout[0]->type.shape;
  return !ta && c->in[1]->type.shape.rank == 2 && a->rank > 2 &&
         a->dim[a->rank - 1] > 0 && dy->dim[dy->rank - 1] > 0;
}

static tm_status matmul_grad(tm_gctx *c) {
  bool ta = tm_at_bool(c->attrs, 0), tb = tm_at_bool(c->attrs, 1);
  tm_value *a = c->in[0], *b = c->in[1], *dy = c->dout[0];
  if (c->need[0])
    TM_TRY(tm_g_set_like(
        c, 0, ta ? g_matmul(c, b, dy, tb, true) : g_matmul(c, dy, b, false, !tb)));
  if (!c->need[1]) return TM_OK;
  if (matmul_tall(c, ta)) {
    a = g_rows(c, a);
    dy = g_rows(c, dy);
  }
  return tm_g_set_like(
      c, 1, tb ? g_matmul(c, dy, a, true, ta) : g_matmul(c, a, dy, !ta, false));
}

static const tm_op linalg_ops[] = {
    {.name = "matmul",
     .sig = "a, b | transpose_a:bool=false, transpose_b:bool=false",
     .help = "a (..., m, k) times b (..., k, n) -> (..., m, n); batch axes broadcast.",
     .infer = matmul_infer,
     .kernel = matmul_kernel,
     .grad = matmul_grad},
};

const tm_op_group tm_ops_linalg = {linalg_ops, TM_COUNT(linalg_ops)};
