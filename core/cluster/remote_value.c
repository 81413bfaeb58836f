#include "cluster/remote_value.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"

void tm_cond_init_monotonic(pthread_cond_t *c) {
  pthread_condattr_t a;
  pthread_condattr_init(&a);
  pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
  pthread_cond_init(c, &a);
  pthread_condattr_destroy(&a);
}

/* Wait on c until signalled, the deadline (ns, < 0: none) or 50 ms when a cancel flag
 * is to be looked at. TM_ETIMEOUT, TM_ECANCELLED. */
tm_status tm_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *mu,
                             int64_t deadline_ns, tm_cancel *cancel) {
  if (tm_cancelled(cancel)) return TM_ECANCELLED;
  if (deadline_ns < 0 && !cancel) {
    pthread_cond_wait(c, mu);
    return TM_OK;
  }
  int64_t now = tm_now_ns(), until = now + 50000000;
  if (deadline_ns >= 0 && now >= deadline_ns) return TM_ETIMEOUT;
  if (!cancel || (deadline_ns >= 0 && deadline_ns < until)) until = deadline_ns;
  struct timespec ts = {(time_t)(until / 1000000000), (long)(until % 1000000000)};
  pthread_cond_timedwait(c, mu, &ts);
  return tm_cancelled(cancel) ? TM_ECANCELLED : TM_OK;
}

struct tm_remote_hub {
  atomic_int refs;
  pthread_mutex_t mu;
  pthread_cond_t changed;
};

struct tm_remote_value {
  atomic_int refs;
  tm_remote_hub *hub;
  uint64_t step;
  bool rounds;     /* as step: set once, before others have it */
  int32_t worker;  /* that ran it, -1: none yet; only read once `done` is seen */
  int64_t done_ns; /* when */
  bool done;       /* guarded by hub->mu, as all below; never changed once true */
  int32_t n;
  tm_tensor **out;
  tm_err *err; /* NULL: success */
  bool ended;  /* no data was left */
  bool oom;    /* the error itself could not be stored */
};

tm_status tm_remote_hub_new(tm_remote_hub **out) {
  tm_remote_hub *h = *out = tm_calloc(1, sizeof *h);
  if (!h) return TM_ENOMEM;
  atomic_init(&h->refs, 1);
  pthread_mutex_init(&h->mu, NULL);
  tm_cond_init_monotonic(&h->changed);
  return TM_OK;
}

void tm_remote_hub_unref(tm_remote_hub *h) {
  if (!h || atomic_fetch_sub_explicit(&h->refs, 1, memory_order_acq_rel) != 1) return;
  pthread_mutex_destroy(&h->mu);
  pthread_cond_destroy(&h->changed);
  tm_free(h, sizeof *h);
}

tm_status tm_remote_value_new(tm_remote_hub *h, tm_remote_value **out) {
  tm_remote_value *v = *out = tm_calloc(1, sizeof *v);
  if (!v) return TM_ENOMEM;
  atomic_init(&v->refs, 1);
  atomic_fetch_add_explicit(&h->refs, 1, memory_order_relaxed);
  v->hub = h;
  v->worker = -1;
  return TM_OK;
}

tm_remote_value *tm_remote_value_ref(tm_remote_value *v) {
  atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
  return v;
}

void tm_remote_value_unref(tm_remote_value *v) {
  if (!v || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
  for (int32_t i = 0; i < v->n; i++) tm_tensor_unref(v->out[i]);
  tm_free(v->out, (size_t)v->n * sizeof *v->out);
  if (v->err) tm_free(v->err, sizeof *v->err);
  tm_remote_hub_unref(v->hub);
  tm_free(v, sizeof *v);
}

void tm_remote_value_set_step(tm_remote_value *v, uint64_t step) { v->step = step; }
uint64_t tm_remote_value_step(tm_remote_value *v) { return v->step; }

void tm_remote_value_set_ran(tm_remote_value *v, int32_t worker, int64_t done_ns) {
  v->worker = worker;
  v->done_ns = done_ns;
}

int32_t tm_remote_value_ran(tm_remote_value *v, int64_t *done_ns) {
  pthread_mutex_lock(&v->hub->mu);
  int32_t worker = v->done ? v->worker : -1;
  *done_ns = v->done_ns;
  pthread_mutex_unlock(&v->hub->mu);
  return worker;
}
void tm_remote_value_set_rounds(tm_remote_value *v) { v->rounds = true; }
bool tm_remote_value_rounds(const tm_remote_value *v) { return v->rounds; }

const tm_remote_hub *tm_remote_value_hub(const tm_remote_value *v) { return v->hub; }

bool tm_remote_value_wanted(tm_remote_value *v) {
  return atomic_load_explicit(&v->refs, memory_order_relaxed) > 1;
}

void tm_remote_value_set(tm_remote_value *v, tm_tensor *const *out, int32_t n) {
  pthread_mutex_lock(&v->hub->mu);
  if (!v->done) {
    v->out = n ? tm_malloc((size_t)n * sizeof *v->out) : NULL;
    v->oom = n && !v->out;
    v->n = v->oom ? 0 : n;
    for (int32_t i = 0; i < v->n; i++) v->out[i] = tm_tensor_ref(out[i]);
    v->done = true;
    pthread_cond_broadcast(&v->hub->changed);
  }
  pthread_mutex_unlock(&v->hub->mu);
}

void tm_remote_value_fail(tm_remote_value *v, const tm_err *err) {
  pthread_mutex_lock(&v->hub->mu);
  if (!v->done) {
    v->err = tm_malloc(sizeof *v->err);
    v->oom = !v->err;
    if (v->err) *v->err = *err;
    v->done = true;
    pthread_cond_broadcast(&v->hub->changed);
  }
  pthread_mutex_unlock(&v->hub->mu);
}

void tm_remote_value_end(tm_remote_value *v) {
  pthread_mutex_lock(&v->hub->mu);
  if (!v->done) {
    v->ended = v->done = true;
    pthread_cond_broadcast(&v->hub->changed);
  }
  pthread_mutex_unlock(&v->hub->mu);
}

bool tm_remote_value_ended(tm_remote_value *v) {
  pthread_mutex_lock(&v->hub->mu);
  bool ended = v->ended;
  pthread_mutex_unlock(&v->hub->mu);
  return ended;
}

bool tm_remote_value_done(tm_remote_value *v) {
  pthread_mutex_lock(&v->hub->mu);
  bool done = v->done;
  pthread_mutex_unlock(&v->hub->mu);
  return done;
}

tm_status tm_remote_value_wait(tm_remote_value *v, int64_t timeout_ns,
                               tm_cancel *cancel, tm_tensor ***out, int32_t *n,
                               tm_err *err) {
  int64_t deadline = timeout_ns < 0 ? -1 : tm_now_ns() + timeout_ns;
  tm_status s = TM_OK;
  pthread_mutex_lock(&v->hub->mu);
  while (!v->done && s == TM_OK)
    s = tm_cond_wait_until(&v->hub->changed, &v->hub->mu, deadline, cancel);
  pthread_mutex_unlock(&v->hub->mu);
  if (s)
    return tm_fail(err, s, "fetch: %sclosure %" PRIu64 " has no result yet",
                   s == TM_ECANCELLED ? "interrupted; " : "", v->step);
  if (v->oom) return tm_nomem(err, "a result");
  if (v->err) {
    if (err) *err = *v->err;
    return v->err->code;
  }
  *out = v->out;
  *n = v->n;
  return TM_OK;
}
