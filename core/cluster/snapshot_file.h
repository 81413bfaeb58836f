/*
 * snapshot_file.h - a snapshot as a safetensors file, written by whoever holds it.
 *
 *     tm_snapshot_job job = {.dir = "/runs/ckpt-7.tmp-...", .file = "data-00000....",
 *                            .name = names, .n = n};
 *     TM_TRY(tm_snapshot_write(sn, &job, cancel, err));    -- job.size, job.crc
 *
 * The chief puts a file with a random text beside (the probe): who does not find it, or
 * may not write there, does not see the chief's directory (`unseen`), and the chief
 * writes the file itself.
 *
 * Threads: one at a time for a snapshot.
 */
#ifndef TM_CLUSTER_SNAPSHOT_FILE_H
#define TM_CLUSTER_SNAPSHOT_FILE_H

#include "base/cancel.h"
#include "ckpt/safetensors.h"
#include "ps/snapshot.h"

enum { TM_SNAPSHOT_WRITE = 1 << 20, TM_SNAPSHOT_TOKEN = 17 };
#define TM_SNAPSHOT_PROBE "checkpoint.json.probe"

typedef struct tm_snapshot_job {
  const char *dir, *file; /* file: a name in dir */
  const char *token;      /* what the probe holds; NULL: not asked for */
  const char *const
      *name; /* of each part of the snapshot; NULL where it is not there */
  /* Of each part: the entry for the numbers of its rows, NULL: none is wanted; and the
   * number of its first row. */
  const char *const *ids;
  const int64_t *first;
  int32_t n;
  /* the answer */
  bool unseen;
  uint64_t size;
  uint32_t crc;
} tm_snapshot_job;

/* Durable when it returns.  On failure, and when unseen, no file is left. */
TM_CHECKED tm_status tm_snapshot_write(tm_snapshot *sn, tm_snapshot_job *job,
                                       tm_cancel *cancel, tm_err *err);
/* Write the probe into dir; token is filled. */
TM_CHECKED tm_status tm_snapshot_probe(const char *dir, char token[TM_SNAPSHOT_TOKEN],
                                       tm_err *err);
void tm_snapshot_unprobe(const char *dir);

#endif
