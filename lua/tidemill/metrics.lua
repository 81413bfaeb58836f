--- tm.metrics: numbers followed over many batches.

local M = { Metric = require "tidemill.metrics.base" }

for _, name in ipairs { "mean", "accuracy", "error", "confusion", "auc" } do
  for key, class in pairs(require("tidemill.metrics." .. name).public) do M[key] = class end
end

local classes = {}
for name, c in pairs(M) do
  if name ~= "Metric" then classes[name] = c end
end

--- "mse", "auc", a function or an object.
M.get = require("tidemill.lib.options").getter("metric", classes, {
  mse = "MeanSquaredError", rmse = "RootMeanSquaredError", mae = "MeanAbsoluteError", auc = "AUC",
})

return M
