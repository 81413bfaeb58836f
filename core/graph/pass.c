#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "graph/bags.h"
#include "graph/combine.h"
#include "graph/nodes.h"
#include "graph/run.h"

/*
 * Design.  One walk backwards marks what is alive: results, nodes with an effect,
 * arguments, and what they need.  One walk forwards copies live nodes into a new graph,
 * folding those whose inputs are all constant (small results only) and merging those
 * that equal an earlier one.
 *
 * Invariants:
 *   (1) Arguments stay, in order, used or not.
 *   (2) Effects stay, in order; nothing stateful or random is folded or merged.
 *   (3) A READ merges with an earlier equal one only if no UPDATE of its variable, and
 *       no control node, stands between.
 *   (4) A node keeps its place, so random numbers do not change.
 */
enum { FOLD_BYTES = 1 << 16 };

struct pass {
  const tm_graph *src;
  tm_graph *dst;
  bool *live;
  tm_ref *to;     /* node's first output -> node in dst (out counts on) */
  tm_map *seen;   /* hash -> node in dst + 1 */
  tm_map *update; /* uid -> serial of the last UPDATE + 1 */
  intptr_t serial;
  intptr_t barrier; /* serial of the last control node that may update */
  bool folded;      /* what went into a folded node may be dead now */
  tm_err *err;
};

/* --- liveness --- */

static bool pass_graph_has_effect(const tm_graph *g);

static bool pass_has_effect(const tm_node *n) {
  if (n->op->flags & TM_OP_STATEFUL) return true;
  for (int32_t k = 0; k < n->attrs.n; k++)
    if (n->attrs.a[k].kind == TM_ATTR_FUNC && pass_graph_has_effect(n->attrs.a[k].u.g))
      return true;
  return false;
}

static bool pass_graph_has_effect(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++)
    if (pass_has_effect(&g->node[i])) return true;
  return false;
}

static void pass_live(struct pass *ps) {
  const tm_graph *g = ps->src;
  for (int32_t i = 0; i < g->nout; i++) ps->live[g->out[i].node] = true;
  for (int32_t i = 0; i < g->narg; i++) ps->live[g->arg[i].node] = true;
  for (int32_t i = g->nnode - 1; i >= 0; i--) {
    const tm_node *n = &g->node[i];
    if (!ps->live[i]) ps->live[i] = pass_has_effect(n);
    for (int32_t k = 0; ps->live[i] && k < n->nin; k++) ps->live[n->in[k].node] = true;
  }
}

/* --- merging --- */

static bool pass_may_merge(const tm_node *n) {
  tm_node_kind kind = tm_node_kind_of(n);
  if (n->op->flags & (TM_OP_STATEFUL | TM_OP_RANDOM | TM_OP_SUBGRAPH)) return false;
  return kind == TM_NODE_PURE || kind == TM_NODE_CONST || kind == TM_NODE_READ;
}

/* READs are told apart by what happened to their variable before. */
static uint64_t pass_epoch(const struct pass *ps, const tm_node *n) {
  if (tm_node_kind_of(n) != TM_NODE_READ) return 0;
  intptr_t last = (intptr_t)tm_map_get(ps->update, tm_node_uid(n));
  return (uint64_t)(last > ps->barrier ? last : ps->barrier);
}

static uint64_t pass_hash(const struct pass *ps, const tm_node *n, const tm_ref *in) {
  uint64_t h = tm_mix64((uint64_t)(uintptr_t)n->op ^ pass_epoch(ps, n));
  h = tm_mix64(h ^ tm_attrs_hash(&n->attrs));
  for (int32_t k = 0; k < n->nin; k++)
    h = tm_mix64(h ^ ((uint64_t)(uint32_t)in[k].node << 32 | (uint32_t)in[k].out));
  return h ? h : 1;
}

/* Hashes decide where to look; a collision only costs the merge. */
static bool pass_equal(const struct pass *ps, const tm_node *n, const tm_ref *in,
                       const tm_node *m) {
  (void)ps;
  return n->op == m->op && n->nin == m->nin &&
         (n->nin == 0 || memcmp(in, m->in, (size_t)n->nin * sizeof *in) == 0) &&
         tm_attrs_equal(&n->attrs, &m->attrs);
}

/* --- folding --- */

static bool pass_may_fold(const struct pass *ps, const tm_node *n, const tm_ref *in) {
  const uint32_t never = TM_OP_STATEFUL | TM_OP_RANDOM | TM_OP_STATE | TM_OP_SUBGRAPH;
  if (tm_node_kind_of(n) != TM_NODE_PURE || (n->op->flags & never)) return false;
  if (n->nout != 1 || n->nin == 0) return false;
  for (int32_t k = 0; k < n->nin; k++)
    if (tm_node_kind_of(&ps->dst->node[in[k].node]) != TM_NODE_CONST) return false;
  const tm_type *t = &n->out[0];
  int64_t count = tm_shape_count(&t->shape);
  return count >= 0 && count * (int64_t)tm_dtype_size(t->dtype) <= FOLD_BYTES;
}

/* A fold that fails (an id out of range, say) is left for the run to report. */
static tm_status pass_fold(struct pass *ps, const tm_node *n, const tm_ref *in,
                           int32_t *node, bool *done) {
  static const tm_run_env env = {.worker = -1, .threads = 1};
  tm_view v[TM_MAX_LIST];
  tm_tensor *out[TM_MAX_OUTPUTS];
  int32_t nout;
  *done = false;
  for (int32_t k = 0; k < n->nin; k++)
    v[k] = ps->dst->node[in[k].node].attrs.a[0].u.t->v;
  tm_tensor *owner = ps->dst->node[in[0].node].attrs.a[0].u.t;
  if (tm_run_kernel(n->op, &n->attrs, n->place, &env, v, n->nin, owner, out, &nout,
                    NULL))
    return TM_OK;
  tm_status s = tm_graph_add_const(ps->dst, out[0], node);
  tm_tensor_unref(out[0]);
  *done = s == TM_OK;
  ps->folded = true;
  return s;
}

/* --- copying --- */

static tm_status pass_add(struct pass *ps, int32_t i, const tm_ref *in, int32_t *node) {
  const tm_node *n = &ps->src->node[i];
  if (tm_node_kind_of(n) == TM_NODE_ARG) {
    const tm_arg *arg = ps->src->arg;
    while (arg->node != i) arg++;
    return arg->iterator ? tm_graph_add_iterator(ps->dst, arg->elem, arg->nelem, node)
                         : tm_graph_add_arg(ps->dst, &n->out[0], node);
  }
  TM_TRY(tm_graph_add(ps->dst, n->op, in, n->nin, &n->attrs, node, ps->err));
  ps->dst->node[*node].place = n->place;
  return TM_OK;
}

static void pass_note(struct pass *ps, const tm_node *n) {
  if (n->op->flags & TM_OP_SUBGRAPH) ps->barrier = ++ps->serial;
}

static tm_status pass_note_update(struct pass *ps, const tm_node *n) {
  pass_note(ps, n);
  if (tm_node_kind_of(n) != TM_NODE_UPDATE) return TM_OK;
  return tm_map_put(ps->update, tm_node_uid(n), (void *)++ps->serial);
}

static tm_status pass_node(struct pass *ps, int32_t i) {
  const tm_node *n = &ps->src->node[i];
  tm_ref in[TM_MAX_LIST];
  int32_t node;
  bool done = false;
  for (int32_t k = 0; k < n->nin; k++)
    in[k] = (tm_ref){ps->to[n->in[k].node].node, n->in[k].out};
  if (pass_may_fold(ps, n, in)) TM_TRY(pass_fold(ps, n, in, &node, &done));
  uint64_t h = 0;
  if (!done && pass_may_merge(n)) {
    h = pass_hash(ps, n, in);
    node = (int32_t)(intptr_t)tm_map_get(ps->seen, h) - 1;
    done = node >= 0 && pass_equal(ps, n, in, &ps->dst->node[node]);
  }
  if (!done) {
    TM_TRY(pass_add(ps, i, in, &node));
    if (h) TM_TRY(tm_map_put(ps->seen, h, (void *)(intptr_t)(node + 1)));
  }
  ps->to[i] = (tm_ref){node, 0};
  return pass_note_update(ps, n);
}

static tm_status pass_outputs(struct pass *ps) {
  const tm_graph *g = ps->src;
  size_t bytes = ((size_t)g->nout + 1) * sizeof(tm_ref);
  tm_ref *out = tm_malloc(bytes);
  if (!out) return TM_ENOMEM;
  for (int32_t i = 0; i < g->nout; i++)
    out[i] = (tm_ref){ps->to[g->out[i].node].node, g->out[i].out};
  tm_status s = tm_graph_finish(ps->dst, out, g->nout);
  tm_free(out, bytes);
  return s;
}

static tm_status pass_all(struct pass *ps) {
  const tm_graph *g = ps->src;
  size_t n = (size_t)g->nnode + 1;
  ps->live = tm_calloc(n, sizeof *ps->live);
  ps->to = tm_calloc(n, sizeof *ps->to);
  if (!ps->live || !ps->to) return TM_ENOMEM;
  TM_TRY(tm_map_new(&ps->seen));
  TM_TRY(tm_map_new(&ps->update));
  TM_TRY(tm_graph_new(g->name, &ps->dst));
  pass_live(ps);
  for (int32_t i = 0; i < g->nnode; i++)
    if (ps->live[i]) TM_TRY(pass_node(ps, i));
  ps->dst->optimized = true;
  return pass_outputs(ps);
}

static tm_status pass_once(const tm_graph *g, tm_graph **out, bool *folded,
                           tm_err *err) {
  struct pass ps = {.src = g, .err = err};
  size_t n = (size_t)g->nnode + 1;
  *out = NULL;
  tm_status s = pass_all(&ps);
  tm_free(ps.live, n * sizeof *ps.live);
  tm_free(ps.to, n * sizeof *ps.to);
  tm_map_free(ps.seen);
  tm_map_free(ps.update);
  *folded = ps.folded;
  if (!s) {
    *out = ps.dst;
    return TM_OK;
  }
  tm_graph_unref(ps.dst);
  return s == TM_ENOMEM ? tm_nomem(err, "a graph") : s;
}

/* Runs a pass over *g and puts its result there. */
static tm_status pass_again(tm_graph **g, tm_err *err) {
  bool folded;
  tm_graph *out;
  TM_TRY(pass_once(*g, &out, &folded, err));
  tm_graph_unref(*g);
  *g = out;
  return TM_OK;
}

/* One more pass over *g, and a walk to clean up after it. */
static tm_status pass_rewrite(tm_graph **g,
                              tm_status (*fn)(const tm_graph *, tm_graph **, tm_err *),
                              tm_err *err) {
  tm_graph *out;
  TM_TRY(fn(*g, &out, err));
  if (!out) return TM_OK;
  tm_graph_unref(*g);
  *g = out;
  return pass_again(g, err);
}

tm_status tm_graph_optimize(tm_graph *g, tm_graph **out, tm_err *err) {
  bool folded;
  tm_graph *o;
  *out = NULL;
  TM_TRY(pass_once(g, &o, &folded, err));
  tm_status s = folded ? pass_again(&o, err) : TM_OK;
  if (!s) s = pass_rewrite(&o, tm_graph_combine, err);
  if (!s) s = pass_rewrite(&o, tm_graph_bags, err);
  if (s) {
    tm_graph_unref(o);
    return s == TM_ENOMEM ? tm_nomem(err, "a graph") : s;
  }
  *out = o;
  return TM_OK;
}
