/* json.h - core.json_decode(text): JSON as Lua values (jansson).  Threads: the state's.
 */
#ifndef TM_LUA_JSON_H
#define TM_LUA_JSON_H

#include "lua/compat.h"

void tm_lua_open_json(lua_State *L, int core);

#endif
