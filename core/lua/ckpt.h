/*
 * ckpt.h - checkpoints for Lua: core.ckpt.*, on which lua/tidemill/train.lua stands.
 *
 * What fails gives nil and an error object; misuse raises.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_CKPT_H
#define TM_LUA_CKPT_H

#include "ckpt/writer.h"
#include "lua/compat.h"

/* The checkpoint being written at i; raises when it is none. */
tm_ckpt_writer *tm_lua_check_writer(lua_State *L, int i);
/* writer:save, see ckpt_save.c. */
int tm_lua_ckpt_save(lua_State *L);
int tm_lua_ckpt_in_cluster(lua_State *L);
/* true, or nil and the error. */
int tm_lua_ckpt_answer(lua_State *L, tm_status s, const tm_err *err);

void tm_lua_open_ckpt(lua_State *L, int core);

#endif
