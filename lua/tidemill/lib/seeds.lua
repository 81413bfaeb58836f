--- Seeds for what draws numbers without being given one: from the stream of the global
--- seed, so that a program with a seed gives the same numbers on every run.

local place = require "tidemill.lib.place"
local tm = require "tidemill.lib.lazy"

local M = {}

-- float32 has 24 bits; two draws make a seed of 48.
local HALF = 16777216

--- The next seed, a whole number below 2^48.
function M.next()
  local pair = place.eagerly(function()
    return tm.random.uniform({ 2 }, { dtype = "float32" }):totable()
  end)
  return math.floor(pair[1] * HALF) * HALF + math.floor(pair[2] * HALF)
end

return M
