/*
 * locals.h - variables that live on one worker, in a store of its own.
 *
 * They come in groups: infos, and a graph whose outputs are their first values.  A
 * group is built by the compute thread before the closure that comes next; one that
 * cannot be built fails the closures that use it, and nobody else.
 *
 *     TM_TRY(tm_locals_new(vars, &l));          -- vars now reach shards on ps -1
 *     tm_locals_add(l, uid, info, n, graph);    -- any thread
 *     tm_locals_build(l, &env);                 -- compute thread
 *     TM_TRY(tm_locals_check(l, g, err));       -- compute thread
 *
 * Ownership: the caller's; free it after vars.
 * Threads:   as said.
 */
#ifndef TM_CLUSTER_LOCALS_H
#define TM_CLUSTER_LOCALS_H

#include "cluster/vars.h"
#include "graph/exec.h"

typedef struct tm_locals tm_locals;

enum { TM_MAX_LOCALS = 4096 }; /* variables of a group */

TM_CHECKED tm_status tm_locals_new(tm_vars *vars, const char *task, tm_locals **out);
void tm_locals_free(tm_locals *l); /* l may be NULL */
/* A group: n outputs of the graph, which takes no arguments. */
TM_CHECKED tm_status tm_locals_add(tm_locals *l, uint64_t uid, tm_var_info *const *info,
                                   int32_t n, tm_graph *graph);
/* False: there is no such group. */
bool tm_locals_drop(tm_locals *l, uint64_t uid);
/* Nothing is built any more; what is being built ends soon. */
void tm_locals_stop(tm_locals *l);
void tm_locals_build(tm_locals *l, const tm_run_env *env);
/* Why a variable of g could not be built. */
TM_CHECKED tm_status tm_locals_check(tm_locals *l, const tm_graph *g, tm_err *err);

#endif
