#include "lua/json.h"

#include <jansson.h>

/*
 * Design.  The parsed document is held by a userdata while it is turned into tables, so
 * a raise (out of memory) leaks nothing.  null becomes nil; jansson bounds the nesting.
 */
#define JSON_MT "tm.core.Json"

typedef struct json_box {
  json_t *root;
} json_box;

static int json_gc(lua_State *L) {
  json_box *b = lua_touserdata(L, 1);
  json_decref(b->root);
  b->root = NULL;
  return 0;
}

static void json_push(lua_State *L, json_t *v);

static void json_push_object(lua_State *L, json_t *v) {
  lua_createtable(L, 0, (int)json_object_size(v));
  for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) {
    json_push(L, json_object_iter_value(it));
    lua_setfield(L, -2, json_object_iter_key(it));
  }
}

static void json_push_array(lua_State *L, json_t *v) {
  lua_createtable(L, (int)json_array_size(v), 0);
  for (size_t i = 0; i < json_array_size(v); i++) {
    json_push(L, json_array_get(v, i));
    lua_rawseti(L, -2, (int)i + 1);
  }
}

static void json_push(lua_State *L, json_t *v) {
  luaL_checkstack(L, 8, "JSON");
  switch (json_typeof(v)) {
    case JSON_OBJECT:
      json_push_object(L, v);
      return;
    case JSON_ARRAY:
      json_push_array(L, v);
      return;
    case JSON_STRING:
      lua_pushlstring(L, json_string_value(v), json_string_length(v));
      return;
    case JSON_INTEGER:
      tm_lua_push_int64(L, json_integer_value(v));
      return;
    case JSON_REAL:
      lua_pushnumber(L, json_real_value(v));
      return;
    case JSON_TRUE:
    case JSON_FALSE:
      lua_pushboolean(L, json_is_true(v));
      return;
    case JSON_NULL:
      break;
  }
  lua_pushnil(L);
}

/* json_decode(text) -> value, or nil and what is wrong */
static int json_decode(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  json_error_t why;
  json_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->root = NULL;
  luaL_getmetatable(L, JSON_MT);
  lua_setmetatable(L, -2);
  b->root = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
  if (!b->root) {
    lua_pushnil(L);
    lua_pushfstring(L, "line %d, column %d: %s", why.line, why.column, why.text);
    return 2;
  }
  json_push(L, b->root);
  return 1;
}

void tm_lua_open_json(lua_State *L, int core) {
  luaL_newmetatable(L, JSON_MT);
  lua_pushcfunction(L, json_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  lua_pushcfunction(L, json_decode);
  lua_setfield(L, core, "json_decode");
}
