/*
 * term.h - which chief is in charge of a task.
 *
 * Terms are ordered by their number, then by the incarnation of the chief, so no two
 * chiefs have the same, and of two that begin at once one is the later everywhere.  A
 * chief asks every task for the highest term that it granted (claim), takes the number
 * after the highest of the answers, and starts the tasks in that term.  Every hello
 * carries the term in which its connection works; a task refuses what is of a lower one
 * than it granted, with TM_EABORTED.  So the chief that came last is in charge, and
 * the one before it ends.
 *
 * Threads: pure functions; a claim waits.
 */
#ifndef TM_CLUSTER_TERM_H
#define TM_CLUSTER_TERM_H

#include "net/channel.h"

/* < 0: a is the earlier one; 0: the same. */
int tm_term_order(const tm_term *a, const tm_term *b);

/* TM_EABORTED, saying that `task` granted a higher term than `asked`. */
tm_status tm_term_refuse(const char *task, const tm_term *asked, const tm_term *granted,
                         tm_err *err);

void tm_term_pack(tm_packer *w, const tm_term *t);
TM_CHECKED tm_status tm_term_unpack(const void *p, size_t n, tm_term *t, tm_err *err);

/* Ask the task that opt describes, over a connection of its own. */
TM_CHECKED tm_status tm_term_claim(const tm_channel_options *opt, tm_term *granted,
                                   tm_err *err);

#endif
