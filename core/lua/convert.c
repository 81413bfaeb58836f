#include "lua/convert.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/*
 * Design.  Two walks over a nested list: the first finds the shape (from the first
 * elements), the kind of leaf, and that nothing is ragged; the second stores.  Both use
 * raw access only and convert nothing in place, so neither can raise.
 */
typedef struct convert_scan {
  lua_State *L;
  tm_shape shape;
  int leaf; /* LUA_TNUMBER, LUA_TBOOLEAN, LUA_TSTRING; LUA_TNONE: no leaf seen */
  tm_dtype dtype;
  tm_tensor *t;
  int64_t at; /* next element */
  tm_str *str;
  tm_err *err;
} convert_scan;

/* An object (a layer, a dataset) is no list, whatever its raw length. */
static tm_status scan_object(convert_scan *c) {
  lua_State *L = c->L;
  if (!tm_lua_metafield(L, -1, "__name")) return TM_OK;
  const char *name = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "object";
  tm_status s = tm_fail(c->err, TM_EINVAL, "a %s cannot become a tensor", name);
  lua_pop(L, 1);
  return s;
}

static tm_status scan_shape(convert_scan *c, int i) {
  lua_State *L = c->L;
  int depth = 0;
  tm_status s = TM_OK;
  lua_pushvalue(L, i);
  while (lua_type(L, -1) == LUA_TTABLE) {
    if (tm_lua_metafield(L, -1, "__tm_tensor")) {
      lua_pop(L, 1);
      break;
    }
    s = scan_object(c);
    if (s == TM_OK && c->shape.rank == TM_MAX_RANK)
      s = tm_fail(c->err, TM_EINVAL, "a list is nested deeper than %d", TM_MAX_RANK);
    if (s != TM_OK) break;
    int64_t n = (int64_t)lua_rawlen(L, -1);
    c->shape.dim[c->shape.rank++] = n;
    if (n == 0) break;
    tm_lua_rawgeti(L, -1, 1);
    depth++;
  }
  lua_settop(L, lua_gettop(L) - depth - 1);
  return s;
}

static tm_status scan_ragged(convert_scan *c, int32_t axis) {
  return tm_fail(c->err, TM_EINVAL,
                 "a nested list is ragged: lists of another length than %" PRId64
                 " at level %" PRId32,
                 c->shape.dim[axis], axis + 1);
}

static tm_status scan_leaf(convert_scan *c, int type) {
  if (type != LUA_TNUMBER && type != LUA_TBOOLEAN && type != LUA_TSTRING) {
    if (type == LUA_TUSERDATA || type == LUA_TTABLE) return TM_EAGAIN;
    return tm_fail(c->err, TM_EINVAL, "a %s cannot become a tensor",
                   lua_typename(c->L, type));
  }
  if (c->leaf == LUA_TNONE) c->leaf = type;
  if (c->leaf == type) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "a list mixes a %s with a %s",
                 lua_typename(c->L, c->leaf), lua_typename(c->L, type));
}

/* Checks the value on top (level `axis` deep). */
static tm_status scan_check(convert_scan *c, int32_t axis) {
  lua_State *L = c->L;
  int type = lua_type(L, -1);
  if (axis == c->shape.rank) {
    if (type == LUA_TTABLE && !tm_lua_metafield(L, -1, "__tm_tensor"))
      return scan_ragged(c, axis ? axis - 1 : 0);
    if (type == LUA_TTABLE) lua_pop(L, 1);
    return scan_leaf(c, type);
  }
  if (type != LUA_TTABLE)
    return type == LUA_TUSERDATA ? TM_EAGAIN : scan_ragged(c, axis);
  if ((int64_t)lua_rawlen(L, -1) != c->shape.dim[axis]) return scan_ragged(c, axis);
  for (int64_t k = 1; k <= c->shape.dim[axis]; k++) {
    tm_lua_rawgeti(L, -1, k);
    tm_status s = scan_check(c, axis + 1);
    lua_pop(L, 1);
    if (s) return s;
  }
  return TM_OK;
}

static tm_dtype scan_dtype(const convert_scan *c, tm_dtype want) {
  if (c->leaf == LUA_TBOOLEAN) return TM_BOOL;
  if (c->leaf == LUA_TSTRING) return TM_STRING;
  if (want == TM_DTYPE_NONE) return TM_F32;
  if (c->leaf == LUA_TNUMBER && !tm_dtype_is_number(want)) return TM_F32;
  return want;
}

/* --- storing --- */

static tm_status store_int(convert_scan *c, void *at) {
  int64_t x;
  if (!tm_lua_integer(c->L, -1, &x))
    return tm_fail(c->err, TM_EINVAL,
                   "%.14g is not a whole number, so it cannot be %s: cast the tensor "
                   "to float32 first",
                   lua_tonumber(c->L, -1), tm_dtype_name(c->dtype));
  bool fits = true;
  if (c->dtype == TM_I64) *(int64_t *)at = x;
  if (c->dtype == TM_I32) {
    fits = x >= INT32_MIN && x <= INT32_MAX;
    *(int32_t *)at = (int32_t)x;
  }
  if (c->dtype == TM_U8) {
    fits = x >= 0 && x <= 255;
    *(uint8_t *)at = (uint8_t)x;
  }
  if (fits) return TM_OK;
  return tm_fail(c->err, TM_EINVAL, "%" PRId64 " does not fit %s", x,
                 tm_dtype_name(c->dtype));
}

static tm_status store_leaf(convert_scan *c) {
  lua_State *L = c->L;
  int64_t k = c->at++;
  if (c->str) {
    c->str[k].p = lua_tolstring(L, -1, &c->str[k].n);
    return TM_OK;
  }
  void *data = c->t->v.data;
  switch (c->dtype) {
    case TM_F32:
      ((float *)data)[k] = (float)lua_tonumber(L, -1);
      return TM_OK;
    case TM_F64:
      ((double *)data)[k] = lua_tonumber(L, -1);
      return TM_OK;
    case TM_BOOL:
      ((uint8_t *)data)[k] = (uint8_t)lua_toboolean(L, -1);
      return TM_OK;
    default:
      return store_int(c, (char *)data + (size_t)k * tm_dtype_size(c->dtype));
  }
}

static tm_status store_level(convert_scan *c, int32_t axis) {
  if (axis == c->shape.rank) return store_leaf(c);
  for (int64_t k = 1; k <= c->shape.dim[axis]; k++) {
    tm_lua_rawgeti(c->L, -1, k);
    tm_status s = store_level(c, axis + 1);
    lua_pop(c->L, 1);
    if (s) return s;
  }
  return TM_OK;
}

static tm_status store_strings(convert_scan *c, tm_tensor **out) {
  int64_t n = tm_shape_count(&c->shape);
  size_t bytes = (size_t)(n + 1) * sizeof *c->str;
  c->str = tm_calloc(1, bytes);
  if (!c->str) return tm_nomem(c->err, "a tensor of strings");
  tm_status s = store_level(c, 0);
  if (!s) s = tm_tensor_strings(&c->shape, c->str, out, c->err);
  tm_free(c->str, bytes);
  return s;
}

tm_status tm_lua_to_tensor(lua_State *L, int i, tm_dtype want, tm_tensor **out,
                           tm_err *err) {
  *out = NULL;
  convert_scan c;
  memset(&c, 0, sizeof c);
  c.L = L;
  c.leaf = LUA_TNONE;
  c.err = err;
  if (!lua_checkstack(L, TM_MAX_RANK + 8)) return tm_nomem(err, "the Lua stack");
  i = lua_absindex(L, i);
  TM_TRY(scan_shape(&c, i));
  lua_pushvalue(L, i);
  tm_status s = scan_check(&c, 0);
  if (!s) {
    c.dtype = scan_dtype(&c, want);
    if (c.dtype == TM_STRING)
      s = store_strings(&c, out);
    else if ((s = tm_tensor_new(c.dtype, &c.shape, &c.t, err)) == TM_OK)
      s = store_level(&c, 0);
  }
  lua_pop(L, 1);
  if (c.t && s) tm_tensor_unref(c.t);
  if (c.t && !s) *out = c.t;
  return s;
}

static void arg_replace(lua_State *L, int i) {
  if (!tm_lua_test_value(L, -1))
    tm_lua_fail(L, TM_EINTERNAL, "a stand-in for a tensor gave a %s",
                luaL_typename(L, -1));
  lua_replace(L, i);
}

tm_value *tm_lua_arg_value(lua_State *L, int i, tm_dtype want) {
  luaL_checkstack(L, 8, "argument");
  i = lua_absindex(L, i);
  tm_value *v = tm_lua_test_value(L, i);
  if (v) return v;
  if (tm_lua_metafield(L, i, "__tm_tensor")) {
    lua_pushvalue(L, i);
    lua_call(L, 1, 1);
    arg_replace(L, i);
    return tm_lua_test_value(L, i);
  }
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_err err;
  tm_err_clear(&err);
  tm_tensor *t;
  tm_status s = tm_lua_to_tensor(L, i, want, &t, &err);
  if (s == TM_EAGAIN && lua_type(L, i) == LUA_TTABLE) { /* a list with tensors in it */
    tm_lua_push_hook(L, "stack");
    lua_pushvalue(L, i);
    lua_pushstring(L, want ? tm_dtype_name(want) : "");
    lua_call(L, 2, 1);
    lua_remove(L, -2);
    arg_replace(L, i);
    return tm_lua_test_value(L, i);
  }
  if (s == TM_EAGAIN)
    tm_lua_fail(L, TM_EINVAL, "a %s cannot become a tensor", luaL_typename(L, i));
  tm_lua_check(L, s, &err);
  s = tm_value_of_tensor(t, &v);
  tm_tensor_unref(t);
  tm_lua_check(L, s, NULL);
  tm_lua_adopt(L, b, v);
  lua_replace(L, i);
  return v;
}

tm_dtype tm_lua_check_dtype(lua_State *L, int i) {
  const char *name = lua_type(L, i) == LUA_TSTRING ? lua_tostring(L, i) : NULL;
  if (!name)
    tm_lua_fail(L, TM_EINVAL, "a dtype is a string like \"float32\", not a %s",
                luaL_typename(L, i));
  tm_dtype t = tm_dtype_of_name(name);
  if (t == TM_DTYPE_NONE)
    tm_lua_fail(L, TM_EINVAL,
                "\"%s\" is no dtype: there are float32 float64 int32 int64 uint8 bool "
                "string",
                name);
  return t;
}

/* --- back to Lua --- */

void tm_lua_push_element(lua_State *L, const tm_view *v, int64_t k) {
  switch (v->dtype) {
    case TM_F32:
    case TM_F64:
      lua_pushnumber(L, tm_view_get_f64(v, k));
      return;
    case TM_BOOL:
      lua_pushboolean(L, ((const uint8_t *)v->data)[k] != 0);
      return;
    case TM_STRING: {
      const tm_str *s = (const tm_str *)v->data + k;
      lua_pushlstring(L, s->n ? s->p : "", s->n);
      return;
    }
    default:
      tm_lua_push_int64(L, tm_view_get_i64(v, k));
  }
}

static void push_level(lua_State *L, const tm_view *v, int32_t axis, int64_t *k) {
  if (axis == v->shape.rank) {
    tm_lua_push_element(L, v, (*k)++);
    return;
  }
  int64_t n = v->shape.dim[axis];
  lua_createtable(L, n > (1 << 24) ? 0 : (int)n, 0);
  for (int64_t i = 1; i <= n; i++) {
    push_level(L, v, axis + 1, k);
    lua_rawseti(L, -2, (int)i);
  }
}

void tm_lua_push_table(lua_State *L, const tm_view *v) {
  luaL_checkstack(L, TM_MAX_RANK + 4, "totable");
  int64_t k = 0;
  push_level(L, v, 0, &k);
}

/* core.tensor(value, dtype?): what already is a Tensor keeps its dtype. */
static int convert_tensor(lua_State *L) {
  luaL_checkany(L, 1);
  tm_dtype want = lua_isnoneornil(L, 2) ? TM_DTYPE_NONE : tm_lua_check_dtype(L, 2);
  lua_settop(L, 1);
  tm_lua_arg_value(L, 1, want);
  return 1;
}

void tm_lua_open_convert(lua_State *L, int core) {
  lua_pushcfunction(L, convert_tensor);
  lua_setfield(L, core, "tensor");
}

static int buf_gc(lua_State *L) {
  tm_buf_release(lua_touserdata(L, 1));
  return 0;
}

tm_buf *tm_lua_push_buf(lua_State *L, size_t max) {
  tm_buf *b = lua_newuserdatauv(L, sizeof *b, 0);
  *b = (tm_buf)TM_BUF_INIT(max);
  luaL_newmetatable(L, "tm.core.Buf");
  lua_pushcfunction(L, buf_gc);
  lua_setfield(L, -2, "__gc"); /* each time: the first may have failed here */
  lua_setmetatable(L, -2);
  return b;
}
