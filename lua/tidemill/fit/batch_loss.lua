--- The loss and the metrics of one batch: targets, predictions and weights laid side by
--- side, output by output, as Keras does it.
---
--- Both are given what was compiled (tm.fit.Compiled), which is completed by the first
--- batch.

local errors = require "tidemill.errors"
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

local function is_one(n) return n == 1 or n == -1 end

--- Do targets and predictions have an axis for an axis?  A last one of size one may be
--- missing.
local function ranks_fit(t, p, sparse)
  local more = #p - #t
  if sparse then return more == 1 or (more == 0 and #t > 0 and is_one(t[#t])) end
  if more == 1 then return is_one(p[#p]) end
  if more == -1 then return is_one(t[#t]) end
  return more == 0
end

local function sizes_fit(t, p, exact)
  for i = 1, math.min(#t, #p) do
    local free = t[i] == -1 or p[i] == -1 or (not exact and (t[i] == 1 or p[i] == 1))
    if not free and t[i] ~= p[i] then return false end
  end
  return true
end

--- Raise where a loss of ours would compare what does not belong together; those of users
--- know themselves.
local function check_shapes(e, y_true, y_pred)
  local kind = e.loss.class_name
  if getmetatable(e.loss) ~= tm.losses[kind] then return end
  local t, p, sparse = y_true.shape, y_pred.shape, kind == "SparseCategoricalCrossentropy"
  local exact = kind == "CategoricalCrossentropy"
  if ranks_fit(t, p, sparse) and (sparse or sizes_fit(t, p, exact)) then return end
  errors.raise("invalid_argument", 'the targets y of the output "%s" have the shape %s, its predictions %s: %s%s',
    e.name, shapes.text(t), shapes.text(p), e.loss.name,
    sparse and " takes one class id an example (one-hot targets: categorical_crossentropy)"
    or exact and " takes a number for each class (class ids: sparse_categorical_crossentropy)"
    or " takes a target for each prediction")
end

local function type_text(x) return ("%s %s"):format(x.dtype, shapes.text(x.shape)) end

--- What a loss of the user's or ours says about shapes, with the output's name.
local function loss_of(e, y_true, y_pred, weights)
  check_shapes(e, y_true, y_pred)
  local ok, loss = pcall(e.loss, y_true, y_pred, weights)
  if ok then return loss end
  if errors.is_error(loss) then
    loss.message = ('loss %s of the output "%s" (y_true %s, y_pred %s): %s'):format(e.loss.name, e.name,
      type_text(y_true), type_text(y_pred), loss.message)
  end
  error(loss, 0)
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
  for i, e in ipairs(self.entries) do
    if e.loss and t[i] ~= nil then
      local loss = loss_of(e, t[i], p[i], w[i])
      batch = batch or tm.shape_of(t[i])[1]
      if e.mean then trace.named("metrics", follow, e.mean, loss, batch) end
      if e.factor then loss = loss * e.factor end
      total = total and total + loss or loss
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
      for _, m in ipairs(e.metrics) do m:update_state(t[i], p[i]) end
      for _, m in ipairs(e.weighted) do m:update_state(t[i], p[i], w[i]) end
    end
  end
end

--- Let the metrics of compile see a batch.
function M.metrics(...) return trace.named("metrics", update_metrics, ...) end

return M
