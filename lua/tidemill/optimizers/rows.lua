--- Gradients by rows: { ids, rows } as tapes give them, ids may repeat.

local state = require "tidemill.lib.state"

local M = {}

--- Is a gradient one by rows?
function M.is(g) return type(g) == "table" and g.ids ~= nil and g.rows ~= nil end

--- The same ids with other rows.
function M.new(g, rows) return { ids = g.ids, rows = rows } end

--- Each id once, its rows added up.
function M.summed(g) return state.sum_rows(g) end

return M
