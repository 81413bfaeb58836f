-- Shipped Lua keeps to what Lua 5.4 and LuaJIT share ("min"), and reaches for the rest
-- as `table.unpack or unpack`.
std = "min"
max_line_length = 120
self = false
files["lua"] = {
  read_globals = {
    "unpack", "loadstring", "setfenv", "jit", "utf8", "warn",
    table = { fields = { "unpack", "pack", "move" } },
    math = { fields = { "type", "tointeger", "maxinteger", "mininteger", "ult" } },
    string = { fields = { "pack", "unpack", "packsize" } },
    coroutine = { fields = { "isyieldable", "close" } },
  },
}
files["lua/tidemill/meta"] = { ignore = { "1..", "2.." } }
files["spec"] = { std = "lua54+busted", read_globals = { "unpack" } }
files["spec/tools"] = { std = "lua54" }
files["examples"] = { std = "lua54", read_globals = { "unpack" } }
files["bench"] = { std = "lua54", read_globals = { "unpack" } }
