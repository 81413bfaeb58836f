/*
 * state.h - what the executor asks of the outside: variables and iterators.
 *
 * A level of a step is one exchange: a batch of UPDATEs, applied first and in
 * order, then a batch of READs.  The implementation (cluster/) splits it by ps, one
 * request each.  The executor never sees shards.
 *
 * Ownership: requests are the caller's; a dense READ result is a tensor reference.
 * Threads:   one exchange at a time per tm_state handle.
 */
#ifndef TM_GRAPH_STATE_H
#define TM_GRAPH_STATE_H

#include "graph/type.h"

typedef enum tm_update_kind {
  TM_UP_ASSIGN = 1, /* whole variable = value */
  TM_UP_ADD,
  TM_UP_SUB,
  TM_UP_SCATTER_SET, /* rows ids = value rows (repeated ids: the last wins) */
  TM_UP_SCATTER_ADD, /* repeated ids add up */
  TM_UP_SCATTER_SUB,
  TM_UP_APPLY,     /* an optimizer's rule with a dense gradient */
  TM_UP_APPLY_ROWS /* the same by rows: ids unique, rows summed (the state layer
                      sums repeated ids before sending) */
} tm_update_kind;

enum { TM_MAX_HYPER = 8 };

typedef struct tm_update {
  tm_update_kind kind;
  uint64_t uid;       /* variable */
  int32_t shard;      /* -1: the whole variable; else only this shard of it */
  tm_view value;      /* dense value or rows */
  const tm_view *ids; /* (n) int64; NULL for dense kinds */
  int64_t nunique;    /* > 0: only the first nunique ids and rows count, and these ids
                         are distinct; fan is 0 */
  const char *rule;   /* "sgd" "rmsprop" "adagrad" "adam" "ftrl" ... */
  uint64_t optimizer; /* uid of the optimizer: slots are its own */
  int32_t nhyper;
  double hyper[TM_MAX_HYPER]; /* meaning by rule, see ps/rule.h; [0] = learning rate,
                                 from [1] on the op's `hyper` attribute */
  int64_t t;                  /* step number from 1 (Adam's bias correction) */
  int32_t fan; /* > 0 (APPLY_ROWS): value has a row for each `fan` ids: the gradient of
                  ids[i] is row i / fan of it, divided by fan when `mean` */
  bool mean;
  bool once; /* ADD, SUB, SCATTER_ADD, SCATTER_SUB: in a round it waits for its end, and
                the mean of all is added (of a row: of all that have it) */
} tm_update;

typedef enum tm_read_kind {
  TM_READ_DENSE = 1,
  TM_READ_ROWS,
  TM_READ_SLOT
} tm_read_kind;

typedef struct tm_read {
  tm_read_kind kind;
  uint64_t uid;
  int32_t shard;      /* -1: whole */
  const tm_view *ids; /* ROWS: any shape, int64 or int32; may repeat */
  int64_t nunique;    /* ROWS, > 0: only the first nunique ids count, and these are
                         distinct; other rows of dst are not written; fan is 0 */
  uint64_t optimizer; /* SLOT */
  const char *slot;   /* SLOT: "momentum", "rms", ... */
  tm_view dst;        /* ROWS: dst.data != NULL: ids.shape + row shape, filled here */
  int32_t fan;        /* > 0 (ROWS): dst row g is the sum of the rows of ids g * fan ..
                         g * fan + fan - 1, divided by fan when `mean` */
  bool mean;
  tm_tensor *out; /* DENSE, SLOT: set, a reference (may share the ps's version) */
} tm_read;

/* One row of tensors an iterator gives. */
typedef struct tm_state tm_state;
struct tm_state {
  /* Apply updates, then reads.  On failure err names task and variable, and nothing
   * of the reads is set. `token` makes repeated UPDATEs recognisable. */
  tm_status (*exchange)(tm_state *s, const tm_update *up, int32_t nup, tm_read *rd,
                        int32_t nrd, tm_err *err);
  /* The next element of an iterator resource: n tensors, a reference each.
   * TM_ERANGE at the end. */
  tm_status (*next)(tm_state *s, uint64_t iterator, tm_tensor **out, int32_t n,
                    tm_err *err);
  /* Type of a variable, for eager inference. TM_ENOTFOUND. */
  tm_status (*type_of)(tm_state *s, uint64_t uid, tm_type *out, tm_err *err);
};

#endif
