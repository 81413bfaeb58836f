/*
 * op.h - the Lua functions of ops, made from the op table.
 *
 * core.ops[name](...) takes the op's inputs, then its positional attributes, then one
 * table of named ones, as its signature says (graph/op.h).  Inputs may be Tensors, what
 * stands in for one (metafield __tm_tensor), numbers, booleans, strings, lists; a
 * number beside a tensor takes its dtype.  An argument with the metafield __tm_symbol
 * (a node of the layer graph) sends the whole call to core.hooks.symbol_op.
 *
 * Axes count from 1 on this side and are converted here and in index.c only.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_OP_H
#define TM_LUA_OP_H

#include "lua/value.h"

/* What a call holds while it runs; see op.c. */
typedef struct tm_lua_frame {
  bool busy;
  tm_attrs attrs;
  int32_t nout;
  tm_value *out[TM_MAX_OUTPUTS]; /* references until they are handed to boxes */
  tm_value *in[TM_MAX_LIST];     /* borrowed: owners are on the Lua stack */
} tm_lua_frame;

/* A frame that is free; pushes it or a placeholder.  Empty. */
tm_lua_frame *tm_lua_frame_take(lua_State *L);
void tm_lua_frame_drop(tm_lua_frame *f);

/* Apply op to f->in[0..nin-1] and f->attrs through the door of the running coroutine;
 * drops f, pushes the outputs, and returns their number; or raises. */
int tm_lua_frame_apply(lua_State *L, tm_lua_frame *f, const tm_op *op, int32_t nin);

/* 1-based axis from Lua to C: 3 is 2, -1 stays.  TM_EINVAL for 0. */
TM_CHECKED tm_status tm_lua_axis(int64_t lua_axis, int64_t *out, tm_err *err);
int64_t tm_lua_check_axis(lua_State *L, int i);

void tm_lua_open_op(lua_State *L, int core);

#endif
