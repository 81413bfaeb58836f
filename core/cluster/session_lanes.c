#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/session_remote.h"

/*
 * Design.  Lane k is served by ps k or by the next one; the other keeps a copy.  When a
 * ps is lost the copies of what it served are served instead, by one order each; a
 * thread, the keeper, starts the ps anew as soon as it is there and has the copies made
 * that are missing.  Orders go over control connections and do not wait: an answer is
 * looked at when it comes.
 *
 * Clients find by themselves who serves a lane (ps_remote.c): they need not be told.
 *
 * Invariants (under mu):
 *   (1) Each order of a lane has a higher epoch than those before it.
 *   (2) `copied` is set only while the ps that serves the lane says that it answers
 *       nobody before the copy has it: after its OK, and until it is told to go on
 *       alone.  Only such a copy is ever made the primary.
 *   (3) `gone` of a lane is set exactly when nobody serves it; then the session's
 * policy for a lost ps decides.
 */
#define LANES_PAUSE_MIN_NS 20000000
#define LANES_PAUSE_MAX_NS 250000000
#define LANES_TRY_NS       2000000000 /* one try to start a ps */
#define LANES_ID           ((uint64_t)1 << 32)

typedef struct session_lane {
  int32_t at;     /* the ps that serves it; -1: nobody */
  bool copied;    /* the other one has all of it */
  uint64_t asked; /* the order to make a copy that is not yet answered; 0: none */
  uint64_t epoch;
  int64_t not_before; /* when to try again to have a copy made */
  tm_cancel gone;
} session_lane;

typedef struct session_lanes {
  session_lane *lane; /* nps */
  bool *up;           /* nps: there, and started */
  int32_t dialling;   /* the ps that the keeper is starting; -1: none */
  uint64_t next;      /* id of an order */
  pthread_t keeper;
  bool keeping;
  pthread_cond_t work; /* with mu: for the keeper; for the first copies */
  tm_cancel stop;
} session_lanes;

static int32_t lanes_other(const session_remote *r, int32_t k) {
  int32_t at = r->lanes->lane[k].at;
  return at == k ? (k + 1) % r->nps : k;
}

/* --- orders (mu held) --- */

/* To the ps that serves lane k.  copy: the other one is to keep a copy. */
static tm_status lanes_order(session_remote *r, int32_t k, bool fresh, bool copy,
                             uint64_t *id) {
  session_lanes *ls = r->lanes;
  session_lane *l = &ls->lane[k];
  tm_conn *c = r->ps[l->at].control;
  tm_buf b = TM_BUF_INIT(1024);
  tm_packer w;
  tm_frame f = {.kind = TM_F_LANE, .id = ++ls->next};
  *id = f.id;
  tm_pack_init(&w, &b);
  tm_pack_array(&w, 4);
  tm_pack_int(&w, k);
  tm_pack_uint(&w, ++l->epoch);
  tm_pack_bool(&w, fresh);
  tm_pack_cstr(&w, copy ? r->address[lanes_other(r, k)] : NULL);
  tm_status s = w.status ? w.status : TM_EUNAVAILABLE;
  if (w.status == TM_OK && c) s = tm_conn_send(c, &f, &b, NULL, 0, NULL, NULL);
  tm_buf_release(&b);
  /* A connection that is gone is told of by its end. */
  if (s == TM_ENOMEM && c) tm_conn_close(c, s, "no memory for an order");
  return s;
}

static void lanes_alone(session_remote *r, int32_t k) {
  session_lane *l = &r->lanes->lane[k];
  uint64_t id;
  l->copied = false;
  l->asked = 0;
  tm_status s = lanes_order(r, k, false, false, &id);
  (void)s; /* see lanes_order */
}

static void lanes_copy(session_remote *r, int32_t k, bool fresh) {
  session_lane *l = &r->lanes->lane[k];
  uint64_t id;
  l->asked = lanes_order(r, k, fresh, true, &id) == TM_OK ? id : 0;
}

/* --- what ps say (mu held) --- */

static void lanes_copied(session_remote *r, int32_t k) {
  session_lane *l = &r->lanes->lane[k];
  l->asked = 0;
  l->copied = true;
  tm_log(l->epoch > 1 ? TM_LOG_INFO : TM_LOG_DEBUG,
         "the shards of %s have a copy on %s", r->ps[k].task,
         r->ps[lanes_other(r, k)].task);
  pthread_cond_broadcast(&r->lanes->work);
}

static void lanes_not_copied(session_remote *r, int32_t k, tm_message *m) {
  session_lane *l = &r->lanes->lane[k];
  tm_unpacker u;
  tm_err err;
  tm_unpack_init(&u, m->meta, m->f.meta_bytes);
  tm_err_unpack(&u, &err);
  tm_log(TM_LOG_WARN, "no copy of the shards of %s on %s (yet): %s", r->ps[k].task,
         r->ps[lanes_other(r, k)].task, err.msg);
  l->asked = 0;
  l->not_before = tm_now_ns() + LANES_PAUSE_MAX_NS;
  pthread_cond_broadcast(&r->lanes->work);
}

/* A primary has lost its copy: it may go on alone if it is still the one. */
static void lanes_asked(session_ps *p, tm_message *m) {
  session_remote *r = p->owner;
  tm_unpacker u;
  tm_unpack_init(&u, m->meta, m->f.meta_bytes);
  tm_unpack_array(&u, 2, 2);
  int32_t k = (int32_t)tm_unpack_range(&u, 0, r->nps - 1);
  uint64_t epoch = tm_unpack_uint(&u);
  if (tm_unpack_end(&u, NULL)) return;
  session_lane *l = &r->lanes->lane[k];
  if (l->at != p->index || l->epoch != epoch || !r->lanes->up[p->index]) return;
  lanes_alone(r, k);
  pthread_cond_broadcast(&r->lanes->work);
}

bool tm_lanes_message(session_ps *p, tm_message *m) {
  session_remote *r = p->owner;
  if (!r->lanes) return false;
  if (m->f.kind == TM_F_REPLICA_LOST) {
    lanes_asked(p, m);
    return true;
  }
  if (m->f.id <= LANES_ID || (m->f.kind != TM_F_OK && m->f.kind != TM_F_ERROR))
    return false;
  for (int32_t k = 0; k < r->nps; k++) {
    session_lane *l = &r->lanes->lane[k];
    if (l->asked != m->f.id || l->at != p->index) continue;
    if (m->f.kind == TM_F_OK)
      lanes_copied(r, k);
    else
      lanes_not_copied(r, k, m);
  }
  return true;
}

/* --- a ps is lost (mu held) --- */

/* Lane k loses the ps i; false: nobody serves it now. */
static bool lanes_bear_one(session_remote *r, int32_t k, int32_t i) {
  session_lane *l = &r->lanes->lane[k];
  int32_t other = lanes_other(r, k);
  if (l->at < 0) return false;
  if (l->at != i) {
    if (other == i && (l->copied || l->asked)) lanes_alone(r, k);
    return true;
  }
  bool copied = l->copied && r->lanes->up[other];
  l->at = copied ? other : -1;
  l->copied = false;
  l->asked = 0;
  if (!copied) {
    tm_cancel_set(&l->gone);
    return false;
  }
  lanes_alone(r, k);
  tm_log(TM_LOG_WARN, "%s serves the shards of %s now", r->ps[other].task,
         r->ps[k].task);
  return true;
}

bool tm_lanes_bear(session_ps *p, const tm_err *why) {
  session_remote *r = p->owner;
  session_lanes *ls = r->lanes;
  bool borne = true;
  if (!ls || r->closing) return false;
  ls->up[p->index] = false;
  tm_cancel_set(&p->lost);
  tm_log(TM_LOG_WARN, "%s is lost: %s", p->task, why->msg);
  for (int32_t k = 0; k < r->nps; k++)
    if (k == p->index || (k + 1) % r->nps == p->index)
      borne = lanes_bear_one(r, k, p->index) && borne;
  pthread_cond_broadcast(&ls->work);
  return borne;
}

void tm_lanes_retied(session_ps *p) {
  session_remote *r = p->owner;
  for (int32_t k = 0; k < r->nps; k++) {
    session_lane *l = &r->lanes->lane[k];
    if (l->at != p->index) continue;
    bool copy = l->copied || l->asked;
    l->copied = false;
    if (copy && r->lanes->up[lanes_other(r, k)])
      lanes_copy(r, k, false);
    else
      lanes_alone(r, k);
  }
  pthread_cond_broadcast(&r->lanes->work);
}

bool tm_lanes_spare(session_ps *p) {
  session_remote *r = p->owner;
  for (int32_t k = 0; k < r->nps; k++) {
    const session_lane *l = &r->lanes->lane[k];
    if (l->at == p->index && !(l->copied && r->lanes->up[lanes_other(r, k)]))
      return false;
  }
  return true;
}

/* --- the keeper --- */

/* Start p anew, without a lane (mu held, let go meanwhile). */
static tm_status keeper_dial(session_ps *p, tm_err *err) {
  session_remote *r = p->owner;
  tm_conn *old = p->control, *fresh = NULL;
  uint32_t number = ++p->number;
  p->control = NULL;
  r->lanes->dialling = p->index;
  pthread_mutex_unlock(&r->mu);
  if (old) {
    tm_conn_close(old, TM_EUNAVAILABLE, "the ps is started anew");
    tm_conn_unref(old);
  }
  tm_remote_options o = tm_session_remote_options(r, p->index, r->address[p->index]);
  o.task = p->task;
  o.once = true;
  o.cancel = &r->lanes->stop;
  o.start.connect_timeout_ns = LANES_TRY_NS;
  tm_status s = tm_session_dial_ps(p, number, &o, &fresh, err);
  pthread_mutex_lock(&r->mu);
  r->lanes->dialling = -1;
  if (s) return s;
  if (p->number != number) { /* the mender was faster */
    tm_conn_close(fresh, TM_EUNAVAILABLE, "the ps is started anew");
    tm_conn_unref(fresh);
    return TM_OK;
  }
  p->control = fresh;
  if (r->excused) tm_conn_excuse(fresh, true);
  tm_cancel_reset(&p->lost);
  r->lanes->up[p->index] = true;
  tm_log(TM_LOG_INFO, "%s is back", p->task);
  return TM_OK;
}

/* Another chief is in charge, or the mender starts all anew. */
static bool keeper_rests(const session_remote *r) {
  bool gone = false;
  for (int32_t k = 0; k < r->nps; k++) gone = gone || r->lanes->lane[k].at < 0;
  return r->why.code == TM_EABORTED || gone;
}

/* One try for each that is away; false: one still is. */
static bool keeper_dial_all(session_remote *r) {
  bool all = true;
  for (int32_t i = 0; i < r->nps && !r->closing && !keeper_rests(r); i++) {
    tm_err err;
    tm_err_clear(&err);
    if (r->lanes->up[i]) continue;
    tm_status s = keeper_dial(&r->ps[i], &err);
    if (s == TM_EABORTED) tm_session_abort(r, &err);
    all = all && s == TM_OK;
  }
  return all;
}

/* Have the copies made that are missing; false: one has to wait. */
static bool keeper_copies(session_remote *r) {
  int64_t now = tm_now_ns();
  bool all = true;
  for (int32_t k = 0; k < r->nps; k++) {
    session_lane *l = &r->lanes->lane[k];
    if (l->at < 0 || l->copied || l->asked) continue;
    if (!r->lanes->up[l->at] || !r->lanes->up[lanes_other(r, k)]) continue;
    if (now < l->not_before)
      all = false;
    else
      lanes_copy(r, k, false);
  }
  return all;
}

static void *keeper_main(void *ud) {
  session_remote *r = ud;
  int64_t pause = LANES_PAUSE_MIN_NS;
  pthread_mutex_lock(&r->mu);
  while (!r->closing) {
    bool there = keeper_rests(r) || keeper_dial_all(r);
    bool quiet = keeper_rests(r) || (keeper_copies(r) && there);
    if (r->closing) break;
    pause = there ? LANES_PAUSE_MIN_NS : pause * 2;
    if (pause > LANES_PAUSE_MAX_NS) pause = LANES_PAUSE_MAX_NS;
    int64_t until = quiet ? tm_now_ns() + 1000000000 : tm_now_ns() + pause;
    tm_status s = tm_cond_wait_until(&r->lanes->work, &r->mu, until, NULL);
    (void)s;
  }
  pthread_mutex_unlock(&r->mu);
  return NULL;
}

/* --- its life --- */

tm_status tm_lanes_new(session_remote *r) {
  session_lanes *ls = tm_calloc(1, sizeof *ls);
  if (!ls) return TM_ENOMEM;
  r->lanes = ls;
  ls->next = LANES_ID;
  ls->dialling = -1;
  tm_cond_init_monotonic(&ls->work);
  ls->lane = tm_calloc((size_t)r->nps, sizeof *ls->lane);
  ls->up = tm_calloc((size_t)r->nps, sizeof *ls->up);
  if (!ls->lane || !ls->up) return TM_ENOMEM;
  for (int32_t k = 0; k < r->nps; k++) ls->lane[k].at = k;
  return TM_OK;
}

tm_status tm_lanes_begin(session_remote *r, tm_err *err) {
  session_lanes *ls = r->lanes;
  int64_t deadline = tm_now_ns() + r->start.connect_timeout_ns;
  tm_status s = TM_OK;
  pthread_mutex_lock(&r->mu);
  for (int32_t k = 0; k < r->nps; k++) ls->up[k] = true;
  for (int32_t k = 0; k < r->nps; k++) lanes_copy(r, k, true);
  for (int32_t k = 0; k < r->nps && s == TM_OK; k++)
    while (!ls->lane[k].copied && s == TM_OK) {
      if (!ls->lane[k].asked)
        s = tm_fail(err, TM_EUNAVAILABLE, "%s cannot begin: its copy cannot be made",
                    r->ps[k].task);
      else if ((s = tm_cond_wait_until(&ls->work, &r->mu, deadline, NULL)))
        s = tm_fail(err, s, "%s has no copy on the next ps yet", r->ps[k].task);
    }
  pthread_mutex_unlock(&r->mu);
  TM_TRY(s);
  if (pthread_create(&ls->keeper, NULL, keeper_main, r))
    return tm_fail(err, TM_EEXHAUSTED, "a session's thread cannot be started");
  ls->keeping = true;
  return TM_OK;
}

void tm_lanes_restart(session_remote *r) {
  session_lanes *ls = r->lanes;
  for (int32_t k = 0; k < r->nps; k++) {
    session_lane *l = &ls->lane[k];
    l->at = k;
    l->copied = false;
    ls->up[k] = true;
    lanes_copy(r, k, true);
    tm_cancel_reset(&l->gone);
  }
  pthread_cond_broadcast(&ls->work);
}

void tm_lanes_free(session_remote *r) {
  session_lanes *ls = r->lanes;
  if (!ls) return;
  tm_cancel_set(&ls->stop);
  pthread_mutex_lock(&r->mu);
  r->closing = true;
  pthread_cond_broadcast(&ls->work);
  pthread_mutex_unlock(&r->mu);
  if (ls->keeping) pthread_join(ls->keeper, NULL);
  pthread_mutex_lock(&r->mu); /* the loop may still tell of an end */
  r->lanes = NULL;
  pthread_mutex_unlock(&r->mu);
  pthread_cond_destroy(&ls->work);
  tm_free(ls->lane, (size_t)r->nps * sizeof *ls->lane);
  tm_free(ls->up, (size_t)r->nps * sizeof *ls->up);
  tm_free(ls, sizeof *ls);
}

tm_cancel *tm_lanes_gone(session_remote *r, int32_t k) {
  return &r->lanes->lane[k].gone;
}

const char *tm_lanes_state(session_remote *r, int32_t i) {
  if (r->lanes->up[i]) return "ready";
  return r->lanes->dialling == i ? "connecting" : "down";
}

bool tm_lanes_have_copy(session_remote *r, int32_t k) {
  return r->lanes->lane[k].copied;
}
