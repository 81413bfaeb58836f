/*
 * rounds.h - what optimizers apply in a round, until it ends.
 *
 * With mode "sync" the closures of a round are shares of it.  Their UPDATEs that wait
 * (of a rule, and sums that count once) are kept aside; when the coordinator says which
 * shares count, their mean is applied once and all else of the round is dropped, what
 * comes later too.
 *
 *     TM_TRY(tm_rounds_keep(r, &token, up, nup, err));   -- of each share
 *     if (tm_rounds_begin(r, &end)) {                    -- not ended yet
 *       TM_TRY(tm_rounds_mean(r, &end, &mean, err));     -- mean.up, mean.n: apply them
 *       tm_rounds_end(r, &end, &mean);
 *     }
 *
 * The sum runs in the order in which the shares are named, so its bits do not depend on
 * who was first.  A dense gradient is summed in the memory of its first share: the
 * mean can be made once.
 *
 * Bounds: TM_ROUNDS_MAX shares; each has what its closure applies, once.
 * Ownership: keep copies.  Threads: any; begin waits for the end of another begin.
 */
#ifndef TM_PS_ROUNDS_H
#define TM_PS_ROUNDS_H

#include <stdbool.h>

#include "ps/request.h"

enum { TM_ROUNDS_MAX = 8192 };

typedef struct tm_rounds tm_rounds;

/* The end of a round: the shares that count, in order. */
typedef struct tm_ps_commit {
  uint64_t round;
  const uint64_t *share;
  int32_t n;
} tm_ps_commit;

typedef struct tm_rounds_means {
  tm_ps_update *up; /* n, in order */
  int32_t n, max;
  struct tm_rounds_block { /* memory of their own */
    void *p;
    size_t size;
  } * block;
  int32_t nblock, max_block;
} tm_rounds_means;

TM_CHECKED tm_status tm_rounds_new(tm_rounds **out);
void tm_rounds_free(tm_rounds *r); /* r may be NULL */

/* Does this one wait, in a round? */
static inline bool tm_ps_waits(const tm_ps_update *up) {
  return up->kind >= TM_PS_APPLY || up->once;
}

/* Keep those that wait; once, and nothing of a round that has ended. */
TM_CHECKED tm_status tm_rounds_keep(tm_rounds *r, const tm_ps_token *token,
                                    const tm_ps_update *up, int32_t n, tm_err *err);
/* False: this round has ended before, all is done. */
bool tm_rounds_begin(tm_rounds *r, const tm_ps_commit *c);
TM_CHECKED tm_status tm_rounds_mean(tm_rounds *r, const tm_ps_commit *c,
                                    tm_rounds_means *out, tm_err *err);
/* Also after a failure: the round is over. */
void tm_rounds_end(tm_rounds *r, const tm_ps_commit *c, tm_rounds_means *m);
/* Rounds count from 1 again. */
void tm_rounds_forget(tm_rounds *r);

/* For a copy: the last round that ended, and what is kept of a shard. */
uint64_t tm_rounds_last(tm_rounds *r);
void tm_rounds_set_last(tm_rounds *r, uint64_t round);
typedef tm_status (*tm_rounds_each)(void *ud, const tm_ps_token *token,
                                    const tm_ps_update *up, tm_err *err);
TM_CHECKED tm_status tm_rounds_of_shard(tm_rounds *r, uint64_t uid, uint32_t shard,
                                        tm_rounds_each fn, void *ud, tm_err *err);
uint64_t tm_rounds_bytes(tm_rounds *r); /* kept aside now */

#endif
