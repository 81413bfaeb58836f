#include "lua/summary.h"

#include <string.h>

#include "lua/cluster_create.h"
#include "lua/convert.h"
#include "lua/error.h"
#include "watch/event.h"

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

void tm_lua_open_summary(lua_State *L, int core) {
  static const luaL_Reg methods[] = {
      {"scalar", summary_scalar}, {"histogram", summary_histogram},
      {"image", summary_image},   {"text", summary_text},
      {"flush", summary_flush},   {"path", summary_path},
      {"close", summary_close},   {NULL, NULL}};
  tm_lua_new_class(L, SUMMARY_MT, methods, summary_collect);
  lua_pushcfunction(L, summary_open);
  lua_setfield(L, core, "event_writer");
}
