#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/hoist.h"
#include "graph/nodes.h"
#include "graph/run.h"
#include "graph/scope.h"

/*
 * Design.  The door.  With an open trace an op becomes a node; without one it runs.
 * Either way the active tapes record it with its completed attributes.
 *
 * Random numbers of eager ops: the scope's env.closure counts the draws, so they
 * depend only on the seed and on how many came before.
 */

static void door_unref(tm_value **v, int32_t n) {
  for (int32_t i = 0; i < n; i++) tm_value_unref(v[i]);
}

/* --- traced --- */

static tm_status door_node(tm_trace *tr, const tm_op *op, tm_value *const *in,
                           int32_t nin, const tm_attrs *attrs, int32_t *node,
                           tm_err *err) {
  tm_ref ref[TM_MAX_LIST];
  for (int32_t i = 0; i < nin; i++) TM_TRY(tm_trace_resolve(tr, in[i], &ref[i], err));
  TM_TRY(tm_graph_add(tr->g, op, ref, nin, attrs, node, err));
  tr->g->node[*node].place = tm_trace_place(tr);
  return TM_OK;
}

static tm_status door_traced(tm_trace *tr, const tm_op *op, tm_value *const *in,
                             int32_t nin, const tm_attrs *attrs, tm_value **out,
                             int32_t *nout, const tm_attrs **done, tm_err *err) {
  int32_t node;
  TM_TRY(door_node(tr, op, in, nin, attrs, &node, err));
  int32_t n = tr->g->node[node].nout;
  for (int32_t i = 0; i < n; i++) {
    if (tm_value_of_node(tr, (tm_ref){node, i}, &out[i])) {
      door_unref(out, i);
      return tm_nomem(err, op->name);
    }
  }
  *nout = n;
  *done = &tr->g->node[node].attrs;
  return TM_OK;
}

/* --- eager --- */

static tm_status door_check(tm_value *const *in, int32_t nin, tm_err *err) {
  for (int32_t i = 0; i < nin; i++)
    if (in[i]->trace)
      return tm_fail(err, TM_EPRECOND,
                     "a symbolic tensor of the traced function \"%s\" is used outside "
                     "it; return it instead",
                     in[i]->trace->name);
  return TM_OK;
}

static tm_status door_programs(const tm_op *op, const tm_attrs *attrs, tm_program **sub,
                               tm_err *err) {
  (void)op;
  TM_TRY(tm_program_new(attrs->a[0].u.g, &sub[0], err));
  return tm_program_new(attrs->a[1].u.g, &sub[1], err);
}

static tm_status door_control(tm_scope *sc, const tm_op *op, const tm_attrs *attrs,
                              tm_value *const *in, int32_t nin, tm_tensor **out,
                              int32_t *nout, tm_err *err) {
  tm_type type[TM_MAX_LIST], ot[TM_MAX_OUTPUTS];
  tm_arg_value arg[TM_MAX_LIST];
  tm_program *sub[2] = {NULL, NULL};
  for (int32_t i = 0; i < nin; i++) {
    type[i] = in[i]->type;
    arg[i] = (tm_arg_value){in[i]->t, in[i]->iterator};
  }
  TM_TRY(tm_op_infer(op, type, nin, attrs, ot, nout, err));
  tm_status s = door_programs(op, attrs, sub, err);
  if (!s)
    s = tm_run_control(op, attrs, 0, sub, &sc->env, sc->state, arg, nin, out, nout,
                       err);
  tm_program_unref(sub[0]);
  tm_program_unref(sub[1]);
  return s;
}

static tm_status door_next(tm_scope *sc, const tm_op *op, const tm_attrs *attrs,
                           tm_value *it, tm_tensor **out, int32_t *nout, tm_err *err) {
  if (it->t) return tm_fail(err, TM_EINVAL, "the argument is a tensor, no iterator");
  return tm_run_state(op, attrs, sc->state, it->iterator, NULL, 0, out, nout, err);
}

static tm_status door_run(tm_scope *sc, const tm_op *op, const tm_attrs *attrs,
                          tm_value *const *in, int32_t nin, tm_tensor **out,
                          int32_t *nout, tm_err *err) {
  tm_view v[TM_MAX_LIST];
  TM_TRY(door_check(in, nin, err));
  if (op->flags & TM_OP_SUBGRAPH)
    return door_control(sc, op, attrs, in, nin, out, nout, err);
  if (tm_op_kind(op) == TM_NODE_NEXT && nin == 1)
    return door_next(sc, op, attrs, in[0], out, nout, err);
  for (int32_t i = 0; i < nin; i++) {
    if (!in[i]->t)
      return tm_fail(err, TM_EINVAL, "argument %" PRId32 " is an iterator", i + 1);
    v[i] = in[i]->t->v;
  }
  if (op->flags & TM_OP_STATE)
    return tm_run_state(op, attrs, sc->state, 0, v, nin, out, nout, err);
  tm_run_env env = sc->env;
  if (op->flags & TM_OP_RANDOM) sc->env.closure++;
  return tm_run_kernel(op, attrs, 0, &env, v, nin, nin ? in[0]->t : NULL, out, nout,
                       err);
}

static tm_status door_eager(tm_scope *sc, const tm_op *op, tm_value *const *in,
                            int32_t nin, const tm_attrs *attrs, tm_value **out,
                            int32_t *nout, tm_err *err) {
  tm_tensor *t[TM_MAX_OUTPUTS] = {NULL};
  TM_TRY(tm_run_fail(err, op, door_run(sc, op, attrs, in, nin, t, nout, err)));
  tm_status s = TM_OK;
  int32_t n = 0;
  for (; n < *nout && !s; n++) s = tm_value_of_tensor(t[n], &out[n]);
  if (s) door_unref(out, n - 1);
  for (int32_t i = 0; i < *nout; i++) tm_tensor_unref(t[i]);
  return s ? tm_nomem(err, op->name) : TM_OK;
}

/* --- both --- */

static tm_status door_record(tm_scope *sc, const tm_op *op, const tm_attrs *attrs,
                             tm_value *const *in, int32_t nin, tm_value *const *out,
                             int32_t nout) {
  for (int32_t i = sc->n - 1; i >= 0 && sc->frame[i].kind == TM_FRAME_TAPE; i--)
    TM_TRY(tm_tape_record(sc->frame[i].tape, op, attrs, in, nin, out, nout));
  return TM_OK;
}

static bool door_tapes(const tm_scope *sc) {
  return sc->n && sc->frame[sc->n - 1].kind == TM_FRAME_TAPE;
}

static tm_status door_apply_eager(tm_scope *sc, const tm_op *op, tm_value *const *in,
                                  int32_t nin, const tm_attrs *attrs, tm_value **out,
                                  int32_t *nout, tm_err *err) {
  tm_attrs a = {0};
  if (attrs && tm_attrs_copy(&a, attrs)) return tm_nomem(err, op->name);
  tm_status s = tm_run_fail(err, op, tm_op_complete_attrs(op, &a, err));
  if (!s) s = door_eager(sc, op, in, nin, &a, out, nout, err);
  if (!s && door_tapes(sc)) {
    s = door_record(sc, op, &a, in, nin, out, *nout);
    if (s) door_unref(out, *nout);
    if (s) (void)tm_nomem(err, "a tape");
  }
  tm_attrs_release(&a);
  return s;
}

tm_status tm_apply(tm_scope *sc, const tm_op *op, tm_value *const *in, int32_t nin,
                   const tm_attrs *attrs, tm_value **out, int32_t *nout, tm_err *err) {
  while (nin && !in[nin - 1]) nin--;
  if (nin > TM_MAX_LIST)
    return tm_run_fail(err, op,
                       tm_fail(err, TM_EINVAL, "takes at most %d tensors, got %" PRId32,
                               TM_MAX_LIST, nin));
  for (int32_t i = 0; i < nin; i++)
    if (!in[i])
      return tm_run_fail(
          err, op, tm_fail(err, TM_EINVAL, "argument %" PRId32 " is missing", i + 1));
  tm_trace *tr = tm_scope_trace(sc);
  if (!tr) return door_apply_eager(sc, op, in, nin, attrs, out, nout, err);
  const tm_attrs *done = NULL;
  TM_TRY(
      tm_run_fail(err, op, door_traced(tr, op, in, nin, attrs, out, nout, &done, err)));
  if (!door_tapes(sc) || !door_record(sc, op, done, in, nin, out, *nout)) return TM_OK;
  door_unref(out, *nout);
  return tm_nomem(err, "a tape");
}

/* --- ops with attributes that values know --- */

tm_status tm_apply_next(tm_scope *sc, tm_value *it, tm_value **out, int32_t *nout,
                        tm_err *err) {
  tm_attrs a = {.n = 1};
  if (!it->elem) return tm_fail(err, TM_EINVAL, "next: the argument is no iterator");
  if (tm_attr_set_types(&a.a[0], it->elem, it->nelem))
    return tm_nomem(err, "iterator_next");
  tm_status s = tm_apply(sc, tm_op_find("iterator_next"), &it, 1, &a, out, nout, err);
  tm_attrs_release(&a);
  return s;
}

static int32_t door_cat(tm_value **all, int32_t at, tm_value *const *v, int32_t n) {
  for (int32_t i = 0; i < n; i++) all[at + i] = v[i];
  return at + n;
}

static tm_status door_room(int64_t n, const char *what, tm_err *err) {
  if (n <= TM_MAX_LIST) return TM_OK;
  return tm_fail(err, TM_EEXHAUSTED,
                 "%s uses more than %d values from outside its functions", what,
                 TM_MAX_LIST);
}

tm_status tm_apply_cond(tm_scope *sc, tm_value *p, tm_graph *then,
                        tm_value *const *then_cap, int32_t nthen, tm_graph *otherwise,
                        tm_value *const *else_cap, int32_t nelse, tm_value **out,
                        int32_t *nout, tm_err *err) {
  tm_value *in[TM_MAX_LIST];
  tm_attrs a = {.n = 3};
  TM_TRY(door_room((int64_t)nthen + nelse + 1, "cond", err));
  in[0] = p;
  int32_t n = door_cat(in, door_cat(in, 1, then_cap, nthen), else_cap, nelse);
  tm_attr_set_graph(&a.a[0], then);
  tm_attr_set_graph(&a.a[1], otherwise);
  tm_attr_set_int(&a.a[2], TM_ATTR_INT, nthen);
  tm_status s = tm_apply(sc, tm_op_find("cond"), in, n, &a, out, nout, err);
  tm_attrs_release(&a);
  return s;
}

/* One of a loop's two graphs, with READs moved out: their values follow the captures.
 */
struct loop_part {
  tm_graph *g;
  tm_value *cap[TM_MAX_LIST];
  int32_t ncap, owned; /* the last `owned` are ours to drop */
};

static tm_status door_loop_part(tm_scope *sc, const tm_graph *g, const tm_graph *other,
                                tm_value *const *cap, int32_t ncap, struct loop_part *p,
                                tm_err *err) {
  const tm_node *read[TM_MAX_LIST];
  int32_t nread, nout;
  TM_TRY(door_room((int64_t)ncap + TM_MAX_LIST / 4, "while_loop", err));
  TM_TRY(tm_graph_hoist(g, other, &p->g, read, &nread, err));
  p->ncap = door_cat(p->cap, 0, cap, ncap);
  for (int32_t i = 0; i < nread; i++) {
    tm_value *out[TM_MAX_OUTPUTS];
    TM_TRY(tm_apply(sc, read[i]->op, NULL, 0, &read[i]->attrs, out, &nout, err));
    p->cap[p->ncap++] = out[0];
    p->owned++;
  }
  return TM_OK;
}

static void door_loop_release(struct loop_part *p) {
  tm_graph_unref(p->g);
  door_unref(p->cap + p->ncap - p->owned, p->owned);
}

static tm_status door_while(tm_scope *sc, const struct loop_part *cond,
                            const struct loop_part *body, tm_value *const *var,
                            int32_t nvar, tm_value **out, tm_err *err) {
  tm_value *in[TM_MAX_LIST];
  int32_t nout;
  tm_attrs a = {.n = 4};
  TM_TRY(door_room((int64_t)cond->ncap + body->ncap + nvar, "while_loop", err));
  int32_t n = door_cat(in, 0, var, nvar);
  n = door_cat(in, n, cond->cap, cond->ncap);
  n = door_cat(in, n, body->cap, body->ncap);
  tm_attr_set_graph(&a.a[0], cond->g);
  tm_attr_set_graph(&a.a[1], body->g);
  tm_attr_set_int(&a.a[2], TM_ATTR_INT, nvar);
  tm_attr_set_int(&a.a[3], TM_ATTR_INT, cond->ncap);
  tm_status s = tm_apply(sc, tm_op_find("while_loop"), in, n, &a, out, &nout, err);
  tm_attrs_release(&a);
  return s;
}

tm_status tm_apply_while(tm_scope *sc, tm_graph *cond, tm_value *const *cond_cap,
                         int32_t ncond, tm_graph *body, tm_value *const *body_cap,
                         int32_t nbody, tm_value *const *var, int32_t nvar,
                         tm_value **out, tm_err *err) {
  struct loop_part pc = {NULL, {NULL}, 0, 0}, pb = {NULL, {NULL}, 0, 0};
  tm_status s = door_loop_part(sc, cond, body, cond_cap, ncond, &pc, err);
  if (!s) s = door_loop_part(sc, body, cond, body_cap, nbody, &pb, err);
  if (!s) s = door_while(sc, &pc, &pb, var, nvar, out, err);
  door_loop_release(&pc);
  door_loop_release(&pb);
  return s;
}
