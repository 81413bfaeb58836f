#include "cluster/preempt_source.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "cluster/preempt_http.h"

/*
 * Design.  Each look starts anew: files and tokens are read again, because a mounted
 * token is renewed and a sentinel file may appear at any time.
 *
 * Invariant: nothing that was found leaves here but through tm_preempt_clean.
 */
static const struct {
  const char *name, *url, *header;
} source_clouds[] = {
    {"gce", "http://metadata.google.internal/computeMetadata/v1/instance/preempted",
     "Metadata-Flavor: Google"},
    {"aws", "http://169.254.169.254/latest/meta-data/spot/instance-action", NULL},
    {"azure", "http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01",
     "Metadata: true"},
};

void tm_preempt_clean(char *out, size_t size, const char *text, size_t n) {
  size_t k = 0;
  while (n > 0 && (unsigned char)text[n - 1] <= ' ') n--;
  while (n > 0 && (unsigned char)*text <= ' ') text++, n--;
  for (size_t i = 0; i < n && k + 1 < size; i++) {
    unsigned char c = (unsigned char)text[i];
    out[k++] = c < ' ' || c == 127 ? ' ' : (char)c;
  }
  out[k] = '\0';
}

static bool source_plain(const char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < ' ') return false;
  return true;
}

tm_status tm_preempt_url_header(tm_preempt_url *u, const char *header, tm_err *err) {
  size_t n = strlen(header);
  if (!strchr(header, ':') || !source_plain(header) || n >= sizeof u->header[0])
    return tm_fail(err, TM_EINVAL,
                   "a header is \"Name: value\" in one line, got \"%.80s\"", header);
  if (u->nheader == TM_PREEMPT_HEADERS)
    return tm_fail(err, TM_EINVAL, "at most %d headers", TM_PREEMPT_HEADERS);
  memcpy(u->header[u->nheader++], header, n + 1);
  return TM_OK;
}

tm_status tm_preempt_url_set(tm_preempt_url *u, const char *text, tm_err *err) {
  if (u->timeout <= 0) u->timeout = 5;
  for (size_t i = 0; i < TM_COUNT(source_clouds); i++) {
    if (strcmp(text, source_clouds[i].name) != 0) continue;
    snprintf(u->url, sizeof u->url, "%s", source_clouds[i].url);
    if (!source_clouds[i].header) return TM_OK;
    return tm_preempt_url_header(u, source_clouds[i].header, err);
  }
  bool http = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
  if (!http || !source_plain(text) || strlen(text) >= sizeof u->url)
    return tm_fail(err, TM_EINVAL,
                   "a preemption URL begins with http:// or https://, or is \"gce\", "
                   "\"aws\" or \"azure\"; got \"%.80s\"",
                   text);
  snprintf(u->url, sizeof u->url, "%s", text);
  return TM_OK;
}

/* --- a file --- */

/* At most size - 1 bytes of a file; TM_ENOTFOUND: there is none. */
static tm_status source_read(const char *path, char *out, size_t size, size_t *n,
                             tm_err *err) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us */
  if (fd < 0)
    return tm_fail(err, errno == ENOENT || errno == ENOTDIR ? TM_ENOTFOUND : TM_EPERM,
                   "\"%s\": %s", path, strerror(errno));
  bool file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  ssize_t got = 0;
  *n = 0;
  while (file && *n < size - 1 && (got = read(fd, out + *n, size - 1 - *n)) != 0) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) *n += (size_t)got;
  }
  close(fd);
  out[*n] = '\0';
  if (!file) return tm_fail(err, TM_EINVAL, "\"%s\" is not a file", path);
  if (got < 0) return tm_fail(err, TM_EDATALOSS, "\"%s\" cannot be read", path);
  return TM_OK;
}

tm_status tm_preempt_look_file(const char *path, tm_preempt_look *out, tm_err *err) {
  char text[4096];
  size_t n;
  memset(out, 0, sizeof *out);
  tm_status s = source_read(path, text, sizeof text, &n, err);
  if (s == TM_ENOTFOUND) return TM_OK;
  TM_TRY(s);
  out->found = true;
  tm_preempt_clean(out->text, sizeof out->text, text, n);
  return TM_OK;
}

/* --- an address --- */

static const char *source_string(const json_t *o, const char *field) {
  const char *s = json_string_value(json_object_get(o, field));
  return s ? s : "";
}

static bool source_names(const json_t *event, const char *resource) {
  size_t i;
  json_t *r;
  if (!resource[0]) return true;
  json_array_foreach(json_object_get(event, "Resources"), i, r) {
    const char *name = json_string_value(r);
    if (name && strcasecmp(name, resource) == 0) return true;
  }
  return false;
}

/* Azure's scheduled events; false when the body is something else. */
static bool source_events(const tm_preempt_url *u, const tm_http_answer *a,
                          tm_preempt_look *out) {
  size_t i;
  json_t *e;
  json_t *root = json_loadb((const char *)a->body.data, a->body.len, 0, NULL);
  json_t *events = json_object_get(root, "Events");
  bool mine = json_is_array(events);
  json_array_foreach(events, i, e) {
    const char *type = source_string(e, "EventType");
    if (out->found ||
        (strcmp(type, "Preempt") != 0 && strcmp(type, "Terminate") != 0) ||
        !source_names(e, u->resource))
      continue;
    char text[TM_PREEMPT_TEXT];
    int n = snprintf(text, sizeof text, "%s, not before %s", type,
                     source_string(e, "NotBefore"));
    tm_preempt_clean(out->text, sizeof out->text, text,
                     n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    out->found = true;
  }
  json_decref(root);
  return mine;
}

static tm_status source_get(const tm_preempt_url *u, const char *method,
                            const char *url, const char *more, tm_preempt_stop stop,
                            void *ud, tm_http_answer *a, tm_err *err) {
  const char *header[TM_PREEMPT_HEADERS + 1];
  int n = 0;
  for (; n < u->nheader; n++) header[n] = u->header[n];
  if (more) header[n++] = more;
  tm_http_request rq = {.method = method,
                        .url = url,
                        .header = header,
                        .nheader = n,
                        .timeout = u->timeout,
                        .stop = stop,
                        .ud = ud};
  return tm_http(&rq, a, err);
}

/* AWS wants a token of the session first: ask for one, then again. */
static tm_status source_get_with_token(const tm_preempt_url *u, tm_preempt_stop stop,
                                       void *ud, tm_http_answer *a, tm_err *err) {
  char url[sizeof u->url + 32], token[512], header[640];
  const char *host = strstr(u->url, "://") + 3, *path = strchr(host, '/');
  int n = path ? (int)(path - u->url) : (int)strlen(u->url);
  snprintf(url, sizeof url, "%.*s/latest/api/token", n, u->url);
  TM_TRY(source_get(u, "PUT", url, "X-aws-ec2-metadata-token-ttl-seconds: 60", stop, ud,
                    a, err));
  tm_preempt_clean(token, sizeof token, (const char *)a->body.data, a->body.len);
  if (a->status != 200 || !token[0]) return TM_OK; /* the answer is told */
  tm_buf_release(&a->body);
  snprintf(header, sizeof header, "X-aws-ec2-metadata-token: %s", token);
  return source_get(u, NULL, u->url, header, stop, ud, a, err);
}

tm_status tm_preempt_look_url(const tm_preempt_url *u, tm_preempt_stop stop, void *ud,
                              tm_preempt_look *out, tm_err *err) {
  tm_http_answer a;
  memset(out, 0, sizeof *out);
  TM_TRY(source_get(u, NULL, u->url, NULL, stop, ud, &a, err));
  tm_status s = TM_OK;
  if (a.status == 401) {
    tm_buf_release(&a.body);
    s = source_get_with_token(u, stop, ud, &a, err);
  }
  if (s == TM_OK && a.status != 200 && a.status != 404)
    s = tm_fail(err, TM_EUNAVAILABLE, "%s answers with status %ld", u->url, a.status);
  if (s == TM_OK && a.status == 200 && !source_events(u, &a, out)) {
    tm_preempt_clean(out->text, sizeof out->text, (const char *)a.body.data,
                     a.body.len);
    out->found = out->text[0] && strcasecmp(out->text, "FALSE") != 0 &&
                 strcasecmp(out->text, "NONE") != 0;
  }
  tm_buf_release(&a.body);
  return s;
}

/* --- a pod --- */

bool tm_preempt_kube_env(tm_preempt_kube *k) {
  const char *host = getenv("KUBERNETES_SERVICE_HOST");
  const char *port = getenv("KUBERNETES_SERVICE_PORT");
  const char *pod = getenv("POD_NAME");
  if (!pod) pod = getenv("HOSTNAME");
  memset(k, 0, sizeof *k);
  k->timeout = 5;
  snprintf(k->directory, sizeof k->directory,
           "/var/run/secrets/kubernetes.io/serviceaccount");
  if (pod) snprintf(k->pod, sizeof k->pod, "%s", pod);
  if (!host || !*host || !pod || !*pod) return false;
  snprintf(k->api, sizeof k->api,
           strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s", host,
           port && *port ? port : "443");
  char path[600], one[2];
  size_t n;
  snprintf(path, sizeof path, "%s/token", k->directory);
  return source_read(path, one, sizeof one, &n, NULL) == TM_OK;
}

/* Why a pod is disrupted, of the conditions in its status. */
static void source_condition(const json_t *pod, char *out, size_t size) {
  size_t i;
  json_t *c;
  json_array_foreach(json_object_get(json_object_get(pod, "status"), "conditions"), i,
                     c) {
    if (strcmp(source_string(c, "type"), "DisruptionTarget") != 0 ||
        strcmp(source_string(c, "status"), "True") != 0)
      continue;
    snprintf(out, size, "%s: %s", source_string(c, "reason"),
             source_string(c, "message"));
  }
}

static void source_pod(const char *name, const tm_http_answer *a,
                       tm_preempt_look *out) {
  char why[300] = "", text[TM_PREEMPT_TEXT];
  json_t *pod = json_loadb((const char *)a->body.data, a->body.len, 0, NULL);
  const char *when =
      source_string(json_object_get(pod, "metadata"), "deletionTimestamp");
  source_condition(pod, why, sizeof why);
  out->found = *when || why[0];
  snprintf(text, sizeof text, "pod %s is being deleted%s%s%s%s", name,
           *when ? ", by " : "", when, why[0] ? ", " : "", why);
  tm_preempt_clean(out->text, sizeof out->text, text, strlen(text));
  json_decref(pod);
}

static tm_status source_account(const tm_preempt_kube *k, const char *file, char *out,
                                size_t size, tm_err *err) {
  char path[600], text[8192];
  size_t n;
  snprintf(path, sizeof path, "%s/%s", k->directory, file);
  TM_TRY(source_read(path, text, sizeof text, &n, err));
  tm_preempt_clean(out, size, text, n);
  return TM_OK;
}

tm_status tm_preempt_look_kube(const tm_preempt_kube *k, tm_preempt_stop stop, void *ud,
                               tm_preempt_look *out, tm_err *err) {
  char token[8192], space[128], url[1200], header[8300], ca[600];
  memset(out, 0, sizeof *out);
  TM_TRY(source_account(k, "token", token, sizeof token, err));
  TM_TRY(source_account(k, "namespace", space, sizeof space, err));
  snprintf(header, sizeof header, "Authorization: Bearer %s", token);
  snprintf(url, sizeof url, "%s/api/v1/namespaces/%s/pods/%s", k->api, space, k->pod);
  snprintf(ca, sizeof ca, "%s/ca.crt", k->directory);
  const char *const headers[] = {header};
  tm_http_request rq = {.url = url,
                        .header = headers,
                        .nheader = 1,
                        .ca_file = strncmp(url, "https:", 6) == 0 ? ca : NULL,
                        .timeout = k->timeout,
                        .stop = stop,
                        .ud = ud};
  tm_http_answer a;
  TM_TRY(tm_http(&rq, &a, err));
  tm_status s = TM_OK;
  if (a.status == 200)
    source_pod(k->pod, &a, out);
  else
    s = tm_fail(err, TM_EUNAVAILABLE, "%s answers with status %ld", url, a.status);
  tm_buf_release(&a.body);
  return s;
}
