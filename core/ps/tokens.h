/*
 * tokens.h - which UPDATEs a ps has applied, and whose it refuses.
 *
 * A worker numbers the UPDATEs of a closure upwards (turn), so per closure the highest
 * turn is enough: an UPDATE at or below it came before.  Closures below the lowest
 * unfinished one are forgotten; the table holds at most TM_TOKENS_MAX closures.
 *
 * Threads: any.
 */
#ifndef TM_PS_TOKENS_H
#define TM_PS_TOKENS_H

#include <stdbool.h>

#include "ps/request.h"

enum { TM_TOKENS_MAX = 1 << 20, TM_REFUSED_MAX = 1024 };

typedef struct tm_tokens tm_tokens;

TM_CHECKED tm_status tm_tokens_new(tm_tokens **out);
void tm_tokens_free(tm_tokens *t); /* t may be NULL */

/* Take the token: *repeat says that it was taken before.  *before is what
 * tm_tokens_undo wants.  TM_EABORTED: its task is refused. */
TM_CHECKED tm_status tm_tokens_take(tm_tokens *t, const tm_ps_token *token,
                                    bool *repeat, uint64_t *before, tm_err *err);
/* The UPDATE failed and changed nothing: give the token back. */
void tm_tokens_undo(tm_tokens *t, const tm_ps_token *token, uint64_t before);

void tm_tokens_refuse(tm_tokens *t, uint64_t incarnation);
/* Forget every token (a new coordinator counts closures from 1 again). */
void tm_tokens_forget(tm_tokens *t);

#endif
