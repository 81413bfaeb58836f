/*
 * launch_task.h - one process that `tidemill launch` keeps: started, heard, started
 * again when it dies.
 *
 *     tm_launch_task_init(t, loop, "worker", 3);
 *     r = tm_launch_task_start(t, args, env);         -- t->ended is called when it
 * ends delay = tm_launch_task_died(t, now);             -- ms to wait before the next
 * start
 *
 * What workers and ps print is passed on line by line, "[worker 3] " before each; the
 * chief has the launcher's own streams.
 *
 * Ownership: the caller's struct, which must outlive the loop's run.  A process and its
 * pipes are a life of their own: the next may begin before they are closed.
 * Threads:   the loop's.
 */
#ifndef TM_HOST_LAUNCH_TASK_H
#define TM_HOST_LAUNCH_TASK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum {
  TM_LAUNCH_DEATHS_MAX = 100, /* `deaths` is at most that */
  TM_LAUNCH_WITHIN_S = 60,
  TM_LAUNCH_DELAY_MS = 100,
  TM_LAUNCH_DELAY_MAX_MS = 5000
};

typedef struct tm_launch_task tm_launch_task;
struct tm_launch_task {
  const char *job; /* "chief", "worker", "ps", "evaluator" */
  int index;
  char name[48]; /* "/job:worker/task:3" */
  void (*ended)(tm_launch_task *t, int64_t status, int sig);
  void *ud;
  uv_loop_t *loop;
  struct launch_life *life; /* NULL: it does not run */
  uv_timer_t again;         /* of its next start; whoever runs the tasks uses it */
  int inherit;              /* a descriptor that it has as 3, or -1 */
  int deaths;               /* more of them within TM_LAUNCH_WITHIN_S are too many */
  int ndeath;
  int64_t death[TM_LAUNCH_DEATHS_MAX + 1]; /* ns: the last ones */
};

void tm_launch_task_init(tm_launch_task *t, uv_loop_t *loop, const char *job,
                         int index);
bool tm_launch_task_runs(const tm_launch_task *t);
/* 0, or what libuv says. */
int tm_launch_task_start(tm_launch_task *t, char **args, char **env);
void tm_launch_task_signal(tm_launch_task *t, int sig);
/* It died, or could not be started: milliseconds until the next try (100, doubling to
 * 5,000), -1 when it died too often. */
int tm_launch_task_died(tm_launch_task *t, int64_t now_ns);

#endif
