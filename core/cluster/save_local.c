#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "cluster/save_lane.h"
#include "cluster/save_wire.h"

/*
 * Design.  The store is of this process: a snapshot is a call, its file is written by a
 * thread of its own.
 *
 * Invariant: `running` is true from write to written; close waits for the thread.
 */
typedef struct local_lane {
  tm_save_lane l; /* first */
  tm_store *store;
  tm_cancel *cancel; /* the caller's */
  tm_snapshot *sn;
  pthread_t thread;
  bool running;
  tm_snapshot_job *job; /* the thread's, while it runs */
  tm_status status;
  tm_err err;
} local_lane;

static tm_status local_take(tm_save_lane *l, const tm_snapshot_item *item, int32_t n,
                            tm_token_list *q, tm_err *err) {
  local_lane *a = (local_lane *)l;
  return tm_snapshot_take_tokens(a->store, item, n, q, &a->sn, err);
}

static tm_status local_taken(tm_save_lane *l, int64_t *there, tm_err *err) {
  local_lane *a = (local_lane *)l;
  (void)err;
  for (int32_t i = 0; i < tm_snapshot_count(a->sn); i++)
    there[i] = tm_save_there(tm_snapshot_part_at(a->sn, i));
  return TM_OK;
}

static void *local_thread(void *ud) {
  local_lane *a = ud;
  a->status = tm_snapshot_write(a->sn, a->job, a->cancel, &a->err);
  return NULL;
}

static tm_status local_write(tm_save_lane *l, tm_snapshot_job *job, tm_err *err) {
  local_lane *a = (local_lane *)l;
  tm_err_clear(&a->err);
  a->job = job;
  if (pthread_create(&a->thread, NULL, local_thread, a))
    return tm_fail(err, TM_EEXHAUSTED, "no thread to write a checkpoint with");
  a->running = true;
  return TM_OK;
}

static tm_status local_written(tm_save_lane *l, tm_snapshot_job *job, tm_err *err) {
  local_lane *a = (local_lane *)l;
  (void)job;
  pthread_join(a->thread, NULL);
  a->running = false;
  if (a->status && err) *err = a->err;
  return a->status;
}

static tm_status local_read(tm_save_lane *l, int32_t part, uint64_t at, void *dst,
                            size_t cap, size_t *n, tm_err *err) {
  local_lane *a = (local_lane *)l;
  tm_snapshot_piece p;
  if (tm_cancelled(a->cancel))
    return tm_fail(err, TM_ECANCELLED, "the checkpoint was given up");
  int32_t parts = tm_snapshot_count(a->sn);
  if (part >= parts) {
    *n = sizeof(int64_t) * tm_snapshot_ids(a->sn, part - parts,
                                           (int64_t)(at / sizeof(int64_t)), dst,
                                           cap / sizeof(int64_t));
    return TM_OK;
  }
  tm_snapshot_next(a->sn, part, at, dst, cap, &p);
  if (p.p != dst) memcpy(dst, p.p, p.n);
  *n = p.n;
  return TM_OK;
}

static tm_status local_finish(tm_save_lane *l, tm_err *err) {
  return tm_snapshot_status(((local_lane *)l)->sn, err);
}

static void local_close(tm_save_lane *l) {
  local_lane *a = (local_lane *)l;
  if (a->running) pthread_join(a->thread, NULL);
  tm_snapshot_free(a->sn);
  tm_free(a, sizeof *a);
}

tm_status tm_save_lane_local(tm_store *store, tm_cancel *cancel, tm_save_lane **out,
                             tm_err *err) {
  *out = NULL;
  local_lane *a = tm_calloc(1, sizeof *a);
  if (!a) return tm_nomem(err, "a checkpoint");
  a->l = (tm_save_lane){.take = local_take,
                        .taken = local_taken,
                        .write = local_write,
                        .written = local_written,
                        .read = local_read,
                        .finish = local_finish,
                        .close = local_close};
  memcpy(a->l.task, tm_store_task(store), sizeof a->l.task);
  a->store = store;
  a->cancel = cancel;
  *out = &a->l;
  return TM_OK;
}
