/*
 * exec.h - running a graph: levels, plans, steps.
 *
 * A tm_program is a graph made ready: nodes on levels, the fetch stage split off.
 * For each concrete input signature it keeps a plan (a place in one arena for every
 * intermediate), at most 16, the least recently used goes.  A tm_step is one run:
 *
 *     tm_step *st;
 *     tm_step_new(prog, &st, err);
 *     tm_step_begin(st, args, n, iterators, env);   -- binds arguments
 *     tm_step_fetch(st, state, err);                -- what depends only on the batch
 *     do {
 *       tm_step_reads(st, &reads, &n, err);         -- READ of the next level
 *       ... one exchange: UPDATEs pending so far (they may be those of the step
 *           before), then these READs ...
 *       tm_step_compute(st, state, &up, &nup, &done, err);   -- UPDATEs pending now
 *     } while (!done);
 *       ... the last UPDATEs: an exchange of their own, or with the next step ...
 *     tm_step_outputs(st, outs, err);
 *
 * Most callers use tm_program_run, which does all of it with state->exchange.  The
 * worker uses the parts to overlap steps: see cluster/worker.h.
 *
 * Ownership: programs are refcounted and thread-safe; a step belongs to one thread
 * and is reused (no allocation a node once its plan is warm).
 */
#ifndef TM_GRAPH_EXEC_H
#define TM_GRAPH_EXEC_H

#include "graph/graph.h"
#include "graph/state.h"

typedef struct tm_program tm_program;
typedef struct tm_step tm_step;

TM_CHECKED tm_status tm_program_new(tm_graph *g, tm_program **out, tm_err *err);
tm_program *tm_program_ref(tm_program *p);
void tm_program_unref(tm_program *p);
const tm_graph *tm_program_graph(const tm_program *p);
bool tm_program_fetches(const tm_program *p); /* has an unconditional next */
int32_t tm_program_levels(const tm_program *p);

/* An argument: a tensor, or an iterator resource. */
typedef struct tm_arg_value {
  tm_tensor *t; /* NULL: iterator */
  uint64_t iterator;
} tm_arg_value;

/* Run from start to end.  outs gets graph->nout references. state may be NULL for a
 * graph without state ops. */
TM_CHECKED tm_status tm_program_run(tm_program *p, const tm_arg_value *args, int32_t n,
                                    tm_state *state, const tm_run_env *env,
                                    tm_tensor **outs, tm_err *err);

TM_CHECKED tm_status tm_step_new(tm_program *p, tm_step **out, tm_err *err);
void tm_step_free(tm_step *st);
/* Bind arguments (references are taken) and forget an earlier run. */
TM_CHECKED tm_status tm_step_begin(tm_step *st, const tm_arg_value *args, int32_t n,
                                   const tm_run_env *env, tm_err *err);
/* Run the fetch stage (iterator_next and what depends only on it and arguments). */
TM_CHECKED tm_status tm_step_fetch(tm_step *st, tm_state *state, tm_err *err);
/* The READs that the next level needs; valid until the next call on st.  n = 0: none.
 * After the last level: none. */
TM_CHECKED tm_status tm_step_reads(tm_step *st, tm_read **rd, int32_t *n, tm_err *err);
/* Compute the level whose READs were just answered; then *up, *nup are its UPDATEs
 * (valid until the next tm_step_compute/begin).  *done: it was the last level. */
TM_CHECKED tm_status tm_step_compute(tm_step *st, tm_state *state, tm_update **up,
                                     int32_t *nup, bool *done, tm_err *err);
/* Outputs of a finished step, a reference each. */
TM_CHECKED tm_status tm_step_outputs(tm_step *st, tm_tensor **outs, tm_err *err);
/* Heap allocations made by the last run (0 when planned and nothing dynamic). */
uint64_t tm_step_allocs(const tm_step *st);

#endif
