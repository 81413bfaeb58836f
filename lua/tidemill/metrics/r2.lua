--- R2Score: the part of the targets' variance that predictions explain.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local errors = require "tidemill.errors"
local mean = require "tidemill.metrics.mean"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

---@class tm.metrics.R2Score : tm.metrics.Metric
local R2Score = Metric:extend("R2Score")

local UNIFORM, BY_VARIANCE = "uniform_average", "variance_weighted_average"

--- R2Score{ class_aggregation = "uniform_average" | "variance_weighted_average" | "none",
--- num_regressors = 0 }: targets and predictions are (examples, outputs).
function R2Score:init(given)
  local o = self:options(given, { class_aggregation = UNIFORM, num_regressors = 0 })
  self.class_aggregation = options.choice("R2Score", "class_aggregation", o.class_aggregation,
    { UNIFORM, BY_VARIANCE, "none" })
  self.num_regressors = options.count("R2Score", "num_regressors", o.num_regressors, 0)
  self.num_samples = self:add_weight { name = "num_samples", dtype = "float64" }
end

--- Its variables, once the number of outputs is known.
function R2Score:build(outputs)
  if not self:begin_late() then return end
  for _, name in ipairs { "squared_sum", "sum", "residual", "count" } do
    self[name] = self:add_weight { name = name, shape = { outputs }, dtype = "float64" }
  end
  self:made_late()
end

--- (examples, outputs) of either; one output may come as (examples).
local function table_of(x)
  x = mean.as_double(x)
  if #x.shape == 1 then x = tm.expand_dims(x, -1) end
  if #x.shape == 2 and x.shape[2] ~= -1 then return x end
  return errors.raise("invalid_argument", "R2Score takes (examples, outputs) with a known number of outputs, got (%s)",
    table.concat(x.shape, ", "))
end

function R2Score:update_state(y_true, y_pred, weights)
  y_true, y_pred = table_of(y_true), table_of(y_pred)
  self:build(y_pred.shape[2])
  local w = tm.ones_like(y_true)
  if weights ~= nil then w = w * align.weights(weights, y_true) end
  local y = y_true * w
  self.sum:assign_add(tm.reduce_sum(y, 1))
  self.squared_sum:assign_add(tm.reduce_sum(y_true * y, 1))
  self.residual:assign_add(tm.reduce_sum(tm.square(y_true - y_pred) * w, 1))
  self.count:assign_add(tm.reduce_sum(w, 1))
  self.num_samples:assign_add(tm.cast(tm.size_of(y_true), "float64"))
end

--- By the number of regressors, where there are samples enough for it.
local function adjusted(r2, samples, regressors)
  local free = samples - regressors - 1
  local enough = tm.greater(free, 0)
  local by = tm.where(enough, free, tm.ones({}, "float64"))
  return tm.where(enough, 1 - (1 - r2) * (samples - 1) / by, r2)
end

--- Targets that are all alike: 1 when they are met, else 0.
local function scores(residual, total, count)
  local flat = tm.logical_or(tm.equal(total, 0), tm.equal(count, 0))
  local met = tm.logical_and(tm.equal(residual, 0), tm.greater(count, 0))
  return tm.where(flat, tm.cast(met, "float64"), 1 - mean.ratio(residual, total))
end

function R2Score:result()
  if not self.count then return tm.tensor(0, "float32") end
  local sum, residual, count = self.sum:read(), self.residual:read(), self.count:read()
  local total = tm.maximum(self.squared_sum:read() - sum * mean.ratio(sum, count), 0)
  local r2 = scores(residual, total, count)
  if self.class_aggregation == UNIFORM then
    r2 = tm.reduce_mean(r2)
  elseif self.class_aggregation == BY_VARIANCE then
    r2 = mean.ratio(tm.reduce_sum(total * r2), tm.reduce_sum(total))
  end
  if self.num_regressors > 0 then r2 = adjusted(r2, self.num_samples:read(), self.num_regressors) end
  return values.cast(r2, "float32")
end

return { public = { R2Score = R2Score } }
