--- tm.help: what the op table says of a function.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"

local names = {} -- op name by function
for name, fn in pairs(core.ops) do names[fn] = name end

--- help("matmul"), help("nn.relu") or help(tm.matmul): usage and meaning, as text.
---@param what string|function
---@return string
return function(what)
  local name = names[what] or (type(what) == "string" and what:gsub("^tm%.", "")) or nil
  local info = name and core.op_info(name)
  if not info or info.hidden then
    local known = {}
    for n in pairs(core.ops) do
      if not core.op_info(n).hidden then known[#known + 1] = n end
    end
    local near = name and options.nearest(name, known)
    errors.raise("not_found", "help: there is no op %s%s", tostring(what),
      near and ('; did you mean "%s"?'):format(near) or "")
  end
  return ("%s\n  %s"):format(info.usage, info.help)
end
