#include "lua/claim.h"

#include <dirent.h>

#include "ckpt/claim.h"
#include "ckpt/reader.h"
#include "lua/ckpt.h"
#include "lua/state.h"

/* Design.  A claim is a userdata that is pushed empty; what fails gives nil and an
 * error object, what is simply not ours nil and a word. */
#define CLAIM_MT "tm.core.Claim"

enum { CLAIM_LIST_MAX = 100000 };

typedef struct claim_box {
  tm_claim *c;
} claim_box;

static int claim_gc(lua_State *L) {
  claim_box *b = luaL_checkudata(L, 1, CLAIM_MT);
  tm_claim_free(b->c);
  b->c = NULL;
  return 0;
}

/* take(path, of) -> claim; nil, "held" | "done"; nil and the error */
static int claim_take(lua_State *L) {
  const char *path = luaL_checkstring(L, 1), *of = luaL_checkstring(L, 2);
  tm_claim_state found;
  tm_err err;
  tm_err_clear(&err);
  claim_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->c = NULL;
  luaL_getmetatable(L, CLAIM_MT);
  lua_setmetatable(L, -2);
  tm_status s = tm_claim_take(path, of, &b->c, &found, &err);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  if (found == TM_CLAIM_MINE) return 1;
  lua_pushnil(L);
  lua_pushstring(L, found == TM_CLAIM_DONE ? "done" : "held");
  return 2;
}

static tm_claim *claim_check(lua_State *L) {
  claim_box *b = luaL_checkudata(L, 1, CLAIM_MT);
  if (!b->c) tm_lua_fail(L, TM_EPRECOND, "this claim is given up");
  return b->c;
}

static int claim_beat(lua_State *L) {
  lua_pushboolean(L, tm_claim_beat(claim_check(L)));
  return 1;
}

static int claim_finish(lua_State *L) {
  lua_pushboolean(L, tm_claim_finish(claim_check(L)));
  return 1;
}

static int claim_mark(lua_State *L) {
  lua_pushnumber(L, (lua_Number)tm_claim_mark(luaL_checkstring(L, 1)));
  return 1;
}

static int claim_break(lua_State *L) {
  tm_claim_break(luaL_checkstring(L, 1), (uint64_t)luaL_checknumber(L, 2));
  return 0;
}

static int claim_forget(lua_State *L) {
  tm_claim_forget(luaL_checkstring(L, 1));
  return 0;
}

static int claim_dir_gc(lua_State *L) {
  DIR **d = lua_touserdata(L, 1);
  if (*d) closedir(*d);
  *d = NULL;
  return 0;
}

/* list(dir) -> names in it */
static int claim_list(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  DIR **d = lua_newuserdatauv(L, sizeof(DIR *), 0);
  *d = NULL;
  luaL_getmetatable(L, CLAIM_MT ".Dir");
  lua_setmetatable(L, -2);
  *d = opendir(path);
  lua_newtable(L);
  int n = 0;
  for (struct dirent *e; *d && n < CLAIM_LIST_MAX && (e = readdir(*d));) {
    if (e->d_name[0] == '.') continue;
    lua_pushstring(L, e->d_name);
    lua_rawseti(L, -2, ++n);
  }
  return 1;
}

/* identity(path) -> text that tells checkpoints of this path apart; nil and the error
 */
static int claim_identity(lua_State *L) {
  tm_ckpt_reader *r;
  uint64_t size;
  uint32_t crc;
  char text[TM_CLAIM_OF];
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_ckpt_open(luaL_checkstring(L, 1), &r, &err);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  tm_ckpt_identity(r, &size, &crc);
  tm_ckpt_close(r);
  snprintf(text, sizeof text, "%08lx-%llu", (unsigned long)crc,
           (unsigned long long)size);
  lua_pushstring(L, text);
  return 1;
}

static void claim_class(lua_State *L, const char *name, lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
}

void tm_lua_open_claim(lua_State *L, int core) {
  static const luaL_Reg methods[] = {{"beat", claim_beat},
                                     {"finish", claim_finish},
                                     {"close", claim_gc},
                                     {NULL, NULL}};
  static const luaL_Reg functions[] = {{"take", claim_take},
                                       {"mark", claim_mark},
                                       {"break_", claim_break},
                                       {"forget", claim_forget},
                                       {"list", claim_list},
                                       {"identity", claim_identity},
                                       {NULL, NULL}};
  claim_class(L, CLAIM_MT ".Dir", claim_dir_gc);
  lua_pop(L, 1);
  claim_class(L, CLAIM_MT, claim_gc);
  lua_newtable(L);
  luaL_setfuncs(L, methods, 0);
  lua_setfield(L, -2, "__index");
  lua_pop(L, 1);
  lua_newtable(L);
  luaL_setfuncs(L, functions, 0);
  lua_setfield(L, core, "claim");
}
