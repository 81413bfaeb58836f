#include "lua/state.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cluster/board.h"
#include "graph/spans.h"
#include "lua/op.h"
#include "lua/route.h"

/*
 * Design.  One context userdata a state, made when the module is opened, first of all
 * userdata, so that lua_close finalizes it last.  Scopes are userdata in a table with
 * weak keys (the coroutine), so they go with their coroutine.
 *
 * Invariants:
 *   (1) vars uses store, catalog and resources; it is freed before them.
 *   (2) A scope is freed before the router that it refers to: scopes were made later.
 */
static const char state_key, scopes_key, hooks_key;
#define STATE_MT "tm.core.State"
#define SCOPE_MT "tm.core.Scope"

enum { STATE_GC_MIN_BYTES = 64 << 20 };

typedef struct state_scope {
  tm_scope *sc;
} state_scope;

tm_lua *tm_lua_ctx(lua_State *L) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &state_key);
  tm_lua *ctx = lua_touserdata(L, -1);
  lua_pop(L, 1);
  return ctx;
}

static tm_scope *state_new_scope(lua_State *L, tm_lua *ctx) {
  state_scope *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->sc = NULL;
  luaL_getmetatable(L, SCOPE_MT);
  lua_setmetatable(L, -2);
  tm_lua_check(L, tm_scope_new(&b->sc), NULL);
  tm_scope_set_state(b->sc, tm_router_state(ctx->router));
  ctx->nscopes++;
  return b->sc;
}

/* What is open in a coroutine that resumed this one (its status is "normal") counts
 * here too.  The table of scopes is on top. */
static tm_scope *state_outer_scope(lua_State *L) {
  tm_scope *found = NULL;
  lua_Debug ar;
  lua_pushnil(L);
  while (lua_next(L, -2)) {
    lua_State *co = lua_tothread(L, -2);
    state_scope *b = lua_touserdata(L, -1);
    lua_pop(L, 1);
    if (!co || co == L || !b->sc || tm_scope_idle(b->sc)) continue;
    if (lua_status(co) == LUA_OK && lua_getstack(co, 0, &ar)) found = b->sc;
  }
  return found;
}

tm_scope *tm_lua_scope(lua_State *L) {
  luaL_checkstack(L, 6, "scope");
  tm_lua *ctx = tm_lua_ctx(L);
  ctx->running = L;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &scopes_key);
  lua_pushthread(L);
  lua_rawget(L, -2);
  state_scope *b = lua_touserdata(L, -1);
  tm_scope *sc = b ? b->sc : NULL;
  lua_pop(L, 1);
  if (!sc) {
    lua_pushthread(L);
    sc = state_new_scope(L, ctx);
    lua_rawset(L, -3);
  }
  if (ctx->nscopes > 1 && tm_scope_idle(sc)) {
    tm_scope *outer = state_outer_scope(L);
    if (outer) sc = outer;
  }
  lua_pop(L, 1);
  tm_run_env *env = tm_scope_env(sc);
  env->seed = ctx->seed;
  env->closure = ctx->runs; /* one count for all coroutines */
  env->threads = ctx->threads;
  env->cancel = &ctx->cancel;
  env->spans = ctx->spans;
  return sc;
}

static int scope_gc(lua_State *L) {
  state_scope *b = lua_touserdata(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  if (b->sc && ctx) ctx->nscopes--;
  tm_scope_free(b->sc);
  b->sc = NULL;
  return 0;
}

void tm_lua_count_bytes(lua_State *L, tm_lua *ctx, int64_t n) {
  ctx->live_bytes += n;
  if (n < 0) return;
  ctx->fresh_bytes += n;
  int64_t limit = ctx->live_bytes / 2;
  if (limit < STATE_GC_MIN_BYTES) limit = STATE_GC_MIN_BYTES;
  if (ctx->fresh_bytes <= limit) return;
  ctx->fresh_bytes = 0;
  lua_gc(L, LUA_GCCOLLECT, 0);
}

void tm_lua_push_hook(lua_State *L, const char *name) {
  lua_rawgetp(L, LUA_REGISTRYINDEX, &hooks_key);
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
}

uint64_t tm_lua_new_uid(void) {
  uint64_t uid;
  do uid = tm_random_id() >> 11;
  while (uid == 0);
  return uid;
}

uint64_t tm_lua_check_uid(lua_State *L, int i) {
  int64_t x = 0;
  if (!tm_lua_integer(L, i, &x) || x <= 0)
    tm_lua_fail(L, TM_EINVAL, "argument %d must be the id of a thing", i);
  return (uint64_t)x;
}

void tm_lua_set_int(lua_State *L, int t, const char *field, int64_t n) {
  tm_lua_push_int64(L, n);
  lua_setfield(L, t, field);
}

static int state_gc(lua_State *L) {
  tm_lua *ctx = lua_touserdata(L, 1);
  tm_spans_free(ctx->spans);
  tm_router_free(ctx->router);
  tm_board_unref(ctx->board);
  tm_vars_free(ctx->vars);
  tm_resources_free(ctx->resources);
  tm_catalog_unref(ctx->catalog);
  tm_store_free(ctx->store);
  memset(ctx, 0, sizeof *ctx);
  return 0;
}

static tm_status state_fill(tm_lua *ctx, tm_err *err) {
  TM_TRY(tm_ops_init(err));
  TM_TRY(tm_catalog_new(&ctx->catalog));
  TM_TRY(tm_store_new("/job:chief/task:0", &ctx->store));
  TM_TRY(tm_resources_new(&ctx->resources));
  TM_TRY(tm_board_new(&ctx->board));
  tm_ps_client *local = NULL;
  TM_TRY(tm_ps_client_local(ctx->store, &local));
  tm_status s = tm_vars_new(ctx->catalog, NULL, 0, local, &ctx->vars);
  if (s) {
    local->close(local);
    return s;
  }
  ctx->vars->resources = ctx->resources;
  TM_TRY(tm_router_new(ctx->vars, &ctx->router));
  ctx->threads = 1;
  ctx->seed = tm_random_id();
  return TM_OK;
}

static void state_metatable(lua_State *L, const char *name, lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
}

void tm_lua_open_state(lua_State *L, int core) {
  state_metatable(L, STATE_MT, state_gc);
  state_metatable(L, SCOPE_MT, scope_gc);
  tm_lua *ctx = lua_newuserdatauv(L, sizeof *ctx, 0);
  memset(ctx, 0, sizeof *ctx);
  luaL_getmetatable(L, STATE_MT);
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &state_key);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, state_fill(ctx, &err), &err);
  lua_newtable(L);
  lua_newtable(L);
  lua_pushliteral(L, "k");
  lua_setfield(L, -2, "__mode");
  lua_setmetatable(L, -2);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &scopes_key);
  lua_newtable(L);
  lua_pushvalue(L, -1);
  lua_setfield(L, core, "hooks");
  lua_rawsetp(L, LUA_REGISTRYINDEX, &hooks_key);
}
