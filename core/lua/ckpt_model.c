#include "lua/ckpt_model.h"

#include "base/mem.h"
#include "ckpt/sealed.h"
#include "ckpt/single.h"
#include "lua/ckpt.h"
#include "lua/convert.h"
#include "lua/json.h"
#include "lua/state.h"
#include "lua/value.h"
#include "lua/variable.h"

/* Design.  A single file keeps its writer (uservalue by the registry of its box's
 * environment is not there on LuaJIT): the box holds a reference in the registry. */
#define SINGLE_MT "tm.core.CheckpointSingle"

typedef struct single_box {
  tm_ckpt_single *s;
  int writer; /* reference in the registry */
} single_box;

int tm_lua_ckpt_attach(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  const char *why;
  tm_err err;
  tm_err_clear(&err);
  luaL_checktype(L, 2, LUA_TTABLE);
  json_t **root = tm_lua_json_box(L);
  *root = tm_lua_to_json(L, 2, &why);
  tm_status s = *root ? tm_ckpt_attach(w, *root, &err)
                      : tm_fail(&err, TM_EINVAL,
                                "the description of a model cannot hold %s", why);
  return tm_lua_ckpt_answer(L, s, &err);
}

int tm_lua_ckpt_document(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  json_t **root = tm_lua_json_box(L);
  tm_status s = tm_sealed_read(path, TM_CKPT_MODEL, root, &err);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  (void)json_object_del(*root, "crc32c"); /* the file's own */
  tm_lua_push_json(L, *root);
  return 1;
}

/* --- one file for all --- */

static int single_free(lua_State *L) {
  single_box *b = luaL_checkudata(L, 1, SINGLE_MT);
  tm_ckpt_single_free(b->s);
  b->s = NULL;
  luaL_unref(L, LUA_REGISTRYINDEX, b->writer);
  b->writer = LUA_NOREF;
  return 0;
}

static tm_ckpt_single *single_check(lua_State *L) {
  single_box *b = luaL_checkudata(L, 1, SINGLE_MT);
  if (!b->s) tm_lua_fail(L, TM_EPRECOND, "this file is closed");
  return b->s;
}

/* put(tensor) */
static int single_put(lua_State *L) {
  tm_ckpt_single *s = single_check(L);
  tm_value *v = tm_lua_check_eager(L, 2, "export");
  tm_err err;
  tm_err_clear(&err);
  return tm_lua_ckpt_answer(L, tm_ckpt_single_put(s, &v->t->v, &err), &err);
}

static int single_close(lua_State *L) {
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_ckpt_single_close(single_check(L), &err);
  single_free(L);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* { name =, dtype =, shape = } on the top; the texts stay, the table holds them. */
static void single_item(lua_State *L, tm_st_item *it) {
  lua_getfield(L, -1, "name");
  it->name = luaL_checkstring(L, -1);
  lua_getfield(L, -2, "dtype");
  it->dtype = tm_lua_check_dtype(L, lua_gettop(L));
  lua_getfield(L, -3, "shape");
  tm_lua_check_sizes(L, lua_gettop(L), &it->shape);
  lua_pop(L, 3);
}

int tm_lua_ckpt_single(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t n = lua_rawlen(L, 2);
  tm_err err;
  tm_err_clear(&err);
  tm_st_item *items = lua_newuserdatauv(L, (n + 1) * sizeof *items, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (int)i + 1);
    luaL_checktype(L, -1, LUA_TTABLE);
    single_item(L, &items[i]);
    lua_pop(L, 1);
  }
  single_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->s = NULL;
  b->writer = LUA_NOREF;
  luaL_getmetatable(L, SINGLE_MT);
  lua_setmetatable(L, -2);
  lua_pushvalue(L, 1);
  b->writer = luaL_ref(L, LUA_REGISTRYINDEX);
  tm_status s = tm_ckpt_single_open(w, items, n, &b->s, &err);
  return s ? tm_lua_ckpt_answer(L, s, &err) : 1;
}

void tm_lua_open_ckpt_model(lua_State *L) {
  static const luaL_Reg methods[] = {
      {"put", single_put}, {"close", single_close}, {NULL, NULL}};
  luaL_newmetatable(L, SINGLE_MT);
  lua_pushcfunction(L, single_free);
  lua_setfield(L, -2, "__gc");
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
}
