/*
 * scope.h - the inside of a scope: a stack of open traces, eager marks and tapes.
 * (Inside core/graph; users see value.h.)
 *
 * What stands above the innermost trace or eager mark is active: an op is recorded by
 * those tapes only, so a tape does not look into a branch traced under it.
 *
 * Threads: one.
 */
#ifndef TM_GRAPH_SCOPE_H
#define TM_GRAPH_SCOPE_H

#include "base/map.h"
#include "graph/grad.h"

typedef enum tm_frame_kind {
  TM_FRAME_TRACE,
  TM_FRAME_EAGER,
  TM_FRAME_TAPE
} tm_frame_kind;

typedef struct tm_frame {
  tm_frame_kind kind;
  uint32_t serial;
  tm_trace *trace; /* TRACE: a reference */
  tm_tape *tape;   /* TAPE: a reference */
} tm_frame;

struct tm_scope {
  tm_frame *frame;
  int32_t n, cap;
  uint32_t serial; /* of the next frame */
  tm_state *state;
  tm_run_env env;
};

struct tm_trace {
  atomic_int refs;
  char name[64];
  tm_graph *g;      /* being built; NULL once ended */
  tm_trace *parent; /* the trace around it (a reference), NULL: outermost */
  tm_map *consts;   /* tensor -> node + 1 */
  tm_map *inner;    /* id of a captured outer value -> its argument here (owned) */
  tm_value **cap;   /* captured values of `parent`, a reference each */
  int32_t ncap, cap_room;
  uint64_t places; /* counts random places; the outermost one's is used */
};

TM_CHECKED tm_status tm_scope_push(tm_scope *sc, tm_frame f);
/* Remove the frame of this trace or tape, wherever it stands (drops its reference). */
void tm_scope_remove(tm_scope *sc, const void *thing);

TM_CHECKED tm_status tm_value_of_node(tm_trace *tr, tm_ref ref, tm_value **out);
/* A value as an input of a node of tr: its node, a constant, or a capture. */
TM_CHECKED tm_status tm_trace_resolve(tm_trace *tr, tm_value *v, tm_ref *out,
                                      tm_err *err);
uint64_t tm_trace_place(tm_trace *tr); /* the next one */
void tm_trace_close(tm_trace *tr);     /* drop what only an open trace needs */

/* Tapes: the scope's end leaves them without a scope. */
tm_tape *tm_tape_ref(tm_tape *tp);
void tm_tape_detach(tm_tape *tp);
TM_CHECKED tm_status tm_tape_record(tm_tape *tp, const tm_op *op, const tm_attrs *attrs,
                                    tm_value *const *in, int32_t nin,
                                    tm_value *const *out, int32_t nout);

#endif
