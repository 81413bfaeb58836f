--- fit, evaluate, predict: epochs, validation, hooks, history.
---
--- Steps run in a runner (docs/fit.md): it may start them long before they are done, so
--- the loop starts ahead, looks what is finished and calls the hooks in order of count.
---
--- Invariants
---   (1) Batch hooks are called for each execution once, in order, whatever is started
---       ahead; epochs and batches count from 1.
---   (2) Metrics are read for whoever looks, at epoch ends, and for progress at most once
---       in PERIOD.
---   (3) A runner that was opened is closed, however the call ends.

local History = require "tidemill.callbacks.history"
local callbacks = require "tidemill.callbacks.list"
local compile = require "tidemill.fit.compile"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local inputs = require "tidemill.fit.inputs"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local runners = require "tidemill.fit.runners"
local steps = require "tidemill.fit.steps"
local tm = require "tidemill.lib.lazy"
local wait = require "tidemill.distribute.wait"

local M = {}

local PERIOD = 0.1 -- seconds between two reads for progress
local FAR = 1024 -- steps started ahead where nobody looks at batches

-- --- logs ---

--- Logs that are fetched when somebody looks into them.
local function lazy_logs(fetch)
  local function load(t)
    setmetatable(t, nil)
    for k, v in pairs(fetch()) do t[k] = v end
    return t
  end
  return setmetatable({}, {
    __index = function(t, k) return load(t)[k] end,
    __pairs = function(t) return pairs(load(t)) end,
  })
end

--- Names and numbers of the newest logs.
local function read_logs(pass) return pass.steps:read(pass.runner:last()) end

-- --- one pass over the data ---

local hooks = {
  train = { "on_train_batch_begin", "on_train_batch_end" },
  test = { "on_test_batch_begin", "on_test_batch_end" },
  predict = { "on_predict_batch_begin", "on_predict_batch_end" },
}

--- Call the hooks of executions that are finished; `all`: of a last one that is short too.
local function tell(pass, done, all)
  local size = pass.execution
  while pass.told + size <= done or (all and pass.told < done) do
    pass.told = math.min(pass.told + size, done)
    pass.list:call(hooks[pass.kind][2], pass.told, lazy_logs(function() return read_logs(pass) end))
  end
end

local function progress(pass, done)
  if not pass.shows or done == pass.shown then return end
  local now = tm.time()
  if now < pass.next_look then return end
  pass.shown = done
  pass.list:call("on_progress", pass.kind, done, lazy_logs(function() return read_logs(pass) end))
  pass.next_look = tm.time() + PERIOD
end

local function stopped(pass) return pass.kind == "train" and pass.model.stop_training end

--- How many more steps may be started now.
local function room(pass, done)
  local n = pass.wants and (pass.runner.ahead or 0) or FAR
  n = math.max(n, pass.execution) - (pass.started - done)
  if pass.wants then n = math.min(n, pass.execution) end
  if pass.target then n = math.min(n, pass.target - pass.started) end
  local barrier = pass.kind == "train" and pass.list:barrier()
  if barrier then n = math.min(n, math.ceil(barrier / pass.execution) * pass.execution - pass.started) end
  return math.min(n, pass.runner.slice and math.max(pass.runner.slice, pass.execution) or n)
end

local function start(pass, n)
  if pass.wants and pass.started % pass.execution == 0 then
    pass.list:call(hooks[pass.kind][1], pass.started + 1, {})
  end
  local got = pass.runner:run(n)
  pass.started = pass.started + got
  pass.ended = got < n
end

--- Run a pass; gives how many steps had data.
local function run_pass(pass)
  local runner = pass.runner
  while true do
    local done = runner:finished()
    if pass.wants then tell(pass, done) end
    progress(pass, done)
    wait.heed()
    if pass.kind == "train" then pass.list:heed() end
    if stopped(pass) then break end
    local n = pass.ended and 0 or room(pass, done)
    if n > 0 then
      start(pass, n)
    elseif done >= pass.started then
      break
    else
      runner:wait(done + 1, PERIOD)
    end
  end
  runner:wait(pass.started)
  local done = runner:finished()
  if pass.wants then tell(pass, done, true) end
  return done
end

--- A pass of a kind; target: steps it has, nil where only the data know.
local function new_pass(self, kind, runner, source, wanted, begun)
  local c = rawget(self.model, "_compiled")
  local target = wanted
  if not target and type(source.cardinality) == "number" then target = source.cardinality end
  return {
    model = self.model, list = self.list, kind = kind, runner = runner, steps = steps.of(self.model, kind),
    target = target, execution = c and c.given.steps_per_execution or 1, wants = self.list:wants_batches(kind),
    shows = self.list:has "on_progress", started = begun or 0, told = begun or 0, next_look = 0,
  }
end

local function raise_ended(where, name, wanted, done, step)
  local e = errors.new("out_of_range", "%s: the data ended after %d steps, %s is %d; let the dataset repeat "
    .. "(ds:rep()), or leave %s out", where, done, name, wanted, name)
  e.step = step
  error(e, 0)
end

-- --- calling with an end ---

local function closed(hooked, list, ok, ...)
  hooked:close()
  for i = #list, 1, -1 do
    local fine, e = pcall(list[i].close, list[i])
    if ok and not fine then error(e, 0) end
  end
  if not ok then error((...), 0) end
  return ...
end

--- fn(open), where open(kind, source) makes a runner; what was opened is closed in the end.
local function with_runners(model, hooked, fn)
  local list = {}
  local function open(kind, source)
    local r = runners.new(model, steps.of(model, kind), source)
    list[#list + 1] = r
    return r
  end
  return closed(hooked, list, pcall(fn, open))
end

local has_bar, Progbar = pcall(require, "tidemill.callbacks.progbar")

--- The callbacks of a call, and the progress bar unless verbose is 0.
local function callbacks_of(model, o, params)
  local list = callbacks.new(o.callbacks, model, params)
  if o.verbose ~= 0 and has_bar and not list:find(Progbar) then list:add(Progbar()) end
  return list
end

-- --- evaluate ---

local function need_end(where, name, source, wanted)
  if wanted ~= nil then options.count(where, name, wanted, 1) end
  if not source.finite and wanted == nil then
    errors.raise("invalid_argument", "%s: the data never end; say how many steps: %s", where, name)
  end
end

--- One evaluation with the hooks of self.list.
local function evaluate(self, where, runner, source, wanted, name)
  steps.reset_metrics(self.model)
  self.list:call "on_test_begin"
  runner:start_pass()
  local pass = new_pass(self, "test", runner, source, wanted)
  local done = run_pass(pass)
  if wanted and done < wanted then raise_ended(where, name, wanted, done, done) end
  if done == 0 then errors.raise("invalid_argument", "%s: the data have no batches", where) end
  local logs = read_logs(pass)
  self.list:call("on_test_end", logs)
  return logs
end

--- model:evaluate(x, { y, sample_weight, batch_size, steps, callbacks, verbose })
function M.evaluate(model, x, given)
  local o = options.read("evaluate", given, {
    "y", "sample_weight", "batch_size", "steps", "callbacks", verbose = "auto",
  })
  compile.need(model, "evaluate")
  local source = inputs.source(model, "evaluate", x, o, "test")
  need_end("evaluate", "steps", source, o.steps)
  local params = { verbose = o.verbose, epochs = 1, steps = o.steps or source.cardinality, kind = "test" }
  local self = { model = model, list = callbacks_of(model, o, params) }
  return with_runners(model, self.list, function(open)
    return evaluate(self, "evaluate", open("test", source), source, o.steps, "steps")
  end)
end

-- --- predict ---

--- model:predict(x, { batch_size, steps, callbacks, verbose }): the outputs, joined.
function M.predict(model, x, given)
  local o = options.read("predict", given, { "batch_size", "steps", "callbacks", verbose = "auto" })
  local source = inputs.source(model, "predict", x, o, "predict")
  need_end("predict", "steps", source, o.steps)
  local params = { verbose = o.verbose, epochs = 1, steps = o.steps or source.cardinality, kind = "predict" }
  local self = { model = model, list = callbacks_of(model, o, params) }
  return with_runners(model, self.list, function(open)
    local runner = open("predict", source)
    self.list:call "on_predict_begin"
    runner:start_pass()
    local done = run_pass(new_pass(self, "predict", runner, source, o.steps))
    if o.steps and done < o.steps then raise_ended("predict", "steps", o.steps, done, done) end
    local found = runner:outputs()
    self.list:call "on_predict_end"
    if found == nil then errors.raise("invalid_argument", "predict: the data have no batches") end
    return found
  end)
end

-- --- fit ---

local known = {
  "y", "batch_size", "callbacks", "validation_split", "validation_data", "class_weight", "sample_weight",
  "steps_per_epoch", "validation_steps", "validation_batch_size", validation_freq = 1, shuffle = true,
  epochs = 1, initial_epoch = 1, verbose = "auto",
}

local function check_freq(f)
  if type(f) == "table" then
    for _, e in ipairs(f) do options.count("fit", "an epoch of validation_freq", e, 1) end
  else
    options.count("fit", "validation_freq", f, 1)
  end
end

local function check(o)
  options.count("fit", "epochs", o.epochs, 0)
  options.count("fit", "initial_epoch", o.initial_epoch, 1)
  if o.steps_per_epoch ~= nil then options.count("fit", "steps_per_epoch", o.steps_per_epoch, 1) end
  options.flag("fit", "shuffle", o.shuffle)
  check_freq(o.validation_freq)
  if o.validation_data ~= nil and o.validation_split then
    errors.raise("invalid_argument", "fit: validation_data and validation_split exclude each other")
  end
  if o.verbose ~= "auto" and o.verbose ~= 0 and o.verbose ~= 1 and o.verbose ~= 2 then
    errors.raise("invalid_argument", 'fit: verbose is 0, 1, 2 or "auto", got %s', tostring(o.verbose))
  end
end

local function sources(model, x, o)
  local train, held = inputs.source(model, "fit", x, {
    y = o.y, sample_weight = o.sample_weight, class_weight = o.class_weight, batch_size = o.batch_size,
    shuffle = o.shuffle, steps = o.steps_per_epoch, validation_split = o.validation_split,
    validation_batch_size = o.validation_batch_size,
  }, "train")
  need_end("fit", "steps_per_epoch", train, o.steps_per_epoch)
  if o.validation_data ~= nil then
    local size = o.validation_batch_size
    if size == nil and nest.is_nested(o.validation_data) then size = o.batch_size end
    held = inputs.source(model, "validation_data", o.validation_data, { batch_size = size }, "test")
  end
  if held then need_end("fit", "validation_steps", held, o.validation_steps) end
  return train, held
end

local function validates(freq, epoch)
  if type(freq) == "number" then return epoch % freq == 0 end
  for _, e in ipairs(freq) do
    if e == epoch then return true end
  end
  return false
end

---@class tm.History
---@field epoch integer[]
local Result = { __name = "tm.History" }
function Result.__index(self, key)
  if key == "history" then return self end
end
function Result:__tostring() return ("tm.History of %d epochs"):format(#self.epoch) end

--- What fit gives: history.loss[i], history.epoch[i], history.params.
local function result_of(h, params)
  local out = { epoch = h.epoch, params = params }
  for name, list in pairs(h.history) do out[name] = list end
  return setmetatable(out, Result)
end

--- What runs now: callbacks find it as model.fitting.
---@class tm.fit.Fitting
local Fitting = {}
Fitting.__index = Fitting

local STATE, PARTS = "tidemill fit 1 epoch=%d step=%d data=%s", "^tidemill fit 1 epoch=(%d+) step=(%d+) data=(.*)$"

--- Where training is, as a string to keep: the epoch, its steps that are done, the place in
--- the data.  Waits for the steps that were started.
function Fitting:state()
  local pass = self.pass
  if pass then
    self.runner:wait(pass.started)
    return STATE:format(self.epoch, self.runner:finished(), self.runner:state())
  end
  return STATE:format(self.epoch, 0, self.runner:state())
end

--- Go on from a state; called in on_train_begin.
function Fitting:resume(state)
  local epoch, step, data
  if type(state) == "string" then epoch, step, data = state:match(PARTS) end
  if not epoch then errors.raise("invalid_argument", "this is no state of a fit") end
  self.epoch, self.begun, self.data = tonumber(epoch), tonumber(step), data
end

--- Steps of one epoch.
local function train(self, o)
  local runner, wanted = self.runner, o.steps_per_epoch
  runner:start_pass(self.data)
  if self.data and (self.begun > 0 or self.source.continues) then runner:restore(self.data, self.begun) end
  self.pass = new_pass(self, "train", runner, self.source, wanted, self.begun)
  self.begun, self.data = 0, nil
  local done = run_pass(self.pass)
  self.total = self.total + done
  if wanted and done < wanted and not self.model.stop_training then
    raise_ended(("fit, epoch %d"):format(self.epoch), "steps_per_epoch", wanted, done, self.total)
  end
  if done == 0 and not self.model.stop_training then
    errors.raise("invalid_argument", "fit: the data have no batches")
  end
  local logs = read_logs(self.pass)
  self.pass = nil
  return logs
end

local function validate(self, o, logs)
  local found = evaluate(self, "fit, validation", self.validation, self.held, o.validation_steps, "validation_steps")
  for name, x in pairs(found) do logs["val_" .. name] = x end
end

local function epochs(self, o)
  local model, list = self.model, self.list
  list:call "on_train_begin"
  local logs = {}
  while self.epoch <= o.epochs and not model.stop_training do
    if self.begun == 0 then steps.reset_metrics(model) end
    list:call("on_epoch_begin", self.epoch, {})
    logs = train(self, o)
    if self.held and validates(o.validation_freq, self.epoch) then validate(self, o, logs) end
    local epoch = self.epoch
    self.epoch = epoch + 1
    list:call("on_epoch_end", epoch, logs)
  end
  list:call("on_train_end", logs)
end

--- Was this raised by Ctrl-C?
local function is_interrupt(e)
  if errors.is_error(e, "cancelled") then return e.message:find("interrupted", 1, true) ~= nil end
  return type(e) == "string" and e:find "interrupted!$" ~= nil
end

local function run(self, o, open)
  self.runner = open("train", self.source)
  if self.held then self.validation = open("test", self.held) end
  local ok, e = pcall(epochs, self, o)
  if ok then return end
  if not is_interrupt(e) then error(e, 0) end
  if core.interrupt_taken then core.interrupt_taken() end
  self.interrupted = true
end

--- model:fit(x, { y, epochs, steps_per_epoch, batch_size, callbacks, ... }): the history.
function M.fit(model, x, given)
  local o = options.read("fit", given, known)
  check(o)
  compile.need(model, "fit")
  local source, held = sources(model, x, o)
  local params = { verbose = o.verbose, epochs = o.epochs, steps = o.steps_per_epoch or source.cardinality,
    kind = "train" }
  local self = setmetatable({ model = model, source = source, held = held, total = 0, epoch = o.initial_epoch,
    begun = 0, list = callbacks_of(model, o, params) }, Fitting)
  local history = self.list:find(History) or self.list:add(History())
  rawset(model, "stop_training", false)
  rawset(model, "history", history)
  rawset(model, "fitting", self)
  local ok, e = pcall(with_runners, model, self.list, function(open) run(self, o, open) end)
  rawset(model, "fitting", nil)
  if not ok then error(e, 0) end
  local result = result_of(history, params)
  if self.interrupted then result.interrupted = true end
  return result
end

return M
