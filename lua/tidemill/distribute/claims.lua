--- Which of several evaluators takes which checkpoint.
---
--- Claims are files in DIR/.evaluators/GROUP, one a checkpoint; the evaluators of a group
--- share the work.  A claim goes away with its checkpoint.
---
--- Invariant: a checkpoint is evaluated by one of them at a time, and one that was
--- evaluated is not again, as long as it is the same one (a new training may write
--- checkpoints of the same names).

local core = require "tidemill.core"
local state = require "tidemill.train.state"

local M = {}

local SIDE = ".evaluators"
local BEAT = 1 -- seconds between two signs of life

---@class tm.distribute.Claims
local Claims = {}
Claims.__index = Claims

--- Of the evaluators of a group, in a directory; an owner that gives no sign of life for
--- `timeout` seconds has lost what it claimed.
function M.new(dir, group, timeout)
  local self = setmetatable({ dir = dir, timeout = timeout, seen = {}, beaten = 0,
    side = state.join(state.join(dir, SIDE), group) }, Claims)
  return self
end

function Claims:path(name) return state.join(self.side, name) end

--- Groups of clusters that are gone: launchers make a new one each time.
function Claims:sweep(prefix)
  local above = state.join(self.dir, SIDE)
  for _, group in ipairs(core.claim.list(above)) do
    local path = state.join(above, group)
    if group:sub(1, #prefix) == prefix and path ~= self.side then
      for _, name in ipairs(core.claim.list(path)) do core.claim.forget(state.join(path, name)) end
    end
  end
end

--- An owner that stood still for too long has it no more.
local function watch(self, name)
  local mark, now = core.claim.mark(self:path(name)), core.time()
  local seen = self.seen[name]
  if not seen or seen.mark ~= mark then
    self.seen[name] = { mark = mark, since = now }
  elseif now - seen.since > self.timeout then
    core.log("warn", ('SidecarEvaluator: who evaluates "%s" gave no sign of life for %g s; it is taken over')
      :format(name, self.timeout))
    core.claim.break_(self:path(name), mark)
    self.seen[name] = nil
  end
end

--- Take a checkpoint: true; or false and "held", "done" or "gone".
function Claims:take(path)
  local _, name = state.split(path)
  local identity, err = core.claim.identity(path)
  if not identity then return false, "gone", err end
  local claim, why = core.claim.take(self:path(name), identity)
  if claim then
    self.claim, self.seen[name] = claim, nil
    return true
  end
  if type(why) ~= "string" then error(why, 0) end
  if why == "held" then watch(self, name) end
  return false, why
end

--- A sign of life; false: another one has it now.
function Claims:beat()
  local now = core.time()
  if not self.claim or now - self.beaten < BEAT then return true end
  self.beaten = now
  return self.claim:beat()
end

--- Is it still ours?  The check before a result is written down.
function Claims:ours() return not self.claim or self.claim:beat() end

--- Give it back: done, or for another one to try.
function Claims:close(done)
  local claim = self.claim
  self.claim = nil
  if not claim then return end
  if done then claim:finish() end
  claim:close()
end

--- Claims of checkpoints that are there no more.
function Claims:tidy()
  for _, name in ipairs(core.claim.list(self.side)) do
    if not state.exists(state.join(self.dir, name)) then
      core.claim.forget(self:path(name))
      self.seen[name] = nil
    end
  end
end

--- One evaluator alone: everything is its own.
local Alone = { __index = {
  take = function(_, path) return state.exists(path), "gone" end,
  beat = function() return true end,
  ours = function() return true end,
  close = function() end,
  tidy = function() end,
} }

function M.alone() return setmetatable({}, Alone) end

return M
