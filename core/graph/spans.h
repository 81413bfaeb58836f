/*
 * spans.h - when ops ran: an opt-in record of one thread's steps, for a timeline.
 *
 *     tm_spans *sp;
 *     TM_TRY(tm_spans_new(100000, &sp));
 *     env.spans = sp;                     -- runs with this environment add to it
 *     ... tm_program_run(...) ...
 *     for (i = 0; i < sp->n; i++) ... sp->span[i] ...
 *     tm_spans_free(sp);
 *
 * Bounded: what comes after the last place is counted in `lost`.  Where env.spans is
 * NULL, as ever, a step looks at one pointer for each op.
 *
 * Ownership: new gives it, free takes it; names are of ops, which live for ever.
 * Threads:   one at a time.
 */
#ifndef TM_GRAPH_SPANS_H
#define TM_GRAPH_SPANS_H

#include <stdint.h>

#include "base/clock.h"
#include "base/status.h"

typedef struct tm_span {
  const char *name;
  int64_t from, to; /* tm_now_ns() */
} tm_span;

typedef struct tm_spans {
  int64_t n, cap, lost;
  tm_span span[];
} tm_spans;

TM_CHECKED tm_status tm_spans_new(int64_t cap, tm_spans **out);
void tm_spans_free(tm_spans *sp); /* sp may be NULL */
void tm_spans_add(tm_spans *sp, const char *name, int64_t from);

/* When something begins; 0 where nobody records. */
static inline int64_t tm_spans_now(const tm_spans *sp) { return sp ? tm_now_ns() : 0; }

#endif
