#include "cluster/session_remote.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/ps_remote.h"
#include "cluster/save_lane.h"
#include "cluster/spec.h"
#include "cluster/term.h"

/*
 * A cluster of other processes.  Each ps is started anew over a control connection and
 * then reached by a data connection; then the workers are started, which connect to
 * the ps themselves.
 *
 * The control connection to a ps is only watched: when it is lost, so is the cluster.
 * The coordinator is told, and the chief's own requests to that ps end.
 *
 * Invariants:
 *   (1) Each control connection has a number; the end of one that was replaced says
 *       nothing.
 *   (2) `lost` of a ps is set when it is lost, and reset only by the host's thread when
 *       the ps was started anew (session_mend.c).
 *   (3) mu is held while the coordinator is told, so that it lives.
 */

#define REMOTE_PATIENCE_NS 2000000000 /* for a wire to a ps without a copy */
#define REMOTE_PAUSE_NS    20000000
#define REMOTE_INQUEST_NS  2000000000 /* at most: it may be a busy machine */
#define REMOTE_ASK_NS      250000000  /* for a term */
#define REMOTE_TELL_NS     5000000000 /* a line while a ps is awaited */
enum { REMOTE_INQUESTS = 4 };
#define REMOTE_MAKES 16e6 /* bytes a second that any ps makes */

void tm_session_abort(session_remote *r, const tm_err *why) {
  if (r->why.code == TM_EABORTED || r->closing) return;
  r->why = *why;
  atomic_store(&r->aborted, true);
  if (r->mender) tm_mender_refused(r, why);
  if (r->coordinator) tm_coordinator_lose(r->coordinator, why);
}

/* Of the chief's own requests: all of them fail once one task has said it. */
static tm_status session_guard(tm_session *s, tm_err *err) {
  session_remote *r = s->remote;
  if (!atomic_load_explicit(&r->aborted, memory_order_relaxed)) return TM_OK;
  pthread_mutex_lock(&r->mu);
  if (err) *err = r->why;
  pthread_mutex_unlock(&r->mu);
  return TM_EABORTED;
}

/* A control connection: the user pointer of its tm_conn. */
typedef struct session_tie {
  session_ps *p;
  uint32_t number;
} session_tie;

/* What a ps says by itself: that it serves another chief now, or that it will end. */
static void remote_ps_message(void *ud, tm_conn *c, tm_message *m) {
  session_ps *p = ((session_tie *)tm_conn_user(c))->p;
  tm_unpacker u;
  tm_err err;
  char why[TM_LEAVING_TEXT];
  session_remote *r = p->owner;
  (void)ud;
  if (m->f.kind == TM_F_LEAVING &&
      tm_remote_leaving(r->board, c, m, r->address[p->index], &r->self, why))
    tm_log(TM_LOG_WARN, "%s will leave: %s", p->task, why);
  pthread_mutex_lock(&r->mu);
  bool lanes = tm_lanes_message(p, m);
  pthread_mutex_unlock(&r->mu);
  if (lanes || m->f.kind != TM_F_ERROR) return;
  tm_unpack_init(&u, m->meta, m->f.meta_bytes);
  tm_err_unpack(&u, &err);
  if (!err.task[0]) memcpy(err.task, p->task, sizeof err.task);
  if (err.code != TM_EABORTED) return;
  pthread_mutex_lock(&p->owner->mu);
  tm_session_abort(p->owner, &err);
  pthread_mutex_unlock(&p->owner->mu);
}

/* The one place where a ps is lost (mu held). */
static void remote_ps_lost(session_ps *p, const tm_err *why) {
  session_remote *r = p->owner;
  bool first = r->why.code == TM_OK;
  if (r->why.code == TM_EABORTED) return; /* its answers say why */
  tm_cancel_set(&p->lost);
  if (r->closing) return;
  if (first) {
    tm_fail(&r->why, TM_EUNAVAILABLE, "%s is lost: %s", p->task, why->msg);
    memcpy(r->why.task, p->task, sizeof r->why.task);
  }
  if (r->mender)
    tm_mender_lost(p);
  else if (first && r->coordinator)
    tm_coordinator_lose(r->coordinator, &r->why);
}

/* p is gone (mu held). */
static void remote_ps_verdict(session_ps *p) {
  if (!tm_lanes_bear(p, &p->end)) remote_ps_lost(p, &p->end);
}

/* p is there, and serves us: only the connection was cut (mu held). */
static void remote_ps_retied(session_ps *p, tm_conn *fresh) {
  session_remote *r = p->owner;
  tm_conn_unref(p->control);
  p->control = fresh;
  if (r->excused) tm_conn_excuse(fresh, true);
  tm_log(TM_LOG_WARN, "%s is reached again: only its connection was cut", p->task);
  if (r->lanes) tm_lanes_retied(p);
}

/* The connection ended: the ps has died, or serves another chief, for which this one
 * was away for too long to be told, or the wire was cut.  Its answer says which. */
static tm_status inquest_dial(session_ps *p, uint32_t number, tm_conn **out, bool *cut,
                              tm_err *err) {
  session_remote *r = p->owner;
  tm_remote_options o = tm_session_remote_options(r, p->index, r->address[p->index]);
  o.task = p->task;
  o.once = true;
  o.cancel = &r->stop;
  o.cut = cut;
  o.start.resume = true;
  o.start.connect_timeout_ns =
      r->start.silence_ns < REMOTE_INQUEST_NS ? r->start.silence_ns : REMOTE_INQUEST_NS;
  return tm_session_dial_ps(p, number, &o, out, err);
}

/* A ps that was silent for too long is lost, also when it wakes up now; but the one
 * that slept may be this chief. */
static tm_status inquest_term(session_ps *p, tm_err *err) {
  session_remote *r = p->owner;
  tm_channel_options o = {.address = r->address[p->index],
                          .self = r->self,
                          .connect_timeout_ns = REMOTE_ASK_NS,
                          .silence_ns = REMOTE_ASK_NS,
                          .cancel = &r->stop};
  tm_term granted;
  TM_TRY(tm_term_claim(&o, &granted, err));
  if (tm_term_order(&r->self.term, &granted) < 0)
    return tm_term_refuse(p->task, &r->self.term, &granted, err);
  return TM_EUNAVAILABLE;
}

/* What it serves has no copy, so there is reason to be patient (mu held). */
static bool inquest_patient(session_ps *p, int64_t since) {
  session_remote *r = p->owner;
  int64_t most = r->start.silence_ns < REMOTE_PATIENCE_NS ? r->start.silence_ns
                                                          : REMOTE_PATIENCE_NS;
  return !(r->lanes && tm_lanes_spare(p)) && tm_now_ns() - since < most;
}

/* It did not answer; cut: somebody was there, and the wire was cut once more (mu held).
 */
static bool inquest_waits(session_ps *p, tm_status s, bool cut, int64_t since) {
  if (s != TM_EUNAVAILABLE) return false;
  return cut || (p->owner->lanes && inquest_patient(p, since));
}

/* What the inquest found (mu held); false: it is to ask again. */
static bool inquest_ends(session_ps *p, uint32_t number, tm_status s, tm_conn *fresh,
                         bool cut, int64_t since, const tm_err *err) {
  session_remote *r = p->owner;
  bool moot = p->number != number || r->closing;
  bool again = s == TM_OK && p->cut && !moot;
  p->cut = false;
  if (s == TM_OK && !moot && !again) {
    remote_ps_retied(p, fresh);
    return true;
  }
  if (s == TM_OK) {
    tm_conn_close(fresh, TM_ECANCELLED, "it is not needed");
    tm_conn_unref(fresh);
  }
  if (moot || again) return !again;
  if (inquest_waits(p, s, cut, since)) return false;
  if (s == TM_EABORTED)
    tm_session_abort(r, err);
  else
    remote_ps_verdict(p);
  return true;
}

static void *remote_inquest(void *ud) {
  session_ps *p = ud;
  session_remote *r = p->owner;
  bool ends = false;
  int64_t since = tm_now_ns();
  pthread_mutex_lock(&r->mu);
  for (int n = 0; !ends && (n < REMOTE_INQUESTS || inquest_patient(p, since));) {
    bool cut = false;
    uint32_t number = p->number;
    tm_conn *fresh = NULL;
    tm_err err;
    tm_err_clear(&err);
    pthread_mutex_unlock(&r->mu);
    tm_status s = p->end.code == TM_ETIMEOUT
                      ? inquest_term(p, &err)
                      : inquest_dial(p, number, &fresh, &cut, &err);
    pthread_mutex_lock(&r->mu);
    ends = inquest_ends(p, number, s, fresh, cut, since, &err);
    n += s == TM_OK || cut;
    if (ends || s == TM_OK) continue;
    pthread_mutex_unlock(&r->mu);
    tm_sleep_ns(REMOTE_PAUSE_NS);
    pthread_mutex_lock(&r->mu);
  }
  p->asking = false;
  if (!ends) remote_ps_verdict(p);
  pthread_mutex_unlock(&r->mu);
  return NULL;
}

/* Its control connection ended (mu held).  One that is silent has had its time: with
 * copies another serves at once. */
static void remote_ps_ended(session_ps *p, const tm_err *why) {
  session_remote *r = p->owner;
  if (r->closing) return;
  if (p->asking) { /* it has not looked yet */
    p->cut = true;
    return;
  }
  p->end = *why;
  p->number++;
  if (p->asked) pthread_join(p->inquest, NULL);
  p->asked = !r->closing && !(r->lanes && why->code == TM_ETIMEOUT) &&
             r->why.code == TM_OK && !(r->mender && p->state != SESSION_UP) &&
             pthread_create(&p->inquest, NULL, remote_inquest, p) == 0;
  p->asking = p->asked;
  if (!p->asked) remote_ps_verdict(p);
}

static void remote_ps_closed(void *ud, tm_conn *c, const tm_err *why) {
  session_tie *tie = tm_conn_user(c);
  session_remote *r = tie->p->owner;
  (void)ud;
  if (r->board) tm_board_cut(r->board, tm_conn_peer(c)->incarnation);
  pthread_mutex_lock(&r->mu);
  if (tie->number == tie->p->number) remote_ps_ended(tie->p, why);
  pthread_mutex_unlock(&r->mu);
  tm_free(tie, sizeof *tie);
}

/* Not where it should take but a part of the time after which silence counts. */
static void session_excuse(tm_session *s, uint64_t bytes) {
  session_remote *r = s->remote;
  bool on = (double)bytes > REMOTE_MAKES * 1e-9 * (double)r->start.silence_ns;
  pthread_mutex_lock(&r->mu);
  r->excused = on;
  for (int32_t i = 0; i < r->nps; i++)
    if (r->ps[i].control) tm_conn_excuse(r->ps[i].control, on);
  pthread_mutex_unlock(&r->mu);
}

static const char *session_ps_state_remote(tm_session *s, int32_t i, bool *copied) {
  session_remote *r = s->remote;
  pthread_mutex_lock(&r->mu);
  *copied = r->lanes && tm_lanes_have_copy(r, i);
  const session_ps *p = &r->ps[i];
  const char *state = r->lanes                      ? tm_lanes_state(r, i)
                      : p->state == SESSION_DIALLED ? "connecting"
                      : p->state == SESSION_LOST || tm_cancelled(&r->ps[i].lost)
                          ? "down"
                          : "ready";
  pthread_mutex_unlock(&r->mu);
  return state;
}

static void session_watch(tm_session *s, tm_coordinator *c) {
  session_remote *r = s->remote;
  if (r->mender) {
    tm_mender_watch(r, c);
    return;
  }
  pthread_mutex_lock(&r->mu);
  r->coordinator = c;
  if (c && r->why.code != TM_OK) tm_coordinator_lose(c, &r->why);
  pthread_mutex_unlock(&r->mu);
}

/* Before the loop is freed, which gets the connection that an inquest makes. */
static void remote_end_inquest(session_ps *p) {
  pthread_mutex_lock(&p->owner->mu);
  bool asked = p->asked;
  p->asked = false;
  pthread_mutex_unlock(&p->owner->mu);
  if (asked) pthread_join(p->inquest, NULL);
}

static void session_stop_remote(tm_session *s) {
  session_remote *r = s->remote;
  if (!r) return;
  pthread_mutex_lock(&r->mu);
  r->closing = true;
  pthread_mutex_unlock(&r->mu);
  tm_cancel_set(&r->stop);
  tm_mender_free(r);
  tm_lanes_free(r);
  for (int32_t i = 0; r->ps && i < r->nps; i++) remote_end_inquest(&r->ps[i]);
  tm_netloop_free(r->loop);
  for (int32_t i = 0; r->ps && i < r->nps; i++) tm_conn_unref(r->ps[i].control);
  tm_free(r->ps, (size_t)r->nps * sizeof *r->ps);
  pthread_mutex_destroy(&r->mu);
  tm_free(r->address, (size_t)r->ntask * sizeof *r->address);
  tm_free(r->ps_where, (size_t)r->nps * sizeof *r->ps_where);
  tm_board_unref(r->board);
  tm_free(r, sizeof *r);
  s->remote = NULL;
}

static void remote_stop_one(session_remote *r, const char *address) {
  tm_channel *ch;
  tm_frame f = {.kind = TM_F_STOP};
  tm_channel_options o = {
      .address = address, .self = r->self, .connect_timeout_ns = 1000000000};
  snprintf(o.self.purpose, sizeof o.self.purpose, "control");
  if (tm_channel_open(&o, &ch, NULL)) return;
  if (tm_channel_send(ch, &f, NULL, NULL, 0, NULL))
    tm_log(TM_LOG_WARN, "%s cannot be told to stop", tm_channel_peer(ch)->task);
  tm_channel_close(ch);
}

/* Over connections of their own, so that it does not matter who has the links. */
static void session_stop_tasks(tm_session *s, const char *only) {
  session_remote *r = s->remote;
  for (int32_t i = 0; i < s->nps; i++)
    if (!only || strcmp(only, r->ps[i].task) == 0) remote_stop_one(r, r->address[i]);
  for (int32_t i = 0; i < s->nworker; i++)
    if (!only || strcmp(only, s->worker[i]->task) == 0)
      remote_stop_one(r, s->worker[i]->address);
}

/* To lane i, wherever it is served. */
static tm_ps_remote_options remote_data_options(session_remote *r, int32_t i) {
  tm_channel_options ch = {.address = r->address[i],
                           .expect_task = r->ps[i].task,
                           .self = r->self,
                           .connect_timeout_ns = r->start.connect_timeout_ns,
                           .silence_ns = r->start.silence_ns,
                           .spin_ns = -1,
                           .lost = &r->ps[i].lost};
  tm_ps_remote_options o = {.channel = ch, .lane = i};
  if (!r->lanes) return o;
  int32_t next = (i + 1) % r->nps;
  o.other = (tm_ps_where){r->address[next], r->ps[next].task, &r->ps[next].lost};
  o.gone = tm_lanes_gone(r, i);
  return o;
}

tm_status tm_session_data(session_remote *r, int32_t i, bool retry, tm_ps_client **out,
                          tm_err *err) {
  tm_ps_remote_options o = remote_data_options(r, i);
  o.channel.retry = retry;
  o.channel.cancel = r->cancel;
  return tm_ps_client_lane(&o, out, err);
}

static tm_status session_save_remote(tm_session *s, int32_t k, tm_cancel *cancel,
                                     tm_save_lane **out, tm_err *err) {
  tm_ps_remote_options o = remote_data_options(s->remote, k);
  o.channel.cancel = cancel;
  return tm_save_lane_remote(&o, out, err);
}

/* --- workers (threads of the coordinator) --- */

/* With connections of its own. */
static tm_status session_refuse_remote(tm_session *s, const session_worker *w,
                                       tm_err *err) {
  session_remote *r = s->remote;
  tm_status first = TM_OK;
  for (int32_t i = 0; i < r->nps; i++) {
    tm_ps_client *c;
    tm_err one;
    tm_ps_remote_options o = remote_data_options(r, i);
    o.channel.connect_timeout_ns = r->start.silence_ns;
    o.channel.cancel = &r->hurry;
    o.channel.retry = r->lanes != NULL; /* until somebody serves it */
    tm_err_clear(&one);
    tm_status st = tm_ps_client_lane(&o, &c, &one);
    if (st == TM_OK) {
      st = c->refuse(c, w->incarnation, &one);
      c->close(c);
    }
    if (st && first == TM_OK) {
      first = st;
      if (err) *err = one;
    }
  }
  return first;
}

static tm_status session_round_remote(tm_session *s, int32_t k, tm_ps_client **out,
                                      tm_err *err) {
  session_remote *r = s->remote;
  tm_ps_remote_options o = remote_data_options(r, k);
  o.channel.connect_timeout_ns = r->start.silence_ns;
  o.channel.cancel = &r->hurry;
  o.channel.retry = r->lanes != NULL; /* until somebody serves it */
  return tm_ps_client_lane(&o, out, err);
}

static tm_status session_reach_remote(tm_session *s, int32_t index,
                                      const session_worker *w, tm_cancel *cancel,
                                      tm_worker_link **out, tm_err *err) {
  tm_remote_options ro = tm_session_remote_options(s->remote, index, w->address);
  ro.task = w->task;
  ro.start.nworker = s->nworker;
  ro.start.incarnation = w->incarnation;
  ro.once = cancel != NULL;
  ro.cancel = cancel ? cancel : s->remote->cancel;
  return tm_remote_worker(&ro, out, err);
}

static void session_hurry(tm_session *s) { tm_cancel_set(&s->remote->hurry); }

/* --- opening --- */

tm_remote_options tm_session_remote_options(const session_remote *r, int32_t index,
                                            const char *address) {
  tm_remote_options ro = {.loop = r->loop,
                          .self = r->self,
                          .address = address,
                          .start = r->start,
                          .board = r->board,
                          .ps = r->ps_where};
  ro.start.index = index;
  return ro;
}

tm_status tm_session_dial_ps(session_ps *p, uint32_t number,
                             const tm_remote_options *opt, tm_conn **out, tm_err *err) {
  static const tm_conn_events events = {NULL, remote_ps_message, remote_ps_closed,
                                        NULL};
  session_tie *tie = tm_malloc(sizeof *tie);
  if (!tie) return tm_nomem(err, "a connection");
  *tie = (session_tie){p, number};
  tm_status s = tm_remote_ps(opt, &events, tie, out, err);
  if (s) tm_free(tie, sizeof *tie);
  return s;
}

static void remote_name(char out[48], const char *job, const char *const *names,
                        int32_t i) {
  if (names)
    snprintf(out, 48, "%s", names[i]);
  else
    snprintf(out, 48, "/job:%s/task:%d", job, i);
}

/* Who is where. */
static void remote_tasks(session_remote *r, const tm_session_options *o) {
  for (int32_t i = 0; i < r->nps; i++) {
    r->ps[i].owner = r;
    r->ps[i].index = i;
    r->ps_where[i] = r->address[i];
    remote_name(r->ps[i].task, "ps", o->ps_task, i);
  }
  for (int32_t i = 0; i < r->ntask; i++)
    snprintf(r->address[i], sizeof r->address[i], "%s",
             i < o->nps ? o->ps_address[i] : o->worker_address[i - o->nps]);
}

/* What all are told. */
static void remote_start(session_remote *r, const tm_session_options *o) {
  double silence = o->heartbeat_timeout > 0 ? o->heartbeat_timeout : 10;
  double alone = o->chief_timeout > 0 && o->chief_timeout < 9e9 ? o->chief_timeout : 0;
  double connect = o->connect_timeout > 0 ? o->connect_timeout : 60;
  r->start = (tm_start){.nworker = o->nworker,
                        .threads = o->threads,
                        .seed = o->seed,
                        .heartbeat_ns = (int64_t)(o->heartbeat_interval * 1e9),
                        .silence_ns = (int64_t)(silence * 1e9),
                        .connect_timeout_ns = (int64_t)(connect * 1e9),
                        .chief_timeout_ns = (int64_t)(alone * 1e9),
                        .replicas = o->replicas,
                        .nps = o->nps};
}

static tm_status remote_make(tm_session *s, const tm_session_options *o, tm_err *err) {
  session_remote *r = tm_calloc(1, sizeof *r);
  if (!r) return tm_nomem(err, "a session");
  s->remote = r;
  r->session = s;
  r->board = tm_board_ref(o->board);
  s->stop_remote = session_stop_remote;
  s->stop_tasks = session_stop_tasks;
  s->guard = session_guard;
  s->refuse = session_refuse_remote;
  s->reach = session_reach_remote;
  s->hurry = session_hurry;
  s->round_client = session_round_remote;
  s->save_lane = session_save_remote;
  s->watch = session_watch;
  s->excuse = session_excuse;
  r->cancel = o->cancel;
  s->ps_state = session_ps_state_remote;
  tm_err_clear(&r->why);
  pthread_mutex_init(&r->mu, NULL);
  r->nps = o->nps;
  r->ps = tm_calloc((size_t)o->nps, sizeof *r->ps);
  r->ntask = o->nps + o->nworker;
  r->address = tm_calloc((size_t)r->ntask, sizeof *r->address);
  r->ps_where = tm_calloc((size_t)o->nps, sizeof *r->ps_where);
  if (!r->ps || !r->address || !r->ps_where || tm_netloop_new(1, &r->loop))
    return tm_nomem(err, "a session");
  remote_tasks(r, o);
  remote_start(r, o);
  r->self.incarnation = tm_random_id();
  snprintf(r->self.task, sizeof r->self.task, "/job:chief/task:0");
  snprintf(r->self.cluster, sizeof r->self.cluster, "%s", o->cluster_id);
  if (!o->cluster_id[0])
    tm_cluster_id(o->worker_address, o->nworker, o->ps_address, o->nps,
                  r->self.cluster);
  if (o->replicas && tm_lanes_new(r)) return tm_nomem(err, "a session");
  return o->on_ps_failure == TM_PS_RAISE ? TM_OK : tm_mender_new(r, o->on_ps_failure);
}

/* Claim, with a line now and then while nobody listens there. */
static tm_status remote_claim_ps(session_remote *r, int32_t i, tm_channel_options *o,
                                 tm_term *t, tm_err *err) {
  int64_t start = tm_now_ns(), patience = o->connect_timeout_ns;
  for (;;) {
    tm_err why;
    int64_t left = patience - (tm_now_ns() - start);
    o->connect_timeout_ns = left < REMOTE_TELL_NS ? left : REMOTE_TELL_NS;
    tm_err_clear(&why);
    tm_status s = tm_term_claim(o, t, &why);
    if (s && err) *err = why;
    left = patience - (tm_now_ns() - start);
    if (s != TM_EUNAVAILABLE || left <= 0 || tm_cancelled(o->cancel)) return s;
    tm_log(TM_LOG_WARN, "waits %.0f s more for %s: %s", (double)left * 1e-9,
           r->ps[i].task, why.msg);
  }
}

/* Ask the task at an address; ps must be there, a worker that is not has nothing to
 * say: whoever started it started the ps too. */
static tm_status remote_ask_term(session_remote *r, int32_t i, uint64_t *highest,
                                 tm_err *err) {
  bool ps = i < r->nps;
  int64_t patience = ps ? r->start.connect_timeout_ns : REMOTE_ASK_NS;
  tm_channel_options o = {.address = r->address[i],
                          .self = r->self,
                          .connect_timeout_ns = patience,
                          .silence_ns = patience,
                          .retry = ps,
                          .cancel = r->cancel};
  tm_term t = {0, 0};
  tm_status s = ps ? remote_claim_ps(r, i, &o, &t, err) : tm_term_claim(&o, &t, NULL);
  if (s && ps) return s;
  if (s == TM_OK && t.number > *highest) *highest = t.number;
  return TM_OK;
}

/* The term after all that the tasks granted. */
static tm_status remote_claim(session_remote *r, tm_err *err) {
  uint64_t highest = 0;
  for (int32_t i = 0; i < r->ntask; i++) TM_TRY(remote_ask_term(r, i, &highest, err));
  r->self.term = (tm_term){highest + 1, r->self.incarnation};
  return TM_OK;
}

tm_status tm_session_start_remote(tm_session *s, const tm_session_options *o,
                                  tm_err *err) {
  TM_TRY(remote_make(s, o, err));
  session_remote *r = s->remote;
  TM_TRY(remote_claim(r, err));
  for (int32_t i = 0; i < o->nps; i++) {
    tm_remote_options ro = tm_session_remote_options(r, i, r->address[i]);
    ro.task = r->ps[i].task;
    ro.cancel = r->cancel;
    TM_TRY(tm_session_dial_ps(&r->ps[i], 0, &ro, &r->ps[i].control, err));
  }
  if (r->lanes) TM_TRY(tm_lanes_begin(r, err));
  for (int32_t i = 0; i < o->nps; i++)
    TM_TRY(tm_session_data(r, i, true, &s->ps[i], err));
  return TM_OK;
}
