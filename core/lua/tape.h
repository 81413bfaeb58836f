/*
 * tape.h - gradient tapes as userdata.  Threads: the state's.
 */
#ifndef TM_LUA_TAPE_H
#define TM_LUA_TAPE_H

#include "lua/state.h"

void tm_lua_open_tape(lua_State *L, int core);

#endif
