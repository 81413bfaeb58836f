--- train_step, test_step and predict_step of tm.Model, and the functions around them.
---
--- A step keeps losses and metrics in variables, so its graph has no results but the
--- tensors that a step of the user's returns.  Metrics are read by one function of their
--- own, whenever somebody wants to see them.
---
--- Invariants
---   (1) `names` lists what the step logs, in the order in which it was first seen;
---       `metrics` has those that are metrics, the others are the step's results.
---   (2) compile makes all of this anew: a trace keeps the variables that were trainable
---       when it was made.

local batch_loss = require "tidemill.fit.batch_loss"
local compile = require "tidemill.fit.compile"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local inputs = require "tidemill.fit.inputs"
local logs = require "tidemill.fit.logs"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

-- --- methods of tm.Model ---

local methods = {}

--- The loss of a batch; also kept for the logs.  A class of your own may override it.
function methods:compute_loss(_, y, y_pred, weights)
  return batch_loss.loss(compile.need(self, "compute_loss"), y, y_pred, weights)
end

--- Let the metrics see a batch; gives the logs: metrics by name.
function methods:compute_metrics(_, y, y_pred, weights)
  batch_loss.metrics(compile.need(self, "compute_metrics"), y, y_pred, weights)
  return self:get_metrics_result()
end

--- The metrics of compile, layers and fields by name: what a step returns as its logs.
function methods:get_metrics_result()
  local out = {}
  for _, m in ipairs(self.metrics) do out[m.name] = m end
  return out
end

local function need_loss(self, where, loss, y)
  if loss ~= nil then return loss end
  local c = compile.need(self, where)
  if c.given.loss ~= nil and y == nil then
    errors.raise("invalid_argument", "%s: y is missing: the model was compiled with a loss, so data are { x, y } or "
      .. "the option y is given", where)
  end
  return errors.raise("invalid_argument", "%s: there is no loss to minimize; compile the model with a loss or call "
    .. "add_loss in a layer", where)
end

--- Variables that the loss does not depend on stay as they are: that is told once, as
--- Keras does, with the outputs for which there are no targets.
local function tell_unreached(self, grads, variables)
  local names = {}
  for i, v in ipairs(variables) do
    if grads[i] == nil then names[#names + 1] = v.name end
  end
  local c = rawget(self, "_compiled")
  if #names == 0 or #names == #variables or not c or c.told_unreached then return end
  c.told_unreached = true
  local lacking = c.without_targets and #c.without_targets > 0
    and ("; no targets y were given for the outputs: %s"):format(table.concat(c.without_targets, ", ")) or ""
  core.log("warn", ("fit: gradients do not exist for %s: the loss does not depend on them, they are not trained%s")
    :format(table.concat(names, ", "), lacking))
end

--- One step of training; data is a list { x, y, weights }.
function methods:train_step(data)
  local x, y, weights = data[1], data[2], data[3]
  local tape = tm.GradientTape()
  local y_pred = self(x, { training = true })
  local loss = need_loss(self, "fit", self:compute_loss(x, y, y_pred, weights), y)
  local variables = self.trainable_variables
  if #variables > 0 then -- as in Keras, what is frozen as a whole can be fitted, in vain
    local grads = tape:gradient(loss, variables)
    tell_unreached(self, grads, variables)
    self.optimizer:apply_gradients(grads, variables)
  end
  return self:compute_metrics(x, y, y_pred, weights)
end

--- One step of evaluation.
function methods:test_step(data)
  local x, y, weights = data[1], data[2], data[3]
  local y_pred = self(x, { training = false })
  if self:compute_loss(x, y, y_pred, weights) == nil then
    local c = compile.need(self, "evaluate")
    if c.given.loss ~= nil then need_loss(self, "evaluate", nil, y) end
  end
  return self:compute_metrics(x, y, y_pred, weights)
end

--- One step of prediction: the outputs.
function methods:predict_step(data) return self(data[1], { training = false }) end

M.methods = methods

-- --- functions around them ---

---@class tm.fit.Steps
---@field fn tm.Function  traced: one step on the next element of an iterator
---@field on_batch tm.Function  traced: one step on the data that it is given
---@field names string[]
---@field metrics table<string, tm.metrics.Metric>
local Steps = {}
Steps.__index = Steps

local step_names = { train = "train_step", test = "test_step", predict = "predict_step" }

local function log_name(self, name, x)
  if not self.known[name] then
    self.known[name] = true
    self.names[#self.names + 1] = name
  end
  if values.is_metric(x) then
    self.metrics[name] = x
    return nil
  end
  if self.metrics[name] then self.metrics[name] = nil end
  return x
end

--- Names of logs: those of the model's metrics in their order, then the rest.
local function ordered(model, given)
  local names, seen = {}, {}
  for _, m in ipairs(model.metrics) do
    if given[m.name] ~= nil and not seen[m.name] then
      seen[m.name], names[#names + 1] = true, m.name
    end
  end
  for _, name in ipairs(nest.keys(given)) do
    if not seen[name] then names[#names + 1] = name end
  end
  return names
end

--- Take the logs of a step apart: metrics are remembered, tensors are the result.
local function split(self, given)
  if given == nil then return {} end
  if not nest.is_nested(given) then
    errors.raise("invalid_argument", "%s of %s returns a table of logs by name, got %s", self.method,
      self.model.class_name, kinds.a(given))
  end
  local tensors = {}
  for _, name in ipairs(ordered(self.model, given)) do
    if type(name) ~= "string" then
      errors.raise("invalid_argument", "%s of %s returns logs by name, as in { loss = loss }", self.method,
        self.model.class_name)
    end
    tensors[name] = log_name(self, name, given[name])
  end
  return tensors
end

--- One step on an element, now or in a trace: gives tensors by name, or the outputs.
function Steps:run(element)
  local model = self.model
  local result = model[self.method](model, inputs.data(model, element))
  if self.kind == "predict" then
    if result == nil then
      errors.raise("invalid_argument", "predict_step of %s returns nothing", model.class_name)
    end
    return result
  end
  return split(self, result)
end

--- The steps of a kind ("train", "test", "predict"), one a model until it is compiled
--- again.
---@return tm.fit.Steps
function M.of(model, kind)
  local all = rawget(model, "_steps")
  if not all then
    all = {}
    rawset(model, "_steps", all)
  end
  if all[kind] then return all[kind] end
  local self = setmetatable({ model = model, kind = kind, method = step_names[kind], names = {}, known = {},
    metrics = {} }, Steps)
  local function traced(element)
    local result = self:run(element)
    if kind ~= "predict" and next(result) == nil then return end
    return result
  end
  self.fn = tm.func(function(it) return traced(it:next()) end, { name = step_names[kind] })
  self.on_batch = tm.func(traced, { name = step_names[kind] })
  all[kind] = self
  return self
end

--- What the step logs, as Lua numbers by name; `last` are the newest step's own tensors.
function Steps:read(last) return logs.read(self, last) end

return M
