/* Any allocation may fail under a script: Lua's own, and those of the core. */
#include <lauxlib.h>
#include <lualib.h>

#include "lua/module.h"
#include "test.h"

/* What the binding does most: tensors, ops, errors, tapes, functions, datasets. */
static const char script[] =
    "local tm = require 'tidemill'\n"
    "return function()\n"
    "  local x = tm.tensor({ { 1, 2 }, { 3, 4 } }, 'float32')\n"
    "  local v = tm.Variable(x)\n"
    "  local tape = tm.GradientTape()\n"
    "  local y = tm.reduce_sum(tm.matmul(v, x) * 2 + x[1])\n"
    "  local g = tape:gradient(y, { v })\n"
    "  v:assign_sub(g[1] * 0.1)\n"
    "  local f = tm.func(function(a) return { sum = tm.reduce_sum(a * v), v:read() } "
    "end)\n"
    "  local r = f(x)\n"
    "  local text = tostring(r.sum) .. #x:slice({ { 1 } }):totable()\n"
    "  local ds = tm.data.from_tensor_slices { a = { 1, 2, 3 }, b = { 'x', 'y', 'z' } "
    "}\n"
    "  ds = ds:map(function(e) return { a = e.a + 1, b = e.b } "
    "end):shuffle(3):batch(2)\n"
    "  local n = 0\n"
    "  for e in ds:iterator() do n = n + e.a.shape[1] end\n"
    "  local ok, e = pcall(tm.matmul, x, tm.zeros { 3, 3 })\n"
    "  assert(not ok)\n"
    "  return n, text, tostring(e)\n"
    "end\n";

/* Without memory errors a call gives 3 elements. */
enum { ELEMENTS = 3 };

static void *lua_flaky(void *ud, void *p, size_t old_size, size_t n) {
  struct test_budget *b = ud;
  /* Shrinking never fails: Lua relies on it. */
  if (p && n && n <= old_size) return realloc(p, n);
  return test_flaky(b, p, old_size, n);
}

static lua_State *state_open(struct test_budget *b) {
  b->left = -1;
  lua_State *L = lua_newstate(lua_flaky, b);
  assert_non_null(L);
  luaL_openlibs(L);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "preload");
  lua_pushcfunction(L, luaopen_tidemill_core);
  lua_setfield(L, -2, "tidemill.core");
  lua_pushliteral(L, "lua/?.lua;lua/?/init.lua");
  lua_setfield(L, -3, "path");
  lua_settop(L, 0);
  if (luaL_loadbuffer(L, script, sizeof script - 1, "=script") || lua_pcall(L, 0, 1, 0))
    fail_msg("%s", lua_tostring(L, -1));
  return L;
}

/* 1: it gave all; 0: it failed for want of memory. */
static int state_call(lua_State *L) {
  lua_pushvalue(L, 1);
  int s = lua_pcall(L, 0, 3, 0);
  if (s == LUA_OK && lua_tointeger(L, 2) == ELEMENTS) return 1;
  return s == LUA_OK ? -1 : 0;
}

/* Errors of the core are tables, whose code says it; Lua's own is a string. */
static bool is_want_of_memory(lua_State *L) {
  luaL_tolstring(L, -1, NULL);
  const char *s = lua_tostring(L, -1);
  bool yes = strstr(s, "memory") != NULL;
  if (!yes) print_message("%s\n", s);
  lua_pop(L, 1);
  return yes;
}

static void torture(bool core, bool once, long step) {
  int64_t live = tm_mem_live();
  struct test_budget lua, other;
  lua_State *L = state_open(&lua);
  for (int i = 0; i < 3; i++) {
    int got = state_call(L);
    if (got != 1) fail_msg("%s", luaL_tolstring(L, -1, NULL));
    lua_settop(L, 1);
  }
  struct test_budget *b = core ? &other : &lua;
  bool passed = false;
  long n = 0;
  for (; !passed; n += step) {
    assert_true(n < 100000);
    *b = (struct test_budget){.left = n, .once = once};
    if (core) tm_mem_hook(test_flaky, b);
    int got = state_call(L);
    if (core) tm_mem_hook(NULL, NULL);
    passed = atomic_load(&b->left) > 0;
    b->left = -1;
    assert_int_not_equal(got, -1);
    if (!got && !is_want_of_memory(L)) fail_msg("another error at allocation %ld", n);
    lua_settop(L, 1);
    lua_gc(L, LUA_GCCOLLECT, 0);
    assert_int_equal(lua_gettop(L), 1);
    assert_int_equal(state_call(L), 1); /* as good as before */
    lua_settop(L, 1);
  }
  assert_true(n > 50);
  lua_close(L);
  if (tm_mem_live() != live) fail_msg("%ld bytes left", (long)(tm_mem_live() - live));
}

static void memory_of_lua_may_run_out(void **state) {
  (void)state;
  torture(false, false, 1);
}

static void any_allocation_of_lua_may_collect_garbage(void **state) {
  (void)state;
  torture(false, true, 1);
}

static void memory_of_the_core_may_run_out(void **state) {
  (void)state;
  torture(true, false, 1);
}

static void one_allocation_of_the_core_may_fail(void **state) {
  (void)state;
#ifdef __SANITIZE_THREAD__
  skip(); /* its shadow memory grows with each of the thousands of states made here */
#endif
  torture(true, true, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(memory_of_lua_may_run_out),
      cmocka_unit_test(any_allocation_of_lua_may_collect_garbage),
      cmocka_unit_test(memory_of_the_core_may_run_out),
      cmocka_unit_test(one_allocation_of_the_core_may_fail),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
