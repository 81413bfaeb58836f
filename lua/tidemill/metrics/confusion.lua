--- Precision and Recall at one threshold or several; ConfusionMatrix.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local LEAST = -1e10 -- the score of what is not among the best

--- Targets (0 or 1), predictions and weights, flat; `weights` is nil or as long.  Targets
--- and weights are float64, so that sums of them are exact.
local function flat(y_true, y_pred, weights)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  if weights ~= nil then
    weights = tm.ones_like(y_pred) * align.weights(weights, y_pred)
    weights = values.cast(tm.reshape(weights, { -1 }), "float64")
  end
  y_true = tm.cast(tm.cast(tm.reshape(y_true, { -1 }), "bool"), "float64")
  return y_true, tm.reshape(y_pred, { -1 }), weights
end

--- For each threshold: how many of `of` are predicted above it, a vector.
local function above(y_pred, thresholds, of)
  local t = tm.expand_dims(tm.tensor(thresholds, "float32"), -1)
  local hits = tm.cast(tm.greater(tm.expand_dims(y_pred, 1), t), "float64")
  return tm.reduce_sum(hits * tm.expand_dims(of, 1), -1)
end

--- Scores of the k best classes of each example; those of others are LEAST.
local function only_best(y_pred, k)
  local _, ids = tm.top_k(y_pred, k)
  local best = tm.reduce_sum(tm.one_hot(ids, y_pred.shape[#y_pred.shape], { dtype = "float32" }), -2)
  return y_pred * best + LEAST * (1 - best)
end

local function define(name, other, count_other)
  local c = Metric:extend(name)
  function c:init(given)
    local o = self:options(given, { "class_id", "top_k", "thresholds" })
    local t = o.thresholds or (o.top_k and LEAST or 0.5)
    if o.thresholds then
      for _, x in ipairs(type(t) == "table" and t or { t }) do options.number(name, "a threshold", x, 0, 1) end
    end
    self.thresholds = type(t) == "table" and t or { t }
    self.single = type(t) == "number"
    self.class_id = o.class_id and options.count(name, "class_id", o.class_id, 0)
    self.top_k = o.top_k and options.count(name, "top_k", o.top_k, 1)
    local shape = { #self.thresholds }
    self.true_positives = self:add_weight { name = "true_positives", shape = shape, dtype = "float64" }
    self[other] = self:add_weight { name = other, shape = shape, dtype = "float64" }
  end
  function c:update_state(y_true, y_pred, weights)
    if self.top_k then y_pred = only_best(mean.as_float(y_pred), self.top_k) end
    if self.class_id then
      local k = self.class_id + 1
      y_true, y_pred = values.tensor(y_true):select(-1, k), values.tensor(y_pred):select(-1, k)
    end
    local labels, pred, w = flat(y_true, y_pred, weights)
    local positive = w and labels * w or labels
    local hits = above(pred, self.thresholds, positive)
    self.true_positives:assign_add(hits)
    self[other]:assign_add(count_other(pred, self.thresholds, labels, positive, w, hits))
  end
  function c:result()
    local tp = self.true_positives:read()
    local r = mean.given(mean.ratio(tp, tp + self[other]:read()))
    return self.single and r[1] or r
  end
  M[name] = c
end

--- Precision{ thresholds = 0.5, top_k, class_id }: of what was called positive, how much
--- is.
define("Precision", "false_positives", function(pred, thresholds, labels, _, w)
  local negative = w and (1 - labels) * w or 1 - labels
  return above(pred, thresholds, negative)
end)

--- Recall{ thresholds = 0.5, top_k, class_id }: of what is positive, how much was called
--- so.
define("Recall", "false_negatives", function(_, _, _, positive, _, hits)
  return tm.reduce_sum(positive) - hits
end)

---@class tm.metrics.ConfusionMatrix : tm.metrics.Metric
M.ConfusionMatrix = Metric:extend("ConfusionMatrix")

--- ConfusionMatrix{ num_classes }: how often a class (row) was taken for which (column).
--- Targets are class ids, predictions too, or a score for each class.
function M.ConfusionMatrix:init(given)
  local o = self:options(given, { "num_classes" })
  local n = options.count("ConfusionMatrix", "num_classes", options.need("ConfusionMatrix", o, "num_classes"), 1)
  self.num_classes = n
  self.matrix = self:add_weight { name = "matrix", shape = { n, n }, dtype = "float64" }
end

--- Class ids as they stand, or of scores.
local function ids_of(y_pred, y_true, n)
  y_pred = values.tensor(y_pred, "int64")
  local r = #y_pred.shape
  local scored = n > 1 and y_pred.shape[r] == n and (r > #y_true.shape or y_true.shape[#y_true.shape] == 1)
  return scored and tm.argmax(y_pred, -1) or y_pred
end

function M.ConfusionMatrix:update_state(y_true, y_pred, weights)
  local n = self.num_classes
  y_true = values.tensor(y_true, "int64")
  local pred = tm.reshape(values.cast(ids_of(y_pred, y_true, n), "int64"), { -1 })
  local real = tm.reshape(values.cast(y_true, "int64"), { -1 })
  local both = tm.concat({ real, pred }, 1)
  tm.assert_true(tm.reduce_all(tm.logical_and(tm.greater_equal(both, 0), tm.less(both, n))),
    ("ConfusionMatrix: a class id is not in 0 .. %d; set num_classes"):format(n - 1))
  local each = tm.ones_like(real, "float64")
  if weights ~= nil then each = each * tm.reshape(mean.as_double(weights), { -1 }) end
  self.matrix:assign_add(tm.reshape(tm.unsorted_segment_sum(each, real * n + pred, n * n), { n, n }))
end

function M.ConfusionMatrix:result() return tm.identity(self.matrix) end

return { public = M, flat = flat }
