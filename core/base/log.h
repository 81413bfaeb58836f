/*
 * log.h - log lines with a level, to a sink that the host installs.
 *
 * Without a sink nothing is written: the library never prints by itself.
 * Threads: any; the sink is called under a lock and must not log.
 */
#ifndef TM_BASE_LOG_H
#define TM_BASE_LOG_H

#include <stdio.h>

typedef enum tm_log_level {
  TM_LOG_DEBUG,
  TM_LOG_INFO,
  TM_LOG_WARN,
  TM_LOG_ERROR
} tm_log_level;

typedef void (*tm_log_fn)(void *ud, tm_log_level level, const char *line);

void tm_log_sink(tm_log_fn fn, void *ud, tm_log_level min);
void tm_log(tm_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Output of the `print` op and of users' prints: the same rule, its own sink. */
void tm_print_sink(void (*fn)(void *ud, const char *text), void *ud);
void tm_print_text(const char *text);

/* Both sinks write to f, lines from `min` on as "tidemill warn: ...".  f stays the
 * caller's and must outlive its use; NULL: to nothing. */
void tm_log_stream(FILE *f, tm_log_level min);
const char *tm_log_level_name(tm_log_level level); /* "debug" "info" "warn" "error" */

#endif
