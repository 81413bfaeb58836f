/*
 * cluster.h - sessions, coordinators and remote values as userdata.
 *
 * lua/tidemill/distribute/ is the Lua side.  A coordinator keeps its session alive, a
 * remote value needs neither.
 *
 * Threads: the state's; C threads behind them never call Lua.
 */
#ifndef TM_LUA_CLUSTER_H
#define TM_LUA_CLUSTER_H

#include "lua/state.h"

void tm_lua_open_cluster(lua_State *L, int core);

#endif
