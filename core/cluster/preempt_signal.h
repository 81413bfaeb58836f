/*
 * preempt_signal.h - counts signals that arrive, for whoever watches.
 *
 *     TM_TRY(tm_preempt_signal_take(SIGTERM, err));
 *     if (tm_preempt_signal_count(SIGTERM) != before) ...
 *     tm_preempt_signal_give(SIGTERM);
 *
 * One table a process: the first to take a signal installs the handler, the last to
 * give it back restores what was there before.  Only PreemptionWatcher and the
 * program's roles call this: a library handles no signal by itself.
 *
 * Threads: any.
 */
#ifndef TM_CLUSTER_PREEMPT_SIGNAL_H
#define TM_CLUSTER_PREEMPT_SIGNAL_H

#include "base/status.h"

/* The number of "SIGTERM", "SIGUSR1", ...; 0: not one that can be watched. */
int tm_preempt_signal_number(const char *name);
const char *tm_preempt_signal_name(int sig); /* "signal" for one without a name */

TM_CHECKED tm_status tm_preempt_signal_take(int sig, tm_err *err);
void tm_preempt_signal_give(int sig);
/* Arrivals since the process began, while somebody watched. */
unsigned tm_preempt_signal_count(int sig);

#endif
