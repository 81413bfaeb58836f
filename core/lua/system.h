/*
 * system.h - time, sleep, seeds, threads, log: core's functions that need no tensor.
 *
 * Threads: the state's; log sinks are called from any.
 */
#ifndef TM_LUA_SYSTEM_H
#define TM_LUA_SYSTEM_H

#include "lua/state.h"

/* Send log lines from `min` on, and the output of tm.print, to a stream that outlives
 * the process's use of it (stderr), or to nothing (NULL). */
void tm_lua_log_to_stderr(bool on);

void tm_lua_open_system(lua_State *L, int core);

#endif
