--- Gradients by rows, tm.IndexedSlices as tapes give them: ids may repeat.

local core = require "tidemill.core"
local variable = require "tidemill.variable"

local M = {}

--- Is a gradient one by rows?
M.is = variable.is_slices

--- The same ids with other rows.
function M.new(g, rows) return variable.slices(rows, g.indices, g.dense_shape) end

--- Each id once, its rows added up.
function M.summed(g)
  local ids, rows = core.ops.sum_by_row(g.indices, g.values)
  return variable.slices(rows, ids, g.dense_shape)
end

return M
