/*
 * convert.h - Lua values to tensors and back.
 *
 * Numbers, booleans, strings and nested lists of one of these become tensors.  Without
 * a wanted dtype numbers are float32, booleans bool, strings string.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_CONVERT_H
#define TM_LUA_CONVERT_H

#include "base/buf.h"
#include "lua/value.h"

/* A Lua value at i (number, boolean, string, nested list) as a tensor.  Raises nothing
 * and calls nothing in Lua, so the caller may hold resources.  TM_EAGAIN: it holds
 * something else (a Tensor, a variable), nothing is filled. */
TM_CHECKED tm_status tm_lua_to_tensor(lua_State *L, int i, tm_dtype want,
                                      tm_tensor **out, tm_err *err);

/* Make the value at i a Tensor userdata, whatever stands in for one, and return its
 * value.  `want` (or NONE) is for numbers, and lists of them. */
tm_value *tm_lua_arg_value(lua_State *L, int i, tm_dtype want);

/* A dtype's name at i; raises and suggests. */
tm_dtype tm_lua_check_dtype(lua_State *L, int i);

void tm_lua_push_element(lua_State *L, const tm_view *v, int64_t k);
void tm_lua_push_table(lua_State *L, const tm_view *v);

void tm_lua_open_convert(lua_State *L, int core);

/* Push a buffer that the Lua stack owns, so that a raise in the middle loses nothing.
 * It may be released sooner. */
tm_buf *tm_lua_push_buf(lua_State *L, size_t max);

#endif
