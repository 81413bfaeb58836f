#include "cluster/spec.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/map.h"
#include "base/mem.h"
#include "net/addr.h"

/* Design.  jansson parses and bounds nesting; everything taken from it is copied and
 * checked at once, so nothing later meets a malformed address. */

static tm_status spec_bad(const char *what, tm_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static tm_status spec_bad(const char *what, tm_err *err, const char *fmt, ...) {
  char text[300];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  return tm_fail(err, TM_EINVAL, "%s: %s", what, text);
}

void tm_cluster_spec_free(tm_cluster_spec *s) {
  if (!s) return;
  for (int32_t j = 0; j < s->njob; j++) {
    tm_spec_job *job = &s->job[j];
    for (int32_t i = 0; job->address && i < job->n; i++) tm_strfree(job->address[i]);
    tm_free(job->address, (size_t)job->n * sizeof *job->address);
  }
  tm_free(s, sizeof *s);
}

/* A whole number from 0, also as a string of digits. */
static bool spec_index(const char *text, int64_t *out) {
  if (!*text || strlen(text) > 9) return false;
  *out = 0;
  for (; *text; text++) {
    if (*text < '0' || *text > '9') return false;
    *out = *out * 10 + (*text - '0');
  }
  return true;
}

static tm_status spec_put(const char *what, tm_spec_job *job, int64_t i,
                          const json_t *v, tm_err *err) {
  tm_addr addr;
  tm_err why;
  const char *text = json_string_value(v);
  if (!text)
    return spec_bad(what, err, "cluster.%s[%" PRId64 "] must be a string \"host:port\"",
                    job->name, i);
  if (strlen(text) >= 280 || tm_addr_parse(text, false, &addr, &why))
    return spec_bad(what, err, "cluster.%s[%" PRId64 "]: \"%.200s\" is not host:port",
                    job->name, i, text);
  if (job->address[i])
    return spec_bad(what, err, "cluster.%s names index %" PRId64 " twice", job->name,
                    i);
  job->address[i] = tm_strdup(text);
  return job->address[i] ? TM_OK : tm_nomem(err, "a cluster");
}

static tm_status spec_room(tm_spec_job *job, size_t n, tm_err *err) {
  if (n == 0) return TM_OK;
  job->address = tm_calloc(n, sizeof *job->address);
  if (!job->address) return tm_nomem(err, "a cluster");
  job->n = (int32_t)n;
  return TM_OK;
}

static tm_status spec_sparse(const char *what, tm_spec_job *job, json_t *tasks,
                             tm_err *err) {
  const char *key;
  json_t *v;
  int64_t i, most = -1;
  json_object_foreach(tasks, key, v) {
    if (!spec_index(key, &i) || i >= TM_SPEC_MAX_TASKS)
      return spec_bad(what, err, "cluster.%s: \"%.40s\" is not an index from 0 to %d",
                      job->name, key, (int)TM_SPEC_MAX_TASKS - 1);
    if (i > most) most = i;
  }
  TM_TRY(spec_room(job, (size_t)(most + 1), err));
  json_object_foreach(tasks, key, v) {
    if (spec_index(key, &i)) TM_TRY(spec_put(what, job, i, v, err));
  }
  return TM_OK;
}

static tm_status spec_job(const char *what, tm_spec_job *job, json_t *tasks,
                          tm_err *err) {
  if (json_is_object(tasks)) return spec_sparse(what, job, tasks, err);
  if (!json_is_array(tasks))
    return spec_bad(
        what, err,
        "cluster.%s must be a list of addresses, or an object from index to "
        "address",
        job->name);
  size_t n = json_array_size(tasks);
  if (n > TM_SPEC_MAX_TASKS)
    return spec_bad(what, err, "cluster.%s has %zu tasks: at most %d", job->name, n,
                    (int)TM_SPEC_MAX_TASKS);
  TM_TRY(spec_room(job, n, err));
  for (size_t i = 0; i < n; i++)
    TM_TRY(spec_put(what, job, (int64_t)i, json_array_get(tasks, i), err));
  return TM_OK;
}

static tm_status spec_cluster(const char *what, tm_cluster_spec *s, json_t *cluster,
                              tm_err *err) {
  const char *key;
  json_t *tasks;
  if (!cluster) return TM_OK;
  if (!json_is_object(cluster))
    return spec_bad(what, err, "\"cluster\" must be an object of jobs");
  json_object_foreach(cluster, key, tasks) {
    if (s->njob == TM_SPEC_MAX_JOBS)
      return spec_bad(what, err, "more than %d jobs", (int)TM_SPEC_MAX_JOBS);
    if (!*key || strlen(key) >= sizeof s->job->name)
      return spec_bad(what, err, "\"%.40s\" cannot be the name of a job", key);
    tm_spec_job *job = &s->job[s->njob++];
    snprintf(job->name, sizeof job->name, "%s", key);
    TM_TRY(spec_job(what, job, tasks, err));
  }
  return TM_OK;
}

static bool spec_known(const char *type) {
  static const char *const types[] = {"chief", "worker", "ps", "evaluator"};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++)
    if (strcmp(type, types[i]) == 0) return true;
  return false;
}

/* An evaluator stands outside of the cluster, and nobody calls a chief; without a
 * cluster nothing is known. */
static tm_status spec_check_task(const char *what, const tm_cluster_spec *s,
                                 tm_err *err) {
  if (!spec_known(s->task_type))
    return spec_bad(what, err,
                    "task.type is \"%s\"; there are chief, worker, ps, evaluator",
                    s->task_type);
  if (strcmp(s->task_type, "evaluator") == 0 || s->njob == 0) return TM_OK;
  const tm_spec_job *job = tm_cluster_spec_job(s, s->task_type);
  if (!job && strcmp(s->task_type, "chief") == 0) return TM_OK;
  if (!job)
    return spec_bad(what, err, "task.type is \"%s\", which is no job of the cluster",
                    s->task_type);
  if (s->task_index >= job->n || !job->address[s->task_index])
    return spec_bad(what, err, "task.index is %d, the cluster has no such %s",
                    s->task_index, s->task_type);
  return TM_OK;
}

static bool spec_task_index(const json_t *v, int64_t *out) {
  *out = 0;
  if (!v) return true;
  if (json_is_string(v)) return spec_index(json_string_value(v), out);
  *out = json_integer_value(v);
  return json_is_integer(v);
}

static tm_status spec_task(const char *what, tm_cluster_spec *s, json_t *task,
                           tm_err *err) {
  int64_t i;
  if (!task) return TM_OK;
  if (!json_is_object(task))
    return spec_bad(what, err, "\"task\" must be an object with type and index");
  const char *name = json_string_value(json_object_get(task, "type"));
  if (!name || !*name || strlen(name) >= sizeof s->task_type)
    return spec_bad(what, err, "task.type must be the name of a job");
  if (!spec_task_index(json_object_get(task, "index"), &i) || i < 0 ||
      i >= TM_SPEC_MAX_TASKS)
    return spec_bad(what, err, "task.index must be a whole number from 0");
  snprintf(s->task_type, sizeof s->task_type, "%s", name);
  s->task_index = (int32_t)i;
  s->has_task = true;
  return spec_check_task(what, s, err);
}

static tm_status spec_id(const char *what, tm_cluster_spec *s, const json_t *id,
                         tm_err *err) {
  const tm_spec_job *w = tm_cluster_spec_job(s, "worker");
  const tm_spec_job *ps = tm_cluster_spec_job(s, "ps");
  if (!id) {
    tm_cluster_id(w ? (const char *const *)w->address : NULL, w ? w->n : 0,
                  ps ? (const char *const *)ps->address : NULL, ps ? ps->n : 0,
                  s->cluster_id);
    return TM_OK;
  }
  const char *text = json_string_value(id);
  if (!text || !*text || strlen(text) >= sizeof s->cluster_id)
    return spec_bad(what, err, "cluster_id must be a string of 1 to %d bytes",
                    (int)TM_CLUSTER_ID - 1);
  snprintf(s->cluster_id, sizeof s->cluster_id, "%s", text);
  return TM_OK;
}

static tm_status spec_fill(const char *what, tm_cluster_spec *s, json_t *root,
                           tm_err *err) {
  if (!json_is_object(root)) return spec_bad(what, err, "must be a JSON object");
  TM_TRY(spec_cluster(what, s, json_object_get(root, "cluster"), err));
  TM_TRY(spec_task(what, s, json_object_get(root, "task"), err));
  return spec_id(what, s, json_object_get(root, "cluster_id"), err);
}

tm_status tm_cluster_spec_parse(const char *what, const char *json,
                                tm_cluster_spec **out, tm_err *err) {
  json_error_t e;
  *out = NULL;
  json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &e);
  if (!root)
    return spec_bad(what, err, "not valid JSON (line %d, column %d): %s", e.line,
                    e.column, e.text);
  tm_cluster_spec *s = tm_calloc(1, sizeof *s);
  tm_status st = s ? spec_fill(what, s, root, err) : tm_nomem(err, "a cluster");
  json_decref(root);
  if (st)
    tm_cluster_spec_free(s);
  else
    *out = s;
  return st;
}

tm_status tm_cluster_spec_env(tm_cluster_spec **out, tm_err *err) {
  static const char *const names[] = {"TM_CONFIG", "TF_CONFIG"};
  *out = NULL;
  for (int i = 0; i < 2; i++) {
    const char *text = getenv(names[i]);
    if (text && *text) return tm_cluster_spec_parse(names[i], text, out, err);
  }
  return TM_OK;
}

const tm_spec_job *tm_cluster_spec_job(const tm_cluster_spec *s, const char *name) {
  for (int32_t j = 0; j < s->njob; j++)
    if (strcmp(s->job[j].name, name) == 0) return &s->job[j];
  return NULL;
}

tm_status tm_cluster_spec_address(const tm_cluster_spec *s, const char *job,
                                  int32_t index, const char **out, tm_err *err) {
  const tm_spec_job *j = tm_cluster_spec_job(s, job);
  *out = j && index >= 0 && index < j->n ? j->address[index] : NULL;
  if (*out) return TM_OK;
  return tm_fail(err, TM_ENOTFOUND, "the cluster has no /job:%s/task:%d", job, index);
}

static uint64_t spec_hash(uint64_t h, const char *const *address, int32_t n) {
  for (int32_t i = 0; i < n; i++) {
    if (address[i]) h = tm_hash64(address[i], strlen(address[i]), h);
  }
  return h;
}

static uint64_t spec_count(const char *const *address, int32_t n) {
  uint64_t count = 0;
  for (int32_t i = 0; i < n; i++) count += address[i] != NULL;
  return count;
}

void tm_cluster_id(const char *const *worker, int32_t nworker, const char *const *ps,
                   int32_t nps, char out[TM_CLUSTER_ID]) {
  uint64_t h = spec_hash(tm_mix64(spec_count(worker, nworker) + 1), worker, nworker);
  h = spec_hash(tm_mix64(h ^ spec_count(ps, nps)), ps, nps);
  snprintf(out, TM_CLUSTER_ID, "%016" PRIx64, h);
}
