--- Means of losses (MeanSquaredError, LogLoss, CategoricalCrossentropy, ...), and what is
--- made of them: RootMeanSquaredError, CosineSimilarity.

local align = require "tidemill.lib.align"
local mean = require "tidemill.metrics.mean"
local losses = require "tidemill.losses"
local tm = require "tidemill.lib.lazy"

local M = {}

--- The mean of a loss; `known` are the options that the loss has.
local function of_loss(name, loss, known)
  local c = mean.derive(name, function(self, given)
    local o = self:options(given, known)
    o.name = nil
    rawset(self, "_loss", losses[loss or name](o))
    mean.Mean.init(self)
  end)
  function c:values_of(y_true, y_pred) return self._loss:call(y_true, mean.as_float(y_pred)) end
  M[name] = c
end

local crossentropy = { from_logits = false, label_smoothing = 0 }

of_loss("MeanSquaredError")
of_loss("MeanAbsoluteError")
of_loss("MeanAbsolutePercentageError")
of_loss("MeanSquaredLogarithmicError")
of_loss("LogCoshError", "LogCosh")
of_loss("Hinge")
of_loss("SquaredHinge")
of_loss("KLDivergence")
of_loss("Poisson")
of_loss("BinaryCrossentropy", nil, crossentropy)
of_loss("LogLoss", "BinaryCrossentropy", crossentropy)
of_loss("CategoricalCrossentropy", nil, crossentropy)
of_loss("SparseCategoricalCrossentropy", nil, { from_logits = false })

M.LogCoshError.default_name = "logcosh"
M.KLDivergence.default_name = "kullback_leibler_divergence"

--- How alike the directions are: 1 for the same, -1 for opposite ones.
---@class tm.metrics.CosineSimilarity : tm.metrics.Metric
of_loss("CosineSimilarity")

local negative = M.CosineSimilarity.values_of

function M.CosineSimilarity:values_of(...) return -negative(self, ...) end

--- The root of the mean of all squared errors.
---@class tm.metrics.RootMeanSquaredError : tm.metrics.Metric
M.RootMeanSquaredError = mean.derive("RootMeanSquaredError")

function M.RootMeanSquaredError.values_of(_, y_true, y_pred)
  y_true, y_pred = align.pair(mean.as_float(y_true), mean.as_float(y_pred))
  return tm.square(y_pred - y_true)
end

function M.RootMeanSquaredError:result() return mean.given(tm.sqrt(mean.ratio(self.total, self.count))) end

return { public = M }
