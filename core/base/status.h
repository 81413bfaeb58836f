/*
 * status.h - the one error type of the project.
 *
 * Every function that can fail returns a tm_status: TM_OK (0) or a negative
 * code.  The codes are the canonical ones of the field (negated), so they can
 * travel on the wire and become err.code in Lua.  When a code alone would leave
 * the user guessing, the function also takes a `tm_err *` last, which the caller
 * owns and which may be NULL.
 *
 *     if (a != b)
 *       return tm_fail(err, TM_EINVAL, "matmul: inner sizes %d and %d", a, b);
 *
 * Who declares a tm_err clears it before its first use (tm_err_clear, or = {0}).
 *
 * Threads: all functions here may be called from any thread.
 */
#ifndef TM_BASE_STATUS_H
#define TM_BASE_STATUS_H

#include <stdint.h>

/* One line per code: name, value, name in Lua.  Values never change once
 * released, because they travel on the wire; retired codes leave a hole. */
#define TM_STATUS_MAP(X)                  \
  X(OK, 0, "ok")                          \
  X(ECANCELLED, -1, "cancelled")          \
  X(EUNKNOWN, -2, "unknown")              \
  X(EINVAL, -3, "invalid_argument")       \
  X(ETIMEOUT, -4, "deadline_exceeded")    \
  X(ENOTFOUND, -5, "not_found")           \
  X(EEXISTS, -6, "already_exists")        \
  X(EPERM, -7, "permission_denied")       \
  X(EEXHAUSTED, -8, "resource_exhausted") \
  X(EPRECOND, -9, "failed_precondition")  \
  X(EABORTED, -10, "aborted")             \
  X(ERANGE, -11, "out_of_range")          \
  X(EUNIMPL, -12, "unimplemented")        \
  X(EINTERNAL, -13, "internal")           \
  X(EUNAVAILABLE, -14, "unavailable")     \
  X(EDATALOSS, -15, "data_loss")          \
  X(EUNAUTH, -16, "unauthenticated")      \
  X(ENOMEM, -17, "resource_exhausted")    \
  X(EAGAIN, -18, "unavailable") /* internal: full or not ready, try again */

typedef enum tm_status {
#define X(name, value, text) TM_##name = (value),
  TM_STATUS_MAP(X)
#undef X
} tm_status;

/* Put on every function whose status must not be dropped. */
#define TM_CHECKED __attribute__((warn_unused_result))

/* What a user is told.  Never allocated; every text is always NUL-terminated
 * and cut where it does not fit. */
typedef struct tm_err {
  tm_status code;
  int64_t step;  /* number of the closure, -1 when none */
  char msg[512]; /* the thing, the place, the remedy */
  char task[48]; /* "/job:worker/task:0", "" when none */
  char op[48];   /* name of the op, "" when none */
} tm_err;

/* The canonical name of a code ("invalid_argument"). */
const char *tm_status_name(tm_status s);

/* The code of a canonical name; TM_EUNKNOWN when there is none. */
tm_status tm_status_of_name(const char *name);

/* Empty an error: code TM_OK, no step, empty texts. */
void tm_err_clear(tm_err *err);

/* Fill *err (may be NULL) with code s and the text, and return s.  task, op and
 * step of an err that is already filled stay, so a callee may set them first. */
tm_status tm_fail(tm_err *err, tm_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* tm_fail for out of memory while doing `what`. */
tm_status tm_nomem(tm_err *err, const char *what);

/* Put "prefix: " before the text of a filled err; returns err's code.  err may be
 * NULL, then `s` is returned. */
tm_status tm_err_prefix(tm_err *err, tm_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
