/*
 * coord_queue.h - closures that wait for a worker, or for its answer: a bounded list.
 *
 * Invariant: ids grow from head to tail, so the head is the lowest unfinished one.  A
 * ps forgets what it knows about lower ones, hence this must hold for closures that
 * come back from a lost worker too.
 *
 * Ownership: an item belongs to the queue while it is in it.
 * Threads:   guarded by the coordinator's mutex.
 */
#ifndef TM_CLUSTER_COORD_QUEUE_H
#define TM_CLUSTER_COORD_QUEUE_H

#include "cluster/remote_value.h"
#include "cluster/resources.h"
#include "graph/exec.h"

/* An argument that is a result. */
typedef struct coord_want {
  int32_t arg, out; /* which argument (-1: none, it is only awaited), which result */
  tm_remote_value *value;
  char name[64]; /* of the argument, for messages */
} coord_want;

typedef struct coord_item {
  struct coord_item *next;
  uint64_t id, draw; /* draw: see tm_closure; of its deal, where it has one */
  tm_graph *graph;
  int32_t narg;
  tm_arg_value *arg;
  tm_remote_value *value; /* NULL: nobody wants it */
  int32_t tries;          /* workers lost while it ran */
  int32_t nwant;
  coord_want *want; /* arguments that were results, until all are there */
  tm_deal
      *deal;    /* NULL: no iterator is dealt; else narg, dealt when handed out first */
  bool dealt;   /* they are */
  bool half;    /* a worker was lost that may have done what it changes */
  int32_t only; /* index of the worker that it is for, -1: any */
  /* Where the mode looks at it (coord_rounds.c): */
  bool trains;           /* it applies gradients */
  bool again;            /* its round ended while its worker was lost: it runs again */
  uint64_t round, share; /* handed out for this round, as this share; 0: for none */
  int32_t by;            /* done by this worker, waits for the end of the round */
  int32_t nout;
  tm_tensor **out; /* its results until then */
} coord_item;

typedef struct coord_queue {
  coord_item *head, *tail;
  size_t n, max;
} coord_queue;

static inline void coord_queue_init(coord_queue *q, size_t max) {
  *q = (coord_queue){NULL, NULL, 0, max};
}
static inline coord_item *coord_queue_head(const coord_queue *q) { return q->head; }
static inline size_t coord_queue_count(const coord_queue *q) { return q->n; }
static inline bool coord_queue_full(const coord_queue *q) { return q->n >= q->max; }

/* To its place in the order of ids.  A closure that comes back always finds room, so
 * that a full queue cannot lock up. */
static inline void coord_queue_insert(coord_queue *q, coord_item *it) {
  coord_item **at = &q->head;
  if (q->tail && q->tail->id < it->id) at = &q->tail->next;
  while (*at && (*at)->id < it->id) at = &(*at)->next;
  it->next = *at;
  *at = it;
  if (!it->next) q->tail = it;
  q->n++;
}

/* The same for a new one.  What runs again comes before what was handed out already. */
TM_CHECKED static inline tm_status coord_queue_push(coord_queue *q, coord_item *it) {
  if (coord_queue_full(q)) return TM_EAGAIN;
  coord_queue_insert(q, it);
  return TM_OK;
}

/* It was the head before. */
static inline void coord_queue_push_front(coord_queue *q, coord_item *it) {
  it->next = q->head;
  q->head = it;
  if (!q->tail) q->tail = it;
  q->n++;
}

static inline coord_item *coord_queue_pop(coord_queue *q) {
  coord_item *it = q->head;
  if (!it) return NULL;
  q->head = it->next;
  if (!q->head) q->tail = NULL;
  q->n--;
  return it;
}

/* Take the item with this id out; NULL when it is not there.  Items finish in order but
 * for cancelled ones, so the walk is short. */
static inline coord_item *coord_queue_remove(coord_queue *q, uint64_t id) {
  coord_item *before = NULL, *it = q->head;
  for (; it && it->id != id; it = it->next) before = it;
  if (!it) return NULL;
  *(before ? &before->next : &q->head) = it->next;
  if (q->tail == it) q->tail = before;
  q->n--;
  return it;
}

/* All of `from` to their places in q. */
static inline void coord_queue_give_back(coord_queue *q, coord_queue *from) {
  coord_item **at = &q->head;
  for (coord_item *it = from->head, *next; it; it = next) {
    next = it->next;
    while (*at && (*at)->id < it->id) at = &(*at)->next;
    it->next = *at;
    *at = it;
    if (!it->next) q->tail = it;
  }
  q->n += from->n;
  *from = (coord_queue){NULL, NULL, 0, from->max};
}

#endif
