/*
 * moment.h - how far training was at the moment of a checkpoint, so that restoring it
 * neither applies an UPDATE twice nor miscounts what is lost.
 *
 * A closure may be in a checkpoint and yet be unfinished then: its UPDATE was applied,
 * its completion came later or never.  The moment remembers these with their tokens; a
 * ps that began anew is told them (tm_session_rewind), so it passes over the UPDATE
 * when the closure is run again.
 *
 * Closures lost = done now - done then - those of them that were in already; what went
 * back before is not counted again.  A closure of several turns that was in the middle
 * counts as kept.
 *
 * Moments are of a session that restores lost ps, and of its present coordinator (the
 * next one numbers closures anew); one of another is as good as none: nothing was done.
 *
 * Ownership: free.  Threads: the host's.
 */
#ifndef TM_CLUSTER_MOMENT_H
#define TM_CLUSTER_MOMENT_H

#include "cluster/session.h"

typedef struct tm_moment tm_moment;

/* Now.  *out is NULL where nothing can be lost and nothing is dealt out. */
TM_CHECKED tm_status tm_moment_note(tm_session *s, tm_moment **out, tm_err *err);
void tm_moment_free(tm_moment *m); /* m may be NULL */
/* Closures that were unfinished, and their turns on ps k, to be filled in. */
tm_token_list tm_moment_tokens(tm_moment *m, int32_t k);

/* The tokens are filled in: note what is done of iterators that are dealt out. */
TM_CHECKED tm_status tm_moment_deals(const tm_moment *m, tm_session *s, tm_err *err);

/* After tm_session_remake, while the coordinator is suspended: what was restored on the
 * fresh ps is of this moment (NULL: of the beginning).  *lost: closures whose changes
 * there are lost; counted once tm_session_go_on has gone on. */
TM_CHECKED tm_status tm_session_rewind(tm_session *s, const tm_moment *m,
                                       const bool *fresh, uint64_t *lost, tm_err *err);

#endif
