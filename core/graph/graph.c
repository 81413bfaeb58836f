#include "graph/graph.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/map.h"
#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  Nodes live in one growing array; their input, output and element arrays in
 * the graph's arena.  A graph is built by one thread and then frozen by
 * tm_graph_finish, which hashes the packed bytes: two graphs with equal hashes are the
 * same function.
 *
 * Invariants:
 *   (1) Inputs of node i are outputs of nodes before i.
 *   (2) Attributes are complete (tm_op_complete_attrs ran).
 *   (3) node[i].out are what infer says for the types of its inputs.
 */

tm_status tm_graph_new(const char *name, tm_graph **out) {
  tm_graph *g = tm_calloc(1, sizeof *g);
  *out = g;
  if (!g) return TM_ENOMEM;
  atomic_init(&g->refs, 1);
  strncpy(g->name, name ? name : "", sizeof g->name - 1);
  return TM_OK;
}

tm_graph *tm_graph_ref(tm_graph *g) {
  atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
  return g;
}

void tm_graph_unref(tm_graph *g) {
  if (!g || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
  for (int32_t i = 0; i < g->nnode; i++) tm_attrs_release(&g->node[i].attrs);
  tm_free(g->node, (size_t)g->cap * sizeof *g->node);
  tm_arena_release(&g->arena);
  tm_free(g, sizeof *g);
}

/* --- building --- */

static tm_status graph_room(tm_graph *g, tm_err *err) {
  if (g->nnode < g->cap) return TM_OK;
  if (g->cap >= TM_MAX_NODES)
    return tm_fail(err, TM_EEXHAUSTED, "graph \"%s\" has more than %d nodes", g->name,
                   TM_MAX_NODES);
  int32_t cap = g->cap ? g->cap * 2 : 16;
  tm_node *p = tm_realloc(g->node, (size_t)g->cap * sizeof *p, (size_t)cap * sizeof *p);
  if (!p) return tm_nomem(err, "a graph");
  g->node = p;
  g->cap = cap;
  return TM_OK;
}

/* Appends a node; takes attrs when it succeeds. */
static tm_status graph_push(tm_graph *g, const tm_op *op, const tm_ref *in, int32_t nin,
                            tm_attrs *attrs, const tm_type *out, int32_t nout,
                            int32_t *node, tm_err *err) {
  TM_TRY(graph_room(g, err));
  tm_node *n = &g->node[g->nnode];
  memset(n, 0, sizeof *n);
  n->op = op;
  n->nin = nin;
  n->nout = nout;
  n->place = (uint64_t)g->nnode;
  n->in = tm_arena_alloc(&g->arena, (size_t)(nin + 1) * sizeof *n->in);
  n->out = tm_arena_alloc(&g->arena, (size_t)(nout + 1) * sizeof *n->out);
  if (!n->in || !n->out) return tm_nomem(err, "a graph");
  if (nin) memcpy(n->in, in, (size_t)nin * sizeof *in);
  if (nout) memcpy(n->out, out, (size_t)nout * sizeof *out);
  if (attrs) n->attrs = *attrs;
  *node = g->nnode++;
  return TM_OK;
}

static tm_status graph_infer(const tm_graph *g, const tm_op *op, const tm_ref *in,
                             int32_t nin, const tm_attrs *attrs, tm_type *out,
                             int32_t *nout, tm_err *err) {
  tm_type t[TM_MAX_LIST];
  if (nin > TM_MAX_LIST)
    return tm_fail(err, TM_EINVAL, "more than %d inputs", TM_MAX_LIST);
  bool resources = tm_op_kind(op) == TM_NODE_NEXT || (op->flags & TM_OP_SUBGRAPH);
  for (int32_t i = 0; i < nin; i++) {
    t[i] = *tm_graph_type(g, in[i]);
    if (t[i].dtype == TM_DTYPE_NONE && !resources)
      return tm_fail(err, TM_EINVAL, "argument %" PRId32 " is an iterator", i + 1);
  }
  return tm_op_infer(op, t, nin, attrs, out, nout, err);
}

tm_status tm_graph_add(tm_graph *g, const tm_op *op, const tm_ref *in, int32_t nin,
                       const tm_attrs *attrs, int32_t *node, tm_err *err) {
  tm_type out[TM_MAX_OUTPUTS];
  int32_t nout;
  tm_attrs a = {0};
  if (attrs && tm_attrs_copy(&a, attrs)) return tm_nomem(err, op->name);
  tm_status s = tm_op_complete_attrs(op, &a, err);
  if (!s) s = graph_infer(g, op, in, nin, &a, out, &nout, err);
  if (s && err && !err->op[0]) strncpy(err->op, op->name, sizeof err->op - 1);
  if (!s) s = graph_push(g, op, in, nin, &a, out, nout, node, err);
  if (s) tm_attrs_release(&a);
  return s;
}

static tm_status graph_push_arg(tm_graph *g, const tm_type *type, tm_arg *arg) {
  size_t n = (size_t)g->narg * sizeof *g->arg;
  tm_arg *p = tm_arena_alloc(&g->arena, n + sizeof *p);
  if (!p) return TM_ENOMEM;
  const tm_op *op = tm_op_find("arg");
  TM_TRY(graph_push(g, op, NULL, 0, NULL, type, 1, &arg->node, NULL));
  if (n) memcpy(p, g->arg, n);
  p[g->narg++] = *arg;
  g->arg = p;
  return TM_OK;
}

tm_status tm_graph_add_arg(tm_graph *g, const tm_type *type, int32_t *node) {
  tm_arg arg = {0};
  TM_TRY(graph_push_arg(g, type, &arg));
  *node = arg.node;
  return TM_OK;
}

tm_status tm_graph_add_iterator(tm_graph *g, const tm_type *elem, int32_t n,
                                int32_t *node) {
  tm_type none = {0};
  tm_arg arg = {.iterator = true, .nelem = n};
  arg.elem = tm_arena_alloc(&g->arena, (size_t)(n + 1) * sizeof *elem);
  if (!arg.elem) return TM_ENOMEM;
  if (n) memcpy(arg.elem, elem, (size_t)n * sizeof *elem);
  TM_TRY(graph_push_arg(g, &none, &arg));
  *node = arg.node;
  return TM_OK;
}

tm_status tm_graph_add_const(tm_graph *g, tm_tensor *t, int32_t *node) {
  tm_attrs a = {.n = 1};
  tm_type type = {t->v.dtype, t->v.shape};
  tm_attr_set_tensor(&a.a[0], t);
  tm_status s = graph_push(g, tm_op_find("const"), NULL, 0, &a, &type, 1, node, NULL);
  if (s) tm_attrs_release(&a);
  return s;
}

tm_status tm_graph_finish(tm_graph *g, const tm_ref *out, int32_t nout) {
  tm_buf b = TM_BUF_INIT((size_t)1 << 30);
  g->out = tm_arena_alloc(&g->arena, (size_t)(nout + 1) * sizeof *out);
  if (!g->out) return TM_ENOMEM;
  if (nout) memcpy(g->out, out, (size_t)nout * sizeof *out);
  g->nout = nout;
  tm_status s = tm_graph_pack(g, &b);
  if (!s) {
    g->hash[0] = tm_hash64(b.data, b.len, 1);
    g->hash[1] = tm_hash64(b.data, b.len, 2);
  }
  tm_buf_release(&b);
  return s;
}

const tm_type *tm_graph_type(const tm_graph *g, tm_ref r) {
  TM_DCHECK(r.node >= 0 && r.node < g->nnode);
  TM_DCHECK(r.out >= 0 && r.out < g->node[r.node].nout);
  return &g->node[r.node].out[r.out];
}

/* --- variables --- */

struct graph_uids {
  tm_map *seen;
  uint64_t *uid;
  size_t n, cap;
};

static tm_status graph_uid_add(struct graph_uids *u, uint64_t uid) {
  if (tm_map_get(u->seen, uid)) return TM_OK;
  if (u->n == u->cap) {
    size_t cap = u->cap ? u->cap * 2 : 8;
    uint64_t *p = tm_realloc(u->uid, u->cap * sizeof *p, cap * sizeof *p);
    if (!p) return TM_ENOMEM;
    u->uid = p;
    u->cap = cap;
  }
  u->uid[u->n++] = uid;
  return tm_map_put(u->seen, uid, u->seen);
}

static tm_status graph_uids(struct graph_uids *u, const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (tm_node_has_uid(n)) TM_TRY(graph_uid_add(u, tm_node_uid(n)));
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC) TM_TRY(graph_uids(u, n->attrs.a[k].u.g));
  }
  return TM_OK;
}

tm_status tm_graph_variables(const tm_graph *g, uint64_t **uids, size_t *n) {
  struct graph_uids u = {0};
  *uids = NULL;
  *n = 0;
  TM_TRY(tm_map_new(&u.seen));
  tm_status s = graph_uids(&u, g);
  tm_map_free(u.seen);
  if (!s && u.n) { /* to the exact size, which the caller frees */
    uint64_t *p = tm_realloc(u.uid, u.cap * sizeof *p, u.n * sizeof *p);
    if (p) {
      *uids = p;
      *n = u.n;
      return TM_OK;
    }
    s = TM_ENOMEM;
  }
  tm_free(u.uid, u.cap * sizeof *u.uid);
  return s;
}

/* --- element types as an attribute --- */

tm_status tm_attr_set_types(tm_attr *a, const tm_type *t, int32_t n) {
  int64_t v[TM_MAX_OUTPUTS * (2 + TM_MAX_RANK)];
  int32_t k = 0;
  if (n > TM_MAX_OUTPUTS) return TM_EEXHAUSTED;
  for (int32_t i = 0; i < n; i++) {
    v[k++] = t[i].dtype;
    v[k++] = t[i].shape.rank;
    for (int32_t d = 0; d < t[i].shape.rank; d++) v[k++] = t[i].shape.dim[d];
  }
  return tm_attr_set_ints(a, TM_ATTR_INTS, v, k);
}

tm_status tm_attr_types(const tm_attr *a, tm_type *t, int32_t max, int32_t *n,
                        tm_err *err) {
  int32_t k = 0, count = 0;
  while (k < a->n) {
    if (count == max || a->n - k < 2 || !tm_dtype_valid(a->u.is[k]) ||
        a->u.is[k + 1] < 0 || a->u.is[k + 1] > TM_MAX_RANK ||
        a->n - k - 2 < a->u.is[k + 1])
      return tm_fail(err, TM_EINVAL,
                     "\"elements\" is no list of at most %" PRId32 " element types",
                     max);
    t[count].dtype = (tm_dtype)a->u.is[k];
    t[count].shape = tm_shape_of((int32_t)a->u.is[k + 1], a->u.is + k + 2);
    k += 2 + t[count++].shape.rank;
  }
  *n = count;
  return TM_OK;
}
