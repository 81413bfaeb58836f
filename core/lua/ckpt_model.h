/*
 * ckpt_model.h - what the directory of a model has beside its data: writer:document,
 * writer:single, core.ckpt.document.
 *
 * What fails gives nil and an error object; misuse raises.  Threads: the state's.
 */
#ifndef TM_LUA_CKPT_MODEL_H
#define TM_LUA_CKPT_MODEL_H

#include "lua/compat.h"

/* writer:document(table): the description of the model. */
int tm_lua_ckpt_attach(lua_State *L);
/* writer:single({ { name, dtype, shape } ... }) -> a file that takes put(tensor) in
 * this order, and close(). */
int tm_lua_ckpt_single(lua_State *L);
/* core.ckpt.document(path) -> the description */
int tm_lua_ckpt_document(lua_State *L);

void tm_lua_open_ckpt_model(lua_State *L);

#endif
