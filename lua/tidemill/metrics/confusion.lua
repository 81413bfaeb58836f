--- Precision and Recall at one threshold or several.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

--- Targets (0 or 1), predictions and weights, flat; `weights` is nil or as long.
local function flat(y_true, y_pred, weights)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  if weights ~= nil then
    weights = tm.reshape(tm.ones_like(y_pred) * align.weights(weights, y_pred), { -1 })
  end
  y_true = tm.cast(tm.cast(tm.reshape(y_true, { -1 }), "bool"), "float32")
  return y_true, tm.reshape(y_pred, { -1 }), weights
end

--- For each threshold: how many of `of` are predicted above it, a vector.
local function above(y_pred, thresholds, of)
  local t = tm.expand_dims(tm.tensor(thresholds, "float32"), -1)
  local hits = tm.cast(tm.greater(tm.expand_dims(y_pred, 1), t), "float32")
  return tm.reduce_sum(hits * tm.expand_dims(of, 1), -1)
end

local function define(name, other, count_other)
  local c = Metric:extend(name)
  function c:init(given)
    local o = self:options(given, { "class_id", thresholds = 0.5 })
    self.thresholds = type(o.thresholds) == "table" and o.thresholds or { o.thresholds }
    self.single = type(o.thresholds) == "number"
    self.class_id = o.class_id and options.count(name, "class_id", o.class_id, 0)
    local shape = { #self.thresholds }
    self.true_positives = self:add_weight { name = "true_positives", shape = shape }
    self[other] = self:add_weight { name = other, shape = shape }
  end
  function c:update_state(y_true, y_pred, weights)
    if self.class_id then
      local k = self.class_id + 1
      y_true, y_pred = tm.identity(y_true):select(-1, k), tm.identity(y_pred):select(-1, k)
    end
    local labels, pred, w = flat(y_true, y_pred, weights)
    local positive = w and labels * w or labels
    local hits = above(pred, self.thresholds, positive)
    self.true_positives:assign_add(hits)
    self[other]:assign_add(count_other(pred, self.thresholds, labels, positive, w, hits))
  end
  function c:result()
    local tp = tm.identity(self.true_positives)
    local r = mean.ratio(tp, tp + self[other])
    return self.single and r[1] or r
  end
  M[name] = c
end

--- Of what was called positive, how much is.
define("Precision", "false_positives", function(pred, thresholds, labels, _, w)
  local negative = w and (1 - labels) * w or 1 - labels
  return above(pred, thresholds, negative)
end)

--- Of what is positive, how much was called so.
define("Recall", "false_negatives", function(_, _, _, positive, _, hits)
  return tm.reduce_sum(positive) - hits
end)

return { public = M, flat = flat }
