--- Mean and Sum of values; MeanOf, the mean of a function of target and prediction.
---
--- Totals and counts are float64: whole numbers up to 2^53 are added exactly, in
--- whatever order workers do it.  Means and rates are given as float32, sums as float64.

local Metric = require "tidemill.metrics.base"
local align = require "tidemill.lib.align"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

--- sum / count in their dtype, 0 where nothing was counted.
local function ratio(sum, count)
  sum, count = tm.identity(sum), tm.identity(count)
  local none = tm.equal(count, 0)
  return tm.where(none, tm.zeros({}, sum.dtype), sum / tm.where(none, tm.ones({}, sum.dtype), count))
end

--- A result as users get it.
local function given(x) return values.cast(x, "float32") end

local function as_float(x) return values.cast(values.tensor(x, "float32"), "float32") end

local function as_double(x) return values.cast(values.tensor(x, "float64"), "float64") end

--- Values times weights, and the weights, all float64; weights of fewer axes weigh the
--- mean over the rest.
local function weighted(x, weights)
  x = as_double(x)
  if weights == nil then return x end
  weights = align.weights(weights, x)
  while #x.shape > #weights.shape and #weights.shape > 0 do x = tm.reduce_mean(x, -1) end
  if #weights.shape == #x.shape or #weights.shape == 0 then weights = tm.ones_like(x) * weights end
  return x * weights, weights
end

--- Mean(): of all values seen, weighted.
---@class tm.metrics.Mean : tm.metrics.Metric
M.Mean = Metric:extend("Mean")

function M.Mean:init(o)
  self:options(o)
  self.total = self:add_weight { name = "total", dtype = "float64" }
  self.count = self:add_weight { name = "count", dtype = "float64" }
end

function M.Mean:update_state(x, weights)
  local sum, w = weighted(x, weights)
  self.total:assign_add(tm.reduce_sum(sum))
  self.count:assign_add(w and tm.reduce_sum(w) or tm.cast(tm.size_of(sum), "float64"))
end

function M.Mean:result() return given(ratio(self.total, self.count)) end

--- Sum(): of all values seen, weighted.
---@class tm.metrics.Sum : tm.metrics.Metric
M.Sum = Metric:extend("Sum")

function M.Sum:init(o)
  self:options(o)
  self.total = self:add_weight { name = "total", dtype = "float64" }
end

function M.Sum:update_state(x, weights)
  self.total:assign_add(tm.reduce_sum((weighted(x, weights))))
end

function M.Sum:result() return tm.identity(self.total) end

--- MeanOf(fn, { name }): the mean of fn(y_true, y_pred).  Classes derived from it have a
--- method values_of(y_true, y_pred).
---@class tm.metrics.MeanOf : tm.metrics.Metric
M.MeanOf = M.Mean:extend("MeanOf")

function M.MeanOf:init(fn, o)
  rawset(self, "_fn", options.callable("MeanOf", "its first argument", fn))
  if type(o) == "table" and o.name then rawset(self, "name", o.name) end
  M.Mean.init(self, o)
end

function M.MeanOf:values_of(y_true, y_pred)
  return self._fn(values.tensor(y_true, "float32"), values.tensor(y_pred, "float32"))
end

function M.MeanOf:update_state(y_true, y_pred, weights)
  M.Mean.update_state(self, self:values_of(y_true, y_pred), weights)
end

--- Derive a class that takes no function.
local function derive(name, init)
  local c = M.MeanOf:extend(name)
  c.init = init or M.Mean.init
  return c
end

return {
  public = M, Mean = M.Mean, MeanOf = M.MeanOf, derive = derive, ratio = ratio, given = given, as_float = as_float,
  as_double = as_double,
}
