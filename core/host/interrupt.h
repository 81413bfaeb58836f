/*
 * interrupt.h - Ctrl-C in a running script.
 *
 * The handler sets the state's cancel flag, which waits and kernels look at, and a hook
 * that raises in the coroutine that runs.  A second Ctrl-C ends the process with status
 * 130, unless the script took note of the first and went on (lua/tidemill/lib/
 * interrupt.lua).
 *
 * Threads: one state a process; the handler runs wherever the signal arrives.
 */
#ifndef TM_HOST_INTERRUPT_H
#define TM_HOST_INTERRUPT_H

#include "base/cancel.h"
#include "lua/compat.h"

/* Catch SIGINT for this state, replace coroutine.resume and coroutine.wrap by ones
 * that tell which coroutine runs, and add what scripts take note by to the module
 * (index `core`). */
void tm_interrupt_open(lua_State *L, int core, tm_cancel *cancel);
/* Lua code begins to run in L; and is over. */
void tm_interrupt_begin(lua_State *L);
void tm_interrupt_end(lua_State *L);
/* The state goes: signals no longer touch it. */
void tm_interrupt_close(void);
/* SIGTERM came: the program ends with status 143. */
bool tm_interrupt_terminated(void);

#endif
