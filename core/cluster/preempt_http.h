/*
 * preempt_http.h - one HTTP request, bounded in time and size (libcurl).
 *
 * No proxy, no redirects, http and https only: what is asked is a metadata server or
 * the API of a cluster.  A build without libcurl has no HTTP; tm_http says so.
 *
 * Ownership: the answer's body is the caller's (tm_buf_release).
 * Threads:   any, one request a call.
 */
#ifndef TM_CLUSTER_PREEMPT_HTTP_H
#define TM_CLUSTER_PREEMPT_HTTP_H

#include <stdbool.h>

#include "base/buf.h"

enum { TM_HTTP_BODY = 1 << 20, TM_HTTP_HEADERS = 16 };

typedef struct tm_http_request {
  const char *method; /* NULL: GET */
  const char *url;
  const char *const *header; /* "Name: value" */
  int nheader;
  const char *ca_file;    /* of https; NULL: the system's */
  double timeout;         /* seconds */
  bool (*stop)(void *ud); /* asked every 50 ms; true ends it with TM_ECANCELLED */
  void *ud;
} tm_http_request;

typedef struct tm_http_answer {
  long status;
  tm_buf body; /* NUL-terminated, the NUL is not counted */
} tm_http_answer;

bool tm_http_available(void);
/* TM_EUNAVAILABLE: nobody answers; TM_EUNIMPL: built without libcurl.  On failure the
 * body is empty. */
TM_CHECKED tm_status tm_http(const tm_http_request *rq, tm_http_answer *out,
                             tm_err *err);

#endif
