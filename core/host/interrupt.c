#include "host/interrupt.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "lua/error.h"

/*
 * Design.  lua_sethook may be called from a signal handler, but works on one coroutine
 * only, so `running` follows resumes.  Once raised, the hook stays: first after many
 * instructions, so that message handlers get their work done, then at each one, so that
 * a loop around a pcall ends too.  A resume that comes back after Ctrl-C passes the
 * hook on to the coroutine that called it.
 *
 * A handler touches only what is here.
 */
static lua_State *volatile interrupt_running;
static tm_cancel *volatile interrupt_cancel;
static volatile sig_atomic_t interrupt_hits;
static int64_t interrupt_last; /* of the handler alone */
static bool interrupt_raised;  /* since begin; of the Lua thread */
static volatile sig_atomic_t interrupt_terms;

enum {
  INTERRUPT_AGAIN = 1000,
  INTERRUPT_TERMINATED = 143
}; /* instructions until it is raised once more */
#define INTERRUPT_ECHO_NS 200000000

static void interrupt_raise(lua_State *L, lua_Debug *ar) {
  (void)ar;
  lua_sethook(L, interrupt_raise, LUA_MASKCOUNT,
              interrupt_raised ? 1 : INTERRUPT_AGAIN);
  interrupt_raised = true;
  tm_lua_fail(L, TM_ECANCELLED, interrupt_terms ? "ended by SIGTERM" : "interrupted");
}

/* At the next instruction of Lua; not at calls, which LuaJIT takes a message handler
 * for. */
static void interrupt_arm(lua_State *L) {
  lua_sethook(L, interrupt_raise, LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

static void interrupt_on_int(int sig) {
  (void)sig;
  int64_t now = tm_now_ns(), since = now - interrupt_last;
  interrupt_last = now;
  /* A terminal tells the whole group, and a launcher passes it on: one Ctrl-C. */
  if (interrupt_hits && since < INTERRUPT_ECHO_NS) return;
  if (interrupt_hits++ > 0) _exit(130);
  if (interrupt_cancel) tm_cancel_set(interrupt_cancel);
  if (interrupt_running) interrupt_arm(interrupt_running);
}

/* The script ends as at Ctrl-C, so that its files are closed; a second SIGTERM does not
 * wait for that. */
static void interrupt_on_term(int sig) {
  (void)sig;
  if (interrupt_terms++ > 0) _exit(INTERRUPT_TERMINATED);
  interrupt_hits++;
  if (interrupt_cancel) tm_cancel_set(interrupt_cancel);
  if (interrupt_running) interrupt_arm(interrupt_running);
}

bool tm_interrupt_terminated(void) { return interrupt_terms > 0; }

/* resume(co, ...), with the original as upvalue 1 */
static int interrupt_resume(lua_State *L) {
  lua_State *co = lua_tothread(L, 1), *before = interrupt_running;
  int n = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  if (co) interrupt_running = co;
  lua_call(L, n, LUA_MULTRET);
  interrupt_running = before;
  if (interrupt_hits && before) interrupt_arm(before);
  return lua_gettop(L);
}

/* What wrap returns: resume (upvalue 1) of its coroutine (upvalue 2); errors go on. */
static int interrupt_wrapped(lua_State *L) {
  int n = lua_gettop(L);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_insert(L, 1);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, n + 1, LUA_MULTRET);
  if (lua_toboolean(L, 1)) {
    lua_remove(L, 1);
    return lua_gettop(L);
  }
  lua_settop(L, 2);
  if (lua_type(L, -1) == LUA_TSTRING) { /* as Lua's own wrap does */
    luaL_where(L, 1);
    lua_insert(L, -2);
    lua_concat(L, 2);
  }
  return lua_error(L);
}

/* wrap(f), with resume and create as upvalues */
static int interrupt_wrap(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  lua_pushcclosure(L, interrupt_wrapped, 2);
  return 1;
}

void tm_interrupt_open(lua_State *L, tm_cancel *cancel) {
  interrupt_cancel = cancel;
  lua_getglobal(L, "coroutine");
  lua_getfield(L, -1, "resume");
  lua_pushcclosure(L, interrupt_resume, 1);
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "resume");
  lua_getfield(L, -2, "create");
  lua_pushcclosure(L, interrupt_wrap, 2);
  lua_setfield(L, -2, "wrap");
  lua_pop(L, 1);
  struct sigaction sa;
  memset(&sa, 0, sizeof sa);
  sa.sa_handler = interrupt_on_int;
  sigaction(SIGINT, &sa, NULL);
  sa.sa_handler = interrupt_on_term;
  sigaction(SIGTERM, &sa, NULL);
}

void tm_interrupt_begin(lua_State *L) {
  interrupt_hits = interrupt_terms;
  interrupt_raised = false;
  if (interrupt_cancel) tm_cancel_reset(interrupt_cancel);
  interrupt_running = L;
}

void tm_interrupt_end(lua_State *L) {
  interrupt_running = NULL;
  lua_sethook(L, NULL, 0, 0);
}

void tm_interrupt_close(void) {
  interrupt_running = NULL;
  interrupt_cancel = NULL;
}
