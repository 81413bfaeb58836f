/*
 * preempt_source.h - what a preemption watcher looks at: a file, a metadata address,
 * the pod it runs in.
 *
 *     tm_preempt_url u = {0};
 *     TM_TRY(tm_preempt_url_set(&u, "gce", err));
 *     TM_TRY(tm_preempt_look_url(&u, stop, ud, &look, err));
 *     if (look.found) ... look.text ...
 *
 * Each look is bounded in time and size.  Texts from outside are cut and freed of
 * control characters.
 *
 * Ownership: the caller's structs.  Threads: any.
 */
#ifndef TM_CLUSTER_PREEMPT_SOURCE_H
#define TM_CLUSTER_PREEMPT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

enum { TM_PREEMPT_TEXT = 400, TM_PREEMPT_HEADERS = 8 };

typedef struct tm_preempt_look {
  bool found;
  char text[TM_PREEMPT_TEXT]; /* when found; may be "" */
} tm_preempt_look;

/* A polled address.  200 with a body that is neither empty nor FALSE nor NONE is a
 * message; a body {"Events": [...]} is one only for an event that ends the machine
 * (Azure). 401 asks for a token of the machine first (AWS). */
typedef struct tm_preempt_url {
  char url[1024];
  char header[TM_PREEMPT_HEADERS][256];
  int nheader;
  char resource[128]; /* of Azure's events only those that name it; "": all */
  double timeout;     /* seconds */
} tm_preempt_url;

/* text: an address, or "gce", "aws", "azure" for that cloud's.  u begins as zeros. */
TM_CHECKED tm_status tm_preempt_url_set(tm_preempt_url *u, const char *text,
                                        tm_err *err);
TM_CHECKED tm_status tm_preempt_url_header(tm_preempt_url *u, const char *header,
                                           tm_err *err);

/* A pod, and the API that knows about it. */
typedef struct tm_preempt_kube {
  char api[512];       /* "https://10.0.0.1:443" */
  char directory[512]; /* of the service account: token, ca.crt, namespace */
  char pod[256];
  double timeout; /* seconds */
} tm_preempt_kube;

/* Of the environment; false: this is no pod with a service account. */
bool tm_preempt_kube_env(tm_preempt_kube *k);

typedef bool (*tm_preempt_stop)(void *ud);

/* A failure means that nothing can be said now. */
TM_CHECKED tm_status tm_preempt_look_file(const char *path, tm_preempt_look *out,
                                          tm_err *err);
TM_CHECKED tm_status tm_preempt_look_url(const tm_preempt_url *u, tm_preempt_stop stop,
                                         void *ud, tm_preempt_look *out, tm_err *err);
TM_CHECKED tm_status tm_preempt_look_kube(const tm_preempt_kube *k,
                                          tm_preempt_stop stop, void *ud,
                                          tm_preempt_look *out, tm_err *err);

/* Copy text of n bytes: cut, trimmed, without control characters. */
void tm_preempt_clean(char *out, size_t size, const char *text, size_t n);

#endif
