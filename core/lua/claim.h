/* claim.h - core.claim.*: work that several processes share (ckpt/claim.h).  Threads:
 * the state's. */
#ifndef TM_LUA_CLAIM_H
#define TM_LUA_CLAIM_H

#include "lua/compat.h"

void tm_lua_open_claim(lua_State *L, int core);

#endif
