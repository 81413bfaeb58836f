/*
 * session_parts.h - inside of session: how its tasks come to be.  Included by
 * session*.c only.
 */
#ifndef TM_CLUSTER_SESSION_PARTS_H
#define TM_CLUSTER_SESSION_PARTS_H

#include <stdatomic.h>

#include "cluster/session.h"
#include "cluster/session_recipe.h"

typedef struct session_worker {
  bool removed; /* by the user; of the host's thread */
  char task[48];
  char address[280]; /* "": in this process */
  /* Of its last start.  Written by reach, read by refuse: by one thread at a time. */
  uint64_t incarnation;
} session_worker;

struct tm_save_lane;

struct tm_session {
  tm_vars *vars;           /* the chief's */
  _Atomic int32_t nworker; /* grows, on the host's thread */
  int32_t nps;
  int threads; /* of a worker's kernels */
  uint64_t seed;
  int64_t worker_timeout_ns;
  /* TM_MAX_TASKS; entry i is set before the coordinator knows of worker i, and stays.
   */
  session_worker **worker;
  tm_worker_link **link; /* NULL once a coordinator took them; nlink */
  int32_t nlink;
  tm_coordinator *coordinator; /* borrowed: whoever asked for it frees it */
  bool had_coordinator;
  tm_store **store;  /* of a cluster in this process */
  tm_ps_client **ps; /* the chief's clients, until vars takes them */
  /* Tell every ps to refuse the last incarnation of w; NULL: not needed.  May block;
   * called from threads of the coordinator, so it uses clients of its own. */
  tm_status (*refuse)(tm_session *s, const session_worker *w, tm_err *err);
  /* Start worker `index` with w->incarnation.  cancel: one try, ended by it; NULL: try
   * until the time to connect is up. */
  tm_status (*reach)(tm_session *s, int32_t index, const session_worker *w,
                     tm_cancel *cancel, tm_worker_link **out, tm_err *err);
  /* A client of ps k for the ends of rounds; NULL: `store` has them. */
  tm_status (*round_client)(tm_session *s, int32_t k, tm_ps_client **out, tm_err *err);
  tm_ps_client **rounds; /* nps, of the coordinator's thread that ends rounds */
  tm_mode mode;
  int64_t staleness;
  int32_t backup_workers;
  session_recipes recipes; /* kept where a ps may begin anew */
  bool keep_recipes;
  /* A way of its own to the shards of ps k, for a save; NULL: `store` has them. */
  tm_status (*save_lane)(tm_session *s, int32_t k, tm_cancel *cancel,
                         struct tm_save_lane **out, tm_err *err);
  struct session_remote *remote;                  /* of a cluster of other processes */
  tm_status (*guard)(tm_session *s, tm_err *err); /* of vars; may be NULL */
  /* So many bytes are being made: ps may be silent for long when they are many.  0: it
   * is over. */
  void (*excuse)(tm_session *s, uint64_t bytes);
  /* NULL: always "ready", without a copy. */
  const char *(*ps_state)(tm_session *s, int32_t i, bool *copied);
  /* The coordinator to tell when a ps is lost; NULL: none any more. */
  void (*watch)(tm_session *s, tm_coordinator *c);
  void (*stop_tasks)(tm_session *s, const char *only); /* NULL: all */
  void (*hurry)(tm_session *s); /* end refuse and reach: the coordinator is closed */
  void (*stop_remote)(tm_session *s); /* after links and clients were closed */
};

/* What a variable holds. */
uint64_t tm_session_bytes(const tm_var_info *v);

/* Entry nworker: address NULL for this process, task NULL for the usual name. */
TM_CHECKED tm_status tm_session_note_worker(tm_session *s, const char *address,
                                            const char *task, tm_err *err);
void tm_session_forget_workers(tm_session *s);
/* Start the noted workers.  Once one is there, those that are not have a few seconds
 * more; then they are left to the coordinator (their links are NULL). */
TM_CHECKED tm_status tm_session_first_links(tm_session *s,
                                            const tm_session_options *opt, tm_err *err);
/* What a coordinator of this session needs to look after workers. */
void tm_session_worker_options(tm_session *s, tm_coordinator_options *opt);

/* For the coordinator: end a round on every ps. */
TM_CHECKED tm_status tm_session_commit(void *s, const tm_ps_commit *c, bool *any,
                                       tm_err *err);
void tm_session_rounds_release(tm_session *s); /* after the coordinator */

/* Fill ps (and store), reach and refuse of a session whose arrays are there, all NULL;
 * then the workers are reached. */
TM_CHECKED tm_status tm_session_start_local(tm_session *s, const tm_session_options *o,
                                            tm_err *err);
TM_CHECKED tm_status tm_session_start_remote(tm_session *s, const tm_session_options *o,
                                             tm_err *err);

#endif
