#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "graph/program.h"

/*
 * Design.  One walk in program order gives every node the earliest level it may have.
 *
 * READ r travels before level r is computed; UPDATEs of level u travel after it, with
 * READ u + 1.  So, for one variable (shards of it are not told apart):
 *
 *   (1) a READ has a level above every earlier UPDATE of its variable,
 *   (2) an UPDATE has at least the level of every earlier READ and UPDATE of it,
 *   (3) a READ whose ids are computed in level k has at least level k + 1; ids of the
 *       fetch stage are there before READ 0,
 *   (4) a control node that touches variables exchanges by itself while its level is
 *       computed: it lies above earlier UPDATEs of what it touches, and what comes
 *       after it is treated as after an UPDATE (if it updates) of its level,
 *   (5) nodes with an effect (print, assert, a conditional next) keep their order.
 *
 * The fetch stage takes iterator_next nodes that nothing conditional precedes, and of
 * the rest only what ids of READ 0 are computed from: other work can wait for its
 * turn, since it would delay the READ.
 */

struct var_level {
  int32_t read, update; /* highest level so far, -1: none */
};

struct placer {
  tm_program *p;
  tm_map *var;       /* uid -> struct var_level */
  bool *fetchable;   /* could run in the fetch stage */
  bool *needed;      /* ids of READ 0 come from it */
  int32_t effect;    /* level of the last node with an effect */
  bool next_blocked; /* a next that is not fetched came */
};

static struct var_level *place_var(struct placer *pl, uint64_t uid) {
  struct var_level *v = tm_map_get(pl->var, uid);
  if (v) return v;
  v = tm_malloc(sizeof *v);
  if (!v) return NULL;
  v->read = v->update = -1;
  if (!tm_map_put(pl->var, uid, v)) return v;
  tm_free(v, sizeof *v);
  return NULL;
}

static int32_t max32(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t place_inputs(const struct placer *pl, const tm_node *n) {
  int32_t level = -1;
  for (int32_t i = 0; i < n->nin; i++)
    level = max32(level, pl->p->level[n->in[i].node]);
  return level;
}

static bool place_inputs_fetchable(const struct placer *pl, const tm_node *n) {
  for (int32_t i = 0; i < n->nin; i++)
    if (!pl->fetchable[n->in[i].node]) return false;
  return true;
}

/* --- control nodes: what is inside --- */

struct inside {
  bool state, next, effect;
};

static tm_status inside_vars(struct placer *pl, const tm_graph *g, struct inside *in,
                             tm_status (*fn)(struct placer *, const tm_node *, void *),
                             void *ud) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    tm_node_kind kind = tm_node_kind_of(n);
    if (kind == TM_NODE_NEXT) in->next = in->state = true;
    if (kind == TM_NODE_PURE && (n->op->flags & TM_OP_STATEFUL)) in->effect = true;
    if (kind == TM_NODE_READ || kind == TM_NODE_UPDATE) {
      in->state = true;
      if (fn) TM_TRY(fn(pl, n, ud));
    }
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC)
        TM_TRY(inside_vars(pl, n->attrs.a[k].u.g, in, fn, ud));
  }
  return TM_OK;
}

static tm_status inside_raise(struct placer *pl, const tm_node *n, void *ud) {
  int32_t *level = ud;
  struct var_level *v = place_var(pl, tm_node_uid(n));
  if (!v) return TM_ENOMEM;
  *level = max32(*level, v->update + 1);
  if (tm_node_kind_of(n) == TM_NODE_UPDATE) *level = max32(*level, v->read);
  return TM_OK;
}

static tm_status inside_note(struct placer *pl, const tm_node *n, void *ud) {
  const int32_t *level = ud;
  struct var_level *v = place_var(pl, tm_node_uid(n));
  if (!v) return TM_ENOMEM;
  v->read = max32(v->read, *level);
  if (tm_node_kind_of(n) == TM_NODE_UPDATE) v->update = max32(v->update, *level);
  return TM_OK;
}

static tm_status inside_each(struct placer *pl, const tm_node *n, struct inside *in,
                             tm_status (*fn)(struct placer *, const tm_node *, void *),
                             int32_t *level) {
  for (int32_t k = 0; k < n->attrs.n; k++)
    if (n->attrs.a[k].kind == TM_ATTR_FUNC)
      TM_TRY(inside_vars(pl, n->attrs.a[k].u.g, in, fn, level));
  return TM_OK;
}

static tm_status place_control(struct placer *pl, const tm_node *n, int32_t *level) {
  struct inside in = {0};
  *level = max32(0, place_inputs(pl, n));
  TM_TRY(inside_each(pl, n, &in, inside_raise, level));
  if (in.effect || in.next) *level = max32(*level, pl->effect);
  TM_TRY(inside_each(pl, n, &in, inside_note, level));
  if (in.effect || in.next) pl->effect = *level;
  if (in.next) pl->next_blocked = true;
  if (in.state) pl->p->has_state = true;
  return TM_OK;
}

/* --- one node --- */

static tm_status place_read(struct placer *pl, int32_t i, int32_t *level) {
  const tm_node *n = &pl->p->g->node[i];
  struct var_level *v = place_var(pl, tm_node_uid(n));
  if (!v) return TM_ENOMEM;
  int32_t ids =
      n->nin && !place_inputs_fetchable(pl, n) ? max32(0, place_inputs(pl, n)) + 1 : 0;
  *level = max32(ids, v->update + 1);
  v->read = max32(v->read, *level);
  return TM_OK;
}

static tm_status place_update(struct placer *pl, int32_t i, int32_t *level) {
  const tm_node *n = &pl->p->g->node[i];
  struct var_level *v = place_var(pl, tm_node_uid(n));
  if (!v) return TM_ENOMEM;
  *level = max32(max32(0, place_inputs(pl, n)), max32(v->read, v->update));
  v->update = *level;
  return TM_OK;
}

static void place_next(struct placer *pl, int32_t i, int32_t *level) {
  const tm_node *n = &pl->p->g->node[i];
  if (!pl->next_blocked && place_inputs_fetchable(pl, n)) {
    pl->fetchable[i] = true;
    *level = -1;
    return;
  }
  pl->next_blocked = true;
  *level = max32(max32(0, place_inputs(pl, n)), pl->effect);
  pl->effect = *level;
}

static void place_pure(struct placer *pl, int32_t i, int32_t *level) {
  const tm_node *n = &pl->p->g->node[i];
  *level = max32(0, place_inputs(pl, n));
  if (n->op->flags & TM_OP_STATEFUL) {
    *level = max32(*level, pl->effect);
    pl->effect = *level;
    return;
  }
  pl->fetchable[i] = place_inputs_fetchable(pl, n);
}

static tm_status place_node(struct placer *pl, int32_t i) {
  int32_t *level = &pl->p->level[i];
  tm_node_kind kind = pl->p->kind[i];
  if (kind != TM_NODE_PURE && kind != TM_NODE_ARG && kind != TM_NODE_CONST &&
      kind != TM_NODE_COND && kind != TM_NODE_WHILE)
    pl->p->has_state = true;
  switch (kind) {
    case TM_NODE_ARG:
    case TM_NODE_CONST:
      *level = -1;
      pl->fetchable[i] = true;
      return TM_OK;
    case TM_NODE_READ:
      return place_read(pl, i, level);
    case TM_NODE_UPDATE:
      return place_update(pl, i, level);
    case TM_NODE_NEXT:
      place_next(pl, i, level);
      return TM_OK;
    case TM_NODE_COND:
    case TM_NODE_WHILE:
      return place_control(pl, &pl->p->g->node[i], level);
    case TM_NODE_PURE:
      break;
  }
  place_pure(pl, i, level);
  return TM_OK;
}

/* --- the fetch stage: ancestors of the ids of READ 0 --- */

static void place_fetch(struct placer *pl) {
  tm_program *p = pl->p;
  for (int32_t i = p->g->nnode - 1; i >= 0; i--) {
    const tm_node *n = &p->g->node[i];
    bool read0 = p->kind[i] == TM_NODE_READ && p->level[i] == 0;
    if (!read0 && !pl->needed[i]) continue;
    for (int32_t k = 0; k < n->nin; k++) pl->needed[n->in[k].node] = true;
    if (pl->needed[i] && p->kind[i] == TM_NODE_PURE) p->level[i] = -1;
  }
}

/* --- the order --- */

static int place_rank(const tm_program *p, int32_t i) {
  return p->kind[i] == TM_NODE_READ ? 0 : p->kind[i] == TM_NODE_UPDATE ? 2 : 1;
}

static bool place_runs(const tm_program *p, int32_t i) {
  if (p->kind[i] == TM_NODE_ARG || p->kind[i] == TM_NODE_CONST) return false;
  return !(p->kind[i] == TM_NODE_NEXT && p->level[i] < 0);
}

/* A counting sort by (level, rank), stable in program order. */
static tm_status place_order(tm_program *p) {
  size_t nslot = (size_t)(p->nlevel + 1) * 3 + 1;
  int32_t *at = tm_calloc(nslot, sizeof *at);
  if (!at) return TM_ENOMEM;
  for (int32_t i = 0; i < p->g->nnode; i++)
    if (place_runs(p, i)) at[(p->level[i] + 1) * 3 + place_rank(p, i) + 1]++;
  for (size_t s = 1; s < nslot; s++) at[s] += at[s - 1];
  p->norder = at[nslot - 1];
  for (int32_t l = 0; l <= p->nlevel; l++)
    p->at[l] = (tm_level){at[l * 3], at[l * 3 + 1], at[l * 3 + 2], at[l * 3 + 3]};
  for (int32_t i = 0; i < p->g->nnode; i++) {
    if (place_runs(p, i)) p->order[at[(p->level[i] + 1) * 3 + place_rank(p, i)]++] = i;
    if (p->kind[i] == TM_NODE_NEXT && p->level[i] < 0) p->next[p->nnext++] = i;
  }
  tm_free(at, nslot * sizeof *at);
  return TM_OK;
}

static tm_status place_all(struct placer *pl) {
  tm_program *p = pl->p;
  int32_t n = p->g->nnode;
  for (int32_t i = 0; i < n; i++) TM_TRY(place_node(pl, i));
  place_fetch(pl);
  for (int32_t i = 0; i < n; i++) p->nlevel = max32(p->nlevel, p->level[i] + 1);
  p->nlevel = max32(p->nlevel, 1);
  p->at = tm_calloc((size_t)p->nlevel + 1, sizeof *p->at);
  if (!p->at) return TM_ENOMEM;
  return place_order(p);
}

static void place_free_vars(tm_map *m) {
  size_t pos = 0;
  void *v;
  while (m && tm_map_next(m, &pos, NULL, NULL, NULL, &v))
    tm_free(v, sizeof(struct var_level));
  tm_map_free(m);
}

tm_status tm_program_place(tm_program *p) {
  size_t n = (size_t)p->g->nnode + 1;
  struct placer pl = {.p = p};
  pl.fetchable = tm_calloc(n, sizeof *pl.fetchable);
  pl.needed = tm_calloc(n, sizeof *pl.needed);
  tm_status s = pl.fetchable && pl.needed ? tm_map_new(&pl.var) : TM_ENOMEM;
  if (!s) s = place_all(&pl);
  place_free_vars(pl.var);
  tm_free(pl.fetchable, n * sizeof *pl.fetchable);
  tm_free(pl.needed, n * sizeof *pl.needed);
  return s;
}
