#include "lua/data.h"

#include <string.h>

#include "data/codec.h"
#include "data/iterator.h"
#include "data/source.h"
#include "lua/convert.h"
#include "lua/trace.h"

/*
 * Design.  Each transform is a small function: check arguments, push a closed box, call
 * the core.  An iterator is a resource of this process (a uid in the context's table)
 * with two Lua objects: a handle that frees it when collected, and a Tensor-like value
 * that functions take as argument.
 */
#define ITER_MT "tm.core.Iterator"

typedef struct data_box {
  tm_dataset *ds;
} data_box;

typedef struct data_iter {
  uint64_t uid; /* 0: closed */
} data_iter;

tm_dataset *tm_lua_check_dataset(lua_State *L, int i) {
  return ((data_box *)luaL_checkudata(L, i, TM_LUA_DATASET_MT))->ds;
}

tm_dataset **tm_lua_new_dataset(lua_State *L) {
  data_box *b = lua_newuserdatauv(L, sizeof *b, 0);
  b->ds = NULL;
  luaL_getmetatable(L, TM_LUA_DATASET_MT);
  lua_setmetatable(L, -2);
  return &b->ds;
}

static int data_gc(lua_State *L) {
  data_box *b = lua_touserdata(L, 1);
  tm_dataset_unref(b->ds);
  b->ds = NULL;
  return 0;
}

static int64_t data_int(lua_State *L, int i, const char *what) {
  int64_t x = 0;
  if (!tm_lua_integer(L, i, &x))
    tm_lua_fail(L, TM_EINVAL, "%s must be a whole number, not a %s", what,
                luaL_typename(L, i));
  return x;
}

/* Run one constructor into a new box: DATA(tm_data_take(ds, n, out, &err)). */
#define DATA(call)                            \
  do {                                        \
    tm_err err;                               \
    tm_err_clear(&err);                       \
    tm_dataset **out = tm_lua_new_dataset(L); \
    tm_lua_check(L, (call), &err);            \
    return 1;                                 \
  } while (0)

/* --- sources --- */

/* The eager tensors of the list of Tensors at i, in a userdata array. */
static tm_tensor **data_tensors_of(lua_State *L, int i, int32_t *n) {
  tm_value **v = tm_lua_check_values(L, i, n);
  for (int32_t k = 0; k < *n; k++)
    if (!v[k]->t)
      tm_lua_fail(L, TM_EINVAL,
                  "a dataset is made from tensors with values, not inside a trace");
  tm_tensor **t = lua_newuserdatauv(L, (size_t)(*n + 1) * sizeof *t, 0);
  for (int32_t k = 0; k < *n; k++) t[k] = v[k]->t;
  return t;
}

static int data_slices(lua_State *L) {
  int32_t n;
  tm_tensor **t = data_tensors_of(L, 1, &n);
  DATA(tm_data_slices(t, n, out, &err));
}

static int data_tensors(lua_State *L) {
  int32_t n;
  tm_tensor **t = data_tensors_of(L, 1, &n);
  DATA(tm_data_tensors(t, n, out, &err));
}

static int data_range(lua_State *L) {
  int64_t a = data_int(L, 1, "start"), b = data_int(L, 2, "stop"),
          c = data_int(L, 3, "step");
  DATA(tm_data_range(a, b, c, out, &err));
}

/* --- transforms --- */

static int data_map(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  tm_graph *g = tm_lua_check_graph(L, 2);
  DATA(tm_data_map(ds, g, out, &err));
}

static int data_filter(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  tm_graph *g = tm_lua_check_graph(L, 2);
  DATA(tm_data_filter(ds, g, out, &err));
}

/* shuffle(ds, buffer, seed or nil, reshuffle) */
static int data_shuffle(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = data_int(L, 2, "the size of the shuffle buffer");
  bool has_seed = !lua_isnoneornil(L, 3);
  uint64_t seed = has_seed ? (uint64_t)data_int(L, 3, "seed") : 0;
  bool reshuffle = lua_toboolean(L, 4);
  DATA(tm_data_shuffle(ds, n, has_seed, seed, reshuffle, out, &err));
}

static int data_batch(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = data_int(L, 2, "the batch size");
  bool drop = lua_toboolean(L, 3);
  DATA(tm_data_batch(ds, n, drop, out, &err));
}

static int data_unbatch(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  DATA(tm_data_unbatch(ds, out, &err));
}

static int data_rep(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = lua_isnoneornil(L, 2) ? -1 : data_int(L, 2, "the number of repetitions");
  DATA(tm_data_rep(ds, n, out, &err));
}

static int data_take(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = data_int(L, 2, "the number of elements");
  DATA(tm_data_take(ds, n, out, &err));
}

static int data_skip(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = data_int(L, 2, "the number of elements");
  DATA(tm_data_skip(ds, n, out, &err));
}

/* shard(ds, count, index): index a number from 0, or a graph that gives one */
static int data_shard(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t count = data_int(L, 2, "the number of shards");
  tm_graph *g = tm_lua_test_graph(L, 3);
  int64_t index = g ? 0 : data_int(L, 3, "the index of the shard");
  DATA(tm_data_shard(ds, count, index, g, out, &err));
}

static int data_prefetch(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t n = data_int(L, 2, "the number of elements");
  DATA(tm_data_prefetch(ds, n, out, &err));
}

static int data_cache(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  DATA(tm_data_cache(ds, out, &err));
}

static int data_enumerate(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t start = data_int(L, 2, "start");
  DATA(tm_data_enumerate(ds, start, out, &err));
}

static int data_zip(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  size_t n = lua_rawlen(L, 1);
  if (n > TM_DATA_WIDTH) return tm_lua_fail(L, TM_EINVAL, "zip of too many datasets");
  tm_dataset **in = lua_newuserdatauv(L, (n + 1) * sizeof *in, 0);
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, 1, (int)k + 1);
    in[k] = tm_lua_check_dataset(L, lua_gettop(L));
    lua_pop(L, 1);
  }
  DATA(tm_data_zip(in, (int32_t)n, out, &err));
}

static int data_concatenate(lua_State *L) {
  tm_dataset *a = tm_lua_check_dataset(L, 1), *b = tm_lua_check_dataset(L, 2);
  DATA(tm_data_concatenate(a, b, out, &err));
}

/* --- questions --- */

static int data_types(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  tm_lua_push_types(L, tm_dataset_types(ds), tm_dataset_width(ds));
  return 1;
}

/* names(ds) -> list, or nil when elements have none */
static int data_names(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int32_t n = tm_dataset_width(ds);
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    const char *name = tm_dataset_name(ds, i);
    if (!name) return 0;
    lua_pushstring(L, name);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int data_cardinality(lua_State *L) {
  int64_t n = tm_dataset_cardinality(tm_lua_check_dataset(L, 1));
  if (n == TM_DATA_INFINITE)
    lua_pushliteral(L, "infinite");
  else if (n == TM_DATA_UNKNOWN)
    lua_pushliteral(L, "unknown");
  else
    tm_lua_push_int64(L, n);
  return 1;
}

/* --- iterators --- */

static int iter_gc(lua_State *L) {
  data_iter *b = lua_touserdata(L, 1);
  tm_lua *ctx = tm_lua_ctx(L);
  if (b->uid && ctx && ctx->resources) tm_resources_del(ctx->resources, b->uid);
  b->uid = 0;
  return 0;
}

/* core.data.iterator(ds, epoch) -> value, handle */
static int data_iterator(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  int64_t epoch = lua_isnoneornil(L, 2) ? 0 : data_int(L, 2, "epoch");
  tm_lua *ctx = tm_lua_ctx(L);
  tm_err err;
  tm_err_clear(&err);
  uint64_t uid = tm_lua_new_uid();
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  data_iter *h = lua_newuserdatauv(L, sizeof *h, 0);
  h->uid = 0;
  luaL_getmetatable(L, ITER_MT);
  lua_setmetatable(L, -2);
  tm_iter_env env = {.worker = -1,
                     .nworkers = 1,
                     .seed = ctx->seed,
                     .epoch = (uint64_t)epoch,
                     .cancel = &ctx->cancel};
  tm_iter *it;
  tm_lua_check(L, tm_dataset_iterate(ds, &env, &it, &err), &err);
  tm_status s = tm_resources_add(ctx->resources, uid, it, NULL);
  if (s) {
    tm_iter_free(it);
    return tm_lua_raise(L, s, NULL);
  }
  h->uid = uid;
  tm_value *v;
  tm_lua_check(
      L, tm_value_of_iterator(uid, tm_dataset_types(ds), tm_dataset_width(ds), &v),
      NULL);
  tm_lua_adopt(L, b, v);
  return 2;
}

static data_iter *check_iter(lua_State *L, int i) {
  data_iter *h = luaL_checkudata(L, i, ITER_MT);
  if (!h->uid) tm_lua_fail(L, TM_EPRECOND, "this iterator is closed");
  return h;
}

/* core.data.state(handle) -> text */
static int data_state(lua_State *L) {
  data_iter *h = check_iter(L, 1);
  tm_buf *b = tm_lua_push_buf(L, 1 << 20);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_resources_save(tm_lua_ctx(L)->resources, h->uid, b, &err), &err);
  lua_pushlstring(L, (const char *)b->data, b->len);
  tm_buf_release(b);
  return 1;
}

/* core.data.restore(handle, text) */
static int data_restore(lua_State *L) {
  data_iter *h = check_iter(L, 1);
  size_t n;
  const char *p = luaL_checklstring(L, 2, &n);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_resources_restore(tm_lua_ctx(L)->resources, h->uid, p, n, &err),
               &err);
  return 0;
}

/* core.data.marks(ds) -> text */
static int data_marks(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  tm_buf *b = tm_lua_push_buf(L, 1 << 20);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_dataset_marks(ds, b, &err), &err);
  lua_pushlstring(L, (const char *)b->data, b->len);
  tm_buf_release(b);
  return 1;
}

/* core.data.check_marks(ds, text): raises for those of another dataset. */
static int data_check_marks(lua_State *L) {
  size_t n;
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  const char *p = luaL_checklstring(L, 2, &n);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_dataset_check_marks(ds, p, n, &err), &err);
  return 0;
}

/* core.data.iterator_type(ds) -> a value that only says what elements are */
static int data_iterator_type(lua_State *L) {
  tm_dataset *ds = tm_lua_check_dataset(L, 1);
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_value *v;
  tm_lua_check(
      L, tm_value_of_iterator(0, tm_dataset_types(ds), tm_dataset_width(ds), &v), NULL);
  tm_lua_adopt(L, b, v);
  return 1;
}

/* The outputs of next, in a userdata until they have boxes. */
#define NEXT_MT "tm.core.Next"
typedef struct data_next {
  int32_t n;
  tm_value *v[TM_MAX_OUTPUTS];
} data_next;

static int next_gc(lua_State *L) {
  data_next *o = lua_touserdata(L, 1);
  for (int32_t i = 0; i < o->n; i++) tm_value_unref(o->v[i]);
  o->n = 0;
  return 0;
}

/* core.data.next(value) -> the tensors of an element; at the end nothing */
static int data_next_element(lua_State *L) {
  tm_value *it = tm_lua_check_value(L, 1);
  tm_scope *sc = tm_lua_scope(L);
  data_next *o = lua_newuserdatauv(L, sizeof *o, 0);
  o->n = 0;
  luaL_getmetatable(L, NEXT_MT);
  lua_setmetatable(L, -2);
  tm_err err;
  tm_err_clear(&err);
  int32_t n = 0;
  tm_status s = tm_apply_next(sc, it, o->v, &n, &err);
  if (s == TM_ERANGE) return 0;
  if (s) return tm_lua_raise(L, s, &err);
  o->n = n;
  luaL_checkstack(L, n + 4, "element");
  for (int32_t i = 0; i < n; i++) {
    tm_lua_tensor *b = tm_lua_new_tensor(L);
    tm_value *v = o->v[i];
    o->v[i] = NULL;
    tm_lua_adopt(L, b, v);
  }
  return n;
}

static void metatable(lua_State *L, const char *name, lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
}

void tm_lua_open_data(lua_State *L, int core) {
  static const luaL_Reg functions[] = {
      {"slices", data_slices},
      {"tensors", data_tensors},
      {"range", data_range},
      {"map", data_map},
      {"filter", data_filter},
      {"shuffle", data_shuffle},
      {"batch", data_batch},
      {"unbatch", data_unbatch},
      {"rep", data_rep},
      {"take", data_take},
      {"skip", data_skip},
      {"shard", data_shard},
      {"prefetch", data_prefetch},
      {"cache", data_cache},
      {"enumerate", data_enumerate},
      {"zip", data_zip},
      {"concatenate", data_concatenate},
      {"types", data_types},
      {"names", data_names},
      {"cardinality", data_cardinality},
      {"iterator", data_iterator},
      {"iterator_type", data_iterator_type},
      {"state", data_state},
      {"marks", data_marks},
      {"check_marks", data_check_marks},
      {"restore", data_restore},
      {"close", iter_gc},
      {"next", data_next_element},
      {NULL, NULL},
  };
  metatable(L, TM_LUA_DATASET_MT, data_gc);
  metatable(L, ITER_MT, iter_gc);
  metatable(L, NEXT_MT, next_gc);
  lua_newtable(L);
  luaL_setfuncs(L, functions, 0);
  tm_lua_open_data_files(L, lua_gettop(L));
  lua_setfield(L, core, "data");
}
