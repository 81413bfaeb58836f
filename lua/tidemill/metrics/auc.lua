--- AUC: area under the ROC or precision-recall curve, from counts at thresholds.
---
--- State is a histogram of predictions for each of positives and negatives: bucket k
--- holds what lies between threshold k and k + 1.  A step adds two short vectors; the
--- counts at each threshold are sums from the right, made by result().  A prediction that
--- is no number makes the result none: a training that has failed is ended by
--- TerminateOnNaN, not by its metric.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local confusion = require "tidemill.metrics.confusion"
local errors = require "tidemill.errors"
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

local function need_numbers(name, list)
  if type(list) ~= "table" or getmetatable(list) ~= nil then
    errors.raise("invalid_argument", "AUC: %s is a list of numbers, got %s", name, type(list))
  end
  return list
end

local function own_thresholds(given)
  need_numbers("thresholds", given)
  local t = { -EPSILON }
  for _, x in ipairs(given) do t[#t + 1] = options.number("AUC", "a threshold", x, 0, 1) end
  t[#t + 1] = 1 + EPSILON
  table.sort(t)
  return t
end

--- AUC{ num_thresholds = 200, curve = "ROC" | "PR", summation_method = "interpolation" |
--- "minoring" | "majoring", thresholds, from_logits = false, multi_label = false,
--- num_labels, label_weights }.  With multi_label it is the mean over labels, the last
--- axis; label_weights weigh them.
function AUC:init(given)
  local o = self:options(given, {
    "thresholds", "num_labels", "label_weights", num_thresholds = 200, curve = "ROC",
    summation_method = "interpolation", from_logits = false, multi_label = false,
  })
  self.curve = options.choice("AUC", "curve", o.curve, { "ROC", "PR" })
  self.summation_method = options.choice("AUC", "summation_method", o.summation_method,
    { "interpolation", "minoring", "majoring" })
  options.count("AUC", "num_thresholds", o.num_thresholds, 2)
  self.thresholds = o.thresholds and own_thresholds(o.thresholds) or spread(o.num_thresholds)
  self.even = not o.thresholds
  self.from_logits = options.flag("AUC", "from_logits", o.from_logits)
  self.multi_label = options.flag("AUC", "multi_label", o.multi_label)
  if o.label_weights then
    for _, w in ipairs(need_numbers("label_weights", o.label_weights)) do
      options.number("AUC", "a label's weight", w, 0)
    end
    self.label_weights = o.label_weights
  end
  if not o.multi_label then self:build() elseif o.num_labels then self:build(o.num_labels) end
end

--- Its variables, once the number of labels is known.
function AUC:build(labels)
  if not self:begin_late() then return end
  local shape = { #self.thresholds, labels }
  self.positives = self:add_weight { name = "positives", shape = shape, dtype = "float64" }
  self.negatives = self:add_weight { name = "negatives", shape = shape, dtype = "float64" }
  self:made_late()
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

--- Of each prediction: its weight, where labels have some; nil: none.
function AUC:weights_of(y_pred, weights)
  if not self.label_weights or self.multi_label then return weights end
  local w = tm.ones_like(y_pred) * tm.tensor(self.label_weights, "float32")
  return weights and w * align.weights(weights, y_pred) or w
end

--- Where a prediction is counted: its bucket, and its label behind it.
function AUC:places(pred, labels)
  local bucket = self:buckets(pred)
  if not labels then return bucket end
  local label = tm.range(0, labels, 1, "int64")
  return tm.reshape(tm.reshape(bucket, { -1, labels }) * labels + label, { -1 })
end

local function labels_of(y_pred)
  local s = y_pred.shape
  if #s == 2 and s[2] ~= -1 then return s[2] end
  return errors.raise("invalid_argument", "AUC: multi_label takes (examples, labels) with a known number of labels, "
    .. "got (%s)", table.concat(s, ", "))
end

function AUC:update_state(y_true, y_pred, weights)
  y_pred = mean.as_float(y_pred)
  local labels = self.multi_label and labels_of(y_pred)
  self:build(labels or nil)
  local real, pred, w = confusion.flat(y_true, y_pred, self:weights_of(y_pred, weights))
  if self.from_logits then pred = tm.sigmoid(pred) end
  tm.assert_true(tm.logical_not(tm.reduce_any(tm.logical_or(tm.less(pred, 0), tm.greater(pred, 1)))),
    "AUC: predictions must be probabilities from 0 to 1; from_logits = true takes logits")
  local known = tm.is_finite(pred) -- of what is no number the area is none either
  real = tm.where(known, real, tm.cast(pred, "float64"))
  pred = tm.where(known, pred, tm.zeros_like(pred))
  local at, n = self:places(pred, labels), #self.thresholds * (labels or 1)
  local function add(to, x)
    to:assign_add(tm.reshape(tm.unsorted_segment_sum(w and x * w or x, at, n), to.shape))
  end
  add(self.positives, real)
  add(self.negatives, 1 - real)
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
  return tm.reduce_sum(mean.ratio(slope * (dtp + intercept * tm.log(relative)), total), 1)
end

--- Area under y by x, by the method of summation.
local function area(x, y, method)
  local heights
  if method == "interpolation" then heights = (head(y) + tail(y)) / 2
  elseif method == "minoring" then heights = tm.minimum(head(y), tail(y))
  else heights = tm.maximum(head(y), tail(y)) end
  return tm.reduce_sum((head(x) - tail(x)) * heights, 1)
end

--- One area, or one for each label.
function AUC:areas()
  local pos, neg = self.positives:read(), self.negatives:read()
  local tp = tm.cumsum(pos, 1, { reverse = true })
  local fp = tm.cumsum(neg, 1, { reverse = true })
  local fn, tn = tm.reduce_sum(pos, 1) - tp, tm.reduce_sum(neg, 1) - fp
  if self.curve == "PR" and self.summation_method == "interpolation" then return pr_area(tp, fp, fn) end
  local recall = mean.ratio(tp, tp + fn)
  if self.curve == "ROC" then return area(mean.ratio(fp, fp + tn), recall, self.summation_method) end
  return area(recall, mean.ratio(tp, tp + fp), self.summation_method)
end

function AUC:result()
  if not self.positives then return tm.tensor(0, "float32") end
  local areas = self:areas()
  if self.multi_label and self.label_weights then
    local w = tm.tensor(self.label_weights, "float64")
    areas = mean.ratio(tm.reduce_sum(areas * w), tm.reduce_sum(w))
  elseif self.multi_label then
    areas = tm.reduce_mean(areas)
  end
  return mean.given(areas)
end

return { public = { AUC = AUC } }
