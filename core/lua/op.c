#include "lua/op.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "lua/attr.h"
#include "lua/convert.h"

/*
 * Design.  A call has three parts.  (1) Arguments become Tensor userdata on the Lua
 * stack; this may call Lua (a variable is read).  (2) Attributes are put into a frame;
 * nothing raises.  (3) The frame is applied and its outputs are moved into boxes.
 *
 * A frame is a userdata, so what a raise (out of memory) leaves in it is collected.
 * One is kept for reuse in the context; when it is busy (a finalizer that calls an op)
 * another is made.
 *
 * Invariants:
 *   (1) Between parts 2 and 3 no Lua code of ours runs.
 *   (2) f->in[i] is owned by the userdata at stack slot base + i.
 */
#define FRAME_MT "tm.core.Frame"
static const char op_frame_key;

/* --- frames --- */

static void frame_clear(tm_lua_frame *f) {
  tm_attrs_release(&f->attrs);
  memset(&f->attrs, 0, sizeof f->attrs);
  for (int32_t i = 0; i < f->nout; i++) tm_value_unref(f->out[i]);
  f->nout = 0;
}

void tm_lua_frame_drop(tm_lua_frame *f) {
  frame_clear(f);
  f->busy = false;
}

static int frame_gc(lua_State *L) {
  tm_lua_frame_drop(lua_touserdata(L, 1));
  return 0;
}

static tm_lua_frame *frame_new(lua_State *L) {
  tm_lua_frame *f = lua_newuserdatauv(L, sizeof *f, 0);
  memset(f, 0, offsetof(tm_lua_frame, out));
  luaL_getmetatable(L, FRAME_MT);
  lua_setmetatable(L, -2);
  return f;
}

tm_lua_frame *tm_lua_frame_take(lua_State *L) {
  luaL_checkstack(L, 8, "op");
  lua_rawgetp(L, LUA_REGISTRYINDEX, &op_frame_key);
  tm_lua_frame *f = lua_touserdata(L, -1);
  if (f->busy) {
    lua_pop(L, 1);
    f = frame_new(L);
  }
  f->busy = true;
  return f;
}

int tm_lua_frame_apply(lua_State *L, tm_lua_frame *f, const tm_op *op, int32_t nin) {
  tm_err err;
  tm_err_clear(&err);
  tm_scope *sc = tm_lua_scope(L);
  tm_status s = tm_apply(sc, op, f->in, nin, &f->attrs, f->out, &f->nout, &err);
  if (op->flags & TM_OP_RANDOM) tm_lua_ctx(L)->runs = tm_scope_env(sc)->closure;
  if (s) {
    f->nout = 0;
    tm_lua_frame_drop(f);
    if (!err.op[0]) snprintf(err.op, sizeof err.op, "%s", op->name);
    return tm_lua_raise(L, s, &err);
  }
  int32_t n = f->nout;
  luaL_checkstack(L, n + 4, "results");
  for (int32_t i = 0; i < n; i++) {
    tm_lua_tensor *b = tm_lua_new_tensor(L);
    tm_value *v = f->out[i];
    f->out[i] = NULL;
    tm_lua_adopt(L, b, v);
  }
  tm_lua_frame_drop(f);
  return n;
}

int64_t tm_lua_check_axis(lua_State *L, int i) {
  int64_t x = 0, axis = 0;
  if (!tm_lua_integer(L, i, &x))
    tm_lua_fail(L, TM_EINVAL, "an axis is a whole number, not a %s",
                luaL_typename(L, i));
  tm_err err;
  tm_err_clear(&err);
  tm_lua_check(L, tm_lua_axis(x, &axis, &err), &err);
  return axis;
}

/* --- usage --- */

static void op_usage(const tm_op *op, char *buf, size_t cap) {
  const tm_sig *sig = tm_op_sig(op);
  size_t n = (size_t)snprintf(buf, cap, "tm.%s(", op->name);
  const char *sep = "";
  for (int32_t i = 0; i < sig->nnames && n < cap; i++, sep = ", ") {
    bool list = sig->list && i == sig->nnames - 1;
    n += (size_t)snprintf(buf + n, cap - n, list ? "%s{%s...}" : "%s%s", sep,
                          sig->in_name[i]);
  }
  bool named = false;
  for (int32_t i = 0; i < sig->nattr && n < cap; i++) {
    const tm_param *p = &sig->attr[i];
    const char *open = p->named_only && !named ? ", {" : ", ";
    if (sep[0] == '\0') open = p->named_only && !named ? "{" : "";
    named |= p->named_only;
    n += (size_t)snprintf(buf + n, cap - n, "%s%s", open, p->name);
    sep = ", ";
  }
  if (n < cap) snprintf(buf + n, cap - n, "%s", named ? "})" : ")");
}

/* Raise with the op's name and usage. */
static int op_misuse(lua_State *L, const tm_op *op, const char *what,
                     const char *name) {
  char usage[256];
  op_usage(op, usage, sizeof usage);
  tm_err err;
  tm_err_clear(&err);
  snprintf(err.op, sizeof err.op, "%s", op->name);
  tm_status s = tm_fail(&err, TM_EINVAL, "%s%s%s%s; usage: %s", what, name ? " \"" : "",
                        name ? name : "", name ? "\"" : "", usage);
  return tm_lua_raise(L, s, &err);
}

/* --- arguments --- */

/* A plain table with a string key: named options. */
static bool op_has_names(lua_State *L, int i) {
  if (lua_type(L, i) != LUA_TTABLE) return false;
  if (lua_getmetatable(L, i)) {
    lua_pop(L, 1);
    return false;
  }
  lua_pushnil(L);
  while (lua_next(L, i)) {
    lua_pop(L, 1);
    if (lua_type(L, -1) == LUA_TSTRING) {
      lua_pop(L, 1);
      return true;
    }
  }
  return false;
}

static bool op_is_empty_table(lua_State *L, int i) {
  if (lua_type(L, i) != LUA_TTABLE) return false;
  lua_pushnil(L);
  if (!lua_next(L, i)) return true;
  lua_pop(L, 2);
  return false;
}

/* Attribute that stands at argument position i (from 1), NULL: none. */
static const tm_param *op_positional(const tm_sig *sig, int i) {
  int k = i - 1 - sig->nnames;
  if (k < 0 || k >= sig->nattr || sig->attr[k].named_only) return NULL;
  return &sig->attr[k];
}

/* Index of the table of options among n arguments, 0: none. */
static int op_options(lua_State *L, const tm_sig *sig, int n) {
  if (n == 0) return 0;
  if (op_has_names(L, n)) return n;
  if (!op_is_empty_table(L, n)) return 0;
  const tm_param *p = op_positional(sig, n);
  if (n <= sig->nnames || (p && tm_lua_attr_is_list(p->kind))) return 0;
  return n;
}

static bool op_is_symbol(lua_State *L, int i) {
  if (!tm_lua_metafield(L, i, "__tm_symbol")) return false;
  lua_pop(L, 1);
  return true;
}

static bool op_any_symbol(lua_State *L, const tm_sig *sig, int n) {
  for (int i = 1; i <= n; i++)
    if (op_is_symbol(L, i)) return true;
  if (!sig->list || n < sig->nnames || lua_type(L, sig->nnames) != LUA_TTABLE)
    return false;
  int len = (int)lua_rawlen(L, sig->nnames);
  for (int k = 1; k <= len; k++) {
    lua_rawgeti(L, sig->nnames, k);
    bool yes = op_is_symbol(L, lua_gettop(L));
    lua_pop(L, 1);
    if (yes) return true;
  }
  return false;
}

static int op_symbol_call(lua_State *L, const tm_op *op, int n) {
  tm_lua_push_hook(L, "symbol_op");
  if (lua_isnil(L, -1))
    return tm_lua_fail(L, TM_EPRECOND, "layer graphs need the module tidemill");
  lua_insert(L, 1);
  lua_pushvalue(L, lua_upvalueindex(2));
  lua_insert(L, 2);
  lua_pushstring(L, op->name);
  lua_insert(L, 3);
  lua_call(L, n + 2, LUA_MULTRET);
  return lua_gettop(L);
}

struct op_call {
  const tm_op *op;
  const tm_sig *sig;
  int npos; /* positional arguments */
  int opt;  /* table of options, 0: none */
  int base; /* stack slot of input 0 */
  int32_t nin;
};

/* Push argument i, from its position or by name; false: missing. */
static bool op_push_arg(lua_State *L, const struct op_call *c, int i,
                        const char *name) {
  if (i > 0 && i <= c->npos && !lua_isnil(L, i)) {
    lua_pushvalue(L, i);
    return true;
  }
  if (!c->opt) return false;
  lua_getfield(L, c->opt, name);
  if (!lua_isnil(L, -1)) return true;
  lua_pop(L, 1);
  return false;
}

static void op_push_list(lua_State *L, struct op_call *c) {
  int at = lua_gettop(L);
  if (tm_lua_test_value(L, at) || lua_type(L, at) != LUA_TTABLE) {
    c->nin++; /* a single value: a list of one */
    return;
  }
  size_t n = lua_rawlen(L, at);
  if (n + (size_t)c->nin > TM_MAX_LIST)
    op_misuse(L, c->op, "a list of more than 256 tensors", NULL);
  luaL_checkstack(L, (int)n + 8, "list of tensors");
  for (size_t k = 1; k <= n; k++) lua_rawgeti(L, at, (int)k);
  lua_remove(L, at);
  c->nin += (int32_t)n;
}

static void op_push_inputs(lua_State *L, struct op_call *c) {
  const tm_sig *sig = c->sig;
  c->base = lua_gettop(L) + 1;
  const char *missing = NULL;
  for (int32_t i = 0; i < sig->nnames; i++) {
    bool list = sig->list && i == sig->nnames - 1;
    if (!op_push_arg(L, c, i + 1, sig->in_name[i])) {
      if (!missing) missing = sig->in_name[i];
      continue;
    }
    if (missing) op_misuse(L, c->op, "missing argument", missing);
    if (list)
      op_push_list(L, c);
    else
      c->nin++;
  }
  if (c->nin < sig->min_in) {
    if (missing) op_misuse(L, c->op, "missing argument", missing);
    op_misuse(L, c->op, "the list of tensors is empty", NULL);
  }
}

/* Ids and positions are whole numbers, whatever dtype the other tensors have. */
static bool op_wants_ids(const tm_sig *sig, int32_t i) {
  static const char *const names[] = {"ids", "indices", "segment_ids", "lengths",
                                      "row_splits"};
  if (i >= sig->nnames) return false;
  for (size_t k = 0; k < TM_COUNT(names); k++)
    if (strcmp(sig->in_name[i], names[k]) == 0) return true;
  return false;
}

static int op_input_fails(lua_State *L, const struct op_call *c, int32_t i) {
  int32_t k = i < c->sig->nnames ? i : c->sig->nnames - 1;
  char what[96];
  snprintf(what, sizeof what,
           "argument \"%s\" is a %s, which cannot become a tensor:", c->sig->in_name[k],
           luaL_typename(L, c->base + i));
  return op_misuse(L, c->op, what, NULL);
}

/* The dtype that input i suggests to plain numbers beside it, or none. */
static tm_dtype op_input_hint(lua_State *L, const struct op_call *c, int32_t i) {
  int at = c->base + i, type = lua_type(L, at);
  if (type == LUA_TFUNCTION || type == LUA_TNIL || type == LUA_TTHREAD)
    op_input_fails(L, c, i);
  if (type != LUA_TUSERDATA && type != LUA_TTABLE) return TM_DTYPE_NONE;
  tm_value *v = tm_lua_test_value(L, at);
  if (!v && tm_lua_metafield(L, at, "__tm_tensor")) {
    lua_pop(L, 1);
    v = tm_lua_arg_value(L, at, TM_DTYPE_NONE);
  }
  if (!v || !tm_dtype_is_number(v->type.dtype)) return TM_DTYPE_NONE;
  return op_wants_ids(c->sig, i) ? TM_DTYPE_NONE : v->type.dtype;
}

/* All inputs become Tensors; numbers take the dtype of the first tensor of numbers. */
static void op_convert_inputs(lua_State *L, const struct op_call *c) {
  tm_dtype hint = TM_DTYPE_NONE;
  for (int32_t i = 0; i < c->nin; i++) {
    tm_dtype t = op_input_hint(L, c, i);
    if (!hint) hint = t;
  }
  for (int32_t i = 0; i < c->nin; i++)
    if (lua_type(L, c->base + i) != LUA_TUSERDATA)
      tm_lua_arg_value(L, c->base + i, op_wants_ids(c->sig, i) ? TM_I64 : hint);
}

static void op_check_names(lua_State *L, const struct op_call *c) {
  if (!c->opt) return;
  lua_pushnil(L);
  while (lua_next(L, c->opt)) {
    lua_pop(L, 1);
    const char *key = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    bool known = key && tm_op_attr_index(c->op, key) >= 0;
    for (int32_t i = 0; key && i < c->sig->nnames; i++)
      known |= strcmp(key, c->sig->in_name[i]) == 0;
    if (known) continue;
    if (!key) op_misuse(L, c->op, "positional values in the table of options", NULL);
    tm_lua_push_hook(L, "unknown_option");
    if (lua_isnil(L, -1)) op_misuse(L, c->op, "unknown option", key);
    lua_pushvalue(L, -2);
    lua_newtable(L);
    for (int32_t i = 0; i < c->sig->nattr; i++) {
      lua_pushstring(L, c->sig->attr[i].name);
      lua_rawseti(L, -2, i + 1);
    }
    lua_pushfstring(L, "tm.%s", c->op->name);
    lua_call(L, 3, 0);
  }
}

static void op_check_count(lua_State *L, const struct op_call *c) {
  int most = c->sig->nnames;
  for (int32_t i = 0; i < c->sig->nattr && !c->sig->attr[i].named_only; i++) most++;
  for (int i = most + 1; i <= c->npos; i++)
    if (!lua_isnil(L, i)) op_misuse(L, c->op, "too many arguments", NULL);
}

static tm_status op_fill_attrs(lua_State *L, const struct op_call *c, tm_attrs *out,
                               tm_err *err) {
  const tm_sig *sig = c->sig;
  for (int32_t i = 0; i < sig->nattr; i++) {
    const tm_param *p = &sig->attr[i];
    int top = lua_gettop(L);
    out->n = i + 1;
    int at = p->named_only ? 0 : sig->nnames + 1 + i;
    if (!op_push_arg(L, c, at, p->name)) continue;
    tm_status s = tm_lua_to_attr(L, lua_gettop(L), p, &out->a[i], err);
    lua_settop(L, top);
    if (s) return s;
  }
  return TM_OK;
}

static int op_call(lua_State *L) {
  struct op_call c = {.op = lua_touserdata(L, lua_upvalueindex(1))};
  c.sig = tm_op_sig(c.op);
  int n = lua_gettop(L);
  luaL_checkstack(L, 16, c.op->name);
  if (op_any_symbol(L, c.sig, n)) return op_symbol_call(L, c.op, n);
  c.opt = op_options(L, c.sig, n);
  c.npos = c.opt ? n - 1 : n;
  op_check_count(L, &c);
  op_check_names(L, &c);
  op_push_inputs(L, &c);
  op_convert_inputs(L, &c);
  tm_lua_frame *f = tm_lua_frame_take(L);
  for (int32_t i = 0; i < c.nin; i++) f->in[i] = tm_lua_test_value(L, c.base + i);
  tm_err err;
  tm_err_clear(&err);
  tm_status s = op_fill_attrs(L, &c, &f->attrs, &err);
  if (s) {
    tm_lua_frame_drop(f);
    snprintf(err.op, sizeof err.op, "%s", c.op->name);
    return tm_lua_raise(L, s, &err);
  }
  return tm_lua_frame_apply(L, f, c.op, c.nin);
}

/* core.op_info(name) -> { sig, help, usage, hidden, method } or nil */
static int op_info(lua_State *L) {
  const tm_op *op = tm_op_find(luaL_checkstring(L, 1));
  if (!op) return 0;
  char usage[256];
  op_usage(op, usage, sizeof usage);
  const tm_sig *sig = tm_op_sig(op);
  lua_newtable(L);
  lua_pushstring(L, op->sig);
  lua_setfield(L, -2, "sig");
  lua_pushstring(L, op->help ? op->help : "");
  lua_setfield(L, -2, "help");
  lua_pushstring(L, usage);
  lua_setfield(L, -2, "usage");
  lua_pushboolean(L, (op->flags & TM_OP_HIDDEN) != 0);
  lua_setfield(L, -2, "hidden");
  lua_pushboolean(L, sig->nnames > 0 && !(sig->list && sig->nnames == 1));
  lua_setfield(L, -2, "method");
  return 1;
}

void tm_lua_open_op(lua_State *L, int core) {
  luaL_newmetatable(L, FRAME_MT);
  lua_pushcfunction(L, frame_gc);
  lua_setfield(L, -2, "__gc");
  lua_pop(L, 1);
  frame_new(L);
  lua_rawsetp(L, LUA_REGISTRYINDEX, &op_frame_key);
  lua_newtable(L);
  int ops = lua_gettop(L);
  for (int32_t i = 0; i < tm_op_count(); i++) {
    const tm_op *op = tm_op_at(i);
    lua_pushlightuserdata(L, (void *)(uintptr_t)op);
    lua_pushnil(L);
    lua_pushcclosure(L, op_call, 2);
    lua_pushvalue(L, -1);
    lua_setupvalue(L, -2, 2); /* itself, for symbol_op */
    lua_setfield(L, ops, op->name);
  }
  lua_setfield(L, core, "ops");
  lua_pushcfunction(L, op_info);
  lua_setfield(L, core, "op_info");
}
