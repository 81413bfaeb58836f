#include "lua/cluster_create.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "lua/cluster_restore.h"
#include "lua/convert.h"
#include "lua/route.h"
#include "lua/value.h"
#include "lua/variable.h"

#define SESSION_MT "tm.core.Session"

void tm_lua_keep(lua_State *L, int obj, int kept) {
  obj = lua_absindex(L, obj);
#if LUA_VERSION_NUM >= 504
  lua_pushvalue(L, kept);
  lua_setiuservalue(L, obj, 1);
#else
  lua_createtable(L, 1, 0);
  lua_pushvalue(L, kept);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, obj);
#endif
}

void tm_lua_new_class(lua_State *L, const char *name, const luaL_Reg *methods,
                      lua_CFunction close) {
  luaL_newmetatable(L, name);
  lua_createtable(L, 0, 8);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pushcfunction(L, close);
  lua_setfield(L, -2, "__gc");
  lua_pushcfunction(L, close);
  lua_setfield(L, -2, "__close");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_pop(L, 1);
}

tm_lua_session *tm_lua_check_session(lua_State *L, int i) {
  tm_lua_session *b = luaL_checkudata(L, i, SESSION_MT);
  if (!b->s) tm_lua_fail(L, TM_EPRECOND, "this strategy is closed");
  return b;
}

static int session_close(lua_State *L) {
  tm_lua_session *b = luaL_checkudata(L, 1, SESSION_MT);
  if (!b->s) return 0;
  if (b->has_coordinator) tm_session_coordinator_close(b->s);
  tm_lua *ctx = tm_lua_ctx(L);
  if (ctx && ctx->router) tm_router_forget(ctx->router, tm_session_vars(b->s));
  tm_session_close(b->s);
  b->s = NULL;
  return 0;
}

/* --- opening --- */

static double opt_number(lua_State *L, const char *field, double dflt) {
  lua_getfield(L, 1, field);
  double x = lua_isnil(L, -1) ? dflt : luaL_checknumber(L, -1);
  lua_pop(L, 1);
  return x;
}

/* A list of strings at field into a userdata array (pushed, as the list is). */
static const char *const *opt_strings(lua_State *L, const char *field, int32_t *n) {
  lua_getfield(L, 1, field);
  if (lua_isnil(L, -1)) return NULL;
  luaL_checktype(L, -1, LUA_TTABLE);
  int list = lua_gettop(L);
  size_t len = lua_rawlen(L, list);
  if (len > TM_MAX_TASKS) tm_lua_fail(L, TM_EINVAL, "%s: too many tasks", field);
  const char **a = lua_newuserdatauv(L, (len + 1) * sizeof *a, 0);
  for (size_t i = 0; i < len; i++) {
    lua_rawgeti(L, list, (int)i + 1);
    a[i] = luaL_checkstring(L, -1);
    lua_pop(L, 1); /* the list keeps it */
  }
  *n = (int32_t)len;
  return a;
}

/* core.session{workers, ps} or {worker_addresses, ps_addresses, cluster_id, ...} */
static int session_open(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  tm_session_options o;
  memset(&o, 0, sizeof o);
  o.nworker = (int32_t)opt_number(L, "workers", 0);
  o.nps = (int32_t)opt_number(L, "ps", 0);
  o.threads = 1;
  o.board = tm_lua_ctx(L)->board;
  o.seed = tm_lua_ctx(L)->seed;
  o.cancel = &tm_lua_ctx(L)->cancel;
  o.heartbeat_interval = opt_number(L, "heartbeat_interval", 1);
  o.heartbeat_timeout = opt_number(L, "heartbeat_timeout", 10);
  o.connect_timeout = opt_number(L, "connect_timeout", 60);
  o.replicas = (int32_t)opt_number(L, "replicas", 0);
  o.chief_timeout = opt_number(L, "chief_timeout", 600);
  o.worker_timeout = opt_number(L, "worker_timeout", 0);
  o.staleness = (int64_t)opt_number(L, "staleness", 0);
  o.backup_workers = (int32_t)opt_number(L, "backup_workers", 0);
  lua_getfield(L, 1, "mode");
  const char *mode = luaL_optstring(L, -1, "async");
  o.mode = strcmp(mode, "sync") == 0  ? TM_MODE_SYNC
           : strcmp(mode, "ssp") == 0 ? TM_MODE_SSP
                                      : TM_MODE_ASYNC;
  o.worker_address = opt_strings(L, "worker_addresses", &o.nworker);
  o.ps_address = opt_strings(L, "ps_addresses", &o.nps);
  int32_t n = 0;
  o.worker_task = opt_strings(L, "worker_tasks", &n);
  if (o.worker_task && n != o.nworker) o.worker_task = NULL;
  o.ps_task = opt_strings(L, "ps_tasks", &n);
  if (o.ps_task && n != o.nps) o.ps_task = NULL;
  lua_getfield(L, 1, "on_ps_failure");
  o.on_ps_failure = (tm_ps_failure)tm_lua_check_ps_failure(L, -1);
  lua_getfield(L, 1, "cluster_id");
  snprintf(o.cluster_id, sizeof o.cluster_id, "%s", luaL_optstring(L, -1, ""));
  tm_lua_session *b = lua_newuserdatauv(L, sizeof *b, 1);
  b->s = NULL;
  b->has_coordinator = false;
  luaL_getmetatable(L, SESSION_MT);
  lua_setmetatable(L, -2);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_session_open(&o, &b->s, &err), &err);
  return 1;
}

/* --- variables --- */

/* shards: { {ps (from 0), offset, rows}, ... } at index i into info. */
static bool create_shards(lua_State *L, int i, tm_var_info *v) {
  for (int32_t k = 0; k < v->nshard; k++) {
    int64_t x[3] = {0, 0, 0};
    lua_rawgeti(L, i, k + 1);
    bool ok = lua_type(L, -1) == LUA_TTABLE;
    for (int f = 0; f < 3 && ok; f++) {
      lua_rawgeti(L, -1, f + 1);
      ok = tm_lua_integer(L, -1, &x[f]);
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (!ok) return false;
    v->shard[k] = (tm_shard_info){(int32_t)x[0], x[1], x[2]};
  }
  return true;
}

/* session:create(name, dtype, shape, shards, init, user) -> uid, handle.  init: a named
 * description, a Tensor (the whole value), or a list of Tensors (one a shard). */
static int session_create(lua_State *L) {
  tm_lua_session *b = tm_lua_check_session(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  const char *name = luaL_checkstring(L, 2);
  tm_dtype t = tm_lua_check_dtype(L, 3);
  tm_shape shape;
  tm_lua_check_sizes(L, 4, &shape);
  luaL_checktype(L, 5, LUA_TTABLE);
  int32_t nshard = (int32_t)lua_rawlen(L, 5), npiece = 0;
  tm_init init;
  memset(&init, 0, sizeof init);
  tm_tensor **piece = NULL;
  if (lua_type(L, 6) == LUA_TTABLE && lua_rawlen(L, 6) > 0) {
    npiece = (int32_t)lua_rawlen(L, 6);
    if (npiece != nshard) return tm_lua_fail(L, TM_EINVAL, "one value a shard, please");
    piece = lua_newuserdatauv(L, (size_t)npiece * sizeof *piece, 0);
    for (int32_t k = 0; k < npiece; k++) {
      lua_rawgeti(L, 6, k + 1);
      piece[k] =
          tm_lua_check_eager(L, lua_gettop(L), "the initial value of a variable")->t;
      lua_pop(L, 1); /* the list keeps it */
    }
  } else {
    tm_lua_check_init(L, 6, &init);
  }
  bool user = lua_toboolean(L, 7);
  uint64_t uid = tm_lua_new_uid();
  tm_lua_push_int64(L, (int64_t)uid);
  tm_lua_push_variable(L, 0);
  tm_err err;
  tm_err_clear(&err);
  tm_var_info *info;
  tm_status s = tm_var_info_new(uid, t, &shape, name, user, nshard, &info);
  if (s) return tm_lua_fail(L, s, "%s: %d shards", name, nshard);
  if (!create_shards(L, 5, info)) {
    tm_var_info_unref(info);
    return tm_lua_fail(L, TM_EINVAL, "%s: a shard is {ps, offset, rows}", name);
  }
  s = tm_session_create(b->s, info, &init, piece, &err);
  tm_var_info_unref(info);
  tm_lua_check(L, s, &err);
  tm_lua_check(L, tm_router_add(ctx->router, uid, tm_session_vars(b->s)), NULL);
  tm_lua_set_variable(L, -1, uid);
  return 2;
}

/* session:stop_tasks(): workers and ps end too; before close */
static int session_stop_tasks(lua_State *L) {
  tm_session_stop_tasks(tm_lua_check_session(L, 1)->s);
  return 0;
}

/* session:stop_task(name): that one ends too */
static int session_stop_task(lua_State *L) {
  tm_session_stop_task(tm_lua_check_session(L, 1)->s, luaL_checkstring(L, 2));
  return 0;
}

void tm_lua_open_session(lua_State *L, int core) {
  static const luaL_Reg session[] = {
      {"create", session_create},         {"coordinator", tm_lua_session_coordinator},
      {"stop_tasks", session_stop_tasks}, {"stop_task", session_stop_task},
      {"lost", tm_lua_session_lost},      {"suspect", tm_lua_session_suspect},
      {"await", tm_lua_session_await},    {"remake", tm_lua_session_remake},
      {"go_on", tm_lua_session_go_on},    {"vars", tm_lua_session_vars},
      {"moment", tm_lua_session_moment},  {"rewind", tm_lua_session_rewind},
      {"close", session_close},           {NULL, NULL}};
  tm_lua_open_restore(tm_lua_ctx(L));
  tm_lua_open_moments(L);
  tm_lua_new_class(L, SESSION_MT, session, session_close);
  lua_pushcfunction(L, session_open);
  lua_setfield(L, core, "session");
}
