--- Seeds for what draws numbers without being given one: a sequence that the global seed
--- begins, so that a program which sets it gives the same numbers on every run.
---
--- Numbers are drawn by Philox with the seed as key, so neighbouring seeds are as good as
--- any.

local core = require "tidemill.core"

local M = {}

local PROGRAMS, DRAWS = 4294967296, 1048576 -- 2^32 global seeds of 2^20 seeds each

local base, drawn

--- The next seed, a whole number below 2^52.
function M.next()
  local seed = core.seed()
  if seed ~= base then base, drawn = seed, 0 end
  drawn = drawn + 1
  return (seed % PROGRAMS) * DRAWS + drawn % DRAWS
end

--- Setting the global seed begins the sequence anew, also when it is the same seed.
local set_seed = core.set_seed
function core.set_seed(seed)
  base = nil
  return set_seed(seed)
end

return M
