#include "lua/summary.h"

#include <string.h>

#include "base/bytes.h"
#include "ckpt/file.h"
#include "graph/spans.h"
#include "lua/cluster_create.h"
#include "lua/convert.h"
#include "lua/error.h"
#include "lua/state.h"
#include "watch/event.h"
#include "watch/gzip.h"

/*
 * Design.  A writer that is collected writes what waits; a failure of that cannot be
 * told, which is what close() is for.
 */
#define SUMMARY_MT "tm.core.EventWriter"

typedef struct summary_box {
  tm_event_writer *w; /* NULL: closed */
} summary_box;

static tm_event_writer *summary_writer(lua_State *L) {
  summary_box *b = luaL_checkudata(L, 1, SUMMARY_MT);
  if (!b->w) tm_lua_fail(L, TM_EPRECOND, "this writer of summaries is closed");
  return b->w;
}

/* Arguments 2 and 3. */
static tm_event_tag summary_tag(lua_State *L) {
  tm_event_tag at;
  at.tag.p = luaL_checklstring(L, 2, &at.tag.n);
  if (!tm_lua_integer(L, 3, &at.step))
    tm_lua_fail(L, TM_EINVAL, "\"%.60s\": a step is a whole number", at.tag.p);
  return at;
}

/* Argument 4 as an eager tensor. */
static const tm_view *summary_view(lua_State *L, const char *what) {
  (void)tm_lua_arg_value(L, 4, TM_DTYPE_NONE);
  return &tm_lua_check_eager(L, 4, what)->t->v;
}

/* core.event_writer(directory, suffix, milliseconds) */
static int summary_open(lua_State *L) {
  size_t n[2];
  const char *dir = luaL_checklstring(L, 1, &n[0]);
  const char *suffix = luaL_checklstring(L, 2, &n[1]);
  double ms = luaL_checknumber(L, 3);
  tm_err err;
  tm_err_clear(&err);
  if (strlen(dir) != n[0] || strlen(suffix) != n[1])
    tm_lua_fail(L, TM_EINVAL, "create_file_writer: a name with a NUL in it");
  summary_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->w = NULL;
  luaL_getmetatable(L, SUMMARY_MT);
  lua_setmetatable(L, -2);
  tm_lua_check(L, tm_event_open(dir, suffix, (int64_t)ms, &b->w, &err), &err);
  return 1;
}

/* writer:scalar(tag, step, number) */
static int summary_scalar(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_event_tag at = summary_tag(L);
  double x = luaL_checknumber(L, 4);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_event_scalar(w, &at, x, &err), &err);
  return 0;
}

/* writer:histogram(tag, step, values, buckets) */
static int summary_histogram(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_event_tag at = summary_tag(L);
  const tm_view *x = summary_view(L, "histogram");
  int32_t n = (int32_t)luaL_checkinteger(L, 5);
  tm_err err;
  tm_err_clear(&err);
  luaL_argcheck(L, n >= 1 && n <= TM_EVENT_BUCKETS, 5, "1 to 512 buckets");
  tm_lua_check(L, tm_event_histogram(w, &at, x, n, &err), &err);
  return 0;
}

/* writer:image(tag, step, pixels, most) */
static int summary_image(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_event_tag at = summary_tag(L);
  const tm_view *x = summary_view(L, "image");
  int32_t n = (int32_t)luaL_checkinteger(L, 5);
  tm_err err;
  tm_err_clear(&err);
  luaL_argcheck(L, n >= 1 && n <= TM_EVENT_IMAGES, 5, "1 to 64 images");
  tm_lua_check(L, tm_event_image(w, &at, x, n, &err), &err);
  return 0;
}

/* writer:text(tag, step, strings) */
static int summary_text(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_event_tag at = summary_tag(L);
  const tm_view *x = summary_view(L, "text");
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_event_text(w, &at, x, &err), &err);
  return 0;
}

static tm_str summary_bytes(lua_State *L, int i) {
  tm_str s;
  s.p = luaL_checklstring(L, i, &s.n);
  return s;
}

/* writer:graph(bytes) */
static int summary_graph(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_str graph = summary_bytes(L, 2);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_event_graph(w, graph, &err), &err);
  return 0;
}

/* writer:plugin(tag, step, plugin, bytes) */
static int summary_plugin(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_event_tag at = summary_tag(L);
  const char *plugin = luaL_checkstring(L, 4);
  tm_str content = summary_bytes(L, 5);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_event_plugin(w, &at, plugin, content, &err), &err);
  return 0;
}

static int summary_flush(lua_State *L) {
  tm_event_writer *w = summary_writer(L);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_event_flush(w, &err), &err);
  return 0;
}

static int summary_path(lua_State *L) {
  lua_pushstring(L, tm_event_path(summary_writer(L)));
  return 1;
}

static int summary_close(lua_State *L) {
  summary_box *b = luaL_checkudata(L, 1, SUMMARY_MT);
  tm_event_writer *w = b->w;
  tm_err err;
  tm_err_clear(&err);
  b->w = NULL;
  tm_lua_check(L, tm_event_close(w, &err), &err);
  return 0;
}

static int summary_collect(lua_State *L) {
  summary_box *b = luaL_checkudata(L, 1, SUMMARY_MT);
  (void)tm_event_close(b->w, NULL);
  b->w = NULL;
  return 0;
}

/* --- timelines --- */

/* core.spans_begin(max): runs of this state's functions are told from now on. */
static int spans_begin(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  tm_spans *sp;
  lua_Integer max = luaL_checkinteger(L, 1);
  tm_lua_check(L, tm_spans_new(max, &sp), NULL);
  tm_spans_free(ctx->spans);
  ctx->spans = sp;
  return 0;
}

/* core.spans_take() -> { { name, from, to } ... }, lost; seconds.  Nothing is told any
 * more. */
static int spans_take(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  tm_spans *sp = ctx->spans;
  lua_settop(L, 0);
  lua_createtable(L, sp ? (int)sp->n : 0, 0);
  for (int64_t i = 0; sp && i < sp->n; i++) {
    lua_createtable(L, 3, 0);
    lua_pushstring(L, sp->span[i].name);
    lua_rawseti(L, -2, 1);
    lua_pushnumber(L, (double)sp->span[i].from * 1e-9);
    lua_rawseti(L, -2, 2);
    lua_pushnumber(L, (double)sp->span[i].to * 1e-9);
    lua_rawseti(L, -2, 3);
    lua_rawseti(L, 1, (int)i + 1);
  }
  lua_pushinteger(L, sp ? (lua_Integer)sp->lost : 0);
  ctx->spans = NULL;
  tm_spans_free(sp);
  return 2;
}

/* core.write_gzip(path, text) */
static int write_gzip(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tm_str text = summary_bytes(L, 2);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_gzip_write(path, text.p, text.n, &err), &err);
  return 0;
}

/* core.double_bytes(x): 8 bytes, as protocol buffers have them. */
static int double_bytes(lua_State *L) {
  uint8_t p[8];
  uint64_t bits;
  double x = luaL_checknumber(L, 1);
  memcpy(&bits, &x, sizeof bits);
  tm_put64(p, bits);
  lua_pushlstring(L, (const char *)p, sizeof p);
  return 1;
}

/* core.make_dir(path): with those above it. */
static int make_dir(lua_State *L) {
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_dir_make(luaL_checkstring(L, 1), &err), &err);
  return 0;
}

void tm_lua_open_summary(lua_State *L, int core) {
  static const luaL_Reg methods[] = {
      {"scalar", summary_scalar}, {"histogram", summary_histogram},
      {"image", summary_image},   {"text", summary_text},
      {"graph", summary_graph},   {"plugin", summary_plugin},
      {"flush", summary_flush},   {"path", summary_path},
      {"close", summary_close},   {NULL, NULL}};
  tm_lua_new_class(L, SUMMARY_MT, methods, summary_collect);
  static const luaL_Reg functions[] = {{"event_writer", summary_open},
                                       {"spans_begin", spans_begin},
                                       {"spans_take", spans_take},
                                       {"write_gzip", write_gzip},
                                       {"double_bytes", double_bytes},
                                       {"make_dir", make_dir},
                                       {NULL, NULL}};
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
