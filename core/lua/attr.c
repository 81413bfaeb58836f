#include "lua/attr.h"

#include <inttypes.h>
#include <string.h>

#include "lua/convert.h"
#include "lua/op.h"
#include "lua/trace.h"

/* Design.  One function a kind, all without raising: a half-filled tm_attrs is held by
 * a frame meanwhile.  Positions become 0-based here. */

enum { ATTR_LIST_MAX = 4096 };

static tm_status attr_wrong(lua_State *L, int i, const tm_param *p, const char *want,
                            tm_err *err) {
  return tm_fail(err, TM_EINVAL, "argument \"%s\" must be %s, not a %s", p->name, want,
                 lua_typename(L, lua_type(L, i)));
}

tm_status tm_lua_axis(int64_t lua_axis, int64_t *out, tm_err *err) {
  if (lua_axis == 0)
    return tm_fail(err, TM_EINVAL,
                   "positions count from 1 (the first axis is 1, the last is -1)");
  *out = lua_axis > 0 ? lua_axis - 1 : lua_axis;
  return TM_OK;
}

bool tm_lua_attr_is_list(tm_attr_kind k) {
  return k == TM_ATTR_AXES || k == TM_ATTR_INTS || k == TM_ATTR_SHAPE ||
         k == TM_ATTR_FLOATS || k == TM_ATTR_TENSOR;
}

static tm_status attr_int(lua_State *L, int i, const tm_param *p, int64_t *out,
                          tm_err *err) {
  if (tm_lua_integer(L, i, out)) {
    if (p->kind != TM_ATTR_AXIS && p->kind != TM_ATTR_AXES) return TM_OK;
    tm_status s = tm_lua_axis(*out, out, err);
    return s ? tm_err_prefix(err, s, "argument \"%s\"", p->name) : TM_OK;
  }
  return attr_wrong(L, i, p, "a whole number", err);
}

static tm_status attr_ints(lua_State *L, int i, const tm_param *p, tm_attr *a,
                           tm_err *err) {
  int64_t v[ATTR_LIST_MAX];
  int64_t n = 1;
  if (lua_type(L, i) == LUA_TTABLE) {
    n = (int64_t)lua_rawlen(L, i);
    if (n > ATTR_LIST_MAX)
      return tm_fail(err, TM_EINVAL,
                     "argument \"%s\" has %" PRId64 " numbers, at most %d", p->name, n,
                     ATTR_LIST_MAX);
    for (int64_t k = 0; k < n; k++) {
      tm_lua_rawgeti(L, i, k + 1);
      tm_status s = attr_int(L, lua_gettop(L), p, &v[k], err);
      lua_pop(L, 1);
      if (s) return s;
    }
  } else {
    if (lua_type(L, i) != LUA_TNUMBER)
      return attr_wrong(L, i, p, "a list of whole numbers", err);
    TM_TRY(attr_int(L, i, p, &v[0], err));
  }
  return tm_attr_set_ints(a, p->kind, v, (int32_t)n);
}

static tm_status attr_floats(lua_State *L, int i, const tm_param *p, tm_attr *a,
                             tm_err *err) {
  double v[ATTR_LIST_MAX];
  int64_t n = lua_type(L, i) == LUA_TTABLE ? (int64_t)lua_rawlen(L, i) : -1;
  if (n < 0 || n > ATTR_LIST_MAX) return attr_wrong(L, i, p, "a list of numbers", err);
  for (int64_t k = 0; k < n; k++) {
    int type = tm_lua_rawgeti(L, i, k + 1);
    v[k] = type == LUA_TNUMBER ? lua_tonumber(L, -1) : 0;
    lua_pop(L, 1);
    if (type != LUA_TNUMBER) return attr_wrong(L, i, p, "a list of numbers", err);
  }
  return tm_attr_set_floats(a, v, (int32_t)n);
}

static tm_status attr_tensor(lua_State *L, int i, const tm_param *p, tm_attr *a,
                             tm_err *err) {
  tm_lua_tensor *b = luaL_testudata(L, i, TM_LUA_TENSOR_MT);
  if (b && b->v->t) {
    tm_attr_set_tensor(a, b->v->t);
    return TM_OK;
  }
  if (b) return attr_wrong(L, i, p, "a tensor with a value (not inside a trace)", err);
  tm_tensor *t;
  tm_status s = tm_lua_to_tensor(L, i, TM_DTYPE_NONE, &t, err);
  if (s == TM_EAGAIN) return attr_wrong(L, i, p, "a tensor or a list", err);
  if (s) return tm_err_prefix(err, s, "argument \"%s\"", p->name);
  tm_attr_set_tensor(a, t);
  tm_tensor_unref(t);
  return TM_OK;
}

static tm_status attr_dtype(lua_State *L, int i, const tm_param *p, tm_attr *a,
                            tm_err *err) {
  if (lua_type(L, i) != LUA_TSTRING)
    return attr_wrong(L, i, p, "a dtype like \"float32\"", err);
  tm_dtype t = tm_dtype_of_name(lua_tostring(L, i));
  if (t == TM_DTYPE_NONE)
    return tm_fail(err, TM_EINVAL,
                   "argument \"%s\": \"%.40s\" is no dtype: there are float32 float64 "
                   "int32 int64 uint8 bool string",
                   p->name, lua_tostring(L, i));
  tm_attr_set_int(a, TM_ATTR_DTYPE, t);
  return TM_OK;
}

static tm_status attr_str(lua_State *L, int i, const tm_param *p, tm_attr *a,
                          tm_err *err) {
  if (lua_type(L, i) != LUA_TSTRING) return attr_wrong(L, i, p, "a string", err);
  size_t n;
  const char *s = lua_tolstring(L, i, &n);
  return tm_attr_set_str(a, s, n);
}

static tm_status attr_func(lua_State *L, int i, const tm_param *p, tm_attr *a,
                           tm_err *err) {
  tm_graph *g = tm_lua_test_graph(L, i);
  if (!g) return attr_wrong(L, i, p, "a traced function", err);
  tm_attr_set_graph(a, g);
  return TM_OK;
}

/* Does the number at i survive as a double?  Floats are what they are. */
static bool attr_exact(lua_State *L, int i, int64_t x) {
#if LUA_VERSION_NUM >= 503
  if (!lua_isinteger(L, i)) return true;
  double d = (double)x;
  return d < 0x1p63 && (int64_t)d == x;
#else
  (void)L, (void)i, (void)x;
  return true;
#endif
}

tm_status tm_lua_to_attr(lua_State *L, int i, const tm_param *p, tm_attr *a,
                         tm_err *err) {
  if (lua_isnoneornil(L, i)) return TM_OK;
  int64_t x;
  switch (p->kind) {
    case TM_ATTR_BOOL:
      if (lua_type(L, i) != LUA_TBOOLEAN)
        return attr_wrong(L, i, p, "true or false", err);
      tm_attr_set_bool(a, lua_toboolean(L, i));
      return TM_OK;
    case TM_ATTR_INT:
    case TM_ATTR_AXIS:
      TM_TRY(attr_int(L, i, p, &x, err));
      tm_attr_set_int(a, p->kind, x);
      return TM_OK;
    case TM_ATTR_FLOAT:
      if (lua_type(L, i) != LUA_TNUMBER) return attr_wrong(L, i, p, "a number", err);
      if (tm_lua_integer(L, i, &x) && !attr_exact(L, i, x))
        return tm_fail(err, TM_EINVAL,
                       "argument \"%s\": %" PRId64
                       " is beyond 2^53, where a float64 is not exact; use tm.tensor",
                       p->name, x);
      tm_attr_set_float(a, lua_tonumber(L, i));
      return TM_OK;
    case TM_ATTR_STR:
      return attr_str(L, i, p, a, err);
    case TM_ATTR_DTYPE:
      return attr_dtype(L, i, p, a, err);
    case TM_ATTR_AXES:
    case TM_ATTR_INTS:
    case TM_ATTR_SHAPE:
      return attr_ints(L, i, p, a, err);
    case TM_ATTR_FLOATS:
      return attr_floats(L, i, p, a, err);
    case TM_ATTR_TENSOR:
      return attr_tensor(L, i, p, a, err);
    case TM_ATTR_FUNC:
      return attr_func(L, i, p, a, err);
    default:
      return TM_OK;
  }
}
