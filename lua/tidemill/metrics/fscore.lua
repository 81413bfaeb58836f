--- F1Score and FBetaScore: precision and recall in one number, for each class or over all.

local Metric = require "tidemill.metrics.base"
local errors = require "tidemill.errors"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

---@class tm.metrics.FBetaScore : tm.metrics.Metric
M.FBetaScore = Metric:extend("FBetaScore")
M.FBetaScore.default_name = "fbeta_score"

local counts = { "true_positives", "false_positives", "false_negatives", "intermediate_weights" }

--- FBetaScore{ average = "none" | "micro" | "macro" | "weighted", beta = 1, threshold,
--- num_classes }: targets and predictions are (examples, classes).  Without a threshold
--- the highest score of an example is its class.  num_classes makes the variables at
--- once, not with the first batch.
function M.FBetaScore:init(given)
  local o = self:options(given, { "threshold", "num_classes", average = "none", beta = 1 })
  self.average = options.choice(self.class_name, "average", o.average, { "none", "micro", "macro", "weighted" })
  self.beta = options.number(self.class_name, "beta", o.beta, 0)
  if o.threshold then self.threshold = options.number(self.class_name, "threshold", o.threshold, 0, 1) end
  if self.average == "micro" then self:build() end
  if o.num_classes then self:build(options.count(self.class_name, "num_classes", o.num_classes, 1)) end
end

function M.FBetaScore:build(classes)
  if not self:begin_late() then return end
  for _, name in ipairs(counts) do
    self[name] = self:add_weight { name = name, shape = { classes }, dtype = "float64" }
  end
  self:made_late()
end

--- What is called positive, 0 or 1.
local function positive(y_pred, threshold)
  if threshold then return tm.cast(tm.greater(y_pred, threshold), "float64") end
  local best = tm.reduce_max(y_pred, -1, { keepdims = true })
  -- A row of zeros has no class.
  local hit = tm.logical_and(tm.greater_equal(y_pred, best), tm.greater(tm.abs(y_pred), 1e-9))
  return tm.cast(hit, "float64")
end

function M.FBetaScore:update_state(y_true, y_pred, weights)
  y_true, y_pred = mean.as_double(y_true), mean.as_float(y_pred)
  local s = y_pred.shape
  if #s ~= 2 or #y_true.shape ~= 2 or s[2] == -1 then
    errors.raise("invalid_argument", "%s takes (examples, classes) with a known number of classes, got (%s) and (%s)",
      self.class_name, table.concat(y_true.shape, ", "), table.concat(s, ", "))
  end
  self:build(s[2])
  local p = positive(y_pred, self.threshold)
  local w = weights ~= nil and tm.reshape(mean.as_double(weights), { -1, 1 })
  local axis = self.average ~= "micro" and 1 or nil
  local function add(name, x) self[name]:assign_add(tm.reduce_sum(w and x * w or x, axis)) end
  add("true_positives", p * y_true)
  add("false_positives", p * (1 - y_true))
  add("false_negatives", (1 - p) * y_true)
  add("intermediate_weights", y_true)
end

function M.FBetaScore:result()
  if not self.true_positives then return tm.tensor(0, "float32") end
  local tp, weight = self.true_positives:read(), self.intermediate_weights:read()
  local precision = mean.ratio(tp, tp + self.false_positives:read())
  local recall = mean.ratio(tp, tp + self.false_negatives:read())
  local square = self.beta * self.beta
  local f = mean.ratio(precision * recall, precision * square + recall) * (1 + square)
  if self.average == "weighted" then
    f = tm.reduce_sum(f * mean.ratio(weight, tm.reduce_sum(weight)))
  elseif self.average ~= "none" then
    f = tm.reduce_mean(f)
  end
  return mean.given(f)
end

--- F1Score{ average, threshold, num_classes }
---@class tm.metrics.F1Score : tm.metrics.Metric
M.F1Score = M.FBetaScore:extend("F1Score")
M.F1Score.default_name = "f1_score"

function M.F1Score:init(given)
  if type(given) == "table" and given.beta ~= nil then
    options.unknown("F1Score", "option", "beta", { "average", "threshold", "num_classes" })
  end
  M.FBetaScore.init(self, given)
end

return { public = M }
