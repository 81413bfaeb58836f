/*
 * preempt.h - a watcher: says when this task is asked to leave.
 *
 *     tm_preempt_options o;
 *     TM_TRY(tm_preempt_environment(&o, "/job:chief/task:0", err));
 *     TM_TRY(tm_preempt_open(&o, &p, err));
 *     ... while (tm_preempt_get(p, seen + 1, &event)) seen++ ...
 *     tm_preempt_close(p);
 *
 * Signals are seen within 50 ms; a file, an address and the pod are looked at each
 * `interval`, and say their message once.  What cannot be reached is one line in the
 * log, not a message.
 *
 * Ownership: the caller's; options are copied.
 * Threads:   one thread a watcher, which calls on_message; get from any thread.
 */
#ifndef TM_CLUSTER_PREEMPT_H
#define TM_CLUSTER_PREEMPT_H

#include "cluster/preempt_source.h"

enum { TM_PREEMPT_SIGNALS = 8, TM_PREEMPT_KEPT = 16 };

typedef struct tm_preempt tm_preempt;

typedef struct tm_preempt_event {
  char text[TM_PREEMPT_TEXT + 60]; /* "/job:worker/task:1: SIGTERM" */
  int signal;                      /* 0: of another source */
  unsigned times;                  /* this signal came so often to this watcher */
} tm_preempt_event;

typedef struct tm_preempt_options {
  char task[48]; /* before each text; "": nothing */
  int signal[TM_PREEMPT_SIGNALS], nsignal;
  char file[1024];    /* "": none */
  tm_preempt_url url; /* url "": none */
  bool slurm;         /* SIGTERM and SIGUSR1; texts tell the job */
  bool kubernetes;    /* SIGTERM, and the pod below */
  tm_preempt_kube pod;
  double interval; /* seconds */
  /* > 0: so long after its first signal, or at once when its launcher is gone, the
   * watcher gives its signals back and sends them again to this process. */
  double grace;
  void (*on_message)(void *ud, const tm_preempt_event *e); /* may be NULL */
  void *ud;
} tm_preempt_options;

/* Nothing is watched, each second. */
void tm_preempt_none(tm_preempt_options *o, const char *task);
/* SIGTERM; the file and the address in TM_PREEMPTION_FILE and TM_PREEMPTION_URL; Slurm
 * inside of a job, Kubernetes inside of a pod. */
TM_CHECKED tm_status tm_preempt_environment(tm_preempt_options *o, const char *task,
                                            tm_err *err);
TM_CHECKED tm_status tm_preempt_add_signal(tm_preempt_options *o, int sig, tm_err *err);

TM_CHECKED tm_status tm_preempt_open(const tm_preempt_options *o, tm_preempt **out,
                                     tm_err *err);
/* Message n, from 1.  False: not yet.  Of old ones the last TM_PREEMPT_KEPT are kept;
 * an older one reads as the oldest of these. */
bool tm_preempt_get(tm_preempt *p, uint64_t n, tm_preempt_event *out);
void tm_preempt_close(tm_preempt *p); /* joins its thread; p may be NULL */

#endif
