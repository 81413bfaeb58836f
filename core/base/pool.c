#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/check.h"
#include "base/mem.h"

/*
 * Design.  A ring of tasks under one mutex.  tm_pool_run puts a job on its own stack,
 * queues helpers for it as far as there is room, takes pieces itself until none is
 * left, withdraws helpers that nobody has started, and waits for those that run.
 * A started helper needs nothing from anyone, so the wait always ends.
 *
 * Invariants:
 *   (1) count <= cap; the waiting tasks are ring[head .. head+count) mod cap.
 *   (2) A job's helpers = its entries in the ring + the threads inside pool_help for
 *       it; it leaves the stack only when that is 0.
 */
struct pool_entry {
  tm_pool_task fn; /* NULL: withdrawn */
  void *ud;
};

struct tm_pool {
  pthread_mutex_t mu;
  pthread_cond_t work;     /* a task came, or stop */
  pthread_cond_t finished; /* some job's helpers became 0 */
  struct pool_entry *ring; /* guarded by mu, as all below */
  size_t cap, head, count;
  bool stop;
  pthread_t *thread;
  size_t threads; /* running; fixed after new */
  size_t wanted;  /* size of thread[] */
};

struct pool_job {
  tm_pool *pool;
  tm_pool_each fn;
  void *ud;
  size_t n;
  atomic_size_t next;
  size_t helpers; /* guarded by pool->mu */
};

/* Runs tasks until stop and an empty ring. */
static void *pool_main(void *arg) {
  tm_pool *p = arg;
  pthread_mutex_lock(&p->mu);
  for (;;) {
    while (p->count == 0 && !p->stop) pthread_cond_wait(&p->work, &p->mu);
    if (p->count == 0) break;
    struct pool_entry e = p->ring[p->head];
    p->head = (p->head + 1) % p->cap;
    p->count--;
    if (!e.fn) continue;
    pthread_mutex_unlock(&p->mu);
    e.fn(e.ud);
    pthread_mutex_lock(&p->mu);
  }
  pthread_mutex_unlock(&p->mu);
  return NULL;
}

static tm_status pool_start(tm_pool *p) {
  if (p->wanted == 0) return TM_OK;
  p->ring = tm_calloc(p->cap, sizeof *p->ring);
  p->thread = tm_calloc(p->wanted, sizeof *p->thread);
  if (!p->ring || !p->thread) return TM_ENOMEM;
  for (; p->threads < p->wanted; p->threads++)
    if (pthread_create(&p->thread[p->threads], NULL, pool_main, p) != 0)
      return TM_EEXHAUSTED;
  return TM_OK;
}

tm_status tm_pool_new(size_t threads, size_t queue, tm_pool **out) {
  *out = NULL;
  if (threads > 0 && queue == 0) return TM_EINVAL;
  tm_pool *p = tm_calloc(1, sizeof *p);
  if (!p) return TM_ENOMEM;
  pthread_mutex_init(&p->mu, NULL);
  pthread_cond_init(&p->work, NULL);
  pthread_cond_init(&p->finished, NULL);
  p->cap = queue;
  p->wanted = threads;
  tm_status s = pool_start(p);
  if (s != TM_OK) {
    tm_pool_free(p);
    return s;
  }
  *out = p;
  return TM_OK;
}

void tm_pool_free(tm_pool *p) {
  if (!p) return;
  pthread_mutex_lock(&p->mu);
  p->stop = true;
  pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->mu);
  for (size_t i = 0; i < p->threads; i++) pthread_join(p->thread[i], NULL);
  pthread_cond_destroy(&p->finished);
  pthread_cond_destroy(&p->work);
  pthread_mutex_destroy(&p->mu);
  tm_free(p->thread, p->wanted * sizeof *p->thread);
  tm_free(p->ring, p->cap * sizeof *p->ring);
  tm_free(p, sizeof *p);
}

size_t tm_pool_threads(const tm_pool *p) { return p ? p->threads : 0; }

/* With mu held: queue a task.  False: full. */
static bool pool_push(tm_pool *p, tm_pool_task fn, void *ud) {
  if (p->count == p->cap) return false;
  p->ring[(p->head + p->count) % p->cap] = (struct pool_entry){fn, ud};
  p->count++;
  return true;
}

tm_status tm_pool_submit(tm_pool *p, tm_pool_task fn, void *ud) {
  if (p->threads == 0) {
    fn(ud);
    return TM_OK;
  }
  pthread_mutex_lock(&p->mu);
  bool queued = pool_push(p, fn, ud);
  if (queued) pthread_cond_signal(&p->work);
  pthread_mutex_unlock(&p->mu);
  return queued ? TM_OK : TM_EAGAIN;
}

static void pool_take_pieces(struct pool_job *j) {
  for (size_t i; (i = atomic_fetch_add(&j->next, 1)) < j->n;) j->fn(j->ud, i);
}

/* With mu held: one helper less. */
static void pool_leave(struct pool_job *j) {
  if (--j->helpers == 0) pthread_cond_broadcast(&j->pool->finished);
}

static void pool_help(void *ud) {
  struct pool_job *j = ud;
  tm_pool *p = j->pool;
  pool_take_pieces(j);
  pthread_mutex_lock(&p->mu);
  pool_leave(j); /* the job may be gone after the unlock */
  pthread_mutex_unlock(&p->mu);
}

static void pool_call_helpers(tm_pool *p, struct pool_job *j) {
  pthread_mutex_lock(&p->mu);
  size_t most = j->n - 1 < p->threads ? j->n - 1 : p->threads;
  while (j->helpers < most && pool_push(p, pool_help, j)) j->helpers++;
  if (j->helpers == 1) pthread_cond_signal(&p->work);
  if (j->helpers > 1) pthread_cond_broadcast(&p->work);
  pthread_mutex_unlock(&p->mu);
}

/* Withdraw the helpers that still wait, wait for those that run (2). */
static void pool_dismiss_helpers(tm_pool *p, struct pool_job *j) {
  pthread_mutex_lock(&p->mu);
  for (size_t k = 0; k < p->count; k++) {
    struct pool_entry *e = &p->ring[(p->head + k) % p->cap];
    if (e->fn != pool_help || e->ud != j) continue;
    e->fn = NULL;
    pool_leave(j);
  }
  while (j->helpers > 0) pthread_cond_wait(&p->finished, &p->mu);
  pthread_mutex_unlock(&p->mu);
}

void tm_pool_run(tm_pool *p, size_t n, tm_pool_each fn, void *ud) {
  if (!p || p->threads == 0 || n < 2) {
    for (size_t i = 0; i < n; i++) fn(ud, i);
    return;
  }
  struct pool_job j = {.pool = p, .fn = fn, .ud = ud, .n = n};
  pool_call_helpers(p, &j);
  pool_take_pieces(&j);
  pool_dismiss_helpers(p, &j);
}
