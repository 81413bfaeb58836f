/*
 * session_parts.h - inside of session: how its tasks come to be.  Included by
 * session*.c only.
 */
#ifndef TM_CLUSTER_SESSION_PARTS_H
#define TM_CLUSTER_SESSION_PARTS_H

#include "cluster/session.h"

struct tm_session {
  tm_vars *vars; /* the chief's */
  int32_t nworker, nps;
  tm_worker_link **link;       /* NULL once a coordinator took them */
  tm_coordinator *coordinator; /* borrowed: whoever asked for it frees it */
  tm_store **store;            /* of a cluster in this process */
  tm_ps_client **ps;           /* the chief's clients, until vars takes them */
  uint64_t *incarnation;       /* of each worker */
  /* Tell every ps to refuse worker `index`; NULL: not needed. May block; called from
   * the coordinator's thread, so it uses clients of its own. */
  tm_status (*refuse)(tm_session *s, int32_t index, tm_err *err);
  struct session_remote *remote; /* of a cluster of other processes */
  /* While on, ps may be silent for long: they make large shards. */
  void (*excuse)(tm_session *s, bool on);
  /* The coordinator to tell when a ps is lost; NULL: none any more. */
  void (*watch)(tm_session *s, tm_coordinator *c);
  void (*stop_tasks)(tm_session *s);
  void (*stop_remote)(tm_session *s); /* after links and clients were closed */
};

/* Fill link and ps (and store) of a session whose arrays are there, all NULL. */
TM_CHECKED tm_status tm_session_start_local(tm_session *s, const tm_session_options *o,
                                            tm_err *err);
TM_CHECKED tm_status tm_session_start_remote(tm_session *s, const tm_session_options *o,
                                             tm_err *err);

#endif
