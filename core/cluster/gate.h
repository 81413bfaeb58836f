/*
 * gate.h - what a worker passes with every request that has UPDATEs, so that a chief
 * can come to a moment without any (see gate in worker.h).
 *
 *     tm_gate_enter(&g);                 -- waits while the gate is closed
 *     ... send, and wait for all answers ...
 *     if ((number = tm_gate_leave(&g))) on_gated(ud, number);
 *
 * Threads: enter and leave from one, set and end from any.
 */
#ifndef TM_CLUSTER_GATE_H
#define TM_CLUSTER_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tm_gate {
  pthread_mutex_t mu;
  pthread_cond_t open;
  uint64_t number; /* under mu: it is closed by this; 0: open */
  bool inside;     /* under mu: an UPDATE is under way */
  bool ended;      /* under mu: nobody is held any more */
} tm_gate;

void tm_gate_init(tm_gate *g);
void tm_gate_release(tm_gate *g);
void tm_gate_enter(tm_gate *g);
/* The number to be told now; 0: none. */
uint64_t tm_gate_leave(tm_gate *g);
/* True: it is closed and nobody is inside; that is to be told now. */
bool tm_gate_set(tm_gate *g, uint64_t number, bool closed);
void tm_gate_end(tm_gate *g);

#endif
