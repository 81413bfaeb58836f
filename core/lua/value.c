#include "lua/value.h"

#include <string.h>

#include "base/check.h"
#include "lua/convert.h"
#include "lua/index.h"

/*
 * Design.  A box holds one reference.  Fields that look like data (shape, dtype, rank,
 * size) are computed when asked for; everything else that is a string is looked up in
 * core.methods, which Lua fills (lua/tidemill/ops.lua), as it does with the arithmetic
 * metamethods.
 */
static const char value_methods_key;

enum { VALUE_SUMMARY_AFTER = 1000, VALUE_TEXT_MAX = 1 << 20 };

/* --- making --- */

tm_lua_tensor *tm_lua_new_tensor(lua_State *L) {
  tm_lua_tensor *b = lua_newuserdatauv(L, sizeof *b, 0);
  memset(b, 0, sizeof *b);
  luaL_getmetatable(L, TM_LUA_TENSOR_MT);
  lua_setmetatable(L, -2);
  return b;
}

void tm_lua_adopt(lua_State *L, tm_lua_tensor *b, tm_value *v) {
  b->v = v;
  if (!v->t || !v->t->storage) return;
  b->bytes = (int64_t)tm_view_bytes(&v->t->v);
  if (b->bytes) tm_lua_count_bytes(L, tm_lua_ctx(L), b->bytes);
}

void tm_lua_push_tensor(lua_State *L, tm_tensor *t) {
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_value *v;
  tm_lua_check(L, tm_value_of_tensor(t, &v), NULL);
  tm_lua_adopt(L, b, v);
}

static int value_gc(lua_State *L) {
  tm_lua_tensor *b = lua_touserdata(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  tm_value_unref(b->v);
  if (ctx && b->bytes) tm_lua_count_bytes(L, ctx, -b->bytes);
  b->v = NULL;
  b->bytes = 0;
  return 0;
}

/* --- checking --- */

tm_value *tm_lua_test_value(lua_State *L, int i) {
  tm_lua_tensor *b = luaL_testudata(L, i, TM_LUA_TENSOR_MT);
  return b ? b->v : NULL;
}

bool tm_lua_metafield(lua_State *L, int i, const char *field) {
  return lua_type(L, i) == LUA_TTABLE && luaL_getmetafield(L, i, field) != LUA_TNIL;
}

tm_value *tm_lua_check_value(lua_State *L, int i) {
  tm_value *v = tm_lua_test_value(L, i);
  if (v) return v;
  return tm_lua_arg_value(L, i, TM_DTYPE_NONE);
}

tm_value *tm_lua_check_eager(lua_State *L, int i, const char *what) {
  tm_value *v = tm_lua_check_value(L, i);
  if (v->t) return v;
  if (v->type.dtype == TM_DTYPE_NONE)
    tm_lua_fail(L, TM_EINVAL, "%s: this is an iterator, not a tensor", what);
  tm_lua_fail(L, TM_EINVAL,
              "%s: a tensor inside a traced function has no value yet; let the result "
              "depend on it with tm.cond or tm.where",
              what);
  return NULL;
}

/* --- fields --- */

void tm_lua_push_shape(lua_State *L, const tm_shape *s) {
  lua_createtable(L, s->rank, 0);
  for (int32_t i = 0; i < s->rank; i++) {
    tm_lua_push_int64(L, s->dim[i]);
    lua_rawseti(L, -2, i + 1);
  }
}

static int value_shape(lua_State *L, tm_value *v) {
  tm_lua_push_shape(L, &v->type.shape);
  return 1;
}

static int value_dtype(lua_State *L, tm_value *v) {
  if (v->type.dtype == TM_DTYPE_NONE)
    lua_pushliteral(L, "iterator");
  else
    lua_pushstring(L, tm_dtype_name(v->type.dtype));
  return 1;
}

static int value_rank(lua_State *L, tm_value *v) {
  lua_pushinteger(L, v->type.shape.rank);
  return 1;
}

static int value_symbolic(lua_State *L, tm_value *v) {
  lua_pushboolean(L, v->t == NULL);
  return 1;
}

static const struct {
  const char *name;
  int (*push)(lua_State *L, tm_value *v);
} value_fields[] = {
    {"shape", value_shape},
    {"dtype", value_dtype},
    {"rank", value_rank},
    {"symbolic", value_symbolic},
};

static int value_index(lua_State *L) {
  tm_lua_tensor *b = luaL_checkudata(L, 1, TM_LUA_TENSOR_MT);
  if (lua_type(L, 2) != LUA_TSTRING) return tm_lua_subscript(L);
  const char *name = lua_tostring(L, 2);
  for (size_t i = 0; i < TM_COUNT(value_fields); i++)
    if (strcmp(value_fields[i].name, name) == 0) return value_fields[i].push(L, b->v);
  lua_rawgetp(L, LUA_REGISTRYINDEX, &value_methods_key);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  return 1;
}

static int value_newindex(lua_State *L) {
  return tm_lua_fail(L, TM_EINVAL,
                     "a tensor cannot be changed: use a tm.Variable and assign");
}

static int value_len(lua_State *L) {
  tm_value *v = tm_lua_check_value(L, 1);
  if (v->type.shape.rank == 0)
    return tm_lua_fail(L, TM_EINVAL, "#: a scalar has no first axis");
  if (v->type.shape.dim[0] < 0)
    return tm_lua_fail(L, TM_EINVAL,
                       "#: the size of the first axis is not known while tracing: use "
                       "tm.shape_of(x)[1]");
  tm_lua_push_int64(L, v->type.shape.dim[0]);
  return 1;
}

static int value_size(lua_State *L) {
  tm_value *v = tm_lua_check_value(L, 1);
  tm_lua_push_int64(L, tm_shape_count(&v->type.shape));
  return 1;
}

static int value_item(lua_State *L) {
  tm_value *v = tm_lua_check_eager(L, 1, "item");
  if (tm_view_count(&v->t->v) != 1) {
    char text[128];
    return tm_lua_fail(L, TM_EINVAL, "item: a tensor of shape %s has not one element",
                       tm_shape_text(&v->type.shape, text, sizeof text));
  }
  tm_lua_push_element(L, &v->t->v, 0);
  return 1;
}

static int value_totable(lua_State *L) {
  tm_value *v = tm_lua_check_eager(L, 1, "totable");
  tm_lua_push_table(L, &v->t->v);
  return 1;
}

/* --- text --- */

static int value_symbolic_text(lua_State *L, tm_value *v) {
  char text[128];
  if (v->type.dtype == TM_DTYPE_NONE) {
    lua_pushliteral(L, "tm.Tensor (iterator)");
    return 1;
  }
  lua_pushfstring(L, "tm.Tensor (symbolic, %s, %s)",
                  tm_shape_text(&v->type.shape, text, sizeof text),
                  tm_dtype_name(v->type.dtype));
  return 1;
}

static int value_tostring(lua_State *L) {
  tm_value *v = tm_lua_check_value(L, 1);
  if (!v->t) return value_symbolic_text(L, v);
  tm_buf *b = tm_lua_push_buf(L, VALUE_TEXT_MAX);
  tm_lua_check(L, tm_tensor_text(&v->t->v, VALUE_SUMMARY_AFTER, b), NULL);
  lua_pushlstring(L, (const char *)b->data, b->len);
  tm_buf_release(b);
  return 1;
}

/* --- comparison --- */

/* The one number at i in its place, as Lua has it: integers stay exact. */
static void value_scalar(lua_State *L, int i) {
  if (lua_type(L, i) == LUA_TNUMBER) return;
  tm_value *v = tm_lua_check_value(L, i);
  if (!v->t)
    tm_lua_fail(L, TM_EINVAL,
                "a Lua comparison of tensors inside a traced function: they have no "
                "value yet; use tm.cond(a:less(b), f, g) or tm.where");
  if (tm_view_count(&v->t->v) != 1 || v->type.dtype == TM_STRING)
    tm_lua_fail(L, TM_EINVAL,
                "a Lua comparison needs tensors of one number: use a:less(b) for all "
                "elements");
  if (tm_dtype_is_number(v->type.dtype) && v->type.dtype != TM_BOOL)
    tm_lua_push_element(L, &v->t->v, 0);
  else
    lua_pushnumber(L, tm_view_get_f64(&v->t->v, 0));
  lua_replace(L, i);
}

static int value_lt(lua_State *L) {
  value_scalar(L, 1);
  value_scalar(L, 2);
#if LUA_VERSION_NUM >= 502
  lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLT));
#else
  lua_pushboolean(L, lua_tonumber(L, 1) < lua_tonumber(L, 2));
#endif
  return 1;
}

static int value_le(lua_State *L) {
  value_scalar(L, 1);
  value_scalar(L, 2);
#if LUA_VERSION_NUM >= 502
  lua_pushboolean(L, lua_compare(L, 1, 2, LUA_OPLE));
#else
  lua_pushboolean(L, lua_tonumber(L, 1) <= lua_tonumber(L, 2));
#endif
  return 1;
}

/* Identity; two handles of one value are equal. */
static int value_eq(lua_State *L) {
  tm_value *a = tm_lua_test_value(L, 1), *b = tm_lua_test_value(L, 2);
  if (a && b && a != b && !a->t && !b->t && a->type.dtype && b->type.dtype)
    return tm_lua_fail(
        L, TM_EINVAL,
        "a Lua comparison of tensors inside a traced function: they have "
        "no value yet; use tm.cond(a:equal(b), f, g) or tm.where");
  lua_pushboolean(L, a == b);
  return 1;
}

/* core.is_tensor(x) */
static int value_is(lua_State *L) {
  lua_pushboolean(L, tm_lua_test_value(L, 1) != NULL);
  return 1;
}

/* core.as_value(x, dtype?): any stand-in as a Tensor. */
static int value_as(lua_State *L) {
  tm_dtype t = TM_DTYPE_NONE;
  if (!lua_isnoneornil(L, 2)) t = tm_lua_check_dtype(L, 2);
  lua_settop(L, 1);
  tm_lua_arg_value(L, 1, t);
  return 1;
}

/* core.typekey(x): dtype and shape as a short text, for signatures. */
static int value_typekey(lua_State *L) {
  tm_value *v = tm_lua_check_value(L, 1);
  char text[24 * (TM_MAX_RANK + 2)];
  size_t n = 0;
  n += (size_t)snprintf(text, sizeof text, "%d", (int)v->type.dtype);
  for (int32_t i = 0; i < v->type.shape.rank; i++)
    n += (size_t)snprintf(text + n, sizeof text - n, ",%lld",
                          (long long)v->type.shape.dim[i]);
  lua_pushlstring(L, text, n);
  return 1;
}

void tm_lua_open_value(lua_State *L, int core) {
  static const luaL_Reg meta[] = {
      {"__index", value_index},
      {"__newindex", value_newindex},
      {"__len", value_len},
      {"__tostring", value_tostring},
      {"__lt", value_lt},
      {"__le", value_le},
      {"__eq", value_eq},
      {"__gc", value_gc},
      {NULL, NULL},
  };
  static const luaL_Reg methods[] = {{"size", value_size},
                                     {"item", value_item},
                                     {"totable", value_totable},
                                     {NULL, NULL}};
  static const luaL_Reg functions[] = {{"is_tensor", value_is},
                                       {"as_value", value_as},
                                       {"typekey", value_typekey},
                                       {NULL, NULL}};
  luaL_newmetatable(L, TM_LUA_TENSOR_MT);
  luaL_setfuncs(L, meta, 0);
  lua_pushliteral(L, TM_LUA_TENSOR_MT);
  lua_setfield(L, -2, "__name");
  lua_setfield(L, core, "Tensor");
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_pushvalue(L, -1);
  lua_setfield(L, core, "methods");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &value_methods_key);
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
