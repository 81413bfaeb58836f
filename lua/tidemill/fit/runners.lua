--- Which runner runs the steps of a model: that of its strategy's cluster, or the one of
--- this process.

local cluster_runner = require "tidemill.fit.cluster_runner"
local local_runner = require "tidemill.fit.local_runner"

local M = {}

--- A runner for one call of fit, evaluate or predict.
function M.new(model, steps, source)
  local c = rawget(model, "_compiled")
  local eager = c ~= nil and c.given.run_eagerly
  local strategy = model._scope
  if strategy and strategy._get_coordinator then
    return cluster_runner.new(steps, source, eager, strategy)
  end
  return local_runner.new(steps, source, eager)
end

return M
