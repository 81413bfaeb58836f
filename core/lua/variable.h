/*
 * variable.h - variables in the store of this process.  Threads: the state's.
 *
 * The Lua class (lua/tidemill/variable.lua) reads and assigns through ops; here is only
 * what makes and drops.
 */
#ifndef TM_LUA_VARIABLE_H
#define TM_LUA_VARIABLE_H

#include "lua/state.h"

/* Push a handle that drops the variable, wherever it lives, when it is collected.  uid
 * 0: nothing yet; tm_lua_set_variable says it once the variable exists. */
void tm_lua_push_variable(lua_State *L, uint64_t uid);
void tm_lua_set_variable(lua_State *L, int i, uint64_t uid);

/* The list of sizes at i, all known. */
void tm_lua_check_sizes(lua_State *L, int i, tm_shape *s);
/* The initializer at i: { kind, a, b, seed }, or a Tensor (borrowed). */
void tm_lua_check_init(lua_State *L, int i, tm_init *in);

void tm_lua_open_variable(lua_State *L, int core);

#endif
