#include "cluster/preempt.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/preempt_http.h"
#include "cluster/preempt_signal.h"
#include "cluster/remote_value.h"

/*
 * Design.  The thread looks at the counters of its signals every PREEMPT_LOOK_NS, also
 * while it waits for an HTTP answer (a request is given up when a signal comes).
 *
 * Invariants:
 *   (1) Events are numbered from 1 without gaps; event n is in kept[(n - 1) % KEPT].
 *   (2) A source that is polled says its message once (`said`).
 *   (3) Every signal in opt.signal was taken, until `given`.
 */
static const int64_t PREEMPT_LOOK_NS = 50000000;

enum { PREEMPT_FILE, PREEMPT_URL, PREEMPT_KUBE, PREEMPT_POLLED };

struct tm_preempt {
  tm_preempt_options opt;
  pthread_t thread;
  pthread_mutex_t mu;
  pthread_cond_t wake;
  atomic_bool closing;
  uint64_t n;                             /* guarded by mu */
  tm_preempt_event kept[TM_PREEMPT_KEPT]; /* guarded by mu */
  /* of the thread: */
  unsigned base[TM_PREEMPT_SIGNALS], seen[TM_PREEMPT_SIGNALS];
  bool said[PREEMPT_POLLED], warned[PREEMPT_POLLED], given;
  int64_t first_ns; /* of the first signal; 0: none came */
};

/* --- options --- */

void tm_preempt_none(tm_preempt_options *o, const char *task) {
  memset(o, 0, sizeof *o);
  snprintf(o->task, sizeof o->task, "%s", task);
  o->interval = 1;
}

tm_status tm_preempt_add_signal(tm_preempt_options *o, int sig, tm_err *err) {
  for (int i = 0; i < o->nsignal; i++)
    if (o->signal[i] == sig) return TM_OK;
  if (o->nsignal == TM_PREEMPT_SIGNALS)
    return tm_fail(err, TM_EINVAL, "at most %d signals", TM_PREEMPT_SIGNALS);
  o->signal[o->nsignal++] = sig;
  return TM_OK;
}

tm_status tm_preempt_environment(tm_preempt_options *o, const char *task, tm_err *err) {
  const char *file = getenv("TM_PREEMPTION_FILE"), *url = getenv("TM_PREEMPTION_URL");
  const char *job = getenv("SLURM_JOB_ID");
  tm_preempt_none(o, task);
  o->slurm = job && *job;
  o->kubernetes = tm_http_available() && tm_preempt_kube_env(&o->pod);
  if (file) snprintf(o->file, sizeof o->file, "%s", file);
  if (url && *url) TM_TRY(tm_preempt_url_set(&o->url, url, err));
  return tm_preempt_add_signal(o, SIGTERM, err);
}

/* Signals that a source stands for. */
static tm_status preempt_signals(tm_preempt_options *o, tm_err *err) {
  if (o->slurm || o->kubernetes) TM_TRY(tm_preempt_add_signal(o, SIGTERM, err));
  return o->slurm ? tm_preempt_add_signal(o, SIGUSR1, err) : TM_OK;
}

/* --- messages --- */

/* Append; what does not fit is cut. */
static void preempt_text(char *out, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void preempt_text(char *out, size_t size, const char *fmt, ...) {
  size_t n = strlen(out);
  va_list ap;
  va_start(ap, fmt);
  (void)vsnprintf(out + n, size - n, fmt, ap);
  va_end(ap);
}

static void preempt_say(tm_preempt *p, const char *text, int sig, unsigned times) {
  tm_preempt_event e;
  memset(&e, 0, sizeof e);
  snprintf(e.text, sizeof e.text, "%s%s%s", p->opt.task, p->opt.task[0] ? ": " : "",
           text);
  e.signal = sig;
  e.times = times;
  pthread_mutex_lock(&p->mu);
  p->kept[p->n++ % TM_PREEMPT_KEPT] = e;
  pthread_mutex_unlock(&p->mu);
  tm_log(TM_LOG_DEBUG, "preemption: %s", e.text);
  if (p->opt.on_message) p->opt.on_message(p->opt.ud, &e);
}

bool tm_preempt_get(tm_preempt *p, uint64_t n, tm_preempt_event *out) {
  pthread_mutex_lock(&p->mu);
  bool there = n >= 1 && n <= p->n;
  if (there) {
    if (n + TM_PREEMPT_KEPT <= p->n) n = p->n - TM_PREEMPT_KEPT + 1;
    *out = p->kept[(n - 1) % TM_PREEMPT_KEPT];
  }
  pthread_mutex_unlock(&p->mu);
  return there;
}

/* " from Slurm (job 12, node n3)" of what the environment tells. */
static void preempt_slurm(char *out, size_t size) {
  static const struct {
    const char *name, *what;
  } vars[] = {{"SLURM_JOB_ID", "job"},     {"SLURM_JOB_NAME", "named"},
              {"SLURM_STEP_ID", "step"},   {"SLURM_PROCID", "task"},
              {"SLURMD_NODENAME", "node"}, {"SLURM_RESTART_COUNT", "restarts"}};
  const char *before = " (";
  snprintf(out, size, " from Slurm");
  for (size_t i = 0; i < TM_COUNT(vars); i++) {
    const char *v = getenv(vars[i].name);
    if (!v || !*v) continue;
    preempt_text(out, size, "%s%s %.60s", before, vars[i].what, v);
    before = ", ";
  }
  if (before[0] == ',') preempt_text(out, size, ")");
}

/* --- polled sources --- */

static bool preempt_signal_waits(tm_preempt *p) {
  for (int i = 0; i < p->opt.nsignal && !p->given; i++)
    if (tm_preempt_signal_count(p->opt.signal[i]) != p->seen[i]) return true;
  return false;
}

static bool preempt_closing(void *ud) {
  tm_preempt *p = ud;
  return atomic_load(&p->closing);
}

static bool preempt_stop(void *ud) {
  return preempt_closing(ud) || preempt_signal_waits(ud);
}

static void preempt_warn(tm_preempt *p, int which, tm_status s, const tm_err *err) {
  if (s == TM_OK) {
    p->warned[which] = false;
  } else if (s != TM_ECANCELLED && !p->warned[which]) {
    p->warned[which] = true;
    tm_log(TM_LOG_WARN, "the preemption watcher of %s goes on without an answer: %s",
           p->opt.task[0] ? p->opt.task : "this process", err->msg);
  }
}

static tm_status preempt_look(tm_preempt *p, int which, tm_preempt_stop stop,
                              tm_preempt_look *look, tm_err *err) {
  memset(look, 0, sizeof *look);
  if (which == PREEMPT_FILE && p->opt.file[0])
    return tm_preempt_look_file(p->opt.file, look, err);
  if (which == PREEMPT_URL && p->opt.url.url[0])
    return tm_preempt_look_url(&p->opt.url, stop, p, look, err);
  if (which == PREEMPT_KUBE && p->opt.kubernetes && p->opt.pod.api[0])
    return tm_preempt_look_kube(&p->opt.pod, stop, p, look, err);
  return TM_OK;
}

static void preempt_found(tm_preempt *p, int which, const tm_preempt_look *look) {
  char text[TM_PREEMPT_TEXT];
  const char *from = which == PREEMPT_FILE  ? p->opt.file
                     : which == PREEMPT_URL ? p->opt.url.url
                                            : "Kubernetes";
  p->said[which] = true;
  text[0] = '\0';
  preempt_text(text, sizeof text, "%.200s%s%s", from, look->text[0] ? ": " : "",
               look->text);
  preempt_say(p, text, 0, 0);
}

static void preempt_poll(tm_preempt *p) {
  tm_preempt_look look;
  tm_err err;
  for (int i = 0; i < PREEMPT_POLLED && !preempt_stop(p); i++) {
    if (p->said[i]) continue;
    tm_err_clear(&err);
    tm_status s = preempt_look(p, i, preempt_stop, &look, &err);
    preempt_warn(p, i, s, &err);
    if (s == TM_OK && look.found) preempt_found(p, i, &look);
  }
}

/* --- signals --- */

/* Why Kubernetes ends the pod, when it says so within a second; "" else. */
static void preempt_reason(tm_preempt *p, char *out, size_t size) {
  tm_preempt_look look;
  *out = '\0';
  if (!p->opt.kubernetes || !p->opt.pod.api[0] || p->said[PREEMPT_KUBE]) return;
  double timeout = p->opt.pod.timeout;
  if (timeout > 1) p->opt.pod.timeout = 1;
  if (preempt_look(p, PREEMPT_KUBE, preempt_closing, &look, NULL) == TM_OK &&
      look.found) {
    p->said[PREEMPT_KUBE] = true;
    preempt_text(out, size, "; %s", look.text);
  }
  p->opt.pod.timeout = timeout;
}

static void preempt_signal(tm_preempt *p, int i) {
  char text[TM_PREEMPT_TEXT], slurm[300] = "", pod[TM_PREEMPT_TEXT];
  if (p->opt.slurm) preempt_slurm(slurm, sizeof slurm);
  p->seen[i]++;
  if (!p->first_ns) p->first_ns = tm_now_ns();
  preempt_reason(p, pod, sizeof pod);
  text[0] = '\0';
  preempt_text(text, sizeof text, "%s%s%s", tm_preempt_signal_name(p->opt.signal[i]),
               slurm, pod);
  preempt_say(p, text, p->opt.signal[i], p->seen[i] - p->base[i]);
}

static void preempt_check_signals(tm_preempt *p) {
  for (int i = 0; i < p->opt.nsignal; i++)
    if (!p->given && tm_preempt_signal_count(p->opt.signal[i]) != p->seen[i])
      preempt_signal(p, i);
}

static void preempt_give(tm_preempt *p) {
  for (int i = 0; i < p->opt.nsignal && !p->given; i++)
    tm_preempt_signal_give(p->opt.signal[i]);
  p->given = true;
}

/* The process that started this one by `tidemill launch` is gone. */
static bool preempt_orphan(void) {
  const char *launcher = getenv("TM_LAUNCHER");
  return launcher && getppid() != (pid_t)atoi(launcher);
}

/* Time is up: what would have happened without a watcher. */
static void preempt_late(tm_preempt *p) {
  if (p->given || !p->first_ns) return;
  bool late =
      p->opt.grace > 0 && tm_now_ns() - p->first_ns > (int64_t)(p->opt.grace * 1e9);
  if (!late && !preempt_orphan()) return;
  preempt_give(p);
  kill(getpid(), SIGTERM);
}

/* --- the thread --- */

static void *preempt_main(void *ud) {
  tm_preempt *p = ud;
  int64_t next = tm_now_ns();
  while (!preempt_closing(p)) {
    preempt_check_signals(p);
    preempt_late(p);
    if (tm_now_ns() >= next) {
      preempt_poll(p);
      next = tm_now_ns() + (int64_t)(p->opt.interval * 1e9);
    }
    if (preempt_signal_waits(p)) continue;
    int64_t until = tm_now_ns() + PREEMPT_LOOK_NS;
    if (next < until) until = next;
    pthread_mutex_lock(&p->mu);
    tm_status s = TM_OK;
    while (s == TM_OK && !preempt_closing(p) && tm_now_ns() < until)
      s = tm_cond_wait_until(&p->wake, &p->mu, until, NULL);
    pthread_mutex_unlock(&p->mu);
  }
  return NULL;
}

static void preempt_free(tm_preempt *p) {
  preempt_give(p);
  pthread_mutex_destroy(&p->mu);
  pthread_cond_destroy(&p->wake);
  tm_free(p, sizeof *p);
}

static tm_status preempt_take(tm_preempt *p, tm_err *err) {
  for (int i = 0; i < p->opt.nsignal; i++) {
    tm_status s = tm_preempt_signal_take(p->opt.signal[i], err);
    if (s) {
      p->opt.nsignal = i; /* what preempt_give gives back */
      return s;
    }
    p->base[i] = p->seen[i] = tm_preempt_signal_count(p->opt.signal[i]);
  }
  return TM_OK;
}

static tm_status preempt_check_options(const tm_preempt_options *o, tm_err *err) {
  if (!(o->interval >= 0.01 && o->interval <= 3600))
    return tm_fail(err, TM_EINVAL, "interval is 0.01 to 3600 seconds, not %g",
                   o->interval);
  if ((o->url.url[0] || o->pod.api[0]) && !tm_http_available())
    return tm_fail(
        err, TM_EUNIMPL,
        "this tidemill was built without libcurl and cannot watch %s; install "
        "libcurl4-openssl-dev and build again",
        o->url.url[0] ? o->url.url : "Kubernetes");
  return TM_OK;
}

tm_status tm_preempt_open(const tm_preempt_options *o, tm_preempt **out, tm_err *err) {
  *out = NULL;
  TM_TRY(preempt_check_options(o, err));
  tm_preempt *p = tm_calloc(1, sizeof *p);
  if (!p) return tm_nomem(err, "a preemption watcher");
  p->opt = *o;
  pthread_mutex_init(&p->mu, NULL);
  tm_cond_init_monotonic(&p->wake);
  tm_status s = preempt_signals(&p->opt, err);
  if (s) p->opt.nsignal = 0;
  if (s == TM_OK) s = preempt_take(p, err);
  if (s == TM_OK && pthread_create(&p->thread, NULL, preempt_main, p))
    s = tm_fail(err, TM_EEXHAUSTED, "the thread of a preemption watcher cannot start");
  if (s) {
    preempt_free(p);
    return s;
  }
  *out = p;
  return TM_OK;
}

void tm_preempt_close(tm_preempt *p) {
  if (!p) return;
  pthread_mutex_lock(&p->mu);
  atomic_store(&p->closing, true);
  pthread_cond_signal(&p->wake);
  pthread_mutex_unlock(&p->mu);
  pthread_join(p->thread, NULL);
  preempt_free(p);
}
