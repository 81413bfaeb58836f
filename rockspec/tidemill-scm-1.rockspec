rockspec_format = "3.0"
package = "tidemill"
version = "scm-1"
-- For `luarocks make` in a checkout.
source = { url = "." }
description = {
  summary = "Parameter-server training: a C core, Lua in charge",
  detailed = [[
tidemill trains models on a cluster of workers and parameter servers. A Lua script
describes the model and the loop; a C core does the work. The libraries it links to
(libuv, MessagePack-C, OpenBLAS, SLEEF, zlib, jansson, libcurl where there is one) are found with
pkg-config.]],
  license = "MIT",
}
dependencies = { "lua >= 5.1, < 5.5" }
build = {
  type = "make",
  -- pkg-config finds all but Lua, whose headers LuaRocks knows.
  build_target = "all",
  build_variables = {
    CFLAGS = "$(CFLAGS)",
    LIBFLAG = "$(LIBFLAG)",
    LUA_INCDIR = "$(LUA_INCDIR)",
    ROCK = "1",
  },
  install_variables = {
    LUA_INCDIR = "$(LUA_INCDIR)",
    CFLAGS = "$(CFLAGS)",
    LIBFLAG = "$(LIBFLAG)",
    BINDIR = "$(BINDIR)",
    LIBDIR = "$(LIBDIR)",
    LUADIR = "$(LUADIR)",
    ROCK = "1",
  },
}
test = {
  type = "command",
  command = "make test",
}
