--- tm.metrics: numbers followed over many batches.

local class = require "tidemill.lib.class"
local closed = require "tidemill.lib.closed"
local losses = require "tidemill.losses"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"

local M = { Metric = require "tidemill.metrics.base" }

for _, name in ipairs { "mean", "accuracy", "error", "r2", "confusion", "fscore", "auc" } do
  for key, c in pairs(require("tidemill.metrics." .. name).public) do M[key] = c end
end

local classes = {}
for name, c in pairs(M) do
  if name ~= "Metric" and name ~= "MeanOf" then classes[name] = c end
end

--- What each compares its targets with (lib/fits.lua), and what takes the other kind.
local targets = {
  exact = { "R2Score", Accuracy = "SparseCategoricalAccuracy" },
  each = { "BinaryAccuracy", "MeanSquaredError", "MeanAbsoluteError", "MeanAbsolutePercentageError",
    "MeanSquaredLogarithmicError", "RootMeanSquaredError", "LogCoshError", "Hinge", "SquaredHinge", "KLDivergence",
    "Poisson", "BinaryCrossentropy", "LogLoss", "CosineSimilarity" },
  one_hot = { "AUC", "Precision", "Recall", "F1Score", "FBetaScore",
    CategoricalAccuracy = "SparseCategoricalAccuracy", CategoricalCrossentropy = "SparseCategoricalCrossentropy",
    TopKCategoricalAccuracy = "SparseTopKCategoricalAccuracy" },
  ids = { SparseCategoricalAccuracy = "CategoricalAccuracy", SparseTopKCategoricalAccuracy = "TopKCategoricalAccuracy",
    SparseCategoricalCrossentropy = "CategoricalCrossentropy" },
  labels = { "ConfusionMatrix" },
}

--- Direct calls are checked as those of fit are.
local function checked(c)
  local update = c.update_state
  function c:update_state(y_true, y_pred, weights)
    if y_true ~= nil and y_pred ~= nil then
      self:check_shapes(values.tensor(y_true).shape, values.tensor(y_pred).shape)
    end
    return update(self, y_true, y_pred, weights)
  end
end

for way, list in pairs(targets) do
  for k, v in pairs(list) do
    local name = type(k) == "number" and v or k
    local c = M[name]
    c._targets, c._other = way, name ~= v and v or nil
  end
end
for _, c in pairs(classes) do
  if rawget(c, "_targets") then checked(c) end
end

local aliases = {
  acc = "Accuracy", mse = "MeanSquaredError", rmse = "RootMeanSquaredError", mae = "MeanAbsoluteError",
  mape = "MeanAbsolutePercentageError", msle = "MeanSquaredLogarithmicError", bce = "BinaryCrossentropy",
  kld = "KLDivergence", kl_divergence = "KLDivergence", kullback_leibler_divergence = "KLDivergence",
  logcosh = "LogCoshError", log_cosh = "LogCoshError", cosine_proximity = "CosineSimilarity",
}

local named = options.getter("metric", classes, aliases)

--- Is there a metric of this name?
function M.has(name)
  local plain = name:lower():gsub("_", "")
  for key in pairs(classes) do
    if key:lower() == plain then return true end
  end
  return aliases[name] ~= nil
end

--- "mse", "auc", a function, a loss or an object: a metric.  One got by a short name or
--- a function's has that name.
function M.get(x)
  if type(x) == "string" then
    local m = named(x)
    if x == x:lower() then rawset(m, "name", x) end
    return m
  end
  if values.is_metric(x) then return x end
  if class.is(x, losses.Loss) then
    return M.MeanOf(function(y_true, y_pred) return x:call(y_true, y_pred) end, { name = x.name })
  end
  return M.MeanOf(x)
end

return closed.list(M, "metric")
