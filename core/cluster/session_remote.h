/*
 * session_remote.h - inside of a session with tasks in other processes.  Included by
 * session_remote*.c, session_mend.c and session_lanes.c only.
 */
#ifndef TM_CLUSTER_SESSION_REMOTE_H
#define TM_CLUSTER_SESSION_REMOTE_H

#include <pthread.h>

#include "cluster/remote.h"
#include "cluster/session_parts.h"

typedef enum session_ps_state {
  SESSION_UP,
  SESSION_LOST,    /* not there, or about to begin anew */
  SESSION_DIALLED, /* the mender is starting it */
  SESSION_FRESH    /* began anew: it holds nothing */
} session_ps_state;

typedef struct session_ps {
  struct session_remote *owner;
  int32_t index;
  char task[48];
  tm_conn *control;       /* guarded by mu; NULL: none */
  session_ps_state state; /* guarded by mu */
  uint32_t number;        /* guarded by mu: of its control connection */
  tm_cancel lost;         /* ends the chief's requests to it */
  pthread_t inquest;      /* why its connection ended; joined before the next one */
  bool asked, asking;     /* guarded by mu: there is an inquest; it goes on */
  bool cut;               /* guarded by mu: what the inquest has made is cut already */
  tm_err end;             /* how it ended, for the inquest */
} session_ps;

typedef struct session_remote {
  tm_session *session;
  tm_board *board; /* a reference; may be NULL */
  tm_netloop *loop;
  int32_t nps, ntask;
  session_ps *ps;
  pthread_mutex_t mu;
  tm_coordinator *coordinator; /* guarded by mu; changed with `life` held too */
  bool closing, excused;       /* guarded by mu */
  atomic_bool aborted;         /* why is TM_EABORTED, and stays */
  tm_err why; /* guarded by mu: of the first ps that was lost; code TM_OK: none */
  struct session_mender *mender; /* NULL: what is lost is lost */
  /* Of the host's thread, with a mender (cluster/moment.h): */
  uint64_t serial;          /* of the coordinator: they are counted */
  uint64_t *lost, *pending; /* nps: closures that went back; those that are about to */
  struct session_lanes *lanes; /* NULL: no ps keeps copies */
  char (*address)[280];        /* ntask: of the ps, then of the workers */
  const char **ps_where;       /* nps: addresses of the ps */
  tm_hello self;
  tm_start start;    /* what every task is told; index is not set */
  tm_cancel *cancel; /* of the host; may be NULL */
  tm_cancel hurry;   /* the coordinator is being closed */
  tm_cancel stop;    /* the session is: ends inquests */
} session_remote;

/* Another chief took over: the coordinator is lost for good (mu held). */
void tm_session_abort(session_remote *r, const tm_err *why);
/* How task `index` at an address is started. */
tm_remote_options tm_session_remote_options(const session_remote *r, int32_t index,
                                            const char *address);
/* A control connection to ps p, which begins anew.  When it ends and p->number is still
 * `number`, p is lost. */
TM_CHECKED tm_status tm_session_dial_ps(session_ps *p, uint32_t number,
                                        const tm_remote_options *opt, tm_conn **out,
                                        tm_err *err);
/* A data connection to ps i. */
TM_CHECKED tm_status tm_session_data(session_remote *r, int32_t i, bool retry,
                                     tm_ps_client **out, tm_err *err);

/* --- session_mend.c --- */

TM_CHECKED tm_status tm_mender_new(session_remote *r, tm_ps_failure policy);
void tm_mender_free(session_remote *r); /* before the loop */
/* Another chief is in charge: nothing will be restored (mu held). */
void tm_mender_refused(session_remote *r, const tm_err *why);
/* p is lost, why is noted (mu held). */
void tm_mender_lost(session_ps *p);
/* The coordinator comes, or goes (NULL). */
void tm_mender_watch(session_remote *r, tm_coordinator *c);

/* --- session_lanes.c --- */

TM_CHECKED tm_status tm_lanes_new(session_remote *r);
/* After every ps was started: all lanes begin empty, each with a copy on the next ps.
 */
TM_CHECKED tm_status tm_lanes_begin(session_remote *r, tm_err *err);
/* The same when the mender has started all of them anew; the copies come later (mu
 * held). */
void tm_lanes_restart(session_remote *r);
void tm_lanes_free(session_remote *r); /* before the loop, after the clients */
/* p is lost: others serve what it served.  False: for some of it there is nobody (mu
 * held). */
bool tm_lanes_bear(session_ps *p, const tm_err *why);
/* p has a new control connection: what it was told last may not have come (mu held). */
void tm_lanes_retied(session_ps *p);
/* All that p serves has a copy that can serve instead (mu held). */
bool tm_lanes_spare(session_ps *p);
/* False: it is not about lanes (mu held). */
bool tm_lanes_message(session_ps *p, tm_message *m);
/* Set while nobody serves lane k. */
tm_cancel *tm_lanes_gone(session_remote *r, int32_t k);
const char *tm_lanes_state(session_remote *r, int32_t i); /* mu held */
bool tm_lanes_have_copy(session_remote *r, int32_t k);    /* mu held */

#endif
