--- Mean and Sum of values; MeanOf, the base of metrics that average a function of
--- target and prediction.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

--- sum / count, 0 where nothing was counted.
local function ratio(sum, count)
  sum, count = tm.identity(sum), tm.identity(count)
  local none = tm.equal(count, 0)
  return tm.where(none, tm.zeros({}, sum.dtype), sum / tm.where(none, tm.ones({}, sum.dtype), count))
end

local function as_float(x) return values.cast(values.tensor(x, "float32"), "float32") end

--- Values and the weights that go with them; weights of fewer axes weigh the mean over
--- the rest.
local function weighted(x, weights)
  x = as_float(x)
  if weights == nil then return x end
  weights = align.weights(weights, x)
  while #x.shape > #weights.shape and #weights.shape > 0 do x = tm.reduce_mean(x, -1) end
  if #weights.shape == #x.shape or #weights.shape == 0 then weights = tm.ones_like(x) * weights end
  return x * weights, weights
end

--- Mean(): of all values seen, weighted.
---@class tm.metrics.Mean : tm.metrics.Metric
M.Mean = Metric:extend("Mean")

function M.Mean:init(given)
  self:options(given)
  self.total = self:add_weight { name = "total" }
  self.count = self:add_weight { name = "count" }
end

function M.Mean:update_state(x, weights)
  local sum, w = weighted(x, weights)
  self.total:assign_add(tm.reduce_sum(sum))
  self.count:assign_add(w and tm.reduce_sum(w) or tm.cast(tm.size_of(sum), "float32"))
end

function M.Mean:result() return ratio(self.total, self.count) end

--- Sum(): of all values seen, weighted.
---@class tm.metrics.Sum : tm.metrics.Metric
M.Sum = Metric:extend("Sum")

function M.Sum:init(given)
  self:options(given)
  self.total = self:add_weight { name = "total" }
end

function M.Sum:update_state(x, weights)
  self.total:assign_add(tm.reduce_sum((weighted(x, weights))))
end

function M.Sum:result() return tm.identity(self.total) end

--- A metric that is the mean of `self:values_of(y_true, y_pred)`.
local MeanOf = M.Mean:extend("MeanOf")

function MeanOf:update_state(y_true, y_pred, weights)
  M.Mean.update_state(self, self:values_of(y_true, y_pred), weights)
end

return { public = M, Mean = M.Mean, MeanOf = MeanOf, ratio = ratio, as_float = as_float }
