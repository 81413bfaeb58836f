#include "lua/tape.h"

#include <string.h>

#include "graph/grad.h"
#include "lua/value.h"

/*
 * Design.  A handle holds one reference and stops recording when it is collected.
 * Gradients are received in a userdata of their own, so that a raise while they are
 * handed out leaks none.
 */
#define TAPE_MT  "tm.core.Tape"
#define GRADS_MT "tm.core.Gradients"

enum { TAPE_MAX_SOURCES = 1 << 20 };

typedef struct tape_box {
  tm_tape *tp;
} tape_box;

typedef struct tape_grads {
  int32_t n;
  tm_grad g[];
} tape_grads;

static tm_tape *check_tape(lua_State *L, int i) {
  tape_box *b = luaL_checkudata(L, i, TAPE_MT);
  if (!b->tp) tm_lua_fail(L, TM_EPRECOND, "this tape is closed");
  return b->tp;
}

/* core.tape_begin(persistent) */
static int tape_begin(lua_State *L) {
  bool persistent = lua_toboolean(L, 1);
  tm_scope *sc = tm_lua_scope(L);
  tape_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->tp = NULL;
  luaL_getmetatable(L, TAPE_MT);
  lua_setmetatable(L, -2);
  tm_lua_check(L, tm_tape_begin(sc, persistent, &b->tp), NULL);
  return 1;
}

static int tape_watch(lua_State *L) {
  tm_tape_watch(check_tape(L, 1), tm_lua_check_value(L, 2));
  return 0;
}

static int tape_stop(lua_State *L) {
  tape_box *b = luaL_checkudata(L, 1, TAPE_MT);
  if (b->tp) tm_tape_stop(b->tp);
  return 0;
}

static int tape_gc(lua_State *L) {
  tape_box *b = lua_touserdata(L, 1);
  tm_tape *tp = b->tp;
  b->tp = NULL;
  if (!tp) return 0;
  tm_tape_stop(tp);
  tm_tape_unref(tp);
  return 0;
}

static int grads_gc(lua_State *L) {
  tape_grads *g = lua_touserdata(L, 1);
  for (int32_t i = 0; i < g->n; i++) tm_grad_release(&g->g[i]);
  g->n = 0;
  return 0;
}

/* A source is a Tensor or the uid of a variable. */
static tm_source *tape_sources(lua_State *L, int i, int32_t *n) {
  luaL_checktype(L, i, LUA_TTABLE);
  size_t len = lua_rawlen(L, i);
  if (len > TAPE_MAX_SOURCES) tm_lua_fail(L, TM_EEXHAUSTED, "too many sources");
  tm_source *src = lua_newuserdatauv(L, (len + 1) * sizeof *src, 0);
  memset(src, 0, (len + 1) * sizeof *src);
  for (size_t k = 0; k < len; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    int64_t uid = 0;
    src[k].value = tm_lua_test_value(L, lua_gettop(L));
    if (!src[k].value && !tm_lua_integer(L, -1, &uid))
      tm_lua_fail(L, TM_EINVAL, "source %d is no tensor and no variable", (int)k + 1);
    src[k].uid = (uint64_t)uid;
    lua_pop(L, 1);
  }
  *n = (int32_t)len;
  return src;
}

static void tape_push_value(lua_State *L, tm_value **at) {
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_value *v = *at;
  *at = NULL;
  tm_lua_adopt(L, b, v);
}

static void tape_push_grad(lua_State *L, tm_grad *g) {
  if (g->dense) {
    tape_push_value(L, &g->dense);
  } else if (g->ids && g->rows) {
    lua_createtable(L, 0, 2);
    tape_push_value(L, &g->ids);
    lua_setfield(L, -2, "ids");
    tape_push_value(L, &g->rows);
    lua_setfield(L, -2, "rows");
  } else {
    lua_pushboolean(L, 0);
  }
}

/* core.tape_gradient(tape, target, seed or nil, sources) -> list of a Tensor, of
 * { ids, rows }, or of false */
static int tape_gradient(lua_State *L) {
  tm_tape *tp = check_tape(L, 1);
  tm_value *target = tm_lua_check_value(L, 2);
  tm_value *seed = lua_isnoneornil(L, 3) ? NULL : tm_lua_check_value(L, 3);
  int32_t n;
  tm_source *src = tape_sources(L, 4, &n);
  size_t bytes = sizeof(tape_grads) + (size_t)n * sizeof(tm_grad);
  tape_grads *g = lua_newuserdatauv(L, bytes, 0);
  memset(g, 0, bytes);
  luaL_getmetatable(L, GRADS_MT);
  lua_setmetatable(L, -2);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_tape_gradient(tp, target, seed, src, n, g->g, &err);
  if (s) return tm_lua_raise(L, s, &err);
  g->n = n;
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    tape_push_grad(L, &g->g[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static void tape_metatable(lua_State *L, const char *name, lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
}

void tm_lua_open_tape(lua_State *L, int core) {
  static const luaL_Reg functions[] = {
      {"tape_begin", tape_begin},       {"tape_watch", tape_watch},
      {"tape_stop", tape_stop},         {"tape_close", tape_gc},
      {"tape_gradient", tape_gradient}, {NULL, NULL}};
  tape_metatable(L, TAPE_MT, tape_gc);
  tape_metatable(L, GRADS_MT, grads_gc);
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
