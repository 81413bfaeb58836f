#include <string.h>

#include "base/mem.h"
#include "graph/infer.h"
#include "lua/compat.h"
#include "lua/error.h"
#include "lua/module.h"
#include "tidemill.h"

/*
 * Design.  The public face (tidemill.h).  What interrupts is the cancel flag of the
 * state, which waits and kernels look at already; a hook looks at it every so many
 * instructions.  A coroutine inherits the hook.  So nothing but an atomic is touched
 * from other threads.
 *
 * Invariants:
 *   (1) L never runs code outside of a protected call.
 *   (2) The flag is off when a run has ended.
 *   (3) Ops that were registered live as long as the process: the table keeps them.
 */
enum { EMBED_HOOK_EVERY = 1000 };

struct tm_host {
  lua_State *L;
  tm_cancel *cancel; /* in L's context */
  char *error;       /* NULL: none */
};

const char *tm_version(void) { return TM_VERSION; }

static void embed_hook(lua_State *L, lua_Debug *ar) {
  (void)ar;
  if (!tm_cancelled(&tm_lua_ctx(L)->cancel)) return;
  lua_sethook(L, embed_hook, LUA_MASKCOUNT, 1); /* a loop around a pcall ends too */
  tm_lua_fail(L, TM_ECANCELLED, "interrupted");
}

static int embed_open(lua_State *L) {
  luaL_openlibs(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_tidemill_core);
  lua_setfield(L, -2, "tidemill.core");
  lua_getglobal(L, "require");
  lua_pushliteral(L, "tidemill.core");
  lua_call(L, 1, 0);
  lua_sethook(L, embed_hook, LUA_MASKCOUNT, EMBED_HOOK_EVERY);
  return 0;
}

tm_host *tm_host_new(void) {
  tm_host *h = tm_calloc(1, sizeof *h);
  if (!h) return NULL;
  h->L = luaL_newstate();
  if (h->L) {
    lua_pushcfunction(h->L, embed_open);
    if (lua_pcall(h->L, 0, 0, 0) == LUA_OK) {
      h->cancel = &tm_lua_ctx(h->L)->cancel;
      return h;
    }
  }
  tm_host_free(h);
  return NULL;
}

void tm_host_free(tm_host *h) {
  if (!h) return;
  if (h->L) {
    lua_sethook(h->L, NULL, 0, 0);
    lua_close(h->L);
  }
  tm_strfree(h->error);
  tm_free(h, sizeof *h);
}

void *tm_host_lua(tm_host *h) { return h->L; }

const char *tm_host_error(const tm_host *h) { return h->error ? h->error : ""; }

void tm_host_interrupt(tm_host *h) { tm_cancel_set(h->cancel); }

/* --- running --- */

/* The text of an error and where it was raised: error objects know it themselves. */
static int embed_handler(lua_State *L) {
  if (lua_type(L, 1) == LUA_TTABLE) return 1;
  luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
  return 1;
}

/* (error) -> its text */
static int embed_text(lua_State *L) {
  luaL_tolstring(L, 1, NULL);
  if (lua_type(L, 1) != LUA_TTABLE) return 1;
  lua_getfield(L, 1, "traceback");
  if (lua_type(L, -1) != LUA_TSTRING) {
    lua_pop(L, 1);
    return 1;
  }
  lua_pushliteral(L, "\n");
  lua_insert(L, -2);
  lua_concat(L, 3);
  return 1;
}

/* The error on top becomes the host's. */
static int embed_fail(tm_host *h) {
  lua_pushcfunction(h->L, embed_text);
  lua_insert(h->L, -2);
  (void)lua_pcall(h->L, 1, 1, 0);
  const char *text = lua_tostring(h->L, -1);
  h->error = tm_strdup(text ? text : "an error without a text");
  lua_settop(h->L, 0);
  return 1;
}

/* The loaded function, or the error of loading, is on top. */
static int embed_run(tm_host *h, int loaded, int argc, const char *const *argv) {
  if (loaded != LUA_OK) return embed_fail(h);
  if (!lua_checkstack(h->L, argc + 8)) {
    lua_pushliteral(h->L, "too many arguments");
    return embed_fail(h);
  }
  lua_pushcfunction(h->L, embed_handler);
  lua_insert(h->L, 1);
  for (int i = 0; i < argc; i++) lua_pushstring(h->L, argv[i]);
  int s = lua_pcall(h->L, argc, 0, 1);
  tm_cancel_reset(h->cancel); /* (2) */
  lua_sethook(h->L, embed_hook, LUA_MASKCOUNT, EMBED_HOOK_EVERY);
  if (s != LUA_OK) return embed_fail(h);
  lua_settop(h->L, 0);
  return 0;
}

static void embed_begin(tm_host *h) {
  lua_settop(h->L, 0);
  tm_strfree(h->error);
  h->error = NULL;
}

int tm_host_file(tm_host *h, const char *path, int argc, const char *const *argv) {
  embed_begin(h);
  return embed_run(h, luaL_loadfile(h->L, path), argc, argv);
}

int tm_host_string(tm_host *h, const char *text, const char *name) {
  embed_begin(h);
  return embed_run(h, luaL_loadbuffer(h->L, text, strlen(text), name), 0, NULL);
}

/* --- ops in C --- */

typedef struct embed_op {
  tm_op op; /* first */
  tm_elementwise f;
} embed_op;

static tm_status embed_infer(tm_infer *c) {
  if (c->in[0].dtype != TM_F32)
    return tm_fail(c->err, TM_EINVAL, "x is %s, not float32",
                   tm_dtype_name(c->in[0].dtype));
  return tm_infer_out(c, TM_F32, &c->in[0].shape);
}

static tm_status embed_kernel(tm_kctx *c) {
  const embed_op *e = (const embed_op *)c->op;
  e->f(c->in[0].data, c->out[0].data, (size_t)tm_view_count(&c->in[0]));
  return TM_OK;
}

static bool embed_is_name(const char *s) {
  const char *letters = "abcdefghijklmnopqrstuvwxyz_";
  if (!s || !*s || !strchr(letters, *s)) return false;
  return strspn(s, "abcdefghijklmnopqrstuvwxyz_0123456789") == strlen(s);
}

int tm_register_elementwise(const char *name, const char *help, tm_elementwise f) {
  if (!embed_is_name(name) || !help || !*help || !f) return 1;
  tm_err err = {0};
  embed_op *e = tm_calloc(1, sizeof *e);
  char *n = tm_strdup(name), *h = tm_strdup(help);
  if (e && n && h && tm_ops_init(&err) == TM_OK) {
    e->f = f;
    e->op = (tm_op){.name = n,
                    .sig = "x",
                    .help = h,
                    .flags = TM_OP_ELEMENTWISE,
                    .infer = embed_infer,
                    .kernel = embed_kernel};
    if (!tm_op_find(n) && tm_op_add(&e->op, &err) == TM_OK) return 0; /* (3) */
  }
  tm_strfree(n);
  tm_strfree(h);
  tm_free(e, sizeof *e);
  return 1;
}
