--- tm.random: Philox numbers; the same seed gives the same numbers everywhere.

local core = require "tidemill.core"
local ops = require "tidemill.ops"

local M = ops.random

--- The seed of everything that is not given one.
function M.set_seed(seed) core.set_seed(seed) end

return M
