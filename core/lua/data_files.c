#include <string.h>

#include "data/source.h"
#include "lua/convert.h"
#include "lua/data.h"

/*
 * Design.  Options come as a table that lua/tidemill/data.lua has checked: file names
 * as a list, columns as a list of tables.  Strings stay on the Lua stack (in the table)
 * while the core reads them; arrays of pointers are userdata.
 */

/* A field that is a string, or NULL.  The table keeps it alive. */
static const char *file_str(lua_State *L, int t, const char *field) {
  lua_getfield(L, t, field);
  const char *s = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
  lua_pop(L, 1);
  return s;
}

static bool file_bool(lua_State *L, int t, const char *field, bool dflt) {
  lua_getfield(L, t, field);
  bool b = lua_isnil(L, -1) ? dflt : (bool)lua_toboolean(L, -1);
  lua_pop(L, 1);
  return b;
}

/* A list of strings as an array (a userdata that stays on the stack). */
static const char *const *file_list(lua_State *L, int t, const char *field, size_t *n) {
  *n = 0;
  lua_getfield(L, t, field);
  int at = lua_gettop(L);
  if (lua_type(L, at) != LUA_TTABLE) return NULL;
  size_t len = lua_rawlen(L, at);
  const char **s = lua_newuserdatauv(L, (len + 1) * sizeof *s, 0);
  for (size_t k = 0; k < len; k++) {
    lua_rawgeti(L, at, (int)k + 1);
    if (lua_type(L, -1) != LUA_TSTRING)
      tm_lua_fail(L, TM_EINVAL, "\"%s\" must be a list of file names", field);
    s[k] = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  *n = len;
  return s;
}

static char file_char(lua_State *L, int t, const char *field, char dflt) {
  lua_getfield(L, t, field);
  char c = dflt;
  size_t n;
  if (lua_type(L, -1) == LUA_TBOOLEAN && !lua_toboolean(L, -1)) c = '\0';
  if (lua_type(L, -1) == LUA_TSTRING) {
    const char *s = lua_tolstring(L, -1, &n);
    if (n > 1)
      tm_lua_fail(L, TM_EINVAL, "\"%s\" must be one character, not \"%s\"", field, s);
    c = n ? s[0] : '\0';
  }
  lua_pop(L, 1);
  return c;
}

static int data_text_line(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  tm_text_options o;
  memset(&o, 0, sizeof o);
  o.files = file_list(L, 1, "files", &o.nfiles);
  o.compression = file_str(L, 1, "compression");
  tm_err err;
  tm_err_clear(&err);
  tm_dataset **out = tm_lua_new_dataset(L);
  tm_lua_check(L, tm_data_text_line(&o, out, &err), &err);
  return 1;
}

/* Column k of the list at `list`: { name, dtype, default } by field. */
static void file_column(lua_State *L, int list, size_t k, tm_csv_column *c) {
  lua_rawgeti(L, list, (int)k + 1);
  int at = lua_gettop(L);
  c->name = file_str(L, at, "name");
  if (!c->name) tm_lua_fail(L, TM_EINVAL, "csv: column %zu has no name", k + 1);
  const char *dtype = file_str(L, at, "dtype");
  c->dtype = TM_DTYPE_NONE;
  if (dtype) {
    lua_getfield(L, at, "dtype");
    c->dtype = tm_lua_check_dtype(L, at + 1);
  }
  c->dflt = file_str(L, at, "default");
  lua_settop(L, at - 1);
}

static void file_columns(lua_State *L, int t, tm_csv_options *o) {
  lua_getfield(L, t, "columns");
  int list = lua_gettop(L);
  if (lua_type(L, list) != LUA_TTABLE) return;
  size_t n = lua_rawlen(L, list);
  if (n > TM_CSV_COLUMNS)
    tm_lua_fail(L, TM_EINVAL, "csv: at most %d columns", TM_CSV_COLUMNS);
  tm_csv_column *c = lua_newuserdatauv(L, (n + 1) * sizeof *c, 0);
  memset(c, 0, (n + 1) * sizeof *c);
  for (size_t k = 0; k < n; k++) file_column(L, list, k, &c[k]);
  o->columns = c;
  o->ncolumns = n;
}

static int data_csv(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  luaL_checkstack(L, 32, "csv");
  tm_csv_options o;
  tm_csv_defaults(&o);
  o.files = file_list(L, 1, "files", &o.nfiles);
  file_columns(L, 1, &o);
  o.header = file_bool(L, 1, "header", o.header);
  o.label = file_str(L, 1, "label");
  o.na_value = file_str(L, 1, "na_value");
  o.delimiter = file_char(L, 1, "delimiter", o.delimiter);
  o.quote = file_char(L, 1, "quote", o.quote);
  o.comment = file_str(L, 1, "comment");
  lua_getfield(L, 1, "skip");
  if (!lua_isnil(L, -1) && !tm_lua_integer(L, -1, &o.skip))
    return tm_lua_fail(L, TM_EINVAL, "\"skip\" must be a number of lines");
  lua_pop(L, 1);
  o.compression = file_str(L, 1, "compression");
  o.check = file_bool(L, 1, "check", o.check);
  tm_err err;
  tm_err_clear(&err);
  tm_dataset **out = tm_lua_new_dataset(L);
  tm_lua_check(L, tm_data_csv(&o, out, &err), &err);
  return 1;
}

static int data_idx(lua_State *L) {
  luaL_checktype(L, 1, LUA_TTABLE);
  tm_idx_options o;
  memset(&o, 0, sizeof o);
  o.images = file_list(L, 1, "images", &o.nimages);
  o.labels = file_list(L, 1, "labels", &o.nlabels);
  o.compression = file_str(L, 1, "compression");
  tm_err err;
  tm_err_clear(&err);
  tm_dataset **out = tm_lua_new_dataset(L);
  tm_lua_check(L, tm_data_idx(&o, out, &err), &err);
  return 1;
}

void tm_lua_open_data_files(lua_State *L, int data) {
  static const luaL_Reg functions[] = {{"text_line", data_text_line},
                                       {"csv", data_csv},
                                       {"idx", data_idx},
                                       {NULL, NULL}};
  lua_pushvalue(L, data);
  luaL_setfuncs(L, functions, 0);
  lua_pop(L, 1);
}
