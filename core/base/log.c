#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

/*
 * Design.  Two sinks, each called under one mutex, so that lines never mix.  The
 * level is also kept in an atomic: a line nobody wants costs one load.
 *
 * Invariant: log_min is above every level exactly when there is no sink.
 */
enum { LOG_LINE = 1024, LOG_NONE = TM_LOG_ERROR + 1 };

static pthread_mutex_t log_mu = PTHREAD_MUTEX_INITIALIZER;
static atomic_int log_min = LOG_NONE;
static tm_log_fn log_fn; /* guarded by log_mu, as all below */
static void *log_ud;
static void (*print_fn)(void *ud, const char *text);
static void *print_ud;

void tm_log_sink(tm_log_fn fn, void *ud, tm_log_level min) {
  pthread_mutex_lock(&log_mu);
  log_fn = fn;
  log_ud = ud;
  atomic_store(&log_min, fn ? (int)min : LOG_NONE);
  pthread_mutex_unlock(&log_mu);
}

void tm_log(tm_log_level level, const char *fmt, ...) {
  if ((int)level < atomic_load_explicit(&log_min, memory_order_relaxed)) return;
  char line[LOG_LINE];
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  pthread_mutex_lock(&log_mu);
  if (log_fn) log_fn(log_ud, level, line);
  pthread_mutex_unlock(&log_mu);
}

void tm_print_sink(void (*fn)(void *ud, const char *text), void *ud) {
  pthread_mutex_lock(&log_mu);
  print_fn = fn;
  print_ud = ud;
  pthread_mutex_unlock(&log_mu);
}

void tm_print_text(const char *text) {
  pthread_mutex_lock(&log_mu);
  if (print_fn) print_fn(print_ud, text);
  pthread_mutex_unlock(&log_mu);
}

const char *tm_log_level_name(tm_log_level level) {
  static const char *const names[] = {"debug", "info", "warn", "error"};
  return names[level];
}

static void log_stream_line(void *ud, tm_log_level level, const char *line) {
  fprintf(ud, "tidemill %s: %s\n", tm_log_level_name(level), line);
  fflush(ud);
}

static void log_stream_text(void *ud, const char *text) {
  fputs(text, ud);
  fflush(ud);
}

void tm_log_stream(FILE *f, tm_log_level min) {
  tm_log_sink(f ? log_stream_line : NULL, f, min);
  tm_print_sink(f ? log_stream_text : NULL, f);
}
