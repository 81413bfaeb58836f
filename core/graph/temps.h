/*
 * temps.h - the values that a gradient rule makes on its way.  (Inside core/graph.)
 *
 * Ownership: a reference each, dropped by release.  Threads: one.
 */
#ifndef TM_GRAPH_TEMPS_H
#define TM_GRAPH_TEMPS_H

#include "graph/value.h"

struct tm_g_temps {
  tm_value **v;
  int32_t n, cap;
};

/* Takes the reference, also when it fails. */
TM_CHECKED tm_status tm_g_temps_add(struct tm_g_temps *t, tm_value *v);
void tm_g_temps_release(struct tm_g_temps *t);

#endif
