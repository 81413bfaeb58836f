#include "cluster/gate.h"

/*
 * Design.  Whoever closes the gate while nobody is inside knows at once; else the one
 * who leaves tells.  So a worker that computes, or waits for work, holds nobody up.
 */
void tm_gate_init(tm_gate *g) {
  *g = (tm_gate){.number = 0};
  pthread_mutex_init(&g->mu, NULL);
  pthread_cond_init(&g->open, NULL);
}

void tm_gate_release(tm_gate *g) {
  pthread_mutex_destroy(&g->mu);
  pthread_cond_destroy(&g->open);
}

void tm_gate_enter(tm_gate *g) {
  pthread_mutex_lock(&g->mu);
  while (g->number && !g->ended) pthread_cond_wait(&g->open, &g->mu);
  g->inside = true;
  pthread_mutex_unlock(&g->mu);
}

uint64_t tm_gate_leave(tm_gate *g) {
  pthread_mutex_lock(&g->mu);
  g->inside = false;
  uint64_t tell = g->number;
  pthread_mutex_unlock(&g->mu);
  return tell;
}

bool tm_gate_set(tm_gate *g, uint64_t number, bool closed) {
  pthread_mutex_lock(&g->mu);
  g->number = closed ? number : 0;
  bool tell = closed && !g->inside;
  pthread_cond_broadcast(&g->open);
  pthread_mutex_unlock(&g->mu);
  return tell;
}

void tm_gate_end(tm_gate *g) {
  pthread_mutex_lock(&g->mu);
  g->ended = true;
  pthread_cond_broadcast(&g->open);
  pthread_mutex_unlock(&g->mu);
}
