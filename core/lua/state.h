/*
 * state.h - what the binding keeps for one Lua state: variables and iterators of this
 * process, the scopes of its coroutines, the bytes that tensors hold.
 *
 *     tm_lua *ctx = tm_lua_ctx(L);
 *     tm_scope *sc = tm_lua_scope(L);       -- of the running coroutine
 *
 * Eager state ops of every scope go to one router: each variable is known by the
 * tm_vars it lives in (this process's own, or a cluster's), see lua/route.h.
 *
 * Ownership: the context is a userdata in the registry; it outlives every other
 *            object of the binding because each of them refers to it.
 * Threads:   the state's; `cancel` may be set from a signal handler.
 */
#ifndef TM_LUA_STATE_H
#define TM_LUA_STATE_H

#include "base/cancel.h"
#include "cluster/vars.h"
#include "graph/value.h"
#include "lua/compat.h"
#include "lua/error.h"

struct tm_lua_frame;
struct tm_router;

typedef struct tm_lua {
  tm_catalog *catalog;
  tm_store *store;
  tm_vars *vars; /* of this process's own store */
  tm_resources *resources;
  struct tm_router *router;
  struct tm_board *board; /* tasks of this state's clusters that leave */
  uint64_t seed;
  bool seeded;   /* tm.random.set_seed was called */
  uint64_t runs; /* runs of functions and eager draws so far: their closure number */
  int threads;
  int nscopes; /* coroutines that have a scope */
  tm_cancel cancel;
  struct tm_spans *spans;          /* NULL: nobody records */
  bool told;                       /* an error was raised because of it */
  lua_State *running;              /* the coroutine whose op or function runs */
  int64_t live_bytes, fresh_bytes; /* of tensors: now, and since the last collection */
  struct tm_lua_frame *frame;      /* cached, see op.c */
} tm_lua;

tm_lua *tm_lua_ctx(lua_State *L);
/* The scope where ops of the running coroutine go: its own, or that of the coroutine
 * that resumed it and has a trace or tape open.  Its environment is up to date. */
tm_scope *tm_lua_scope(lua_State *L);

/* Bytes came (n > 0) or went; may run a full collection when many came. */
void tm_lua_count_bytes(lua_State *L, tm_lua *ctx, int64_t n);

/* core.hooks[name] on the stack: Lua functions that C calls. */
void tm_lua_push_hook(lua_State *L, const char *name);

/* A number below 2^53, so that every Lua can hold it. */
uint64_t tm_lua_new_uid(void);
/* Argument i as such a number. */
uint64_t tm_lua_check_uid(lua_State *L, int i);

/* field of t (absolute index) = n */
void tm_lua_set_int(lua_State *L, int t, const char *field, int64_t n);

void tm_lua_open_state(lua_State *L, int core);

#endif
