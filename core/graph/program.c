#include "graph/program.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "graph/run.h"

/*
 * Design.  A program is an optimised graph with its nodes on levels (levels.c).  Plans
 * (plan.c) and idle steps (step.c) hang on it; idle steps hold no reference to it, or
 * it would never go.
 */

static tm_status program_subs(tm_program *p, tm_err *err) {
  for (int32_t i = 0; i < p->g->nnode; i++) {
    const tm_node *n = &p->g->node[i];
    if (p->kind[i] != TM_NODE_COND && p->kind[i] != TM_NODE_WHILE) continue;
    for (int k = 0; k < 2; k++)
      TM_TRY(tm_program_new(n->attrs.a[k].u.g, &p->sub[i][k], err));
  }
  return TM_OK;
}

static tm_status program_tables(tm_program *p) {
  size_t n = (size_t)p->g->nnode + 1;
  p->first = tm_calloc(n, sizeof *p->first);
  p->kind = tm_calloc(n, sizeof *p->kind);
  p->level = tm_calloc(n, sizeof *p->level);
  p->sub = tm_calloc(n, sizeof *p->sub);
  p->order = tm_calloc(n, sizeof *p->order);
  p->next = tm_calloc(n, sizeof *p->next);
  if (!p->first || !p->kind || !p->level || !p->sub || !p->order || !p->next)
    return TM_ENOMEM;
  for (int32_t i = 0; i < p->g->nnode; i++) {
    p->first[i + 1] = p->first[i] + p->g->node[i].nout;
    p->kind[i] = tm_node_kind_of(&p->g->node[i]);
  }
  p->nval = p->first[p->g->nnode];
  return TM_OK;
}

static tm_status program_init(tm_program *p, tm_graph *g, tm_err *err) {
  if (g->optimized)
    p->g = tm_graph_ref(g);
  else
    TM_TRY(tm_graph_optimize(g, &p->g, err));
  if (program_tables(p) || tm_program_place(p)) return tm_nomem(err, "a program");
  return program_subs(p, err);
}

tm_status tm_program_new(tm_graph *g, tm_program **out, tm_err *err) {
  *out = NULL;
  tm_program *p = tm_calloc(1, sizeof *p);
  if (!p) return tm_nomem(err, "a program");
  atomic_init(&p->refs, 1);
  pthread_mutex_init(&p->mu, NULL);
  tm_status s = program_init(p, g, err);
  if (s)
    tm_program_unref(p);
  else
    *out = p;
  return s;
}

tm_program *tm_program_ref(tm_program *p) {
  atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
  return p;
}

static void program_release(tm_program *p) {
  size_t n = p->g ? (size_t)p->g->nnode + 1 : 0;
  for (int i = 0; i < TM_MAX_IDLE_STEPS; i++) tm_step_free(p->idle[i]);
  for (int i = 0; i < TM_MAX_PLANS; i++) tm_plan_unref(p->plan[i]);
  for (size_t i = 0; p->sub && i < n; i++) {
    tm_program_unref(p->sub[i][0]);
    tm_program_unref(p->sub[i][1]);
  }
  tm_free(p->first, n * sizeof *p->first);
  tm_free(p->kind, n * sizeof *p->kind);
  tm_free(p->level, n * sizeof *p->level);
  tm_free(p->sub, n * sizeof *p->sub);
  tm_free(p->order, n * sizeof *p->order);
  tm_free(p->next, n * sizeof *p->next);
  tm_free(p->at, ((size_t)p->nlevel + 1) * sizeof *p->at);
  tm_graph_unref(p->g);
}

void tm_program_unref(tm_program *p) {
  if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  program_release(p);
  pthread_mutex_destroy(&p->mu);
  tm_free(p, sizeof *p);
}

const tm_graph *tm_program_graph(const tm_program *p) { return p->g; }
bool tm_program_fetches(const tm_program *p) { return p->nnext > 0; }
int32_t tm_program_levels(const tm_program *p) { return p->nlevel; }
