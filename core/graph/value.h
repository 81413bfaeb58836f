/*
 * value.h - what user code computes with, and the one door that every op passes.
 *
 * A tm_value is an eager tensor, or an output of a node of an open trace.  A
 * tm_scope holds the open traces and tapes of one thread of control (a Lua
 * coroutine).  tm_apply: with an open trace it adds a node; without one it infers,
 * allocates and runs the kernel (state ops go to the scope's tm_state).  All open
 * tapes of the scope record what passed.
 *
 *     tm_value *out[1];
 *     TM_TRY(tm_apply(sc, tm_op_find("add"), (tm_value *[]){a, b}, 2, NULL, out,
 *                     &n, err));
 *
 * Ownership: values are refcounted; outputs give a reference each to the caller.
 * Threads:   a scope and its symbolic values belong to one thread; eager values may
 *            be shared.
 */
#ifndef TM_GRAPH_VALUE_H
#define TM_GRAPH_VALUE_H

#include "graph/graph.h"
#include "graph/op.h"
#include "graph/state.h"

typedef struct tm_trace tm_trace;
typedef struct tm_tape tm_tape;
typedef struct tm_scope tm_scope;

typedef struct tm_value {
  atomic_int refs;
  tm_tensor *t;      /* eager; NULL when symbolic */
  tm_trace *trace;   /* symbolic: its trace (a reference): late use is found */
  tm_ref ref;        /* symbolic: node and output */
  tm_type type;      /* an iterator has dtype TM_DTYPE_NONE */
  uint64_t id;       /* unique in the process: tapes key by it */
  uint64_t iterator; /* eager iterator: the resource, for tm_state.next */
  int32_t nelem;     /* iterators: types of one element */
  tm_type *elem;
} tm_value;

TM_CHECKED tm_status tm_value_of_tensor(tm_tensor *t, tm_value **out); /* refs t */
/* An iterator resource that the scope's tm_state knows; elem is copied. */
TM_CHECKED tm_status tm_value_of_iterator(uint64_t iterator, const tm_type *elem,
                                          int32_t n, tm_value **out);
tm_value *tm_value_ref(tm_value *v);
void tm_value_unref(tm_value *v);

/* --- scope --- */
TM_CHECKED tm_status tm_scope_new(tm_scope **out);
void tm_scope_free(tm_scope *sc); /* open traces and tapes are dropped */
/* Where eager state ops go (variables of this process and its cluster). */
void tm_scope_set_state(tm_scope *sc, tm_state *st);
tm_state *tm_scope_state(tm_scope *sc);
tm_run_env *tm_scope_env(tm_scope *sc); /* seed, cancel, threads; may be changed */
/* The innermost open trace, NULL when eager. */
tm_trace *tm_scope_trace(const tm_scope *sc);
/* Nothing is open: no trace, no eager mark, no tape. */
bool tm_scope_idle(const tm_scope *sc);
/* Hide the open traces (layers create variables eagerly while a trace is open):
 * push makes the scope eager until the matching pop. */
TM_CHECKED tm_status tm_scope_push_eager(tm_scope *sc);
void tm_scope_pop_eager(tm_scope *sc);
/* Depth marks: remember on entry of a call, drop all deeper traces, eager marks and
 * tapes after an error. */
int32_t tm_scope_mark(const tm_scope *sc);
void tm_scope_unwind(tm_scope *sc, int32_t mark);

/* --- the door --- */
/* attrs may be NULL (all defaults); it is completed in a copy.  out has room for
 * TM_MAX_OUTPUTS.  A NULL input is an absent optional one (only at the end). */
TM_CHECKED tm_status tm_apply(tm_scope *sc, const tm_op *op, tm_value *const *in,
                              int32_t nin, const tm_attrs *attrs, tm_value **out,
                              int32_t *nout, tm_err *err);

/* iterator_next with the element's types that `it` knows. */
TM_CHECKED tm_status tm_apply_next(tm_scope *sc, tm_value *it, tm_value **out,
                                   int32_t *nout, tm_err *err);
/* cond and while_loop from ended traces (captures: tm_trace_captures).  Both
 * branches give equally many outputs of equal dtypes; cond and body of a loop take
 * the loop's variables as arguments. */
TM_CHECKED tm_status tm_apply_cond(tm_scope *sc, tm_value *p, tm_graph *then,
                                   tm_value *const *then_cap, int32_t nthen,
                                   tm_graph *otherwise, tm_value *const *else_cap,
                                   int32_t nelse, tm_value **out, int32_t *nout,
                                   tm_err *err);
TM_CHECKED tm_status tm_apply_while(tm_scope *sc, tm_graph *cond,
                                    tm_value *const *cond_cap, int32_t ncond,
                                    tm_graph *body, tm_value *const *body_cap,
                                    int32_t nbody, tm_value *const *var, int32_t nvar,
                                    tm_value **out, tm_err *err);

/* --- traces --- */
/* Open a trace; a trace in a trace is a branch or a loop body of it. */
TM_CHECKED tm_status tm_trace_begin(tm_scope *sc, const char *name, tm_trace **out,
                                    tm_err *err);
/* Add an argument: a tensor type, or an iterator (elements' types). */
TM_CHECKED tm_status tm_trace_arg(tm_trace *tr, const tm_type *type, tm_value **out,
                                  tm_err *err);
TM_CHECKED tm_status tm_trace_iterator_arg(tm_trace *tr, const tm_type *elements,
                                           int32_t n, tm_value **out, tm_err *err);
/* Close it (must be the innermost): the graph with these outputs (eager values
 * become constants).  A nested trace (cond, while) may use values of the traces
 * around it: they become captures, given in order after the arguments.  The trace
 * itself lives on (for its captures) until the caller's tm_trace_unref of what
 * tm_trace_begin gave. */
TM_CHECKED tm_status tm_trace_end(tm_scope *sc, tm_trace *tr, tm_value *const *outputs,
                                  int32_t n, tm_graph **out, tm_err *err);
int32_t tm_trace_size(const tm_trace *tr); /* nodes so far */
/* Close without a result (after an error). */
void tm_trace_abort(tm_scope *sc, tm_trace *tr);
/* Captures of a just-ended nested trace: values of the outer trace, in order. */
int32_t tm_trace_captures(tm_trace *tr, tm_value ***out);
tm_trace *tm_trace_ref(tm_trace *tr);
void tm_trace_unref(tm_trace *tr);

#endif
