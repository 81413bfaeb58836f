#include "host/role.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cluster/preempt.h"
#include "cluster/server.h"
#include "cluster/spec.h"
#include "graph/op.h"
#include "host/launch.h"
#include "kernel/gemm.h"

/*
 * Design.  A preemption watcher (SIGTERM and what else it was told to look at) has the
 * server leave; its thread ends the process when a second SIGTERM says so.
 */
enum { ROLE_KILLED = 143 };
static const double ROLE_GRACE_S = 30;

typedef struct role {
  tm_server_options server;
  tm_preempt_options watch;
  double grace; /* seconds */
  tm_server *s;
  atomic_bool asked; /* to leave */
} role;

static tm_cancel role_cancel; /* set by SIGINT */

static void role_on_signal(int sig) {
  (void)sig;
  tm_cancel_set(&role_cancel);
}

static void role_catch(void) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = role_on_signal;
  /* Under a launcher Ctrl-C is the chief's; it may still want its cluster. */
  if (getenv("TM_LAUNCHER")) sa.sa_handler = SIG_IGN;
  sigaction(SIGINT, &sa, NULL);
  signal(SIGPIPE, SIG_IGN);
}

/* Now, whatever runs; what was written stays. */
static void role_end_at_once(const char *why) {
  tm_log(TM_LOG_WARN, "%s", why);
  fflush(NULL);
  _exit(ROLE_KILLED);
}

/* The watcher's thread. */
static void role_on_message(void *ud, const tm_preempt_event *e) {
  role *r = ud;
  if (e->signal == SIGTERM && e->times > 1)
    role_end_at_once("a second SIGTERM: this task ends at once");
  atomic_store(&r->asked, true);
  tm_server_leave(r->s, e->text, r->grace);
}

static int role_fail(const tm_err *err) {
  fprintf(stderr, "tidemill: %s: %s%s%s%s\n", tm_status_name(err->code), err->msg,
          err->task[0] ? " (" : "", err->task, err->task[0] ? ")" : "");
  return 1;
}

static int role_join(role *r) {
  tm_preempt *watcher;
  tm_err err;
  tm_err_clear(&err);
  snprintf(r->watch.task, sizeof r->watch.task, "%s", tm_server_task(r->s));
  r->watch.on_message = role_on_message;
  r->watch.ud = r;
  if (tm_preempt_open(&r->watch, &watcher, &err)) return role_fail(&err);
  tm_log(TM_LOG_INFO, "%s listens on %s", tm_server_task(r->s), r->server.address);
  tm_status st = tm_server_join(r->s, &role_cancel, &err);
  if (st == TM_ETIMEOUT && atomic_load(&r->asked)) role_end_at_once(err.msg);
  tm_preempt_close(watcher);
  if (st != TM_OK && st != TM_ECANCELLED) return role_fail(&err);
  /* Whoever launched this task is to start another one in its place. */
  return atomic_load(&r->asked) && getenv("TM_LAUNCHER") ? 128 + SIGTERM : 0;
}

static int role_serve(role *r) {
  tm_err err;
  tm_err_clear(&err);
  tm_log_stream(stderr, TM_LOG_INFO);
  tm_k_gemm_threads(1); /* workers of one machine share its cores */
  if (tm_ops_init(&err) || tm_server_start(&r->server, &r->s, &err))
    return role_fail(&err);
  role_catch();
  tm_host_follow_launcher();
  int status = role_join(r);
  tm_server_free(r->s);
  return status;
}

/* Fill address, index and id of `job` from the spec of the environment. */
static tm_status role_from_spec(const tm_cluster_spec *spec, const char *job,
                                tm_server_options *o, tm_err *err) {
  if (!spec)
    return tm_fail(err, TM_EINVAL,
                   "%s: neither TM_CONFIG nor TF_CONFIG says which cluster this is",
                   job);
  if (!spec->has_task)
    return tm_fail(err, TM_EINVAL, "%s: the configuration has no \"task\"", job);
  if (strcmp(spec->task_type, job) != 0)
    return tm_fail(err, TM_EINVAL, "%s: the configuration says this task is a %s", job,
                   spec->task_type);
  o->job = job;
  o->index = spec->task_index;
  o->cluster_id = spec->cluster_id;
  if (o->address) return TM_OK; /* --listen */
  return tm_cluster_spec_address(spec, job, spec->task_index, &o->address, err);
}

static int role_usage(const char *job, const char *bad) {
  if (bad) fprintf(stderr, "tidemill %s: unknown option %s\n", job, bad);
  fprintf(
      bad ? stderr : stdout,
      "usage: tidemill %s [options]\n"
      "Serves as the task that TM_CONFIG (or TF_CONFIG) names.\n"
      "  --listen HOST:PORT        where it listens, when that is not the address "
      "that\n"
      "                            the others use (a container, a proxy)\n"
      "  --once                    end when the first chief has gone\n"
      "  --chief-timeout SECONDS   end after so long without a chief (0: never)\n"
      "  --grace SECONDS           how long it may take to leave after SIGTERM (30)\n"
      "  --preemption-file PATH    leave when this file is there\n"
      "  --preemption-url URL      leave when this address says so; gce, aws, azure:\n"
      "                            that cloud's\n"
      "  --preemption-header H     \"Name: value\", sent to that address\n"
      "  --preemption-interval S   seconds between two looks (1)\n",
      job);
  return bad ? 2 : 0;
}

static int role_bad(const char *job, const char *option, const char *why) {
  fprintf(stderr, "tidemill %s: %s: %s\n", job, option, why);
  return 2;
}

/* Seconds from `least` on. */
static int role_seconds(const char *job, const char *option, const char *text,
                        double least, double *out) {
  char *end, why[160];
  *out = strtod(text, &end);
  if (*text && !*end && *out >= least && *out < 1e9) return 0;
  snprintf(why, sizeof why, "takes seconds from %g%s on, not \"%.40s\"", least,
           strcmp(option, "--chief-timeout") == 0 ? " (for ever)" : "", text);
  return role_bad(job, option, why);
}

/* An option with a value; 0, 2 after saying what is wrong, -1: it is none. */
static int role_value(const char *job, const char *option, const char *v, role *r) {
  tm_err err;
  tm_err_clear(&err);
  if (strcmp(option, "--chief-timeout") == 0)
    return role_seconds(job, option, v, 0, &r->server.chief_timeout);
  if (strcmp(option, "--grace") == 0) return role_seconds(job, option, v, 0, &r->grace);
  if (strcmp(option, "--preemption-interval") == 0)
    return role_seconds(job, option, v, 0.01, &r->watch.interval);
  if (strcmp(option, "--listen") == 0) {
    r->server.address = v;
  } else if (strcmp(option, "--preemption-file") == 0) {
    snprintf(r->watch.file, sizeof r->watch.file, "%s", v);
  } else if (strcmp(option, "--preemption-url") == 0) {
    if (tm_preempt_url_set(&r->watch.url, v, &err))
      return role_bad(job, option, err.msg);
  } else if (strcmp(option, "--preemption-header") == 0) {
    if (tm_preempt_url_header(&r->watch.url, v, &err))
      return role_bad(job, option, err.msg);
  } else {
    return -1;
  }
  return 0;
}

/* 0, the exit status of a mistake, or -1: only help was wanted. */
static int role_options(int argc, char **argv, role *r) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0) {
      role_usage(argv[0], NULL);
      return -1;
    }
    if (strcmp(argv[i], "--once") == 0) {
      r->server.once = true;
      continue;
    }
    int status = i + 1 < argc ? role_value(argv[0], argv[i], argv[i + 1], r) : -1;
    if (status < 0) return role_usage(argv[0], argv[i]);
    if (status) return status;
    i++;
  }
  return 0;
}

/* What holds without options: the environment's. */
static tm_status role_defaults(role *r, tm_err *err) {
  const char *grace = getenv("TM_PREEMPTION_GRACE");
  memset(r, 0, sizeof *r);
  r->server.chief_timeout = -1; /* the chief's */
  r->grace = ROLE_GRACE_S;
  if (grace && role_seconds("role", "TM_PREEMPTION_GRACE", grace, 0, &r->grace))
    return tm_fail(err, TM_EINVAL, "TM_PREEMPTION_GRACE is wrong");
  return tm_preempt_environment(&r->watch, "", err);
}

int tm_host_role(int argc, char **argv) {
  static role r;
  tm_cluster_spec *spec = NULL;
  tm_err err;
  tm_err_clear(&err);
  if (role_defaults(&r, &err)) return role_fail(&err);
  int status = role_options(argc, argv, &r);
  if (status) return status < 0 ? 0 : status;
  tm_status s = tm_cluster_spec_env(&spec, &err);
  if (s == TM_OK) s = role_from_spec(spec, argv[0], &r.server, &err);
  status = s ? role_fail(&err) : role_serve(&r);
  tm_cluster_spec_free(spec);
  return status;
}

static bool role_runs_script(const char *type) {
  return strcmp(type, "chief") == 0 || strcmp(type, "evaluator") == 0;
}

bool tm_host_script_role(int *status) {
  static role r;
  tm_cluster_spec *spec = NULL;
  tm_err err;
  tm_err_clear(&err);
  bool mine = true;
  tm_status s = tm_cluster_spec_env(&spec, &err);
  if (s == TM_OK && (!spec || !spec->has_task || role_runs_script(spec->task_type))) {
    mine = false;
  } else if (s == TM_OK && strcmp(spec->task_type, "worker") != 0 &&
             strcmp(spec->task_type, "ps") != 0) {
    s = tm_fail(&err, TM_EINVAL,
                "the task type is \"%s\"; there are chief, worker, ps, evaluator",
                spec->task_type);
  } else if (s == TM_OK) {
    s = role_defaults(&r, &err);
    if (s == TM_OK) s = role_from_spec(spec, spec->task_type, &r.server, &err);
  }
  if (mine) *status = s ? role_fail(&err) : role_serve(&r);
  tm_cluster_spec_free(spec);
  return mine;
}
