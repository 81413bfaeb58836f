#include <string.h>

#include "cluster/save.h"
#include "lua/ckpt.h"
#include "lua/cluster_restore.h"
#include "lua/convert.h"
#include "lua/route.h"
#include "lua/state.h"
#include "lua/variable.h"
#include "ps/rule.h"

/*
 * Design.  Lua says which rows of which tensors are variables of clusters; those of one
 * cluster are saved together (cluster/save.h).  Texts and shapes stay in the table of
 * the caller, or in userdata on the stack, while C uses them.
 */
static int64_t save_field(lua_State *L, const char *name, int64_t missing) {
  int64_t n = missing;
  lua_getfield(L, -1, name);
  if (!lua_isnil(L, -1) && !tm_lua_integer(L, -1, &n))
    tm_lua_fail(L, TM_EINVAL, "save: %s is a number", name);
  lua_pop(L, 1);
  return n;
}

/* A text of the item on the top, kept by it; NULL: none. */
static const char *save_text(lua_State *L, const char *name) {
  lua_getfield(L, -1, name);
  const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
  lua_pop(L, 1);
  return s;
}

/* What the slot begins with, by the item's rule and hyper-parameters. */
static double save_start(lua_State *L, const char *slot) {
  const char *name[TM_RULE_MAX_SLOTS];
  double start[TM_RULE_MAX_SLOTS], hyper[TM_RULE_MAX_HYPER] = {0};
  const char *text = save_text(L, "rule");
  const tm_rule *rule = text ? tm_rule_find(text) : NULL;
  if (!rule) return 0;
  lua_getfield(L, -1, "hyper");
  for (int i = 1; lua_type(L, -1) == LUA_TTABLE && i < TM_RULE_MAX_HYPER; i++) {
    lua_rawgeti(L, -1, i);
    hyper[i] = lua_tonumber(L, -1);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  int32_t n = rule->slots(hyper, name, start);
  for (int32_t i = 0; i < n; i++)
    if (strcmp(name[i], slot) == 0) return start[i];
  return 0;
}

/* { name, shape, uid, shard, first, slot, optimizer, rule, hyper } on the top */
static void save_item(lua_State *L, tm_save_item *it, tm_shape *shape) {
  it->name = save_text(L, "name");
  if (!it->name) tm_lua_fail(L, TM_EINVAL, "save: an item has no name");
  lua_getfield(L, -1, "shape");
  tm_lua_check_sizes(L, lua_gettop(L), shape);
  lua_pop(L, 1);
  it->shape = shape;
  it->uid = (uint64_t)save_field(L, "uid", 0);
  it->shard = (int32_t)save_field(L, "shard", -1);
  it->first = save_field(L, "first", 0);
  it->optimizer = (uint64_t)save_field(L, "optimizer", 0);
  it->slot = save_text(L, "slot");
  it->start = it->slot ? save_start(L, it->slot) : 0;
}

static tm_session *save_session(tm_lua *ctx, uint64_t uid) {
  tm_vars *vars = tm_router_vars(ctx->router, uid);
  return vars ? vars->session : NULL;
}

/* Those of one cluster to the front of the rest, in their order. */
static size_t save_gather(tm_lua *ctx, tm_save_item *it, size_t n, tm_session *s) {
  size_t end = 0;
  for (size_t i = 0; i < n; i++) {
    if (save_session(ctx, it[i].uid) != s) continue;
    tm_save_item x = it[i];
    memmove(&it[end + 1], &it[end], (i - end) * sizeof x);
    it[end++] = x;
  }
  return end;
}

/* Moments go into the table on the top, by their clusters. */
static tm_status save_all(lua_State *L, tm_ckpt_writer *w, tm_save_item *it, size_t n,
                          const tm_save_options *opt, tm_save_report *sum,
                          tm_err *err) {
  tm_lua *ctx = tm_lua_ctx(L);
  for (size_t done = 0, end; done < n; done = end) {
    tm_save_report one = {0};
    tm_session *s = save_session(ctx, it[done].uid);
    if (!s) return tm_fail(err, TM_EPRECOND, "the strategy of a variable is closed");
    end = done + save_gather(ctx, it + done, n - done, s);
    tm_moment **moment = tm_lua_new_moment(L);
    TM_TRY(tm_session_save(s, w, it + done, end - done, opt, &one, err));
    *moment = one.moment;
    lua_rawsetp(L, -2, tm_session_vars(s));
    if (one.pause_ns > sum->pause_ns) sum->pause_ns = one.pause_ns;
    sum->bytes += one.bytes;
    sum->streamed += one.streamed;
    sum->lent += one.lent;
    sum->patched += one.patched;
  }
  return TM_OK;
}

/* The moments are on the top. */
static int save_push(lua_State *L, const tm_save_report *r) {
  lua_createtable(L, 0, 3);
  lua_pushnumber(L, (double)r->pause_ns * 1e-9);
  lua_setfield(L, -2, "pause");
  tm_lua_push_int64(L, (int64_t)r->bytes);
  lua_setfield(L, -2, "bytes");
  tm_lua_push_int64(L, r->streamed);
  lua_setfield(L, -2, "streamed");
  tm_lua_push_int64(L, (int64_t)r->lent);
  lua_setfield(L, -2, "lent");
  tm_lua_push_int64(L, (int64_t)r->patched);
  lua_setfield(L, -2, "patched");
  lua_pushvalue(L, -2);
  lua_setfield(L, -2, "moments");
  return 1;
}

/* { stream, still, mark, base, base_mark } at i; texts stay while it is on the stack */
static tm_save_options save_options(lua_State *L, int i) {
  tm_save_options opt = {.cancel = &tm_lua_ctx(L)->cancel};
  if (lua_isnoneornil(L, i)) return opt;
  luaL_checktype(L, i, LUA_TTABLE);
  lua_pushvalue(L, i);
  opt.mark = (uint64_t)save_field(L, "mark", 0);
  opt.base_mark = (uint64_t)save_field(L, "base_mark", 0);
  opt.base = save_text(L, "base");
  lua_getfield(L, -1, "stream");
  opt.stream = lua_toboolean(L, -1);
  lua_getfield(L, -2, "still");
  opt.still = lua_toboolean(L, -1);
  lua_pop(L, 3);
  return opt;
}

/* writer:save(items, { stream, still, mark, base, base_mark }) -> { pause, bytes,
 * streamed, lent, patched, moments = { [session:vars()] = moment } }, or nil and the
 * error */
int tm_lua_ckpt_save(lua_State *L) {
  tm_ckpt_writer *w = tm_lua_check_writer(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t n = lua_rawlen(L, 2);
  tm_save_item *it = lua_newuserdatauv(L, (n + 1) * sizeof *it, 0);
  tm_shape *shape = lua_newuserdatauv(L, (n + 1) * sizeof *shape, 0);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (int)i + 1);
    save_item(L, &it[i], &shape[i]);
    lua_pop(L, 1);
  }
  tm_save_options opt = save_options(L, 3);
  tm_save_report report = {0};
  tm_err err;
  tm_err_clear(&err);
  lua_newtable(L);
  tm_status s = save_all(L, w, it, n, &opt, &report, &err);
  return s ? tm_lua_ckpt_answer(L, s, &err) : save_push(L, &report);
}

/* in_cluster(uid): does it live on a ps? */
int tm_lua_ckpt_in_cluster(lua_State *L) {
  int64_t uid = 0;
  bool ok = tm_lua_integer(L, 1, &uid);
  lua_pushboolean(L, ok && save_session(tm_lua_ctx(L), (uint64_t)uid) != NULL);
  return 1;
}
