--- The loss and the metrics of one batch: targets, predictions and weights laid side by
--- side, output by output, as Keras does it.
---
--- Both are given what was compiled (tm.fit.Compiled), which is completed by the first
--- batch.

local errors = require "tidemill.errors"
local fits = require "tidemill.lib.fits"
local nest = require "tidemill.lib.nest"
local outputs = require "tidemill.fit.outputs"
local shapes = require "tidemill.lib.shapes"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

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
  loss, batch = values.cast(loss, "float64"), values.cast(batch, "float64")
  mean.total:assign_add(loss * batch)
  mean.count:assign_add(batch)
end

local loss_ways = { SparseCategoricalCrossentropy = "ids", CategoricalCrossentropy = "one_hot" }
local other_losses = {
  SparseCategoricalCrossentropy = "categorical_crossentropy",
  CategoricalCrossentropy = "sparse_categorical_crossentropy",
}

--- Raise where a loss of ours would compare what does not belong together; those of users
--- know themselves.
local function check_shapes(e, y_true, y_pred)
  local kind = e.loss.class_name
  if getmetatable(e.loss) ~= rawget(tm.losses, kind) then return end
  fits.check(e.name, e.loss.name, loss_ways[kind] or "each", y_true.shape, y_pred.shape, other_losses[kind])
end

local function type_text(x) return ("%s %s"):format(x.dtype, shapes.text(x.shape)) end

--- fn(...); what it says about shapes gets the name of the loss or metric, and of the
--- output.
local function telling(what, name, e, y_true, y_pred, fn, ...)
  local ok, x = pcall(fn, ...)
  if ok then return x end
  if errors.is_error(x) then
    x.message = ('%s %s of the output "%s" (y_true %s, y_pred %s): %s'):format(what, name, e.name,
      type_text(y_true), type_text(y_pred), x.message)
  end
  error(x, 0)
end

local function loss_of(e, y_true, y_pred, weights)
  check_shapes(e, y_true, y_pred)
  return telling("loss", e.loss.name, e, y_true, y_pred, e.loss, y_true, y_pred, weights)
end

local function update(m, e, y_true, y_pred, weights)
  m:check_shapes(y_true.shape, y_pred.shape, e.name)
  telling("metric", m.name, e, y_true, y_pred, m.update_state, m, y_true, y_pred, weights)
end

local function penalty(model)
  local list = model.losses
  if #list == 0 then return nil end
  for i, x in ipairs(list) do list[i] = values.cast(values.tensor(x, "float32"), "float32") end
  return #list == 1 and list[1] or tm.add_n(list)
end

--- The loss of a batch: of the outputs, by their weights, and what layers add.
function M.loss(self, y, y_pred, weights)
  local t, p, w = by_output(self, y, y_pred, weights)
  local total, batch
  self.without_targets = {}
  for i, e in ipairs(self.entries) do
    if e.loss and t[i] ~= nil then
      local loss = loss_of(e, t[i], p[i], w[i])
      batch = batch or tm.shape_of(t[i])[1]
      if e.mean then trace.named("metrics", follow, e.mean, loss, batch) end
      if e.factor then loss = loss * e.factor end
      total = total and total + loss or loss
    elseif e.loss then
      table.insert(self.without_targets, e.name)
    end
  end
  local extra = penalty(self.model)
  if extra then total = total and total + values.cast(extra, total.dtype) or extra end
  if total then trace.named("metrics", follow, self.total, total, batch or tm.ones({})) end
  return total
end

local function update_metrics(self, y, y_pred, weights)
  local t, p, w = by_output(self, y, y_pred, weights)
  for i, e in ipairs(self.entries) do
    if t[i] ~= nil then
      for _, m in ipairs(e.metrics) do update(m, e, t[i], p[i]) end
      for _, m in ipairs(e.weighted) do update(m, e, t[i], p[i], w[i]) end
    end
  end
end

--- Let the metrics of compile see a batch.
function M.metrics(...) return trace.named("metrics", update_metrics, ...) end

return M
