/*
 * pool.h - a fixed number of threads with one bounded queue.
 *
 *     tm_pool *p;
 *     TM_TRY(tm_pool_new(2, 64, &p));
 *     tm_pool_run(p, n, do_piece, job);            -- do_piece(job, 0..n-1), waits
 *     s = tm_pool_submit(p, do_later, thing);      -- TM_EAGAIN: queue is full
 *     tm_pool_free(p);                             -- runs what is queued, joins
 *
 * tm_pool_run works in the calling thread too, never waits for a queue slot, and may
 * be called from within a task: it cannot dead-lock.
 *
 * Ownership: the caller owns the pool and frees it from outside its threads.
 * Threads:   run and submit from any thread.
 */
#ifndef TM_BASE_POOL_H
#define TM_BASE_POOL_H

#include <stddef.h>

#include "base/status.h"

typedef struct tm_pool tm_pool;
typedef void (*tm_pool_each)(void *ud, size_t i);
typedef void (*tm_pool_task)(void *ud);

/* 0 threads is allowed: run works in the caller, submit runs at once.  queue is the
 * most tasks that may wait, at least 1 when there are threads. */
TM_CHECKED tm_status tm_pool_new(size_t threads, size_t queue, tm_pool **out);
void tm_pool_free(tm_pool *p); /* p may be NULL; queued tasks run first */
size_t tm_pool_threads(const tm_pool *p);

/* fn(ud, i) for each i in 0..n-1, in any order and thread; returns when all are done
 * and their writes are seen.  p may be NULL: a plain loop. */
void tm_pool_run(tm_pool *p, size_t n, tm_pool_each fn, void *ud);

/* fn(ud) later, in a thread of the pool.  TM_EAGAIN: the queue is full. */
TM_CHECKED tm_status tm_pool_submit(tm_pool *p, tm_pool_task fn, void *ud);

#endif
