--- How often predictions are right: Accuracy, BinaryAccuracy, CategoricalAccuracy,
--- SparseCategoricalAccuracy, TopK, TopKCategoricalAccuracy, SparseTopKCategoricalAccuracy.

local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local function float(x) return tm.cast(x, "float32") end

--- Equal as they stand: class ids, or whatever compares.
---@class tm.metrics.Accuracy : tm.metrics.Metric
M.Accuracy = mean.derive("Accuracy")

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
M.BinaryAccuracy = mean.derive("BinaryAccuracy")

function M.BinaryAccuracy:init(given)
  local o = self:options(given, { threshold = 0.5 })
  self.threshold = options.number("BinaryAccuracy", "threshold", o.threshold)
  mean.Mean.init(self)
end

function M.BinaryAccuracy:values_of(y_true, y_pred)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  local right = float(tm.equal(y_true, float(tm.greater(y_pred, self.threshold))))
  return #right.shape > 0 and tm.reduce_mean(right, -1) or right
end

--- One-hot targets against a score for each class.
---@class tm.metrics.CategoricalAccuracy : tm.metrics.Metric
M.CategoricalAccuracy = mean.derive("CategoricalAccuracy")

function M.CategoricalAccuracy.values_of(_, y_true, y_pred)
  return float(tm.equal(tm.argmax(values.tensor(y_true), -1), tm.argmax(values.tensor(y_pred), -1)))
end

--- Class ids against a score for each class.
---@class tm.metrics.SparseCategoricalAccuracy : tm.metrics.Metric
M.SparseCategoricalAccuracy = mean.derive("SparseCategoricalAccuracy")

function M.SparseCategoricalAccuracy.values_of(_, y_true, y_pred)
  y_pred = values.tensor(y_pred)
  local ids = align.class_ids(values.tensor(y_true, "int64"), y_pred)
  return float(tm.equal(ids, values.cast(tm.argmax(y_pred, -1), "int64")))
end

--- Is the class among the k highest scores?  Equal scores at the border count.
local function among(k, ids, y_pred)
  local classes = y_pred.shape[#y_pred.shape]
  local score = tm.reduce_sum(tm.one_hot(ids, classes, { dtype = y_pred.dtype }) * y_pred, -1, { keepdims = true })
  local higher = tm.reduce_sum(float(tm.greater(y_pred, score)), -1)
  return float(tm.less(higher, k))
end

local function class_ids(y_true, y_pred) return align.class_ids(values.tensor(y_true, "int64"), y_pred) end

local function of_one_hot(y_true) return tm.argmax(values.tensor(y_true), -1) end

--- Class ids of targets that are ids, or one-hot when they look so.
local function of_either(y_true, y_pred)
  y_true = values.tensor(y_true, "int64")
  local classes = y_pred.shape[#y_pred.shape]
  local one_hot = #y_true.shape == #y_pred.shape and y_true.shape[#y_true.shape] == classes and classes > 1
  return one_hot and of_one_hot(y_true) or class_ids(y_true, y_pred)
end

local function define_top_k(name, ids_of)
  local c = mean.derive(name, function(self, given)
    self.k = options.count(name, "k", self:options(given, { k = 5 }).k, 1)
    mean.Mean.init(self)
  end)
  function c:values_of(y_true, y_pred)
    y_pred = values.tensor(y_pred)
    return among(self.k, ids_of(y_true, y_pred), y_pred)
  end
  M[name] = c
end

define_top_k("TopK", of_either)
define_top_k("TopKCategoricalAccuracy", of_one_hot)
define_top_k("SparseTopKCategoricalAccuracy", class_ids)
M.SparseTopK = M.SparseTopKCategoricalAccuracy

return { public = M }
