#include "cluster/preempt_signal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/check.h"

/*
 * Design.  The handler only counts; watchers look.
 *
 * Invariants:
 *   (1) users[sig] > 0 exactly while our handler was installed by us and not yet taken
 *       away; `before` is then what it replaced.
 *   (2) A handler that somebody installed after ours is left alone.
 */
enum { PREEMPT_SIGNALS = 32 };

static pthread_mutex_t signal_mu = PTHREAD_MUTEX_INITIALIZER;
static unsigned signal_users[PREEMPT_SIGNALS];          /* guarded by signal_mu */
static struct sigaction signal_before[PREEMPT_SIGNALS]; /* guarded by signal_mu */
static atomic_uint signal_hits[PREEMPT_SIGNALS];

static const struct {
  const char *name;
  int number;
} signal_names[] = {
    {"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},   {"SIGHUP", SIGHUP},
    {"SIGUSR1", SIGUSR1}, {"SIGUSR2", SIGUSR2}, {"SIGQUIT", SIGQUIT},
    {"SIGALRM", SIGALRM}, {"SIGXCPU", SIGXCPU}, {"SIGCONT", SIGCONT},
};

int tm_preempt_signal_number(const char *name) {
  for (size_t i = 0; i < TM_COUNT(signal_names); i++)
    if (strcmp(name, signal_names[i].name) == 0) return signal_names[i].number;
  return 0;
}

const char *tm_preempt_signal_name(int sig) {
  for (size_t i = 0; i < TM_COUNT(signal_names); i++)
    if (sig == signal_names[i].number) return signal_names[i].name;
  return "signal";
}

static void signal_on(int sig) {
  if (sig > 0 && sig < PREEMPT_SIGNALS) atomic_fetch_add(&signal_hits[sig], 1);
}

tm_status tm_preempt_signal_take(int sig, tm_err *err) {
  struct sigaction sa;
  if (sig <= 0 || sig >= PREEMPT_SIGNALS)
    return tm_fail(err, TM_EINVAL, "signal %d cannot be watched", sig);
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = signal_on;
  sa.sa_flags = SA_RESTART; /* a message, not an interrupt */
  tm_status s = TM_OK;
  pthread_mutex_lock(&signal_mu);
  if (signal_users[sig] == 0 &&
      sigaction(sig, &sa, &signal_before[sig])) /* allowed: an explicit call */
    s = tm_fail(err, TM_EINVAL, "%s cannot be watched: %s", tm_preempt_signal_name(sig),
                strerror(errno));
  if (s == TM_OK) signal_users[sig]++;
  pthread_mutex_unlock(&signal_mu);
  return s;
}

void tm_preempt_signal_give(int sig) {
  struct sigaction now;
  pthread_mutex_lock(&signal_mu);
  TM_DCHECK(signal_users[sig] > 0);
  if (--signal_users[sig] == 0 &&
      sigaction(sig, NULL, &now) == 0 && /* allowed: takes back what take did */
      now.sa_handler == signal_on)
    (void)sigaction(sig, &signal_before[sig], NULL); /* allowed: the same (2) */
  pthread_mutex_unlock(&signal_mu);
}

unsigned tm_preempt_signal_count(int sig) { return atomic_load(&signal_hits[sig]); }
