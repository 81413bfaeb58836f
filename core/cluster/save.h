/*
 * save.h - variables of a cluster into a checkpoint, all of one moment, each ps writing
 * its own file while training goes on.
 *
 * Ownership: everything is the caller's.  Threads: the one that schedules; the writer
 * is used by this call alone.
 */
#ifndef TM_CLUSTER_SAVE_H
#define TM_CLUSTER_SAVE_H

#include "ckpt/writer.h"
#include "cluster/moment.h"

/* Rows of a tensor in the checkpoint: a variable or one shard of it, or a slot beside
 * it.  Items of one tensor follow each other in order of rows. */
typedef struct tm_save_item {
  const char *name;      /* of the tensor */
  const tm_shape *shape; /* of the whole tensor */
  uint64_t uid;
  int32_t shard;      /* -1: all of the variable */
  int64_t first;      /* row of the tensor where it begins */
  const char *slot;   /* NULL: the elements */
  uint64_t optimizer; /* of the slot */
  double start;       /* what a slot that a shard has not made yet would begin with */
} tm_save_item;

typedef struct tm_save_options {
  bool stream; /* the chief writes all files */
  bool still;  /* no UPDATE begins until they are written */
  /* Of row tables write only the rows that changed since the checkpoint at `base` (or
   * the one that it was based on) was saved with this mark.  NULL: all. */
  const char *base;
  uint64_t base_mark;
  uint64_t mark;     /* let a later save be based on this one; 0: not */
  tm_cancel *cancel; /* may be NULL */
} tm_save_options;

typedef struct tm_save_report {
  int64_t pause_ns; /* how long no UPDATE began */
  uint64_t bytes;   /* of all files but those of the base */
  uint64_t lent;    /* bytes of the tensors whose rows are the base's, */
  uint64_t patched; /* and of their rows that changed */
  int32_t streamed; /* ps whose files the chief wrote */
  /* What was done then: the caller's.  NULL: no ps will be restored. */
  tm_moment *moment;
} tm_save_report;

/* A slot that no shard has made is left out.  TM_EUNAVAILABLE: a ps was lost meanwhile;
 * TM_EEXHAUSTED: a full disk, naming path and task.
 * TM_EABORTED: rows changed faster than they could be written, and training did not
 * wait any longer; not with `still`. */
TM_CHECKED tm_status tm_session_save(tm_session *s, tm_ckpt_writer *w,
                                     const tm_save_item *item, size_t n,
                                     const tm_save_options *opt, tm_save_report *report,
                                     tm_err *err);

#endif
