/*
 * nodes.h - what the executor and the passes ask about a node: is it an argument, a
 * constant, a read, an update.  (Inside core/graph.)
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_NODES_H
#define TM_GRAPH_NODES_H

#include "graph/graph.h"
#include "graph/state.h"

typedef enum tm_node_kind {
  TM_NODE_PURE, /* a kernel (print and the like too: see the op's flags) */
  TM_NODE_ARG,
  TM_NODE_CONST,
  TM_NODE_READ,   /* read_variable, gather_variable, read_slot */
  TM_NODE_UPDATE, /* assign, scatter, apply */
  TM_NODE_NEXT,   /* iterator_next */
  TM_NODE_COND,
  TM_NODE_WHILE
} tm_node_kind;

tm_node_kind tm_op_kind(const tm_op *op);
tm_node_kind tm_op_kind_of_state(const tm_op *op); /* op has TM_OP_STATE */
static inline tm_node_kind tm_node_kind_of(const tm_node *n) {
  return tm_op_kind(n->op);
}

bool tm_node_has_uid(const tm_node *n);
uint64_t tm_node_uid(const tm_node *n);
/* The uid among the attributes of a node of this op; NULL: it touches no variable. */
int64_t *tm_op_uid(const tm_op *op, tm_attrs *attrs);
/* Shard attribute, -1: the whole variable. */
int32_t tm_node_shard(const tm_node *n);
/* An UPDATE that counts once in a round. */
bool tm_node_once(const tm_node *n);

/* Fill a request from attributes; views come from `in` (views of the inputs, alive as
 * long as the request).  A READ's dst is the caller's. */
void tm_node_read(const tm_op *op, const tm_attrs *a, const tm_view *const *in,
                  tm_read *rd);
TM_CHECKED tm_status tm_node_update(const tm_op *op, const tm_attrs *a,
                                    const tm_view *const *in, tm_update *up,
                                    tm_err *err);

#endif
