/*
 * programs.h - the functions that a worker knows, made ready, with spare steps.
 *
 * At most TM_PROGRAMS_MAX; the one not used for longest goes.
 *
 * Threads: one, the compute thread.
 */
#ifndef TM_CLUSTER_PROGRAMS_H
#define TM_CLUSTER_PROGRAMS_H

#include "graph/exec.h"

enum { TM_PROGRAMS_MAX = 256, TM_PROGRAM_SPARES = 3 };

typedef struct tm_programs tm_programs;
typedef struct tm_program_slot tm_program_slot;

TM_CHECKED tm_status tm_programs_new(tm_programs **out);
void tm_programs_free(tm_programs *p);
/* The slot of a graph (by content), made on first use.  It stays valid while one of its
 * steps is taken. */
TM_CHECKED tm_status tm_programs_get(tm_programs *p, tm_graph *g, tm_program_slot **out,
                                     tm_err *err);
TM_CHECKED tm_status tm_programs_take_step(tm_programs *p, tm_program_slot *s,
                                           tm_step **out, tm_err *err);
void tm_programs_give_step(tm_programs *p, tm_program_slot *s, tm_step *st);
/* May call `next` outside its fetch stage (in a branch or loop): nothing may be
 * fetched ahead while it runs. */
bool tm_programs_late_next(const tm_program_slot *s);
/* How long the function took last time (huge before the first), as took noted it. */
int64_t tm_programs_cost(const tm_program_slot *s);
void tm_programs_took(tm_program_slot *s, int64_t ns);

#endif
