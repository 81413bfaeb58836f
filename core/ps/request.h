/*
 * request.h - what a worker (or the chief) asks of one ps: UPDATEs, then READs.
 *
 * In one process a request is handed to the store as it is (views point at the
 * caller's memory, dense reads share the store's version); over a socket it is one
 * frame each way (cluster/ps_wire.h).  UPDATEs are applied first, in order, then the
 * READs are answered; both parts have a status of their own.
 *
 * Row ids here are local to the shard (0-based), unique within one item for
 * APPLY_ROWS; summed by the sender.
 *
 * Ownership: everything belongs to the caller but `out`, a reference it receives.
 */
#ifndef TM_PS_REQUEST_H
#define TM_PS_REQUEST_H

#include <stdbool.h>

#include "tensor/tensor.h"

enum { TM_RULE_MAX_HYPER = 8, TM_PS_MAX_ITEMS = 65536 };

typedef enum tm_ps_up_kind {
  TM_PS_ASSIGN = 1,
  TM_PS_ADD,
  TM_PS_SUB,
  TM_PS_SCATTER_SET,
  TM_PS_SCATTER_ADD,
  TM_PS_SCATTER_SUB,
  TM_PS_APPLY,
  TM_PS_APPLY_ROWS
} tm_ps_up_kind;

static inline bool tm_ps_is_sum(tm_ps_up_kind k) {
  return k == TM_PS_ADD || k == TM_PS_SUB || k == TM_PS_SCATTER_ADD ||
         k == TM_PS_SCATTER_SUB;
}
static inline bool tm_ps_is_rows(tm_ps_up_kind k) {
  return k == TM_PS_APPLY_ROWS || (k >= TM_PS_SCATTER_SET && k <= TM_PS_SCATTER_SUB);
}

typedef struct tm_ps_update {
  tm_ps_up_kind kind;
  uint64_t uid; /* variable */
  uint32_t shard;
  const char *rule; /* APPLY*: name in ps/rule.h */
  uint64_t optimizer;
  int32_t nhyper;
  double hyper[TM_RULE_MAX_HYPER];
  int64_t t;
  tm_view value; /* dense, or rows (n, row...) */
  tm_view ids;   /* (n) int64; data NULL for dense kinds */
  bool once;     /* sums: in a round the mean of all is added */
} tm_ps_update;

typedef enum tm_ps_rd_kind { TM_PS_DENSE = 1, TM_PS_ROWS, TM_PS_SLOT } tm_ps_rd_kind;

typedef struct tm_ps_read {
  tm_ps_rd_kind kind;
  uint64_t uid;
  uint32_t shard;
  uint64_t optimizer; /* SLOT */
  const char *slot;
  tm_view ids; /* ROWS: (n) int64 */
  /* Where the answer goes.  ROWS: row k of the answer is written at
   * rows_at[k] (bytes of one row), or at dst + k * row_bytes when rows_at is NULL.
   * DENSE, SLOT: dst.data != NULL: copied there; else `out` is set. */
  tm_view dst;
  void *const *rows_at;
  tm_tensor *out;
} tm_ps_read;

/* Makes an UPDATE recognisable: a ps applies one token at most once.  The chief's own
 * belong to no closure: a client that may send one again numbers them (ps_remote.c). */
typedef struct tm_ps_token {
  uint64_t incarnation; /* of the sending task; without a closure: of the client */
  uint64_t closure;     /* number of the closure; 0: the chief's own */
  uint32_t turn;        /* level, or turn of a loop */
  uint64_t lowest;      /* lowest unfinished closure: tokens below are forgotten;
                           without a closure: the UPDATE's number, 0: no token */
  /* Of a closure in a round (ps/rounds.h): what an optimizer applies waits. */
  uint64_t round; /* 0: of none */
  uint64_t share; /* its part in it: another one each time that it is handed out */
} tm_ps_token;

/* Where rows of a checkpoint go: into a shard, or into a slot beside it, which is made
 * when it is not there. */
typedef struct tm_ps_place {
  uint64_t uid;
  uint32_t shard;
  int32_t slot;       /* number of the slot (ps/rule.h); -1: the elements */
  uint64_t optimizer; /* of the slot */
  int64_t first;      /* row of the shard */
} tm_ps_place;

typedef struct tm_ps_request {
  tm_ps_token token;
  int32_t nup, nrd;
  const tm_ps_update *up;
  tm_ps_read *rd;
  tm_status up_status, rd_status; /* the answer */
  tm_err err;                     /* of the first failed part */
} tm_ps_request;

#endif
