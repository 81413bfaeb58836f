/*
 * safetensors.h - core.safetensors(path): a single safetensors file, whoever wrote it.
 *
 * What is wrong with the file gives nil and an error object; misuse raises.
 *
 * Threads: the state's.
 */
#ifndef TM_LUA_SAFETENSORS_H
#define TM_LUA_SAFETENSORS_H

#include "lua/compat.h"

void tm_lua_open_safetensors(lua_State *L, int core);

#endif
