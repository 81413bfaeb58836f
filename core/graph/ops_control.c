#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "graph/nodes.h"

/*
 * Design.  Arguments, and control flow.  They have
 * no kernel: the executor knows them.
 *
 *   cond(p, xs...; then, otherwise, nthen)   xs are the captures of both branches:
 *       first nthen of `then`, the others of `otherwise`.
 *   while_loop(xs...; cond, body, nvar, ncond)   xs are the nvar variables, then the
 *       ncond captures of `cond`, then those of `body`.  Both graphs take the
 *       variables, then their captures, as arguments.
 *
 * The arguments of a sub-graph are its trace's arguments followed by its captures.
 */
enum { A_THEN, A_ELSE, A_NTHEN };
enum { A_COND, A_BODY, A_NVAR, A_NCOND };

static tm_status infer_arg(tm_infer *c) {
  return tm_fail(c->err, TM_EINVAL, "arguments are made by a trace only");
}

/* Arguments of a sub-graph against the values that it will get. */
static tm_status control_check(tm_infer *c, const tm_graph *g, const char *what,
                               const tm_type *in, int32_t n) {
  char a[128], b[128];
  if (g->narg != n)
    return tm_fail(c->err, TM_EINVAL, "%s takes %" PRId32 " values, gets %" PRId32,
                   what, g->narg, n);
  for (int32_t i = 0; i < n; i++) {
    const tm_type *t = &g->node[g->arg[i].node].out[0];
    if (t->dtype != in[i].dtype || !tm_shape_compatible(&t->shape, &in[i].shape))
      return tm_fail(c->err, TM_EINVAL, "%s: value %" PRId32 " is %s %s, must be %s %s",
                     what, i + 1, tm_dtype_name(in[i].dtype),
                     tm_shape_text(&in[i].shape, a, sizeof a), tm_dtype_name(t->dtype),
                     tm_shape_text(&t->shape, b, sizeof b));
  }
  return TM_OK;
}

static tm_status control_predicate(tm_infer *c, const tm_type *t, const char *what) {
  if (t->dtype != TM_BOOL || tm_shape_count(&t->shape) > 1 || t->shape.rank > 1)
    return tm_fail(c->err, TM_EINVAL, "%s must be one bool, is %s", what,
                   t->dtype ? tm_dtype_name(t->dtype) : "an iterator");
  return TM_OK;
}

/* The type that fits both: sizes that differ become unknown. */
static tm_status control_meet(tm_infer *c, int32_t i, const tm_type *a,
                              const tm_type *b, tm_type *out) {
  if (a->dtype != b->dtype || a->shape.rank != b->shape.rank) {
    char x[128], y[128];
    return tm_fail(c->err, TM_EINVAL,
                   "result %" PRId32 " is %s %s in one branch, %s %s in the other",
                   i + 1, tm_dtype_name(a->dtype),
                   tm_shape_text(&a->shape, x, sizeof x), tm_dtype_name(b->dtype),
                   tm_shape_text(&b->shape, y, sizeof y));
  }
  *out = *a;
  for (int32_t d = 0; d < a->shape.rank; d++)
    if (a->shape.dim[d] != b->shape.dim[d]) out->shape.dim[d] = -1;
  return TM_OK;
}

static tm_status infer_cond(tm_infer *c) {
  const tm_graph *f = c->attrs->a[A_THEN].u.g, *g = c->attrs->a[A_ELSE].u.g;
  int64_t nthen = c->attrs->a[A_NTHEN].u.i;
  if (nthen < 0 || nthen > c->nin - 1)
    return tm_fail(c->err, TM_EINVAL, "nthen is out of range");
  TM_TRY(control_predicate(c, &c->in[0], "the condition"));
  TM_TRY(control_check(c, f, "the first branch", c->in + 1, (int32_t)nthen));
  TM_TRY(control_check(c, g, "the second branch", c->in + 1 + nthen,
                       c->nin - 1 - (int32_t)nthen));
  if (f->nout != g->nout || f->nout > TM_MAX_OUTPUTS)
    return tm_fail(c->err, TM_EINVAL,
                   "the branches give %" PRId32 " and %" PRId32
                   " results; both must give equally many, at most %d",
                   f->nout, g->nout, TM_MAX_OUTPUTS);
  c->nout = f->nout;
  for (int32_t i = 0; i < f->nout; i++)
    TM_TRY(control_meet(c, i, tm_graph_type(f, f->out[i]), tm_graph_type(g, g->out[i]),
                        &c->out[i]));
  return TM_OK;
}

/* The variables of a loop keep their types from turn to turn. */
static tm_status while_check_body(tm_infer *c, const tm_graph *body, int32_t nvar) {
  char a[128], b[128];
  if (body->nout != nvar)
    return tm_fail(c->err, TM_EINVAL,
                   "the body gives %" PRId32 " values for %" PRId32 " variables",
                   body->nout, nvar);
  for (int32_t i = 0; i < nvar; i++) {
    const tm_type *got = tm_graph_type(body, body->out[i]);
    const tm_type *want = &body->node[body->arg[i].node].out[0];
    if (got->dtype != want->dtype || !tm_shape_compatible(&got->shape, &want->shape))
      return tm_fail(
          c->err, TM_EINVAL,
          "variable %" PRId32 " goes in as %s %s and comes out as %s %s", i + 1,
          tm_dtype_name(want->dtype), tm_shape_text(&want->shape, a, sizeof a),
          tm_dtype_name(got->dtype), tm_shape_text(&got->shape, b, sizeof b));
    c->out[i] = *want;
  }
  return TM_OK;
}

static tm_status infer_while(tm_infer *c) {
  const tm_graph *cond = c->attrs->a[A_COND].u.g, *body = c->attrs->a[A_BODY].u.g;
  int64_t nvar = c->attrs->a[A_NVAR].u.i, ncond = c->attrs->a[A_NCOND].u.i;
  if (nvar < 0 || ncond < 0 || nvar > TM_MAX_OUTPUTS || nvar + ncond > c->nin)
    return tm_fail(c->err, TM_EINVAL, "nvar or ncond is out of range");
  tm_type t[TM_MAX_LIST];
  int32_t nv = (int32_t)nvar, nc = (int32_t)ncond, nb = c->nin - nv - nc;
  memcpy(t, c->in, (size_t)(nv + nc) * sizeof *t);
  TM_TRY(control_check(c, cond, "the condition", t, nv + nc));
  memcpy(t + nv, c->in + nv + nc, (size_t)nb * sizeof *t);
  TM_TRY(control_check(c, body, "the body", t, nv + nb));
  if (cond->nout != 1)
    return tm_fail(c->err, TM_EINVAL, "the condition must give one value");
  TM_TRY(control_predicate(c, tm_graph_type(cond, cond->out[0]), "the condition"));
  c->nout = nv;
  return while_check_body(c, body, nv);
}

enum { OP_ARG, OP_COND, OP_WHILE };

static const tm_op ops[] = {
    [OP_ARG] = {.name = "arg",
                .sig = "",
                .help = "An argument of a function.",
                .flags = TM_OP_HIDDEN,
                .infer = infer_arg},
    [OP_COND] = {.name = "cond",
                 .sig = "p, xs...?; then:func, otherwise:func, nthen:int",
                 .help = "What one of two branches gives.",
                 .flags = TM_OP_SUBGRAPH | TM_OP_HIDDEN,
                 .infer = infer_cond},
    [OP_WHILE] = {.name = "while_loop",
                  .sig = "xs...?; cond:func, body:func, nvar:int, ncond:int",
                  .help = "Run a body as long as a condition holds.",
                  .flags = TM_OP_SUBGRAPH | TM_OP_HIDDEN,
                  .infer = infer_while},
};

const tm_op_group tm_ops_control = {ops, (int32_t)TM_COUNT(ops)};

tm_node_kind tm_op_kind(const tm_op *op) {
  if (op == &ops[OP_ARG]) return TM_NODE_ARG;
  if (op->name[0] == 'c' && strcmp(op->name, "const") == 0) return TM_NODE_CONST;
  if (op == &ops[OP_COND]) return TM_NODE_COND;
  if (op == &ops[OP_WHILE]) return TM_NODE_WHILE;
  return op->flags & TM_OP_STATE ? tm_op_kind_of_state(op) : TM_NODE_PURE;
}
