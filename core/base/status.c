#include "base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * Design.  A tm_err is filled once, where the failure is seen, and only decorated
 * on the way up (tm_err_prefix).
 *
 * Invariants:
 *   (1) Every text of a filled tm_err is NUL-terminated; what does not fit is cut.
 *   (2) tm_fail never touches task, op and step unless the err was clear, so a
 *       callee may say where before the failure is worded.
 */

static bool err_is_clear(const tm_err *err) {
  return err->code == TM_OK && err->task[0] == '\0' && err->op[0] == '\0' &&
         err->step <= 0;
}

const char *tm_status_name(tm_status s) {
  switch (s) {
#define X(name, value, text) \
  case TM_##name:            \
    return text;
    TM_STATUS_MAP(X)
#undef X
  }
  return "unknown";
}

tm_status tm_status_of_name(const char *name) {
#define X(id, value, text) \
  if (strcmp(name, text) == 0) return TM_##id;
  TM_STATUS_MAP(X)
#undef X
  return TM_EUNKNOWN;
}

void tm_err_clear(tm_err *err) {
  if (!err) return;
  err->code = TM_OK;
  err->step = -1;
  err->msg[0] = err->task[0] = err->op[0] = '\0';
}

tm_status tm_fail(tm_err *err, tm_status s, const char *fmt, ...) {
  if (!err) return s;
  if (err_is_clear(err)) tm_err_clear(err);
  err->code = s;
  va_list ap;
  va_start(ap, fmt);
  if (vsnprintf(err->msg, sizeof err->msg, fmt, ap) < 0) err->msg[0] = '\0';
  va_end(ap);
  return s;
}

tm_status tm_nomem(tm_err *err, const char *what) {
  return tm_fail(err, TM_ENOMEM, "out of memory: %s", what);
}

tm_status tm_err_prefix(tm_err *err, tm_status s, const char *fmt, ...) {
  if (!err) return s;
  char old[sizeof err->msg], prefix[sizeof err->msg];
  memcpy(old, err->msg, sizeof old);
  old[sizeof old - 1] = '\0';
  va_list ap;
  va_start(ap, fmt);
  int n = vsnprintf(prefix, sizeof prefix, fmt, ap);
  va_end(ap);
  if (n < 0) return err->code;
  size_t used = (size_t)n < sizeof prefix ? (size_t)n : sizeof prefix - 1;
  memcpy(err->msg, prefix, used);
  snprintf(err->msg + used, sizeof err->msg - used, ": %s", old);
  return err->code;
}
