#include "host/script.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "base/log.h"
#include "host/evaluator.h"
#include "host/interrupt.h"
#include "host/launch.h"
#include "host/role.h"
#include "lua/compat.h"
#include "lua/module.h"
#include "lua/state.h"
#include "lua/system.h"
#include "lua/value.h"

/*
 * Design.  One state, in protected calls only; what Ctrl-C does is in interrupt.c.
 */

static int script_traceback(lua_State *L) {
  if (tm_lua_metafield(L, 1, "__tostring") && lua_type(L, 1) == LUA_TTABLE) {
    lua_pop(L, 1);
    lua_getfield(L, 1, "traceback");
    if (lua_isnil(L, -1)) {
      luaL_traceback(L, L, NULL, 1);
      lua_setfield(L, 1, "traceback");
    }
    lua_settop(L, 1);
    return 1;
  }
  const char *text = lua_tostring(L, 1);
  luaL_traceback(L, L, text ? text : "(error object is not a string)", 1);
  return 1;
}

/* The error on top of the stack, on standard error. */
static int script_report(lua_State *L) {
  lua_getglobal(L, "tostring");
  lua_pushvalue(L, -2);
  const char *text = lua_pcall(L, 1, 1, 0) == LUA_OK ? lua_tostring(L, -1) : NULL;
  fprintf(stderr, "tidemill: %s\n", text ? text : "(error without a text)");
  lua_pop(L, 1);
  if (lua_type(L, -1) == LUA_TTABLE) {
    lua_getfield(L, -1, "traceback");
    if (lua_type(L, -1) == LUA_TSTRING) fprintf(stderr, "%s\n", lua_tostring(L, -1));
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return 1;
}

/* Call the function below n arguments; 0, or 1 after reporting. */
static int script_call(lua_State *L, int n, int results) {
  int base = lua_gettop(L) - n;
  lua_pushcfunction(L, script_traceback);
  lua_insert(L, base);
  tm_interrupt_begin(L);
  int s = lua_pcall(L, n, results, base);
  tm_interrupt_end(L);
  lua_remove(L, base);
  if (s == LUA_OK) return 0;
  if (!tm_interrupt_terminated()) return script_report(L);
  fprintf(stderr, "tidemill: ended by SIGTERM\n");
  lua_pop(L, 1);
  return 1;
}

/* --- paths --- */

static bool script_has(const char *dir, const char *file) {
  char path[4200];
  return snprintf(path, sizeof path, "%s/%s", dir, file) < (int)sizeof path &&
         access(path, R_OK) == 0;
}

/* Lua modules beside a build (build/../lua) or an installation (bin/../share). */
static void script_paths(lua_State *L) {
  char exe[4096];
  size_t n = sizeof exe;
  if (uv_exepath(exe, &n)) return;
  char *slash = strrchr(exe, '/');
  if (!slash) return;
  *slash = '\0';
  static const char *const places[] = {"/../lua", "/../share/lua/5.4",
                                       "/../share/tidemill/lua"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    char dir[4200];
    snprintf(dir, sizeof dir, "%s%s", exe, places[i]);
    if (!script_has(dir, "tidemill/init.lua")) continue;
    lua_getglobal(L, "package");
    lua_pushfstring(L, "%s/?.lua;%s/?/init.lua;", dir, dir);
    lua_getfield(L, -2, "path");
    lua_concat(L, 2);
    lua_setfield(L, -2, "path");
    lua_pop(L, 1);
    return;
  }
}

static int script_open(lua_State *L) {
  luaL_openlibs(L);
  script_paths(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_tidemill_core);
  lua_setfield(L, -2, "tidemill.core");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tidemill.core");
  lua_call(L, 1, 1);
  lua_pushboolean(L, 1); /* SIGTERM is handled here already */
  lua_setfield(L, -2, "is_program");
  tm_interrupt_open(L, lua_gettop(L), &tm_lua_ctx(L)->cancel);
  return 0;
}

/* --- running --- */

static void script_args(lua_State *L, int argc, char **argv, int script) {
  lua_newtable(L);
  for (int i = 0; i < argc; i++) {
    lua_pushstring(L, argv[i]);
    lua_rawseti(L, -2, i - script);
  }
  lua_setglobal(L, "arg");
}

static int script_file(lua_State *L, int argc, char **argv, int at) {
  script_args(L, argc, argv, at);
  const char *name = strcmp(argv[at], "-") == 0 ? NULL : argv[at];
  if (luaL_loadfile(L, name)) return script_report(L);
  int n = argc - at - 1;
  luaL_checkstack(L, n + 4, "arguments");
  for (int i = at + 1; i < argc; i++) lua_pushstring(L, argv[i]);
  return script_call(L, n, 0);
}

static int script_text(lua_State *L, const char *text) {
  if (luaL_loadbuffer(L, text, strlen(text), "=(command line)"))
    return script_report(L);
  return script_call(L, 0, 0);
}

/* Print what the prompt's line gave: everything above `base`. */
static void script_print(lua_State *L, int base) {
  int n = lua_gettop(L) - base;
  if (n == 0) return;
  lua_getglobal(L, "print");
  lua_insert(L, base + 1);
  (void)script_call(L, n, 0);
}

static bool script_incomplete(lua_State *L) {
  size_t n;
  const char *text = lua_tolstring(L, -1, &n);
  return text && n >= 5 && strcmp(text + n - 5, "<eof>") == 0;
}

/* Load a chunk as an expression, else as statements. */
static int script_load(lua_State *L, const char *text) {
  lua_pushfstring(L, "return %s", text);
  const char *expression = lua_tostring(L, -1);
  int s = luaL_loadbuffer(L, expression, strlen(expression), "=stdin");
  lua_remove(L, -2);
  if (s == LUA_OK) return s;
  lua_pop(L, 1);
  return luaL_loadbuffer(L, text, strlen(text), "=stdin");
}

enum { SCRIPT_CHUNK = 1 << 16 };

/* One chunk from the terminal; false at the end of input. */
static bool script_prompt_once(lua_State *L, char *text) {
  size_t n = 0;
  text[0] = '\0';
  for (;;) {
    printf("%s", n ? ">> " : "> ");
    fflush(stdout);
    tm_interrupt_begin(NULL);
    if (!fgets(text + n, (int)(SCRIPT_CHUNK - n), stdin)) {
      if (!feof(stdin) && errno == EINTR) {
        clearerr(stdin);
        puts("");
        return true;
      }
      return false;
    }
    n += strlen(text + n);
    int base = lua_gettop(L);
    int s = script_load(L, text);
    if (s == LUA_ERRSYNTAX && script_incomplete(L) && n < SCRIPT_CHUNK - 1) {
      lua_settop(L, base);
      continue;
    }
    if (s) {
      script_report(L);
    } else if (script_call(L, 0, LUA_MULTRET) == 0) {
      script_print(L, base);
    }
    lua_settop(L, base);
    return true;
  }
}

static int script_prompt(lua_State *L) {
  static char text[SCRIPT_CHUNK];
  printf("tidemill %s; Lua in charge. Ctrl-D ends.\n", TM_VERSION);
  (void)script_text(L, "tm = require 'tidemill'");
  while (script_prompt_once(L, text) && !tm_interrupt_terminated()) {
  }
  puts("");
  return 0;
}

static int script_usage(FILE *to) {
  fputs(
      "usage: tidemill [-e TEXT] [script.lua [args]]\n"
      "       tidemill launch --workers N --ps N script.lua [args]\n"
      "       tidemill worker | ps      a task of the cluster that TM_CONFIG names\n"
      "       tidemill evaluator script.lua [args]    the script, beside a training\n"
      "       tidemill inspect CHECKPOINT [NAME...]   what a checkpoint holds\n"
      "       tidemill --version | --help\n"
      "Without a script: a prompt, or the script on standard input.\n",
      to);
  return to == stderr ? 2 : 0;
}

static int script_run(lua_State *L, int argc, char **argv) {
  int i = 1;
  bool did = false;
  for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
    if (strcmp(argv[i], "--no-role") == 0) continue;
    if (strcmp(argv[i], "-e") != 0 || i + 1 >= argc) {
      fprintf(stderr, "tidemill: unknown option %s\n", argv[i]);
      return script_usage(stderr);
    }
    did = true;
    int s = script_text(L, argv[++i]);
    if (s) return s;
  }
  if (i < argc) return script_file(L, argc, argv, i);
  if (did) return 0;
  if (isatty(0)) return script_prompt(L);
  char *input[] = {argv[0], (char *)(uintptr_t) "-", NULL};
  return script_file(L, 2, input, 1);
}

/* The environment may give a script another role; not a prompt or -e, and not with
 * --no-role. */
static bool script_has_role(int argc, char **argv) {
  return argc > 1 && argv[1][0] != '-';
}

int tm_host_script(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "--version") == 0) {
    printf("tidemill %s\n", TM_VERSION);
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "--help") == 0) return script_usage(stdout);
  int status = 1;
  if (script_has_role(argc, argv) && tm_host_script_role(&status)) return status;
  tm_host_follow_launcher();
  lua_State *L = luaL_newstate();
  if (!L) {
    fprintf(stderr, "tidemill: out of memory\n");
    return 1;
  }
  tm_lua_log_to_stderr(true);
  if (tm_host_is_evaluator()) tm_log_stream(stderr, TM_LOG_INFO);
  lua_pushcfunction(L, script_open);
  if (script_call(L, 0, 0) == 0) {
    /* Ctrl-C at a launcher is the chief's; an evaluator goes on beside it. */
    if (tm_host_is_evaluator() && getenv("TM_LAUNCHER")) signal(SIGINT, SIG_IGN);
    status = script_run(L, argc, argv);
  }
  tm_interrupt_close();
  lua_close(L);
  return tm_interrupt_terminated() ? 128 + SIGTERM : status;
}
