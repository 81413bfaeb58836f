/*
 * graphs.h - graphs that are kept and used again: core.graph_pack(graph) gives text,
 * core.graph_unpack(text, uids) a graph, core.graph_replay(graph, args) applies its ops
 * one by one, now or in the open trace.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_GRAPHS_H
#define TM_LUA_GRAPHS_H

#include "lua/compat.h"

void tm_lua_open_graphs(lua_State *L, int core);

#endif
