/*
 * value.h - tm.Tensor: the userdata around a tm_value, eager or symbolic.
 *
 * Userdata first, closed, then the value:
 *
 *     tm_lua_tensor *b = tm_lua_new_tensor(L);          -- pushed, empty
 *     tm_lua_check(L, make_value(&v, &err), &err);
 *     tm_lua_adopt(L, b, v);                            -- takes the reference
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_VALUE_H
#define TM_LUA_VALUE_H

#include "lua/state.h"

#define TM_LUA_TENSOR_MT "tm.Tensor"

typedef struct tm_lua_tensor {
  tm_value *v;   /* a reference; NULL: empty */
  int64_t bytes; /* that this one was counted for */
} tm_lua_tensor;

tm_lua_tensor *tm_lua_new_tensor(lua_State *L);
void tm_lua_adopt(lua_State *L, tm_lua_tensor *b, tm_value *v);
/* Push a value of a tensor that the caller holds and keeps. */
void tm_lua_push_tensor(lua_State *L, tm_tensor *t);

/* NULL when the value at i is no Tensor. */
tm_value *tm_lua_test_value(lua_State *L, int i);
/* Raises when argument i is no Tensor (variables are read). Replaces the argument by
 * the Tensor. */
tm_value *tm_lua_check_value(lua_State *L, int i);
/* The same, and raises for a symbolic one: `what` cannot be done while tracing. */
tm_value *tm_lua_check_eager(lua_State *L, int i, const char *what);

/* The value at i is a table whose metatable has this field (left on the stack). */
bool tm_lua_metafield(lua_State *L, int i, const char *field);

/* { 2, 3 }; unknown sizes are -1. */
void tm_lua_push_shape(lua_State *L, const tm_shape *s);

void tm_lua_open_value(lua_State *L, int core);

#endif
