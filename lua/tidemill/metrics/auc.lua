--- AUC: area under the ROC or precision-recall curve, from counts at thresholds.
---
--- State is a histogram of predictions for each of positives and negatives: bucket k
--- holds what lies between threshold k and k + 1.  A step adds two short vectors; the
--- counts at each threshold are sums from the right, made by result().

local Metric = require "tidemill.metrics.base"
local confusion = require "tidemill.metrics.confusion"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

---@class tm.metrics.AUC : tm.metrics.Metric
local AUC = Metric:extend("AUC")

local EPSILON = 1e-7

--- Thresholds from 0 to 1, the outer ones moved out a little.
local function spread(n)
  local t = { -EPSILON }
  for i = 1, n - 2 do t[i + 1] = i / (n - 1) end
  t[n] = 1 + EPSILON
  return t
end

local function own_thresholds(given)
  local t = { -EPSILON }
  for _, x in ipairs(given) do t[#t + 1] = options.number("AUC", "a threshold", x, 0, 1) end
  t[#t + 1] = 1 + EPSILON
  table.sort(t)
  return t
end

local choices = {
  curve = { "ROC", "PR" },
  summation_method = { "interpolation", "minoring", "majoring" },
}

local function check_choice(o, name)
  for _, c in ipairs(choices[name]) do
    if o[name] == c then return end
  end
  options.unknown("AUC", name, o[name], choices[name])
end

--- AUC{ num_thresholds = 200, curve = "ROC" | "PR", summation_method = "interpolation",
--- thresholds, from_logits = false }
function AUC:init(given)
  local o = self:options(given, {
    "thresholds", num_thresholds = 200, curve = "ROC", summation_method = "interpolation", from_logits = false,
  })
  check_choice(o, "curve")
  check_choice(o, "summation_method")
  options.count("AUC", "num_thresholds", o.num_thresholds, 2)
  self.thresholds = o.thresholds and own_thresholds(o.thresholds) or spread(o.num_thresholds)
  self.even = not o.thresholds
  self.curve, self.summation_method, self.from_logits = o.curve, o.summation_method, o.from_logits
  local shape = { #self.thresholds }
  self.positives = self:add_weight { name = "positives", shape = shape }
  self.negatives = self:add_weight { name = "negatives", shape = shape }
end

--- The bucket of each prediction, from 0: the last threshold below it.
function AUC:buckets(pred)
  local n = #self.thresholds
  if self.even then
    return tm.cast(tm.nn.relu(tm.ceil(pred * (n - 1)) - 1), "int64")
  end
  local t = tm.expand_dims(tm.tensor(self.thresholds, "float32"), 1)
  local below = tm.cast(tm.greater(tm.expand_dims(pred, -1), t), "int64")
  return tm.maximum(tm.reduce_sum(below, -1) - 1, 0)
end

function AUC:update_state(y_true, y_pred, weights)
  local labels, pred, w = confusion.flat(y_true, y_pred, weights)
  if self.from_logits then pred = tm.sigmoid(pred) end
  tm.assert_true(tm.reduce_all(tm.logical_and(tm.greater_equal(pred, 0), tm.less_equal(pred, 1))),
    "AUC: predictions must be probabilities from 0 to 1; from_logits = true takes logits")
  local bucket, n = self:buckets(pred), #self.thresholds
  local no = 1 - labels
  self.positives:assign_add(tm.unsorted_segment_sum(w and labels * w or labels, bucket, n))
  self.negatives:assign_add(tm.unsorted_segment_sum(w and no * w or no, bucket, n))
end

local function head(x) return x:narrow(1, 1, #x - 1) end

local function tail(x) return x:narrow(1, 2, #x - 1) end

--- Area under precision against recall, interpolated as Davis and Goadrich do.
local function pr_area(tp, fp, fn)
  local dtp = head(tp) - tail(tp)
  local p = tp + fp
  local dp = head(p) - tail(p)
  local slope = mean.ratio(dtp, tm.maximum(dp, 0))
  local intercept = tail(tp) - slope * tail(p)
  local both = tm.logical_and(tm.greater(head(p), 0), tm.greater(tail(p), 0))
  local relative = tm.where(both, mean.ratio(head(p), tm.maximum(tail(p), 0)), tm.ones_like(tail(p)))
  local total = tm.maximum(tail(tp) + tail(fn), 0)
  return tm.reduce_sum(mean.ratio(slope * (dtp + intercept * tm.log(relative)), total))
end

function AUC:result()
  local pos, neg = tm.identity(self.positives), tm.identity(self.negatives)
  local tp = tm.cumsum(pos, 1, { reverse = true })
  local fp = tm.cumsum(neg, 1, { reverse = true })
  local fn, tn = tm.reduce_sum(pos) - tp, tm.reduce_sum(neg) - fp
  if self.curve == "PR" and self.summation_method == "interpolation" then return pr_area(tp, fp, fn) end
  local recall = mean.ratio(tp, tp + fn)
  local x, y
  if self.curve == "ROC" then x, y = mean.ratio(fp, fp + tn), recall else x, y = recall, mean.ratio(tp, tp + fp) end
  local heights
  if self.summation_method == "interpolation" then heights = (head(y) + tail(y)) / 2
  elseif self.summation_method == "minoring" then heights = tm.minimum(head(y), tail(y))
  else heights = tm.maximum(head(y), tail(y)) end
  return tm.reduce_sum((head(x) - tail(x)) * heights)
end

return { public = { AUC = AUC } }
