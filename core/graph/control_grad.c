#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"
#include "graph/scope.h"
#include "graph/tape.h"

/*
 * Design.  The gradient of cond(p, f, g) is cond(p, f', g'), where f' computes f again
 * (under a tape, in a trace of its own) and gives the gradients of all that f or g was
 * given and of the variables that f or g reads; what a branch does not use gets zeros.
 * With a predicate known now, f' is computed right here instead.
 *
 * Computing again means: random ops keep their place, so they draw the same numbers;
 * updates and prints are left out; a branch that takes data from an iterator, or reads
 * and updates one variable, has no gradient.
 */

struct branch {
  const tm_graph *g;
  int32_t first; /* its captures: inputs first .. first + g->narg - 1 of the node */
};

struct cond_grad {
  tm_gctx *c;
  struct branch br[2];
  const uint64_t *uid;  /* variables that either branch reads */
  const tm_node **read; /* a node that reads it: dtype and shape */
  int32_t nuid;
  int32_t *input; /* inputs whose gradients are wanted */
  int32_t ninput;
};

static tm_status cg_unimpl(const struct cond_grad *cg, const char *what) {
  return tm_fail(cg->c->err, TM_EUNIMPL, "no gradient flows through a branch that %s",
                 what);
}

/* --- what the branches do --- */

static const tm_node *cg_find_read(const tm_graph *g, uint64_t uid) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (tm_node_kind_of(n) == TM_NODE_READ && tm_node_uid(n) == uid) return n;
    for (int32_t k = 0; k < n->attrs.n; k++) {
      if (n->attrs.a[k].kind != TM_ATTR_FUNC) continue;
      const tm_node *m = cg_find_read(n->attrs.a[k].u.g, uid);
      if (m) return m;
    }
  }
  return NULL;
}

static bool cg_has_effect(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (n->op->flags & TM_OP_STATEFUL) return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && cg_has_effect(n->attrs.a[k].u.g))
        return true;
  }
  return false;
}

static tm_status cg_check(const struct cond_grad *cg, const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    tm_node_kind kind = tm_node_kind_of(n);
    if (kind == TM_NODE_NEXT) return cg_unimpl(cg, "takes data from an iterator");
    if (kind == TM_NODE_UPDATE && cg_find_read(g, tm_node_uid(n)))
      return cg_unimpl(cg, "reads and updates one variable");
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && cg_has_effect(n->attrs.a[k].u.g))
        return cg_unimpl(cg, "has effects in a branch or loop of its own");
  }
  return TM_OK;
}

/* --- computing a branch again --- */

struct replay {
  const tm_graph *g;
  tm_value **val; /* by first[node] + output; references */
  int32_t *first;
};

static tm_status replay_node(struct replay *r, tm_gctx *c, int32_t i) {
  const tm_node *n = &r->g->node[i];
  tm_value *in[TM_MAX_LIST];
  int32_t nout;
  for (int32_t k = 0; k < n->nin; k++) {
    in[k] = r->val[r->first[n->in[k].node] + n->in[k].out];
    TM_DCHECK(in[k]);
  }
  tm_value **out = r->val + r->first[i];
  if (tm_node_kind_of(n) == TM_NODE_CONST) {
    if (tm_value_of_tensor(n->attrs.a[0].u.t, &out[0])) return tm_nomem(c->err, "cond");
    return TM_OK;
  }
  tm_value *made[TM_MAX_OUTPUTS];
  TM_TRY(tm_apply(c->sc, n->op, in, n->nin, &n->attrs, made, &nout, c->err));
  TM_DCHECK(nout == n->nout);
  memcpy(out, made, (size_t)nout * sizeof *made);
  if (nout && out[0]->trace) out[0]->trace->g->node[out[0]->ref.node].place = n->place;
  return TM_OK;
}

static tm_status replay_run(struct replay *r, const struct branch *b, tm_gctx *c) {
  for (int32_t i = 0; i < r->g->nnode; i++)
    r->first[i + 1] = r->first[i] + r->g->node[i].nout;
  for (int32_t i = 0; i < r->g->narg; i++)
    r->val[r->first[r->g->arg[i].node]] = tm_value_ref(c->in[b->first + i]);
  for (int32_t i = 0; i < r->g->nnode; i++) {
    const tm_node *n = &r->g->node[i];
    if (tm_node_kind_of(n) == TM_NODE_ARG || (n->op->flags & TM_OP_STATEFUL)) continue;
    TM_TRY(replay_node(r, c, i));
  }
  return TM_OK;
}

/* sum over outputs of reduce_sum(out * dout): its gradients are those wanted. */
static tm_value *replay_target(struct replay *r, tm_gctx *c) {
  tm_value *sum = NULL;
  for (int32_t k = 0; k < r->g->nout; k++) {
    if (!c->dout[k]) continue;
    tm_ref o = r->g->out[k];
    tm_value *p = tm_g2(c, "mul", r->val[r->first[o.node] + o.out], c->dout[k]);
    p = tm_g1(c, "reduce_sum", p);
    if (!p) return NULL;
    if (sum && sum->type.dtype != p->type.dtype) {
      c->status = tm_fail(c->err, TM_EUNIMPL,
                          "results of a cond with gradients must have one dtype");
      return NULL;
    }
    sum = sum ? tm_g2(c, "add", sum, p) : p;
  }
  return sum;
}

static tm_value *cg_zeros(struct cond_grad *cg, int32_t j) {
  tm_attrs a;
  const tm_attr *from = cg->read[j]->attrs.a;
  if (tm_g_attrs(cg->c, "zeros", &a)) return NULL;
  tm_attr_set_int(tm_attr_by_name("zeros", &a, "dtype"), TM_ATTR_DTYPE, from[1].u.i);
  if (tm_attr_set_ints(tm_attr_by_name("zeros", &a, "shape"), TM_ATTR_SHAPE,
                       from[2].u.is, from[2].n)) {
    cg->c->status = tm_nomem(cg->c->err, "cond");
    return NULL;
  }
  return tm_gn(cg->c, "zeros", NULL, 0, &a, 0);
}

static tm_value *cg_densify(struct cond_grad *cg, int32_t j, const tm_grad *g) {
  tm_attrs a;
  tm_value *in[2] = {g->ids, g->rows};
  const tm_attr *from = cg->read[j]->attrs.a;
  if (tm_g_attrs(cg->c, "densify", &a)) return NULL;
  if (tm_attr_set_ints(tm_attr_by_name("densify", &a, "shape"), TM_ATTR_SHAPE,
                       from[2].u.is, from[2].n)) {
    cg->c->status = tm_nomem(cg->c->err, "cond");
    return NULL;
  }
  return tm_gn(cg->c, "densify", in, 2, &a, 0);
}

/* Gradients in the order: inputs, variables.  out[k] are references. */
static tm_status cg_results(struct cond_grad *cg, const tm_grad *g, tm_value **out) {
  for (int32_t k = 0; k < cg->ninput + cg->nuid; k++) {
    tm_value *v = g[k].dense;
    int32_t j = k - cg->ninput;
    if (!v && g[k].ids) v = cg_densify(cg, j, &g[k]);
    if (!v)
      v = j < 0 ? tm_g1(cg->c, "zeros_like", cg->c->in[cg->input[k]]) : cg_zeros(cg, j);
    if (!v) return cg->c->status;
    out[k] = tm_value_ref(v);
  }
  return TM_OK;
}

static tm_status cg_differentiate(struct cond_grad *cg, const struct branch *b,
                                  struct replay *r, tm_tape *tp, tm_value **out) {
  tm_gctx *c = cg->c;
  tm_source src[TM_MAX_LIST * 2];
  tm_grad g[TM_MAX_LIST * 2] = {{NULL, NULL, NULL}};
  int32_t n = 0;
  for (int32_t k = 0; k < cg->ninput; k++) {
    tm_tape_watch(tp, c->in[cg->input[k]]);
    src[n++] = (tm_source){c->in[cg->input[k]], 0};
  }
  for (int32_t k = 0; k < cg->nuid; k++) src[n++] = (tm_source){NULL, cg->uid[k]};
  TM_TRY(replay_run(r, b, c));
  tm_value *target = replay_target(r, c);
  if (c->status) return c->status;
  tm_status s = target ? tm_tape_gradient(tp, target, NULL, src, n, g, c->err) : TM_OK;
  if (!s) s = cg_results(cg, g, out);
  for (int32_t k = 0; k < n; k++) tm_grad_release(&g[k]);
  return s;
}

static tm_status cg_branch(struct cond_grad *cg, const struct branch *b,
                           tm_value **out) {
  struct replay r = {.g = b->g};
  tm_tape *tp = NULL;
  size_t nnode = (size_t)b->g->nnode + 1, nval = 1;
  for (int32_t i = 0; i < b->g->nnode; i++) nval += (size_t)b->g->node[i].nout;
  r.val = tm_calloc(nval, sizeof(tm_value *));
  r.first = tm_calloc(nnode, sizeof *r.first);
  tm_status s = r.val && r.first ? tm_tape_begin(cg->c->sc, false, &tp) : TM_ENOMEM;
  if (s) (void)tm_nomem(cg->c->err, "cond");
  if (!s) s = cg_differentiate(cg, b, &r, tp, out);
  if (tp) tm_tape_stop(tp);
  tm_tape_unref(tp);
  for (size_t i = 0; r.val && i < nval; i++) tm_value_unref(r.val[i]);
  tm_free(r.val, nval * sizeof(tm_value *));
  tm_free(r.first, nnode * sizeof *r.first);
  return s;
}

/* --- a traced predicate: cond(p, f', g') --- */

struct traced {
  tm_trace *tr;
  tm_graph *g;
  tm_value **cap;
  int32_t ncap;
};

static tm_status cg_trace(struct cond_grad *cg, const struct branch *b,
                          struct traced *t) {
  tm_value *out[TM_MAX_OUTPUTS] = {NULL};
  int32_t n = cg->ninput + cg->nuid;
  TM_TRY(tm_trace_begin(cg->c->sc, b->g->name, &t->tr, cg->c->err));
  tm_status s = cg_branch(cg, b, out);
  if (!s)
    s = tm_trace_end(cg->c->sc, t->tr, out, n, &t->g, cg->c->err);
  else
    tm_trace_abort(cg->c->sc, t->tr);
  for (int32_t i = 0; i < n; i++) tm_value_unref(out[i]);
  t->ncap = tm_trace_captures(t->tr, &t->cap);
  return s;
}

static tm_status cg_both(struct cond_grad *cg, tm_value **out) {
  struct traced t[2] = {{NULL, NULL, NULL, 0}, {NULL, NULL, NULL, 0}};
  int32_t nout;
  tm_gctx *c = cg->c;
  tm_status s = cg_trace(cg, &cg->br[0], &t[0]);
  if (!s) s = cg_trace(cg, &cg->br[1], &t[1]);
  if (!s)
    s = tm_apply_cond(c->sc, c->in[0], t[0].g, t[0].cap, t[0].ncap, t[1].g, t[1].cap,
                      t[1].ncap, out, &nout, c->err);
  for (int k = 0; k < 2; k++) {
    tm_graph_unref(t[k].g);
    tm_trace_unref(t[k].tr);
  }
  return s;
}

static tm_status cg_run(struct cond_grad *cg, tm_value **var, const int32_t *var_at) {
  tm_value *out[TM_MAX_OUTPUTS] = {NULL};
  tm_gctx *c = cg->c;
  tm_status s;
  if (cg->ninput + cg->nuid > TM_MAX_OUTPUTS)
    return tm_fail(c->err, TM_EEXHAUSTED, "a cond with more than %d gradients",
                   TM_MAX_OUTPUTS);
  if (c->in[0]->t)
    s = cg_branch(cg, &cg->br[*(const uint8_t *)c->in[0]->t->v.data ? 0 : 1], out);
  else
    s = cg_both(cg, out);
  for (int32_t k = 0; k < cg->ninput + cg->nuid; k++) {
    if (s)
      tm_value_unref(out[k]);
    else if (k < cg->ninput)
      c->din[cg->input[k]] = out[k];
    else
      var[var_at[k - cg->ninput]] = out[k];
  }
  return s;
}

/* Both branches may have captured one value: its gradient is asked for once. */
static void cg_want(struct cond_grad *cg, int32_t i) {
  const tm_gctx *c = cg->c;
  if (!c->need[i] || !tm_dtype_is_float(c->in[i]->type.dtype)) return;
  for (int32_t k = 0; k < cg->ninput; k++)
    if (c->in[cg->input[k]]->id == c->in[i]->id) return;
  cg->input[cg->ninput++] = i;
}

tm_status tm_cond_backward(tm_gctx *c, const uint64_t *uid, int32_t nuid,
                           tm_value **var) {
  int32_t nthen = (int32_t)c->attrs->a[2].u.i;
  int32_t input[TM_MAX_LIST], var_at[TM_MAX_LIST];
  uint64_t touched[TM_MAX_LIST];
  const tm_node *read[TM_MAX_LIST];
  struct cond_grad cg = {
      .c = c,
      .br = {{c->attrs->a[0].u.g, 1}, {c->attrs->a[1].u.g, 1 + nthen}},
      .uid = touched,
      .read = read,
      .input = input};
  TM_TRY(cg_check(&cg, cg.br[0].g));
  TM_TRY(cg_check(&cg, cg.br[1].g));
  for (int32_t i = 1; i < c->nin; i++) cg_want(&cg, i);
  for (int32_t i = 0; i < nuid; i++) {
    const tm_node *n = cg_find_read(cg.br[0].g, uid[i]);
    if (!n) n = cg_find_read(cg.br[1].g, uid[i]);
    if (!n) continue;
    var_at[cg.nuid] = i;
    read[cg.nuid] = n;
    touched[cg.nuid++] = uid[i];
  }
  return cg.ninput + cg.nuid ? cg_run(&cg, var, var_at) : TM_OK;
}
