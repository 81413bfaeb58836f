#include "lua/cluster_restore.h"

#include <string.h>

#include "cluster/session.h"
#include "lua/cluster_create.h"
#include "lua/route.h"

/*
 * Design.  lua/tidemill/distribute/restoring.lua decides what is done when; this is the
 * way there.  An eager op that a ps does not answer ends up in state_mend, which runs
 * the hook under pcall: an error of Lua's comes back as the status of the exchange, so
 * nothing jumps over the core.
 */

int tm_lua_check_ps_failure(lua_State *L, int i) {
  if (lua_isnoneornil(L, i)) return TM_PS_RAISE;
  const char *what = luaL_checkstring(L, i);
  if (strcmp(what, "restore") == 0) return TM_PS_RESTORE;
  if (strcmp(what, "restore_shards") == 0) return TM_PS_RESTORE_SHARDS;
  return tm_lua_fail(L, TM_EINVAL, "on_ps_failure \"%s\"", what);
}

/* session:lost() -> an error object that names the ps, or nil */
int tm_lua_session_lost(lua_State *L) {
  tm_err why;
  tm_err_clear(&why);
  if (!tm_session_lost(tm_lua_check_session(L, 1)->s, &why)) return 0;
  tm_lua_push_error(L, TM_EUNAVAILABLE, &why);
  return 1;
}

/* session:suspect(task): a request to it failed; nil: what began anew begins again */
int tm_lua_session_suspect(lua_State *L) {
  tm_session_suspect(tm_lua_check_session(L, 1)->s, luaL_optstring(L, 2, NULL));
  return 0;
}

/* session:await(seconds) -> are all ps there again? */
int tm_lua_session_await(lua_State *L) {
  tm_lua_session *b = tm_lua_check_session(L, 1);
  double seconds = luaL_checknumber(L, 2);
  tm_err err;
  tm_err_clear(&err);
  tm_status s =
      tm_session_await(b->s, (int64_t)(seconds * 1e9), &tm_lua_ctx(L)->cancel, &err);
  if (s != TM_ETIMEOUT) tm_lua_check(L, s, &err);
  lua_pushboolean(L, s == TM_OK);
  return 1;
}

/* { { uid, name, shards = { ps of shard 1, ... }, lossy }, ... } */
static void push_recipes(lua_State *L, tm_session *s) {
  tm_var_info *v;
  bool lossy;
  lua_newtable(L);
  for (size_t i = 0; tm_session_recipe(s, i, &v, &lossy); i++) {
    lua_createtable(L, 0, 4);
    int t = lua_gettop(L);
    tm_lua_set_int(L, t, "uid", (int64_t)v->uid);
    lua_pushstring(L, v->name);
    lua_setfield(L, t, "name");
    lua_pushboolean(L, lossy);
    lua_setfield(L, t, "lossy");
    lua_createtable(L, v->nshard, 0);
    for (int32_t k = 0; k < v->nshard; k++) {
      tm_lua_push_int64(L, v->shard[k].ps);
      lua_rawseti(L, -2, k + 1);
    }
    lua_setfield(L, t, "shards");
    lua_rawseti(L, -2, (int)i + 1);
  }
}

/* session:remake() -> { [ps from 0] = true where it began anew }, what was made */
int tm_lua_session_remake(lua_State *L) {
  tm_lua_session *b = tm_lua_check_session(L, 1);
  int32_t n = tm_session_ps(b->s);
  bool *fresh = lua_newuserdatauv(L, (size_t)n * sizeof *fresh, 0);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_session_remake(b->s, fresh, &err), &err);
  lua_newtable(L);
  for (int32_t k = 0; k < n; k++) {
    if (!fresh[k]) continue;
    lua_pushboolean(L, true);
    lua_rawseti(L, -2, k);
  }
  push_recipes(L, b->s);
  return 2;
}

/* --- moments --- */

#define MOMENT_MT "tm.core.Moment"

static int moment_gc(lua_State *L) {
  tm_moment **m = luaL_checkudata(L, 1, MOMENT_MT);
  tm_moment_free(*m);
  *m = NULL;
  return 0;
}

tm_moment **tm_lua_new_moment(lua_State *L) {
  tm_moment **m = lua_newuserdatauv(L, sizeof *m, 0);
  *m = NULL;
  luaL_setmetatable(L, MOMENT_MT);
  return m;
}

void tm_lua_open_moments(lua_State *L) {
  static const luaL_Reg none[] = {{NULL, NULL}};
  tm_lua_new_class(L, MOMENT_MT, none, moment_gc);
}

/* session:moment() -> what is done now, without tokens */
int tm_lua_session_moment(lua_State *L) {
  tm_lua_session *b = tm_lua_check_session(L, 1);
  tm_moment **m = tm_lua_new_moment(L);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_moment_note(b->s, m, &err), &err);
  return 1;
}

/* session:rewind(fresh, moment or nil) -> how many functions are lost by it */
int tm_lua_session_rewind(lua_State *L) {
  tm_lua_session *b = tm_lua_check_session(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  tm_moment **m = lua_isnoneornil(L, 3) ? NULL : luaL_checkudata(L, 3, MOMENT_MT);
  int32_t n = tm_session_ps(b->s);
  bool *fresh = lua_newuserdatauv(L, (size_t)n * sizeof *fresh, 0);
  for (int32_t k = 0; k < n; k++) {
    lua_rawgeti(L, 2, k);
    fresh[k] = !lua_isnil(L, -1);
    lua_pop(L, 1);
  }
  uint64_t lost;
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_session_rewind(b->s, m ? *m : NULL, fresh, &lost, &err);
  tm_lua_check(L, s, &err);
  tm_lua_push_int64(L, (int64_t)lost);
  return 1;
}

/* session:go_on() -> does training go on?  Not when another ps is lost. */
int tm_lua_session_go_on(lua_State *L) {
  bool on;
  tm_session_go_on(tm_lua_check_session(L, 1)->s, &on);
  lua_pushboolean(L, on);
  return 1;
}

/* --- eager ops --- */

/* The error object on the top into err. */
static tm_status restore_error(lua_State *L, tm_err *err) {
  tm_status s = TM_EUNKNOWN;
  const char *text = "an error while restoring";
  char task[sizeof err->task] = "";
  int top = lua_gettop(L);
  if (lua_type(L, top) == LUA_TTABLE) {
    lua_getfield(L, top, "code");
    lua_getfield(L, top, "message");
    lua_getfield(L, top, "task");
    if (lua_isstring(L, -3)) s = tm_status_of_name(lua_tostring(L, -3));
    if (lua_isstring(L, -2)) text = lua_tostring(L, -2);
    if (lua_isstring(L, -1)) strncpy(task, lua_tostring(L, -1), sizeof task - 1);
  } else if (lua_isstring(L, top)) {
    text = lua_tostring(L, top);
  }
  if (err) {
    tm_err_clear(err);
    memcpy(err->task, task, sizeof task);
  }
  s = tm_fail(err, s == TM_OK ? TM_EUNKNOWN : s, "%s", text);
  lua_settop(L, top);
  return s;
}

/* session:vars() -> what tells its variables from others' */
int tm_lua_session_vars(lua_State *L) {
  lua_pushlightuserdata(L, tm_session_vars(tm_lua_check_session(L, 1)->s));
  return 1;
}

/* hooks.mend(vars, task) -> was anything restored? */
static bool state_mend(void *ud, tm_vars *v, tm_status *s, tm_err *err) {
  tm_lua *ctx = ud;
  lua_State *L = ctx->running;
  if (!L || !lua_checkstack(L, 8)) return false;
  int top = lua_gettop(L);
  bool again = false;
  tm_lua_push_hook(L, "mend");
  if (!lua_isnil(L, -1)) {
    lua_pushlightuserdata(L, v);
    lua_pushstring(L, err ? err->task : "");
    if (lua_pcall(L, 2, 1, 0))
      *s = restore_error(L, err);
    else
      again = lua_toboolean(L, -1);
  }
  lua_settop(L, top);
  return again;
}

void tm_lua_open_restore(tm_lua *ctx) {
  tm_router_set_mend(ctx->router, state_mend, ctx);
}
