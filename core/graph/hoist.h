/*
 * hoist.h - a loop reads a variable that it does not assign once, before it begins.
 * (Inside core/graph.)
 *
 * Threads: pure function.
 */
#ifndef TM_GRAPH_HOIST_H
#define TM_GRAPH_HOIST_H

#include "graph/graph.h"

/* *out = g in which the dense READs of variables that neither g nor `other` updates are
 * arguments, added at the end; read[] (room for TM_MAX_LIST) are their nodes in g. */
TM_CHECKED tm_status tm_graph_hoist(const tm_graph *g, const tm_graph *other,
                                    tm_graph **out, const tm_node **read,
                                    int32_t *nread, tm_err *err);

#endif
