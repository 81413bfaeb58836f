#include "lua/ckpt.h"

#include <string.h>
#include <sys/stat.h>

#include "ckpt/file.h"
#include "ckpt/reader.h"
#include "ckpt/state.h"
#include "ckpt/writer.h"
#include "cluster/vars_load.h"
#include "lua/ckpt_model.h"
#include "lua/convert.h"
#include "lua/route.h"
#include "lua/state.h"
#include "lua/value.h"
#include "lua/variable.h"

/*
 * Design.  A writer and a reader are userdata that are pushed closed; the state file is
 * read into a box too, so that a raise while its table is made leaks nothing.
 */
#define WRITER_MT "tm.core.CheckpointWriter"
#define READER_MT "tm.core.CheckpointReader"
#define LIST_MT   "tm.core.CheckpointState"

typedef struct ckpt_writer_box {
  tm_ckpt_writer *w;
} ckpt_writer_box;

typedef struct ckpt_reader_box {
  tm_ckpt_reader *r;
} ckpt_reader_box;

/* true, or nil and the error. */
int tm_lua_ckpt_answer(lua_State *L, tm_status s, const tm_err *err) {
  if (s == TM_OK) {
    lua_pushboolean(L, 1);
    return 1;
  }
  lua_pushnil(L);
  tm_lua_push_error(L, s, err);
  return 2;
}

/* --- writing --- */

tm_ckpt_writer *tm_lua_check_writer(lua_State *L, int i) {
  ckpt_writer_box *b = luaL_checkudata(L, i, WRITER_MT);
  if (!b->w) tm_lua_fail(L, TM_EPRECOND, "this checkpoint is not being written");
  return b->w;
}

/* create(path) */
static int ckpt_create(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  ckpt_writer_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->w = NULL;
  luaL_getmetatable(L, WRITER_MT);
  lua_setmetatable(L, -2);
  tm_status s = tm_ckpt_create(path, &b->w, &err);
  return s ? tm_lua_ckpt_answer(L, s, &err) : 1;
}

/* writer:put(name, tensor, full_shape, first_row) */
static int ckpt_put(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  const char *name = luaL_checkstring(L, 2);
  tm_value *v = tm_lua_check_eager(L, 3, "save");
  tm_shape shape;
  int64_t first = 0;
  tm_lua_check_sizes(L, 4, &shape);
  if (!tm_lua_integer(L, 5, &first))
    return tm_lua_fail(L, TM_EINVAL, "the first row is no number");
  tm_err err;
  tm_err_clear(&err);
  return tm_lua_ckpt_answer(L, tm_ckpt_put(w, name, &shape, first, v->t, &err), &err);
}

/* writer:value(name, number | boolean | string) */
static int ckpt_value(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  const char *name = luaL_checkstring(L, 2);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = TM_EINVAL;
  int64_t i;
  size_t n;
  switch (lua_type(L, 3)) {
    case LUA_TBOOLEAN:
      s = tm_ckpt_value_bool(w, name, lua_toboolean(L, 3), &err);
      break;
    case LUA_TNUMBER:
#if LUA_VERSION_NUM >= 503
      if (lua_isinteger(L, 3) && tm_lua_integer(L, 3, &i))
#else
      if (tm_lua_integer(L, 3, &i))
#endif
        s = tm_ckpt_value_int(w, name, i, &err);
      else
        s = tm_ckpt_value_real(w, name, lua_tonumber(L, 3), &err);
      break;
    case LUA_TSTRING: {
      const char *p = lua_tolstring(L, 3, &n);
      s = tm_ckpt_value_str(w, name, p, n, &err);
      break;
    }
    default:
      s = tm_fail(&err, TM_EINVAL, "\"%.200s\": a %s cannot be saved", name,
                  luaL_typename(L, 3));
  }
  return tm_lua_ckpt_answer(L, s, &err);
}

static int ckpt_writer_close(lua_State *L) {
  ckpt_writer_box *b = luaL_checkudata(L, 1, WRITER_MT);
  tm_ckpt_writer_free(b->w);
  b->w = NULL;
  return 0;
}

static int ckpt_commit(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_ckpt_commit(w, &err);
  ckpt_writer_close(L);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* remove(path) */
static int ckpt_remove(lua_State *L) {
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_ckpt_remove(luaL_checkstring(L, 1), &err);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* exists(path): is there a checkpoint of this path? */
static int ckpt_exists(lua_State *L) {
  char index[TM_PATH_MAX];
  struct stat st;
  tm_status s = tm_path_join(index, luaL_checkstring(L, 1), TM_CKPT_INDEX, NULL);
  lua_pushboolean(L, s == TM_OK && stat(index, &st) == 0 && S_ISREG(st.st_mode));
  return 1;
}

/* sweep(dir, name): what ended saves left there */
static int ckpt_sweep(lua_State *L) {
  tm_ckpt_sweep(luaL_checkstring(L, 1), luaL_checkstring(L, 2));
  return 0;
}

/* --- reading --- */

static tm_ckpt_reader *ckpt_reader(lua_State *L) {
  ckpt_reader_box *b = luaL_checkudata(L, 1, READER_MT);
  if (!b->r) tm_lua_fail(L, TM_EPRECOND, "this checkpoint is closed");
  return b->r;
}

/* open(path) */
static int ckpt_open(lua_State *L) {
  const char *path = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  ckpt_reader_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->r = NULL;
  luaL_getmetatable(L, READER_MT);
  lua_setmetatable(L, -2);
  tm_status s = tm_ckpt_open(path, &b->r, &err);
  return s ? tm_lua_ckpt_answer(L, s, &err) : 1;
}

static int ckpt_reader_close(lua_State *L) {
  ckpt_reader_box *b = luaL_checkudata(L, 1, READER_MT);
  tm_ckpt_close(b->r);
  b->r = NULL;
  return 0;
}

static int ckpt_verify(lua_State *L) {
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_ckpt_verify(ckpt_reader(L), &err);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* reader:tensors() -> list of { name, shape, dtype } */
static int ckpt_tensors(lua_State *L) {
  tm_ckpt_reader *r = ckpt_reader(L);
  size_t n = tm_ckpt_ntensor(r);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    const tm_ckpt_tensor *t = tm_ckpt_tensor_at(r, i);
    lua_createtable(L, 0, 3);
    lua_pushstring(L, t->name);
    lua_setfield(L, -2, "name");
    tm_lua_push_shape(L, &t->shape);
    lua_setfield(L, -2, "shape");
    lua_pushstring(L, tm_dtype_name(t->dtype));
    lua_setfield(L, -2, "dtype");
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

static void ckpt_push_value(lua_State *L, const tm_ckpt_value *v) {
  switch (v->kind) {
    case TM_CKPT_INT:
      tm_lua_push_int64(L, v->i);
      return;
    case TM_CKPT_REAL:
      lua_pushnumber(L, v->x);
      return;
    case TM_CKPT_BOOL:
      lua_pushboolean(L, v->i != 0);
      return;
    case TM_CKPT_STR:
      lua_pushlstring(L, v->p, v->n);
      return;
  }
  lua_pushnil(L);
}

/* reader:values() -> list of { name, value } */
static int ckpt_values(lua_State *L) {
  tm_ckpt_reader *r = ckpt_reader(L);
  size_t n = tm_ckpt_nvalue(r);
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    const tm_ckpt_value *v = tm_ckpt_value_at(r, i);
    lua_createtable(L, 0, 2);
    lua_pushstring(L, v->name);
    lua_setfield(L, -2, "name");
    ckpt_push_value(L, v);
    lua_setfield(L, -2, "value");
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

/* reader:read(name, first, rows) -> Tensor; without rows all of it */
static int ckpt_read(lua_State *L) {
  tm_ckpt_reader *r = ckpt_reader(L);
  const char *name = luaL_checkstring(L, 2);
  int64_t first = 0, rows = 0;
  tm_err err;
  tm_err_clear(&err);
  const tm_ckpt_tensor *t = tm_ckpt_find(r, name);
  if (!t)
    return tm_lua_ckpt_answer(
        L,
        tm_fail(&err, TM_ENOTFOUND,
                "the checkpoint has no \"%.300s\"; list_variables tells what it has",
                name),
        &err);
  if (lua_isnoneornil(L, 4))
    rows = t->shape.rank ? t->shape.dim[0] : 1;
  else if (!tm_lua_integer(L, 3, &first) || !tm_lua_integer(L, 4, &rows))
    return tm_lua_fail(L, TM_EINVAL, "read: first row and rows are numbers");
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_tensor *x;
  tm_status s = tm_ckpt_read(r, t, first, rows, &x, &err);
  if (s) return tm_lua_ckpt_answer(L, s, &err);
  tm_value *v;
  s = tm_value_of_tensor(x, &v);
  tm_tensor_unref(x);
  tm_lua_check(L, s, NULL);
  tm_lua_adopt(L, b, v);
  return 1;
}

/* --- into variables --- */

static int64_t ckpt_field(lua_State *L, const char *name, int64_t missing) {
  int64_t n = missing;
  lua_getfield(L, -1, name);
  if (!lua_isnil(L, -1) && !tm_lua_integer(L, -1, &n))
    tm_lua_fail(L, TM_EINVAL, "load: %s is a number", name);
  lua_pop(L, 1);
  return n;
}

/* { uid =, shard =, name =, from =, slot =, optimizer = } on the top */
static void ckpt_load_item(lua_State *L, tm_ckpt_reader *r, tm_vars_load_item *it) {
  it->uid = (uint64_t)ckpt_field(L, "uid", 0);
  it->shard = (int32_t)ckpt_field(L, "shard", -1);
  it->from = ckpt_field(L, "from", 0);
  it->slot = (int32_t)ckpt_field(L, "slot", -1);
  it->optimizer = (uint64_t)ckpt_field(L, "optimizer", 0);
  lua_getfield(L, -1, "name");
  it->t = tm_ckpt_find(r, luaL_checkstring(L, -1));
  if (!it->t)
    tm_lua_fail(L, TM_ENOTFOUND, "the checkpoint has no \"%s\"", lua_tostring(L, -1));
  lua_pop(L, 1);
}

/* Items of one home at a time; those that are done are moved behind the rest. */
static tm_status ckpt_load_all(tm_lua *ctx, tm_ckpt_reader *r, const char *path,
                               tm_vars_load_item *it, size_t n, bool check,
                               tm_err *err) {
  for (size_t done = 0, end; done < n; done = end) {
    tm_vars *home = tm_router_vars(ctx->router, it[done].uid);
    if (!home) return tm_fail(err, TM_EPRECOND, "the strategy of a variable is closed");
    end = done + 1;
    for (size_t i = end; i < n; i++) {
      if (tm_router_vars(ctx->router, it[i].uid) != home) continue;
      tm_vars_load_item x = it[i];
      it[i] = it[end];
      it[end++] = x;
    }
    TM_TRY(
        tm_vars_load(home, r, path, it + done, end - done, check, &ctx->cancel, err));
  }
  return TM_OK;
}

/* reader:load(path, items, check): rows of tensors into variables and slots */
static int ckpt_load(lua_State *L) {
  tm_ckpt_reader *r = ckpt_reader(L);
  char path[TM_PATH_MAX];
  luaL_checktype(L, 3, LUA_TTABLE);
  size_t n = lua_rawlen(L, 3);
  tm_vars_load_item *it = lua_newuserdatauv(L, (n + 1) * sizeof *it, 0);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = tm_path_absolute(path, luaL_checkstring(L, 2), &err);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 3, (int)i + 1);
    ckpt_load_item(L, r, &it[i]);
    lua_pop(L, 1);
  }
  if (s == TM_OK)
    s = ckpt_load_all(tm_lua_ctx(L), r, path, it, n, lua_toboolean(L, 4), &err);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* reader:check(name): the checksums of the files that hold it */
static int ckpt_check(lua_State *L) {
  tm_ckpt_reader *r = ckpt_reader(L);
  const tm_ckpt_tensor *t = tm_ckpt_find(r, luaL_checkstring(L, 2));
  tm_err err;
  tm_err_clear(&err);
  tm_status s = TM_OK;
  if (t) s = tm_ckpt_verify_rows(r, t, 0, t->shape.rank ? t->shape.dim[0] : 1, &err);
  return tm_lua_ckpt_answer(L, s, &err);
}

/* --- the list of a directory --- */

static tm_ckpt_state *ckpt_list(lua_State *L) {
  tm_ckpt_state *s = lua_newuserdatauv(L, sizeof *s, 0);
  memset(s, 0, sizeof *s);
  luaL_getmetatable(L, LIST_MT);
  lua_setmetatable(L, -2);
  return s;
}

static int ckpt_list_gc(lua_State *L) {
  tm_ckpt_state_release(luaL_checkudata(L, 1, LIST_MT));
  return 0;
}

static void ckpt_push_list(lua_State *L, const tm_ckpt_state *s) {
  lua_createtable(L, (int)s->n, 2);
  lua_pushnumber(L, s->preserved);
  lua_setfield(L, -2, "preserved");
  if (s->latest) lua_pushstring(L, s->latest);
  if (s->latest) lua_setfield(L, -2, "latest");
  for (size_t i = 0; i < s->n; i++) {
    lua_createtable(L, 0, 2);
    lua_pushstring(L, s->item[i].name);
    lua_setfield(L, -2, "name");
    lua_pushnumber(L, s->item[i].time);
    lua_setfield(L, -2, "time");
    lua_rawseti(L, -2, (int)i + 1);
  }
}

/* state_read(dir) -> { preserved =, latest =, [i] = { name =, time = } } */
static int ckpt_state_read(lua_State *L) {
  const char *dir = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_ckpt_state *s = ckpt_list(L);
  tm_status st = tm_ckpt_state_read(dir, s, &err);
  if (st) return tm_lua_ckpt_answer(L, st, &err);
  ckpt_push_list(L, s);
  return 1;
}

/* state_change(dir, { add =, time =, preserved =, gone = { name... } }) -> the list */
static int ckpt_state_change(lua_State *L) {
  const char *dir = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  luaL_checktype(L, 2, LUA_TTABLE);
  tm_ckpt_state *s = ckpt_list(L);
  tm_ckpt_change c = {0};
  lua_getfield(L, 2, "time");
  c.time = lua_tonumber(L, -1);
  lua_getfield(L, 2, "preserved");
  c.preserved = lua_tonumber(L, -1);
  lua_getfield(L, 2, "add"); /* texts stay: the table holds them */
  c.add = lua_tostring(L, -1);
  lua_getfield(L, 2, "gone");
  if (!lua_isnil(L, -1)) luaL_checktype(L, -1, LUA_TTABLE);
  c.ngone = lua_isnil(L, -1) ? 0 : lua_rawlen(L, -1);
  const char **gone = lua_newuserdatauv(L, (c.ngone + 1) * sizeof *gone, 0);
  c.gone = gone;
  for (size_t i = 0; i < c.ngone; i++) {
    lua_rawgeti(L, -2, (int)i + 1);
    gone[i] = luaL_checkstring(L, -1);
    lua_pop(L, 1);
  }
  tm_status st = tm_ckpt_state_change(dir, &c, s, &err);
  if (st) return tm_lua_ckpt_answer(L, st, &err);
  ckpt_push_list(L, s);
  return 1;
}

/* --- random numbers --- */

/* random_state() -> seed, was it set, draws so far */
static int ckpt_random_state(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  tm_lua_push_int64(L, (int64_t)ctx->seed);
  lua_pushboolean(L, ctx->seeded);
  tm_lua_push_int64(L, (int64_t)ctx->runs);
  return 3;
}

static int ckpt_set_random_state(lua_State *L) {
  tm_lua *ctx = tm_lua_ctx(L);
  int64_t seed, runs;
  if (!tm_lua_integer(L, 1, &seed) || !tm_lua_integer(L, 3, &runs))
    return tm_lua_fail(L, TM_EINVAL, "the state of random numbers is malformed");
  ctx->seed = (uint64_t)seed;
  ctx->seeded = lua_toboolean(L, 2);
  ctx->runs = (uint64_t)runs;
  return 0;
}

static void ckpt_class(lua_State *L, const char *name, const luaL_Reg *methods,
                       lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  if (methods) {
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_setfield(L, -2, "__index");
  }
  lua_pop(L, 1);
}

void tm_lua_open_ckpt(lua_State *L, int core) {
  static const luaL_Reg writer[] = {{"put", ckpt_put},
                                    {"value", ckpt_value},
                                    {"save", tm_lua_ckpt_save},
                                    {"commit", ckpt_commit},
                                    {"close", ckpt_writer_close},
                                    {"document", tm_lua_ckpt_attach},
                                    {"single", tm_lua_ckpt_single},
                                    {NULL, NULL}};
  static const luaL_Reg reader[] = {
      {"verify", ckpt_verify},      {"tensors", ckpt_tensors},
      {"values", ckpt_values},      {"read", ckpt_read},
      {"load", ckpt_load},          {"check", ckpt_check},
      {"close", ckpt_reader_close}, {NULL, NULL}};
  static const luaL_Reg functions[] = {{"create", ckpt_create},
                                       {"open", ckpt_open},
                                       {"exists", ckpt_exists},
                                       {"remove", ckpt_remove},
                                       {"sweep", ckpt_sweep},
                                       {"document", tm_lua_ckpt_document},
                                       {"in_cluster", tm_lua_ckpt_in_cluster},
                                       {"state_read", ckpt_state_read},
                                       {"state_change", ckpt_state_change},
                                       {"random_state", ckpt_random_state},
                                       {"set_random_state", ckpt_set_random_state},
                                       {NULL, NULL}};
  ckpt_class(L, WRITER_MT, writer, ckpt_writer_close);
  ckpt_class(L, READER_MT, reader, ckpt_reader_close);
  ckpt_class(L, LIST_MT, NULL, ckpt_list_gc);
  tm_lua_open_ckpt_model(L);
  lua_newtable(L);
  luaL_setfuncs(L, functions, 0);
  lua_setfield(L, core, "ckpt");
}
