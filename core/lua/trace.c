#include "lua/trace.h"

#include <string.h>

#include "base/check.h"
#include "base/mem.h"
#include "lua/convert.h"
#include "lua/data.h"

/*
 * Design.  Each object is a box with one reference.  Lua's func.lua calls these in
 * order; after an error it unwinds the scope to the mark it took before, which closes
 * traces and tapes that are deeper.
 */
#define TRACE_MT   "tm.core.Trace"
#define PROGRAM_MT "tm.core.Program"
#define OUTS_MT    "tm.core.Outputs"

typedef struct trace_box {
  tm_trace *tr;
} trace_box;

typedef struct graph_box {
  tm_graph *g;
} graph_box;

typedef struct program_box {
  tm_program *p;
} program_box;

/* Results of a run until they are in boxes of their own. */
typedef struct trace_outs {
  int32_t n;
  tm_tensor *t[];
} trace_outs;

static void *box_new(lua_State *L, size_t size, const char *mt) {
  void *b = lua_newuserdatauv(L, size, 0);
  memset(b, 0, size);
  luaL_getmetatable(L, mt);
  lua_setmetatable(L, -2);
  return b;
}

static int trace_gc(lua_State *L) {
  trace_box *b = lua_touserdata(L, 1);
  tm_trace_unref(b->tr);
  b->tr = NULL;
  return 0;
}

static int graph_gc(lua_State *L) {
  graph_box *b = lua_touserdata(L, 1);
  tm_graph_unref(b->g);
  b->g = NULL;
  return 0;
}

static int program_gc(lua_State *L) {
  program_box *b = lua_touserdata(L, 1);
  tm_program_unref(b->p);
  b->p = NULL;
  return 0;
}

static int outs_gc(lua_State *L) {
  trace_outs *o = lua_touserdata(L, 1);
  for (int32_t i = 0; i < o->n; i++) tm_tensor_unref(o->t[i]);
  o->n = 0;
  return 0;
}

static tm_trace *check_trace(lua_State *L, int i) {
  return ((trace_box *)luaL_checkudata(L, i, TRACE_MT))->tr;
}

tm_graph *tm_lua_test_graph(lua_State *L, int i) {
  graph_box *b = luaL_testudata(L, i, TM_LUA_GRAPH_MT);
  return b ? b->g : NULL;
}

tm_graph *tm_lua_check_graph(lua_State *L, int i) {
  return ((graph_box *)luaL_checkudata(L, i, TM_LUA_GRAPH_MT))->g;
}

tm_graph **tm_lua_new_graph(lua_State *L) {
  return &((graph_box *)box_new(L, sizeof(graph_box), TM_LUA_GRAPH_MT))->g;
}

tm_value **tm_lua_check_values(lua_State *L, int i, int32_t *n) {
  luaL_checktype(L, i, LUA_TTABLE);
  size_t len = lua_rawlen(L, i);
  if (len > 1 << 20) tm_lua_fail(L, TM_EEXHAUSTED, "a list of too many tensors");
  tm_value **v = lua_newuserdatauv(L, (len + 1) * sizeof *v, 0);
  for (size_t k = 0; k < len; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    v[k] = tm_lua_test_value(L, lua_gettop(L));
    lua_pop(L, 1);
    if (!v[k])
      tm_lua_fail(L, TM_EINVAL, "element %d of a list is no tensor", (int)k + 1);
  }
  *n = (int32_t)len;
  return v;
}

/* --- scope --- */

/* core.tracing(): a trace is open. */
static int scope_tracing(lua_State *L) {
  lua_pushboolean(L, tm_scope_trace(tm_lua_scope(L)) != NULL);
  return 1;
}

static int scope_mark(lua_State *L) {
  lua_pushinteger(L, tm_scope_mark(tm_lua_scope(L)));
  return 1;
}

static int scope_unwind(lua_State *L) {
  tm_scope_unwind(tm_lua_scope(L), (int32_t)luaL_checkinteger(L, 1));
  return 0;
}

static int scope_push_eager(lua_State *L) {
  tm_lua_check(L, tm_scope_push_eager(tm_lua_scope(L)), NULL);
  return 0;
}

static int scope_pop_eager(lua_State *L) {
  tm_scope_pop_eager(tm_lua_scope(L));
  return 0;
}

/* --- traces --- */

/* core.trace_begin(name) */
static int trace_begin(lua_State *L) {
  const char *name = luaL_checkstring(L, 1);
  tm_err err;
  tm_err_clear(&err);
  tm_scope *sc = tm_lua_scope(L);
  trace_box *b = box_new(L, sizeof *b, TRACE_MT);
  tm_lua_check(L, tm_trace_begin(sc, name, &b->tr, &err), &err);
  return 1;
}

static void check_shape(lua_State *L, int i, tm_shape *s) {
  luaL_checktype(L, i, LUA_TTABLE);
  size_t n = lua_rawlen(L, i);
  if (n > TM_MAX_RANK)
    tm_lua_fail(L, TM_EINVAL, "a shape has at most %d sizes", TM_MAX_RANK);
  *s = tm_shape_scalar();
  s->rank = (int32_t)n;
  for (size_t k = 0; k < n; k++) {
    lua_rawgeti(L, i, (int)k + 1);
    if (!tm_lua_integer(L, -1, &s->dim[k]) || s->dim[k] < -1)
      tm_lua_fail(L, TM_EINVAL, "size %d of a shape must be a whole number, or -1",
                  (int)k + 1);
    lua_pop(L, 1);
  }
}

/* core.trace_arg(trace, dtype, shape) */
static int trace_arg(lua_State *L) {
  tm_trace *tr = check_trace(L, 1);
  tm_type t;
  t.dtype = tm_lua_check_dtype(L, 2);
  check_shape(L, 3, &t.shape);
  tm_err err;
  tm_err_clear(&err);
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_value *v;
  tm_lua_check(L, tm_trace_arg(tr, &t, &v, &err), &err);
  tm_lua_adopt(L, b, v);
  return 1;
}

/* core.trace_iterator(trace, iterator or dataset) */
static int trace_iterator(lua_State *L) {
  tm_trace *tr = check_trace(L, 1);
  tm_value *it = tm_lua_test_value(L, 2);
  const tm_type *elem = it ? it->elem : tm_dataset_types(tm_lua_check_dataset(L, 2));
  int32_t n = it ? it->nelem : tm_dataset_width(tm_lua_check_dataset(L, 2));
  if (!elem) return tm_lua_fail(L, TM_EINVAL, "an iterator was expected");
  tm_err err;
  tm_err_clear(&err);
  tm_lua_tensor *b = tm_lua_new_tensor(L);
  tm_value *v;
  tm_lua_check(L, tm_trace_iterator_arg(tr, elem, n, &v, &err), &err);
  tm_lua_adopt(L, b, v);
  return 1;
}

/* core.trace_end(trace, outputs) -> graph */
static int trace_end(lua_State *L) {
  tm_trace *tr = check_trace(L, 1);
  int32_t n;
  tm_value **v = tm_lua_check_values(L, 2, &n);
  tm_scope *sc = tm_lua_scope(L);
  tm_err err;
  tm_err_clear(&err);
  graph_box *b = box_new(L, sizeof *b, TM_LUA_GRAPH_MT);
  tm_lua_check(L, tm_trace_end(sc, tr, v, n, &b->g, &err), &err);
  return 1;
}

/* core.trace_size(trace): nodes so far. */
static int trace_size(lua_State *L) {
  lua_pushinteger(L, tm_trace_size(check_trace(L, 1)));
  return 1;
}

static int trace_abort(lua_State *L) {
  tm_trace_abort(tm_lua_scope(L), check_trace(L, 1));
  return 0;
}

/* core.trace_captures(trace) -> list of the outer values */
static int trace_captures(lua_State *L) {
  tm_value **v;
  int32_t n = tm_trace_captures(check_trace(L, 1), &v);
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    tm_lua_tensor *b = tm_lua_new_tensor(L);
    tm_lua_adopt(L, b, tm_value_ref(v[i]));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

/* --- graphs --- */

static int graph_optimize(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  tm_err err;
  tm_err_clear(&err);
  graph_box *b = box_new(L, sizeof *b, TM_LUA_GRAPH_MT);
  tm_lua_check(L, tm_graph_optimize(g, &b->g, &err), &err);
  return 1;
}

static int graph_text(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  tm_buf *b = tm_lua_push_buf(L, 16 << 20);
  tm_lua_check(L, tm_graph_text(g, b), NULL);
  lua_pushlstring(L, (const char *)b->data, b->len);
  tm_buf_release(b);
  return 1;
}

void tm_lua_push_types(lua_State *L, const tm_type *t, int32_t n) {
  lua_createtable(L, n, 0);
  for (int32_t i = 0; i < n; i++) {
    lua_createtable(L, 0, 2);
    lua_pushstring(L, t[i].dtype ? tm_dtype_name(t[i].dtype) : "iterator");
    lua_setfield(L, -2, "dtype");
    tm_lua_push_shape(L, &t[i].shape);
    lua_setfield(L, -2, "shape");
    lua_rawseti(L, -2, i + 1);
  }
}

/* core.graph_types(graph) -> types of its outputs */
static int graph_types(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  lua_createtable(L, g->nout, 0);
  for (int32_t i = 0; i < g->nout; i++) {
    tm_lua_push_types(L, tm_graph_type(g, g->out[i]), 1);
    lua_rawgeti(L, -1, 1);
    lua_rawseti(L, -3, i + 1);
    lua_pop(L, 1);
  }
  return 1;
}

/* core.graph_variables(graph) -> uids */
static int graph_variables(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  uint64_t *uid;
  size_t n;
  tm_buf *b = tm_lua_push_buf(L, 0); /* keeps uid */
  tm_lua_check(L, tm_graph_variables(g, &uid, &n), NULL);
  b->data = (uint8_t *)uid;
  b->cap = n * sizeof *uid;
  lua_createtable(L, (int)n, 0);
  for (size_t i = 0; i < n; i++) {
    tm_lua_push_int64(L, (int64_t)uid[i]);
    lua_rawseti(L, -2, (int)i + 1);
  }
  return 1;
}

static int graph_hash(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  char text[40];
  snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)g->hash[0],
           (unsigned long long)g->hash[1]);
  lua_pushstring(L, text);
  return 1;
}

/* --- programs --- */

/* core.program(graph) */
static int program_new(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  tm_err err;
  tm_err_clear(&err);
  program_box *b = box_new(L, sizeof *b, PROGRAM_MT);
  tm_lua_check(L, tm_program_new(g, &b->p, &err), &err);
  return 1;
}

/* core.run(program, args) -> results, each a Tensor */
static int program_run(lua_State *L) {
  tm_program *p = ((program_box *)luaL_checkudata(L, 1, PROGRAM_MT))->p;
  int32_t n, nout = tm_program_graph(p)->nout;
  tm_value **v = tm_lua_check_values(L, 2, &n);
  tm_arg_value *arg = lua_newuserdatauv(L, (size_t)(n + 1) * sizeof *arg, 0);
  for (int32_t i = 0; i < n; i++) {
    if (!v[i]->t && v[i]->trace)
      return tm_lua_fail(L, TM_EINVAL, "argument %d belongs to a trace", (int)i + 1);
    arg[i] = (tm_arg_value){v[i]->t, v[i]->iterator};
  }
  tm_scope *sc = tm_lua_scope(L);
  tm_run_env env = *tm_scope_env(sc);
  env.closure = ++tm_lua_ctx(L)->runs;
  trace_outs *o =
      box_new(L, sizeof *o + (size_t)(nout + 1) * sizeof(tm_tensor *), OUTS_MT);
  tm_err err;
  tm_err_clear(&err);
  luaL_checkstack(L, nout + 8, "results");
  tm_status s = tm_program_run(p, arg, n, tm_scope_state(sc), &env, o->t, &err);
  if (s) return tm_lua_raise(L, s, &err);
  o->n = nout;
  for (int32_t i = 0; i < nout; i++) tm_lua_push_tensor(L, o->t[i]);
  return nout;
}

static void metatable(lua_State *L, const char *name, lua_CFunction gc) {
  luaL_newmetatable(L, name);
  lua_pushcfunction(L, gc);
  lua_setfield(L, -2, "__gc");
  lua_pushstring(L, name);
  lua_setfield(L, -2, "__name");
  lua_pop(L, 1);
}

void tm_lua_open_trace(lua_State *L, int core) {
  static const luaL_Reg functions[] = {
      {"tracing", scope_tracing},
      {"mark", scope_mark},
      {"unwind", scope_unwind},
      {"push_eager", scope_push_eager},
      {"pop_eager", scope_pop_eager},
      {"trace_begin", trace_begin},
      {"trace_arg", trace_arg},
      {"trace_iterator", trace_iterator},
      {"trace_end", trace_end},
      {"trace_abort", trace_abort},
      {"trace_size", trace_size},
      {"trace_captures", trace_captures},
      {"graph_optimize", graph_optimize},
      {"graph_text", graph_text},
      {"graph_types", graph_types},
      {"graph_variables", graph_variables},
      {"graph_hash", graph_hash},
      {"program", program_new},
      {"run", program_run},
      {NULL, NULL},
  };
  metatable(L, TRACE_MT, trace_gc);
  metatable(L, TM_LUA_GRAPH_MT, graph_gc);
  metatable(L, PROGRAM_MT, program_gc);
  metatable(L, OUTS_MT, outs_gc);
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
