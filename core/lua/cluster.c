#include "lua/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/locals.h"
#include "cluster/session.h"
#include "data/dataset.h"
#include "lua/cluster_create.h"
#include "lua/data.h"
#include "lua/route.h"
#include "lua/trace.h"
#include "lua/value.h"

/*
 * Design.  A session box owns the tm_session; the coordinator box refers to the session
 * box by its user value, so the session outlives it.  Closing twice is harmless; a
 * closed box raises failed_precondition.
 *
 * Waits are done in slices by Lua (distribute/wait.lua): each call here waits for at
 * most the time it is given, so that Ctrl-C and other coroutines get their turn.
 */
#define COORDINATOR_MT "tm.core.Coordinator"
#define REMOTE_MT      "tm.core.RemoteValue"
#define ITERATOR_MT    "tm.core.PerWorkerIterator"

typedef struct coordinator_box {
  tm_coordinator *c;
  tm_lua_session *session;
} coordinator_box;

typedef struct remote_box {
  tm_remote_value *v;
} remote_box;

static tm_coordinator *check_coordinator(lua_State *L, int i) {
  coordinator_box *b = luaL_checkudata(L, i, COORDINATOR_MT);
  if (!b->c) tm_lua_fail(L, TM_EPRECOND, "this coordinator is closed");
  return b->c;
}

static int coordinator_close(lua_State *L) {
  coordinator_box *b = luaL_checkudata(L, 1, COORDINATOR_MT);
  if (b->c) tm_session_coordinator_close(b->session->s);
  if (b->c) b->session->has_coordinator = false;
  b->c = NULL;
  return 0;
}

/* session:coordinator(queue_size, keeper): it is keeper.coordinator_handle from its
 * first moment, because Ctrl-C may come between this call and what its result is
 * assigned to, and a session makes one only. */
int tm_lua_session_coordinator(lua_State *L) {
  tm_lua_session *sb = tm_lua_check_session(L, 1);
  lua_Integer size = luaL_checkinteger(L, 2);
  coordinator_box *b = lua_newuserdatauv(L, sizeof *b, 1);
  b->c = NULL;
  b->session = sb;
  luaL_getmetatable(L, COORDINATOR_MT);
  lua_setmetatable(L, -2);
  tm_lua_keep(L, -1, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_session_coordinator(sb->s, size, &b->c, &err), &err);
  sb->has_coordinator = true;
  if (!lua_istable(L, 3)) return 1;
  lua_pushliteral(L, "coordinator_handle");
  lua_pushvalue(L, -2);
  lua_rawset(L, 3);
  return 1;
}

/* --- schedule --- */

static void coordinator_check_variables(lua_State *L, coordinator_box *b, tm_graph *g) {
  uint64_t uid;
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_session_foreign(b->session->s, g, &uid, &err), &err);
  if (uid == 0) return;
  tm_lua *ctx = tm_lua_ctx(L);
  tm_var_info *v = tm_catalog_get(ctx->catalog, uid);
  char name[128] = "?";
  if (v) memcpy(name, v->name, sizeof name);
  tm_var_info_unref(v);
  tm_lua_fail(L, TM_EINVAL,
              "%s uses the variable \"%s\", which belongs to the chief alone or to "
              "another strategy; create it in strategy:scope",
              g->name, name);
}

/* coordinator:check(graph): its variables are of this cluster, it can run in this mode.
 */
static int coordinator_check(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_graph *g = tm_lua_check_graph(L, 2);
  tm_err err;
  coordinator_check_variables(L, lua_touserdata(L, 1), g);
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_check(c, g, &err), &err);
  return 0;
}

static tm_remote_value *check_remote(lua_State *L, int i) {
  tm_remote_value *v = ((remote_box *)luaL_checkudata(L, i, REMOTE_MT))->v;
  if (!v) tm_lua_fail(L, TM_EPRECOND, "this result was given up");
  return v;
}

/* coordinator:await(value): somebody waits for it. */
static int coordinator_await(lua_State *L) {
  tm_coordinator_await(check_coordinator(L, 1), check_remote(L, 2));
  return 0;
}

/* {value, which of its results from 1, name} */
static tm_carg coordinator_remote_argument(lua_State *L, int t) {
  tm_carg a = {.kind = TM_CARG_REMOTE};
  lua_rawgeti(L, t, 1);
  lua_rawgeti(L, t, 2);
  lua_rawgeti(L, t, 3);
  a.value = check_remote(L, -3);
  a.out = (int32_t)luaL_checkinteger(L, -2) - 1;
  a.name = luaL_checkstring(L, -1);
  lua_pop(L, 3); /* the table keeps them */
  return a;
}

/* The argument on top of the stack. */
static tm_carg coordinator_argument(lua_State *L, int number) {
  int64_t uid = 0;
  if (lua_type(L, -1) == LUA_TTABLE)
    return coordinator_remote_argument(L, lua_gettop(L));
  tm_value *v = tm_lua_test_value(L, lua_gettop(L));
  if (v ? !v->t : !tm_lua_integer(L, -1, &uid))
    tm_lua_fail(L, TM_EINVAL, "argument %d belongs to a trace, or is no tensor",
                number);
  return (tm_carg){.kind = v ? TM_CARG_TENSOR : TM_CARG_PER_WORKER,
                   .t = v ? v->t : NULL,
                   .resource = (uint64_t)uid};
}

/* coordinator:schedule(graph, args, worker?): args is a flat list of Tensors and uids
 * of per-worker iterators; worker: index from 0 of the only one that may run it. A
 * RemoteValue, or nothing when the queue is full. */
static int coordinator_schedule(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_graph *g = tm_lua_check_graph(L, 2);
  luaL_checktype(L, 3, LUA_TTABLE);
  int32_t only = lua_isnoneornil(L, 4) ? -1 : (int32_t)luaL_checkinteger(L, 4);
  size_t n = lua_rawlen(L, 3), more = lua_istable(L, 5) ? lua_rawlen(L, 5) : 0;
  tm_carg arg[TM_MAX_LIST];
  if (n > TM_MAX_LIST || more > TM_MAX_LIST - n)
    return tm_lua_fail(L, TM_EINVAL, "too many arguments");
  for (size_t i = 0; i < n + more; i++) {
    lua_rawgeti(L, i < n ? 3 : 5, (int)(i < n ? i : i - n) + 1);
    arg[i] = coordinator_argument(L, (int)i + 1);
    if (i >= n) arg[i].kind = TM_CARG_AFTER;
    lua_pop(L, 1); /* the list keeps it */
  }
  remote_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->v = NULL;
  luaL_getmetatable(L, REMOTE_MT);
  lua_setmetatable(L, -2);
  tm_err err;
  tm_err_clear(&err);
  tm_status s =
      tm_coordinator_schedule_on(c, only, g, arg, (int32_t)(n + more), &b->v, &err);
  if (s == TM_EAGAIN) return 0;
  tm_lua_check(L, s, &err);
  return 1;
}

/* --- waiting --- */

/* Seconds at i to ns; nil waits for ever. */
static int64_t check_timeout(lua_State *L, int i) {
  if (lua_isnoneornil(L, i)) return -1;
  double s = luaL_checknumber(L, i);
  if (!(s >= 0))
    tm_lua_fail(L, TM_EINVAL, "a timeout is a number of seconds from 0 on");
  return s > 9e9 ? -1 : (int64_t)(s * 1e9);
}

/* True when it is over, false when the time was up (no error is raised then). */
static int push_wait(lua_State *L, tm_status s, const tm_err *err) {
  if (s != TM_ETIMEOUT) tm_lua_check(L, s, err);
  lua_pushboolean(L, s == TM_OK);
  return 1;
}

/* coordinator:join(seconds) */
static int coordinator_join(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_err err;
  tm_err_clear(&err);
  int64_t ns = check_timeout(L, 2);
  return push_wait(L, tm_coordinator_join(c, ns, &tm_lua_ctx(L)->cancel, &err), &err);
}

/* coordinator:wait_room(seconds, most?, all?): room in the queue, or at most `most`
 * closures that are not finished; all: no more come */
static int coordinator_wait_room(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_cancel *cancel = &tm_lua_ctx(L)->cancel;
  tm_err err;
  tm_err_clear(&err);
  int64_t ns = check_timeout(L, 2);
  tm_status s = lua_isnoneornil(L, 3)
                    ? tm_coordinator_wait_room(c, ns, cancel, &err)
                    : tm_coordinator_wait_few(c, luaL_checkinteger(L, 3),
                                              lua_toboolean(L, 4), ns, cancel, &err);
  return push_wait(L, s, &err);
}

/* coordinator:cancel(seconds): what is queued and what runs, without an error */
static int coordinator_cancel(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_cancel(c, check_timeout(L, 2), &err), &err);
  return 0;
}

static int coordinator_done(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  bool done;
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_done(c, &done, &err), &err);
  lua_pushboolean(L, done);
  return 1;
}

/* --- workers --- */

/* coordinator:add_worker(address) -> its place from 0, its task's name */
static int coordinator_add_worker(lua_State *L) {
  check_coordinator(L, 1);
  tm_session *s = ((coordinator_box *)lua_touserdata(L, 1))->session->s;
  int32_t index = 0;
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_session_add_worker(s, luaL_checkstring(L, 2), &index, &err), &err);
  lua_pushinteger(L, index);
  lua_pushstring(L, tm_session_worker_task(s, index));
  return 2;
}

/* coordinator:remove_worker(index) */
static int coordinator_remove_worker(lua_State *L) {
  check_coordinator(L, 1);
  tm_session *s = ((coordinator_box *)lua_touserdata(L, 1))->session->s;
  tm_err err;
  tm_err_clear(&err);
  lua_Integer i = luaL_checkinteger(L, 2);
  if (i < 0 || i > INT32_MAX) i = INT32_MAX;
  tm_lua_check(L, tm_session_remove_worker(s, (int32_t)i, &err), &err);
  return 0;
}

/* --- resources --- */

/* An iterator on every worker; dropped there when this handle is collected. */
typedef struct iterator_box {
  coordinator_box *coordinator; /* kept alive by the user value */
  uint64_t uid;                 /* 0: nothing to drop */
} iterator_box;

static int iterator_gc(lua_State *L) {
  iterator_box *b = lua_touserdata(L, 1);
  if (b->uid && b->coordinator->c) tm_coordinator_drop(b->coordinator->c, b->uid);
  b->uid = 0;
  return 0;
}

/* coordinator:drop(handle): now, not when it is collected */
static int coordinator_drop(lua_State *L) {
  check_coordinator(L, 1);
  luaL_checkudata(L, 2, ITERATOR_MT);
  lua_remove(L, 1);
  return iterator_gc(L);
}

/* A handle, for whatever gets this uid. */
static iterator_box *resource_new(lua_State *L) {
  iterator_box *b = lua_newuserdatauv(L, sizeof *b, 1);
  *b = (iterator_box){lua_touserdata(L, 1), 0};
  luaL_getmetatable(L, ITERATOR_MT);
  lua_setmetatable(L, -2);
  tm_lua_keep(L, -1, 1);
  return b;
}

/* coordinator:add_iterator(dataset, resume, dealt) -> uid, handle */
static int coordinator_add_iterator(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_dataset *ds = tm_lua_check_dataset(L, 2);
  uint64_t uid = tm_lua_new_uid();
  tm_lua_push_int64(L, (int64_t)uid);
  iterator_box *b = resource_new(L);
  tm_err err;
  tm_err_clear(&err);
  uint64_t seed = tm_lua_ctx(L)->seed;
  tm_lua_check(L,
               lua_toboolean(L, 4) ? tm_coordinator_add_dealt(c, uid, ds, seed, &err)
                                   : tm_coordinator_add_iterator(
                                         c, uid, ds, seed, lua_toboolean(L, 3), &err),
               &err);
  b->uid = uid;
  return 2;
}

/* Their infos, from the catalogue of this process, in a userdata. */
typedef struct locals_infos {
  int32_t n;
  tm_var_info *v[];
} locals_infos;

static int locals_infos_gc(lua_State *L) {
  locals_infos *a = lua_touserdata(L, 1);
  while (a->n > 0) tm_var_info_unref(a->v[--a->n]);
  return 0;
}

static locals_infos *check_locals(lua_State *L, int i) {
  luaL_checktype(L, i, LUA_TTABLE);
  size_t n = lua_rawlen(L, i);
  if (n > TM_MAX_LOCALS) tm_lua_fail(L, TM_EINVAL, "too many variables");
  locals_infos *a = lua_newuserdatauv(L, sizeof *a + n * sizeof(tm_var_info *), 0);
  a->n = 0;
  luaL_newmetatable(L, "tm.core.Infos");
  lua_pushcfunction(L, locals_infos_gc);
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    uint64_t uid = tm_lua_check_uid(L, lua_gettop(L));
    lua_pop(L, 1);
    tm_var_info *v = tm_catalog_get(tm_lua_ctx(L)->catalog, uid);
    if (!v)
      tm_lua_fail(L, TM_EINVAL, "variable %d is none of this process", (int)k + 1);
    a->v[a->n++] = v;
  }
  return a;
}

/* coordinator:add_locals(uids, graph) -> handle.  Variables of this process become ones
 * of each worker too; their first values are the outputs of the graph. */
static int coordinator_add_locals(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_graph *g = tm_lua_check_graph(L, 3);
  locals_infos *a = check_locals(L, 2);
  if (g->narg != 0 || g->nout != a->n)
    return tm_lua_fail(L, TM_EINVAL, "a value for each variable is wanted");
  uint64_t uid = tm_lua_new_uid();
  iterator_box *b = resource_new(L);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_add_locals(c, uid, a->v, a->n, g, &err), &err);
  b->uid = uid;
  return 1;
}

enum { PLACES_MAX = TM_MAX_TASKS };

/* coordinator:places(uid) -> seed (hexadecimal), given, failed: lists by worker */
static int coordinator_places(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  uint64_t uid = tm_lua_check_uid(L, 2), seed = 0;
  tm_iter_place *p = lua_newuserdatauv(L, PLACES_MAX * sizeof *p, 0);
  int32_t n = 0;
  char text[20];
  if (tm_coordinator_places(c, uid, &seed, p, PLACES_MAX, &n))
    return tm_lua_fail(L, TM_EPRECOND, "this iterator is closed");
  (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)seed);
  lua_pushstring(L, text);
  lua_createtable(L, n, 0);
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n && i < PLACES_MAX; i++) {
    tm_lua_push_int64(L, p[i].given);
    lua_rawseti(L, -3, i + 1);
    tm_lua_push_int64(L, p[i].failed);
    lua_rawseti(L, -2, i + 1);
  }
  return 3;
}

/* coordinator:seek(uid, seed, given, failed) */
static int coordinator_seek(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  uint64_t uid = tm_lua_check_uid(L, 2);
  uint64_t seed = strtoull(luaL_checkstring(L, 3), NULL, 16);
  luaL_checktype(L, 4, LUA_TTABLE);
  luaL_checktype(L, 5, LUA_TTABLE);
  size_t n = lua_rawlen(L, 4);
  if (n > PLACES_MAX) n = PLACES_MAX;
  tm_iter_place *p = lua_newuserdatauv(L, (n + 1) * sizeof *p, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 4, (int)i + 1);
    lua_rawgeti(L, 5, (int)i + 1);
    bool ok = tm_lua_integer(L, -2, &p[i].given) && tm_lua_integer(L, -1, &p[i].failed);
    if (!ok || p[i].given < 0 || p[i].failed < 0)
      return tm_lua_fail(L, TM_EINVAL, "place %d is none", (int)i + 1);
    lua_pop(L, 2);
  }
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_seek(c, uid, seed, p, (int32_t)n, &err), &err);
  return 0;
}

/* --- iterators that are dealt out --- */

/* coordinator:start_pass(uid) */
static int coordinator_start_pass(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_start_pass(c, tm_lua_check_uid(L, 2), &err), &err);
  return 0;
}

/* coordinator:progress(uid) -> { pass, dealt, done, left, endless, ended, steps, deals
 * }; left: nil while it is not known */
static int coordinator_progress(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_progress p;
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_progress(c, tm_lua_check_uid(L, 2), &p, &err), &err);
  lua_createtable(L, 0, 8);
  int t = lua_gettop(L);
  tm_lua_set_int(L, t, "steps", p.steps);
  tm_lua_set_int(L, t, "deals", p.deals);
  tm_lua_set_int(L, t, "pass", (int64_t)p.pass);
  tm_lua_set_int(L, t, "dealt", p.dealt);
  tm_lua_set_int(L, t, "done", p.done);
  if (p.left >= 0) tm_lua_set_int(L, t, "left", p.left);
  lua_pushboolean(L, p.endless);
  lua_setfield(L, t, "endless");
  lua_pushboolean(L, p.left == 0);
  lua_setfield(L, t, "ended");
  return 1;
}

/* coordinator:deals(uid, noted) -> seed (hexadecimal), pass, next, { first, n, first,
 * n, ...
 * }: all elements below next are done but for these ranges; noted: at the moment of the
 * last checkpoint */
static int coordinator_deals(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_deals d;
  tm_err err;
  char text[20];
  tm_err_clear(&err);
  lua_settop(L, 3);
  luaL_checkstack(L, 8, NULL);
  tm_lua_check(
      L, tm_coordinator_deals(c, tm_lua_check_uid(L, 2), lua_toboolean(L, 3), &d, &err),
      &err);
  (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)d.seed);
  tm_range *copy = lua_newuserdatauv(L, ((size_t)d.n + 1) * sizeof *copy, 0);
  if (d.n) memcpy(copy, d.undone, (size_t)d.n * sizeof *copy);
  int32_t n = d.n;
  int64_t next = d.next, pass = (int64_t)d.pass;
  tm_deals_release(&d);
  lua_pushstring(L, text);
  tm_lua_push_int64(L, pass);
  tm_lua_push_int64(L, next);
  lua_createtable(L, 2 * n, 0);
  for (int32_t i = 0; i < n; i++) {
    tm_lua_push_int64(L, copy[i].first);
    lua_rawseti(L, -2, 2 * i + 1);
    tm_lua_push_int64(L, copy[i].n);
    lua_rawseti(L, -2, 2 * i + 2);
  }
  return 4;
}

/* coordinator:redeal(uid, seed, pass, next, ranges) */
static int coordinator_redeal(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  uint64_t uid = tm_lua_check_uid(L, 2);
  tm_deals d = {.seed = strtoull(luaL_checkstring(L, 3), NULL, 16)};
  int64_t pass, at = 0;
  if (!tm_lua_integer(L, 4, &pass) || !tm_lua_integer(L, 5, &d.next) || pass < 0 ||
      d.next < 0)
    return tm_lua_fail(L, TM_EINVAL, "this is no place in a pass");
  d.pass = (uint64_t)pass;
  luaL_checktype(L, 6, LUA_TTABLE);
  size_t n = lua_rawlen(L, 6) / 2;
  if (n > INT32_MAX / 2) return tm_lua_fail(L, TM_EINVAL, "too many ranges");
  d.n = (int32_t)n;
  d.undone = lua_newuserdatauv(L, (n + 1) * sizeof *d.undone, 0);
  for (int32_t i = 0; i < d.n; i++) {
    tm_range *r = &d.undone[i];
    lua_rawgeti(L, 6, 2 * i + 1);
    lua_rawgeti(L, 6, 2 * i + 2);
    bool ok = tm_lua_integer(L, -2, &r->first) && tm_lua_integer(L, -1, &r->n);
    if (!ok || r->first < at || r->n < 1 || r->n > d.next - r->first)
      return tm_lua_fail(L, TM_EINVAL, "range %d is none", (int)i + 1);
    at = r->first + r->n;
    lua_pop(L, 2);
  }
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_coordinator_redeal(c, uid, &d, &err), &err);
  return 0;
}

/* --- counters --- */

static void push_worker_stats(lua_State *L, const tm_worker_stats *w) {
  lua_createtable(L, 0, 4);
  int t = lua_gettop(L);
  tm_lua_set_int(L, t, "steps", (int64_t)w->steps);
  tm_lua_set_int(L, t, "reads", (int64_t)w->reads);
  tm_lua_set_int(L, t, "updates", (int64_t)w->updates);
  lua_pushstring(L, w->state);
  lua_setfield(L, t, "state");
}

static void push_ps_stats(lua_State *L, tm_session *s, int32_t k) {
  tm_store_stats st;
  tm_err err;
  tm_err_clear(&err);
  memset(&st, 0, sizeof st);
  tm_status r = tm_session_ps_stats(s, k, &st, &err);
  lua_createtable(L, 0, 8);
  int t = lua_gettop(L);
  tm_lua_set_int(L, t, "reads", (int64_t)st.reads);
  tm_lua_set_int(L, t, "updates", (int64_t)st.updates);
  tm_lua_set_int(L, t, "bytes_in", (int64_t)st.bytes_in);
  tm_lua_set_int(L, t, "bytes_out", (int64_t)st.bytes_out);
  tm_lua_set_int(L, t, "variables", (int64_t)st.variables);
  tm_lua_set_int(L, t, "slots", (int64_t)st.slots);
  tm_lua_set_int(L, t, "bytes_held", (int64_t)st.bytes_held);
  bool copied;
  const char *state = tm_session_ps_state(s, k, &copied);
  if (r != TM_OK && strcmp(state, "ready") == 0) state = "down";
  lua_pushstring(L, state);
  lua_setfield(L, t, "state");
  lua_pushboolean(L, copied);
  lua_setfield(L, t, "copied");
}

/* coordinator:stats() */
static int coordinator_stats(lua_State *L) {
  tm_coordinator *c = check_coordinator(L, 1);
  tm_session *s = ((coordinator_box *)lua_touserdata(L, 1))->session->s;
  tm_coordinator_stats st;
  int32_t n = tm_session_workers(s);
  tm_worker_stats *w = lua_newuserdatauv(L, (size_t)n * sizeof *w, 0);
  tm_coordinator_get_stats(c, &st, w, n);
  lua_createtable(L, 0, 12);
  int t = lua_gettop(L);
  tm_lua_set_int(L, t, "steps", (int64_t)st.steps);
  tm_lua_set_int(L, t, "reads", (int64_t)st.reads);
  tm_lua_set_int(L, t, "updates", (int64_t)st.updates);
  tm_lua_set_int(L, t, "bytes_read", (int64_t)st.bytes_read);
  tm_lua_set_int(L, t, "bytes_updated", (int64_t)st.bytes_updated);
  tm_lua_set_int(L, t, "retries", (int64_t)st.retries);
  tm_lua_set_int(L, t, "rounds", (int64_t)st.rounds);
  tm_lua_set_int(L, t, "late", (int64_t)st.late);
  tm_lua_set_int(L, t, "queued", st.queued);
  tm_lua_set_int(L, t, "running", st.running);
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    push_worker_stats(L, &w[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_setfield(L, t, "workers");
  lua_createtable(L, tm_session_ps(s), 0);
  for (int32_t k = 0; k < tm_session_ps(s); k++) {
    push_ps_stats(L, s, k);
    lua_rawseti(L, -2, k + 1);
  }
  lua_setfield(L, t, "ps");
  return 1;
}

/* --- remote values --- */

static int remote_gc(lua_State *L) {
  remote_box *b = lua_touserdata(L, 1);
  tm_remote_value_unref(b->v);
  b->v = NULL;
  return 0;
}

/* value:forget(): nobody wants it */
static int remote_forget(lua_State *L) {
  check_remote(L, 1);
  return remote_gc(L);
}

static int remote_done(lua_State *L) {
  lua_pushboolean(L, tm_remote_value_done(check_remote(L, 1)));
  return 1;
}

static int remote_step(lua_State *L) {
  tm_lua_push_int64(L, (int64_t)tm_remote_value_step(check_remote(L, 1)));
  return 1;
}

/* value:ran() -> the worker that ran it, and when it was done in seconds; nil before */
static int remote_ran(lua_State *L) {
  int64_t ns;
  int32_t worker = tm_remote_value_ran(check_remote(L, 1), &ns);
  if (worker < 0) return 0;
  lua_pushinteger(L, worker);
  lua_pushnumber(L, (double)ns * 1e-9);
  return 2;
}

/* value:wait(seconds) -> list of Tensors, "end_of_data" when none was left for it, nil
 * when the time was up, or raises */
static int remote_wait(lua_State *L) {
  tm_remote_value *v = check_remote(L, 1);
  tm_tensor **out;
  int32_t n;
  tm_err err;
  tm_err_clear(&err);
  int64_t ns = check_timeout(L, 2);
  tm_status s = tm_remote_value_wait(v, ns, &tm_lua_ctx(L)->cancel, &out, &n, &err);
  if (s == TM_ETIMEOUT) {
    if (!tm_remote_value_done(v)) return 0;
    /* It came between the two calls, or its own error is this one. */
    tm_err_clear(&err);
    s = tm_remote_value_wait(v, 0, NULL, &out, &n, &err);
  }
  tm_lua_check(L, s, &err);
  if (tm_remote_value_ended(v)) {
    lua_pushliteral(L, "end_of_data");
    return 1;
  }
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    tm_lua_push_tensor(L, out[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void tm_lua_open_cluster(lua_State *L, int core) {
  static const luaL_Reg coordinator[] = {{"check", coordinator_check},
                                         {"await", coordinator_await},
                                         {"schedule", coordinator_schedule},
                                         {"join", coordinator_join},
                                         {"cancel", coordinator_cancel},
                                         {"wait_room", coordinator_wait_room},
                                         {"done", coordinator_done},
                                         {"add_worker", coordinator_add_worker},
                                         {"remove_worker", coordinator_remove_worker},
                                         {"add_iterator", coordinator_add_iterator},
                                         {"add_locals", coordinator_add_locals},
                                         {"drop", coordinator_drop},
                                         {"places", coordinator_places},
                                         {"seek", coordinator_seek},
                                         {"start_pass", coordinator_start_pass},
                                         {"progress", coordinator_progress},
                                         {"deals", coordinator_deals},
                                         {"redeal", coordinator_redeal},
                                         {"stats", coordinator_stats},
                                         {"close", coordinator_close},
                                         {NULL, NULL}};
  static const luaL_Reg remote[] = {{"done", remote_done}, {"forget", remote_forget},
                                    {"step", remote_step}, {"ran", remote_ran},
                                    {"wait", remote_wait}, {NULL, NULL}};
  tm_lua_new_class(L, COORDINATOR_MT, coordinator, coordinator_close);
  static const luaL_Reg none[] = {{NULL, NULL}};
  tm_lua_new_class(L, REMOTE_MT, remote, remote_gc);
  tm_lua_new_class(L, ITERATOR_MT, none, iterator_gc);
  tm_lua_open_session(L, core);
}
