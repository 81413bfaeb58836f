--- A fit that runs: model.fitting, where it is and how it goes on after a kill.

local errors = require "tidemill.errors"

local M = {}

--- What runs now: callbacks find it as model.fitting.
---@class tm.fit.Fitting
local Fitting = {}
Fitting.__index = Fitting

--- fields: model, source, list, epoch, ... (fit/loop.lua)
function M.new(fields) return setmetatable(fields, Fitting) end

local STATE = "tidemill fit 1 epoch=%d step=%d pass=%d data=%s"
local PARTS = "^tidemill fit 1 epoch=(%d+) step=(%d+) pass=(%d+) data=(.*)$"

--- Where training is, as a string to keep: the epoch, its steps that are done, the pass and
--- the place in the data.  Waits for the steps that were started.
function Fitting:state()
  local pass, step = self.pass, 0
  if pass then
    self.runner:wait(pass.started, nil, true)
    step = self.runner:finished()
  elseif self.trained then -- it is being validated
    step = self.trained.steps
  end
  local passes_made = rawget(self.source.dataset, "_epochs") or 0
  return STATE:format(self.epoch, step, passes_made, self.runner:state())
end

--- Go on from a state; called in on_train_begin.  `logs`: those of the epoch's training,
--- where it was over and only validation was not (fitting.trained.logs).
function Fitting:resume(state, logs)
  local epoch, step, pass, data
  if type(state) == "string" then epoch, step, pass, data = state:match(PARTS) end
  if not epoch then errors.raise("invalid_argument", "this is no state of a fit") end
  self.epoch, self.begun, self.logs = tonumber(epoch), tonumber(step), logs
  if self.begun > 0 or self.source.continues then self.data = data else self.before = data end
  rawset(self.source.dataset, "_epochs", math.max(0, tonumber(pass) - (self.data and 1 or 0)))
end

local seen = { "fitting", "stop_training", "history" }

--- The model says what runs.  In a callback of a fit another one may run, in a coroutine
--- beside it, too: what the model said before comes back.
function Fitting:enter(history)
  local model = self.model
  self.outer = {}
  for _, name in ipairs(seen) do self.outer[name] = rawget(model, name) end
  rawset(model, "fitting", self)
  rawset(model, "stop_training", false)
  rawset(model, "history", history)
end

--- It is over, well or not.
function Fitting:leave()
  local model, fit = self.model, rawget(self.model, "fitting")
  self.over = true
  if fit ~= self then return end
  while fit and fit.over do
    local outer = fit.outer
    for _, name in ipairs(outer.fitting and seen or { "fitting" }) do rawset(model, name, outer[name]) end
    fit = outer.fitting
  end
end

return M
