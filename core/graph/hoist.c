#include "graph/hoist.h"

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  Only dense READs at the top of the loop's graphs move: those inside a branch
 * belong to the branch that runs, and rows may depend on the turn.
 */
struct hoist {
  const tm_graph *g, *other;
  tm_graph *dst;
  int32_t *to;
  const tm_node **read;
  int32_t nread;
  tm_err *err;
};

static bool hoist_updates(const tm_graph *g, uint64_t uid) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (tm_node_kind_of(n) == TM_NODE_UPDATE && tm_node_uid(n) == uid) return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && hoist_updates(n->attrs.a[k].u.g, uid))
        return true;
  }
  return false;
}

static bool hoist_moves(const struct hoist *h, const tm_node *n) {
  if (tm_node_kind_of(n) != TM_NODE_READ || n->nin > 0) return false;
  if (h->nread == TM_MAX_LIST / 4) return false;
  uint64_t uid = tm_node_uid(n);
  return !hoist_updates(h->g, uid) && !hoist_updates(h->other, uid);
}

/* The arguments that g has come first: captures may stand behind READs. */
static tm_status hoist_args(struct hoist *h) {
  for (int32_t k = 0; k < h->g->narg; k++) {
    const tm_arg *arg = &h->g->arg[k];
    int32_t *to = &h->to[arg->node];
    TM_TRY(arg->iterator ? tm_graph_add_iterator(h->dst, arg->elem, arg->nelem, to)
                         : tm_graph_add_arg(h->dst, &h->g->node[arg->node].out[0], to));
  }
  return TM_OK;
}

static tm_status hoist_node(struct hoist *h, int32_t i) {
  const tm_node *n = &h->g->node[i];
  tm_ref in[TM_MAX_LIST];
  if (tm_node_kind_of(n) == TM_NODE_ARG) return TM_OK;
  if (hoist_moves(h, n)) {
    h->read[h->nread++] = n;
    return tm_graph_add_arg(h->dst, &n->out[0], &h->to[i]);
  }
  for (int32_t k = 0; k < n->nin; k++)
    in[k] = (tm_ref){h->to[n->in[k].node], n->in[k].out};
  TM_TRY(tm_graph_add(h->dst, n->op, in, n->nin, &n->attrs, &h->to[i], h->err));
  h->dst->node[h->to[i]].place = n->place;
  return TM_OK;
}

static tm_status hoist_all(struct hoist *h) {
  const tm_graph *g = h->g;
  size_t bytes = ((size_t)g->nout + 1) * sizeof(tm_ref);
  TM_TRY(tm_graph_new(g->name, &h->dst));
  TM_TRY(hoist_args(h));
  for (int32_t i = 0; i < g->nnode; i++) TM_TRY(hoist_node(h, i));
  tm_ref *out = tm_malloc(bytes);
  if (!out) return TM_ENOMEM;
  for (int32_t i = 0; i < g->nout; i++)
    out[i] = (tm_ref){h->to[g->out[i].node], g->out[i].out};
  tm_status s = tm_graph_finish(h->dst, out, g->nout);
  tm_free(out, bytes);
  return s;
}

tm_status tm_graph_hoist(const tm_graph *g, const tm_graph *other, tm_graph **out,
                         const tm_node **read, int32_t *nread, tm_err *err) {
  struct hoist h = {.g = g, .other = other, .read = read, .err = err};
  size_t n = (size_t)g->nnode + 1;
  *out = NULL;
  h.to = tm_calloc(n, sizeof *h.to);
  tm_status s = h.to ? hoist_all(&h) : TM_ENOMEM;
  tm_free(h.to, n * sizeof *h.to);
  *nread = h.nread;
  if (!s) {
    *out = h.dst;
    return TM_OK;
  }
  tm_graph_unref(h.dst);
  return s == TM_ENOMEM ? tm_nomem(err, "a loop") : s;
}
