/*
 * spec.h - which tasks a cluster has, and which of them this process is: the JSON of
 * TM_CONFIG and TF_CONFIG.
 *
 *     {"cluster": {"worker": ["h:1", "h:2"], "ps": {"0": "h:3"}, "chief": ["h:4"]},
 *      "task": {"type": "worker", "index": 0}, "cluster_id": "mine"}
 *
 * A job is a list, or an object from index to address.  An index may be a string of
 * digits.  Unknown keys are passed over, as TensorFlow does.
 *
 * Ownership: the caller's; free it.  Threads: pure functions, but for the environment.
 */
#ifndef TM_CLUSTER_SPEC_H
#define TM_CLUSTER_SPEC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { TM_SPEC_MAX_JOBS = 16, TM_SPEC_MAX_TASKS = 4096, TM_CLUSTER_ID = 64 };

typedef struct tm_spec_job {
  char name[32];
  int32_t n;      /* highest index + 1 */
  char **address; /* n; NULL where an index is not given */
} tm_spec_job;

typedef struct tm_cluster_spec {
  int32_t njob;
  tm_spec_job job[TM_SPEC_MAX_JOBS];
  bool has_task;
  char task_type[32];
  int32_t task_index;
  char cluster_id[TM_CLUSTER_ID]; /* given, or tm_cluster_id */
} tm_cluster_spec;

/* `what` names the text in errors ("TF_CONFIG").  TM_EINVAL says what is wrong and
 * where. */
TM_CHECKED tm_status tm_cluster_spec_parse(const char *what, const char *json,
                                           tm_cluster_spec **out, tm_err *err);
/* TM_CONFIG, else TF_CONFIG; *out is NULL when neither is set (or empty). */
TM_CHECKED tm_status tm_cluster_spec_env(tm_cluster_spec **out, tm_err *err);
void tm_cluster_spec_free(tm_cluster_spec *s); /* s may be NULL */

const tm_spec_job *tm_cluster_spec_job(const tm_cluster_spec *s, const char *name);
/* The address of a task.  TM_ENOTFOUND names job and index. */
TM_CHECKED tm_status tm_cluster_spec_address(const tm_cluster_spec *s, const char *job,
                                             int32_t index, const char **out,
                                             tm_err *err);

/* The id that a cluster has when none is given: a hash of the addresses of workers and
 * ps, so all tasks come to the same one.  NULL addresses (gaps) do not count. */
void tm_cluster_id(const char *const *worker, int32_t nworker, const char *const *ps,
                   int32_t nps, char out[TM_CLUSTER_ID]);

#endif
