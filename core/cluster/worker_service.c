#include "cluster/worker_service.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/map.h"
#include "base/mem.h"
#include "cluster/control.h"
#include "cluster/locals.h"
#include "cluster/ps_remote.h"
#include "data/codec.h"

/*
 * Design.  A session is made by the start message and freed by its own thread.  The
 * connection's user pointer is the session; the session holds a reference on the
 * connection, so completions can always be sent (and fail when it is gone).
 *
 * Invariants:
 *   (1) `link` is set before the start is answered, and a chief sends nothing before
 *       that, so messages find it; they come from one thread at a time.
 *   (2) `ended` is set once no more messages come; the thread then closes the link,
 *       which ends the compute thread, and frees the session.
 *   (3) A session leaves the service's list before anything of it is freed, so whoever
 *       finds it there (under mu) may use it; `living` counts it until it is gone.
 *   (4) `held` closures were submitted and not told to be done.  Once the service is
 *       `leaving` none is submitted any more, and at 0 the session says down, once.
 */
typedef struct wsession {
  tm_worker_service *service;
  struct wsession *next; /* under the service's mu */
  tm_conn *conn;
  uint64_t start_id;
  tm_start start;
  pthread_mutex_t mu;
  pthread_cond_t changed;
  bool ended;           /* under mu */
  tm_cancel cancel;     /* ends the waits for ps */
  tm_worker_link *link; /* under mu until the start is answered (1) */
  tm_map *graphs;       /* loop thread: hash[0] to a tm_graph */
  atomic_llong held;    /* (4) */
  atomic_bool answered; /* the start was */
  atomic_bool left;     /* down was said because the service is leaving */
} wsession;

struct tm_worker_service {
  tm_hello self;
  pthread_mutex_t mu;
  pthread_cond_t empty;
  wsession *sessions; /* under mu */
  int living;         /* under mu (3) */
  atomic_bool leaving;
  char why[TM_LEAVING_TEXT]; /* written before leaving */
};

tm_status tm_worker_service_new(const tm_hello *self, tm_worker_service **out) {
  *out = NULL;
  tm_worker_service *s = tm_calloc(1, sizeof *s);
  if (!s) return TM_ENOMEM;
  s->self = *self;
  pthread_mutex_init(&s->mu, NULL);
  pthread_cond_init(&s->empty, NULL);
  *out = s;
  return TM_OK;
}

static void wsession_end(wsession *w) {
  tm_cancel_set(&w->cancel);
  pthread_mutex_lock(&w->mu);
  w->ended = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mu);
}

void tm_worker_service_free(tm_worker_service *s) {
  if (!s) return;
  pthread_mutex_lock(&s->mu);
  for (wsession *w = s->sessions; w; w = w->next) wsession_end(w);
  while (s->living) pthread_cond_wait(&s->empty, &s->mu);
  pthread_mutex_unlock(&s->mu);
  pthread_mutex_destroy(&s->mu);
  pthread_cond_destroy(&s->empty);
  tm_free(s, sizeof *s);
}

/* --- to the chief --- */

/* Any thread. */
static void wsession_gated(void *ud, uint64_t number) {
  wsession *w = ud;
  tm_letter l;
  tm_letter_init(&l);
  tm_pack_uint(&l.w, number);
  tm_status s = tm_letter_send(&l, w->conn, TM_F_GATED, 0);
  if (s == TM_ENOMEM) tm_conn_close(w->conn, s, "no memory for an answer");
}

/* This worker can go on no more: the chief is told why. */
static void wsession_down(void *ud, const tm_err *why) {
  wsession *w = ud;
  tm_letter l;
  tm_letter_init(&l);
  tm_err_pack(&l.w, why);
  if (tm_letter_send(&l, w->conn, TM_F_DOWN, 0))
    tm_conn_close(w->conn, why->code, why->msg);
}

/* The last closure is done or handed back: nothing keeps this worker. */
static void wsession_leave_if_idle(wsession *w) {
  tm_err err;
  if (!atomic_load(&w->service->leaving) || !atomic_load(&w->answered) ||
      atomic_load(&w->held) > 0 || atomic_exchange(&w->left, true))
    return;
  tm_err_clear(&err);
  tm_fail(&err, TM_EUNAVAILABLE, "it left (%s)", w->service->why);
  wsession_down(w, &err);
}

static void wsession_send_done(wsession *w, const tm_completion *d, int32_t n) {
  tm_letter l;
  tm_letter_init(&l);
  tm_pack_array(&l.w, (uint32_t)n);
  for (int32_t i = 0; i < n; i++) tm_completion_pack(&l, &d[i]);
  tm_status s = tm_letter_send(&l, w->conn, TM_F_DONE, 0);
  if (s == TM_ENOMEM) tm_conn_close(w->conn, s, "no memory for a completion");
  if (s == TM_EEXHAUSTED)
    tm_conn_close(w->conn, s, "results with more metadata than a message may have");
}

/* Of the compute thread, or of whoever hands closures back. */
static void wsession_done(void *ud, const tm_completion *d, int32_t n) {
  wsession *w = ud;
  wsession_send_done(w, d, n);
  atomic_fetch_sub(&w->held, n);
  wsession_leave_if_idle(w);
}

void tm_worker_service_leave(tm_worker_service *s, const char *why) {
  pthread_mutex_lock(&s->mu);
  if (!atomic_load(&s->leaving)) snprintf(s->why, sizeof s->why, "%s", why);
  atomic_store(&s->leaving, true);
  for (wsession *w = s->sessions; w; w = w->next) {
    pthread_mutex_lock(&w->mu);
    tm_worker_link *l = w->ended ? NULL : w->link;
    if (l && l->recall) l->recall(l, 0);
    bool early = !l && !w->ended; /* it still connects to the ps */
    pthread_mutex_unlock(&w->mu);
    if (early) tm_conn_close(w->conn, TM_EUNAVAILABLE, "this worker leaves");
    if (l) wsession_leave_if_idle(w);
  }
  pthread_mutex_unlock(&s->mu);
}

/* --- the session's thread --- */

static tm_status wsession_dial(wsession *w, tm_ps_client **ps, tm_err *err) {
  tm_hello self = w->service->self;
  self.term = tm_conn_peer(w->conn)->term;
  for (int32_t i = 0; i < w->start.nps; i++) {
    tm_channel_options ch = {.address = w->start.ps[i],
                             .self = self,
                             .connect_timeout_ns = w->start.connect_timeout_ns,
                             .silence_ns = w->start.silence_ns,
                             .spin_ns = -1,
                             .retry = true,
                             .cancel = &w->cancel};
    tm_ps_remote_options o = {.channel = ch, .lane = i};
    if (w->start.replicas) o.other.address = w->start.ps[(i + 1) % w->start.nps];
    TM_TRY(tm_ps_client_lane(&o, &ps[i], err));
  }
  return TM_OK;
}

static tm_status wsession_vars(wsession *w, tm_vars **out, tm_err *err) {
  int32_t n = w->start.nps;
  size_t bytes = ((size_t)n + 1) * sizeof(tm_ps_client *);
  tm_catalog *catalog = NULL;
  tm_ps_client **ps = tm_calloc((size_t)n + 1, sizeof *ps);
  if (!ps) return tm_nomem(err, "a worker");
  tm_status s = tm_catalog_new(&catalog) ? tm_nomem(err, "a worker") : TM_OK;
  if (s == TM_OK) s = wsession_dial(w, ps, err);
  if (s == TM_OK && tm_vars_new(catalog, ps, n, NULL, out))
    s = tm_nomem(err, "a worker");
  for (int32_t i = 0; s && i < n; i++)
    if (ps[i]) ps[i]->close(ps[i]);
  tm_catalog_unref(catalog);
  tm_free(ps, bytes);
  return s;
}

static tm_status wsession_make(wsession *w, tm_worker_link **link, tm_err *err) {
  tm_vars *vars = NULL;
  tm_resources *res = NULL;
  tm_worker_options opt = {w->start.index, w->start.nworker, w->start.threads,
                           w->start.seed, w->start.incarnation};
  *link = NULL;
  if (opt.threads < 1) opt.threads = 1;
  tm_status s = wsession_vars(w, &vars, err);
  if (s == TM_OK && tm_resources_new(&res)) s = tm_nomem(err, "a worker");
  if (s == TM_OK) s = tm_worker_local(&opt, vars, res, link, err);
  if (s) {
    tm_vars_free(vars);
    tm_resources_free(res);
    return s;
  }
  memcpy((*link)->task, w->service->self.task, sizeof(*link)->task);
  (*link)->ud = w;
  (*link)->on_done = wsession_done;
  (*link)->on_down = wsession_down;
  (*link)->on_gated = wsession_gated;
  return TM_OK;
}

static void wsession_answer(wsession *w, tm_status s, const tm_err *err) {
  tm_frame f = {.kind = TM_F_OK, .id = w->start_id};
  if (s)
    s = tm_conn_send_error(w->conn, w->start_id, err);
  else
    s = tm_conn_send(w->conn, &f, NULL, NULL, 0, NULL, NULL);
  if (s) tm_conn_close(w->conn, s, "the start cannot be answered");
}

static void wsession_free(wsession *w) {
  tm_worker_service *s = w->service;
  size_t pos = 0;
  void *g;
  pthread_mutex_lock(&s->mu);
  wsession **at = &s->sessions;
  while (*at != w) at = &(*at)->next;
  *at = w->next;
  pthread_mutex_unlock(&s->mu);
  while (w->graphs && tm_map_next(w->graphs, &pos, NULL, NULL, NULL, &g))
    tm_graph_unref(g);
  tm_map_free(w->graphs);
  tm_start_release(&w->start);
  tm_conn_unref(w->conn);
  pthread_mutex_destroy(&w->mu);
  pthread_cond_destroy(&w->changed);
  tm_free(w, sizeof *w);
  pthread_mutex_lock(&s->mu);
  if (--s->living == 0) pthread_cond_broadcast(&s->empty);
  pthread_mutex_unlock(&s->mu);
}

static void *wsession_main(void *ud) {
  wsession *w = ud;
  tm_err err;
  tm_worker_link *link;
  tm_err_clear(&err);
  tm_status s = wsession_make(w, &link, &err);
  pthread_mutex_lock(&w->mu);
  w->link = link;
  pthread_mutex_unlock(&w->mu);
  wsession_answer(w, s, &err);
  atomic_store(&w->answered, s == TM_OK);
  wsession_leave_if_idle(w);
  pthread_mutex_lock(&w->mu);
  while (!w->ended) pthread_cond_wait(&w->changed, &w->mu);
  pthread_mutex_unlock(&w->mu);
  if (link) link->close(link);
  wsession_free(w);
  return NULL;
}

/* --- messages (loop thread) --- */

/* A new chief, or the old one come again: what was before ends. */
static void service_end_others(tm_worker_service *s, const wsession *keep) {
  for (wsession *w = s->sessions; w; w = w->next)
    if (w != keep)
      tm_conn_close(w->conn, TM_EABORTED, "another chief started this worker anew");
}

static tm_status service_start(tm_worker_service *s, tm_conn *c, tm_message *m,
                               tm_err *err) {
  pthread_t id;
  if (tm_conn_user(c))
    return tm_fail(err, TM_EPRECOND, "this worker is started already");
  wsession *w = tm_calloc(1, sizeof *w);
  if (!w) return tm_nomem(err, "a session");
  tm_status st = tm_start_unpack(m->meta, m->f.meta_bytes, &w->start, err);
  if (st == TM_OK && tm_map_new(&w->graphs)) st = tm_nomem(err, "a session");
  if (st) {
    tm_start_release(&w->start);
    tm_free(w, sizeof *w);
    return st;
  }
  tm_conn_limits lim = {UINT64_MAX / 4, w->start.heartbeat_ns, w->start.silence_ns};
  w->service = s;
  w->conn = tm_conn_ref(c);
  w->start_id = m->f.id;
  pthread_mutex_init(&w->mu, NULL);
  pthread_cond_init(&w->changed, NULL);
  tm_conn_set_limits(c, &lim);
  pthread_mutex_lock(&s->mu);
  w->next = s->sessions;
  s->sessions = w;
  s->living++;
  service_end_others(s, w);
  pthread_mutex_unlock(&s->mu);
  if (pthread_create(&id, NULL, wsession_main, w)) {
    wsession_free(w);
    return tm_fail(err, TM_EEXHAUSTED, "a session's thread cannot be started");
  }
  pthread_detach(id);
  tm_conn_set_user(c, w);
  return TM_OK;
}

static tm_status wsession_graph(wsession *w, tm_message *m, tm_err *err) {
  tm_letter_in in;
  tm_graph *g = NULL;
  TM_TRY(tm_letter_open(&in, m));
  tm_unpack_array(&in.r, 4, 4);
  uint64_t h0 = tm_unpack_uint(&in.r), h1 = tm_unpack_uint(&in.r);
  bool forget = tm_unpack_range(&in.r, 0, 1) != 0;
  tm_tensor *bytes = tm_letter_take(&in);
  tm_status s = tm_letter_end(&in, err);
  if (s == TM_OK) s = tm_graph_unpack(bytes->v.data, tm_view_bytes(&bytes->v), &g, err);
  tm_tensor_unref(bytes);
  tm_letter_close(&in);
  TM_TRY(s);
  if (g->hash[0] != h0 || g->hash[1] != h1) {
    tm_graph_unref(g);
    return tm_fail(err, TM_EDATALOSS,
                   "a function changed on its way: run the same "
                   "tidemill on all tasks");
  }
  size_t pos = 0;
  uint64_t key;
  while (forget && tm_map_next(w->graphs, &pos, &key, NULL, NULL, NULL)) {
    tm_graph_unref(tm_map_del(w->graphs, key));
    pos = 0;
  }
  if (tm_map_count(w->graphs) > TM_CONTROL_GRAPHS) {
    tm_graph_unref(g);
    return tm_fail(err, TM_EEXHAUSTED, "more functions than a worker keeps");
  }
  tm_graph_unref(tm_map_get(w->graphs, h0));
  if (tm_map_put(w->graphs, h0, g)) {
    tm_graph_unref(g);
    return tm_nomem(err, "a function");
  }
  return TM_OK;
}

/* A worker that leaves hands it back (TM_EAGAIN). */
static tm_status wsession_submit(wsession *w, const tm_closure *c, tm_err *err) {
  atomic_fetch_add(&w->held, 1);
  if (atomic_load(&w->service->leaving)) {
    tm_completion d;
    memset(&d, 0, sizeof d);
    d.id = c->id;
    d.status = TM_EAGAIN;
    tm_err_clear(&d.err);
    tm_fail(&d.err, TM_EAGAIN, "the worker leaves");
    wsession_done(w, &d, 1);
    return TM_OK;
  }
  tm_status s = w->link->submit(w->link, c, 1, err);
  if (s) atomic_fetch_sub(&w->held, 1);
  return s;
}

static tm_status wsession_closure(wsession *w, tm_letter_in *in, tm_err *err) {
  tm_closure c;
  uint64_t hash[2];
  tm_closure_take(in, &c, hash);
  tm_status s = in->r.status;
  if (s == TM_OK) {
    c.graph = tm_map_get(w->graphs, hash[0]);
    if (!c.graph || c.graph->hash[1] != hash[1] || c.narg != c.graph->narg)
      s = tm_fail(err, TM_EDATALOSS, "a closure of a function that was not sent");
  }
  if (s == TM_OK) s = wsession_submit(w, &c, err);
  tm_closure_release(&c);
  return s;
}

static tm_status wsession_closures(wsession *w, tm_message *m, tm_err *err) {
  tm_letter_in in;
  TM_TRY(tm_letter_open(&in, m));
  uint32_t n = tm_unpack_array(&in.r, 0, TM_CONTROL_BATCH);
  tm_status s = TM_OK;
  for (uint32_t i = 0; i < n && s == TM_OK; i++) s = wsession_closure(w, &in, err);
  if (s == TM_OK || in.r.status) s = tm_letter_end(&in, err);
  tm_letter_close(&in);
  return s;
}

static tm_status wsession_variable(wsession *w, tm_message *m, tm_err *err) {
  tm_var_info *v;
  TM_TRY(tm_var_info_unpack(m->meta, m->f.meta_bytes, &v, err));
  tm_status s = TM_OK;
  for (int32_t i = 0; i < v->nshard && s == TM_OK; i++)
    if (v->shard[i].ps >= w->start.nps)
      s = tm_fail(err, TM_EINVAL, "%s lives on ps %d of %d", v->name, v->shard[i].ps,
                  w->start.nps);
  if (s == TM_OK) s = w->link->add_variable(w->link, v, err);
  tm_var_info_unref(v);
  return s;
}

static tm_status wsession_iterator(wsession *w, tm_message *m, tm_err *err) {
  tm_letter_in in;
  tm_dataset *ds = NULL;
  TM_TRY(tm_letter_open(&in, m));
  tm_unpack_array(&in.r, 6, 6);
  uint64_t uid = tm_unpack_uint(&in.r), seed = tm_unpack_uint(&in.r);
  tm_iter_place from = {tm_unpack_range(&in.r, 0, INT64_MAX),
                        tm_unpack_range(&in.r, 0, INT64_MAX)};
  bool dealt = tm_unpack_range(&in.r, 0, 1) != 0;
  tm_tensor *bytes = tm_letter_take(&in);
  tm_status s = tm_letter_end(&in, err);
  if (s == TM_OK)
    s = tm_dataset_unpack(bytes->v.data, tm_view_bytes(&bytes->v), &ds, err);
  if (s == TM_OK) s = w->link->add_iterator(w->link, uid, ds, seed, from, dealt, err);
  tm_dataset_unref(ds);
  tm_tensor_unref(bytes);
  tm_letter_close(&in);
  return s;
}

/* n infos of a worker's own variables; *have of them are made when it fails. */
static tm_status wsession_take_infos(tm_letter_in *in, tm_var_info **v, int32_t n,
                                     int32_t *have) {
  for (*have = 0; *have < n; ++*have) TM_TRY(tm_var_info_take(&in->r, true, &v[*have]));
  return TM_OK;
}

static tm_status wsession_locals(wsession *w, tm_letter_in *in, uint64_t uid,
                                 tm_var_info **v, int32_t n, tm_err *err) {
  tm_graph *g = NULL;
  tm_tensor *bytes = tm_letter_take(in);
  tm_status s = tm_letter_end(in, err);
  if (s == TM_OK) s = tm_graph_unpack(bytes->v.data, tm_view_bytes(&bytes->v), &g, err);
  if (s == TM_OK) s = w->link->add_locals(w->link, uid, v, n, g, err);
  tm_graph_unref(g);
  tm_tensor_unref(bytes);
  return s;
}

static tm_status wsession_resource(wsession *w, tm_message *m, tm_err *err) {
  tm_letter_in in;
  int32_t have = 0;
  TM_TRY(tm_letter_open(&in, m));
  tm_unpack_array(&in.r, 3, 3);
  uint64_t uid = tm_unpack_uint(&in.r);
  int32_t n = (int32_t)tm_unpack_array(&in.r, 0, TM_MAX_LOCALS);
  tm_var_info **v = tm_calloc((size_t)n + 1, sizeof *v);
  tm_status s = v ? wsession_take_infos(&in, v, n, &have) : TM_ENOMEM;
  s = s == TM_ENOMEM ? tm_nomem(err, "a worker's variables")
                     : wsession_locals(w, &in, uid, v, n, err);
  for (int32_t i = 0; i < have; i++) tm_var_info_unref(v[i]);
  tm_free(v, ((size_t)n + 1) * sizeof *v);
  tm_letter_close(&in);
  return s;
}

static tm_status wsession_number(wsession *w, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  uint64_t v = tm_unpack_uint(&r);
  TM_TRY(tm_unpack_end(&r, err));
  if (m->f.kind == TM_F_RESOURCE_DROP) return w->link->drop(w->link, v);
  if (m->f.kind == TM_F_RECALL) {
    w->link->recall(w->link, v > INT32_MAX ? INT32_MAX : (int32_t)v);
    return TM_OK;
  }
  w->link->cancel(w->link, v);
  return TM_OK;
}

static tm_status wsession_gate(wsession *w, tm_message *m, tm_err *err) {
  tm_unpacker r;
  tm_unpack_init(&r, m->meta, m->f.meta_bytes);
  tm_unpack_array(&r, 2, 2);
  uint64_t number = tm_unpack_uint(&r);
  bool closed = tm_unpack_bool(&r);
  TM_TRY(tm_unpack_end(&r, err));
  w->link->gate(w->link, number, closed);
  return TM_OK;
}

static tm_status wsession_message(wsession *w, tm_message *m, tm_err *err) {
  pthread_mutex_lock(&w->mu);
  bool ready = w->link != NULL;
  pthread_mutex_unlock(&w->mu);
  if (!ready)
    return tm_fail(err, TM_EPRECOND, "a message before the start was answered");
  switch (m->f.kind) {
    case TM_F_GRAPH:
      return wsession_graph(w, m, err);
    case TM_F_VARIABLE:
      return wsession_variable(w, m, err);
    case TM_F_ITERATOR:
      return wsession_iterator(w, m, err);
    case TM_F_RESOURCE:
      return wsession_resource(w, m, err);
    case TM_F_CLOSURES:
      return wsession_closures(w, m, err);
    case TM_F_GATE:
      return wsession_gate(w, m, err);
    default:
      return wsession_number(w, m, err);
  }
}

static bool service_knows(tm_frame_kind kind) {
  return (kind >= TM_F_START && kind <= TM_F_CANCEL) || kind == TM_F_RECALL ||
         kind == TM_F_RESOURCE || kind == TM_F_GATE;
}

bool tm_worker_service_message(tm_worker_service *s, tm_conn *c, tm_message *m) {
  tm_err err;
  tm_status st;
  wsession *w = tm_conn_user(c);
  if (!service_knows((tm_frame_kind)m->f.kind)) return false;
  tm_err_clear(&err);
  if (m->f.kind == TM_F_START)
    st = service_start(s, c, m, &err);
  else if (w)
    st = wsession_message(w, m, &err);
  else
    st = tm_fail(&err, TM_EPRECOND, "a message before the start");
  if (st == TM_OK) return true;
  if (err.code == TM_OK) tm_fail(&err, st, "a message could not be handled");
  if (!err.task[0]) memcpy(err.task, s->self.task, sizeof err.task);
  tm_log(TM_LOG_WARN, "%s: %s", s->self.task, err.msg);
  if (m->f.kind == TM_F_START && tm_conn_send_error(c, m->f.id, &err) == TM_OK)
    return true;
  if (w && m->f.kind != TM_F_START) wsession_down(w, &err);
  if (!w) tm_conn_close(c, st, err.msg);
  return true;
}

void tm_worker_service_closed(tm_worker_service *s, tm_conn *c) {
  wsession *w = tm_conn_user(c);
  (void)s;
  if (w) wsession_end(w);
}
