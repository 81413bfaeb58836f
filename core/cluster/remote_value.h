/*
 * remote_value.h - the result of a closure, some time: a future.
 *
 * Values share one hub (mutex and condition) that outlives the coordinator, so a value
 * may be asked after its coordinator was closed.
 *
 * Ownership: refcounted; the coordinator holds one reference until it is set.
 * Threads:   any.
 */
#ifndef TM_CLUSTER_REMOTE_VALUE_H
#define TM_CLUSTER_REMOTE_VALUE_H

#include <pthread.h>

#include "base/cancel.h"
#include "tensor/tensor.h"

typedef struct tm_remote_hub tm_remote_hub;
typedef struct tm_remote_value tm_remote_value;

TM_CHECKED tm_status tm_remote_hub_new(tm_remote_hub **out);
void tm_remote_hub_unref(tm_remote_hub *h);

TM_CHECKED tm_status tm_remote_value_new(tm_remote_hub *h, tm_remote_value **out);
tm_remote_value *tm_remote_value_ref(tm_remote_value *v);
void tm_remote_value_unref(tm_remote_value *v);
void tm_remote_value_set_step(tm_remote_value *v, uint64_t step);
uint64_t tm_remote_value_step(tm_remote_value *v); /* number of the closure */
/* Which worker ran it (from 0) and when it was known to be done, tm_now_ns(); -1 before
 * that.  Set before the value. */
void tm_remote_value_set_ran(tm_remote_value *v, int32_t worker, int64_t done_ns);
int32_t tm_remote_value_ran(tm_remote_value *v, int64_t *done_ns);
/* It may come only when a round ends (coord_rounds.c). */
void tm_remote_value_set_rounds(tm_remote_value *v);
bool tm_remote_value_rounds(const tm_remote_value *v);
const tm_remote_hub *tm_remote_value_hub(const tm_remote_value *v);
/* Somebody besides the coordinator holds it. */
bool tm_remote_value_wanted(tm_remote_value *v);
/* Set once: outputs (references are taken), or an error. */
void tm_remote_value_set(tm_remote_value *v, tm_tensor *const *out, int32_t n);
void tm_remote_value_fail(tm_remote_value *v, const tm_err *err);
/* Set too: there was no data left for the closure.  wait gives no outputs then. */
void tm_remote_value_end(tm_remote_value *v);
bool tm_remote_value_ended(tm_remote_value *v);
bool tm_remote_value_done(tm_remote_value *v);
/* Wait (timeout_ns < 0: for ever); then *out, *n are borrowed outputs, or the error of
 * the closure is returned.  TM_ETIMEOUT, TM_ECANCELLED by `cancel`. */
TM_CHECKED tm_status tm_remote_value_wait(tm_remote_value *v, int64_t timeout_ns,
                                          tm_cancel *cancel, tm_tensor ***out,
                                          int32_t *n, tm_err *err);

/* Condition variables on the monotonic clock, with deadline and cancel. */
void tm_cond_init_monotonic(pthread_cond_t *c);
TM_CHECKED tm_status tm_cond_wait_until(pthread_cond_t *c, pthread_mutex_t *mu,
                                        int64_t deadline_ns, tm_cancel *cancel);

#endif
