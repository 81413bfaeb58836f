#define _GNU_SOURCE /* prctl, pipe flags */
#include "host/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"

/*
 * Design.  One libuv loop.  Children follow the launcher (PR_SET_PDEATHSIG, set by the
 * child itself), so nothing stays behind even when the launcher is killed with -9.
 *
 * Invariants:
 *   (1) Once `stopping`, every child that lives was sent SIGTERM, and SIGKILL after
 *       LAUNCH_GRACE_MS.
 *   (2) The loop ends when every child's exit was seen and every pipe is at its end.
 */
enum { LAUNCH_GRACE_MS = 1000, LAUNCH_MAX_TASKS = 512, LAUNCH_LINE = 4096 };

typedef struct launch_stream {
  uv_pipe_t pipe;
  struct launch_task *task;
  FILE *to;
  char line[LAUNCH_LINE];
  size_t n;
  char chunk[LAUNCH_LINE];
} launch_stream;

typedef struct launch_task {
  struct launch *owner;
  uv_process_t process;
  const char *job;
  int index;
  bool alive, started;
  launch_stream out, err;
} launch_task;

typedef struct launch {
  uv_loop_t loop;
  uv_signal_t on_int, on_term;
  uv_timer_t grace;
  char exe[4096];
  int nworker, nps;
  int port[LAUNCH_MAX_TASKS + 1]; /* ps, workers, chief */
  char cluster_id[32];
  int ntask;
  launch_task *task; /* the chief is last */
  char **script;     /* script and its arguments, NULL at the end */
  int status;
  bool stopping;
} launch;

void tm_host_follow_launcher(void) {
  const char *text = getenv("TM_LAUNCHER");
  if (!text) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != (pid_t)atoi(text)) raise(SIGTERM); /* it went before we could ask */
}

/* --- ports and TM_CONFIG --- */

/* Ports of the kernel's choice: all are bound at once, so they differ. */
static int launch_ports(launch *l) {
  int fd[LAUNCH_MAX_TASKS + 1], n = 0, bad = 0;
  for (; n < l->ntask && !bad; n++) {
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int one = 1;
    fd[n] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bad = fd[n] < 0 || setsockopt(fd[n], SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) ||
          bind(fd[n], (struct sockaddr *)&a, sizeof a) ||
          getsockname(fd[n], (struct sockaddr *)&a, &len);
    l->port[n] = ntohs(a.sin_port);
  }
  for (int i = 0; i < n; i++)
    if (fd[i] >= 0) close(fd[i]);
  return bad ? -1 : 0;
}

static tm_status launch_job(tm_buf *b, const char *job, const int *port, int n) {
  TM_TRY(tm_buf_printf(b, "\"%s\": [", job));
  for (int i = 0; i < n; i++)
    TM_TRY(tm_buf_printf(b, "%s\"127.0.0.1:%d\"", i ? ", " : "", port[i]));
  return tm_buf_puts(b, "]");
}

/* "TM_CONFIG={...}" of one task. */
static tm_status launch_config(const launch *l, const launch_task *t, tm_buf *b) {
  TM_TRY(tm_buf_puts(b, "TM_CONFIG={\"cluster\": {"));
  TM_TRY(launch_job(b, "ps", l->port, l->nps));
  TM_TRY(tm_buf_puts(b, ", "));
  TM_TRY(launch_job(b, "worker", l->port + l->nps, l->nworker));
  TM_TRY(tm_buf_puts(b, ", "));
  TM_TRY(launch_job(b, "chief", l->port + l->nps + l->nworker, 1));
  TM_TRY(tm_buf_printf(b, "}, \"task\": {\"type\": \"%s\", \"index\": %d}, ", t->job,
                       t->index));
  TM_TRY(tm_buf_printf(b, "\"cluster_id\": \"%s\"}", l->cluster_id));
  return tm_buf_putc(b, '\0');
}

/* --- output --- */

static void launch_line(launch_stream *s) {
  if (s->task->job[0] == 'p' || s->task->job[0] == 'w')
    fprintf(s->to, "[%s %d] ", s->task->job, s->task->index);
  fwrite(s->line, 1, s->n, s->to);
  fputc('\n', s->to);
  fflush(s->to);
  s->n = 0;
}

static void launch_text(launch_stream *s, const char *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (p[i] == '\n' || s->n == sizeof s->line) launch_line(s);
    if (p[i] != '\n') s->line[s->n++] = p[i];
  }
}

static void launch_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf) {
  launch_stream *s = h->data;
  (void)want;
  *buf = uv_buf_init(s->chunk, sizeof s->chunk);
}

static void launch_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf) {
  launch_stream *s = h->data;
  if (n > 0) launch_text(s, buf->base, (size_t)n);
  if (n >= 0) return;
  if (s->n) launch_line(s);
  uv_close((uv_handle_t *)h, NULL);
}

/* --- life and death --- */

static void launch_signal_all(launch *l, int sig) {
  for (int i = 0; i < l->ntask; i++)
    if (l->task[i].alive) uv_process_kill(&l->task[i].process, sig);
}

static void launch_kill(uv_timer_t *t) { launch_signal_all(t->data, SIGKILL); }

static void launch_stop(launch *l) {
  if (l->stopping) return;
  l->stopping = true;
  launch_signal_all(l, SIGTERM);
  uv_timer_start(&l->grace, launch_kill, LAUNCH_GRACE_MS, 0);
}

static bool launch_all_gone(const launch *l) {
  for (int i = 0; i < l->ntask; i++)
    if (l->task[i].alive) return false;
  return true;
}

static void launch_done(launch *l) {
  uv_close((uv_handle_t *)&l->on_int, NULL);
  uv_close((uv_handle_t *)&l->on_term, NULL);
  uv_close((uv_handle_t *)&l->grace, NULL);
}

static void launch_exit(uv_process_t *p, int64_t status, int sig) {
  launch_task *t = p->data;
  launch *l = t->owner;
  t->alive = false;
  uv_close((uv_handle_t *)p, NULL);
  if (strcmp(t->job, "chief") == 0) {
    l->status = sig ? 128 + sig : (int)status;
    launch_stop(l);
  } else if (!l->stopping) {
    fprintf(stderr, "tidemill launch: /job:%s/task:%d ended (%s %d)\n", t->job,
            t->index, sig ? "signal" : "status", sig ? sig : (int)status);
  }
  if (launch_all_gone(l)) launch_done(l);
}

/* Ctrl-C reaches the chief too when it comes from a terminal; a second one, or one
 * that the chief does not answer, ends everything. */
static void launch_grace_over(uv_timer_t *t) { launch_stop(t->data); }

static void launch_on_signal(uv_signal_t *h, int sig) {
  launch *l = h->data;
  launch_task *chief = &l->task[l->ntask - 1];
  if (sig == SIGTERM || uv_is_active((uv_handle_t *)&l->grace)) {
    l->status = 128 + sig;
    launch_stop(l);
    return;
  }
  if (chief->alive) uv_process_kill(&chief->process, sig);
  uv_timer_start(&l->grace, launch_grace_over, LAUNCH_GRACE_MS / 2, 0);
}

/* --- starting --- */

extern char **environ;

/* The environment with TM_CONFIG and TM_LAUNCHER in front; the caller frees it. */
static char **launch_env(char *config, char *launcher, size_t *size) {
  size_t n = 0;
  while (environ[n]) n++;
  char **env = tm_malloc((n + 3) * sizeof *env);
  *size = (n + 3) * sizeof *env;
  if (!env) return NULL;
  size_t k = 0;
  env[k++] = config;
  env[k++] = launcher;
  for (size_t i = 0; i < n; i++)
    if (strncmp(environ[i], "TM_CONFIG=", 10) &&
        strncmp(environ[i], "TF_CONFIG=", 10) &&
        strncmp(environ[i], "TM_LAUNCHER=", 12))
      env[k++] = environ[i];
  env[k] = NULL;
  return env;
}

static void launch_stream_init(launch *l, launch_task *t, launch_stream *s, FILE *to) {
  uv_pipe_init(&l->loop, &s->pipe, 0);
  s->pipe.data = s;
  s->task = t;
  s->to = to;
}

static int launch_spawn(launch *l, launch_task *t, char **args, char **env) {
  bool chief = strcmp(t->job, "chief") == 0;
  uv_stdio_container_t io[3] = {{.flags = UV_IGNORE},
                                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE},
                                {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE}};
  if (chief) {
    for (int i = 0; i < 3; i++) {
      io[i].flags = UV_INHERIT_FD;
      io[i].data.fd = i;
    }
  } else {
    launch_stream_init(l, t, &t->out, stdout);
    launch_stream_init(l, t, &t->err, stderr);
    io[1].data.stream = (uv_stream_t *)&t->out.pipe;
    io[2].data.stream = (uv_stream_t *)&t->err.pipe;
  }
  uv_process_options_t o = {.exit_cb = launch_exit,
                            .file = l->exe,
                            .args = args,
                            .env = env,
                            .stdio_count = 3,
                            .stdio = io};
  t->process.data = t;
  int r = uv_spawn(&l->loop, &t->process, &o);
  t->started = true;
  t->alive = r == 0;
  if (r) uv_close((uv_handle_t *)&t->process, NULL);
  if (!chief) {
    uv_read_start((uv_stream_t *)&t->out.pipe, launch_alloc, launch_read);
    uv_read_start((uv_stream_t *)&t->err.pipe, launch_alloc, launch_read);
  }
  return r;
}

static int launch_start(launch *l, launch_task *t) {
  tm_buf config = TM_BUF_INIT(1 << 20);
  char launcher[40];
  char *role[] = {l->exe, (char *)(uintptr_t)t->job, NULL};
  bool chief = strcmp(t->job, "chief") == 0;
  int r = UV_ENOMEM;
  snprintf(launcher, sizeof launcher, "TM_LAUNCHER=%d", (int)getpid());
  if (launch_config(l, t, &config) == TM_OK) {
    size_t size;
    char **env = launch_env((char *)config.data, launcher, &size);
    if (env) r = launch_spawn(l, t, chief ? l->script - 1 : role, env);
    tm_free(env, size);
  }
  tm_buf_release(&config);
  if (r)
    fprintf(stderr, "tidemill launch: cannot start /job:%s/task:%d: %s\n", t->job,
            t->index, uv_strerror(r));
  return r;
}

static int launch_tasks(launch *l) {
  l->task = tm_calloc((size_t)l->ntask, sizeof *l->task);
  if (!l->task) return UV_ENOMEM;
  for (int i = 0; i < l->ntask; i++) {
    launch_task *t = &l->task[i];
    t->owner = l;
    bool ps = i < l->nps, chief = i == l->ntask - 1;
    t->job = ps ? "ps" : chief ? "chief" : "worker";
    t->index = ps ? i : chief ? 0 : i - l->nps;
    int r = launch_start(l, t);
    if (r) return r;
  }
  return 0;
}

static void launch_signals(launch *l) {
  uv_signal_init(&l->loop, &l->on_int);
  uv_signal_init(&l->loop, &l->on_term);
  uv_timer_init(&l->loop, &l->grace);
  l->on_int.data = l->on_term.data = l->grace.data = l;
  uv_signal_start(&l->on_int, launch_on_signal, SIGINT);
  uv_signal_start(&l->on_term, launch_on_signal, SIGTERM);
}

static int launch_run(launch *l) {
  size_t n = sizeof l->exe;
  if (uv_exepath(l->exe, &n) || launch_ports(l)) {
    fprintf(stderr, "tidemill launch: no free ports on 127.0.0.1: %s\n",
            strerror(errno));
    return 1;
  }
  snprintf(l->cluster_id, sizeof l->cluster_id, "launch-%llx",
           (unsigned long long)tm_random_id());
  if (uv_loop_init(&l->loop)) return 1;
  launch_signals(l);
  l->status = 0;
  if (launch_tasks(l)) {
    l->status = 1;
    launch_stop(l);
    if (!l->task || launch_all_gone(l)) launch_done(l);
  }
  uv_run(&l->loop, UV_RUN_DEFAULT);
  uv_loop_close(&l->loop);
  tm_free(l->task, (size_t)l->ntask * sizeof *l->task);
  return l->status;
}

/* --- the command line --- */

static int launch_usage(const char *why, const char *what) {
  if (why) fprintf(stderr, "tidemill launch: %s%s\n", why, what);
  fprintf(why ? stderr : stdout,
          "usage: tidemill launch --workers N --ps N script.lua [args]\n"
          "Runs the script as the chief of a cluster of processes on this machine.\n");
  return why ? 2 : 0;
}

/* "--name N" or "--name=N" at argv[*i]; false when it is something else. */
static bool launch_number(int argc, char **argv, int *i, const char *name, int *out) {
  size_t n = strlen(name);
  const char *text = argv[*i];
  if (strncmp(text, name, n) != 0 || (text[n] && text[n] != '=')) return false;
  const char *value = text[n] ? text + n + 1 : *i + 1 < argc ? argv[++*i] : "";
  char *end;
  long v = strtol(value, &end, 10);
  *out = *value && !*end && v > 0 && v <= LAUNCH_MAX_TASKS / 2 ? (int)v : -1;
  return true;
}

int tm_host_launch(int argc, char **argv) {
  static launch l; /* about 20 KB, one a process */
  int i = 1;
  for (; i < argc && argv[i][0] == '-'; i++) {
    if (strcmp(argv[i], "--") == 0) {
      i++;
      break;
    }
    if (strcmp(argv[i], "--help") == 0) return launch_usage(NULL, NULL);
    if (launch_number(argc, argv, &i, "--workers", &l.nworker)) continue;
    if (launch_number(argc, argv, &i, "--ps", &l.nps)) continue;
    return launch_usage("unknown option ", argv[i]);
  }
  if (l.nworker < 1) return launch_usage("--workers must be a number from 1 on", "");
  if (l.nps < 1) return launch_usage("--ps must be a number from 1 on", "");
  if (i >= argc) return launch_usage("no script", "");
  l.ntask = l.nworker + l.nps + 1;
  l.script = argv + i;
  argv[i - 1] = l.exe; /* argv[0] of the chief, in front of the script */
  return launch_run(&l);
}
