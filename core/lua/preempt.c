#include "lua/preempt.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cluster/board.h"
#include "cluster/preempt.h"
#include "cluster/preempt_signal.h"
#include "lua/cluster_create.h"

/*
 * Design.  Lua asks for messages by their number, so nothing is called from a watcher's
 * thread.  The board is the state's: it outlives sessions.
 */
#define PREEMPT_MT "tm.core.Preempt"

typedef struct preempt_box {
  tm_preempt *p; /* NULL: closed */
} preempt_box;

static int preempt_close(lua_State *L) {
  preempt_box *b = luaL_checkudata(L, 1, PREEMPT_MT);
  tm_preempt_close(b->p);
  b->p = NULL;
  return 0;
}

/* --- options --- */

/* Field of the table at t, a string of less than `size` bytes, into out; false: nil. */
static bool preempt_string(lua_State *L, int t, const char *field, char *out,
                           size_t size) {
  size_t n = 0;
  lua_getfield(L, t, field);
  bool there = !lua_isnil(L, -1);
  const char *s = there ? luaL_checklstring(L, -1, &n) : "";
  if (n >= size || strlen(s) != n)
    tm_lua_fail(L, TM_EINVAL, "PreemptionWatcher: %s is too long, or holds a NUL",
                field);
  if (there) memcpy(out, s, n + 1);
  lua_pop(L, 1);
  return there;
}

static void preempt_number(lua_State *L, int t, const char *field, double *out) {
  lua_getfield(L, t, field);
  if (!lua_isnil(L, -1)) *out = luaL_checknumber(L, -1);
  lua_pop(L, 1);
}

static bool preempt_flag(lua_State *L, int t, const char *field) {
  lua_getfield(L, t, field);
  bool on = lua_toboolean(L, -1);
  lua_pop(L, 1);
  return on;
}

/* Call fn for each string of the list at `field`. */
static void preempt_list(lua_State *L, int t, const char *field, tm_preempt_options *o,
                         tm_status (*fn)(tm_preempt_options *, const char *,
                                         tm_err *)) {
  lua_getfield(L, t, field);
  size_t n = lua_isnil(L, -1) ? 0 : lua_rawlen(L, -1);
  for (size_t i = 1; i <= n; i++) {
    tm_err err;
    tm_err_clear(&err);
    lua_rawgeti(L, -1, (int)i);
    tm_lua_check(L, fn(o, luaL_checkstring(L, -1), &err), &err);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

static tm_status preempt_add_name(tm_preempt_options *o, const char *name,
                                  tm_err *err) {
  int sig = tm_preempt_signal_number(name);
  if (!sig)
    return tm_fail(
        err, TM_EINVAL,
        "PreemptionWatcher: \"%.40s\" is no signal that can be watched: there "
        "are SIGTERM, SIGUSR1, SIGUSR2, SIGHUP, SIGINT, SIGQUIT, SIGXCPU, "
        "SIGALRM, SIGCONT",
        name);
  return tm_preempt_add_signal(o, sig, err);
}

static tm_status preempt_add_header(tm_preempt_options *o, const char *text,
                                    tm_err *err) {
  return tm_preempt_url_header(&o->url, text, err);
}

static void preempt_url(lua_State *L, int t, tm_preempt_options *o) {
  char text[1024];
  tm_err err;
  tm_err_clear(&err);
  if (!preempt_string(L, t, "url", text, sizeof text)) return;
  tm_lua_check(L, tm_preempt_url_set(&o->url, text, &err), &err);
  preempt_list(L, t, "headers", o, preempt_add_header);
  preempt_number(L, t, "timeout", &o->url.timeout);
  (void)preempt_string(L, t, "resource", o->url.resource, sizeof o->url.resource);
}

static void preempt_pod(lua_State *L, int t, tm_preempt_options *o) {
  o->kubernetes = preempt_flag(L, t, "kubernetes");
  if (!o->kubernetes) return;
  bool inside = tm_preempt_kube_env(&o->pod);
  bool told = preempt_string(L, t, "pod_api", o->pod.api, sizeof o->pod.api);
  (void)preempt_string(L, t, "pod_directory", o->pod.directory,
                       sizeof o->pod.directory);
  (void)preempt_string(L, t, "pod_name", o->pod.pod, sizeof o->pod.pod);
  preempt_number(L, t, "pod_timeout", &o->pod.timeout);
  if (!inside && !told)
    tm_lua_fail(L, TM_EPRECOND,
                "PreemptionWatcher: this is no Kubernetes pod: KUBERNETES_SERVICE_HOST "
                "is not set, or \"%s/token\" cannot be read",
                o->pod.directory);
}

/* core.preempt{task, environment = true} or {task, signals, file, url, headers,
 * timeout, resource, slurm, kubernetes, pod_*, interval, grace} */
static int preempt_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  tm_preempt_options o;
  char task[sizeof o.task];
  tm_err err;
  tm_err_clear(&err);
  if (!preempt_string(L, 1, "task", task, sizeof task)) task[0] = '\0';
  tm_preempt_none(&o, task);
  if (preempt_flag(L, 1, "environment"))
    tm_lua_check(L, tm_preempt_environment(&o, task, &err), &err);
  if (preempt_flag(L, 1, "slurm")) o.slurm = true;
  preempt_list(L, 1, "signals", &o, preempt_add_name);
  (void)preempt_string(L, 1, "file", o.file, sizeof o.file);
  preempt_url(L, 1, &o);
  if (!o.kubernetes) preempt_pod(L, 1, &o);
  preempt_number(L, 1, "interval", &o.interval);
  preempt_number(L, 1, "grace", &o.grace);
  preempt_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->p = NULL;
  luaL_getmetatable(L, PREEMPT_MT);
  lua_setmetatable(L, -2);
  tm_lua_check(L, tm_preempt_open(&o, &b->p, &err), &err);
  return 1;
}

/* watcher:get(n) -> text, name of the signal or nil; nothing: not that many yet */
static int preempt_get(lua_State *L) {
  preempt_box *b = luaL_checkudata(L, 1, PREEMPT_MT);
  tm_preempt_event e;
  lua_Integer n = luaL_checkinteger(L, 2);
  if (!b->p || n < 1 || !tm_preempt_get(b->p, (uint64_t)n, &e)) return 0;
  lua_pushstring(L, e.text);
  if (!e.signal) return 1;
  lua_pushstring(L, tm_preempt_signal_name(e.signal));
  return 2;
}

/* --- the board --- */

/* core.departure(n) -> {number, task, why, cut, gone}, the first after number n */
static int board_next(lua_State *L) {
  tm_departure d;
  lua_Integer n = luaL_checkinteger(L, 1);
  if (n < 0 || !tm_board_next(tm_lua_ctx(L)->board, (uint64_t)n, &d)) return 0;
  lua_createtable(L, 0, 5);
  int t = lua_gettop(L);
  tm_lua_set_int(L, t, "number", (int64_t)d.number);
  lua_pushstring(L, d.task);
  lua_setfield(L, t, "task");
  lua_pushstring(L, d.why);
  lua_setfield(L, t, "why");
  lua_pushboolean(L, d.cut);
  lua_setfield(L, t, "cut");
  lua_pushboolean(L, d.gone);
  lua_setfield(L, t, "gone");
  return 1;
}

/* core.departures() -> how many were told */
static int board_count(lua_State *L) {
  tm_lua_push_int64(L, (int64_t)tm_board_count(tm_lua_ctx(L)->board));
  return 1;
}

/* core.departures_left() -> how many processes that said so have not gone yet */
static int board_left(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  int left = tm_board_look(ctx->board, &ctx->cancel);
  if (tm_cancelled(&ctx->cancel)) return tm_lua_fail(L, TM_ECANCELLED, "interrupted");
  lua_pushinteger(L, left);
  return 1;
}

void tm_lua_open_preempt(lua_State *L, int core) {
  static const luaL_Reg methods[] = {
      {"get", preempt_get}, {"close", preempt_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"preempt", preempt_open},
                                       {"departure", board_next},
                                       {"departures", board_count},
                                       {"departures_left", board_left},
                                       {NULL, NULL}};
  tm_lua_new_class(L, PREEMPT_MT, methods, preempt_close);
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
