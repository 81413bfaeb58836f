--- Placement: on which ps the next shard goes.
--- A placement is a function `(shape, dtype, held_bytes)` -> index of a ps from 1, where
--- held_bytes[i] is what ps i was given so far.

local errors = require "tidemill.errors"

local M = {}

local sizes = { float32 = 4, float64 = 8, int32 = 4, int64 = 8, uint8 = 1, bool = 1, string = 16 }

--- Bytes of a shard.
function M.bytes(shape, dtype)
  local n = sizes[dtype] or 4
  for _, d in ipairs(shape) do n = n * d end
  return n
end

local function balanced(_, _, held)
  local best = 1
  for i = 2, #held do
    if held[i] < held[best] then best = i end
  end
  return best
end

local function round_robin()
  local count = 0
  return function(_, _, held)
    local at = count % #held + 1
    count = count + 1
    return at
  end
end

--- The function that a strategy's `placement` option means.
function M.resolve(option)
  if option == nil or option == "balanced" then return balanced end
  if option == "round_robin" then return round_robin() end
  if type(option) == "function" then return option end
  errors.raise("invalid_argument", 'placement must be "balanced", "round_robin" or a function, got %s',
    tostring(option))
end

return M
