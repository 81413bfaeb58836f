/*
 * ckpt.h - checkpoints for Lua: core.ckpt.*, on which lua/tidemill/train.lua stands.
 *
 * What fails gives nil and an error object; misuse raises.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_CKPT_H
#define TM_LUA_CKPT_H

#include "lua/compat.h"

void tm_lua_open_ckpt(lua_State *L, int core);

#endif
