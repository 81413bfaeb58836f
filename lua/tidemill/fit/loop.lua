--- fit, evaluate, predict: epochs, validation, hooks, history.
---
--- Invariants
---   (1) Epochs count from 1; metrics are set back at the start of each, and of each
---       evaluation.
---   (2) A runner that was opened is closed, however the call ends.

local History = require "tidemill.callbacks.history"
local Progbar = require "tidemill.callbacks.progbar"
local callbacks = require "tidemill.callbacks.list"
local compile = require "tidemill.fit.compile"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local fitting = require "tidemill.fit.fitting"
local inputs = require "tidemill.fit.inputs"
local interrupt = require "tidemill.lib.interrupt"
local logbook = require "tidemill.fit.logs"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local passes = require "tidemill.fit.pass"
local runners = require "tidemill.fit.runners"
local steps = require "tidemill.fit.steps"

local M = {}

-- --- calling with an end ---

local function close(list)
  local first
  for i = #list, 1, -1 do
    local fine, e = pcall(list[i].close, list[i])
    if not fine then first = first or e end
  end
  return first
end

--- fn(open), where open(kind, source) makes a runner; what was opened is closed in the end.
--- Gives what pcall gives, and whether Ctrl-C came: it is taken note of then, and where
--- there is `last`, it is called when nothing runs any more, and what pcall gives is its.
local function with_runners(model, hooked, fn, last)
  local list = {}
  local function open(kind, source)
    local r = runners.new(model, steps.of(model, kind), source)
    list[#list + 1] = r
    return r
  end
  local ok, result, interrupted = interrupt.catch(fn, open)
  local e = close(list)
  if ok and e then ok, result = false, e end
  if interrupted and last then ok, result = pcall(last) end
  hooked:close()
  return ok, result, interrupted
end

--- The result, or the error, of a call that is not fit.
local function result_or_error(ok, result, interrupted)
  if ok and interrupted then errors.raise("cancelled", "interrupted") end
  if not ok then error(result, 0) end
  return result
end

--- The callbacks of a call, and the progress bar unless verbose is 0.
local function callbacks_of(model, o, params)
  local list = callbacks.new(o.callbacks, model, params)
  if o.verbose ~= 0 and not list:find(Progbar) then list:add(Progbar()) end
  return list
end

-- --- evaluate ---

local function check_verbose(where, x)
  if x == "auto" or x == 0 or x == 1 or x == 2 then return end
  errors.raise("invalid_argument", '%s: verbose is 0, 1, 2 or "auto", got %s', where, tostring(x))
end

local function need_end(where, name, source, wanted)
  if wanted ~= nil then options.count(where, name, wanted, 1) end
  if not source.finite and wanted == nil then
    errors.raise("invalid_argument", "%s: the data never end; say how many steps: %s", where, name)
  end
end

--- One evaluation with the hooks of self.list.
local function evaluate(self, where, runner, source, wanted, name)
  logbook.reset(self.model)
  self.list:call "on_test_begin"
  runner:start_pass()
  local pass = passes.new(self, "test", runner, source, wanted)
  local done = passes.run(pass)
  if wanted and done < wanted then passes.ended_early(pass, where, name, wanted, done) end
  if done == 0 then errors.raise("invalid_argument", "%s: the data have no batches", where) end
  local logs = passes.read(pass)
  self.list:call("on_test_end", logs)
  return logs
end

--- model:evaluate(x, { y, sample_weight, batch_size, steps, callbacks, verbose })
function M.evaluate(model, x, given)
  local o = inputs.options("evaluate", given, {
    "y", "sample_weight", "batch_size", "steps", "callbacks", verbose = "auto",
  })
  compile.need(model, "evaluate")
  check_verbose("evaluate", o.verbose)
  local source = inputs.source(model, "evaluate", x, o, "test")
  need_end("evaluate", "steps", source, o.steps)
  local params = { verbose = o.verbose, epochs = 1, steps = o.steps or source.cardinality, kind = "test" }
  local self = { model = model, list = callbacks_of(model, o, params) }
  return result_or_error(with_runners(model, self.list, function(open)
    return evaluate(self, "evaluate", open("test", source), source, o.steps, "steps")
  end))
end

-- --- predict ---

--- model:predict(x, { batch_size, steps, callbacks, verbose }): the outputs, joined.
function M.predict(model, x, given)
  local o = inputs.options("predict", given, { "batch_size", "steps", "callbacks", verbose = "auto" })
  check_verbose("predict", o.verbose)
  local source = inputs.source(model, "predict", x, o, "predict")
  need_end("predict", "steps", source, o.steps)
  local params = { verbose = o.verbose, epochs = 1, steps = o.steps or source.cardinality, kind = "predict" }
  local self = { model = model, list = callbacks_of(model, o, params) }
  return result_or_error(with_runners(model, self.list, function(open)
    local runner = open("predict", source)
    self.list:call "on_predict_begin"
    runner:start_pass()
    local pass = passes.new(self, "predict", runner, source, o.steps)
    local done = passes.run(pass)
    if o.steps and done < o.steps then passes.ended_early(pass, "predict", "steps", o.steps, done) end
    local found = runner:outputs()
    self.list:call "on_predict_end"
    if found == nil then errors.raise("invalid_argument", "predict: the data have no batches") end
    return found
  end))
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
  check_verbose("fit", o.verbose)
end

--- Raise for validation data without targets, where a step of ours would miss them.
local function check_targets(model, held)
  local own = steps.methods
  if compile.need(model, "fit").given.loss == nil then return end
  if model.test_step ~= own.test_step or model.compute_loss ~= own.compute_loss then return end
  if inputs.data(model, held.dataset.element_spec)[2] ~= nil then return end
  errors.raise("invalid_argument", "fit: validation_data has no targets y, and the model was compiled with a loss: "
    .. "validation_data = { x, y }, or a dataset of such")
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
    held = inputs.source(model, "validation_data", o.validation_data, { batch_size = size, pair = true,
      steps = o.validation_steps }, "test")
    check_targets(model, held)
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

--- Steps of one epoch.
local function train(self, o)
  local runner, wanted = self.runner, o.steps_per_epoch
  if self.before and runner.follow then runner:follow(self.before) end
  runner:start_pass()
  if self.data then runner:restore(self.data, self.begun) end
  self.pass = passes.new(self, "train", runner, self.source, wanted, self.begun)
  self.begun, self.data, self.before = 0, nil, nil
  local done = passes.run(self.pass)
  self.total = self.total + done
  if wanted and done < wanted and not self.model.stop_training then
    passes.ended_early(self.pass, ("fit, epoch %d"):format(self.epoch), "steps_per_epoch", wanted, done, self.total)
  end
  if done == 0 and not self.model.stop_training then
    errors.raise("invalid_argument", "fit: the data have no batches")
  end
  local logs = self.logs or passes.read(self.pass)
  self.pass, self.logs, self.trained = nil, nil, { steps = done, logs = logs, random = { core.ckpt.random_state() } }
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
  self.last_logs = logs
  while self.epoch <= o.epochs and not model.stop_training do
    if self.begun == 0 then logbook.reset(model) end
    list:call("on_epoch_begin", self.epoch, {})
    logs = train(self, o)
    if self.held and validates(o.validation_freq, self.epoch) then validate(self, o, logs) end
    local epoch = self.epoch
    self.epoch, self.trained = epoch + 1, nil
    self.last_logs = logs
    list:call("on_epoch_end", epoch, logs)
  end
  self.last_logs = nil
  list:call("on_train_end", logs)
end

--- Ctrl-C ended it between on_train_begin and on_train_end: callbacks end it in order.
local function end_interrupted(self)
  self.interrupted = true
  if self.last_logs then self.list:call("on_train_end", self.last_logs) end
end

local function run(self, o, open)
  self.runner = open("train", self.source)
  if self.held then self.validation = open("test", self.held) end
  epochs(self, o)
end

--- model:fit(x, { y, epochs, steps_per_epoch, batch_size, callbacks, ... }): the history.
function M.fit(model, x, given)
  local o = inputs.options("fit", given, known)
  check(o)
  compile.need(model, "fit")
  local source, held = sources(model, x, o)
  local params = { verbose = o.verbose, epochs = o.epochs, steps = o.steps_per_epoch or source.cardinality,
    kind = "train" }
  local self = fitting.new({ model = model, source = source, held = held, total = 0, epoch = o.initial_epoch,
    begun = 0, list = callbacks_of(model, o, params) })
  local history = self.list:find(History) or self.list:add(History())
  self:enter(history)
  local ok, e, interrupted = with_runners(model, self.list, function(open) run(self, o, open) end,
    function() end_interrupted(self) end)
  self:leave()
  if interrupted then interrupt.over() end
  if not ok then error(e, 0) end
  local result = result_of(history, params)
  result.interrupted = interrupted or nil
  return result
end

return M
