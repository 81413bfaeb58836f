#include "lua/safetensors.h"

#include "ckpt/safetensors.h"
#include "lua/ckpt.h"
#include "lua/convert.h"
#include "lua/state.h"
#include "lua/value.h"

/*
 * Design.  The open file is a userdata that is pushed closed.  Entries of dtypes that
 * this project has not are listed under the file's own name for them.
 */
#define FILE_MT "tm.core.Safetensors"

typedef struct st_box {
  tm_st_file *f;
} st_box;

static tm_st_file *st_check(lua_State *L) {
  st_box *b = luaL_checkudata(L, 1, FILE_MT);
  if (!b->f) tm_lua_fail(L, TM_EPRECOND, "this file is closed");
  return b->f;
}

/* safetensors(path) */
static int st_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  st_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->f = NULL;
  luaL_getmetatable(L, FILE_MT);
  lua_setmetatable(L, -2);
  tm_status s = tm_st_open(path, &b->f, &err);
  return s ? tm_lua_ckpt_answer(L, s, &err) : 1;
}

static int st_close(lua_State *L) {
  st_box *b = luaL_checkudata(L, 1, FILE_MT);
  tm_st_close(b->f);
  b->f = NULL;
  return 0;
}

/* file:tensors() -> list of { name, shape, dtype } */
static int st_tensors(lua_State *L) {
  const tm_st_file *f = st_check(L);
  size_t n = tm_st_count(f);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    const tm_st_entry *e = tm_st_at(f, i);
    lua_createtable(L, 0, 3);
    lua_pushstring(L, e->name);
    lua_setfield(L, -2, "name");
    tm_lua_push_shape(L, &e->shape);
    lua_setfield(L, -2, "shape");
    lua_pushstring(L, e->dtype ? tm_dtype_name(e->dtype) : e->type);
    lua_setfield(L, -2, "dtype");
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

/* The entry of the name at 2, its rows from..from+n-1 (arguments 3 and 4; all). */
static tm_status st_rows(lua_State *L, const tm_st_file *f, const tm_st_entry **e,
                         int64_t *from, int64_t *n, tm_err *err) {
  const char *name = luaL_checkstring(L, 2);
  *e = tm_st_find(f, name);
  if (!*e) return tm_fail(err, TM_ENOTFOUND, "the file has no \"%.300s\"", name);
  if (!(*e)->dtype)
    return tm_fail(err, TM_EUNIMPL, "\"%.300s\" is %s, which tidemill has not", name,
                   (*e)->type);
  int64_t rows = (*e)->shape.rank ? (*e)->shape.dim[0] : 1;
  *from = 0;
  *n = rows;
  if (!lua_isnoneornil(L, 4) &&
      (!tm_lua_integer(L, 3, from) || !tm_lua_integer(L, 4, n)))
    return tm_lua_fail(L, TM_EINVAL, "read: first row and rows are numbers");
  if (*from < 0 || *n < 0 || *from > rows || *n > rows - *from)
    return tm_fail(err, TM_ERANGE, "\"%.300s\" has no such rows", name);
  return TM_OK;
}

/* file:read(name, first, rows) -> Tensor; without rows all of it */
static int st_read(lua_State *L) {
  const tm_st_file *f = st_check(L);
  const tm_st_entry *e;
  int64_t from = 0, n = 0;
  tm_err err;
  tm_err_clear(&err);
  tm_status s = st_rows(L, f, &e, &from, &n, &err);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_shape shape = e->shape;
  uint64_t rows = shape.rank ? (uint64_t)shape.dim[0] : 1;
  uint64_t row = rows ? (e->end - e->begin) / rows : 0;
  if (shape.rank) shape.dim[0] = n;
  tm_tensor *x = NULL;
  s = tm_tensor_new(e->dtype, &shape, &x, &err);
  if (!s)
    s = tm_st_read(f, e, (uint64_t)from * row, x->v.data, (size_t)((uint64_t)n * row),
                   &err);
  tm_value *v = NULL;
  if (!s) s = tm_value_of_tensor(x, &v);
  tm_tensor_unref(x);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  tm_lua_adopt(L, b, v);
  return 1;
}

void tm_lua_open_safetensors(lua_State *L, int core) {
  static const luaL_Reg methods[] = {
      {"tensors", st_tensors}, {"read", st_read}, {"close", st_close}, {NULL, NULL}};
  luaL_newmetatable(L, FILE_MT);
  lua_pushcfunction(L, st_close);
  lua_setfield(L, -2, "__gc");
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  lua_pushcfunction(L, st_open);
  lua_setfield(L, core, "safetensors");
}
