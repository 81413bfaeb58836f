#include "host/role.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cluster/server.h"
#include "cluster/spec.h"
#include "graph/op.h"
#include "host/launch.h"
#include "kernel/gemm.h"

static tm_cancel role_cancel; /* set by SIGTERM and SIGINT */

static void role_on_signal(int sig) {
  (void)sig;
  tm_cancel_set(&role_cancel);
}

static void role_catch(void) {
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = role_on_signal;
  sigaction(SIGTERM, &sa, NULL);
  /* Under a launcher Ctrl-C is the chief's; it may still want its cluster. */
  if (getenv("TM_LAUNCHER")) sa.sa_handler = SIG_IGN;
  sigaction(SIGINT, &sa, NULL);
  signal(SIGPIPE, SIG_IGN);
}

static int role_fail(const tm_err *err) {
  fprintf(stderr, "tidemill: %s: %s%s%s%s\n", tm_status_name(err->code), err->msg,
          err->task[0] ? " (" : "", err->task, err->task[0] ? ")" : "");
  return 1;
}

static int role_serve(tm_server_options *o) {
  tm_err err;
  tm_server *s;
  tm_err_clear(&err);
  tm_log_stream(stderr, TM_LOG_INFO);
  tm_k_gemm_threads(1); /* workers of one machine share its cores */
  if (tm_ops_init(&err) || tm_server_start(o, &s, &err)) return role_fail(&err);
  role_catch();
  tm_host_follow_launcher();
  tm_log(TM_LOG_INFO, "%s listens on %s", tm_server_task(s), o->address);
  tm_status st = tm_server_join(s, &role_cancel, &err);
  tm_server_free(s);
  if (st == TM_OK || st == TM_ECANCELLED) return 0;
  return role_fail(&err);
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
      "usage: tidemill %s [--once] [--chief-timeout SECONDS] [--listen HOST:PORT]\n"
      "Serves as the task that TM_CONFIG (or TF_CONFIG) names.  --listen: where it\n"
      "listens, when that is not the address that the others use (a container, a\n"
      "proxy).\n",
      job);
  return bad ? 2 : 0;
}

static int role_bad_timeout(const char *job, const char *text) {
  fprintf(
      stderr,
      "tidemill %s: --chief-timeout takes seconds from 0 (for ever) on, not \"%s\"\n",
      job, text);
  return 2;
}

static int role_options(int argc, char **argv, tm_server_options *o) {
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0) {
      role_usage(argv[0], NULL);
      return -1;
    }
    if (strcmp(argv[i], "--once") == 0) {
      o->once = true;
    } else if (strcmp(argv[i], "--chief-timeout") == 0 && i + 1 < argc) {
      char *end;
      o->chief_timeout = strtod(argv[++i], &end);
      if (!*argv[i] || *end || !(o->chief_timeout >= 0))
        return role_bad_timeout(argv[0], argv[i]);
    } else if (strcmp(argv[i], "--listen") == 0 && i + 1 < argc) {
      o->address = argv[++i];
    } else {
      return role_usage(argv[0], argv[i]);
    }
  }
  return 0;
}

static const tm_server_options role_defaults = {.chief_timeout = -1}; /* the chief's */

int tm_host_role(int argc, char **argv) {
  tm_server_options o = role_defaults;
  tm_cluster_spec *spec = NULL;
  tm_err err;
  int status = role_options(argc, argv, &o);
  if (status) return status < 0 ? 0 : status;
  tm_err_clear(&err);
  tm_status s = tm_cluster_spec_env(&spec, &err);
  if (s == TM_OK) s = role_from_spec(spec, argv[0], &o, &err);
  status = s ? role_fail(&err) : role_serve(&o);
  tm_cluster_spec_free(spec);
  return status;
}

static bool role_runs_script(const char *type) {
  return strcmp(type, "chief") == 0 || strcmp(type, "evaluator") == 0;
}

bool tm_host_script_role(int *status) {
  tm_server_options o = role_defaults;
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
    s = role_from_spec(spec, spec->task_type, &o, &err);
  }
  if (mine) *status = s ? role_fail(&err) : role_serve(&o);
  tm_cluster_spec_free(spec);
  return mine;
}
