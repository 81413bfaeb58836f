--- train_step, test_step and predict_step of tm.Model, and the functions around them.
---
--- A step keeps losses and metrics in variables, so its graph has no results but the
--- tensors that a step of the user's returns.  Metrics are read by one function of their
--- own, whenever somebody wants to see them.
---
--- Invariants
---   (1) `names` lists what the step logs, in the order in which it was first seen; what
---       is no metric is in `tensors`.
---   (2) compile makes all of this anew: a trace keeps the variables that were trainable
---       when it was made.

local compile = require "tidemill.fit.compile"
local errors = require "tidemill.errors"
local inputs = require "tidemill.fit.inputs"
local nest = require "tidemill.lib.nest"
local outputs = require "tidemill.fit.outputs"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

-- --- losses and metrics of one step ---

--- Target and weights in the rank and dtype of the prediction, where Keras does so.
local function matched(y_true, y_pred, weights)
  y_true = values.tensor(y_true, y_pred.dtype)
  if #y_true.shape == 1 and #y_pred.shape == 2 then y_true = tm.expand_dims(y_true, -1) end
  if values.is_float(y_true.dtype) and values.is_float(y_pred.dtype) then
    y_true = values.cast(y_true, y_pred.dtype)
  end
  if weights ~= nil then
    weights = values.cast(values.tensor(weights, y_pred.dtype), y_pred.dtype)
    if #weights.shape == 1 and #y_pred.shape == 2 then weights = tm.expand_dims(weights, -1) end
  end
  return y_true, weights
end

--- Predictions, targets and weights by output.
local function by_output(self, y, y_pred, weights)
  self.outputs = self.outputs or outputs.of(self.model, y_pred)
  local p = nest.flatten(y_pred)
  local t, w = self.outputs:pick("y", y), self.outputs:pick("sample_weight", weights)
  for i = 1, self.outputs.n do
    if t[i] ~= nil then t[i], w[i] = matched(t[i], p[i], w[i]) end
  end
  if not self.built then self:build(t, y_pred) end
  return t, p, w
end

--- Follow a loss: the mean over examples.
local function follow(mean, loss, batch)
  if #loss.shape > 0 then return mean:update_state(loss, batch) end
  loss = values.cast(loss, "float32")
  mean.total:assign_add(loss * batch)
  mean.count:assign_add(batch)
end

local function check_shapes(name, loss, y_true, y_pred)
  local t, p = y_true.shape, y_pred.shape
  if #t > 0 and #p > 0 and t[1] >= 0 and p[1] >= 0 and t[1] ~= p[1] then
    errors.raise("invalid_argument", 'the targets of "%s" are %d, its predictions %d: loss %s', name, t[1], p[1],
      loss.name)
  end
end

--- What a loss of the user's or ours says about shapes, with the output's name.
local function loss_of(e, y_true, y_pred, weights)
  check_shapes(e.name, e.loss, y_true, y_pred)
  local ok, loss = pcall(e.loss, y_true, y_pred, weights)
  if ok then return loss end
  if errors.is_error(loss) then
    loss.message = ('loss %s of the output "%s" (y_true %s, y_pred %s): %s'):format(e.loss.name, e.name,
      M.type_text(y_true), M.type_text(y_pred), loss.message)
  end
  error(loss, 0)
end

function M.type_text(x)
  return ("%s %s"):format(x.dtype, require("tidemill.lib.shapes").text(x.shape))
end

local function penalty(model)
  local list = model.losses
  if #list == 0 then return nil end
  for i, x in ipairs(list) do list[i] = values.cast(values.tensor(x, "float32"), "float32") end
  return #list == 1 and list[1] or tm.add_n(list)
end

--- The loss of a batch: of the outputs, by their weights, and what layers add.
local function compute_loss(self, y, y_pred, weights)
  local t, p, w = by_output(self, y, y_pred, weights)
  local total, batch
  for i, e in ipairs(self.entries) do
    if e.loss and t[i] ~= nil then
      local loss = loss_of(e, t[i], p[i], w[i])
      batch = batch or tm.cast(tm.shape_of(t[i])[1], "float32")
      if e.mean then follow(e.mean, loss, batch) end
      if e.factor then loss = loss * e.factor end
      total = total and total + loss or loss
    end
  end
  local extra = penalty(self.model)
  if extra then total = total and total + values.cast(extra, total.dtype) or extra end
  if total then follow(self.total, total, batch or tm.ones({})) end
  return total
end

local function compute_metrics(self, y, y_pred, weights)
  local t, p, w = by_output(self, y, y_pred, weights)
  for i, e in ipairs(self.entries) do
    if t[i] ~= nil then
      for _, m in ipairs(e.metrics) do m:update_state(t[i], p[i]) end
      for _, m in ipairs(e.weighted) do m:update_state(t[i], p[i], w[i]) end
    end
  end
end

-- --- methods of tm.Model ---

local methods = {}

--- The loss of a batch; also kept for the logs.  A class of your own may override it.
function methods:compute_loss(_, y, y_pred, weights)
  return compute_loss(compile.need(self, "compute_loss"), y, y_pred, weights)
end

--- Let the metrics see a batch; gives the logs: metrics by name.
function methods:compute_metrics(_, y, y_pred, weights)
  compute_metrics(compile.need(self, "compute_metrics"), y, y_pred, weights)
  local logs = {}
  for _, m in ipairs(self.metrics) do logs[m.name] = m end
  return logs
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

--- One step of training; data is a list { x, y, weights }.
function methods:train_step(data)
  local x, y, weights = data[1], data[2], data[3]
  local tape = tm.GradientTape()
  local y_pred = self(x, { training = true })
  local loss = need_loss(self, "fit", self:compute_loss(x, y, y_pred, weights), y)
  local variables = self.trainable_variables
  self.optimizer:apply_gradients(tape:gradient(loss, variables), variables)
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

local kinds = { train = "train_step", test = "test_step", predict = "predict_step" }

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
local function ordered(model, logs)
  local names, seen = {}, {}
  for _, m in ipairs(model.metrics) do
    if logs[m.name] ~= nil and not seen[m.name] then
      seen[m.name], names[#names + 1] = true, m.name
    end
  end
  for _, name in ipairs(nest.keys(logs)) do
    if not seen[name] then names[#names + 1] = name end
  end
  return names
end

--- Take the logs of a step apart: metrics are remembered, tensors are the result.
local function split(self, logs)
  if logs == nil then return {} end
  if not nest.is_nested(logs) then
    errors.raise("invalid_argument", "%s of %s returns a table of logs by name, got %s", self.method,
      self.model.class_name, type(logs))
  end
  local tensors = {}
  for _, name in ipairs(ordered(self.model, logs)) do
    if type(name) ~= "string" then
      errors.raise("invalid_argument", "%s of %s returns logs by name, as in { loss = loss }", self.method,
        self.model.class_name)
    end
    tensors[name] = log_name(self, name, logs[name])
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
  local self = setmetatable({ model = model, kind = kind, method = kinds[kind], names = {}, known = {},
    metrics = {} }, Steps)
  local function traced(element)
    local result = self:run(element)
    if kind ~= "predict" and next(result) == nil then return end
    return result
  end
  self.fn = tm.func(function(it) return traced(it:next()) end, { name = kinds[kind] })
  self.on_batch = tm.func(traced, { name = kinds[kind] })
  all[kind] = self
  return self
end

-- --- reading and resetting metrics ---

local function number(x)
  if values.is_variable(x) then x = x:read() end
  if values.is_tensor(x) and x.rank == 0 then return x:item() end
  return x
end

local function results(list)
  local out = {}
  for i, m in ipairs(list) do out[i] = m:result() end
  return out
end

--- Results of metrics, in one go; results that cannot be traced are asked one by one.
local function read_all(self, list)
  if not self.reader or #self.read_list ~= #list then
    self.read_list = list
    self.reader = tm.func(function() return results(list) end, { name = "read_metrics" })
  end
  if self.eager_reader then return results(list) end
  local ok, r = pcall(self.reader)
  if ok then return r end
  self.eager_reader = self.reader.trace_count == 0
  if not self.eager_reader then error(r, 0) end
  return results(list)
end

--- What the step logs, as Lua numbers by name; `last` are the newest step's own tensors.
--- A metric with several results is each of them.
function Steps:read(last)
  local list, names, logs = {}, {}, {}
  for _, name in ipairs(self.names) do
    if self.metrics[name] then
      list[#list + 1], names[#names + 1] = self.metrics[name], name
    elseif last and last[name] ~= nil then
      logs[name] = number(last[name])
    end
  end
  if #list == 0 then return logs end
  local got = read_all(self, list)
  for i, name in ipairs(names) do
    if nest.is_nested(got[i]) then
      for k, v in pairs(got[i]) do logs[k] = number(v) end
    else
      logs[name] = number(got[i])
    end
  end
  return logs
end

local function same(a, b)
  if #a ~= #b then return false end
  for i, x in ipairs(a) do
    if b[i] ~= x then return false end
  end
  return true
end

--- Set the metrics of a model back to the start, in one go.
function M.reset_metrics(model)
  local list = model.metrics
  local kept = rawget(model, "_reset")
  if not kept or not same(kept.list, list) then
    local plain, own = {}, {}
    for _, m in ipairs(list) do
      local base = m.reset_states == tm.metrics.Metric.reset_states
      table.insert(base and plain or own, m)
    end
    kept = { list = list, own = own, fn = tm.func(function()
      for _, m in ipairs(plain) do m:reset_states() end
    end, { name = "reset_metrics" }) }
    kept.any = #plain > 0
    rawset(model, "_reset", kept)
  end
  if kept.any then kept.fn() end
  for _, m in ipairs(kept.own) do m:reset_states() end
end

return M
