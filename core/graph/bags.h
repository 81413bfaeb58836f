/*
 * bags.h - a pass: products of combined rows become products of the distinct rows.
 * (Inside core/graph.)
 *
 * Threads: pure function.
 */
#ifndef TM_GRAPH_BAGS_H
#define TM_GRAPH_BAGS_H

#include "graph/graph.h"

/* *out = g with such products replaced (what they replace is left dead), or NULL when
 * there are none. */
TM_CHECKED tm_status tm_graph_bags(const tm_graph *g, tm_graph **out, tm_err *err);

#endif
