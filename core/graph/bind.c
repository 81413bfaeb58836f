#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/run.h"
#include "graph/step.h"

/*
 * Design.  Kernels are called through tm_kctx structs that were filled once, when a
 * plan was bound to this step: shapes, addresses in the arena, attributes.  A run only
 * writes the addresses of what is a tensor (arguments, batch, dense reads, results)
 * into the views that show it.
 *
 * Invariants:
 *   (1) Views of ARENA values point into st->arena as long as bound->arena says so;
 *       when the arena has moved they are written again.
 *   (2) own[v] keeps the tensor alive that views of v point into, to the next begin.
 */

void tm_step_unbind(tm_bound *b) {
  tm_plan *pl = b->plan;
  if (!pl) return;
  tm_free(b->view, ((size_t)pl->nview + 1) * sizeof *b->view);
  tm_free(b->call, ((size_t)pl->ncall + 1) * sizeof *b->call);
  tm_free(b->made, ((size_t)pl->nview + 1) * sizeof *b->made);
  tm_plan_unref(pl);
  memset(b, 0, sizeof *b);
}

/* --- the key: shapes of arguments and batch --- */

static tm_status bind_key_add(tm_step *st, int32_t *n, const tm_view *v) {
  int32_t need = *n + 1 + v->shape.rank;
  if (need > st->key_room) {
    int32_t room = need * 2;
    int64_t *p =
        tm_realloc(st->key, (size_t)st->key_room * sizeof *p, (size_t)room * sizeof *p);
    if (!p) return TM_ENOMEM;
    st->key = p;
    st->key_room = room;
  }
  st->key[(*n)++] = v->shape.rank;
  for (int32_t d = 0; d < v->shape.rank; d++) st->key[(*n)++] = v->shape.dim[d];
  return TM_OK;
}

static tm_status bind_key(tm_step *st, int32_t *n) {
  const tm_program *p = st->p;
  *n = 0;
  for (int32_t i = 0; i < p->g->narg; i++) {
    const tm_tensor *t = st->own[p->first[p->g->arg[i].node]];
    if (t) TM_TRY(bind_key_add(st, n, &t->v));
  }
  for (int32_t i = 0; i < p->nnext; i++)
    for (int32_t v = p->first[p->next[i]]; v < p->first[p->next[i] + 1]; v++)
      TM_TRY(bind_key_add(st, n, &st->own[v]->v));
  return TM_OK;
}

/* --- laying out --- */

static void bind_calls(tm_step *st, tm_bound *b) {
  const tm_plan *pl = b->plan;
  for (int32_t o = 0; o < pl->norder; o++) {
    const tm_item *it = &pl->item[o];
    if (it->mode != TM_RUN_KERNEL && it->mode != TM_RUN_MAKE) continue;
    const tm_node *n = &st->p->g->node[st->p->order[o]];
    tm_kctx *k = &b->call[it->call];
    k->op = n->op;
    k->nin = n->nin;
    k->nout = n->nout;
    k->in = b->view + it->view;
    k->out = b->view + it->view + n->nin;
    k->made = b->made + it->view + n->nin;
    k->attrs = &n->attrs;
    k->place = n->place;
    k->env = &st->env;
  }
}

static void bind_types(tm_bound *b) {
  const tm_plan *pl = b->plan;
  for (int32_t i = 0; i < pl->nview; i++) {
    const tm_type *t = &pl->val[pl->view_val[i]].type;
    b->view[i].dtype = t->dtype;
    b->view[i].shape = t->shape;
  }
}

static tm_status bind_alloc(tm_bound *b) {
  const tm_plan *pl = b->plan;
  b->view = tm_calloc((size_t)pl->nview + 1, sizeof *b->view);
  b->call = tm_calloc((size_t)pl->ncall + 1, sizeof *b->call);
  b->made = tm_calloc((size_t)pl->nview + 1, sizeof *b->made);
  return b->view && b->call && b->made ? TM_OK : TM_ENOMEM;
}

static void bind_constants(tm_step *st, tm_bound *b) {
  const tm_program *p = st->p;
  for (int32_t i = 0; i < p->g->nnode; i++) {
    if (p->kind[i] != TM_NODE_CONST) continue;
    int32_t v = p->first[i];
    void *data = p->g->node[i].attrs.a[0].u.t->v.data;
    for (int32_t u = b->plan->user_at[v]; u < b->plan->user_at[v + 1]; u++)
      b->view[b->plan->user[u]].data = data;
  }
}

static void bind_scratch(tm_bound *b, const tm_run_env *env) {
  b->threads = env->threads;
  b->scratch_bytes = 0;
  for (int32_t i = 0; i < b->plan->ncall; i++) {
    tm_kctx *k = &b->call[i];
    k->scratch_bytes = k->op->scratch ? k->op->scratch(k) : 0;
    if (k->scratch_bytes > b->scratch_bytes) b->scratch_bytes = k->scratch_bytes;
  }
  b->scratch = NULL;
}

/* Arena and scratch memory grow to what this plan needs. */
static tm_status bind_grow(uint8_t **p, size_t *have, size_t need) {
  if (need <= *have) return TM_OK;
  uint8_t *q = tm_malloc_aligned(need);
  if (!q) return TM_ENOMEM;
  if (*have) tm_free_aligned(*p, *have);
  *p = q;
  *have = need;
  return TM_OK;
}

static void bind_addresses(tm_step *st, tm_bound *b) {
  const tm_plan *pl = b->plan;
  if (b->arena != st->arena) {
    for (int32_t i = 0; i < pl->nview; i++) {
      const tm_val *v = &pl->val[pl->view_val[i]];
      if (v->kind == TM_VAL_ARENA)
        b->view[i].data = st->arena + pl->val[v->root].offset;
    }
    b->arena = st->arena;
  }
  if (b->scratch != st->scratch) {
    for (int32_t i = 0; i < pl->ncall; i++)
      if (b->call[i].scratch_bytes) b->call[i].scratch = st->scratch;
    b->scratch = st->scratch;
  }
}

static tm_status bind_new(tm_step *st, tm_plan *pl, tm_bound **out) {
  tm_bound *last = &st->bound[TM_MAX_PLANS - 1];
  tm_step_unbind(last);
  memmove(st->bound + 1, st->bound, (TM_MAX_PLANS - 1) * sizeof *st->bound);
  tm_bound *b = *out = &st->bound[0];
  memset(b, 0, sizeof *b);
  b->plan = pl;
  tm_status s = bind_alloc(b);
  if (s) {
    tm_step_unbind(b);
    return s;
  }
  bind_types(b);
  bind_calls(st, b);
  bind_constants(st, b);
  bind_scratch(b, &st->env);
  return TM_OK;
}

static tm_bound *bind_find(tm_step *st, const int64_t *key, int32_t n) {
  for (int i = 0; i < TM_MAX_PLANS && st->bound[i].plan; i++) {
    const tm_plan *pl = st->bound[i].plan;
    if (tm_plan_is(pl, key, n)) return &st->bound[i];
  }
  return NULL;
}

/* Arguments and batch into their views. */
static void bind_inputs(tm_step *st) {
  for (int32_t v = 0; v < st->p->nval; v++) {
    if (!st->own[v]) continue;
    tm_tensor *t = st->own[v];
    st->own[v] = NULL;
    tm_step_set(st, v, t);
  }
}

tm_status tm_step_bind(tm_step *st, tm_err *err) {
  int32_t n;
  if (bind_key(st, &n)) return tm_nomem(err, "a step");
  tm_bound *b = st->now && st->now->plan && bind_find(st, st->key, n) == st->now
                    ? st->now
                    : bind_find(st, st->key, n);
  if (!b) {
    tm_plan *pl;
    TM_TRY(tm_plan_get(st->p, st->key, n, &pl, err));
    if (bind_new(st, pl, &b)) return tm_nomem(err, "a step");
  }
  if (b->threads != st->env.threads) bind_scratch(b, &st->env);
  if (bind_grow(&st->arena, &st->arena_bytes, b->plan->arena_bytes) ||
      bind_grow(&st->scratch, &st->scratch_bytes, b->scratch_bytes))
    return tm_nomem(err, "a step");
  bind_addresses(st, b);
  st->now = b;
  bind_inputs(st);
  return TM_OK;
}

/* --- values while running --- */

void tm_step_set(tm_step *st, int32_t v, tm_tensor *t) {
  tm_bound *b = st->now;
  const tm_plan *pl = b->plan;
  if (st->own[v]) tm_tensor_unref(st->own[v]);
  st->own[v] = t;
  if (pl->val[v].kind == TM_VAL_DYN) {
    b->view[v] = t->v;
    return;
  }
  for (int32_t u = pl->user_at[v]; u < pl->user_at[v + 1]; u++)
    b->view[pl->user[u]].data = t->v.data;
}

tm_status tm_step_make(tm_step *st, int32_t v, const tm_type *type, tm_err *err) {
  tm_tensor *t;
  TM_TRY(tm_tensor_new(type->dtype, &type->shape, &t, err));
  tm_step_set(st, v, t);
  return TM_OK;
}

/* The tensor behind a root. */
static tm_tensor *step_root(const tm_step *st, int32_t root) {
  if (st->own[root]) return st->own[root];
  const tm_program *p = st->p;
  int32_t lo = 0, hi = p->g->nnode - 1; /* the node that has this value */
  while (lo < hi) {
    int32_t mid = (lo + hi + 1) / 2;
    if (p->first[mid] <= root)
      lo = mid;
    else
      hi = mid - 1;
  }
  return p->kind[lo] == TM_NODE_CONST ? p->g->node[lo].attrs.a[0].u.t : NULL;
}

tm_status tm_step_tensor(tm_step *st, int32_t v, tm_tensor **out, tm_err *err) {
  const tm_view *view = &st->now->view[v];
  tm_tensor *t = step_root(st, st->now->plan->val[v].root);
  if (!t) return tm_fail(err, TM_EINTERNAL, "a value was not computed");
  /* Moved strings point into tensors that go at the next begin. */
  if (view->dtype == TM_STRING) return tm_tensor_copy(view, out, err);
  if (tm_shape_equal(&t->v.shape, &view->shape)) {
    *out = tm_tensor_ref(t);
    return TM_OK;
  }
  if (tm_tensor_over(t->storage, view->dtype, &view->shape, view->data, out))
    return tm_nomem(err, "a result");
  return TM_OK;
}
