#include "lua/server.h"

#include <string.h>
#include <unistd.h>

#include "cluster/server.h"
#include "cluster/spec.h"
#include "lua/cluster_create.h"
#include "net/addr.h"

#define SERVER_MT "tm.core.Server"

typedef struct server_box {
  tm_server *s; /* NULL: closed */
} server_box;

static int server_close(lua_State *L) {
  server_box *b = luaL_checkudata(L, 1, SERVER_MT);
  tm_server_free(b->s);
  b->s = NULL;
  return 0;
}

static tm_server *check_server(lua_State *L, int i) {
  server_box *b = luaL_checkudata(L, i, SERVER_MT);
  if (!b->s) tm_lua_fail(L, TM_EPRECOND, "this server is closed");
  return b->s;
}

/* core.server(job, index, address, cluster_id, chief_timeout?): as tm_server_options */
static int server_start(lua_State *L) {
  tm_server_options o;
  memset(&o, 0, sizeof o);
  o.job = luaL_checkstring(L, 1);
  o.index = (int32_t)luaL_checkinteger(L, 2);
  o.address = luaL_checkstring(L, 3);
  o.cluster_id = luaL_checkstring(L, 4);
  o.chief_timeout = luaL_optnumber(L, 5, -1);
  server_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->s = NULL;
  luaL_getmetatable(L, SERVER_MT);
  lua_setmetatable(L, -2);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_server_start(&o, &b->s, &err), &err);
  return 1;
}

/* server:wait(seconds) -> true: it was stopped, or has left; raises when the chief
 * stays away for too long; false: it serves on.  nil waits for ever. */
static int server_wait(lua_State *L) {
  tm_server *s = check_server(L, 1);
  tm_cancel *cancel = &tm_lua_ctx(L)->cancel;
  tm_err err;
  tm_err_clear(&err);
  double seconds = luaL_optnumber(L, 2, -1);
  tm_status st = seconds < 0
                     ? tm_server_join(s, cancel, &err)
                     : tm_server_wait(s, (int64_t)(seconds * 1e9), cancel, &err);
  if (st != TM_EAGAIN) tm_lua_check(L, st, &err);
  lua_pushboolean(L, st == TM_OK);
  return 1;
}

/* server:leave(why, grace): wait then ends soon */
static int server_leave(lua_State *L) {
  tm_server_leave(check_server(L, 1), luaL_checkstring(L, 2), luaL_checknumber(L, 3));
  return 0;
}

static int server_port(lua_State *L) {
  lua_pushinteger(L, tm_server_port(check_server(L, 1)));
  return 1;
}

/* core.cluster_id(workers, ps): what a cluster is called when it has no name */
static int server_cluster_id(lua_State *L) {
  const char **list[2];
  int32_t n[2];
  char id[TM_CLUSTER_ID];
  for (int k = 0; k < 2; k++) {
    luaL_checktype(L, k + 1, LUA_TTABLE);
    n[k] = (int32_t)lua_rawlen(L, k + 1);
    list[k] = lua_newuserdatauv(L, ((size_t)n[k] + 1) * sizeof(char *), 0);
    for (int32_t i = 0; i < n[k]; i++) {
      lua_rawgeti(L, k + 1, i + 1);
      list[k][i] = luaL_checkstring(L, -1);
      lua_pop(L, 1); /* the list keeps it */
    }
  }
  tm_cluster_id(list[0], n[0], list[1], n[1], id);
  lua_pushstring(L, id);
  return 1;
}

/* core.unused_port(): a TCP port of 127.0.0.1 that nobody used a moment ago */
static int server_unused_port(lua_State *L) {
  uint16_t port = tm_addr_unused_port();
  if (!port) return tm_lua_fail(L, TM_EEXHAUSTED, "all ports of 127.0.0.1 are in use");
  lua_pushinteger(L, port);
  return 1;
}

void tm_lua_open_server(lua_State *L, int core) {
  static const luaL_Reg server[] = {{"wait", server_wait},
                                    {"leave", server_leave},
                                    {"port", server_port},
                                    {"close", server_close},
                                    {NULL, NULL}};
  tm_lua_new_class(L, SERVER_MT, server, server_close);
  lua_pushcfunction(L, server_start);
  lua_setfield(L, core, "server");
  lua_pushcfunction(L, server_cluster_id);
  lua_setfield(L, core, "cluster_id");
  lua_pushcfunction(L, server_unused_port);
  lua_setfield(L, core, "unused_port");
}
