/*
 * combine.h - a pass: reductions of gathered rows become combined gathers.  (Inside
 * core/graph.)
 *
 * Threads: pure function.
 */
#ifndef TM_GRAPH_COMBINE_H
#define TM_GRAPH_COMBINE_H

#include "graph/graph.h"

/* *out = g with such reductions replaced (what they replace is left dead), or NULL when
 * there are none. */
TM_CHECKED tm_status tm_graph_combine(const tm_graph *g, tm_graph **out, tm_err *err);

#endif
