--- Clipping of gradients, dense ones (tensors) and those by rows (tm.IndexedSlices,
--- each row once).

local rows = require "tidemill.optimizers.rows"
local tm = require "tidemill.lib.lazy"

local M = {}

--- fn applied to the numbers of a gradient.
local function through(g, fn)
  if not rows.is(g) then return fn(g) end
  return rows.new(g, fn(g.values))
end

local function squares(g) return tm.reduce_sum(tm.square(rows.is(g) and g.values or g)) end

--- Each element within [-limit, limit].
function M.by_value(g, limit)
  return through(g, function(x) return tm.clip_by_value(x, -limit, limit) end)
end

local function scale(g, norm, limit)
  return through(g, function(x)
    return x * (tm.cast(limit / tm.maximum(norm, limit), x.dtype))
  end)
end

--- Each gradient no longer than limit.
function M.by_norm(g, limit) return scale(g, tm.sqrt(squares(g)), limit) end

--- All gradients together no longer than limit.
function M.by_global_norm(list, n, limit)
  local sum
  for i = 1, n do
    if list[i] then
      local s = tm.cast(squares(list[i]), "float32")
      sum = sum and sum + s or s
    end
  end
  if not sum then return list end
  local norm, out = tm.sqrt(sum), {}
  for i = 1, n do out[i] = list[i] and scale(list[i], norm, limit) end
  return out
end

return M
