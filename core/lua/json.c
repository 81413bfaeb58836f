#include "lua/json.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "lua/convert.h"

/*
 * Design.  The parsed document is held by a userdata while it is turned into tables, so
 * a raise (out of memory) leaks nothing.  null becomes nil; jansson bounds the nesting.
 * On the way back nothing raises, so that the half-built document is not lost.
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

static void json_push_object(lua_State *L, json_t *v) {
  lua_createtable(L, 0, (int)json_object_size(v));
  for (void *it = json_object_iter(v); it; it = json_object_iter_next(v, it)) {
    tm_lua_push_json(L, json_object_iter_value(it));
    lua_setfield(L, -2, json_object_iter_key(it));
  }
}

static void json_push_array(lua_State *L, json_t *v) {
  lua_createtable(L, (int)json_array_size(v), 0);
  for (size_t i = 0; i < json_array_size(v); i++) {
    tm_lua_push_json(L, json_array_get(v, i));
    lua_rawseti(L, -2, (int)i + 1);
  }
}

void tm_lua_push_json(lua_State *L, json_t *v) {
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

json_t **tm_lua_json_box(lua_State *L) {
  json_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->root = NULL;
  luaL_getmetatable(L, JSON_MT);
  lua_setmetatable(L, -2);
  return &b->root;
}

/* json_decode(text) -> value, or nil and what is wrong */
static int json_decode(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  json_error_t why;
  json_t **root = tm_lua_json_box(L);
  *root = json_loadb(text, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
  if (!*root) {
    lua_pushnil(L);
    lua_pushfstring(L, "line %d, column %d: %s", why.line, why.column, why.text);
    return 2;
  }
  tm_lua_push_json(L, *root);
  return 1;
}

/* --- back --- */

enum { JSON_DEEPEST = 500, JSON_MAX_TEXT = 256 << 20 };

static json_t *json_value(lua_State *L, int i, int depth, const char **why);

static json_t *json_number(lua_State *L, int i, const char **why) {
  double x = lua_tonumber(L, i);
#if LUA_VERSION_NUM >= 503
  if (lua_isinteger(L, i)) return json_integer((json_int_t)lua_tointeger(L, i));
#else
  if (x == floor(x) && fabs(x) < 9007199254740992.0) return json_integer((json_int_t)x);
#endif
  if (!isfinite(x)) *why = "a number that is not finite";
  return isfinite(x) ? json_real(x) : NULL;
}

/* Whether the table at i has other keys than 1 to n. */
static bool json_has_more(lua_State *L, int i, size_t n) {
  size_t keys = 0;
  for (lua_pushnil(L); lua_next(L, i); lua_pop(L, 1)) keys++;
  return keys > n;
}

static json_t *json_list(lua_State *L, int i, int depth, const char **why) {
  size_t n = lua_rawlen(L, i);
  if (json_has_more(L, i, n)) {
    *why = "a table with keys of both kinds";
    return NULL;
  }
  json_t *list = json_array();
  for (size_t k = 1; list && k <= n; k++) {
    lua_rawgeti(L, i, (int)k);
    json_t *v = json_value(L, lua_gettop(L), depth + 1, why);
    lua_pop(L, 1);
    if (v && json_array_append_new(list, v) == 0) continue;
    json_decref(list);
    list = NULL;
  }
  return list;
}

/* The key below the top; NULL: JSON has no such keys. */
static const char *json_key(lua_State *L, const char **why) {
  size_t n;
  const char *key = lua_type(L, -2) == LUA_TSTRING ? lua_tolstring(L, -2, &n) : NULL;
  if (!key) *why = "a table with keys of both kinds";
  if (!key) return NULL;
  json_t *text = strlen(key) == n ? json_stringn(key, n) : NULL;
  if (!text) *why = "a key that is not UTF-8 or has a zero byte";
  json_decref(text);
  return text ? key : NULL;
}

static json_t *json_table(lua_State *L, int i, int depth, const char **why) {
  json_t *o = json_object();
  lua_pushnil(L);
  while (o && lua_next(L, i)) {
    json_t *v = NULL;
    const char *key = json_key(L, why);
    if (key) v = json_value(L, lua_gettop(L), depth + 1, why);
    lua_pop(L, 1);
    if (v && json_object_set_new_nocheck(o, key, v) == 0) continue;
    json_decref(o);
    o = NULL;
    lua_pop(L, 1);
  }
  return o;
}

/* Whether the table at i is a list: it has a first element. */
static bool json_is_list(lua_State *L, int i) {
  lua_rawgeti(L, i, 1);
  bool list = !lua_isnil(L, -1);
  lua_pop(L, 1);
  return list;
}

static json_t *json_value(lua_State *L, int i, int depth, const char **why) {
  size_t n;
  if (depth > JSON_DEEPEST || !lua_checkstack(L, 8)) {
    *why = "tables that are nested too deep";
    return NULL;
  }
  switch (lua_type(L, i)) {
    case LUA_TBOOLEAN:
      return json_boolean(lua_toboolean(L, i));
    case LUA_TNUMBER:
      return json_number(L, i, why);
    case LUA_TSTRING: {
      const char *p = lua_tolstring(L, i, &n);
      json_t *v = json_stringn(p, n);
      if (!v) *why = "a string that is not UTF-8";
      return v;
    }
    case LUA_TTABLE:
      return json_is_list(L, i) ? json_list(L, i, depth, why)
                                : json_table(L, i, depth, why);
    default:
      *why = luaL_typename(L, i);
      return NULL;
  }
}

json_t *tm_lua_to_json(lua_State *L, int i, const char **why) {
  *why = "memory ran out";
  return json_value(L, i < 0 ? lua_gettop(L) + i + 1 : i, 0, why);
}

static int json_put(const char *p, size_t n, void *ud) {
  return tm_buf_put(ud, p, n) == TM_OK ? 0 : -1;
}

/* json_encode(value) -> text, or nil and what cannot be written */
static int json_encode(lua_State *L) {
  const size_t flags =
      JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
  const char *why;
  luaL_checkany(L, 1);
  json_t **root = tm_lua_json_box(L);
  tm_buf *text = tm_lua_push_buf(L, JSON_MAX_TEXT);
  *root = tm_lua_to_json(L, 1, &why);
  if (!*root || json_dump_callback(*root, json_put, text, flags)) {
    lua_pushnil(L);
    lua_pushstring(L, why);
    return 2;
  }
  lua_pushlstring(L, (const char *)text->data, text->len);
  tm_buf_release(text);
  return 1;
}

void tm_lua_open_json(lua_State *L, int core) {
  luaL_newmetatable(L, JSON_MT);
  lua_pushcfunction(L, json_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  lua_pushcfunction(L, json_decode);
  lua_setfield(L, core, "json_decode");
  lua_pushcfunction(L, json_encode);
  lua_setfield(L, core, "json_encode");
}
