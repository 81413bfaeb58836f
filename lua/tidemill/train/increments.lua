--- Incremental checkpoints: of tables on ps a save writes only the rows that changed since
--- the last whole one, of dense variables nothing if they did not change at all; the rest
--- is taken over from there by hard links.
---
--- A checkpoint stands for itself all the same: the ones before may be deleted.  Every
--- few saves, or when much has changed, a whole one is written again (compaction).
---
--- Invariant: `mark` is of the last whole save that came to its end, `base` the newest
--- checkpoint that has its files; nil before there is one.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"

local M = {}

---@class tm.train.Increments
local Increments = {}
Increments.__index = Increments

--- incremental = true | { full_every = 10, max_fraction = 0.5 }: a whole save after so
--- many, or once the rows that changed are more than this part of their tables.
function M.new(where, given)
  if given == nil or given == false then return nil end
  if given ~= true and type(given) ~= "table" then
    errors.raise("invalid_argument", "%s: incremental is true or { full_every = 10, max_fraction = 0.5 }, got %s",
      where, kinds.a(given))
  end
  local o = options.read(where .. ".incremental", given == true and {} or given, { full_every = 10,
    max_fraction = 0.5 })
  options.count(where .. ".incremental", "full_every", o.full_every, 1)
  options.number(where .. ".incremental", "max_fraction", o.max_fraction, 0)
  return setmetatable({ full_every = o.full_every, max_fraction = o.max_fraction, since = 0, fraction = 0 }, Increments)
end

--- How the next save is done: what saving.save takes.
function Increments:how()
  local whole = not self.base or self.since + 1 >= self.full_every or self.fraction > self.max_fraction
  if whole then return { mark = core.new_uid() } end
  return { base = self.base, base_mark = self.mark }
end

--- It was saved at this path; report: what saving.save says of it (nil: nothing was on
--- ps).
function Increments:saved(path, how, report)
  self.base = path
  if how.mark then
    self.mark, self.since, self.fraction = how.mark, 0, 0
    return
  end
  self.since = self.since + 1
  local lent = report and report.lent or 0
  -- After a restore ps do not know what changed: the next one begins anew.
  self.fraction = lent > 0 and report.patched / lent or math.huge
end

return M
