#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/program.h"

/*
 * Design.  For concrete shapes of arguments and batch, infer every node, give each
 * value a root (the value whose memory it is), find how long roots live, and place
 * those that need not outlive the step in one arena, first fit.
 *
 * Positions are indexes into the program's order; all READs of a level share the first
 * one's, since they travel together.  Operands of UPDATEs live to the end of the step:
 * they are sent after it (PLAN_END).
 *
 * Invariants:
 *   (1) Two ARENA roots whose lives overlap do not overlap in memory.
 *   (2) A root is ARENA only if a kernel or a row READ fills it; what escapes (results,
 *       inputs of control nodes) is a TENSOR, since somebody else may hold it.
 *   (3) A node runs in place only on memory that nobody reads afterwards.
 *   (4) A value of unknown shape (DYN) makes every node that uses it DYN too.
 *
 * A later pass that fuses elementwise chains would run before plan_places and give its
 * inner values no root.
 */
enum { PLAN_END = INT32_MAX, PLAN_ALIGN = 64 };

struct planner {
  const tm_program *p;
  tm_plan *pl;
  int32_t *pos;  /* node -> position, -1: before everything */
  int32_t *last; /* value -> last use */
  bool *keep;    /* value -> escapes */
  bool *filled;  /* value -> a kernel or row READ fills it in place */
  const int64_t *key;
  int32_t nkey, at;
  tm_err *err;
};

static tm_val *plan_in(const struct planner *b, const tm_node *n, int32_t i) {
  return &b->pl->val[b->p->first[n->in[i].node] + n->in[i].out];
}

/* --- uses --- */

static void plan_positions(struct planner *b) {
  const tm_program *p = b->p;
  for (int32_t i = 0; i < p->g->nnode; i++) b->pos[i] = -1;
  for (int32_t l = 0; l <= p->nlevel; l++)
    for (int32_t o = p->at[l].read; o < p->at[l].end; o++)
      b->pos[p->order[o]] = o < p->at[l].run ? p->at[l].read : o;
}

static void plan_uses(struct planner *b) {
  const tm_program *p = b->p;
  for (int32_t v = 0; v < p->nval; v++) b->last[v] = -1;
  for (int32_t i = 0; i < p->g->nnode; i++) {
    const tm_node *n = &p->g->node[i];
    bool control = p->kind[i] == TM_NODE_COND || p->kind[i] == TM_NODE_WHILE;
    int32_t pos = p->kind[i] == TM_NODE_UPDATE ? PLAN_END : b->pos[i];
    for (int32_t k = 0; k < n->nin; k++) {
      int32_t v = p->first[n->in[k].node] + n->in[k].out;
      if (pos > b->last[v]) b->last[v] = pos;
      if (control) b->keep[v] = true;
    }
  }
  for (int32_t i = 0; i < p->g->nout; i++) {
    int32_t v = p->first[p->g->out[i].node] + p->g->out[i].out;
    b->last[v] = PLAN_END;
    b->keep[v] = true;
  }
}

/* --- types --- */

/* The next shape of the key. */
static void plan_key_shape(struct planner *b, tm_shape *s) {
  s->rank = (int32_t)b->key[b->at++];
  for (int32_t d = 0; d < s->rank; d++) s->dim[d] = b->key[b->at++];
}

static void plan_external(struct planner *b, int32_t node) {
  const tm_node *n = &b->p->g->node[node];
  for (int32_t k = 0; k < n->nout; k++) {
    tm_val *v = &b->pl->val[b->p->first[node] + k];
    v->type = n->out[k];
    v->kind = v->type.dtype ? TM_VAL_TENSOR : TM_VAL_NONE;
    if (v->type.dtype) plan_key_shape(b, &v->type.shape);
  }
}

/* Types of a node's outputs; false: some input or output has no known shape. */
static tm_status plan_infer(struct planner *b, int32_t node, tm_type *out,
                            bool *known) {
  const tm_node *n = &b->p->g->node[node];
  tm_type in[TM_MAX_LIST];
  int32_t nout;
  *known = true;
  for (int32_t k = 0; k < n->nin; k++) {
    const tm_val *v = plan_in(b, n, k);
    in[k] = v->type;
    if (v->kind == TM_VAL_DYN) *known = false;
  }
  memcpy(out, n->out, (size_t)n->nout * sizeof *out);
  if (!*known) return TM_OK;
  TM_TRY(tm_op_infer(n->op, in, n->nin, &n->attrs, out, &nout, b->err));
  if (nout != n->nout)
    return tm_fail(b->err, TM_EINTERNAL, "%s gave %d outputs while planning",
                   n->op->name, (int)nout);
  for (int32_t k = 0; k < nout; k++)
    if (!tm_shape_known(&out[k].shape)) *known = false;
  return TM_OK;
}

static tm_run_mode plan_mode(const tm_node *n, tm_node_kind kind, bool known) {
  switch (kind) {
    case TM_NODE_COND:
    case TM_NODE_WHILE:
      return TM_RUN_CONTROL;
    case TM_NODE_NEXT:
      return TM_RUN_NEXT;
    case TM_NODE_PURE:
      if (!known) return TM_RUN_DYN;
      if (n->op->flags & TM_OP_VIEW) return TM_RUN_NOTHING;
      return n->op->flags & TM_OP_DYNAMIC ? TM_RUN_MAKE : TM_RUN_KERNEL;
    default:
      return TM_RUN_NOTHING;
  }
}

/* --- roots --- */

static void plan_join(struct planner *b, int32_t v, int32_t root) {
  tm_val *val = b->pl->val;
  val[v].root = root;
  if (b->last[v] > val[root].last) val[root].last = b->last[v];
  val[root].escape = val[root].escape || b->keep[v];
}

/* An input that output 0 may overwrite: of the same type, last used here, and its
 * memory was filled by this step.  -1: none. */
static int32_t plan_inplace(const struct planner *b, const tm_node *n, int32_t pos,
                            const tm_type *out) {
  if (!(n->op->flags & TM_OP_INPLACE)) return -1;
  for (int32_t k = 0; k < n->nin; k++) {
    const tm_val *in = plan_in(b, n, k), *root = &b->pl->val[in->root];
    if (in->kind != TM_VAL_TENSOR || !b->filled[in->root]) continue;
    if (in->type.dtype != out->dtype || !tm_shape_equal(&in->type.shape, &out->shape))
      continue;
    if (root->last == pos && !root->escape) return in->root;
  }
  return -1;
}

static void plan_roots(struct planner *b, int32_t node, const tm_type *out, bool known,
                       tm_run_mode mode) {
  const tm_node *n = &b->p->g->node[node];
  bool rows = b->p->kind[node] == TM_NODE_READ && n->nin > 0;
  for (int32_t k = 0; k < n->nout; k++) {
    int32_t v = b->p->first[node] + k;
    tm_val *val = &b->pl->val[v];
    bool shape = known && tm_shape_known(&out[k].shape);
    val->type = out[k];
    val->kind = shape ? TM_VAL_TENSOR : TM_VAL_DYN;
    val->last = b->last[v];
    val->escape = b->keep[v];
    b->filled[v] = known && (mode == TM_RUN_KERNEL || rows);
    int32_t root = -1;
    bool view = mode == TM_RUN_NOTHING && (n->op->flags & TM_OP_VIEW);
    if (view) root = plan_in(b, n, 0)->root;
    if (mode == TM_RUN_KERNEL && k == 0)
      root = plan_inplace(b, n, b->pos[node], &out[0]);
    if (root >= 0) plan_join(b, v, root);
  }
}

static tm_status plan_node(struct planner *b, int32_t node) {
  tm_type out[TM_MAX_OUTPUTS];
  bool known;
  tm_node_kind kind = b->p->kind[node];
  if (kind == TM_NODE_ARG || kind == TM_NODE_CONST) return TM_OK;
  if (kind == TM_NODE_NEXT && b->p->level[node] < 0) return TM_OK;
  TM_TRY(plan_infer(b, node, out, &known));
  tm_run_mode mode = plan_mode(&b->p->g->node[node], kind, known);
  /* A next or a branch promises only what the graph says of it. */
  if (mode == TM_RUN_NEXT || mode == TM_RUN_CONTROL) known = true;
  plan_roots(b, node, out, known, mode);
  tm_item *it = &b->pl->item[b->pos[node]];
  if (kind == TM_NODE_READ || kind == TM_NODE_UPDATE) return TM_OK; /* no item */
  it->mode = mode;
  return TM_OK;
}

static void plan_constants(struct planner *b) {
  const tm_graph *g = b->p->g;
  for (int32_t v = 0; v < b->p->nval; v++) b->pl->val[v].root = v;
  for (int32_t i = 0; i < g->narg; i++) plan_external(b, g->arg[i].node);
  for (int32_t i = 0; i < b->p->nnext; i++) plan_external(b, b->p->next[i]);
  for (int32_t i = 0; i < g->nnode; i++) {
    if (b->p->kind[i] != TM_NODE_CONST) continue;
    tm_val *v = &b->pl->val[b->p->first[i]];
    v->type = g->node[i].out[0];
    v->kind = TM_VAL_TENSOR;
  }
}

/* Nodes in the order in which they run, so that liveness is right for moved ones. */
static tm_status plan_types(struct planner *b) {
  plan_constants(b);
  for (int32_t o = 0; o < b->p->norder; o++) TM_TRY(plan_node(b, b->p->order[o]));
  for (int32_t v = 0; v < b->p->nval; v++) {
    tm_val *val = &b->pl->val[v];
    if (val->root == v && b->filled[v] && val->kind == TM_VAL_TENSOR && !val->escape)
      val->kind = TM_VAL_ARENA;
  }
  for (int32_t v = 0; v < b->p->nval; v++) {
    tm_val *val = &b->pl->val[v];
    if (val->root != v && val->kind != TM_VAL_DYN)
      val->kind = b->pl->val[val->root].kind;
  }
  return TM_OK;
}

/* --- places --- */

struct live {
  size_t offset, end;
  int32_t last;
};

struct places {
  struct live *v; /* sorted by offset */
  int32_t n;
};

static void places_expire(struct places *pc, int32_t pos) {
  int32_t k = 0;
  for (int32_t i = 0; i < pc->n; i++)
    if (pc->v[i].last >= pos) pc->v[k++] = pc->v[i];
  pc->n = k;
}

static size_t places_put(struct places *pc, size_t size, int32_t last) {
  size_t at = 0;
  int32_t i = 0;
  for (; i < pc->n; i++) {
    if (pc->v[i].offset >= at + size) break;
    at = pc->v[i].end;
  }
  memmove(pc->v + i + 1, pc->v + i, (size_t)(pc->n - i) * sizeof *pc->v);
  pc->v[i] = (struct live){at, at + size, last};
  pc->n++;
  return at;
}

static size_t plan_bytes(const tm_type *t) {
  size_t n = (size_t)tm_shape_count(&t->shape) * tm_dtype_size(t->dtype);
  return (n + PLAN_ALIGN - 1) / PLAN_ALIGN * PLAN_ALIGN;
}

static void plan_place_node(struct planner *b, struct places *pc, int32_t node) {
  const tm_node *n = &b->p->g->node[node];
  places_expire(pc, b->pos[node]);
  for (int32_t k = 0; k < n->nout; k++) {
    int32_t v = b->p->first[node] + k;
    tm_val *val = &b->pl->val[v];
    if (val->root != v || val->kind != TM_VAL_ARENA) continue;
    size_t size = plan_bytes(&val->type);
    if (size == 0) continue;
    int32_t last = val->last > b->pos[node] ? val->last : b->pos[node];
    val->offset = places_put(pc, size, last);
    if (val->offset + size > b->pl->arena_bytes)
      b->pl->arena_bytes = val->offset + size;
  }
}

static tm_status plan_places(struct planner *b) {
  struct places pc = {0};
  size_t bytes = ((size_t)b->p->nval + 1) * sizeof *pc.v;
  pc.v = tm_malloc(bytes);
  if (!pc.v) return TM_ENOMEM;
  for (int32_t o = 0; o < b->p->norder; o++) plan_place_node(b, &pc, b->p->order[o]);
  tm_free(pc.v, bytes);
  return TM_OK;
}

/* --- views and who uses a tensor --- */

static void plan_calls(struct planner *b) {
  tm_plan *pl = b->pl;
  pl->nview = b->p->nval;
  for (int32_t o = 0; o < b->p->norder; o++) {
    tm_item *it = &pl->item[o];
    if (it->mode != TM_RUN_KERNEL && it->mode != TM_RUN_MAKE) continue;
    int32_t node = b->p->order[o];
    const tm_node *n = &b->p->g->node[node];
    it->call = pl->ncall++;
    it->view = pl->nview;
    pl->nview += n->nin + n->nout;
    for (int32_t k = 0; k < n->nout; k++) {
      int32_t v = b->p->first[node] + k;
      if (it->mode == TM_RUN_KERNEL && pl->val[v].root == v && pl->val[v].escape)
        it->own = true;
    }
  }
}

static void plan_view_values(struct planner *b) {
  tm_plan *pl = b->pl;
  for (int32_t v = 0; v < b->p->nval; v++) pl->view_val[v] = v;
  for (int32_t o = 0; o < b->p->norder; o++) {
    const tm_item *it = &pl->item[o];
    if (it->mode != TM_RUN_KERNEL && it->mode != TM_RUN_MAKE) continue;
    int32_t node = b->p->order[o], at = it->view;
    const tm_node *n = &b->p->g->node[node];
    for (int32_t k = 0; k < n->nin; k++)
      pl->view_val[at++] = b->p->first[n->in[k].node] + n->in[k].out;
    for (int32_t k = 0; k < n->nout; k++) pl->view_val[at++] = b->p->first[node] + k;
  }
}

/* Views of each TENSOR root, by counting. */
static void plan_users(tm_plan *pl) {
  for (int32_t i = 0; i < pl->nview; i++) {
    const tm_val *v = &pl->val[pl->view_val[i]];
    if (v->kind == TM_VAL_TENSOR) pl->user_at[v->root + 1]++;
  }
  for (int32_t v = 0; v < pl->nval; v++) pl->user_at[v + 1] += pl->user_at[v];
  for (int32_t i = pl->nview - 1; i >= 0; i--) {
    const tm_val *v = &pl->val[pl->view_val[i]];
    if (v->kind == TM_VAL_TENSOR) pl->user[--pl->user_at[v->root + 1]] = i;
  }
  for (int32_t v = 0; v < pl->nval; v++) pl->user_at[v] = pl->user_at[v + 1];
  pl->user_at[pl->nval] = 0;
  for (int32_t i = 0; i < pl->nview; i++)
    if (pl->val[pl->view_val[i]].kind == TM_VAL_TENSOR) pl->user_at[pl->nval]++;
}

static tm_status plan_views(struct planner *b) {
  tm_plan *pl = b->pl;
  plan_calls(b);
  size_t n = (size_t)pl->nview + 1;
  pl->view_val = tm_calloc(n, sizeof *pl->view_val);
  pl->user = tm_calloc(n, sizeof *pl->user);
  pl->user_at = tm_calloc((size_t)pl->nval + 1, sizeof *pl->user_at);
  if (!pl->view_val || !pl->user || !pl->user_at) return TM_ENOMEM;
  plan_view_values(b);
  plan_users(pl);
  return TM_OK;
}

/* --- dense READs to let go --- */

/* The level (at[] index) after which a dense READ is not needed, -1: to the end. */
static int32_t plan_drop_level(const struct planner *b, int32_t node) {
  const tm_program *p = b->p;
  int32_t v = p->first[node];
  const tm_val *val = &b->pl->val[v];
  if (p->kind[node] != TM_NODE_READ || p->g->node[node].nin > 0) return -1;
  if (val->escape || val->last == PLAN_END) return -1;
  if (val->type.dtype == TM_STRING) return -1; /* others may point into its bytes */
  int32_t l = p->level[node] + 1;
  while (val->last >= p->at[l].end) l++;
  return l;
}

static tm_status plan_drops(struct planner *b) {
  tm_plan *pl = b->pl;
  size_t nl = (size_t)b->p->nlevel + 2;
  pl->nlevel = b->p->nlevel;
  pl->drop_at = tm_calloc(nl, sizeof *pl->drop_at);
  pl->drop = tm_calloc((size_t)pl->nval + 1, sizeof *pl->drop);
  if (!pl->drop_at || !pl->drop) return TM_ENOMEM;
  for (int32_t l = 0, n = 0; l <= pl->nlevel; l++) {
    pl->drop_at[l] = n;
    for (int32_t o = 0; o < b->p->norder; o++)
      if (plan_drop_level(b, b->p->order[o]) == l)
        pl->drop[n++] = b->p->first[b->p->order[o]];
    pl->drop_at[l + 1] = n;
  }
  return TM_OK;
}

/* --- making and keeping plans --- */

static tm_status plan_build(struct planner *b) {
  size_t n = (size_t)b->p->nval + 1;
  b->pos = tm_calloc((size_t)b->p->g->nnode + 1, sizeof *b->pos);
  b->last = tm_calloc(n, sizeof *b->last);
  b->keep = tm_calloc(n, sizeof *b->keep);
  b->filled = tm_calloc(n, sizeof *b->filled);
  if (!b->pos || !b->last || !b->keep || !b->filled) return TM_ENOMEM;
  plan_positions(b);
  plan_uses(b);
  TM_TRY(plan_types(b));
  TM_TRY(plan_places(b));
  TM_TRY(plan_drops(b));
  return plan_views(b);
}

static tm_status plan_alloc(const tm_program *p, const int64_t *key, int32_t nkey,
                            tm_plan **out) {
  tm_plan *pl = *out = tm_calloc(1, sizeof *pl);
  if (!pl) return TM_ENOMEM;
  atomic_init(&pl->refs, 1);
  pl->nkey = nkey;
  pl->nval = p->nval;
  pl->norder = p->norder;
  pl->key = tm_calloc((size_t)nkey + 1, sizeof *pl->key);
  pl->val = tm_calloc((size_t)p->nval + 1, sizeof *pl->val);
  pl->item = tm_calloc((size_t)p->norder + 1, sizeof *pl->item);
  if (!pl->key || !pl->val || !pl->item) return TM_ENOMEM;
  if (nkey) memcpy(pl->key, key, (size_t)nkey * sizeof *key);
  return TM_OK;
}

static tm_status plan_new(tm_program *p, const int64_t *key, int32_t nkey,
                          tm_plan **out, tm_err *err) {
  struct planner b = {.p = p, .key = key, .nkey = nkey, .err = err};
  size_t n = (size_t)p->nval + 1;
  tm_status s = plan_alloc(p, key, nkey, out);
  b.pl = *out;
  if (!s) s = plan_build(&b);
  tm_free(b.pos, ((size_t)p->g->nnode + 1) * sizeof *b.pos);
  tm_free(b.last, n * sizeof *b.last);
  tm_free(b.keep, n * sizeof *b.keep);
  tm_free(b.filled, n * sizeof *b.filled);
  if (!s) return TM_OK;
  tm_plan_unref(*out);
  *out = NULL;
  return s == TM_ENOMEM ? tm_nomem(err, "a plan") : s;
}

void tm_plan_unref(tm_plan *pl) {
  if (!pl || atomic_fetch_sub_explicit(&pl->refs, 1, memory_order_acq_rel) != 1) return;
  size_t n = (size_t)pl->nview + 1;
  tm_free(pl->key, ((size_t)pl->nkey + 1) * sizeof *pl->key);
  tm_free(pl->val, ((size_t)pl->nval + 1) * sizeof *pl->val);
  tm_free(pl->item, ((size_t)pl->norder + 1) * sizeof *pl->item);
  tm_free(pl->view_val, n * sizeof *pl->view_val);
  tm_free(pl->user, n * sizeof *pl->user);
  tm_free(pl->user_at, ((size_t)pl->nval + 1) * sizeof *pl->user_at);
  tm_free(pl->drop_at, ((size_t)pl->nlevel + 2) * sizeof *pl->drop_at);
  tm_free(pl->drop, ((size_t)pl->nval + 1) * sizeof *pl->drop);
  tm_free(pl, sizeof *pl);
}

bool tm_plan_is(const tm_plan *pl, const int64_t *key, int32_t nkey) {
  if (pl->nkey != nkey) return false;
  return nkey == 0 || memcmp(pl->key, key, (size_t)nkey * sizeof *key) == 0;
}

/* The plan for a key, moved to the front; NULL: none.  mu is held. */
static tm_plan *plan_find(tm_program *p, const int64_t *key, int32_t nkey) {
  for (int i = 0; i < TM_MAX_PLANS && p->plan[i]; i++) {
    tm_plan *pl = p->plan[i];
    if (!tm_plan_is(pl, key, nkey)) continue;
    memmove(p->plan + 1, p->plan, (size_t)i * sizeof *p->plan);
    p->plan[0] = pl;
    atomic_fetch_add_explicit(&pl->refs, 1, memory_order_relaxed);
    return pl;
  }
  return NULL;
}

tm_status tm_plan_get(tm_program *p, const int64_t *key, int32_t nkey, tm_plan **out,
                      tm_err *err) {
  pthread_mutex_lock(&p->mu);
  *out = plan_find(p, key, nkey);
  pthread_mutex_unlock(&p->mu);
  if (*out) return TM_OK;
  TM_TRY(plan_new(p, key, nkey, out, err));
  atomic_fetch_add_explicit(&(*out)->refs, 1, memory_order_relaxed); /* the cache's */
  pthread_mutex_lock(&p->mu);
  tm_plan *old = p->plan[TM_MAX_PLANS - 1];
  memmove(p->plan + 1, p->plan, (TM_MAX_PLANS - 1) * sizeof *p->plan);
  p->plan[0] = *out;
  pthread_mutex_unlock(&p->mu);
  tm_plan_unref(old);
  return TM_OK;
}
