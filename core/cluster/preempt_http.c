#include "cluster/preempt_http.h"

#include <string.h>

#ifdef TM_CURL
#define CURL_DISABLE_TYPECHECK 1
#include <curl/curl.h>
#include <pthread.h>

#include "base/clock.h"
#endif

/*
 * Design.  A multi handle with one transfer, so that we look up every HTTP_LOOK_MS,
 * whatever the transfer waits for (a name, a connection, an answer).
 */
#ifdef TM_CURL
enum { HTTP_LOOK_MS = 50 };

static pthread_once_t http_once = PTHREAD_ONCE_INIT;
static bool http_ready; /* written once */

static void http_global(void) {
  http_ready = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
}

bool tm_http_available(void) { return true; }

static size_t http_body(char *p, size_t size, size_t n, void *ud) {
  return tm_buf_put(ud, p, size * n) ? 0 : size * n;
}

static struct curl_slist *http_headers(const tm_http_request *rq, tm_status *s) {
  struct curl_slist *list = NULL;
  for (int i = 0; i < rq->nheader && *s == TM_OK; i++) {
    struct curl_slist *more = curl_slist_append(list, rq->header[i]);
    if (more)
      list = more;
    else
      *s = TM_ENOMEM;
  }
  return list;
}

static void http_options(CURL *c, const tm_http_request *rq, struct curl_slist *headers,
                         tm_buf *body, char *text) {
  curl_easy_setopt(c, CURLOPT_URL, rq->url);
  if (rq->method) curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, rq->method);
  curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
  curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
#if LIBCURL_VERSION_NUM >= 0x075500
  curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
  curl_easy_setopt(c, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
  if (rq->ca_file) curl_easy_setopt(c, CURLOPT_CAINFO, rq->ca_file);
  curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(rq->timeout * 1000));
  curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, http_body);
  curl_easy_setopt(c, CURLOPT_WRITEDATA, body);
  curl_easy_setopt(c, CURLOPT_ERRORBUFFER, text);
}

/* Until the transfer is over; its result. */
static tm_status http_drive(CURLM *m, const tm_http_request *rq, CURLcode *code) {
  int running = 1, left;
  CURLMsg *msg;
  while (running) {
    if (rq->stop && rq->stop(rq->ud)) return TM_ECANCELLED;
    if (curl_multi_perform(m, &running)) return TM_ENOMEM;
    if (running && curl_multi_poll(m, NULL, 0, HTTP_LOOK_MS, NULL)) return TM_ENOMEM;
  }
  *code = CURLE_OK;
  while ((msg = curl_multi_info_read(m, &left)))
    if (msg->msg == CURLMSG_DONE) *code = msg->data.result;
  return TM_OK;
}

static tm_status http_run(CURLM *m, CURL *c, const tm_http_request *rq,
                          tm_http_answer *out, tm_err *err) {
  char text[CURL_ERROR_SIZE] = "";
  CURLcode code = CURLE_OK;
  tm_status s = TM_OK;
  struct curl_slist *headers = http_headers(rq, &s);
  http_options(c, rq, headers, &out->body, text);
  if (s == TM_OK && curl_multi_add_handle(m, c)) s = TM_ENOMEM;
  if (s == TM_OK) {
    s = http_drive(m, rq, &code);
    if (s == TM_OK && code == CURLE_OK)
      curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &out->status);
    curl_multi_remove_handle(m, c);
  }
  curl_slist_free_all(headers);
  if (s == TM_ENOMEM) return tm_nomem(err, "an HTTP request");
  if (s) return tm_fail(err, s, "%s: given up", rq->url);
  if (code)
    return tm_fail(err, TM_EUNAVAILABLE, "%s: %s", rq->url,
                   text[0] ? text : curl_easy_strerror(code));
  return TM_OK;
}

tm_status tm_http(const tm_http_request *rq, tm_http_answer *out, tm_err *err) {
  memset(out, 0, sizeof *out);
  out->body.max = TM_HTTP_BODY;
  pthread_once(&http_once, http_global);
  if (!http_ready) return tm_fail(err, TM_EUNAVAILABLE, "libcurl cannot be started");
  CURL *c = curl_easy_init();
  CURLM *m = c ? curl_multi_init() : NULL;
  tm_status s = m ? http_run(m, c, rq, out, err) : tm_nomem(err, "an HTTP request");
  if (c) curl_easy_cleanup(c);
  if (m) curl_multi_cleanup(m);
  if (s == TM_OK && tm_buf_putc(&out->body, '\0')) s = tm_nomem(err, "an HTTP answer");
  if (s)
    tm_buf_release(&out->body);
  else
    out->body.len--;
  return s;
}

#else

bool tm_http_available(void) { return false; }

tm_status tm_http(const tm_http_request *rq, tm_http_answer *out, tm_err *err) {
  memset(out, 0, sizeof *out);
  return tm_fail(err, TM_EUNIMPL,
                 "%s: this tidemill was built without libcurl; install "
                 "libcurl4-openssl-dev and build again",
                 rq->url);
}
#endif
