--- How often predictions are right: Accuracy, BinaryAccuracy, CategoricalAccuracy,
--- SparseCategoricalAccuracy, TopK.

local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local function float(x) return tm.cast(x, "float32") end

--- Equal as they stand: class ids, or whatever compares.
---@class tm.metrics.Accuracy : tm.metrics.Metric
M.Accuracy = mean.MeanOf:extend("Accuracy")

function M.Accuracy.values_of(_, y_true, y_pred)
  y_true, y_pred = values.tensor(y_true), values.tensor(y_pred)
  if y_true.dtype ~= y_pred.dtype then
    y_true, y_pred = mean.as_float(y_true), mean.as_float(y_pred)
  end
  y_true, y_pred = align.pair(y_true, y_pred)
  return float(tm.equal(y_true, y_pred))
end

--- BinaryAccuracy{ threshold = 0.5 }: probabilities against 0 and 1.
---@class tm.metrics.BinaryAccuracy : tm.metrics.Metric
M.BinaryAccuracy = mean.MeanOf:extend("BinaryAccuracy")

function M.BinaryAccuracy:init(given)
  self.threshold = self:options(given, { threshold = 0.5 }).threshold
  mean.Mean.init(self)
end

function M.BinaryAccuracy:values_of(y_true, y_pred)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  local right = float(tm.equal(y_true, float(tm.greater(y_pred, self.threshold))))
  return #right.shape > 0 and tm.reduce_mean(right, -1) or right
end

--- One-hot targets against a score for each class.
---@class tm.metrics.CategoricalAccuracy : tm.metrics.Metric
M.CategoricalAccuracy = mean.MeanOf:extend("CategoricalAccuracy")

function M.CategoricalAccuracy.values_of(_, y_true, y_pred)
  return float(tm.equal(tm.argmax(values.tensor(y_true), -1), tm.argmax(values.tensor(y_pred), -1)))
end

--- Class ids against a score for each class.
---@class tm.metrics.SparseCategoricalAccuracy : tm.metrics.Metric
M.SparseCategoricalAccuracy = mean.MeanOf:extend("SparseCategoricalAccuracy")

function M.SparseCategoricalAccuracy.values_of(_, y_true, y_pred)
  y_pred = values.tensor(y_pred)
  local ids = align.class_ids(values.tensor(y_true, "int64"), y_pred)
  return float(tm.equal(ids, values.cast(tm.argmax(y_pred, -1), "int64")))
end

--- TopK{ k = 5 }: is the class (an id or one-hot) among the k highest scores?  Equal scores
--- at the border count.
---@class tm.metrics.TopK : tm.metrics.Metric
M.TopK = mean.MeanOf:extend("TopK")

function M.TopK:init(given)
  self.k = options.count("TopK", "k", self:options(given, { k = 5 }).k, 1)
  mean.Mean.init(self)
end

function M.TopK:values_of(y_true, y_pred)
  y_true, y_pred = values.tensor(y_true, "int64"), values.tensor(y_pred)
  local classes = y_pred.shape[#y_pred.shape]
  local one_hot = #y_true.shape == #y_pred.shape and y_true.shape[#y_true.shape] == classes and classes > 1
  local ids = one_hot and tm.argmax(y_true, -1) or align.class_ids(y_true, y_pred)
  local score = tm.reduce_sum(tm.one_hot(ids, classes, { dtype = y_pred.dtype }) * y_pred, -1, { keepdims = true })
  local higher = tm.reduce_sum(float(tm.greater(y_pred, score)), -1)
  return float(tm.less(higher, self.k))
end

return { public = M }
