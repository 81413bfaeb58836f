/*
 * cluster_restore.h - methods of a session that restore a lost ps; eager ops that meet
 * one ask core.hooks.mend.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_CLUSTER_RESTORE_H
#define TM_LUA_CLUSTER_RESTORE_H

#include "cluster/moment.h"
#include "lua/state.h"

/* "restore", "restore_shards" or nil at the index to a tm_ps_failure. */
int tm_lua_check_ps_failure(lua_State *L, int i);

int tm_lua_session_lost(lua_State *L);
int tm_lua_session_suspect(lua_State *L);
int tm_lua_session_await(lua_State *L);
int tm_lua_session_remake(lua_State *L);
int tm_lua_session_go_on(lua_State *L);
int tm_lua_session_vars(lua_State *L);
int tm_lua_session_moment(lua_State *L);
int tm_lua_session_rewind(lua_State *L);

/* A userdata on the top that frees the moment that is put there. */
tm_moment **tm_lua_new_moment(lua_State *L);
void tm_lua_open_moments(lua_State *L);

/* Have eager ops of this state ask the hook. */
void tm_lua_open_restore(tm_lua *ctx);

#endif
