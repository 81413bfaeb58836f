/*
 * save_wire.h - what a chief and a ps tell each other of a snapshot; see docs/wire.md.
 *
 * Threads: pure functions.
 */
#ifndef TM_CLUSTER_SAVE_WIRE_H
#define TM_CLUSTER_SAVE_WIRE_H

#include "base/arena.h"
#include "base/pack.h"
#include "cluster/snapshot_file.h"

enum { TM_SAVE_PATH = 4096, TM_SAVE_NAME = 4096 };

/* q: closures whose turns are asked for; NULL: none. */
void tm_save_items_pack(tm_packer *w, const tm_snapshot_item *item, int32_t n,
                        const tm_token_list *q);
/* The lists come from the arena. */
TM_CHECKED tm_status tm_save_items_unpack(const void *p, size_t bytes, tm_arena *a,
                                          tm_snapshot_item **item, int32_t *n,
                                          tm_token_list *q, tm_err *err);

void tm_save_there_pack(tm_packer *w, uint64_t id, const tm_snapshot *sn,
                        const tm_token_list *q);
/* Of each part the number of its rows if it is a diff, else one of these. */
enum { TM_SAVE_ABSENT = -2, TM_SAVE_WHOLE = -1 };
int64_t tm_save_there(const tm_snapshot_part *p);
TM_CHECKED tm_status tm_save_there_unpack(const void *p, size_t bytes, uint64_t *id,
                                          int64_t *there, int32_t n, tm_token_list *q,
                                          tm_err *err);

/* Closures with their turns, for a ps that began anew. */
void tm_save_tokens_pack(tm_packer *w, const tm_token_list *q);
TM_CHECKED tm_status tm_save_tokens_unpack(const void *p, size_t bytes, tm_arena *a,
                                           tm_token_list *q, tm_err *err);

void tm_save_job_pack(tm_packer *w, uint64_t id, const tm_snapshot_job *job);
/* Texts and the list come from the arena. */
TM_CHECKED tm_status tm_save_job_unpack(const void *p, size_t bytes, tm_arena *a,
                                        uint64_t *id, tm_snapshot_job *job,
                                        tm_err *err);

void tm_save_answer_pack(tm_packer *w, const tm_snapshot_job *job);
TM_CHECKED tm_status tm_save_answer_unpack(const void *p, size_t bytes,
                                           tm_snapshot_job *job, tm_err *err);

/* Which bytes of a part; of none (part -1): whether all was of one moment. */
typedef struct tm_save_read {
  uint64_t id, at;
  int32_t part;
  uint32_t cap;
} tm_save_read;

void tm_save_read_pack(tm_packer *w, const tm_save_read *r);
TM_CHECKED tm_status tm_save_read_unpack(const void *p, size_t bytes, tm_save_read *r,
                                         tm_err *err);

#endif
