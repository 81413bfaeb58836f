#include "lua/index.h"

#include <string.h>

#include "lua/convert.h"
#include "lua/op.h"

/*
 * Design.  The ops slice, narrow and select take 0-based positions, negative ones from
 * the end; here 1 is subtracted from positive ones and 0 is refused.  Everything is
 * read from Lua before a frame is taken.
 */

/* Bits of the attribute `kind` of slice. */
enum { INDEX_FIRST = 1, INDEX_LAST = 2, INDEX_SINGLE = 4 };

struct index_ranges {
  int32_t n;
  int64_t first[TM_MAX_RANK], last[TM_MAX_RANK], step[TM_MAX_RANK], kind[TM_MAX_RANK];
};

static int64_t index_number(lua_State *L, int i, const char *what) {
  int64_t x = 0;
  if (tm_lua_integer(L, i, &x)) return x;
  if (tm_lua_test_value(L, i) || lua_type(L, i) == LUA_TTABLE)
    tm_lua_fail(L, TM_EINVAL,
                "%s: a tensor is no subscript here; use tm.gather(x, ids)", what);
  if (lua_type(L, i) == LUA_TNUMBER)
    tm_lua_fail(L, TM_EINVAL, "%s: a position is a whole number, not %.14g", what,
                lua_tonumber(L, i));
  tm_lua_fail(L, TM_EINVAL, "%s: a position is a whole number, not a %s", what,
              luaL_typename(L, i));
  return 0;
}

static int64_t index_position(lua_State *L, int i, const char *what) {
  int64_t x = index_number(L, i, what);
  if (x == 0)
    tm_lua_fail(L, TM_EINVAL,
                "%s: positions count from 1 (the first is 1, the last is -1)", what);
  return x > 0 ? x - 1 : x;
}

static const tm_op *index_op(lua_State *L, const char *name) {
  const tm_op *op = tm_op_find(name);
  if (!op) tm_lua_fail(L, TM_EUNIMPL, "there is no op \"%s\" in this build", name);
  return op;
}

/* A symbol of the layer graph at 1: the whole call goes to the hook.  Returns whether
 * it did; the results are on the stack from `*first` on. */
static bool index_symbol(lua_State *L, const char *name, int *results) {
  if (!tm_lua_metafield(L, 1, "__tm_symbol")) return false;
  lua_pop(L, 1);
  int n = lua_gettop(L);
  tm_lua_push_hook(L, "symbol_op");
  lua_insert(L, 1);
  tm_lua_push_hook(L, "method");
  lua_pushstring(L, name);
  lua_call(L, 1, 1);
  lua_insert(L, 2);
  lua_pushstring(L, name);
  lua_insert(L, 3);
  lua_call(L, n + 2, LUA_MULTRET);
  *results = lua_gettop(L);
  return true;
}

static int index_apply(lua_State *L, const tm_op *op, tm_value *x,
                       const int64_t *number, int32_t n) {
  tm_lua_frame *f = tm_lua_frame_take(L);
  f->in[0] = x;
  f->attrs.n = n;
  for (int32_t i = 0; i < n; i++)
    tm_attr_set_int(&f->attrs.a[i], i == 0 ? TM_ATTR_AXIS : TM_ATTR_INT, number[i]);
  return tm_lua_frame_apply(L, f, op, 1);
}

/* select(x, axis, position) */
static int index_select(lua_State *L) {
  int results;
  if (index_symbol(L, "select", &results)) return results;
  tm_value *x = tm_lua_check_value(L, 1);
  int64_t a[2] = {tm_lua_check_axis(L, 2), index_position(L, 3, "select")};
  return index_apply(L, index_op(L, "select"), x, a, 2);
}

/* narrow(x, axis, first, length) */
static int index_narrow(lua_State *L) {
  int results;
  if (index_symbol(L, "narrow", &results)) return results;
  tm_value *x = tm_lua_check_value(L, 1);
  int64_t a[3] = {tm_lua_check_axis(L, 2), index_position(L, 3, "narrow"),
                  index_number(L, 4, "narrow")};
  return index_apply(L, index_op(L, "narrow"), x, a, 3);
}

int tm_lua_subscript(lua_State *L) {
  tm_value *x = tm_lua_check_value(L, 1);
  int64_t a[2] = {0, index_position(L, 2, "subscript")};
  if (x->type.shape.rank == 0)
    return tm_lua_fail(L, TM_EINVAL, "subscript: a scalar has no positions");
  return index_apply(L, index_op(L, "select"), x, a, 2);
}

/* The range { from, to, step } on top of the stack as entry k. */
static void index_range(lua_State *L, struct index_ranges *r, int32_t k) {
  int at = lua_gettop(L);
  if (tm_lua_metafield(L, at, "__tm_tensor"))
    tm_lua_fail(L, TM_EINVAL, "slice: a tensor is no range; use tm.gather(x, ids)");
  r->step[k] = 1;
  if (tm_lua_rawgeti(L, at, 1) != LUA_TNIL) {
    r->first[k] = index_position(L, at + 1, "slice");
    r->kind[k] |= INDEX_FIRST;
  }
  if (tm_lua_rawgeti(L, at, 2) != LUA_TNIL) {
    r->last[k] = index_position(L, at + 2, "slice");
    r->kind[k] |= INDEX_LAST;
  }
  if (tm_lua_rawgeti(L, at, 3) != LUA_TNIL)
    r->step[k] = index_number(L, at + 3, "slice");
  lua_settop(L, at);
}

static int32_t index_entries(lua_State *L, int t) {
  int32_t n = 0; /* nil entries in between mean all: take the largest key */
  lua_pushnil(L);
  while (lua_next(L, t)) {
    lua_pop(L, 1);
    int64_t k = 0;
    if (!tm_lua_integer(L, -1, &k) || k < 1 || k > TM_MAX_RANK)
      tm_lua_fail(L, TM_EINVAL,
                  "slice: one entry an axis is wanted, {from, to, step} or a position, "
                  "at most %d",
                  TM_MAX_RANK);
    if (k > n) n = (int32_t)k;
  }
  return n;
}

/* slice(x, { {from, to, step}, {}, 3 }) */
static int index_slice(lua_State *L) {
  int results;
  if (index_symbol(L, "slice", &results)) return results;
  tm_value *x = tm_lua_check_value(L, 1);
  if (lua_type(L, 2) != LUA_TTABLE)
    return tm_lua_fail(L, TM_EINVAL, "slice: a list of ranges is wanted, not a %s",
                       luaL_typename(L, 2));
  struct index_ranges r;
  memset(&r, 0, sizeof r);
  r.n = index_entries(L, 2);
  for (int32_t k = 0; k < r.n; k++) {
    int type = tm_lua_rawgeti(L, 2, k + 1);
    r.step[k] = 1;
    if (type == LUA_TTABLE) index_range(L, &r, k);
    if (type != LUA_TTABLE && type != LUA_TNIL) {
      r.first[k] = index_position(L, lua_gettop(L), "slice");
      r.kind[k] = INDEX_SINGLE;
    }
    lua_pop(L, 1);
  }
  const tm_op *op = index_op(L, "slice");
  tm_lua_frame *f = tm_lua_frame_take(L);
  f->in[0] = x;
  f->attrs.n = 4;
  const int64_t *lists[4] = {r.first, r.last, r.step, r.kind};
  tm_status s = TM_OK;
  for (int32_t i = 0; i < 4 && !s; i++)
    s = tm_attr_set_ints(&f->attrs.a[i], TM_ATTR_INTS, lists[i], r.n);
  if (s) {
    tm_lua_frame_drop(f);
    return tm_lua_raise(L, s, NULL);
  }
  return tm_lua_frame_apply(L, f, op, 1);
}

void tm_lua_open_index(lua_State *L, int core) {
  static const luaL_Reg methods[] = {{"select", index_select},
                                     {"narrow", index_narrow},
                                     {"slice", index_slice},
                                     {NULL, NULL}};
  lua_getfield(L, core, "methods");
  luaL_setfuncs(L, methods, 0);
  lua_pop(L, 1);
}
