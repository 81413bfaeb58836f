--- Means of losses: MeanSquaredError, RootMeanSquaredError, MeanAbsoluteError, LogLoss.

local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local losses = require "tidemill.losses"
local tm = require "tidemill.lib.lazy"

local M = {}

local function of_loss(name, loss)
  local c = mean.MeanOf:extend(name)
  function c.values_of(_, y_true, y_pred)
    return loss(align.pair(mean.as_float(y_true), mean.as_float(y_pred)))
  end
  M[name] = c
end

of_loss("MeanSquaredError", losses.mean_squared_error)
of_loss("MeanAbsoluteError", losses.mean_absolute_error)
of_loss("LogLoss", losses.binary_crossentropy)

--- The root of the mean of all squared errors.
---@class tm.metrics.RootMeanSquaredError : tm.metrics.Metric
M.RootMeanSquaredError = mean.MeanOf:extend("RootMeanSquaredError")

function M.RootMeanSquaredError.values_of(_, y_true, y_pred)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  return tm.square(y_pred - y_true)
end

function M.RootMeanSquaredError:result() return tm.sqrt(mean.ratio(self.total, self.count)) end

return { public = M }
