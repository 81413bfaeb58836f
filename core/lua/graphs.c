#include "lua/graphs.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "graph/nodes.h"
#include "lua/convert.h"
#include "lua/state.h"
#include "lua/trace.h"
#include "lua/value.h"

/*
 * Design.  The text is base64 (RFC 4648) of the graph's MessagePack, since it stands in
 * JSON.  A replay passes the one door, tm_apply, so tapes and open traces see its ops
 * as if Lua had written them.
 *
 * Invariant of a replay: value[first[i] + k] is output k of node i, NULL until node i
 * was applied; the userdata that holds them gives them up.
 */
#define REPLAY_MT "tm.core.Replay"

enum { GRAPHS_MAX_BYTES = 192 << 20 };

/* --- text --- */

static const char graphs_digit[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

static tm_status graphs_encode(const tm_buf *from, tm_buf *to) {
  char *p;
  void *room;
  TM_TRY(tm_buf_grow(to, (from->len + 2) / 3 * 4, &room));
  p = room;
  for (size_t i = 0; i < from->len; i += 3, p += 4) {
    size_t left = from->len - i;
    uint32_t x = (uint32_t)from->data[i] << 16;
    if (left > 1) x |= (uint32_t)from->data[i + 1] << 8;
    if (left > 2) x |= from->data[i + 2];
    p[0] = graphs_digit[x >> 18];
    p[1] = graphs_digit[x >> 12 & 63];
    p[2] = left > 1 ? graphs_digit[x >> 6 & 63] : '=';
    p[3] = left > 2 ? graphs_digit[x & 63] : '=';
  }
  return TM_OK;
}

static tm_status graphs_decode(const char *p, size_t n, tm_buf *to) {
  uint32_t x = 0;
  int bits = 0;
  while (n && p[n - 1] == '=') n--;
  for (size_t i = 0; i < n; i++) {
    const char *d = p[i] ? strchr(graphs_digit, p[i]) : NULL;
    if (!d) return TM_EINVAL;
    x = x << 6 | (uint32_t)(d - graphs_digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    TM_TRY(tm_buf_putc(to, (char)(uint8_t)(x >> bits)));
  }
  return TM_OK;
}

/* graph_pack(graph) -> text */
static int graphs_pack(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  tm_buf *bytes = tm_lua_push_buf(L, GRAPHS_MAX_BYTES);
  tm_buf *text = tm_lua_push_buf(L, (size_t)GRAPHS_MAX_BYTES / 3 * 4 + 4);
  tm_lua_check(L, tm_graph_pack(g, bytes), NULL);
  tm_lua_check(L, graphs_encode(bytes, text), NULL);
  lua_pushlstring(L, (const char *)text->data, text->len);
  tm_buf_release(bytes);
  tm_buf_release(text);
  return 1;
}

/* The table of uids is at 2: { [text of the old one] = new one }. */
static uint64_t graphs_uid(void *ud, uint64_t was) {
  lua_State *L = ud;
  char key[24];
  int64_t now = 0;
  snprintf(key, sizeof key, "%" PRIu64, was);
  lua_pushstring(L, key);
  lua_rawget(L, 2);
  if (!tm_lua_integer(L, -1, &now)) now = 0;
  lua_pop(L, 1);
  return (uint64_t)now;
}

/* graph_unpack(text, uids) -> graph */
static int graphs_unpack(lua_State *L) {
  size_t n;
  const char *text = luaL_checklstring(L, 1, &n);
  luaL_checktype(L, 2, LUA_TTABLE);
  luaL_checkstack(L, 16, "a graph");
  tm_buf *bytes = tm_lua_push_buf(L, GRAPHS_MAX_BYTES);
  tm_err err;
  tm_err_clear(&err);
  if (graphs_decode(text, n, bytes))
    return tm_lua_fail(L, TM_EINVAL, "malformed graph: it is no base64 text");
  tm_graph **g = tm_lua_new_graph(L);
  tm_lua_check(L, tm_graph_unpack_as(bytes->data, bytes->len, graphs_uid, L, g, &err),
               &err);
  return 1;
}

/* graph_uid(uid) -> the text that stands for it in graph_unpack's table */
static int graphs_uid_text(lua_State *L) {
  char key[24];
  int64_t uid;
  if (!tm_lua_integer(L, 1, &uid)) return tm_lua_fail(L, TM_EINVAL, "no uid");
  snprintf(key, sizeof key, "%" PRIu64, (uint64_t)uid);
  lua_pushstring(L, key);
  return 1;
}

/* graph_args(graph) -> types of its arguments */
static int graphs_args(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  lua_createtable(L, g->narg, 0);
  for (int32_t i = 0; i < g->narg; i++) {
    tm_lua_push_types(L, g->node[g->arg[i].node].out, 1);
    lua_rawgeti(L, -1, 1);
    lua_rawseti(L, -3, i + 1);
    lua_pop(L, 1);
  }
  return 1;
}

/* --- replay --- */

typedef struct replay {
  const tm_graph *g;
  tm_value *const *arg;
  int32_t n, *first;
  tm_value **value;
} replay;

static int replay_gc(lua_State *L) {
  replay *r = lua_touserdata(L, 1);
  if (!r->g) return 0;
  for (int32_t i = 0; i < r->n; i++) tm_value_unref(r->value[i]);
  tm_free(r->value, (size_t)(r->n + 1) * sizeof *r->value);
  tm_free(r->first, (size_t)(r->g->nnode + 1) * sizeof *r->first);
  tm_graph_unref((tm_graph *)(uintptr_t)r->g);
  memset(r, 0, sizeof *r);
  return 0;
}

static tm_status replay_room(replay *r) {
  int32_t n = 0;
  r->first = tm_malloc((size_t)(r->g->nnode + 1) * sizeof *r->first);
  if (!r->first) return TM_ENOMEM;
  for (int32_t i = 0; i < r->g->nnode; i++) {
    r->first[i] = n;
    n += r->g->node[i].nout;
  }
  r->value = tm_calloc((size_t)n + 1, sizeof *r->value);
  if (r->value) r->n = n;
  return r->value ? TM_OK : TM_ENOMEM;
}

static bool replay_fits(const tm_type *want, const tm_type *have) {
  if (want->dtype != have->dtype || want->shape.rank != have->shape.rank) return false;
  for (int32_t d = 0; d < want->shape.rank; d++) {
    int64_t w = want->shape.dim[d], h = have->shape.dim[d];
    if (w >= 0 && h >= 0 && w != h) return false;
  }
  return true;
}

static tm_status replay_arg(replay *r, int32_t node, tm_value **out, tm_err *err) {
  for (int32_t i = 0; i < r->g->narg; i++) {
    if (r->g->arg[i].node != node) continue;
    char want[96], have[96];
    const tm_type *t = &r->g->node[node].out[0];
    if (r->g->arg[i].iterator)
      return tm_fail(err, TM_EINVAL, "a graph that takes an iterator");
    if (!replay_fits(t, &r->arg[i]->type)) {
      tm_shape_text(&t->shape, want, sizeof want);
      tm_shape_text(&r->arg[i]->type.shape, have, sizeof have);
      return tm_fail(err, TM_EINVAL,
                     "input %d is %s of shape %s, the model takes %s %s", (int)i + 1,
                     tm_dtype_name(r->arg[i]->type.dtype), have,
                     tm_dtype_name(t->dtype), want);
    }
    *out = tm_value_ref(r->arg[i]);
    return TM_OK;
  }
  return tm_fail(err, TM_EINTERNAL, "a graph with an argument that nobody gives");
}

static tm_status replay_node(replay *r, tm_scope *sc, int32_t i, tm_err *err) {
  const tm_node *n = &r->g->node[i];
  tm_value *in[TM_MAX_LIST], *made[TM_MAX_OUTPUTS];
  tm_value **out = r->value + r->first[i];
  int32_t nout = 0;
  if (tm_node_kind_of(n) == TM_NODE_ARG) return replay_arg(r, i, out, err);
  if (tm_node_kind_of(n) == TM_NODE_CONST)
    return tm_value_of_tensor(n->attrs.a[0].u.t, out);
  for (int32_t k = 0; k < n->nin; k++)
    in[k] = r->value[r->first[n->in[k].node] + n->in[k].out];
  tm_status s = tm_apply(sc, n->op, in, n->nin, &n->attrs, made, &nout, err);
  if (s) {
    if (err && !err->op[0]) snprintf(err->op, sizeof err->op, "%s", n->op->name);
    return s;
  }
  for (int32_t k = 0; k < nout; k++)
    if (k < n->nout)
      out[k] = made[k];
    else
      tm_value_unref(made[k]);
  return nout == n->nout ? TM_OK : TM_EINTERNAL;
}

static tm_status replay_run(replay *r, tm_scope *sc, tm_err *err) {
  TM_TRY(replay_room(r));
  for (int32_t i = 0; i < r->g->nnode; i++) TM_TRY(replay_node(r, sc, i, err));
  return TM_OK;
}

/* graph_replay(graph, args) -> list of its outputs */
static int graphs_replay(lua_State *L) {
  tm_graph *g = tm_lua_check_graph(L, 1);
  int32_t n;
  tm_value **arg = tm_lua_check_values(L, 2, &n);
  tm_scope *sc = tm_lua_scope(L);
  tm_err err;
  tm_err_clear(&err);
  if (n != g->narg)
    return tm_lua_fail(L, TM_EINVAL, "the model takes %d inputs, got %d", (int)g->narg,
                       (int)n);
  replay *r = lua_newuserdatauv(L, sizeof *r, 0);
  memset(r, 0, sizeof *r);
  r->g = tm_graph_ref(g);
  r->arg = arg;
  luaL_getmetatable(L, REPLAY_MT);
  lua_setmetatable(L, -2);
  tm_status s = replay_run(r, sc, &err);
  tm_lua_ctx(L)->runs = tm_scope_env(sc)->closure;
  if (s) return tm_lua_raise(L, s, &err);
  lua_createtable(L, g->nout, 0);
  for (int32_t i = 0; i < g->nout; i++) {
    tm_lua_tensor *b = tm_lua_new_tensor(L);
    tm_lua_adopt(L, b,
                 tm_value_ref(r->value[r->first[g->out[i].node] + g->out[i].out]));
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

void tm_lua_open_graphs(lua_State *L, int core) {
  static const luaL_Reg functions[] = {
      {"graph_pack", graphs_pack},     {"graph_unpack", graphs_unpack},
      {"graph_uid", graphs_uid_text},  {"graph_args", graphs_args},
      {"graph_replay", graphs_replay}, {NULL, NULL}};
  luaL_newmetatable(L, REPLAY_MT);
  lua_pushcfunction(L, replay_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  lua_pushvalue(L, core);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
