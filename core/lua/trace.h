/*
 * trace.h - traces, graphs and programs as userdata.
 *
 * lua/tidemill/func.lua says how a function is traced: begin, arguments, the function,
 * end; graph, optimised graph, program.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_TRACE_H
#define TM_LUA_TRACE_H

#include "graph/exec.h"
#include "lua/value.h"

#define TM_LUA_GRAPH_MT "tm.core.Graph"

/* NULL when the value at i is no graph. */
tm_graph *tm_lua_test_graph(lua_State *L, int i);
tm_graph *tm_lua_check_graph(lua_State *L, int i);
/* Push a graph that is not there yet; what is put there is its own. */
tm_graph **tm_lua_new_graph(lua_State *L);
/* Values of the list of Tensors at i into a userdata array, which is pushed; the list
 * keeps them alive. */
tm_value **tm_lua_check_values(lua_State *L, int i, int32_t *n);
/* { {dtype, shape}, ... } */
void tm_lua_push_types(lua_State *L, const tm_type *t, int32_t n);

void tm_lua_open_trace(lua_State *L, int core);

#endif
