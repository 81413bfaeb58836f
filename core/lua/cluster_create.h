/*
 * cluster_create.h - sessions as userdata: opening a cluster, making variables on it.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_CLUSTER_CREATE_H
#define TM_LUA_CLUSTER_CREATE_H

#include "cluster/session.h"
#include "lua/state.h"

typedef struct tm_lua_session {
  tm_session *s; /* NULL: closed */
  bool has_coordinator;
} tm_lua_session;

/* Raises when it is closed. */
tm_lua_session *tm_lua_check_session(lua_State *L, int i);
/* The object at `obj` keeps the one at `kept` alive. */
void tm_lua_keep(lua_State *L, int obj, int kept);
/* A metatable with methods, and `close` for __gc and __close. */
void tm_lua_new_class(lua_State *L, const char *name, const luaL_Reg *methods,
                      lua_CFunction close);
int tm_lua_session_coordinator(lua_State *L);
void tm_lua_open_session(lua_State *L, int core);

#endif
