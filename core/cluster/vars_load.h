/*
 * vars_load.h - variables from a checkpoint: each ps reads what it holds, side by side;
 * rows for one that does not see the checkpoint, and for stores of this process, are
 * read here and handed over in pieces.
 *
 * Called twice: with `check` everything is compared (names, dtypes, shapes, checksums)
 * and nothing is changed.
 *
 * Threads: as tm_vars.
 */
#ifndef TM_CLUSTER_VARS_LOAD_H
#define TM_CLUSTER_VARS_LOAD_H

#include "ckpt/reader.h"
#include "cluster/vars.h"

typedef struct tm_vars_load_item {
  uint64_t uid;
  int32_t shard;           /* of the variable; -1: all */
  const tm_ckpt_tensor *t; /* where its rows are, */
  int64_t from;            /* from this one on (the first of the shard, if one) */
  int32_t slot;            /* number (ps/rule.h); -1: the elements */
  uint64_t optimizer;      /* of the slot */
} tm_vars_load_item;

/* path: of the checkpoint that r reads, absolute.  cancel (may be NULL) is looked at
 * between pieces. */
TM_CHECKED tm_status tm_vars_load(tm_vars *v, tm_ckpt_reader *r, const char *path,
                                  const tm_vars_load_item *item, size_t n, bool check,
                                  tm_cancel *cancel, tm_err *err);

#endif
