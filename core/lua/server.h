/* server.h - task servers as userdata: core.server.  Threads: the state's. */
#ifndef TM_LUA_SERVER_H
#define TM_LUA_SERVER_H

#include "lua/state.h"

void tm_lua_open_server(lua_State *L, int core);

#endif
