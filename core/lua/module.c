#include "lua/module.h"

#include "lua/ckpt.h"
#include "lua/claim.h"
#include "lua/cluster.h"
#include "lua/convert.h"
#include "lua/data.h"
#include "lua/graphs.h"
#include "lua/index.h"
#include "lua/json.h"
#include "lua/op.h"
#include "lua/preempt.h"
#include "lua/safetensors.h"
#include "lua/server.h"
#include "lua/summary.h"
#include "lua/system.h"
#include "lua/tape.h"
#include "lua/trace.h"
#include "lua/value.h"
#include "lua/variable.h"

/* Design.  The state's context is made first: everything else refers to it. */
int luaopen_tidemill_core(lua_State *L) {
  luaL_checkstack(L, 20, "tidemill.core");
  lua_newtable(L);
  int core = lua_gettop(L);
  tm_lua_open_error(L, core);
  tm_lua_open_state(L, core);
  tm_lua_open_value(L, core);
  tm_lua_open_convert(L, core);
  tm_lua_open_index(L, core);
  tm_lua_open_trace(L, core);
  tm_lua_open_op(L, core);
  tm_lua_open_tape(L, core);
  tm_lua_open_variable(L, core);
  tm_lua_open_data(L, core);
  tm_lua_open_cluster(L, core);
  tm_lua_open_preempt(L, core);
  tm_lua_open_ckpt(L, core);
  tm_lua_open_claim(L, core);
  tm_lua_open_json(L, core);
  tm_lua_open_safetensors(L, core);
  tm_lua_open_graphs(L, core);
  tm_lua_open_server(L, core);
  tm_lua_open_summary(L, core);
  tm_lua_open_system(L, core);
  lua_pushliteral(L, TM_VERSION);
  lua_setfield(L, core, "version");
  lua_settop(L, core);
  return 1;
}
