/*
 * training.h - does a function apply gradients, and may it do so in a round?
 *
 * In a round (cluster/coord_rounds.c) what a function applies waits on the ps until
 * the mean of all is applied, so the function cannot see it, nor apply more to it.
 *
 * Threads: pure functions.
 */
#ifndef TM_GRAPH_TRAINING_H
#define TM_GRAPH_TRAINING_H

#include "graph/graph.h"

/* It (or a function in it) applies an optimizer's rule. */
bool tm_graph_trains(const tm_graph *g);
/* TM_EINVAL: it applies gradients to a variable twice, in a loop, or uses a variable
 * after that. */
TM_CHECKED tm_status tm_graph_check_round(const tm_graph *g, tm_err *err);

#endif
