/*
 * board.h - which tasks of a chief's clusters said that they will leave, and whether
 * they have gone.
 *
 * Sessions write, preemption watchers read; it outlives both, so that a script may wait
 * for a task's end after its strategy was closed.
 *
 * Ownership: refcounted.  Threads: any.
 */
#ifndef TM_CLUSTER_BOARD_H
#define TM_CLUSTER_BOARD_H

#include "base/cancel.h"
#include "net/frame.h"

enum { TM_BOARD_TEXT = 480 };

typedef struct tm_board tm_board;

typedef struct tm_departure {
  uint64_t number; /* from 1, in the order in which they were told */
  char task[48];   /* "/job:worker/task:1" */
  char why[TM_BOARD_TEXT];
  char address[280];
  uint64_t incarnation; /* of the process that leaves */
  bool cut;             /* its connection to the chief ended */
  bool gone;            /* nothing is there any more, or another process */
} tm_departure;

TM_CHECKED tm_status tm_board_new(tm_board **out);
tm_board *tm_board_ref(tm_board *b); /* b may be NULL, here and below */
void tm_board_unref(tm_board *b);

/* A task said that it will leave.  self: how the chief presents itself there. */
void tm_board_say(tm_board *b, const tm_departure *d, const tm_hello *self);
/* The connection to this process ended. */
void tm_board_cut(tm_board *b, uint64_t incarnation);

/* How many were told so far; the first after `number` into *out (false: none). */
uint64_t tm_board_count(tm_board *b);
bool tm_board_next(tm_board *b, uint64_t number, tm_departure *out);
/* One look at those whose connection ended: is the process gone?  How many are not gone
 * (those whose connection still stands among them).  Blocks for up to a second each. */
int tm_board_look(tm_board *b, tm_cancel *cancel);

#endif
