/*
 * vars_split.h - inside of vars: turning one exchange into requests by ps, and
 * answers back into what was asked.  Included by vars*.c only.
 */
#ifndef TM_CLUSTER_VARS_SPLIT_H
#define TM_CLUSTER_VARS_SPLIT_H

#include "base/arena.h"
#include "cluster/vars_rows.h"

/* What goes to one ps (or the local store). */
typedef struct tm_vars_lane {
  tm_ps_request rq;
  int32_t nup, cap_up, nrd, cap_rd;
  tm_ps_update *up; /* in the arena */
  tm_ps_read *rd;
  uint64_t bytes_up, bytes_rd;
  bool sent;
  /* These stay from one exchange to the next: */
  bool applied;  /* the UPDATEs of the last exchange were */
  uint32_t anew; /* how often the client was replaced */
} tm_vars_lane;

/* A row read whose repeated ids are copied once the answer is in. */
typedef struct tm_vars_repeat {
  struct tm_vars_repeat *next;
  uint8_t *dst;
  size_t row_bytes;
  int64_t n;
  const int32_t *first, *inv;
  const void *rows;     /* combined read: distinct rows, summed into dst; else NULL */
  const int32_t *start; /* groups + 1: where a group's run of inv begins */
  const tm_read *rd;
  tm_dtype dtype;
} tm_vars_repeat;

/* A whole read of an unsharded variable: the answer's tensor is the result. */
typedef struct tm_vars_whole {
  struct tm_vars_whole *next;
  int32_t lane, item; /* where the answer is */
  tm_read *rd;
} tm_vars_whole;

typedef struct tm_vars_scratch {
  tm_arena arena;
  tm_vars_memory rows;
  tm_vars_lane *lane; /* nps + 1 */
  tm_vars_repeat *repeats;
  tm_vars_whole *wholes;
  tm_read *rd; /* of the open exchange */
  int32_t nrd;
  bool open;
  bool again; /* the next exchange is one that failed: what was applied stays */
  struct tm_map *cache; /* uid -> tm_var_info */
  uint64_t version;
} tm_vars_scratch;

/* A borrowed info. TM_ENOTFOUND. */
TM_CHECKED tm_status tm_vars_info(tm_vars *v, uint64_t uid, tm_var_info **out,
                                  tm_err *err);
TM_CHECKED tm_status tm_vars_split(tm_vars *v, const tm_update *up, int32_t nup,
                                   tm_read *rd, int32_t nrd, tm_err *err);
/* After a good answer: hand out tensors, copy repeated rows. */
void tm_vars_join_reads(tm_vars *v);
/* After a failure: drop tensors made for reads. */
void tm_vars_forget_reads(tm_vars *v);

#endif
