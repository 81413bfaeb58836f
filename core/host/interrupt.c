#include "host/interrupt.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "lua/state.h"

/*
 * Design.  lua_sethook may be called from a signal handler, but works on one coroutine
 * only, so `running` follows resumes.  Once raised, the hook stays: first after many
 * instructions, so that message handlers get their work done, then at each one, so that
 * a loop around a pcall ends too.  A resume that comes back after Ctrl-C passes the
 * hook on to the coroutine that called it.
 *
 * One function of Lua's side is the catcher (lib/interrupt.lua): the hook leaves it
 * alone, so that it can take note of an interrupt that its pcall caught.  `noted` is
 * from then until the script goes on: nothing is raised, a further Ctrl-C still ends
 * the program.  A launcher waits for the answer of a chief only shortly; while a
 * catcher waits the handler tells it at once that there will be one.
 *
 * A handler touches only what is here.
 */
static lua_State *volatile interrupt_running;
static tm_cancel *volatile interrupt_cancel;
static volatile sig_atomic_t interrupt_hits;
static int64_t interrupt_last; /* of the handler alone */
static bool interrupt_raised;  /* since begin; of the Lua thread */
static volatile sig_atomic_t interrupt_terms;
static volatile sig_atomic_t interrupt_noted;
static volatile sig_atomic_t interrupt_catching; /* calls of the catcher that run */
static volatile sig_atomic_t interrupt_launcher; /* its pid, or 0 */
static const char interrupt_catcher_key;

enum {
  INTERRUPT_AGAIN = 1000,
  INTERRUPT_TERMINATED = 143
}; /* instructions until it is raised once more */
#define INTERRUPT_ECHO_NS 200000000

/* Is the function that runs the catcher? */
static bool interrupt_in_catcher(lua_State *L, lua_Debug *ar) {
  if (!lua_checkstack(L, 3) || !lua_getinfo(L, "f", ar)) return false;
  lua_rawgetp(L, LUA_REGISTRYINDEX, &interrupt_catcher_key);
  bool same = lua_rawequal(L, -1, -2) != 0;
  lua_pop(L, 2);
  return same;
}

static void interrupt_raise(lua_State *L, lua_Debug *ar) {
  if (!interrupt_hits || (interrupt_noted && !interrupt_terms)) {
    lua_sethook(L, NULL, 0, 0); /* armed before it was noted */
    return;
  }
  if (interrupt_in_catcher(L, ar)) {
    lua_sethook(L, interrupt_raise, LUA_MASKCOUNT, 1);
    return;
  }
  /* Lua 5.4 calls for the line too, after the count. */
  if (interrupt_raised && ar->event == LUA_HOOKLINE) return;
  bool told = !interrupt_raised && tm_lua_ctx(L)->told; /* a wait did it already */
  lua_sethook(L, interrupt_raise, LUA_MASKCOUNT,
              interrupt_raised ? 1 : INTERRUPT_AGAIN);
  interrupt_raised = true;
  if (told) return;
  tm_lua_fail(L, TM_ECANCELLED, interrupt_terms ? "ended by SIGTERM" : "interrupted");
}

/* At the next instruction of Lua; not at calls, which LuaJIT takes a message handler
 * for. */
static void interrupt_arm(lua_State *L) {
  lua_sethook(L, interrupt_raise, LUA_MASKLINE | LUA_MASKCOUNT, 1);
}

/* SIGUSR1: Ctrl-C is taken care of; SIGUSR2: the script goes on. */
static void interrupt_tell(int sig) {
  if (interrupt_launcher) kill((pid_t)interrupt_launcher, sig);
}

static void interrupt_on_int(int sig) {
  (void)sig;
  int64_t now = tm_now_ns(), since = now - interrupt_last;
  interrupt_last = now;
  /* A terminal tells the whole group, and a launcher passes it on: one Ctrl-C. */
  if (since < INTERRUPT_ECHO_NS) return;
  if (interrupt_hits++ > 0) _exit(130);
  if (interrupt_catching) interrupt_tell(SIGUSR1);
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
  if (interrupt_hits && !interrupt_noted && before) interrupt_arm(before);
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

/* --- what lib/interrupt.lua uses --- */

/* Nothing is being raised, waits work. */
static void interrupt_reset(lua_State *L) {
  interrupt_raised = false;
  if (interrupt_cancel) tm_cancel_reset(interrupt_cancel);
  tm_lua *ctx = L ? tm_lua_ctx(L) : NULL;
  if (ctx) ctx->told = false;
}

/* core.catch_interrupts(fn): fn is the catcher */
static int interrupt_set_catcher(lua_State *L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  lua_settop(L, 1);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &interrupt_catcher_key);
  return 0;
}

/* core.interrupts_caught(n): so many calls of the catcher more */
static int interrupt_count_catchers(lua_State *L) {
  interrupt_catching += (int)luaL_checkinteger(L, 1);
  return 0;
}

/* core.note_interrupt() -> was there a Ctrl-C?  It is raised no more, waits work. */
static int interrupt_note(lua_State *L) {
  bool came = interrupt_hits > 0 && !interrupt_terms;
  if (came && !interrupt_noted) {
    interrupt_noted = 1;
    interrupt_reset(L);
    lua_sethook(L, NULL, 0, 0);
    interrupt_tell(SIGUSR1);
  }
  lua_pushboolean(L, came);
  return 1;
}

/* core.forget_interrupt(): the next Ctrl-C is a first one. */
static int interrupt_forget(lua_State *L) {
  (void)L;
  if (!interrupt_noted || interrupt_terms) return 0;
  interrupt_hits = 0;
  interrupt_noted = 0;
  interrupt_tell(SIGUSR2);
  return 0;
}

static void interrupt_functions(lua_State *L, int core) {
  static const luaL_Reg functions[] = {{"catch_interrupts", interrupt_set_catcher},
                                       {"interrupts_caught", interrupt_count_catchers},
                                       {"note_interrupt", interrupt_note},
                                       {"forget_interrupt", interrupt_forget}};
  for (size_t i = 0; i < TM_COUNT(functions); i++) {
    lua_pushcfunction(L, functions[i].func);
    lua_setfield(L, core, functions[i].name);
  }
}

void tm_interrupt_open(lua_State *L, int core, tm_cancel *cancel) {
  interrupt_cancel = cancel;
  interrupt_functions(L, core);
  const char *launcher = getenv("TM_LAUNCHER");
  if (launcher && getppid() == (pid_t)atoi(launcher)) interrupt_launcher = getppid();
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
  interrupt_noted = 0;
  interrupt_catching = 0;
  interrupt_reset(L);
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
