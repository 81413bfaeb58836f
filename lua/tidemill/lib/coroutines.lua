--- Things that belong to a coroutine: they count while it runs, and while it is
--- suspended in a resume of its own (status "normal").

local interrupt = require "tidemill.lib.interrupt"

local M = {}

local MAIN = {}

--- What names the running coroutine in a table with weak keys.
function M.key()
  local co, main = coroutine.running()
  return not main and co or MAIN
end

local function is_normal(key) return key == MAIN or coroutine.status(key) == "normal" end

--- The entry of the running coroutine, or, where it has none, that of one that resumed
--- it.
function M.find(map)
  local own = M.key()
  if map[own] ~= nil then return map[own] end
  for key, entry in pairs(map) do
    if key ~= own and is_normal(key) then return entry end
  end
end

--- Keep the running coroutine's entry of a map over Ctrl-C.
function M.keep(map)
  interrupt.keep(function()
    local key = M.key()
    local entry = map[key]
    return function() map[key] = entry end
  end)
  return map
end

return M
