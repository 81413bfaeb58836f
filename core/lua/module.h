/*
 * module.h - luaopen_tidemill_core: the C half of `require "tidemill"`.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_MODULE_H
#define TM_LUA_MODULE_H

#include "lua/state.h"

#define TM_VERSION "0.1.0"

int luaopen_tidemill_core(lua_State *L);

#endif
