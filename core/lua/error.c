#include "lua/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lua/state.h"

/*
 * Design.  The object is a plain table, so that Lua code can make one too
 * (errors.lua) and a handler can read its fields without a call.  The traceback is
 * taken where the error is raised: a pcall far above could not see it any more.
 */

static void error_set(lua_State *L, const char *field, const char *text) {
  if (!text[0]) return;
  lua_pushstring(L, text);
  lua_setfield(L, -2, field);
}

void tm_lua_push_error(lua_State *L, tm_status s, const tm_err *err) {
  luaL_checkstack(L, 4, "error object");
  lua_newtable(L);
  bool filled = err && err->code != TM_OK;
  if (filled) s = err->code;
  error_set(L, "code", tm_status_name(s));
  const char *text = s == TM_ENOMEM ? "out of memory" : tm_status_name(s);
  error_set(L, "message", filled && err->msg[0] ? err->msg : text);
  if (filled) {
    error_set(L, "task", err->task);
    error_set(L, "op", err->op);
    if (err->step >= 0) {
      tm_lua_push_int64(L, err->step);
      lua_setfield(L, -2, "step");
    }
  }
  luaL_getmetatable(L, TM_LUA_ERROR_MT);
  lua_setmetatable(L, -2);
}

/* An interrupt reaches the script by this error: it is not raised once more at once. */
static void error_of_interrupt(lua_State *L, tm_status s) {
  tm_lua *ctx = s == TM_ECANCELLED ? tm_lua_ctx(L) : NULL;
  if (ctx && tm_cancelled(&ctx->cancel)) ctx->told = true;
}

int tm_lua_raise(lua_State *L, tm_status s, const tm_err *err) {
  error_of_interrupt(L, s);
  tm_lua_push_error(L, s, err);
  luaL_traceback(L, L, NULL, 1);
  lua_setfield(L, -2, "traceback");
  return lua_error(L);
}

int tm_lua_fail(lua_State *L, tm_status s, const char *fmt, ...) {
  tm_err err;
  tm_err_clear(&err);
  char text[sizeof err.msg];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  tm_status r = tm_fail(&err, s, "%s", text);
  return tm_lua_raise(L, r, &err);
}

void tm_lua_check(lua_State *L, tm_status s, const tm_err *err) {
  if (s != TM_OK) tm_lua_raise(L, s, err);
}

/* Until errors.lua brings a better one: "code: message". */
static int error_tostring(lua_State *L) {
  lua_getfield(L, 1, "code");
  lua_getfield(L, 1, "message");
  lua_pushfstring(L, "%s: %s", lua_tostring(L, -2), lua_tostring(L, -1));
  return 1;
}

void tm_lua_open_error(lua_State *L, int core) {
  luaL_newmetatable(L, TM_LUA_ERROR_MT);
  lua_pushcfunction(L, error_tostring);
  lua_setfield(L, -2, "__tostring");
  lua_setfield(L, core, "Error");
}
