/*
 * attr.h - Lua values as attributes of ops.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_ATTR_H
#define TM_LUA_ATTR_H

#include "lua/state.h"

/* The value at i as the attribute that `p` declares; nil leaves it absent.  Raises
 * nothing. */
TM_CHECKED tm_status tm_lua_to_attr(lua_State *L, int i, const tm_param *p, tm_attr *a,
                                    tm_err *err);
/* The kind may be given as a list. */
bool tm_lua_attr_is_list(tm_attr_kind kind);

#endif
