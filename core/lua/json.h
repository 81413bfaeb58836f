/*
 * json.h - JSON and Lua values (jansson): core.json_decode(text), core.json_encode(x).
 *
 * Lists are arrays, tables with string keys objects, null is nil.  Threads: the
 * state's.
 */
#ifndef TM_LUA_JSON_H
#define TM_LUA_JSON_H

#include <jansson.h>

#include "lua/compat.h"

/* Push a userdata that will own a document: *box is taken when it is collected. */
json_t **tm_lua_json_box(lua_State *L);
/* Push a document as Lua values. */
void tm_lua_push_json(lua_State *L, json_t *v);
/* The value at i as a document, which the caller owns; NULL: it holds something else,
 * *why says what.  Raises nothing. */
json_t *tm_lua_to_json(lua_State *L, int i, const char **why);

void tm_lua_open_json(lua_State *L, int core);

#endif
