/*
 * tokens.h - which UPDATEs a ps has applied, and whose it refuses.
 *
 * A worker numbers the UPDATEs of a closure upwards (turn), so per closure the highest
 * turn is enough: an UPDATE at or below it came before.  Closures below the lowest
 * unfinished one are forgotten; the table holds at most TM_TOKENS_MAX closures.
 *
 * The chief's own UPDATEs belong to no closure: each of its clients numbers them, and
 * the last number is remembered for the TM_CLIENTS_MAX clients that came last.
 *
 *     tm_token_use use;
 *     TM_TRY(tm_tokens_take(t, &token, &use, err));
 *     if (!use.repeat) ok = apply();
 *     tm_tokens_end(t, &use, ok);
 *
 * Whoever takes a token that is in use waits for its end, so a request that was sent
 * again is answered when the first one has been applied.
 *
 * Threads: any.
 */
#ifndef TM_PS_TOKENS_H
#define TM_PS_TOKENS_H

#include <stdbool.h>

#include "base/pack.h"
#include "ps/request.h"

enum { TM_TOKENS_MAX = 1 << 20, TM_REFUSED_MAX = 1024, TM_CLIENTS_MAX = 256 };

typedef struct tm_tokens tm_tokens;

/* A token between take and end; the caller's memory. */
typedef struct tm_token_use {
  struct tm_token_use *next;
  tm_ps_token token;
  bool repeat;     /* it was taken before: do not apply */
  uint64_t before; /* what was remembered */
} tm_token_use;

TM_CHECKED tm_status tm_tokens_new(tm_tokens **out);
void tm_tokens_free(tm_tokens *t); /* t may be NULL */

/* TM_EABORTED: its task is refused.  After a failure there is nothing to end. */
TM_CHECKED tm_status tm_tokens_take(tm_tokens *t, const tm_ps_token *token,
                                    tm_token_use *use, tm_err *err);
/* applied false: the UPDATE failed and changed nothing; the token is given back. */
void tm_tokens_end(tm_tokens *t, tm_token_use *use, bool applied);

void tm_tokens_refuse(tm_tokens *t, uint64_t incarnation);
/* Forget every token (a new coordinator counts closures from 1 again). */
void tm_tokens_forget(tm_tokens *t);

/* How many turns of each of these closures came (the highest and 1; 0: none).  Exact
 * while no token is between take and end. */
void tm_tokens_look(tm_tokens *t, const uint64_t *closure, int32_t n, uint64_t *turns);
/* So many turns of these came; nothing is taken away. */
TM_CHECKED tm_status tm_tokens_add(tm_tokens *t, const uint64_t *closure,
                                   const uint64_t *turns, int32_t n, tm_err *err);

/* All of it as one value; unpacking replaces what t remembers.  Failures stay in the
 * packer and unpacker. */
void tm_tokens_pack(tm_tokens *t, tm_packer *w);
void tm_tokens_unpack(tm_tokens *t, tm_unpacker *r);

#endif
