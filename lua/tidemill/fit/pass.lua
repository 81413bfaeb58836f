--- One pass over the data: steps are started ahead, hooks called for what is finished.
---
--- Steps run in a runner (docs/fit.md): it may start them long before they are done, so
--- the loop starts ahead, looks what is finished and calls the hooks in order of count.
---
--- Invariants
---   (1) Batch hooks are called for each execution once, in order, whatever is started
---       ahead; batches count from 1.
---   (2) Nothing is started beyond a batch after which a callback wants to save before it
---       has saved.
---   (3) Metrics are read for whoever looks, and for progress at most once in PERIOD.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local logs = require "tidemill.fit.logs"
local steps = require "tidemill.fit.steps"
local tm = require "tidemill.lib.lazy"
local wait = require "tidemill.distribute.wait"

local M = {}

local PERIOD = 0.1 -- seconds between two reads for progress
local FAR = 1024 -- steps started ahead where nobody looks at batches (runner.far)

local hooks = {
  train = { "on_train_batch_begin", "on_train_batch_end" },
  test = { "on_test_batch_begin", "on_test_batch_end" },
  predict = { "on_predict_batch_begin", "on_predict_batch_end" },
}

--- Names and numbers of the newest logs.
function M.read(pass) return pass.steps:read(pass.runner:last()) end

local function lazy_logs(pass)
  return logs.lazy(function() return M.read(pass) end)
end

--- Call the hooks of executions that are finished; `all`: of a last one that is short too.
local function tell(pass, done, all)
  local size = pass.execution
  while pass.told + size <= done or (all and pass.told < done) do
    pass.told = math.min(pass.told + size, done)
    pass.list:call(hooks[pass.kind][2], pass.told, lazy_logs(pass))
  end
end

--- See where the next batch is after which a callback saves: at the end of an execution,
--- and of a round.
local function look_ahead(pass)
  local at, round = pass.kind == "train" and pass.list:barrier(), pass.runner.round or 1
  if at then
    at = math.ceil(at / pass.execution) * pass.execution
    for _ = 2, round do
      if (at - pass.first) % round ~= 0 then at = at + pass.execution end
    end
  end
  pass.barrier = at
end

--- Callbacks save what there is after so many batches.
local function reach(pass, done)
  pass.list:reached(done, lazy_logs(pass))
  look_ahead(pass)
end

--- `final`: the pass is over.
local function progress(pass, done, final)
  if not pass.shows or (done == pass.shown and not final) then return end
  if not final and tm.time() < pass.next_look then return end
  pass.shown = done
  pass.list:call("on_progress", pass.kind, done, lazy_logs(pass), final)
  pass.next_look = tm.time() + PERIOD
end

--- As in Keras, a stop before the first batch of an epoch counts after it.
local function stopped(pass)
  return pass.kind == "train" and pass.model.stop_training and pass.started > pass.first
end

--- Steps that were started and are not done.
local function out_of(pass, done)
  local runner = pass.runner
  return runner.left and runner:left() or pass.started - done
end

--- How many more steps may be started now.  Where nobody looks at batches many are, once
--- half of them are done.
local function room(pass, done)
  local out, far = out_of(pass, done), pass.runner.far or FAR
  if not pass.wants and out > far / 2 then return 0 end
  local n = pass.wants and (pass.runner.ahead or 0) or far
  n = math.max(n, pass.execution) - out
  if pass.wants then n = math.min(n, pass.execution) end
  if pass.target then n = math.min(n, pass.target - pass.started) end
  if pass.barrier then n = math.min(n, pass.barrier - pass.started) end
  if pass.kind == "train" and pass.model.stop_training then n = math.min(n, pass.execution) end
  return math.min(n, pass.runner.slice and math.max(pass.runner.slice, pass.execution) or n)
end

local function start(pass, n)
  if pass.wants and (pass.started - pass.first) % pass.execution == 0 then
    pass.list:call(hooks[pass.kind][1], pass.started + 1, {})
  end
  local got = pass.runner:run(n)
  pass.started = pass.started + got
  pass.ended = got < n
end

--- Nothing runs and nothing may be started: is the pass over?  What was given back is
--- done again.
local function over(pass)
  local more = not pass.wanted and pass.runner.given_back and pass.runner:given_back() or 0
  if more == 0 then return true end
  pass.ended = false
  if pass.target then pass.target = pass.started + more end
  return false
end

--- Is nothing to be started before what is out is done?
local function all_out(pass)
  return pass.ended or (pass.target and pass.started >= pass.target)
    or (pass.barrier and pass.started >= pass.barrier) or false
end

--- Run a pass; gives how many steps had data.
function M.run(pass)
  local runner = pass.runner
  look_ahead(pass)
  while true do
    local done = runner:finished()
    if pass.wants then tell(pass, done) end
    progress(pass, done)
    if pass.barrier and done >= pass.barrier then reach(pass, done) end
    wait.heed()
    pass.list:heed()
    if stopped(pass) then break end
    local n = pass.ended and 0 or room(pass, done)
    if n > 0 then
      start(pass, n)
    elseif out_of(pass, done) == 0 then
      if over(pass) then break end
    else
      runner:wait(done + (pass.wants and 1 or math.ceil((runner.far or FAR) / 2)), PERIOD, all_out(pass))
    end
  end
  runner:wait(pass.started, nil, true)
  local done = runner:finished()
  if pass.wants then tell(pass, done, true) end
  progress(pass, done, true)
  if pass.barrier then reach(pass, done) end
  return done
end

--- A pass of a kind; target: steps it has, nil where only the data know.
function M.new(self, kind, runner, source, wanted, begun)
  local c = rawget(self.model, "_compiled")
  local target = wanted
  if not target and type(source.cardinality) == "number" then target = source.cardinality end
  return {
    model = self.model, list = self.list, kind = kind, runner = runner, steps = steps.of(self.model, kind),
    target = target, wanted = wanted, execution = c and c.given.steps_per_execution or 1,
    wants = self.list:wants_batches(kind),
    shows = self.list:has "on_progress", started = begun or 0, told = begun or 0, shown = begun or 0,
    first = begun or 0, next_look = 0,
  }
end

--- The data ended before all steps that were wanted: an error in training, told in
--- evaluation and prediction, as in Keras.
function M.ended_early(pass, where, name, wanted, done, step)
  local text = ("%s: the data ended after %d steps, %s is %d; let the dataset repeat (ds:rep()), or leave %s out")
    :format(where, done, name, wanted, name)
  if pass.kind ~= "train" then return core.log("warn", text) end
  local e = errors.new("out_of_range", "%s", text)
  e.step = step
  error(e, 0)
end

return M
