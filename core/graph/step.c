#include "graph/step.h"

#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/run.h"
#include "graph/spans.h"

/*
 * Design.  A step walks the levels of its program: give out READs, take the answers,
 * run kernels, give out UPDATEs.  Memory and addresses are bind.c's.
 *
 * Invariants:
 *   (1) What was given out (READs, UPDATEs, and the values they point at) stays as it
 *       is until the exchange that carries it: READs to the next tm_step_compute,
 *       UPDATEs to the next tm_step_begin.
 *   (2) own[] is emptied by begin and free, and of dense READs after the level that
 *       uses them last: an UPDATE then finds the variable unread and works in place.
 */

static void step_forget(tm_step *st) {
  for (int32_t v = 0; v < st->p->nval; v++) {
    tm_tensor_unref(st->own[v]);
    st->own[v] = NULL;
  }
}

/* The longest list of requests that a level makes. */
static int32_t step_room(const tm_program *p) {
  int32_t room = 1;
  for (int32_t l = 0; l <= p->nlevel; l++) {
    int32_t r = p->at[l].run - p->at[l].read, u = p->at[l].end - p->at[l].update;
    if (r > room) room = r;
    if (u > room) room = u;
  }
  return room;
}

static tm_status step_new(tm_program *p, bool owns, tm_step **out, tm_err *err) {
  tm_step *st = *out = tm_calloc(1, sizeof *st);
  if (!st) return tm_nomem(err, "a step");
  st->p = owns ? tm_program_ref(p) : p;
  st->owns = owns;
  st->room = step_room(p);
  st->own = tm_calloc((size_t)p->nval + 1, sizeof(tm_tensor *));
  st->iterator = tm_calloc((size_t)p->nval + 1, sizeof *st->iterator);
  st->rd = tm_calloc((size_t)st->room, sizeof *st->rd);
  st->up = tm_calloc((size_t)st->room, sizeof *st->up);
  if (st->own && st->iterator && st->rd && st->up) return TM_OK;
  tm_step_free(st);
  *out = NULL;
  return tm_nomem(err, "a step");
}

tm_status tm_step_new(tm_program *p, tm_step **out, tm_err *err) {
  return step_new(p, true, out, err);
}

void tm_step_free(tm_step *st) {
  if (!st) return;
  size_t n = (size_t)st->p->nval + 1;
  if (st->own) step_forget(st);
  for (int i = 0; i < TM_MAX_PLANS; i++) tm_step_unbind(&st->bound[i]);
  tm_free(st->own, n * sizeof *st->own);
  tm_free(st->iterator, n * sizeof *st->iterator);
  tm_free(st->rd, (size_t)st->room * sizeof *st->rd);
  tm_free(st->up, (size_t)st->room * sizeof *st->up);
  tm_free(st->key, (size_t)st->key_room * sizeof *st->key);
  if (st->arena_bytes) tm_free_aligned(st->arena, st->arena_bytes);
  if (st->scratch_bytes) tm_free_aligned(st->scratch, st->scratch_bytes);
  if (st->owns) tm_program_unref(st->p);
  tm_free(st, sizeof *st);
}

/* --- begin --- */

static tm_status step_check_arg(const tm_program *p, int32_t i, const tm_arg_value *a,
                                tm_err *err) {
  char x[128], y[128];
  const tm_arg *arg = &p->g->arg[i];
  const tm_type *want = &p->g->node[arg->node].out[0];
  if (arg->iterator != (a->t == NULL))
    return tm_fail(err, TM_EINVAL, "%s: argument %" PRId32 " must be %s", p->g->name,
                   i + 1, arg->iterator ? "an iterator" : "a tensor");
  if (!a->t) return TM_OK;
  const tm_view *v = &a->t->v;
  if (v->dtype == want->dtype && tm_shape_compatible(&v->shape, &want->shape))
    return TM_OK;
  return tm_fail(err, TM_EINVAL, "%s: argument %" PRId32 " is %s %s, must be %s %s",
                 p->g->name, i + 1, tm_dtype_name(v->dtype),
                 tm_shape_text(&v->shape, x, sizeof x), tm_dtype_name(want->dtype),
                 tm_shape_text(&want->shape, y, sizeof y));
}

tm_status tm_step_begin(tm_step *st, const tm_arg_value *args, int32_t n,
                        const tm_run_env *env, tm_err *err) {
  const tm_program *p = st->p;
  step_forget(st);
  st->level = 0;
  st->fetched = st->asked = false;
  st->allocs = 0;
  st->env = *env;
  if (st->env.threads < 1) st->env.threads = 1;
  if (n != p->g->narg)
    return tm_fail(err, TM_EINVAL, "%s takes %" PRId32 " arguments, got %" PRId32,
                   p->g->name, p->g->narg, n);
  for (int32_t i = 0; i < n; i++) TM_TRY(step_check_arg(p, i, &args[i], err));
  for (int32_t i = 0; i < n; i++) {
    int32_t v = p->first[p->g->arg[i].node];
    st->iterator[v] = args[i].iterator;
    st->own[v] = args[i].t ? tm_tensor_ref(args[i].t) : NULL;
  }
  return TM_OK;
}

/* --- running nodes --- */

static tm_status step_check_type(const tm_tensor *t, const tm_type *want, tm_err *err) {
  char a[128], b[128];
  if (t->v.dtype == want->dtype && tm_shape_compatible(&t->v.shape, &want->shape))
    return TM_OK;
  return tm_fail(err, TM_EINVAL, "gave %s %s, promised %s %s",
                 tm_dtype_name(t->v.dtype), tm_shape_text(&t->v.shape, a, sizeof a),
                 tm_dtype_name(want->dtype), tm_shape_text(&want->shape, b, sizeof b));
}

/* Check n tensors against their values' types and bind them; takes them. */
static tm_status step_take(tm_step *st, int32_t node, tm_tensor **t, tm_err *err) {
  int32_t first = st->p->first[node], n = st->p->g->node[node].nout;
  tm_status s = TM_OK;
  for (int32_t k = 0; k < n; k++) {
    const tm_type *want =
        st->now ? &st->now->plan->val[first + k].type : &st->p->g->node[node].out[k];
    if (!s) s = step_check_type(t[k], want, err);
    if (s)
      tm_tensor_unref(t[k]);
    else
      tm_step_set(st, first + k, t[k]);
  }
  return s;
}

static tm_status step_next(tm_step *st, int32_t node, tm_state *state, tm_tensor **t,
                           tm_err *err) {
  const tm_node *n = &st->p->g->node[node];
  int32_t it = st->p->first[n->in[0].node] + n->in[0].out;
  memset(t, 0, (size_t)n->nout * sizeof *t);
  return state->next(state, st->iterator[it], t, n->nout, err);
}

static tm_status step_dyn(tm_step *st, int32_t node, tm_err *err) {
  const tm_node *n = &st->p->g->node[node];
  tm_view in[TM_MAX_LIST];
  tm_tensor *out[TM_MAX_OUTPUTS], *owner = NULL;
  int32_t nout;
  for (int32_t k = 0; k < n->nin; k++) in[k] = *tm_step_view(st, n->in[k]);
  if (n->op->flags & TM_OP_VIEW) {
    int32_t v = st->p->first[n->in[0].node] + n->in[0].out;
    if (st->now->plan->val[v].kind != TM_VAL_ARENA)
      TM_TRY(tm_step_tensor(st, v, &owner, err));
  }
  tm_status s = tm_run_kernel(n->op, &n->attrs, n->place, &st->env, in, n->nin, owner,
                              out, &nout, err);
  tm_tensor_unref(owner);
  if (s) return s;
  st->allocs += (uint64_t)nout;
  return step_take(st, node, out, err);
}

static tm_status step_make(tm_step *st, const tm_item *it, int32_t node, tm_err *err) {
  const tm_node *n = &st->p->g->node[node];
  tm_kctx *k = &st->now->call[it->call];
  k->err = err;
  for (int32_t i = 0; i < k->nout; i++) k->made[i] = NULL;
  tm_status s = n->op->kernel(k);
  for (int32_t i = 0; i < k->nout && !s; i++)
    if (!k->made[i])
      s = tm_fail(err, TM_EINTERNAL, "output %" PRId32 " was not made", i);
  st->allocs += (uint64_t)k->nout;
  if (!s) return step_take(st, node, k->made, err);
  for (int32_t i = 0; i < k->nout; i++) tm_tensor_unref(k->made[i]);
  return s;
}

static tm_status step_control(tm_step *st, int32_t node, tm_state *state, tm_err *err) {
  const tm_program *p = st->p;
  const tm_node *n = &p->g->node[node];
  tm_arg_value in[TM_MAX_LIST] = {{NULL, 0}};
  tm_tensor *out[TM_MAX_OUTPUTS];
  int32_t nout, k = 0;
  tm_status s = TM_OK;
  for (; k < n->nin && !s; k++) {
    int32_t v = p->first[n->in[k].node] + n->in[k].out;
    in[k] = (tm_arg_value){NULL, st->iterator[v]};
    if (p->g->node[n->in[k].node].out[n->in[k].out].dtype != TM_DTYPE_NONE)
      s = tm_step_tensor(st, v, &in[k].t, err);
  }
  if (!s)
    s = tm_run_control(n->op, &n->attrs, n->place, p->sub[node], &st->env, state, in,
                       n->nin, out, &nout, err);
  while (k--) tm_tensor_unref(in[k].t);
  if (s) return s;
  st->allocs += (uint64_t)nout;
  return step_take(st, node, out, err);
}

/* Results go into tensors of their own, made just before. */
static tm_status step_own(tm_step *st, int32_t node, tm_err *err) {
  for (int32_t v = st->p->first[node]; v < st->p->first[node + 1]; v++) {
    const tm_val *val = &st->now->plan->val[v];
    if (val->root == v && val->escape) TM_TRY(tm_step_make(st, v, &val->type, err));
  }
  return TM_OK;
}

static tm_status step_slow(tm_step *st, const tm_item *it, int32_t node,
                           tm_state *state, tm_err *err) {
  tm_tensor *t[TM_MAX_OUTPUTS];
  switch (it->mode) {
    case TM_RUN_MAKE:
      return step_make(st, it, node, err);
    case TM_RUN_DYN:
      return step_dyn(st, node, err);
    case TM_RUN_CONTROL:
      return step_control(st, node, state, err);
    case TM_RUN_NEXT:
      TM_TRY(step_next(st, node, state, t, err));
      return step_take(st, node, t, err);
    default:
      return TM_OK;
  }
}

/* One node that has something to do. */
static tm_status step_item(tm_step *st, const tm_item *it, int32_t node,
                           tm_state *state, tm_err *err) {
  if (it->mode != TM_RUN_KERNEL) return step_slow(st, it, node, state, err);
  tm_kctx *k = &st->now->call[it->call];
  k->err = err;
  if (it->own) TM_TRY(step_own(st, node, err));
  return k->op->kernel(k);
}

static tm_status step_run(tm_step *st, int32_t from, int32_t to, tm_state *state,
                          tm_err *err) {
  const tm_item *item = st->now->plan->item;
  for (int32_t o = from; o < to; o++) {
    if (item[o].mode == TM_RUN_NOTHING) continue;
    if (tm_cancelled(st->env.cancel)) return tm_fail(err, TM_ECANCELLED, "cancelled");
    int32_t node = st->p->order[o];
    int64_t began = tm_spans_now(st->env.spans);
    tm_status s = step_item(st, &item[o], node, state, err);
    if (s) return tm_run_fail(err, st->p->g->node[node].op, s);
    if (began) tm_spans_add(st->env.spans, st->p->g->node[node].op->name, began);
  }
  return TM_OK;
}

/* --- the fetch stage --- */

static tm_status step_fetch_next(tm_step *st, int32_t node, tm_state *state,
                                 tm_err *err) {
  tm_tensor *t[TM_MAX_OUTPUTS];
  const tm_node *n = &st->p->g->node[node];
  TM_TRY(step_next(st, node, state, t, err));
  tm_status s = TM_OK;
  for (int32_t k = 0; k < n->nout; k++) {
    if (!s) s = step_check_type(t[k], &n->out[k], err);
    if (s)
      tm_tensor_unref(t[k]);
    else
      st->own[st->p->first[node] + k] = t[k];
  }
  return s;
}

tm_status tm_step_fetch(tm_step *st, tm_state *state, tm_err *err) {
  const tm_program *p = st->p;
  if (st->fetched) return TM_OK;
  if (p->has_state && !state)
    return tm_fail(err, TM_EPRECOND, "%s uses variables or iterators; there are none",
                   p->g->name);
  for (int32_t i = 0; i < p->nnext; i++)
    TM_TRY(tm_run_fail(err, p->g->node[p->next[i]].op,
                       step_fetch_next(st, p->next[i], state, err)));
  TM_TRY(tm_step_bind(st, err));
  TM_TRY(step_run(st, p->at[0].run, p->at[0].update, state, err));
  st->fetched = true;
  return TM_OK;
}

/* --- READs --- */

static tm_status step_rows_dst(tm_step *st, int32_t node, tm_err *err) {
  int32_t v = st->p->first[node];
  const tm_node *n = &st->p->g->node[node];
  const tm_val *val = &st->now->plan->val[v];
  if (val->kind == TM_VAL_ARENA) return TM_OK;
  if (val->kind == TM_VAL_TENSOR) return tm_step_make(st, v, &val->type, err);
  tm_type in[2], out[TM_MAX_OUTPUTS];
  int32_t nout;
  TM_DCHECK(n->nin <= (int32_t)TM_COUNT(in));
  for (int32_t k = 0; k < n->nin; k++) {
    const tm_view *view = tm_step_view(st, n->in[k]);
    in[k] = (tm_type){view->dtype, view->shape};
  }
  TM_TRY(tm_op_infer(n->op, in, n->nin, &n->attrs, out, &nout, err));
  st->allocs++;
  return tm_step_make(st, v, &out[0], err);
}

static tm_status step_read(tm_step *st, int32_t node, tm_read *rd, tm_err *err) {
  const tm_node *n = &st->p->g->node[node];
  const tm_view *in[2] = {NULL, NULL};
  TM_DCHECK(n->nin <= (int32_t)TM_COUNT(in));
  for (int32_t k = 0; k < n->nin; k++) in[k] = tm_step_view(st, n->in[k]);
  tm_node_read(n->op, &n->attrs, in, rd);
  if (rd->kind != TM_READ_ROWS) return TM_OK;
  TM_TRY(step_rows_dst(st, node, err));
  rd->dst = *tm_step_view(st, (tm_ref){node, 0});
  return TM_OK;
}

tm_status tm_step_reads(tm_step *st, tm_read **rd, int32_t *n, tm_err *err) {
  const tm_program *p = st->p;
  *rd = st->rd;
  *n = 0;
  TM_DCHECK(st->fetched);
  if (st->level >= p->nlevel) return TM_OK;
  const tm_level *l = &p->at[st->level + 1];
  for (int32_t o = l->read; o < l->run; o++)
    TM_TRY(tm_run_fail(err, p->g->node[p->order[o]].op,
                       step_read(st, p->order[o], &st->rd[o - l->read], err)));
  st->asked = true;
  *n = l->run - l->read;
  return TM_OK;
}

static tm_status step_answers(tm_step *st, tm_err *err) {
  const tm_program *p = st->p;
  const tm_level *l = &p->at[st->level + 1];
  tm_status s = TM_OK;
  for (int32_t o = l->read; o < l->run && st->asked; o++) {
    int32_t node = p->order[o];
    tm_read *rd = &st->rd[o - l->read];
    if (rd->kind == TM_READ_ROWS) continue;
    if (!s) s = tm_run_check_read(rd->out, &p->g->node[node].out[0], err);
    if (!s) {
      tm_step_set(st, p->first[node], rd->out);
    } else {
      (void)tm_run_fail(err, p->g->node[node].op, s);
      tm_tensor_unref(rd->out);
    }
    rd->out = NULL;
  }
  return s;
}

/* --- compute, UPDATEs --- */

static tm_status step_update(tm_step *st, int32_t node, tm_update *up, tm_err *err) {
  const tm_node *n = &st->p->g->node[node];
  const tm_view *in[8];
  tm_type type[8], out[TM_MAX_OUTPUTS];
  bool known = true;
  int32_t nout;
  TM_DCHECK(n->nin <= (int32_t)TM_COUNT(in));
  for (int32_t k = 0; k < n->nin; k++) {
    in[k] = tm_step_view(st, n->in[k]);
    type[k] = (tm_type){in[k]->dtype, in[k]->shape};
    int32_t v = st->p->first[n->in[k].node] + n->in[k].out;
    known = known && st->now->plan->val[v].kind != TM_VAL_DYN;
  }
  if (!known) TM_TRY(tm_op_infer(n->op, type, n->nin, &n->attrs, out, &nout, err));
  return tm_node_update(n->op, &n->attrs, in, up, err);
}

static void step_drop(tm_step *st) {
  const tm_plan *pl = st->now->plan;
  for (int32_t i = pl->drop_at[st->level + 1]; i < pl->drop_at[st->level + 2]; i++) {
    tm_tensor_unref(st->own[pl->drop[i]]);
    st->own[pl->drop[i]] = NULL;
  }
}

tm_status tm_step_compute(tm_step *st, tm_state *state, tm_update **up, int32_t *nup,
                          bool *done, tm_err *err) {
  const tm_program *p = st->p;
  *up = st->up;
  *nup = 0;
  *done = true;
  TM_DCHECK(st->fetched);
  if (st->level >= p->nlevel) return TM_OK;
  const tm_level *l = &p->at[st->level + 1];
  TM_TRY(step_answers(st, err));
  TM_TRY(step_run(st, l->run, l->update, state, err));
  for (int32_t o = l->update; o < l->end; o++)
    TM_TRY(tm_run_fail(err, p->g->node[p->order[o]].op,
                       step_update(st, p->order[o], &st->up[o - l->update], err)));
  *nup = l->end - l->update;
  step_drop(st);
  st->level++;
  st->asked = false;
  *done = st->level == p->nlevel;
  return TM_OK;
}

tm_status tm_step_outputs(tm_step *st, tm_tensor **outs, tm_err *err) {
  const tm_graph *g = st->p->g;
  for (int32_t i = 0; i < g->nout; i++) {
    int32_t v = st->p->first[g->out[i].node] + g->out[i].out;
    tm_status s = tm_step_tensor(st, v, &outs[i], err);
    if (!s) continue;
    for (outs[i] = NULL; i > 0; outs[i] = NULL) tm_tensor_unref(outs[--i]);
    return s;
  }
  return TM_OK;
}

uint64_t tm_step_allocs(const tm_step *st) { return st->allocs; }

/* --- everything at once --- */

static tm_status step_exchange(tm_step *st, tm_state *state, const tm_update *up,
                               int32_t nup, tm_read *rd, int32_t nrd, tm_err *err) {
  if (nup == 0 && nrd == 0) return TM_OK;
  int64_t began = tm_spans_now(st->env.spans);
  TM_TRY(state->exchange(state, up, nup, rd, nrd, err));
  if (began) tm_spans_add(st->env.spans, "variables", began);
  return TM_OK;
}

static tm_status step_levels(tm_step *st, tm_state *state, tm_err *err) {
  tm_update *up = NULL;
  tm_read *rd;
  int32_t nup = 0, nrd;
  bool done = false;
  while (!done) {
    TM_TRY(tm_step_reads(st, &rd, &nrd, err));
    TM_TRY(step_exchange(st, state, up, nup, rd, nrd, err));
    TM_TRY(tm_step_compute(st, state, &up, &nup, &done, err));
  }
  return step_exchange(st, state, up, nup, NULL, 0, err);
}

static tm_status step_borrow(tm_program *p, tm_step **out, tm_err *err) {
  *out = NULL;
  pthread_mutex_lock(&p->mu);
  for (int i = 0; i < TM_MAX_IDLE_STEPS && !*out; i++) {
    *out = p->idle[i];
    p->idle[i] = NULL;
  }
  pthread_mutex_unlock(&p->mu);
  return *out ? TM_OK : step_new(p, false, out, err);
}

static void step_return(tm_program *p, tm_step *st) {
  step_forget(st);
  pthread_mutex_lock(&p->mu);
  for (int i = 0; i < TM_MAX_IDLE_STEPS && st; i++) {
    if (p->idle[i]) continue;
    p->idle[i] = st;
    st = NULL;
  }
  pthread_mutex_unlock(&p->mu);
  tm_step_free(st);
}

tm_status tm_program_run(tm_program *p, const tm_arg_value *args, int32_t n,
                         tm_state *state, const tm_run_env *env, tm_tensor **outs,
                         tm_err *err) {
  tm_step *st;
  TM_TRY(step_borrow(p, &st, err));
  tm_status s = tm_step_begin(st, args, n, env, err);
  if (!s) s = tm_step_fetch(st, state, err);
  if (!s) s = step_levels(st, state, err);
  if (!s) s = tm_step_outputs(st, outs, err);
  step_return(p, st);
  return s;
}
