--- tm.distribute: clusters, strategies, coordinators.

local cluster_spec = require "tidemill.distribute.cluster_spec"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local preemption = require "tidemill.distribute.preemption"
local kinds = require "tidemill.lib.kinds"
local trace = require "tidemill.trace"
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
  PreemptionWatcher = preemption.new,
  ShardedVariable = require("tidemill.distribute.sharded").new,
  PerWorkerVariable = require("tidemill.distribute.per_worker").variable,
  SidecarEvaluator = require("tidemill.distribute.sidecar").new,
  Server = require("tidemill.distribute.server").new,
}

--- The coordinator of a strategy: the second call gives the same one.
function M.ClusterCoordinator(strategy, opts)
  if not strategies.is(strategy) then
    errors.raise("invalid_argument", "ClusterCoordinator: Only `ParameterServerStrategy` is supported, got %s",
      kinds.a(strategy))
  end
  return strategy:_get_coordinator(opts)
end

--- Stands for the index of the worker in a dataset function, where nothing is traced.
local WorkerIndex = { __name = "tm.WorkerIndex", __tm_worker_index = true, dtype = "int64", shape = {} }
WorkerIndex.__index = WorkerIndex
function WorkerIndex.__tm_tensor()
  if not core.tracing() then
    local e = errors.new("failed_precondition", "current_worker_index() is known on the workers only: use it in "
      .. "shard, or inside of map, filter and the like")
    e.wants_worker = true -- a resource function is described again, in a trace
    error(e, 0)
  end
  return core.ops.worker_index()
end
for _, name in ipairs { "add", "sub", "mul", "div", "mod", "pow" } do
  WorkerIndex["__" .. name] = function(a, b) return core.ops[name](a, b) end
end

--- Index of the worker, from 0, an int64 scalar: in scheduled functions, dataset functions
--- and functions of per-worker resources.
function M.current_worker_index()
  if core.tracing() then return trace.note_worker(core.ops.worker_index()) end
  if trace.describing() then return setmetatable({}, WorkerIndex) end
  return errors.raise("failed_precondition", "current_worker_index() is for scheduled functions and dataset "
    .. "functions: there is no worker here")
end

--- A TCP port of this machine that nobody uses now.
function M.pick_unused_port() return core.unused_port() end

return M
