#include "lua/variable.h"

#include <stdio.h>
#include <string.h>

#include "lua/convert.h"
#include "lua/route.h"

/*
 * Design.  A variable of this process has one shard in the context's own store.  The
 * handle is made first, empty (uid 0), so a raise after the shard exists drops it.
 */
#define HANDLE_MT "tm.core.Variable"

typedef struct variable_handle {
  uint64_t uid; /* 0: nothing to drop */
} variable_handle;

static variable_handle *handle_new(lua_State *L) {
  variable_handle *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->uid = 0;
  luaL_getmetatable(L, HANDLE_MT);
  lua_setmetatable(L, -2);
  return h;
}

void tm_lua_push_variable(lua_State *L, uint64_t uid) { handle_new(L)->uid = uid; }

void tm_lua_set_variable(lua_State *L, int i, uint64_t uid) {
  variable_handle *h = luaL_checkudata(L, i, HANDLE_MT);
  h->uid = uid;
}

static int handle_gc(lua_State *L) {
  variable_handle *h = lua_touserdata(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  uint64_t uid = h->uid;
  h->uid = 0;
  if (uid == 0 || !ctx || !ctx->router) return 0;
  tm_vars *vars = tm_router_vars(ctx->router, uid);
  tm_err err;
  /* A ps that is gone has dropped it already. */
  if (vars && tm_vars_drop(vars, uid, &err) != TM_OK) tm_err_clear(&err);
  tm_router_del(ctx->router, uid);
  return 0;
}

void tm_lua_check_init(lua_State *L, int i, tm_init *in) {
  memset(in, 0, sizeof *in);
  if (lua_type(L, i) != LUA_TTABLE) {
    snprintf(in->kind, sizeof in->kind, "value");
    in->value = tm_lua_check_eager(L, i, "initial value of a variable")->t;
    return;
  }
  lua_getfield(L, i, "kind");
  snprintf(in->kind, sizeof in->kind, "%s", luaL_checkstring(L, -1));
  lua_getfield(L, i, "a");
  in->a = lua_tonumber(L, -1);
  lua_getfield(L, i, "b");
  in->b = lua_tonumber(L, -1);
  lua_getfield(L, i, "seed");
  in->seed = (uint64_t)lua_tonumber(L, -1);
  lua_pop(L, 4);
}

void tm_lua_check_sizes(lua_State *L, int i, tm_shape *s) {
  luaL_checktype(L, i, LUA_TTABLE);
  *s = tm_shape_scalar();
  size_t n = lua_rawlen(L, i);
  if (n > TM_MAX_RANK)
    tm_lua_fail(L, TM_EINVAL, "a shape has at most %d sizes", TM_MAX_RANK);
  s->rank = (int32_t)n;
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    if (!tm_lua_integer(L, -1, &s->dim[k]) || s->dim[k] < 0)
      tm_lua_fail(L, TM_EINVAL, "size %d of a variable must be a whole number from 0",
                  (int)k + 1);
    lua_pop(L, 1);
  }
}

/* core.variable(name, dtype, shape, init) -> uid, handle */
static int variable_create(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  const char *name = luaL_checkstring(L, 1);
  tm_dtype t = tm_lua_check_dtype(L, 2);
  tm_shape shape;
  tm_init init;
  tm_lua_check_sizes(L, 3, &shape);
  tm_lua_check_init(L, 4, &init);
  uint64_t uid = tm_lua_new_uid();
  tm_lua_push_int64(L, (int64_t)uid);
  variable_handle *h = handle_new(L);
  tm_var_info *info;
  tm_lua_check(L, tm_var_info_new(uid, t, &shape, name, true, 1, &info), NULL);
  info->shard[0] = (tm_shard_info){-1, 0, shape.rank ? shape.dim[0] : 1};
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_vars_create(ctx->vars, info, &init, &err);
  tm_var_info_unref(info);
  tm_lua_check(L, s, &err);
  h->uid = uid;
  return 2;
}

/* core.new_uid() */
static int variable_uid(lua_State *L) {
  tm_lua_push_int64(L, (int64_t)tm_lua_new_uid());
  return 1;
}

void tm_lua_open_variable(lua_State *L, int core) {
  luaL_newmetatable(L, HANDLE_MT);
  lua_pushcfunction(L, handle_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  lua_pushcfunction(L, variable_create);
  lua_setfield(L, core, "variable");
  lua_pushcfunction(L, variable_uid);
  lua_setfield(L, core, "new_uid");
}
