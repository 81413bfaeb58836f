/*
 * claim.h - one of several processes does a piece of work, and it is done once.
 *
 * A claim is a file.  Who makes it, or finds it without an owner, has the work; the
 * owner holds a lock, so one that dies gives it back at once.  Where the file system
 * has no locks, and for an owner that hangs, others look whether the file's time
 * changes: the owner touches it (beat); others break one that stood still for too long,
 * and its owner finds out.
 *
 *     TM_TRY(tm_claim_take(path, "7f3a-120", &c, &found, err));
 *     if (found == TM_CLAIM_MINE) { work, with tm_claim_beat(c) now and then;
 *                                   tm_claim_finish(c); }
 *     tm_claim_free(c);                  -- not finished: others may have it
 *
 * `of` says which work it is: what was finished for another one counts for nothing.
 *
 * Ownership: the caller frees the claim.  Threads: one at a time.
 */
#ifndef TM_CKPT_CLAIM_H
#define TM_CKPT_CLAIM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct tm_claim tm_claim;

typedef enum tm_claim_state {
  TM_CLAIM_MINE,
  TM_CLAIM_HELD,
  TM_CLAIM_DONE
} tm_claim_state;

enum { TM_CLAIM_OF = 64 };

/* *out is NULL unless it is MINE.  The directory is made where it is missing. */
TM_CHECKED tm_status tm_claim_take(const char *path, const char *of, tm_claim **out,
                                   tm_claim_state *found, tm_err *err);
/* Say that the owner lives.  False: somebody broke it, the work is no longer ours. */
bool tm_claim_beat(tm_claim *c);
/* As beat; the work is done. */
bool tm_claim_finish(tm_claim *c);
void tm_claim_free(tm_claim *c); /* c may be NULL */

/* A number that changes with each beat of the owner; 0: there is no such file. */
uint64_t tm_claim_mark(const char *path);
/* Take a claim away whose mark still is this one. */
void tm_claim_break(const char *path, uint64_t mark);
/* Remove a claim that nobody holds; the directory, when it was the last. */
void tm_claim_forget(const char *path);

#endif
