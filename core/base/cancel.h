/*
 * cancel.h - a flag that long work looks at between pieces.
 *
 * Threads: set from any thread (and from a signal handler), read from any.
 */
#ifndef TM_BASE_CANCEL_H
#define TM_BASE_CANCEL_H

#include <stdatomic.h>
#include <stdbool.h>

typedef struct tm_cancel {
  atomic_int flag;
} tm_cancel;

static inline void tm_cancel_set(tm_cancel *c) { atomic_store(&c->flag, 1); }
static inline void tm_cancel_reset(tm_cancel *c) { atomic_store(&c->flag, 0); }
/* c may be NULL: never cancelled. */
static inline bool tm_cancelled(tm_cancel *c) {
  return c && atomic_load_explicit(&c->flag, memory_order_relaxed) != 0;
}

#endif
