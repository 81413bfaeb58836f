/*
 * index.h - subscripts and slices: positions of Lua (from 1, -1 the last) to those of
 * C.  A tensor has t[i], t:slice{...}, t:narrow(axis, first, length), t:select(axis,
 * i).
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_INDEX_H
#define TM_LUA_INDEX_H

#include "lua/value.h"

/* __index of a Tensor at 1 with a key at 2 that is no string. */
int tm_lua_subscript(lua_State *L);

void tm_lua_open_index(lua_State *L, int core);

#endif
