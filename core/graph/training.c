#include "graph/training.h"

#include <string.h>

#include "base/mem.h"
#include "graph/nodes.h"

/*
 * Design.  One walk in program order keeps a list of what waits for the end of the
 * round: shards that a rule was applied to, or that count once a round.  Whatever
 * touches one of these later is in vain.
 *
 * Invariant: of the branches of one condition only one runs, so a branch does not see
 * what its siblings [hide, end) added.
 */
typedef struct training_shard {
  uint64_t uid;
  int32_t shard; /* -1: all */
  bool applied;  /* a rule; else it counts once a round */
} training_shard;

typedef struct training_list {
  const char *name;
  training_shard *a;
  int32_t n, max, hide, end;
} training_list;

static bool training_applies(const tm_node *n) {
  return strncmp(n->op->name, "apply_optimizer", 15) == 0;
}

bool tm_graph_trains(const tm_graph *g) {
  for (int32_t i = 0; i < g->nnode; i++) {
    const tm_node *n = &g->node[i];
    if (training_applies(n)) return true;
    for (int32_t k = 0; k < n->attrs.n; k++)
      if (n->attrs.a[k].kind == TM_ATTR_FUNC && tm_graph_trains(n->attrs.a[k].u.g))
        return true;
  }
  return false;
}

/* One that waits; a rule may follow what counts once (decay), nothing else may. */
static bool training_has(const training_list *l, uint64_t uid, int32_t shard,
                         bool rule) {
  for (int32_t i = 0; i < l->n; i++) {
    const training_shard *s = &l->a[i];
    if ((i >= l->hide && i < l->end) || (rule && !s->applied)) continue;
    if (s->uid == uid && (s->shard == shard || s->shard < 0 || shard < 0)) return true;
  }
  return false;
}

static tm_status training_add(training_list *l, uint64_t uid, int32_t shard,
                              bool applied) {
  if (l->n == l->max) {
    int32_t max = l->max ? 2 * l->max : 32;
    training_shard *a =
        tm_realloc(l->a, (size_t)l->max * sizeof *a, (size_t)max * sizeof *a);
    if (!a) return TM_ENOMEM;
    l->a = a;
    l->max = max;
  }
  l->a[l->n++] = (training_shard){uid, shard, applied};
  return TM_OK;
}

/* A shard that waits is used once more. */
static tm_status training_twice(const training_list *l, const tm_node *n, tm_err *err) {
  return tm_fail(
      err, TM_EINVAL,
      "%s %s; with mode = \"sync\" these wait "
      "until the round ends: apply them once (steps_per_execution = 1), read "
      "variables before, leave out constraints, or use mode = \"ssp\" or "
      "\"async\"",
      l->name,
      training_applies(n) ? "applies gradients to a variable twice"
                          : "uses a variable after it applied gradients to it");
}

static tm_status training_walk(training_list *l, const tm_graph *g, bool loop,
                               tm_err *err);

/* Functions in a node: branches, or the parts of a loop. */
static tm_status training_inside(training_list *l, const tm_node *n, bool loop,
                                 tm_err *err) {
  int32_t hide = l->hide, end = l->end, from = l->n;
  bool branches = tm_node_kind_of(n) == TM_NODE_COND;
  for (int32_t k = 0; k < n->attrs.n; k++) {
    if (n->attrs.a[k].kind != TM_ATTR_FUNC) continue;
    if (branches && hide == end) { /* one range of siblings is enough for most */
      l->hide = from;
      l->end = l->n;
    }
    TM_TRY(training_walk(l, n->attrs.a[k].u.g, loop || !branches, err));
  }
  l->hide = hide;
  l->end = end;
  return TM_OK;
}

static tm_status training_node(training_list *l, const tm_node *n, bool loop,
                               tm_err *err) {
  tm_node_kind kind = tm_node_kind_of(n);
  if (kind == TM_NODE_COND || kind == TM_NODE_WHILE)
    return training_inside(l, n, loop, err);
  if (kind != TM_NODE_READ && kind != TM_NODE_UPDATE) return TM_OK;
  uint64_t uid = tm_node_uid(n);
  int32_t shard = tm_node_shard(n);
  bool rule = training_applies(n);
  if (training_has(l, uid, shard, rule)) return training_twice(l, n, err);
  if (!rule && !tm_node_once(n)) return TM_OK;
  if (loop)
    return tm_fail(
        err, TM_EINVAL,
        "%s applies gradients in a loop; with mode = \"sync\" a function "
        "applies them once: schedule it for each step, or use mode = \"ssp\" "
        "or \"async\"",
        l->name);
  return training_add(l, uid, shard, rule) ? tm_nomem(err, "a function") : TM_OK;
}

static tm_status training_walk(training_list *l, const tm_graph *g, bool loop,
                               tm_err *err) {
  for (int32_t i = 0; i < g->nnode; i++)
    TM_TRY(training_node(l, &g->node[i], loop, err));
  return TM_OK;
}

tm_status tm_graph_check_round(const tm_graph *g, tm_err *err) {
  training_list l = {.name = g->name};
  tm_status s = training_walk(&l, g, false, err);
  tm_free(l.a, (size_t)l.max * sizeof *l.a);
  return s;
}
