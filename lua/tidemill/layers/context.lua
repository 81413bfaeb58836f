--- What a call of a layer hands to the layers it calls: `training`, when they are not
--- told otherwise.  Kept for each coroutine.

local coroutines = require "tidemill.lib.coroutines"

local M = {}

local frames = coroutines.keep(setmetatable({}, { __mode = "k" }))

local key = coroutines.key

--- Calls of layers around this one.
function M.depth()
  local f = frames[key()]
  return f and f.depth or 0
end

--- Are outputs only looked at for their types (a layer graph is being recorded)?
function M.scratch()
  local f = frames[key()]
  return f and f.scratch or false
end

--- Is the layer that is running, or one around it, not trainable?
function M.frozen()
  local f = frames[key()]
  return f and f.frozen or false
end

local function leave(k, before, ok, ...)
  frames[k] = before
  if not ok then error((...), 0) end
  return ...
end

local function enter(frame, fn, ...)
  local k = key()
  local before = frames[k]
  frames[k] = frame
  return leave(k, before, pcall(fn, ...))
end

--- fn(self, x, training); training defaults to that of the call around, then to false.
function M.run(training, fn, self, x)
  local f = frames[key()]
  if training == nil then training = f and f.training or false end
  local frame = { depth = (f and f.depth or 0) + 1, training = training, scratch = f and f.scratch,
    frozen = f and f.frozen or self.trainable == false }
  return enter(frame, fn, self, x, training)
end

--- fn(...) while only types matter.
function M.run_scratch(fn, ...)
  return enter({ depth = 1, training = false, scratch = true }, fn, ...)
end

return M
