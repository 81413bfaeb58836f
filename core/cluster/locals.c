#include "cluster/locals.h"

#include <pthread.h>
#include <string.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  A list of groups in the order in which they came.  `waiting` and `broken`
 * count, so that a closure looks at the list only when there is a reason to.
 *
 * Invariants:
 *   (1) mu guards the list and each group's state; a group that is being built is taken
 *       apart by the compute thread when it was dropped meanwhile.
 *   (2) A variable is in the catalogue once it is built, so that closures before that,
 *       which cannot know it, do not find it either.
 */
typedef enum locals_state {
  LOCALS_WAITS,
  LOCALS_BUSY,
  LOCALS_BUILT,
  LOCALS_BROKEN
} locals_state;

typedef struct locals_group {
  struct locals_group *next;
  uint64_t uid;
  locals_state state;
  bool dead; /* dropped while busy */
  int32_t n;
  tm_var_info **info;
  tm_graph *graph;
  tm_err why;
} locals_group;

struct tm_locals {
  tm_vars *vars; /* borrowed */
  tm_store *store;
  pthread_mutex_t mu;
  locals_group *first; /* under mu */
  atomic_int waiting, broken;
  tm_cancel stop;
};

static void group_free(locals_group *g) {
  for (int32_t i = 0; i < g->n; i++) tm_var_info_unref(g->info[i]);
  tm_free(g->info, (size_t)g->n * sizeof *g->info);
  tm_graph_unref(g->graph);
  tm_free(g, sizeof *g);
}

tm_status tm_locals_new(tm_vars *vars, const char *task, tm_locals **out) {
  tm_ps_client *client;
  *out = NULL;
  tm_locals *l = tm_calloc(1, sizeof *l);
  if (!l) return TM_ENOMEM;
  tm_status s = tm_store_new(task, &l->store);
  if (s == TM_OK) s = tm_ps_client_local(l->store, &client);
  if (s) {
    tm_store_free(l->store);
    tm_free(l, sizeof *l);
    return s;
  }
  TM_DCHECK(!vars->local);
  vars->local = client;
  l->vars = vars;
  pthread_mutex_init(&l->mu, NULL);
  *out = l;
  return TM_OK;
}

void tm_locals_free(tm_locals *l) {
  if (!l) return;
  for (locals_group *g = l->first, *next; g; g = next) {
    next = g->next;
    group_free(g);
  }
  tm_store_free(l->store);
  pthread_mutex_destroy(&l->mu);
  tm_free(l, sizeof *l);
}

static tm_status group_new(uint64_t uid, tm_var_info *const *info, int32_t n,
                           tm_graph *graph, locals_group **out) {
  locals_group *g = tm_calloc(1, sizeof *g);
  if (!g) return TM_ENOMEM;
  g->info = tm_calloc((size_t)n, sizeof *g->info);
  if (n && !g->info) {
    tm_free(g, sizeof *g);
    return TM_ENOMEM;
  }
  for (int32_t i = 0; i < n; i++) g->info[i] = tm_var_info_ref(info[i]);
  g->n = n;
  g->uid = uid;
  g->graph = tm_graph_ref(graph);
  *out = g;
  return TM_OK;
}

tm_status tm_locals_add(tm_locals *l, uint64_t uid, tm_var_info *const *info, int32_t n,
                        tm_graph *graph) {
  locals_group *g;
  if (n < 0 || n > TM_MAX_LOCALS || graph->nout != n || graph->narg) return TM_EINVAL;
  TM_TRY(group_new(uid, info, n, graph, &g));
  pthread_mutex_lock(&l->mu);
  locals_group **at = &l->first;
  while (*at) at = &(*at)->next;
  *at = g;
  atomic_fetch_add(&l->waiting, 1);
  pthread_mutex_unlock(&l->mu);
  return TM_OK;
}

/* Its variables go; the group itself is free. */
static void group_end(tm_locals *l, locals_group *g) {
  for (int32_t i = 0; i < g->n; i++) {
    tm_catalog_del(l->vars->catalog, g->info[i]->uid);
    tm_store_drop(l->store, g->info[i]->uid, 0);
  }
  group_free(g);
}

static void group_unlink(tm_locals *l, locals_group *g) {
  locals_group **at = &l->first;
  while (*at != g) at = &(*at)->next;
  *at = g->next;
}

bool tm_locals_drop(tm_locals *l, uint64_t uid) {
  pthread_mutex_lock(&l->mu);
  locals_group *g = l->first;
  while (g && (g->uid != uid || g->dead)) g = g->next;
  bool found = g != NULL, now = found && g->state != LOCALS_BUSY;
  if (found && !now) g->dead = true;
  if (now) {
    if (g->state == LOCALS_WAITS) atomic_fetch_sub(&l->waiting, 1);
    if (g->state == LOCALS_BROKEN) atomic_fetch_sub(&l->broken, 1);
    group_unlink(l, g);
  }
  pthread_mutex_unlock(&l->mu);
  if (now) group_end(l, g);
  return found;
}

void tm_locals_stop(tm_locals *l) { tm_cancel_set(&l->stop); }

/* --- building (compute thread) --- */

static tm_status group_create(tm_locals *l, locals_group *g, int32_t i, tm_tensor *t,
                              tm_err *err) {
  const tm_var_info *v = g->info[i];
  if (t->v.dtype != v->dtype || !tm_shape_equal(&t->v.shape, &v->shape))
    return tm_fail(err, TM_EINVAL, "%s: its first value has another type or shape",
                   v->name);
  tm_init init = {.kind = "value", .value = t};
  return tm_vars_create(l->vars, g->info[i], &init, err);
}

static tm_status group_run(tm_locals *l, locals_group *g, const tm_run_env *env,
                           tm_tensor **out, tm_err *err) {
  tm_program *p;
  tm_run_env own = *env;
  own.closure = 0;
  own.cancel = &l->stop;
  TM_TRY(tm_program_new(g->graph, &p, err));
  tm_status s = tm_program_run(p, NULL, 0, NULL, &own, out, err);
  tm_program_unref(p);
  return s;
}

static tm_status group_build(tm_locals *l, locals_group *g, const tm_run_env *env,
                             tm_err *err) {
  tm_tensor **out = tm_calloc((size_t)g->n + 1, sizeof *out);
  if (!out) return tm_nomem(err, "a worker's variables");
  tm_status s = group_run(l, g, env, out, err);
  for (int32_t i = 0; i < g->n && s == TM_OK; i++)
    s = group_create(l, g, i, out[i], err);
  for (int32_t i = 0; i < g->n; i++) tm_tensor_unref(out[i]);
  tm_free(out, ((size_t)g->n + 1) * sizeof *out);
  return s;
}

static locals_group *locals_take(tm_locals *l) {
  pthread_mutex_lock(&l->mu);
  locals_group *g = l->first;
  while (g && g->state != LOCALS_WAITS) g = g->next;
  if (g) {
    g->state = LOCALS_BUSY;
    atomic_fetch_sub(&l->waiting, 1);
  }
  pthread_mutex_unlock(&l->mu);
  return g;
}

static void locals_put(tm_locals *l, locals_group *g, tm_status s) {
  pthread_mutex_lock(&l->mu);
  g->state = s ? LOCALS_BROKEN : LOCALS_BUILT;
  bool dead = g->dead;
  if (dead) group_unlink(l, g);
  if (s && !dead) atomic_fetch_add(&l->broken, 1);
  pthread_mutex_unlock(&l->mu);
  if (dead) group_end(l, g);
}

void tm_locals_build(tm_locals *l, const tm_run_env *env) {
  locals_group *g;
  if (atomic_load(&l->waiting) == 0) return;
  while (!tm_cancelled(&l->stop) && (g = locals_take(l))) {
    tm_err_clear(&g->why);
    locals_put(l, g, group_build(l, g, env, &g->why));
  }
}

static const locals_group *locals_broken(const tm_locals *l, uint64_t uid) {
  for (const locals_group *g = l->first; g; g = g->next)
    for (int32_t i = 0; g->state == LOCALS_BROKEN && i < g->n; i++)
      if (g->info[i]->uid == uid) return g;
  return NULL;
}

tm_status tm_locals_check(tm_locals *l, const tm_graph *graph, tm_err *err) {
  uint64_t *all;
  size_t n;
  tm_status s = TM_OK;
  if (atomic_load(&l->broken) == 0) return TM_OK;
  if (tm_graph_variables(graph, &all, &n))
    return tm_nomem(err, "a function's variables");
  pthread_mutex_lock(&l->mu);
  for (size_t i = 0; i < n && s == TM_OK; i++) {
    const locals_group *g = locals_broken(l, all[i]);
    if (!g) continue;
    s = g->why.code ? g->why.code : TM_EINTERNAL;
    tm_err why = g->why;
    if (err) *err = why;
    s = tm_err_prefix(err, s, "a resource of this worker could not be built");
  }
  pthread_mutex_unlock(&l->mu);
  tm_free(all, n * sizeof *all);
  return s;
}
