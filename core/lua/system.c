#include "lua/system.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/*
 * Design.  There is one sink a process (base/log.h), so the stream is a static here.  A
 * file that was opened before is closed only after the sink points elsewhere.
 */
static FILE *system_log; /* a file that we opened; changed by the Lua thread only */

void tm_lua_log_to_stderr(bool on) { tm_log_stream(on ? stderr : NULL, TM_LOG_WARN); }

static tm_log_level system_level(lua_State *L, int i) {
  if (lua_isnoneornil(L, i)) return TM_LOG_INFO;
  const char *name = luaL_checkstring(L, i);
  for (int k = 0; k < 4; k++)
    if (strcmp(name, tm_log_level_name((tm_log_level)k)) == 0) return (tm_log_level)k;
  tm_lua_fail(L, TM_EINVAL,
              "log level \"%s\": there are \"debug\", \"info\", \"warn\", \"error\"",
              name);
  return TM_LOG_INFO;
}

/* core.log_to(nil | "stderr" | "stdout" | path, level?) */
static int system_log_to(lua_State *L) {
  tm_log_level min = system_level(L, 2);
  FILE *old = system_log, *to = NULL, *opened = NULL;
  if (!lua_isnoneornil(L, 1)) {
    const char *path = luaL_checkstring(L, 1);
    if (strcmp(path, "stderr") == 0) to = stderr;
    if (strcmp(path, "stdout") == 0) to = stdout;
    if (!to) {
      to = opened = fopen(path, "a");
      if (!to)
        return tm_lua_fail(L, TM_ENOTFOUND, "log file \"%s\": %s", path,
                           strerror(errno));
    }
  }
  system_log = opened;
  tm_log_stream(to, min);
  if (old) fclose(old);
  return 0;
}

/* core.log(level, text) */
static int system_log_text(lua_State *L) {
  tm_log(system_level(L, 1), "%s", luaL_checkstring(L, 2));
  return 0;
}

/* core.terminal() -> columns of the terminal that standard output is; nil: none */
static int system_terminal(lua_State *L) {
  struct winsize w;
  if (!isatty(STDOUT_FILENO)) return 0;
  int columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 ? w.ws_col : 0;
  lua_pushinteger(L, columns > 0 ? columns : 80);
  return 1;
}

/* core.training_ended(): has the chief of the launcher that started this evaluator
 * ended? Then the other end of the pipe that TM_TRAINING_END names is closed. */
static int system_training_ended(lua_State *L) {
  const char *text = getenv("TM_TRAINING_END");
  struct pollfd p = {.fd = text ? atoi(text) : -1, .events = POLLIN};
  bool ended = p.fd > STDERR_FILENO && poll(&p, 1, 0) == 1 && (p.revents & POLLHUP);
  lua_pushboolean(L, ended);
  return 1;
}

static int system_print_text(lua_State *L) {
  tm_print_text(luaL_checkstring(L, 1));
  return 0;
}

static int system_time(lua_State *L) {
  lua_pushnumber(L, tm_now_s());
  return 1;
}

/* core.sleep(seconds): in pieces, so that an interrupt ends it. */
static int system_sleep(lua_State *L) {
  double s = luaL_checknumber(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  if (!(s >= 0 && s < 1e9))
    return tm_lua_fail(L, TM_EINVAL, "sleep: %.14g is no number of seconds", s);
  int64_t end = tm_now_ns() + (int64_t)(s * 1e9);
  for (int64_t left; (left = end - tm_now_ns()) > 0;) {
    if (tm_cancelled(&ctx->cancel)) return tm_lua_fail(L, TM_ECANCELLED, "interrupted");
    tm_sleep_ns(left < 50000000 ? left : 50000000);
  }
  return 0;
}

/* core.set_seed(n): the global seed; what counts up starts again. */
static int system_set_seed(lua_State *L) {
  int64_t seed;
  if (!tm_lua_integer(L, 1, &seed))
    return tm_lua_fail(L, TM_EINVAL, "set_seed: a whole number is wanted");
  tm_lua *ctx = tm_lua_ctx(L);
  ctx->seed = (uint64_t)seed;
  ctx->seeded = true;
  ctx->runs = 0;
  return 0;
}

/* core.seed() -> seed, whether set_seed was called */
static int system_seed(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  tm_lua_push_int64(L, (int64_t)ctx->seed);
  lua_pushboolean(L, ctx->seeded);
  return 2;
}

/* core.threads(n?) -> how many threads kernels of this process may use */
static int system_threads(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  int64_t n;
  if (!lua_isnoneornil(L, 1)) {
    if (!tm_lua_integer(L, 1, &n) || n < 1 || n > 1024)
      return tm_lua_fail(L, TM_EINVAL, "threads: a number from 1 to 1024 is wanted");
    ctx->threads = (int)n;
  }
  lua_pushinteger(L, ctx->threads);
  return 1;
}

/* core.memory() -> bytes of tensors that Lua holds, bytes of the core */
static int system_memory(lua_State *L) {
  tm_lua_push_int64(L, tm_lua_ctx(L)->live_bytes);
  tm_lua_push_int64(L, tm_mem_live());
  return 2;
}

void tm_lua_open_system(lua_State *L, int core) {
  static const luaL_Reg functions[] = {
      {"time", system_time},
      {"sleep", system_sleep},
      {"set_seed", system_set_seed},
      {"seed", system_seed},
      {"threads", system_threads},
      {"memory", system_memory},
      {"log_to", system_log_to},
      {"log", system_log_text},
      {"print", system_print_text},
      {"terminal", system_terminal},
      {"training_ended", system_training_ended},
      {NULL, NULL},
  };
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
