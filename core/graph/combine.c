#include "graph/combine.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  An embedding that is averaged over its ids,
 *
 *     rows = gather_variable(ids)            (n, k, width)
 *     y = reduce_mean(rows, axis of k)       (n, width)
 *
 * and whose gradient goes straight to an optimizer,
 *
 *     apply_optimizer_rows(reshape(ids), reshape(unreduce(dy, rows)), ...)
 *
 * never needs the rows spread out: the READ sums them as they come, and the UPDATE sums
 * dy by row.  With wide rows that is most of a step's memory traffic.
 *
 * A gather is replaced only if every use of it is of these two kinds and no UPDATE of
 * its variable and no control node stands between it and the reduction.
 */

struct use {
  int32_t node, next; /* next use of the same node's outputs, -1: none */
};

struct combine {
  const tm_graph *g;
  int32_t *head; /* node -> first use */
  struct use *use;
  int32_t nuse;
  bool *result;    /* node is a result of the graph */
  int32_t *gather; /* reduction -> its gather + 1 */
  tm_ref *rows;    /* apply_optimizer_rows -> the combined rows, node -1: unchanged */
  bool *mean;      /* of both */
  bool any;
};

static bool is_op(const tm_node *n, const char *name) {
  return strcmp(n->op->name, name) == 0;
}

/* --- uses --- */

static tm_status combine_uses(struct combine *cb) {
  const tm_graph *g = cb->g;
  size_t n = (size_t)g->nnode + 1, total = 1;
  for (int32_t i = 0; i < g->nnode; i++) total += (size_t)g->node[i].nin;
  cb->nuse = (int32_t)total;
  cb->head = tm_calloc(n, sizeof *cb->head);
  cb->use = tm_calloc(total, sizeof *cb->use);
  cb->result = tm_calloc(n, sizeof *cb->result);
  cb->gather = tm_calloc(n, sizeof *cb->gather);
  cb->rows = tm_calloc(n, sizeof *cb->rows);
  cb->mean = tm_calloc(n, sizeof *cb->mean);
  if (!cb->head || !cb->use || !cb->result || !cb->gather || !cb->rows || !cb->mean)
    return TM_ENOMEM;
  int32_t at = 0;
  for (int32_t i = 0; i < g->nnode; i++) cb->head[i] = cb->rows[i].node = -1;
  for (int32_t i = 0; i < g->nnode; i++)
    for (int32_t k = 0; k < g->node[i].nin; k++) {
      int32_t from = g->node[i].in[k].node;
      cb->use[at] = (struct use){i, cb->head[from]};
      cb->head[from] = at++;
    }
  for (int32_t i = 0; i < g->nout; i++) cb->result[g->out[i].node] = true;
  return TM_OK;
}

static void combine_release(struct combine *cb) {
  size_t n = (size_t)cb->g->nnode + 1;
  tm_free(cb->head, n * sizeof *cb->head);
  tm_free(cb->use, (size_t)cb->nuse * sizeof *cb->use);
  tm_free(cb->result, n * sizeof *cb->result);
  tm_free(cb->gather, n * sizeof *cb->gather);
  tm_free(cb->rows, n * sizeof *cb->rows);
  tm_free(cb->mean, n * sizeof *cb->mean);
}

/* --- patterns --- */

/* The only axis is the last one of ids. */
static bool combine_axis(const struct combine *cb, const tm_node *gather,
                         const tm_attr *axis) {
  int32_t last = tm_graph_type(cb->g, gather->in[0])->shape.rank - 1;
  int32_t rank = gather->out[0].shape.rank;
  if (axis->kind != TM_ATTR_AXES || axis->n != 1 || last < 1) return false;
  int64_t a = axis->u.is[0];
  return (a < 0 ? a + rank : a) == last;
}

static bool combine_is_reduction(const struct combine *cb, const tm_node *gather,
                                 const tm_node *n) {
  if (!is_op(n, "reduce_mean") && !is_op(n, "reduce_sum")) return false;
  return combine_axis(cb, gather, &n->attrs.a[0]) && !n->attrs.a[1].u.b;
}

static bool same_ref(tm_ref a, tm_ref b) { return a.node == b.node && a.out == b.out; }

/* Is v the ids as a vector (perhaps cast)? */
static bool combine_is_flat(const struct combine *cb, tm_ref v, tm_ref ids) {
  const tm_node *n = &cb->g->node[v.node];
  if (is_op(n, "cast")) n = &cb->g->node[n->in[0].node];
  return is_op(n, "reshape") && same_ref(n->in[0], ids) && n->out[0].shape.rank == 1;
}

/* Every use of the reshaped gradient is an optimizer's, which nothing combined yet. */
static bool combine_applies(const struct combine *cb, int32_t reshape, tm_ref ids) {
  if (cb->result[reshape]) return false;
  for (int32_t u = cb->head[reshape]; u >= 0; u = cb->use[u].next) {
    const tm_node *n = &cb->g->node[cb->use[u].node];
    if (!is_op(n, "apply_optimizer_rows") || n->in[1].node != reshape) return false;
    if (strcmp(n->attrs.a[7].u.s, "none") != 0) return false;
    if (!combine_is_flat(cb, n->in[0], ids)) return false;
  }
  return true;
}

/* unreduce(dy, rows), reshaped, goes to optimizers only. */
static bool combine_is_gradient(const struct combine *cb, const tm_node *gather,
                                int32_t node) {
  const tm_node *n = &cb->g->node[node];
  if (!is_op(n, "unreduce") || cb->result[node]) return false;
  if (!combine_axis(cb, gather, &n->attrs.a[0])) return false;
  const tm_type *dy = tm_graph_type(cb->g, n->in[0]);
  if (dy->shape.rank != gather->out[0].shape.rank - 1) return false;
  if (&cb->g->node[n->in[0].node] == gather) return false;
  for (int32_t u = cb->head[node]; u >= 0; u = cb->use[u].next) {
    int32_t r = cb->use[u].node;
    if (!is_op(&cb->g->node[r], "reshape")) return false;
    if (!combine_applies(cb, r, gather->in[0])) return false;
  }
  return true;
}

static bool combine_is_quiet(const struct combine *cb, int32_t from, int32_t to,
                             uint64_t uid) {
  for (int32_t i = from + 1; i < to; i++) {
    const tm_node *n = &cb->g->node[i];
    if (n->op->flags & TM_OP_SUBGRAPH) return false;
    if (tm_node_kind_of(n) == TM_NODE_UPDATE && tm_node_uid(n) == uid) return false;
  }
  return true;
}

static bool combine_fits(const struct combine *cb, int32_t gather) {
  const tm_node *n = &cb->g->node[gather];
  bool reduced = false;
  if (!is_op(n, "gather_variable") || cb->result[gather]) return false;
  if (!tm_dtype_is_float(n->out[0].dtype)) return false;
  if (strcmp(n->attrs.a[4].u.s, "none") != 0) return false;
  for (int32_t u = cb->head[gather]; u >= 0; u = cb->use[u].next) {
    int32_t at = cb->use[u].node;
    bool red = combine_is_reduction(cb, n, &cb->g->node[at]);
    if (red && !combine_is_quiet(cb, gather, at, tm_node_uid(n))) return false;
    if (!red && !combine_is_gradient(cb, n, at)) return false;
    reduced = reduced || red;
  }
  return reduced;
}

static void combine_mark_gradient(struct combine *cb, int32_t unreduce) {
  const tm_node *n = &cb->g->node[unreduce];
  for (int32_t u = cb->head[unreduce]; u >= 0; u = cb->use[u].next)
    for (int32_t w = cb->head[cb->use[u].node]; w >= 0; w = cb->use[w].next) {
      cb->rows[cb->use[w].node] = n->in[0];
      cb->mean[cb->use[w].node] = n->attrs.a[1].u.b;
    }
}

static void combine_mark(struct combine *cb, int32_t gather) {
  for (int32_t u = cb->head[gather]; u >= 0; u = cb->use[u].next) {
    int32_t at = cb->use[u].node;
    if (is_op(&cb->g->node[at], "unreduce")) {
      combine_mark_gradient(cb, at);
      continue;
    }
    cb->gather[at] = gather + 1;
    cb->mean[at] = is_op(&cb->g->node[at], "reduce_mean");
  }
  cb->any = true;
}

/* --- the new graph --- */

struct rewrite {
  const struct combine *cb;
  tm_graph *dst;
  int32_t *to;
  tm_err *err;
};

static tm_ref rewrite_ref(const struct rewrite *rw, tm_ref r) {
  return (tm_ref){rw->to[r.node], r.out};
}

static tm_status rewrite_add(struct rewrite *rw, int32_t i, const tm_op *op,
                             const tm_ref *in, int32_t nin, const tm_attrs *attrs) {
  TM_TRY(tm_graph_add(rw->dst, op, in, nin, attrs, &rw->to[i], rw->err));
  rw->dst->node[rw->to[i]].place = rw->cb->g->node[i].place;
  return TM_OK;
}

/* Node i of op with n's attributes, of which number `at` becomes sum or mean. */
static tm_status rewrite_combined(struct rewrite *rw, int32_t i, const tm_node *n,
                                  const tm_ref *in, int at) {
  tm_attrs a;
  if (tm_attrs_copy(&a, &n->attrs)) return tm_nomem(rw->err, "a graph");
  const char *how = rw->cb->mean[i] ? "mean" : "sum";
  tm_status s = tm_attr_set_str(&a.a[at], how, strlen(how));
  if (!s) s = rewrite_add(rw, i, n->op, in, n->nin, &a);
  tm_attrs_release(&a);
  return s;
}

/* dy as (groups, row...). */
static tm_status rewrite_rows(struct rewrite *rw, const tm_node *apply, tm_ref dy,
                              tm_ref *out) {
  const tm_shape *rows = &tm_graph_type(rw->cb->g, apply->in[1])->shape;
  *out = rewrite_ref(rw, dy);
  if (tm_graph_type(rw->dst, *out)->shape.rank == rows->rank) return TM_OK;
  const tm_op *op = tm_op_find("reshape");
  tm_attrs a = {.n = 1};
  tm_shape to = *rows;
  to.dim[0] = -1;
  if (tm_attr_set_ints(&a.a[0], TM_ATTR_SHAPE, to.dim, to.rank))
    return tm_nomem(rw->err, "a graph");
  int32_t node;
  tm_status s = tm_graph_add(rw->dst, op, out, 1, &a, &node, rw->err);
  tm_attrs_release(&a);
  if (!s) *out = (tm_ref){node, 0};
  return s;
}

static tm_status rewrite_arg(struct rewrite *rw, int32_t i) {
  const tm_graph *g = rw->cb->g;
  const tm_arg *arg = g->arg;
  while (arg->node != i) arg++;
  return arg->iterator
             ? tm_graph_add_iterator(rw->dst, arg->elem, arg->nelem, &rw->to[i])
             : tm_graph_add_arg(rw->dst, &g->node[i].out[0], &rw->to[i]);
}

static tm_status rewrite_node(struct rewrite *rw, int32_t i) {
  const struct combine *cb = rw->cb;
  const tm_node *n = &cb->g->node[i];
  tm_ref in[TM_MAX_LIST];
  if (tm_node_kind_of(n) == TM_NODE_ARG) return rewrite_arg(rw, i);
  if (cb->gather[i]) {
    n = &cb->g->node[cb->gather[i] - 1];
    in[0] = rewrite_ref(rw, n->in[0]);
    return rewrite_combined(rw, i, n, in, 4);
  }
  for (int32_t k = 0; k < n->nin; k++) in[k] = rewrite_ref(rw, n->in[k]);
  if (cb->rows[i].node < 0) return rewrite_add(rw, i, n->op, in, n->nin, &n->attrs);
  TM_TRY(rewrite_rows(rw, n, cb->rows[i], &in[1]));
  return rewrite_combined(rw, i, n, in, 7);
}

static tm_status rewrite_outputs(struct rewrite *rw) {
  const tm_graph *g = rw->cb->g;
  size_t bytes = ((size_t)g->nout + 1) * sizeof(tm_ref);
  tm_ref *out = tm_malloc(bytes);
  if (!out) return TM_ENOMEM;
  for (int32_t i = 0; i < g->nout; i++) out[i] = rewrite_ref(rw, g->out[i]);
  tm_status s = tm_graph_finish(rw->dst, out, g->nout);
  tm_free(out, bytes);
  return s;
}

static tm_status combine_rewrite(const struct combine *cb, tm_graph **out,
                                 tm_err *err) {
  struct rewrite rw = {.cb = cb, .err = err};
  size_t n = (size_t)cb->g->nnode + 1;
  rw.to = tm_calloc(n, sizeof *rw.to);
  tm_status s = rw.to ? tm_graph_new(cb->g->name, &rw.dst) : TM_ENOMEM;
  for (int32_t i = 0; i < cb->g->nnode && !s; i++) s = rewrite_node(&rw, i);
  if (!s) s = rewrite_outputs(&rw);
  tm_free(rw.to, n * sizeof *rw.to);
  if (s)
    tm_graph_unref(rw.dst);
  else
    *out = rw.dst;
  return s;
}

tm_status tm_graph_combine(const tm_graph *g, tm_graph **out, tm_err *err) {
  struct combine cb = {.g = g};
  *out = NULL;
  tm_status s = combine_uses(&cb);
  for (int32_t i = 0; i < g->nnode && !s; i++)
    if (combine_fits(&cb, i)) combine_mark(&cb, i);
  if (!s && cb.any) s = combine_rewrite(&cb, out, err);
  combine_release(&cb);
  return s;
}
