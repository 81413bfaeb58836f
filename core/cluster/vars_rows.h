/*
 * vars_rows.h - inside of vars: the ids of one row READ or UPDATE, made distinct and
 * put in order of shards.  Included by vars*.c only.
 *
 *     tm_vars_rows *r;
 *     tm_vars_rows_of(v, info, only, ids, TM_ROWS_READ, &r, err);
 *     for k: shard k takes r->local[r->start[k]] .. r->local[r->start[k + 1] - 1]
 *
 * Ownership: answers live in the scratch memory of the exchange, and of the next one.
 */
#ifndef TM_CLUSTER_VARS_ROWS_H
#define TM_CLUSTER_VARS_ROWS_H

#include "base/arena.h"
#include "cluster/vars.h"

typedef struct tm_vars_rows {
  struct tm_vars_rows *next; /* of the same bucket, see vars_rows.c */
  const tm_var_info *info;
  int32_t only; /* -1, or the shard that ids count in */
  int64_t n;
  const int64_t *ids; /* n */
  int64_t nu;         /* distinct ids, in order of shards, then of appearance */
  int32_t *first;     /* nu: index of its first occurrence in ids */
  int32_t *inv;       /* n: which of the nu; NULL: not folded, nu is n */
  int64_t *local;     /* nu: the id within its shard */
  int64_t *start;     /* nshard + 1: where a shard's run begins */
} tm_vars_rows;

/* What an exchange knows of ids, and what the exchange before knew. */
typedef struct tm_vars_memory {
  tm_arena arena[2];
  tm_vars_rows *seen[2][64]; /* by uid */
  int now;
} tm_vars_memory;

typedef enum tm_rows_use {
  TM_ROWS_READ,   /* remembered, since an UPDATE of the same ids is likely to follow */
  TM_ROWS_UPDATE, /* looked up among the READs of the exchange before */
  TM_ROWS_PLAIN   /* repeated ids stay apart */
} tm_rows_use;

/* TM_EINVAL: an id is no row.  `ids` must stay as long as the exchange. */
TM_CHECKED tm_status tm_vars_rows_of(tm_vars *v, const tm_var_info *info, int32_t only,
                                     const tm_view *ids, tm_rows_use use,
                                     tm_vars_rows **out, tm_err *err);
/* The same for the first n ids, known to be distinct. */
TM_CHECKED tm_status tm_vars_rows_distinct(tm_vars *v, const tm_var_info *info,
                                           int32_t only, const tm_view *ids, int64_t n,
                                           tm_vars_rows **out, tm_err *err);
/* A new exchange begins. */
void tm_vars_rows_turn(tm_vars_memory *m);
/* Infos may have changed. */
void tm_vars_rows_forget(tm_vars_memory *m);
void tm_vars_rows_release(tm_vars_memory *m);
/* The variable's name for errors. */
const char *tm_vars_name(const tm_var_info *info);

#endif
