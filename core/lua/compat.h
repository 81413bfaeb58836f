/*
 * compat.h - what Lua 5.4 has and LuaJIT (5.1) has not, under 5.4's names.
 *
 * Only what the binding uses.  Where the two differ in meaning the function has a
 * name of ours, tm_lua_*.
 *
 * Threads: as Lua: one thread a state.
 */
#ifndef TM_LUA_COMPAT_H
#define TM_LUA_COMPAT_H

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#if LUA_VERSION_NUM < 502

#define lua_rawlen(L, i)             lua_objlen(L, i)
#define lua_newuserdatauv(L, n, nuv) ((void)(nuv), lua_newuserdata(L, n))
#ifndef LUA_OK
#define LUA_OK 0
#endif

static inline int lua_absindex(lua_State *L, int i) {
  return i > 0 || i <= LUA_REGISTRYINDEX ? i : lua_gettop(L) + i + 1;
}

static inline void lua_rawsetp(lua_State *L, int i, const void *p) {
  i = lua_absindex(L, i);
  lua_pushlightuserdata(L, (void *)(uintptr_t)p);
  lua_insert(L, -2);
  lua_rawset(L, i);
}

static inline int lua_rawgetp(lua_State *L, int i, const void *p) {
  i = lua_absindex(L, i);
  lua_pushlightuserdata(L, (void *)(uintptr_t)p);
  lua_rawget(L, i);
  return lua_type(L, -1);
}

/* Lua's own tostring: it knows __tostring. */
static inline const char *luaL_tolstring(lua_State *L, int i, size_t *n) {
  i = lua_absindex(L, i);
  lua_getglobal(L, "tostring");
  lua_pushvalue(L, i);
  lua_call(L, 1, 1);
  return lua_tolstring(L, -1, n);
}

#endif

/* The value at i is a number with an integral value that fits; strings are not
 * numbers here. */
static inline bool tm_lua_integer(lua_State *L, int i, int64_t *out) {
  if (lua_type(L, i) != LUA_TNUMBER) return false;
#if LUA_VERSION_NUM >= 503
  int ok;
  *out = lua_tointegerx(L, i, &ok);
  return ok != 0;
#else
  double x = lua_tonumber(L, i);
  if (!(x >= -9223372036854775808.0 && x < 9223372036854775808.0)) return false;
  if (x != floor(x)) return false;
  *out = (int64_t)x;
  return true;
#endif
}

/* An integer is an integer in Lua 5.4; LuaJIT has doubles only. */
static inline void tm_lua_push_int64(lua_State *L, int64_t x) {
#if LUA_VERSION_NUM >= 503
  lua_pushinteger(L, x);
#else
  lua_pushnumber(L, (double)x);
#endif
}

/* A table without the raising of lua_next on bad keys; typed rawgeti. */
static inline int tm_lua_rawgeti(lua_State *L, int t, int64_t i) {
#if LUA_VERSION_NUM >= 503
  return lua_rawgeti(L, t, i);
#else
  lua_rawgeti(L, t, (int)i);
  return lua_type(L, -1);
#endif
}

#endif
