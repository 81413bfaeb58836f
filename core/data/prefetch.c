#include <pthread.h>
#include <time.h>

#include "base/mem.h"
#include "data/node.h"

/*
 * Design.  A thread runs the cursors below and puts what they give, errors in their
 * place too, into a ring; next takes from it.
 *
 * Invariants:
 *   (1) While the thread runs, the inputs belong to it alone: reset and close stop
 *       and join it first.
 *   (2) The thread ends by itself after the end of the data, else when `stop` is
 *       set; it looks at `stop` before each element, and everything below that may
 *       take long looks at it too (it is their cancel flag).
 *   (3) 0 <= count <= n; entries head .. head+count-1 (modulo n) are valid.
 *
 * The thread starts at the first next, so an iterator that is never used has none.
 * Waiting wakes up every POLL_MS to look at the cancel flags: they are flags only,
 * nobody signals.
 */
enum { POLL_MS = 20, PREFETCH_MAX = 1 << 16 };

struct prefetch {
  tm_dataset ds;
  int64_t n;
};

struct prefetch_entry {
  tm_row row;
  tm_status s;
  tm_err *err; /* of a failed element; NULL when there was no memory for it */
};

struct prefetch_cursor {
  tm_cursor c;
  tm_cancel *outer; /* of whoever waits for us */
  tm_cancel stop;   /* of the thread and everything below */
  struct prefetch_entry *ring;
  size_t n, head, count;        /* guarded by mu */
  bool ready;                   /* mu and the conditions exist */
  bool running;                 /* the thread is to be joined */
  bool end;                     /* the end was taken out of the ring */
  bool waits_full, waits_empty; /* guarded by mu: somebody sleeps */
  pthread_mutex_t mu;
  pthread_cond_t not_full, not_empty;
  pthread_t thread;
};

static void prefetch_pack(const tm_dataset *ds, tm_packer *w, tm_err *err) {
  (void)err;
  tm_pack_int(w, ((const struct prefetch *)ds)->n);
}

static tm_status prefetch_unpack(tm_unpacker *r, tm_dataset **in, int32_t nin,
                                 tm_dataset **out, tm_err *err) {
  (void)nin;
  return tm_data_prefetch(in[0], tm_unpack_int(r), out, err);
}

/* Wait a little on cv; mu is held. */
static void prefetch_wait(struct prefetch_cursor *k, pthread_cond_t *cv, bool *flag) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_nsec += POLL_MS * 1000000L;
  if (t.tv_nsec >= 1000000000L) {
    t.tv_nsec -= 1000000000L;
    t.tv_sec++;
  }
  *flag = true;
  pthread_cond_timedwait(cv, &k->mu, &t);
  *flag = false;
}

/* Put e in; false when stopped first. */
static bool prefetch_put(struct prefetch_cursor *k, struct prefetch_entry e) {
  bool ok = true;
  pthread_mutex_lock(&k->mu);
  while (ok && k->count == k->n) {
    ok = !tm_cancelled(&k->stop);
    if (ok) prefetch_wait(k, &k->not_full, &k->waits_full);
  }
  if (ok) {
    k->ring[(k->head + k->count) % k->n] = e;
    k->count++;
    if (k->waits_empty) pthread_cond_signal(&k->not_empty);
  }
  pthread_mutex_unlock(&k->mu);
  return ok;
}

static void entry_release(struct prefetch_entry *e) {
  tm_row_release(&e->row);
  tm_free(e->err, sizeof *e->err);
  e->err = NULL;
}

static void *prefetch_main(void *arg) {
  struct prefetch_cursor *k = arg;
  tm_status s = TM_OK;
  while (s != TM_ERANGE && !tm_cancelled(&k->stop)) {
    struct prefetch_entry e = {{NULL, 0}, TM_OK, NULL};
    tm_err err;
    tm_err_clear(&err);
    s = e.s = tm_cursor_next(k->c.in[0], &e.row, &err);
    if (s != TM_OK && s != TM_ERANGE) {
      e.err = tm_malloc(sizeof err);
      if (e.err) *e.err = err;
    }
    if (!prefetch_put(k, e)) {
      entry_release(&e);
      break;
    }
  }
  return NULL;
}

static tm_status prefetch_start(struct prefetch_cursor *k, tm_err *err) {
  tm_cancel_reset(&k->stop);
  if (pthread_create(&k->thread, NULL, prefetch_main, k) != 0)
    return tm_fail(err, TM_EEXHAUSTED, "prefetch: cannot start a thread");
  k->running = true;
  return TM_OK;
}

static void prefetch_halt(struct prefetch_cursor *k) {
  if (k->running) {
    pthread_mutex_lock(&k->mu);
    tm_cancel_set(&k->stop);
    pthread_cond_signal(&k->not_full);
    pthread_mutex_unlock(&k->mu);
    pthread_join(k->thread, NULL);
    k->running = false;
  }
  for (; k->count > 0; k->count--, k->head = (k->head + 1) % k->n)
    entry_release(&k->ring[k->head]);
  k->head = 0;
}

static tm_status prefetch_open(tm_cursor *c, tm_err *err) {
  struct prefetch_cursor *k = (struct prefetch_cursor *)c;
  k->outer = c->cancel;
  c->cancel = &k->stop; /* for the inputs, which open after this */
  k->n = (size_t)((const struct prefetch *)c->ds)->n;
  k->ring = tm_calloc(k->n, sizeof *k->ring);
  if (!k->ring) return tm_nomem(err, "prefetch");
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_mutex_init(&k->mu, NULL);
  pthread_cond_init(&k->not_full, &a);
  pthread_cond_init(&k->not_empty, &a);
  pthread_condattr_destroy(&a);
  k->ready = true;
  return TM_OK;
}

static void prefetch_close(tm_cursor *c) {
  struct prefetch_cursor *k = (struct prefetch_cursor *)c;
  if (!k->ready) {
    tm_free(k->ring, k->n * sizeof *k->ring);
    return;
  }
  prefetch_halt(k);
  pthread_cond_destroy(&k->not_empty);
  pthread_cond_destroy(&k->not_full);
  pthread_mutex_destroy(&k->mu);
  tm_free(k->ring, k->n * sizeof *k->ring);
}

static tm_status prefetch_take(struct prefetch_cursor *k, struct prefetch_entry *e,
                               tm_err *err) {
  tm_status s = TM_OK;
  pthread_mutex_lock(&k->mu);
  while (k->count == 0 && s == TM_OK) {
    if (tm_cancelled(k->outer))
      s = tm_fail(err, TM_ECANCELLED, "prefetch: cancelled");
    else
      prefetch_wait(k, &k->not_empty, &k->waits_empty);
  }
  if (s == TM_OK) {
    *e = k->ring[k->head];
    k->head = (k->head + 1) % k->n;
    k->count--;
    if (k->waits_full) pthread_cond_signal(&k->not_full);
  }
  pthread_mutex_unlock(&k->mu);
  return s;
}

/* Most elements are passed over, so none is made ahead. */
static tm_status prefetch_direct(struct prefetch_cursor *k, tm_row *out, tm_err *err) {
  tm_status s;
  tm_cancel_reset(&k->stop);
  if (tm_cancelled(k->outer)) return tm_fail(err, TM_ECANCELLED, "prefetch: cancelled");
  s = tm_cursor_next(k->c.in[0], out, err);
  k->end = s == TM_ERANGE;
  return s;
}

static tm_status prefetch_next(tm_cursor *c, tm_row *out, tm_err *err) {
  struct prefetch_cursor *k = (struct prefetch_cursor *)c;
  struct prefetch_entry e;
  if (k->end) return TM_ERANGE;
  if (c->env->sparse) return prefetch_direct(k, out, err);
  if (!k->running) TM_TRY(prefetch_start(k, err));
  TM_TRY(prefetch_take(k, &e, err));
  tm_status s = e.s;
  if (s == TM_OK) {
    *out = e.row;
    return TM_OK;
  }
  if (s == TM_ERANGE)
    k->end = true;
  else if (e.err && err)
    *err = *e.err;
  else
    s = tm_fail(err, s, "prefetch: an element failed");
  entry_release(&e);
  return s;
}

enum { PREFETCH_PASS = 1 << 16 }; /* elements between two looks at the flag */

static tm_status prefetch_pass(tm_cursor *c, int64_t n, int64_t *done, tm_err *err) {
  struct prefetch_cursor *k = (struct prefetch_cursor *)c;
  if (k->running) return tm_cursor_walk(c, n, done, err);
  if (k->end) return TM_ERANGE;
  tm_cancel_reset(&k->stop);
  for (*done = 0; *done < n;) {
    int64_t d, step = n - *done < PREFETCH_PASS ? n - *done : PREFETCH_PASS;
    if (tm_cancelled(k->outer))
      return tm_fail(err, TM_ECANCELLED, "prefetch: cancelled");
    tm_status s = tm_cursor_pass(c->in[0], step, &d, err);
    *done += d;
    if (s == TM_ERANGE) k->end = true;
    if (s != TM_OK) return s;
  }
  return TM_OK;
}

static void prefetch_reset(tm_cursor *c, bool fresh) {
  struct prefetch_cursor *k = (struct prefetch_cursor *)c;
  prefetch_halt(k);
  k->end = false;
  tm_cursor_reset(c->in[0], fresh);
}

const tm_data_class tm_class_prefetch = {
    .name = "prefetch",
    .code = 15,
    .nin = 1,
    .same = true,
    .silent = true,
    .size = sizeof(struct prefetch),
    .cursor_size = sizeof(struct prefetch_cursor),
    .pack = prefetch_pack,
    .unpack = prefetch_unpack,
    .open = prefetch_open,
    .next = prefetch_next,
    .pass = prefetch_pass,
    .reset = prefetch_reset,
    .close = prefetch_close,
};

tm_status tm_data_prefetch(tm_dataset *in, int64_t n, tm_dataset **out, tm_err *err) {
  *out = NULL;
  if (n < 1 || n > PREFETCH_MAX)
    return tm_fail(err, TM_EINVAL, "prefetch: %lld is not in 1..%d", (long long)n,
                   PREFETCH_MAX);
  TM_TRY(tm_dataset_like(&tm_class_prefetch, in, out, err));
  ((struct prefetch *)*out)->n = n;
  return TM_OK;
}
