--- Runs the steps of a model in this process: traced, or eagerly op by op.
---
--- A runner is what docs/fit.md says; this one has done a step when `run` returns.

local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local unpack = table.unpack or unpack
local M = {}

local QUICK, SLOW = 0.02, 0.05 -- seconds between two looks at hooks and signals

---@class tm.fit.LocalRunner
local Runner = {}
Runner.__index = Runner

--- A runner for one call of fit, evaluate or predict.
---@param steps tm.fit.Steps
---@param source table
function M.new(steps, source, eager)
  return setmetatable({ steps = steps, source = source, eager = eager, slice = 1, done = 0, total = 0, found = {} },
    Runner)
end

--- Begin a pass: data that do not go on begin anew.
function Runner:start_pass()
  if not self.iterator or not self.source.continues then self.iterator = self.source.dataset:iterator() end
  self.done = 0
end

--- One step; false: the data ended.
local function step(self)
  if self.eager then
    local element = self.iterator:try_next()
    if element == nil then return false end
    return true, self.steps:run(element)
  end
  local ok, result = pcall(self.steps.fn, self.iterator)
  if ok then return true, result end
  if errors.is_error(result, "out_of_range") and result.op == "iterator_next" then return false end
  local ran = self.steps.fn.trace_count > 0
  if ran and errors.is_error(result) then result.step = result.step or self.total + 1 end
  error(result, 0)
end

--- n steps; gives how many had data.
function Runner:run(n)
  local began = tm.time()
  local predicts = self.steps.kind == "predict"
  for i = 1, n do
    local more, result = step(self)
    if not more then return i - 1 end
    self.done, self.total = self.done + 1, self.total + 1
    if predicts then self.found[#self.found + 1] = result else self.newest = result end
  end
  local took = tm.time() - began
  if took < QUICK then
    self.slice = math.min(2 * self.slice, 1024)
  elseif took > SLOW then
    self.slice = math.max(1, math.floor(self.slice / 2))
  end
  return n
end

--- Steps of this pass that are done.
function Runner:finished() return self.done end

--- All that were started are done.
function Runner.wait() return true end

--- Tensors that the newest step returned, by name.
function Runner:last() return self.newest end

local MOST = 256 -- tensors that concat takes

--- Tensors in one, by groups.
local function concat(parts)
  if values.is_tensor(parts[1]) and parts[1].rank == 0 then -- a number a batch, as Keras has them
    for i, x in ipairs(parts) do parts[i] = tm.reshape(x, { 1 }) end
  end
  while #parts > 1 do
    local joined = {}
    for i = 1, #parts, MOST do
      joined[#joined + 1] = tm.concat({ unpack(parts, i, math.min(i + MOST - 1, #parts)) }, 1)
    end
    parts = joined
  end
  return parts[1]
end

--- Outputs of batches joined to those of all; nil: there were none.
function M.join(found)
  if #found == 0 then return nil end
  if #found == 1 then return found[1] end
  local flat = {}
  for i, x in ipairs(found) do flat[i] = nest.flatten(x) end
  local joined = {}
  for k = 1, #flat[1] do
    local parts = {}
    for i = 1, #flat do parts[i] = flat[i][k] end
    joined[k] = concat(parts)
  end
  return nest.fill(found[1], joined)
end

--- Outputs of all steps, in the order of the input.
function Runner:outputs() return M.join(self.found) end

--- Where the data are, as a string to keep.
function Runner:state() return self.iterator and self.iterator:state() or "" end

--- Go on from a state, within a pass of which `done` steps were done.
function Runner:restore(state, done)
  if state ~= "" then
    self.iterator = self.iterator or self.source.dataset:iterator()
    self.iterator:restore(state)
  end
  self.done = done
end

function Runner:close() self.iterator, self.found = nil, {} end

return M
