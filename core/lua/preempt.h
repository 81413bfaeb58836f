/*
 * preempt.h - preemption watchers as userdata, and the board of tasks that leave.
 *
 * lua/tidemill/distribute/preemption.lua is the Lua side.
 *
 * Threads: the state's; a watcher's thread never calls Lua.
 */
#ifndef TM_LUA_PREEMPT_H
#define TM_LUA_PREEMPT_H

#include "lua/state.h"

void tm_lua_open_preempt(lua_State *L, int core);

#endif
