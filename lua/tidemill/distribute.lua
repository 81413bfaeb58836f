--- tm.distribute: clusters, strategies, coordinators.

local cluster_spec = require "tidemill.distribute.cluster_spec"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local resolvers = require "tidemill.distribute.resolvers"
local strategies = require "tidemill.distribute.strategy"

local M = {
  partitioners = require "tidemill.distribute.partitioners",
  ClusterSpec = cluster_spec.new,
  SimpleClusterResolver = resolvers.SimpleClusterResolver,
  TFConfigClusterResolver = resolvers.TFConfigClusterResolver,
  resolver = resolvers.resolver,
  local_cluster = resolvers.local_cluster,
  ParameterServerStrategy = strategies.new,
  Server = require("tidemill.distribute.server").new,
}

--- The coordinator of a strategy: the second call gives the same one.
function M.ClusterCoordinator(strategy, opts)
  if not strategies.is(strategy) then
    errors.raise("invalid_argument", "ClusterCoordinator: Only `ParameterServerStrategy` is supported, got %s",
      type(strategy))
  end
  return strategy:_get_coordinator(opts)
end

--- A TCP port of this machine that nobody uses now.
function M.pick_unused_port() return core.unused_port() end

return M
