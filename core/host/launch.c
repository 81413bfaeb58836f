#define _GNU_SOURCE /* prctl */
#include "host/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "host/launch_task.h"
#include "net/addr.h"

/*
 * Design.  One libuv loop.  Children follow the launcher (PR_SET_PDEATHSIG, set by the
 * child itself), so nothing stays behind even when the launcher is killed with -9.
 *
 * A worker or ps that ends with status 0 was told to; one that dies otherwise is
 * started again at its port, by its timer `again`.  So is the chief with
 * --restart-chief.
 *
 * Invariants:
 *   (1) Once `stopping` nothing is started.  Every worker and ps that lives was sent
 *       SIGTERM once the chief had ended or its grace was over, and what lives
 *       LAUNCH_KILL_MS later is sent SIGKILL.
 *   (2) The loop ends when every child's exit was seen and every pipe is at its end.
 *   (3) Evaluators have the reading end of a pipe as descriptor 3, of which the writing
 *       end is closed when the chief has ended: `catching_up` then, until the last of
 *       them has ended, or their grace is over.
 */
enum {
  LAUNCH_MAX_TASKS = 512, /* workers and ps */
  LAUNCH_MAX_EVALUATORS = 64,
  LAUNCH_MAX = LAUNCH_MAX_TASKS + LAUNCH_MAX_EVALUATORS + 1,
  LAUNCH_KILL_MS = 1000,  /* from SIGTERM to SIGKILL */
  LAUNCH_ANSWER_MS = 500, /* that a chief has to answer Ctrl-C */
  LAUNCH_GRACE_S = 10,    /* that a chief has after SIGTERM */
  LAUNCH_RESTARTS = 10,
  LAUNCH_CATCH_UP_S = 60, /* that evaluators have after the chief's end */
};
#define LAUNCH_ECHO_NS \
  200000000 /* Ctrl-C may come to us so much later than to the chief */

typedef struct launch {
  uv_loop_t loop;
  uv_signal_t on_int, on_term, on_noted, on_over;
  uv_timer_t grace;
  char exe[4096];
  int nworker, nps, nevaluator;
  int port[LAUNCH_MAX]; /* ps, workers, evaluators (unused), chief */
  int dial[LAUNCH_MAX]; /* the same, of proxies; 0: there are none */
  char cluster_id[32];
  int ntask;
  tm_launch_task *task; /* the chief is last */
  char **script;        /* script and its arguments, NULL at the end */
  bool no_restart, restart_chief;
  int grace_s, max_restarts;
  int nport, ndial; /* given */
  int status;
  bool interrupted;    /* by Ctrl-C: the chief is not started again */
  int64_t answered_ns; /* the chief said last that it takes care of it; 0: never */
  bool ending;         /* the chief was sent SIGTERM and has its grace */
  bool stopping, closed;
  int catch_up_s, pipe[2]; /* (3) */
  bool catching_up;
} launch;

void tm_host_follow_launcher(void) {
  const char *text = getenv("TM_LAUNCHER");
  if (!text) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != (pid_t)atoi(text)) raise(SIGTERM); /* it went before we could ask */
}

static tm_launch_task *launch_chief(launch *l) { return &l->task[l->ntask - 1]; }

static bool launch_evaluates(const tm_launch_task *t) {
  return strcmp(t->job, "evaluator") == 0;
}

/* --- ports and TM_CONFIG --- */

/* A socket bound to a port of 127.0.0.1 (0: of the kernel's choice); -1: errno. */
static int launch_bind(int *port) {
  struct sockaddr_in a = {.sin_family = AF_INET,
                          .sin_port = htons((uint16_t)*port),
                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
      bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
      getsockname(fd, (struct sockaddr *)&a, &len) == 0) {
    *port = ntohs(a.sin_port);
    return fd;
  }
  int e = errno;
  close(fd);
  errno = e;
  return -1;
}

/* All are bound at once, so they differ. */
static int launch_ports(launch *l) {
  int fd[LAUNCH_MAX], n = 0, bad = 0;
  for (; n < l->ntask && !bad; n++) {
    if (l->port[n] == 0) l->port[n] = tm_addr_unused_port();
    bad = (fd[n] = launch_bind(&l->port[n])) < 0;
  }
  int e = errno;
  for (int i = 0; i < n; i++)
    if (fd[i] >= 0) close(fd[i]);
  errno = e;
  return bad ? -1 : 0;
}

/* Whether another process listens at the port of a task that does not run. */
static bool launch_port_taken(launch *l, const tm_launch_task *t) {
  int *port = &l->port[t - l->task], fd = launch_bind(port);
  if (fd >= 0) close(fd);
  return fd < 0 && errno == EADDRINUSE;
}

/* The ports that others dial: of the proxies in front of the tasks, if there are any.
 */
static const int *launch_dialled(const launch *l) {
  return l->dial[0] ? l->dial : l->port;
}

static tm_status launch_job(tm_buf *b, const char *job, const int *port, int n) {
  TM_TRY(tm_buf_printf(b, "\"%s\": [", job));
  for (int i = 0; i < n; i++)
    TM_TRY(tm_buf_printf(b, "%s\"127.0.0.1:%d\"", i ? ", " : "", port[i]));
  return tm_buf_puts(b, "]");
}

/* "TM_CONFIG={...}" of one task. */
static tm_status launch_config(const launch *l, const tm_launch_task *t, tm_buf *b) {
  const int *port = launch_dialled(l);
  TM_TRY(tm_buf_puts(b, "TM_CONFIG={\"cluster\": {"));
  TM_TRY(launch_job(b, "ps", port, l->nps));
  TM_TRY(tm_buf_puts(b, ", "));
  TM_TRY(launch_job(b, "worker", port + l->nps, l->nworker));
  TM_TRY(tm_buf_puts(b, ", "));
  TM_TRY(launch_job(b, "chief", l->port + l->ntask - 1, 1));
  TM_TRY(tm_buf_printf(b, "}, \"task\": {\"type\": \"%s\", \"index\": %d}, ", t->job,
                       t->index));
  TM_TRY(tm_buf_printf(b, "\"evaluators\": %d, ", l->nevaluator));
  TM_TRY(tm_buf_printf(b, "\"cluster_id\": \"%s\"}", l->cluster_id));
  return tm_buf_putc(b, '\0');
}

/* --- the end --- */

static void launch_signal_all(launch *l, int sig) {
  for (int i = 0; i < l->ntask; i++) tm_launch_task_signal(&l->task[i], sig);
}

static void launch_close_if_gone(launch *l) {
  if (!l->stopping || l->closed) return;
  for (int i = 0; i < l->ntask; i++)
    if (tm_launch_task_runs(&l->task[i])) return;
  l->closed = true;
  for (int i = 0; i < l->ntask; i++) uv_close((uv_handle_t *)&l->task[i].again, NULL);
  uv_close((uv_handle_t *)&l->on_int, NULL);
  uv_close((uv_handle_t *)&l->on_term, NULL);
  uv_close((uv_handle_t *)&l->on_noted, NULL);
  uv_close((uv_handle_t *)&l->on_over, NULL);
  uv_close((uv_handle_t *)&l->grace, NULL);
}

static void launch_kill(uv_timer_t *t) { launch_signal_all(t->data, SIGKILL); }

static void launch_stop(launch *l) {
  if (l->stopping) return;
  l->stopping = true;
  for (int i = 0; i < l->ntask; i++) uv_timer_stop(&l->task[i].again);
  launch_signal_all(l, SIGTERM);
  uv_timer_start(&l->grace, launch_kill, LAUNCH_KILL_MS, 0);
  launch_close_if_gone(l);
}

static void launch_grace_over(uv_timer_t *t) {
  launch *l = t->data;
  if (!l->ending) l->status = 128 + SIGINT;
  launch_stop(l);
}

static void launch_catch_up_over(uv_timer_t *t) {
  fprintf(stderr, "tidemill launch: evaluators are not done %d s after the chief\n",
          ((launch *)t->data)->catch_up_s);
  launch_stop(t->data);
}

static bool launch_evaluators_run(const launch *l) {
  for (int i = 0; i < l->ntask; i++)
    if (launch_evaluates(&l->task[i]) &&
        (tm_launch_task_runs(&l->task[i]) ||
         uv_is_active((const uv_handle_t *)&l->task[i].again)))
      return true;
  return false;
}

static void launch_close_pipe(launch *l) {
  for (int i = 0; i < 2; i++)
    if (l->pipe[i] >= 0) close(l->pipe[i]);
  l->pipe[0] = l->pipe[1] = -1;
}

/* The training is over: what it wrote last is still to be evaluated. */
static void launch_catch_up(launch *l) {
  if (!launch_evaluators_run(l)) {
    launch_stop(l);
    return;
  }
  l->catching_up = true;
  close(l->pipe[1]);
  l->pipe[1] = -1;
  for (int i = 0; i < l->nps + l->nworker; i++) {
    uv_timer_stop(&l->task[i].again);
    tm_launch_task_signal(&l->task[i], SIGTERM);
  }
  uv_timer_start(&l->grace, launch_catch_up_over, (uint64_t)l->catch_up_s * 1000, 0);
}

/* The chief first: it may save, for which it needs the others. */
static void launch_end_in_order(launch *l) {
  if (l->ending || !tm_launch_task_runs(launch_chief(l))) {
    launch_stop(l);
    return;
  }
  l->ending = true;
  tm_launch_task_signal(launch_chief(l), SIGTERM);
  uv_timer_start(&l->grace, launch_grace_over, (uint64_t)l->grace_s * 1000, 0);
}

/* Ctrl-C reaches the chief too when it comes from a terminal; a second one, or one
 * that the chief does not answer, ends everything.  It answers by its end, or by a
 * signal that it takes care of it (interrupt.c). */
static void launch_on_signal(uv_signal_t *h, int sig) {
  launch *l = h->data;
  if (sig == SIGTERM) {
    l->status = 128 + sig;
    launch_end_in_order(l);
    return;
  }
  if (l->answered_ns && tm_now_ns() - l->answered_ns < LAUNCH_ECHO_NS) return;
  if (l->interrupted || l->ending || !tm_launch_task_runs(launch_chief(l))) {
    l->status = 128 + sig;
    launch_stop(l);
    return;
  }
  l->interrupted = true;
  tm_launch_task_signal(launch_chief(l), sig);
  uv_timer_start(&l->grace, launch_grace_over, LAUNCH_ANSWER_MS, 0);
}

/* The chief takes care of Ctrl-C: it ends by itself, or goes on.  It may have heard of
 * it, from the terminal, before we do. */
static void launch_on_noted(uv_signal_t *h, int sig) {
  launch *l = h->data;
  l->answered_ns = tm_now_ns();
  if (l->interrupted && !l->ending && !l->stopping) uv_timer_stop(&l->grace);
  l->interrupted = sig == SIGUSR1;
}

/* --- starting --- */

extern char **environ;

/* The environment with TM_CONFIG, TM_LAUNCHER and, for evaluators, their descriptor in
 * front; the caller frees it. */
static char **launch_env(char *config, char *launcher, bool evaluator, size_t *size) {
  static char end[] = "TM_TRAINING_END=3";
  size_t n = 0;
  while (environ[n]) n++;
  char **env = tm_malloc((n + 4) * sizeof *env);
  *size = (n + 4) * sizeof *env;
  if (!env) return NULL;
  size_t k = 0;
  env[k++] = config;
  env[k++] = launcher;
  if (evaluator) env[k++] = end;
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "TM_CONFIG=", 10) &&
        strncmp(environ[i], "TF_CONFIG=", 10) &&
        strncmp(environ[i], "TM_LAUNCHER=", 12) &&
        strncmp(environ[i], "TM_TRAINING_END=", 16))
      env[k++] = environ[i];
  env[k] = NULL;
  return env;
}

static int launch_spawn(launch *l, tm_launch_task *t) {
  tm_buf config = TM_BUF_INIT(1 << 20);
  char launcher[40];
  char listen[32];
  char *role[] = {l->exe, (char *)(uintptr_t)t->job, NULL, listen, NULL};
  static char option[] = "--listen";
  if (l->dial[0]) role[2] = option;
  snprintf(listen, sizeof listen, "127.0.0.1:%d", l->port[t - l->task]);
  bool script = t == launch_chief(l) || launch_evaluates(t);
  int r = UV_ENOMEM;
  snprintf(launcher, sizeof launcher, "TM_LAUNCHER=%d", (int)getpid());
  t->inherit = launch_evaluates(t) ? l->pipe[0] : -1;
  if (launch_config(l, t, &config) == TM_OK) {
    size_t size;
    char **env = launch_env((char *)config.data, launcher, t->inherit >= 0, &size);
    if (env) r = tm_launch_task_start(t, script ? l->script - 1 : role, env);
    tm_free(env, size);
  }
  tm_buf_release(&config);
  return r;
}

/* --- starting again --- */

/* It is not to be started again: everything ends, but for an evaluator. */
static void launch_give_up(launch *l, const tm_launch_task *t, const char *why) {
  fprintf(
      stderr,
      "tidemill launch: %s %s; it died more than %d times within %d s: giving up%s\n",
      t->name, why, l->max_restarts, (int)TM_LAUNCH_WITHIN_S,
      launch_evaluates(t) ? " on it, the training goes on" : "");
  if (launch_evaluates(t)) return;
  l->status = 1;
  launch_stop(l);
}

static void launch_again(uv_timer_t *timer);

/* t ended, or could not be started, for the reason `why`. */
static void launch_later(launch *l, tm_launch_task *t, const char *why) {
  int delay = tm_launch_task_died(t, tm_now_ns());
  if (delay < 0) {
    launch_give_up(l, t, why);
    return;
  }
  fprintf(stderr, "tidemill launch: %s %s; starting it again in %.1f s\n", t->name, why,
          delay / 1000.0);
  uv_timer_start(&t->again, launch_again, (uint64_t)delay, 0);
}

static void launch_again(uv_timer_t *timer) {
  tm_launch_task *t = timer->data;
  launch *l = t->ud;
  char why[128];
  if (l->stopping) return;
  if (t != launch_chief(l) && !launch_evaluates(t) && launch_port_taken(l, t)) {
    snprintf(why, sizeof why, "cannot start: 127.0.0.1:%d is in use by another process",
             l->port[t - l->task]);
    launch_later(l, t, why);
    return;
  }
  int r = launch_spawn(l, t);
  if (r == 0) return;
  snprintf(why, sizeof why, "cannot be started: %s", uv_strerror(r));
  launch_later(l, t, why);
}

static void launch_chief_ended(launch *l, tm_launch_task *t, int64_t status, int sig,
                               const char *why) {
  if (l->stopping) return; /* whoever stopped it has set the status */
  l->status = sig ? 128 + sig : (int)status;
  if (l->restart_chief && l->status && !l->interrupted && !l->ending)
    launch_later(l, t, why);
  else if (l->status == 0 && !l->interrupted && !l->ending)
    launch_catch_up(l);
  else
    launch_stop(l);
}

static void launch_evaluator_died(launch *l, tm_launch_task *t, const char *why) {
  if (l->no_restart)
    fprintf(stderr, "tidemill launch: %s %s\n", t->name, why);
  else
    launch_later(l, t, why);
}

/* A worker or ps: told to, or died. */
static void launch_server_ended(launch *l, tm_launch_task *t, bool told,
                                const char *why) {
  if (l->no_restart || told)
    fprintf(stderr, "tidemill launch: %s %s%s\n", t->name, why,
            told ? "; it was told to, and stays away" : "");
  else
    launch_later(l, t, why);
}

static void launch_ended(tm_launch_task *t, int64_t status, int sig) {
  launch *l = t->ud;
  char why[64];
  snprintf(why, sizeof why, "ended (%s %d)", sig ? "signal" : "status",
           sig ? sig : (int)status);
  if (t == launch_chief(l)) {
    launch_chief_ended(l, t, status, sig, why);
  } else if (launch_evaluates(t) && !l->stopping && !l->interrupted) {
    if (sig || status) launch_evaluator_died(l, t, why);
    if (l->catching_up && !launch_evaluators_run(l)) launch_stop(l);
  } else if (!l->stopping && !l->catching_up && !launch_evaluates(t)) {
    launch_server_ended(l, t, !sig && status == 0, why);
  }
  launch_close_if_gone(l);
}

/* --- running --- */

static int launch_tasks(launch *l) {
  for (int i = 0; i < l->ntask; i++) {
    tm_launch_task *t = &l->task[i];
    int r = launch_spawn(l, t);
    if (r == 0) continue;
    fprintf(stderr, "tidemill launch: cannot start %s: %s\n", t->name, uv_strerror(r));
    return r;
  }
  return 0;
}

static void launch_init(launch *l) {
  uv_signal_init(&l->loop, &l->on_int);
  uv_signal_init(&l->loop, &l->on_term);
  uv_signal_init(&l->loop, &l->on_noted);
  uv_signal_init(&l->loop, &l->on_over);
  uv_timer_init(&l->loop, &l->grace);
  l->on_int.data = l->on_term.data = l->grace.data = l;
  l->on_noted.data = l->on_over.data = l;
  uv_signal_start(&l->on_int, launch_on_signal, SIGINT);
  uv_signal_start(&l->on_term, launch_on_signal, SIGTERM);
  uv_signal_start(&l->on_noted, launch_on_noted, SIGUSR1);
  uv_signal_start(&l->on_over, launch_on_noted, SIGUSR2);
  static const char *const job[] = {"ps", "worker", "evaluator", "chief"};
  const int n[] = {l->nps, l->nworker, l->nevaluator, 1};
  for (int i = 0, k = 0, index = 0; i < l->ntask; i++, index++) {
    while (index == n[k]) k++, index = 0;
    tm_launch_task *t = &l->task[i];
    tm_launch_task_init(t, &l->loop, job[k], index);
    t->ended = launch_ended;
    t->deaths = l->max_restarts;
    t->ud = l;
  }
}

static int launch_run(launch *l) {
  size_t n = sizeof l->exe, bytes = (size_t)l->ntask * sizeof *l->task;
  if (uv_exepath(l->exe, &n) || launch_ports(l)) {
    fprintf(stderr, "tidemill launch: no free ports on 127.0.0.1: %s\n",
            strerror(errno));
    return 1;
  }
  snprintf(l->cluster_id, sizeof l->cluster_id, "launch-%llx",
           (unsigned long long)tm_random_id());
  l->task = tm_calloc(1, bytes);
  if (!l->task || uv_loop_init(&l->loop)) {
    fprintf(stderr, "tidemill launch: out of memory\n");
    return 1;
  }
  if (pipe(l->pipe) || fcntl(l->pipe[1], F_SETFD, FD_CLOEXEC) ||
      fcntl(l->pipe[0], F_SETFD, FD_CLOEXEC)) {
    fprintf(stderr, "tidemill launch: no pipe: %s\n", strerror(errno));
    return 1;
  }
  launch_init(l);
  l->status = 0;
  if (launch_tasks(l)) {
    l->status = 1;
    launch_stop(l);
  }
  uv_run(&l->loop, UV_RUN_DEFAULT);
  uv_loop_close(&l->loop);
  launch_close_pipe(l);
  tm_free(l->task, bytes);
  return l->status;
}

/* --- the command line --- */

static int launch_usage(const char *why, const char *what) {
  if (why) fprintf(stderr, "tidemill launch: %s%s\n", why, what);
  fprintf(
      why ? stderr : stdout,
      "usage: tidemill launch --workers N --ps N [options] script.lua [args]\n"
      "Runs the script as the chief of a cluster of processes on this machine.\n"
      "  --evaluators N   run the script N times more, beside: as evaluators\n"
      "  --no-restart     leave workers and ps that die where they are\n"
      "  --restart-chief  start the script again when it dies or fails\n"
      "  --max-restarts N of one task within 60 s, then all ends (default %d)\n"
      "  --ports P,P,...  where the ps, then the workers listen (default: free ports)\n"
      "  --dial P,P,...   the ports of proxies in front of them, which tasks dial\n"
      "  --grace SECONDS  that the chief has after SIGTERM (default %d)\n"
      "  --catch-up SECONDS  that evaluators have after the chief's end (default %d)\n",
      (int)LAUNCH_RESTARTS, (int)LAUNCH_GRACE_S, (int)LAUNCH_CATCH_UP_S);
  return why ? 2 : 0;
}

/* "--name N" or "--name=N" at argv[*i]; false when it is something else. */
static bool launch_number(int argc, char **argv, int *i, const char *name, int max,
                          int *out) {
  size_t n = strlen(name);
  const char *text = argv[*i];
  if (strncmp(text, name, n) != 0 || (text[n] && text[n] != '=')) return false;
  const char *value = text[n] ? text + n + 1 : *i + 1 < argc ? argv[++*i] : "";
  char *end;
  long v = strtol(value, &end, 10);
  *out = *value && !*end && v >= 0 && v <= max ? (int)v : -1;
  return true;
}

/* "--name P,P,..." into out; a list that is malformed has *n < 0. */
static bool launch_list(int argc, char **argv, int *i, const char *name, int *out,
                        int *n) {
  if (strcmp(argv[*i], name) != 0) return false;
  const char *p = *i + 1 < argc ? argv[++*i] : "";
  for (*n = 0; *n < LAUNCH_MAX_TASKS;) {
    char *end;
    long v = strtol(p, &end, 10);
    if (end == p || v < 1 || v > 65535 || (*end && *end != ',')) break;
    out[(*n)++] = (int)v;
    if (!*end) return true;
    p = end + 1;
  }
  *n = -1;
  return true;
}

static bool launch_flag(const char *text, const char *name, bool *out) {
  if (strcmp(text, name) != 0) return false;
  *out = true;
  return true;
}

/* Told before any task is started; the chief says the rest (syntax) itself. */
static bool launch_has_script(const char *path) {
  struct stat st;
  if (strcmp(path, "-") == 0) return true;
  if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
    errno = EISDIR;
  else if (access(path, R_OK) == 0)
    return true;
  fprintf(stderr, "tidemill launch: cannot read %s: %s\n", path, strerror(errno));
  return false;
}

/* One option at argv[*i]; false: there is no such one. */
static bool launch_option(launch *l, int argc, char **argv, int *i) {
  const int tasks = LAUNCH_MAX_TASKS / 2;
  return launch_number(argc, argv, i, "--workers", tasks, &l->nworker) ||
         launch_number(argc, argv, i, "--ps", tasks, &l->nps) ||
         launch_number(argc, argv, i, "--evaluators", LAUNCH_MAX_EVALUATORS,
                       &l->nevaluator) ||
         launch_number(argc, argv, i, "--grace", 86400, &l->grace_s) ||
         launch_number(argc, argv, i, "--catch-up", 86400, &l->catch_up_s) ||
         launch_number(argc, argv, i, "--max-restarts", TM_LAUNCH_DEATHS_MAX,
                       &l->max_restarts) ||
         launch_list(argc, argv, i, "--ports", l->port, &l->nport) ||
         launch_list(argc, argv, i, "--dial", l->dial, &l->ndial) ||
         launch_flag(argv[*i], "--no-restart", &l->no_restart) ||
         launch_flag(argv[*i], "--restart-chief", &l->restart_chief);
}

/* What is wrong with the options; NULL: nothing. */
static const char *launch_wrong(const launch *l) {
  if (l->nworker < 1) return "--workers must be a number from 1 on";
  if (l->nps < 1) return "--ps must be a number from 1 on";
  if (l->nevaluator < 0) return "--evaluators must be a number";
  if (l->grace_s < 0) return "--grace must be a number of seconds";
  if (l->catch_up_s < 0) return "--catch-up must be a number of seconds";
  if (l->max_restarts < 0) return "--max-restarts must be a number up to 100";
  int n = l->nps + l->nworker;
  if ((l->nport && l->nport != n) || (l->ndial && l->ndial != n))
    return "--ports and --dial take one port a ps and worker";
  return NULL;
}

int tm_host_launch(int argc, char **argv) {
  static launch l; /* about 7 KB, one a process */
  int i = 1;
  l.grace_s = LAUNCH_GRACE_S;
  l.catch_up_s = LAUNCH_CATCH_UP_S;
  l.pipe[0] = l.pipe[1] = -1;
  l.max_restarts = LAUNCH_RESTARTS;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    if (strcmp(argv[i], "--help") == 0) return launch_usage(NULL, NULL);
    if (strcmp(argv[i], "--") == 0) {
      i++;
      break;
    }
    if (!launch_option(&l, argc, argv, &i))
      return launch_usage("unknown option ", argv[i]);
  }
  const char *wrong = launch_wrong(&l);
  if (!wrong && i >= argc) wrong = "no script";
  if (wrong) return launch_usage(wrong, "");
  if (!launch_has_script(argv[i])) return 1;
  l.ntask = l.nworker + l.nps + l.nevaluator + 1;
  l.script = argv + i;
  argv[i - 1] = l.exe; /* argv[0] of the chief, in front of the script */
  return launch_run(&l);
}
