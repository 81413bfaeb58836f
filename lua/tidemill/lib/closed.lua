--- Tables that are closed lists of names: an unknown one raises with the nearest.
---
---     closed.list(M, "layer")
---     tm.layers.Dens        -- tidemill: unknown layer "Dens"; did you mean "Dense"?
---
--- Names that begin with "_" are nil, and rawget asks without raising.

local options = require "tidemill.lib.options"

local M = {}

--- Close a table.  `names(t)`: what there is besides what pairs gives; `load(name)`: what is
--- made when it is first asked for, nil for a name that there is not.
function M.list(t, what, names, load)
  return setmetatable(t, { __index = function(_, key)
    if type(key) ~= "string" or key:sub(1, 1) == "_" then return nil end
    local x = load and load(key)
    if x ~= nil then return x end
    local list = names and names() or {}
    for name in pairs(t) do list[#list + 1] = name end
    table.sort(list)
    return options.unknown("tidemill", what, key, list)
  end })
end

return M
