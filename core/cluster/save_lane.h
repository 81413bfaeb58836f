/*
 * save_lane.h - inside of saving: the way to the snapshot of one ps, in this process
 * (save_local.c) or another (save_remote.c).
 *
 *     l->take(l, items, n, err);   l->taken(l, there, err);
 *     l->write(l, &job, err);      l->written(l, &job, err);   -- or l->read, many
 * times l->close(l);                 -- the snapshot is released
 *
 * What has two calls begins in the first and is waited for in the second, so that
 * several ps work side by side.  After a failed call only close is allowed.
 *
 * Ownership: close frees it.  Threads: one at a time.
 */
#ifndef TM_CLUSTER_SAVE_LANE_H
#define TM_CLUSTER_SAVE_LANE_H

#include "cluster/ps_remote.h"
#include "cluster/snapshot_file.h"

enum { TM_SAVE_PIECE = 8 << 20 };

typedef struct tm_save_lane tm_save_lane;
struct tm_save_lane {
  char task[48]; /* "/job:ps/task:0" */
  /* One moment of these arrays, and of the closures in q (NULL: none); all stay the
   * caller's until taken, which gives the turns. */
  tm_status (*take)(tm_save_lane *l, const tm_snapshot_item *item, int32_t n,
                    tm_token_list *q, tm_err *err);
  tm_status (*taken)(tm_save_lane *l, int64_t *there, tm_err *err); /* tm_save_there */
  /* Write all that is there; the answer is in the job. */
  tm_status (*write)(tm_save_lane *l, tm_snapshot_job *job, tm_err *err);
  tm_status (*written)(tm_save_lane *l, tm_snapshot_job *job, tm_err *err);
  /* Bytes of a part from `at` on, at most cap <= TM_SAVE_PIECE; in order, each once.
   * Part n + i: numbers of the rows of part i, int64. */
  tm_status (*read)(tm_save_lane *l, int32_t part, uint64_t at, void *dst, size_t cap,
                    size_t *n, tm_err *err);
  /* Was all that was read of one moment? */
  tm_status (*finish)(tm_save_lane *l, tm_err *err);
  void (*close)(tm_save_lane *l);
};

TM_CHECKED tm_status tm_save_lane_local(tm_store *store, tm_cancel *cancel,
                                        tm_save_lane **out, tm_err *err);
/* A connection of its own to whoever serves the lane. */
TM_CHECKED tm_status tm_save_lane_remote(const tm_ps_remote_options *opt,
                                         tm_save_lane **out, tm_err *err);

#endif
