#include "graph/run.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  The slow and simple way to run one node: every output is a tensor of its
 * own.  The planned executor (step.c) does the same without allocating.
 */

tm_status tm_run_fail(tm_err *err, const tm_op *op, tm_status s) {
  if (!s || !err) return s;
  if (err->code == TM_OK) (void)tm_fail(err, s, "failed (%s)", tm_status_name(s));
  if (!err->op[0]) strncpy(err->op, op->name, sizeof err->op - 1);
  return s;
}

static void run_drop(tm_tensor **t, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    tm_tensor_unref(t[i]);
    t[i] = NULL;
  }
}

/* --- kernels --- */

static tm_status run_infer(const tm_op *op, const tm_attrs *attrs, const tm_view *in,
                           int32_t nin, tm_type *out, int32_t *nout, tm_err *err) {
  tm_type t[TM_MAX_LIST];
  if (nin > TM_MAX_LIST)
    return tm_fail(err, TM_EINVAL, "more than %d inputs", TM_MAX_LIST);
  for (int32_t i = 0; i < nin; i++) {
    t[i].dtype = in[i].dtype;
    t[i].shape = in[i].shape;
  }
  return tm_op_infer(op, t, nin, attrs, out, nout, err);
}

static tm_status run_outputs(tm_kctx *c, const tm_type *type, tm_tensor **out) {
  for (int32_t i = 0; i < c->nout; i++) {
    c->out[i].dtype = type[i].dtype;
    c->out[i].shape = type[i].shape;
    c->out[i].data = NULL;
    if (c->op->flags & TM_OP_DYNAMIC) continue;
    if (!tm_shape_known(&type[i].shape))
      return tm_fail(c->err, TM_EINTERNAL, "the shape of output %" PRId32 " is unknown",
                     i + 1);
    TM_TRY(tm_tensor_new(type[i].dtype, &type[i].shape, &out[i], c->err));
    c->out[i] = out[i]->v;
  }
  return TM_OK;
}

static tm_status run_call(tm_kctx *c) {
  void *scratch = NULL;
  size_t n = c->op->scratch ? c->op->scratch(c) : 0;
  if (n && !(scratch = tm_malloc_aligned(n))) return tm_nomem(c->err, "scratch memory");
  c->scratch = scratch;
  c->scratch_bytes = n;
  tm_status s = c->op->kernel(c);
  if (n) tm_free_aligned(scratch, n);
  if (s || !(c->op->flags & TM_OP_DYNAMIC)) return s;
  for (int32_t i = 0; i < c->nout; i++)
    if (!c->made[i])
      return tm_fail(c->err, TM_EINTERNAL, "output %" PRId32 " was not made", i + 1);
  return TM_OK;
}

/* Strings that a kernel moved point into its inputs: give them bytes of their own. */
static tm_status run_own_strings(tm_kctx *c, tm_tensor **out) {
  for (int32_t i = 0; i < c->nout; i++) {
    if (c->out[i].dtype != TM_STRING || c->op->flags & TM_OP_DYNAMIC) continue;
    tm_tensor *t = out[i];
    tm_status s = tm_tensor_copy(&t->v, &out[i], c->err);
    tm_tensor_unref(t);
    TM_TRY(s);
  }
  return TM_OK;
}

static tm_status run_kernel(tm_kctx *c, const tm_type *type, tm_tensor **out) {
  tm_view ov[TM_MAX_OUTPUTS];
  c->out = ov;
  c->made = out;
  TM_TRY(run_outputs(c, type, out));
  TM_TRY(run_call(c));
  return run_own_strings(c, out);
}

static tm_status run_view(const tm_view *in, tm_tensor *owner, const tm_shape *shape,
                          tm_tensor **out, tm_err *err) {
  if (owner) return tm_tensor_reshape(owner, shape, out, err);
  tm_view v = *in;
  v.shape = *shape;
  return tm_tensor_copy(&v, out, err);
}

tm_status tm_run_kernel(const tm_op *op, const tm_attrs *attrs, uint64_t place,
                        const tm_run_env *env, const tm_view *in, int32_t nin,
                        tm_tensor *owner, tm_tensor **out, int32_t *nout, tm_err *err) {
  tm_type type[TM_MAX_OUTPUTS];
  TM_TRY(run_infer(op, attrs, in, nin, type, nout, err));
  memset(out, 0, (size_t)*nout * sizeof *out);
  if (op->flags & TM_OP_VIEW)
    return tm_run_fail(err, op, run_view(&in[0], owner, &type[0].shape, &out[0], err));
  if (!op->kernel)
    return tm_run_fail(err, op, tm_fail(err, TM_EINTERNAL, "has no kernel"));
  tm_kctx c = {.op = op,
               .nin = nin,
               .nout = *nout,
               .in = in,
               .attrs = attrs,
               .place = place,
               .env = env,
               .err = err};
  tm_status s = run_kernel(&c, type, out);
  if (s) run_drop(out, *nout);
  return tm_run_fail(err, op, s);
}

/* --- state --- */

tm_status tm_run_check_read(const tm_tensor *t, const tm_type *want, tm_err *err) {
  char a[128], b[128];
  if (t && t->v.dtype == want->dtype && tm_shape_equal(&t->v.shape, &want->shape))
    return TM_OK;
  if (!t) return tm_fail(err, TM_EINTERNAL, "a read gave nothing");
  return tm_fail(err, TM_EPRECOND, "the variable is %s %s now, was %s %s",
                 tm_dtype_name(t->v.dtype), tm_shape_text(&t->v.shape, a, sizeof a),
                 tm_dtype_name(want->dtype), tm_shape_text(&want->shape, b, sizeof b));
}

static tm_status run_read(const tm_op *op, const tm_attrs *attrs, tm_state *state,
                          const tm_type *type, const tm_view *const *in,
                          tm_tensor **out, tm_err *err) {
  tm_read rd;
  tm_node_read(op, attrs, in, &rd);
  if (rd.kind == TM_READ_ROWS) {
    TM_TRY(tm_tensor_new(type->dtype, &type->shape, out, err));
    rd.dst = (*out)->v;
  }
  tm_status s = state->exchange(state, NULL, 0, &rd, 1, err);
  if (rd.kind == TM_READ_ROWS) return s;
  if (!s) s = tm_run_check_read(rd.out, type, err);
  *out = rd.out;
  return s;
}

static tm_status run_update(const tm_op *op, const tm_attrs *attrs, tm_state *state,
                            const tm_view *const *in, tm_err *err) {
  tm_update up;
  TM_TRY(tm_node_update(op, attrs, in, &up, err));
  return state->exchange(state, &up, 1, NULL, 0, err);
}

static tm_status run_state(const tm_op *op, const tm_attrs *attrs, tm_state *state,
                           uint64_t it, const tm_view *const *in, const tm_type *type,
                           tm_tensor **out, int32_t nout, tm_err *err) {
  tm_node_kind kind = tm_op_kind(op);
  if (!state)
    return tm_fail(err, TM_EPRECOND, "there are no variables and iterators here");
  if (kind == TM_NODE_NEXT) return state->next(state, it, out, nout, err);
  if (kind == TM_NODE_READ) return run_read(op, attrs, state, type, in, out, err);
  return run_update(op, attrs, state, in, err);
}

tm_status tm_run_state(const tm_op *op, const tm_attrs *attrs, tm_state *state,
                       uint64_t it, const tm_view *in, int32_t nin, tm_tensor **out,
                       int32_t *nout, tm_err *err) {
  tm_type type[TM_MAX_OUTPUTS], none = {0};
  const tm_view *iv[8] = {NULL};
  bool next = tm_op_kind(op) == TM_NODE_NEXT;
  TM_TRY(next ? tm_op_infer(op, &none, 1, attrs, type, nout, err)
              : run_infer(op, attrs, in, nin, type, nout, err));
  TM_DCHECK(nin <= (int32_t)TM_COUNT(iv));
  for (int32_t i = 0; i < nin; i++) iv[i] = &in[i];
  memset(out, 0, (size_t)*nout * sizeof *out);
  tm_status s = run_state(op, attrs, state, it, iv, type, out, *nout, err);
  if (s) run_drop(out, *nout);
  return tm_run_fail(err, op, s);
}

/* --- control flow --- */

static bool run_truth(const tm_tensor *t) {
  return tm_view_count(&t->v) > 0 && *(const uint8_t *)t->v.data != 0;
}

static tm_status run_cond(const tm_attrs *attrs, tm_program *const *sub,
                          const tm_run_env *env, tm_state *state,
                          const tm_arg_value *in, int32_t nin, tm_tensor **out,
                          tm_err *err) {
  int32_t nthen = (int32_t)attrs->a[2].u.i;
  if (tm_view_count(&in[0].t->v) != 1)
    return tm_fail(err, TM_EINVAL, "the condition must be one bool");
  if (run_truth(in[0].t))
    return tm_program_run(sub[0], in + 1, nthen, state, env, out, err);
  return tm_program_run(sub[1], in + 1 + nthen, nin - 1 - nthen, state, env, out, err);
}

struct run_loop {
  int32_t nvar, ncond, nbody;
  tm_arg_value var[TM_MAX_OUTPUTS]; /* references */
  const tm_arg_value *in;           /* all inputs: variables, captures */
};

/* The variables followed by captures of one of the two graphs. */
static int32_t run_loop_args(const struct run_loop *l, bool body, tm_arg_value *arg) {
  int32_t n = body ? l->nbody : l->ncond;
  const tm_arg_value *cap = l->in + l->nvar + (body ? l->ncond : 0);
  memcpy(arg, l->var, (size_t)l->nvar * sizeof *arg);
  memcpy(arg + l->nvar, cap, (size_t)n * sizeof *arg);
  return l->nvar + n;
}

static tm_status run_turn(struct run_loop *l, tm_program *const *sub,
                          const tm_run_env *env, tm_state *state, bool *more,
                          tm_err *err) {
  tm_arg_value arg[TM_MAX_LIST];
  tm_tensor *t[TM_MAX_OUTPUTS] = {NULL};
  if (tm_cancelled(env->cancel)) return tm_fail(err, TM_ECANCELLED, "cancelled");
  int32_t n = run_loop_args(l, false, arg);
  TM_TRY(tm_program_run(sub[0], arg, n, state, env, t, err));
  *more = run_truth(t[0]);
  tm_tensor_unref(t[0]);
  if (!*more) return TM_OK;
  n = run_loop_args(l, true, arg);
  TM_TRY(tm_program_run(sub[1], arg, n, state, env, t, err));
  for (int32_t i = 0; i < l->nvar; i++) {
    tm_tensor_unref(l->var[i].t);
    l->var[i].t = t[i];
  }
  return TM_OK;
}

/* Each turn draws random numbers of its own: the closure's number is mixed with the
 * loop's place and the turn. */
static tm_status run_while(const tm_attrs *attrs, uint64_t place,
                           tm_program *const *sub, const tm_run_env *env,
                           tm_state *state, const tm_arg_value *in, int32_t nin,
                           tm_tensor **out, tm_err *err) {
  struct run_loop l = {
      .nvar = (int32_t)attrs->a[2].u.i, .ncond = (int32_t)attrs->a[3].u.i, .in = in};
  tm_run_env turn = *env;
  bool more = true;
  tm_status s = TM_OK;
  l.nbody = nin - l.nvar - l.ncond;
  memcpy(l.var, in, (size_t)l.nvar * sizeof *in);
  for (int32_t i = 0; i < l.nvar; i++)
    if (l.var[i].t) tm_tensor_ref(l.var[i].t);
  for (uint64_t k = 0; more && !s; k++) {
    if (k) turn.closure = env->closure ^ ((place + 1) << 40) ^ (k << 1);
    s = run_turn(&l, sub, &turn, state, &more, err);
  }
  for (int32_t i = 0; i < l.nvar; i++) {
    if (s)
      tm_tensor_unref(l.var[i].t);
    else
      out[i] = l.var[i].t;
  }
  return s;
}

tm_status tm_run_control(const tm_op *op, const tm_attrs *attrs, uint64_t place,
                         tm_program *const *sub, const tm_run_env *env, tm_state *state,
                         const tm_arg_value *in, int32_t nin, tm_tensor **out,
                         int32_t *nout, tm_err *err) {
  bool cond = tm_op_kind(op) == TM_NODE_COND;
  *nout = cond ? tm_program_graph(sub[0])->nout : (int32_t)attrs->a[2].u.i;
  memset(out, 0, (size_t)*nout * sizeof *out);
  tm_status s = cond ? run_cond(attrs, sub, env, state, in, nin, out, err)
                     : run_while(attrs, place, sub, env, state, in, nin, out, err);
  return tm_run_fail(err, op, s);
}
