#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cluster/session_remote.h"

/*
 * Design.  A thread, the mender, sleeps until a ps is lost.  Then it suspends the
 * coordinator and starts each lost ps anew over a new control connection, trying until
 * it answers.  The host's thread makes the variables again and resumes.
 *
 * A ps goes UP, LOST, DIALLED, FRESH, and UP again when training goes on.  When one is
 * lost, those that are on their way (or all, under TM_PS_RESTORE) are LOST as well:
 * they begin anew once more, so what is made on them never meets what was made before.
 *
 * Invariants:
 *   (1) `pending` is set exactly while a ps is not UP.
 *   (2) life is held while the coordinator is suspended or resumed, so it lives; a
 *       resume happens only when all ps are UP, a suspend only when one is not.  life
 *       is taken before mu, and never in a loop's thread.
 *   (3) Data clients are replaced by the host's thread alone, which is the only one to
 *       use them.
 */
#define MEND_PAUSE_MIN_NS 20000000
#define MEND_PAUSE_MAX_NS 250000000
#define MEND_TELL_NS      10000000000
#define MEND_TRY_NS       2000000000 /* one try to start a ps */

typedef struct session_mender {
  tm_ps_failure policy;
  pthread_t thread;
  pthread_mutex_t life;
  pthread_cond_t work; /* with mu: for the mender */
  pthread_cond_t back; /* with mu: for the host's thread */
  tm_cancel stop;
  atomic_bool pending;
  bool suspended; /* under life */
  tm_err refused; /* under mu: another chief is in charge; code TM_OK: not so */
} session_mender;

/* --- being lost (mu held) --- */

static void mender_lose(session_ps *p) {
  p->state = SESSION_LOST;
  tm_cancel_set(&p->lost);
}

void tm_mender_lost(session_ps *p) {
  session_remote *r = p->owner;
  session_mender *m = r->mender;
  mender_lose(p);
  for (int32_t i = 0; i < r->nps; i++)
    if (r->ps[i].state != SESSION_UP || m->policy == TM_PS_RESTORE)
      mender_lose(&r->ps[i]);
  atomic_store(&m->pending, true);
  pthread_cond_signal(&m->work);
}

/* --- the mender --- */

static session_ps *mender_next(session_remote *r, int32_t from) {
  for (int32_t i = from; i < r->nps; i++)
    if (r->ps[i].state == SESSION_LOST) return &r->ps[i];
  return NULL;
}

static void mender_suspend(session_remote *r) {
  session_mender *m = r->mender;
  char why[sizeof r->why.msg] = "";
  pthread_mutex_lock(&m->life);
  pthread_mutex_lock(&r->mu);
  bool go = mender_next(r, 0) && !r->closing && !m->suspended;
  if (go) memcpy(why, r->why.msg, sizeof why);
  pthread_mutex_unlock(&r->mu);
  if (go) tm_log(TM_LOG_WARN, "%s; training pauses until it is restored", why);
  if (go && r->coordinator) {
    tm_coordinator_suspend(r->coordinator, why);
    m->suspended = true;
  }
  pthread_mutex_unlock(&m->life);
}

/* One try to start p anew (mu held, let go meanwhile). */
static tm_status mender_dial(session_ps *p, tm_err *err) {
  session_remote *r = p->owner;
  session_mender *m = r->mender;
  tm_conn *old = p->control, *fresh = NULL;
  uint32_t number = ++p->number;
  p->control = NULL;
  p->state = SESSION_DIALLED;
  pthread_mutex_unlock(&r->mu);
  if (old) {
    tm_conn_close(old, TM_EUNAVAILABLE, "the ps is started anew");
    tm_conn_unref(old);
  }
  tm_remote_options o = tm_session_remote_options(r, p->index, r->address[p->index]);
  o.task = p->task;
  o.once = true;
  o.cancel = &m->stop;
  o.start.connect_timeout_ns = MEND_TRY_NS;
  tm_status s = tm_session_dial_ps(p, number, &o, &fresh, err);
  pthread_mutex_lock(&r->mu);
  p->control = fresh;
  if (fresh && r->excused) tm_conn_excuse(fresh, true);
  if (p->state == SESSION_DIALLED) p->state = s ? SESSION_LOST : SESSION_FRESH;
  return s;
}

void tm_mender_refused(session_remote *r, const tm_err *why) {
  r->mender->refused = *why;
  pthread_cond_broadcast(&r->mender->work);
  pthread_cond_broadcast(&r->mender->back);
}

/* One try for each that is lost; false: one is not there (*err says why). */
static bool mender_try(session_remote *r, tm_err *err) {
  bool all = true;
  session_ps *p;
  for (int32_t at = 0; (p = mender_next(r, at)) && !r->closing; at = p->index + 1) {
    tm_err one;
    tm_err_clear(&one);
    tm_status s = mender_dial(p, &one);
    if (s == TM_OK) continue;
    all = false;
    *err = one;
    if (s == TM_EABORTED) tm_session_abort(r, &one);
  }
  if (all && r->lanes && !r->closing) tm_lanes_restart(r);
  return all;
}

static void mender_tell(const session_remote *r, int64_t since, const tm_err *err) {
  double s = (double)(tm_now_ns() - since) * 1e-9;
  tm_log(TM_LOG_WARN, "%s: for %.0f s nothing could be restored: %s", r->why.msg, s,
         err->msg);
}

/* Until no ps is lost (mu held). */
static void mender_mend(session_remote *r) {
  session_mender *m = r->mender;
  int64_t pause = MEND_PAUSE_MIN_NS, since = tm_now_ns(), told = since;
  tm_err err;
  tm_err_clear(&err);
  while (!r->closing && m->refused.code == TM_OK && !mender_try(r, &err)) {
    if (tm_now_ns() - told >= MEND_TELL_NS) {
      mender_tell(r, since, &err);
      told = tm_now_ns();
    }
    int64_t until = tm_now_ns() + pause;
    while (!r->closing && tm_now_ns() < until)
      if (tm_cond_wait_until(&m->work, &r->mu, until, NULL)) break;
    pause = pause * 2 < MEND_PAUSE_MAX_NS ? pause * 2 : MEND_PAUSE_MAX_NS;
  }
}

static void *mender_main(void *ud) {
  session_remote *r = ud;
  session_mender *m = r->mender;
  pthread_mutex_lock(&r->mu);
  while (!r->closing) {
    if (!mender_next(r, 0) || m->refused.code != TM_OK) {
      pthread_cond_broadcast(&m->back);
      pthread_cond_wait(&m->work, &r->mu);
      continue;
    }
    pthread_mutex_unlock(&r->mu);
    mender_suspend(r);
    pthread_mutex_lock(&r->mu);
    mender_mend(r);
  }
  pthread_cond_broadcast(&m->back);
  pthread_mutex_unlock(&r->mu);
  return NULL;
}

/* --- its life --- */

static void mender_free_counts(session_remote *r) {
  tm_free(r->lost, (size_t)r->nps * sizeof *r->lost);
  tm_free(r->pending, (size_t)r->nps * sizeof *r->pending);
  r->lost = r->pending = NULL;
}

tm_status tm_mender_new(session_remote *r, tm_ps_failure policy) {
  session_mender *m = tm_calloc(1, sizeof *m);
  if (!m) return TM_ENOMEM;
  m->policy = r->lanes ? TM_PS_RESTORE : policy; /* ps without copies begin together */
  tm_err_clear(&m->refused);
  pthread_mutex_init(&m->life, NULL);
  tm_cond_init_monotonic(&m->work);
  tm_cond_init_monotonic(&m->back);
  r->mender = m;
  r->lost = tm_calloc((size_t)r->nps, sizeof *r->lost);
  r->pending = tm_calloc((size_t)r->nps, sizeof *r->pending);
  bool room = r->lost && r->pending;
  if (room && pthread_create(&m->thread, NULL, mender_main, r) == 0) return TM_OK;
  pthread_mutex_destroy(&m->life);
  pthread_cond_destroy(&m->work);
  pthread_cond_destroy(&m->back);
  tm_free(m, sizeof *m);
  r->mender = NULL;
  mender_free_counts(r);
  return room ? TM_EEXHAUSTED : TM_ENOMEM;
}

void tm_mender_free(session_remote *r) {
  session_mender *m = r->mender;
  if (!m) return;
  tm_cancel_set(&m->stop);
  pthread_mutex_lock(&r->mu);
  r->closing = true;
  pthread_cond_broadcast(&m->work);
  pthread_mutex_unlock(&r->mu);
  pthread_join(m->thread, NULL);
  pthread_mutex_destroy(&m->life);
  pthread_cond_destroy(&m->work);
  pthread_cond_destroy(&m->back);
  pthread_mutex_lock(&r->mu); /* the loop may still tell of an end */
  r->mender = NULL;
  pthread_mutex_unlock(&r->mu);
  mender_free_counts(r);
  tm_free(m, sizeof *m);
}

void tm_mender_watch(session_remote *r, tm_coordinator *c) {
  session_mender *m = r->mender;
  pthread_mutex_lock(&m->life);
  pthread_mutex_lock(&r->mu);
  r->coordinator = c;
  m->suspended = false;
  if (c) {
    r->serial++;
    memset(r->lost, 0, (size_t)r->nps * sizeof *r->lost);
  }
  bool lost = atomic_load(&m->pending);
  char why[sizeof r->why.msg];
  memcpy(why, r->why.msg, sizeof why);
  pthread_mutex_unlock(&r->mu);
  if (c && lost) {
    tm_coordinator_suspend(c, why);
    m->suspended = true;
  }
  pthread_mutex_unlock(&m->life);
}

/* --- the host's thread --- */

static session_mender *session_mender_of(tm_session *s) {
  return s->remote ? s->remote->mender : NULL;
}

bool tm_session_lost(tm_session *s, tm_err *why) {
  session_mender *m = session_mender_of(s);
  if (!m || !atomic_load(&m->pending)) return false;
  pthread_mutex_lock(&s->remote->mu);
  if (why) *why = s->remote->why;
  pthread_mutex_unlock(&s->remote->mu);
  return true;
}

void tm_session_suspect(tm_session *s, const char *task) {
  session_remote *r = s->remote;
  if (!session_mender_of(s)) return;
  if (task && r->lanes) return; /* who else serves it is theirs to say */
  pthread_mutex_lock(&r->mu);
  for (int32_t i = 0; i < r->nps; i++) {
    session_ps *p = &r->ps[i];
    if (task ? strcmp(task, p->task) != 0 : p->state != SESSION_FRESH) continue;
    if (p->state != SESSION_UP && p->state != SESSION_FRESH) continue;
    p->number++; /* the end of its connection says nothing new */
    if (r->why.code == TM_OK) {
      tm_fail(&r->why, TM_EUNAVAILABLE, "%s is lost: a request to it failed", p->task);
      memcpy(r->why.task, p->task, sizeof r->why.task);
    }
    tm_mender_lost(p);
  }
  pthread_mutex_unlock(&r->mu);
}

static tm_status mender_ready(session_remote *r, tm_err *err) {
  if (r->mender->refused.code != TM_OK) {
    if (err) *err = r->mender->refused;
    return r->mender->refused.code;
  }
  for (int32_t i = 0; i < r->nps; i++)
    if (r->ps[i].state == SESSION_LOST || r->ps[i].state == SESSION_DIALLED)
      return TM_EAGAIN;
  return TM_OK;
}

tm_status tm_session_await(tm_session *s, int64_t timeout_ns, tm_cancel *cancel,
                           tm_err *err) {
  session_remote *r = s->remote;
  if (!session_mender_of(s)) return TM_OK;
  int64_t deadline = timeout_ns < 0 ? -1 : tm_now_ns() + timeout_ns;
  tm_status st;
  pthread_mutex_lock(&r->mu);
  while ((st = mender_ready(r, err)) == TM_EAGAIN) {
    st = tm_cond_wait_until(&r->mender->back, &r->mu, deadline, cancel);
    if (st == TM_OK) continue;
    st = tm_fail(err, st, "%s; it is not there again yet", r->why.msg);
    break;
  }
  pthread_mutex_unlock(&r->mu);
  return st;
}

/* Which ps began anew; their requests are answered again. */
static void mender_take_fresh(session_remote *r, bool *fresh) {
  pthread_mutex_lock(&r->mu);
  for (int32_t i = 0; i < r->nps; i++) {
    fresh[i] = r->ps[i].state == SESSION_FRESH;
    if (fresh[i]) tm_cancel_reset(&r->ps[i].lost);
  }
  pthread_mutex_unlock(&r->mu);
}

static tm_status session_reconnect(tm_session *s, const bool *fresh, tm_err *err) {
  for (int32_t i = 0; i < s->nps; i++) {
    tm_ps_client *c;
    if (!fresh[i]) continue;
    tm_vars_replace(s->vars, i, NULL);
    TM_TRY(tm_session_data(s->remote, i, false, &c, err));
    tm_vars_replace(s->vars, i, c);
  }
  return TM_OK;
}

tm_status tm_session_remake(tm_session *s, bool *fresh, tm_err *err) {
  session_remote *r = s->remote;
  memset(fresh, 0, (size_t)s->nps * sizeof *fresh);
  if (!session_mender_of(s)) return TM_OK;
  mender_take_fresh(r, fresh);
  TM_TRY(session_reconnect(s, fresh, err));
  tm_recipes_prune(&s->recipes, s->vars->catalog);
  tm_status st = TM_OK;
  for (size_t i = 0; i < s->recipes.n && st == TM_OK; i++) {
    session_recipe *p = &s->recipes.r[i];
    s->excuse(s, tm_session_bytes(p->info));
    st = tm_vars_remake(s->vars, p->info, &p->init, p->piece, fresh, err);
  }
  s->excuse(s, 0);
  return st;
}

void tm_session_go_on(tm_session *s, bool *on) {
  session_remote *r = s->remote;
  session_mender *m = session_mender_of(s);
  *on = true;
  if (!m) return;
  pthread_mutex_lock(&m->life);
  pthread_mutex_lock(&r->mu);
  for (int32_t i = 0; i < r->nps; i++)
    if (r->ps[i].state != SESSION_UP && r->ps[i].state != SESSION_FRESH) *on = false;
  for (int32_t i = 0; i < r->nps && *on; i++) r->ps[i].state = SESSION_UP;
  if (*on) {
    atomic_store(&m->pending, false);
    if (r->why.code != TM_EABORTED) tm_err_clear(&r->why);
  }
  pthread_mutex_unlock(&r->mu);
  for (int32_t i = 0; i < r->nps && *on; i++) {
    r->lost[i] += r->pending[i];
    r->pending[i] = 0;
  }
  if (*on && m->suspended) {
    tm_coordinator_resume(r->coordinator);
    m->suspended = false;
  }
  pthread_mutex_unlock(&m->life);
}

bool tm_session_recipe(tm_session *s, size_t i, tm_var_info **info, bool *lossy) {
  if (i >= s->recipes.n) return false;
  *info = s->recipes.r[i].info;
  *lossy = s->recipes.r[i].lossy;
  return true;
}
