/*
 * error.h - failures of the core as Lua error objects.
 *
 * An error object is a table { code, message, task, op, step, traceback } whose
 * metatable (core.Error) has __tostring from lua/tidemill/errors.lua.  Raising
 * longjmps, so a caller holds nothing but what the Lua stack owns.
 *
 *     tm_err err;
 *     tm_err_clear(&err);
 *     tm_lua_check(L, tm_something(x, &err), &err);
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_ERROR_H
#define TM_LUA_ERROR_H

#include "base/status.h"
#include "lua/compat.h"

#define TM_LUA_ERROR_MT "tm.Error"

/* Push the object of a failure; `s` is used where err was not filled. */
void tm_lua_push_error(lua_State *L, tm_status s, const tm_err *err);
/* Raise it.  Returns never; the int is for `return`. */
int tm_lua_raise(lua_State *L, tm_status s, const tm_err *err);
/* Raise a new one. */
int tm_lua_fail(lua_State *L, tm_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Raise unless s is TM_OK. */
void tm_lua_check(lua_State *L, tm_status s, const tm_err *err);

void tm_lua_open_error(lua_State *L, int core);

#endif
