/*
 * summary.h - writers of event files as userdata.
 *
 * lua/tidemill/summary.lua is the Lua side.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_SUMMARY_H
#define TM_LUA_SUMMARY_H

#include "lua/state.h"

void tm_lua_open_summary(lua_State *L, int core);

#endif
