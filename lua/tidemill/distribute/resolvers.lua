--- Cluster resolvers: who am I, and who else is there.
--- A resolver has task_type, task_id, rpc_layer (assignable), cluster_spec() and
--- master(type, id).  `resolver{workers, ps}` gives what the environment names, else a
--- cluster inside this process.

local cluster_spec = require "tidemill.distribute.cluster_spec"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"

local M = {}

local function bad(fmt, ...) errors.raise("invalid_argument", fmt, ...) end

-- --- what all share ---

local Resolver = {}

--- "host:port" of a task (its own by default), with "rpc_layer://" where one is set;
--- "" for an empty cluster.
function Resolver:master(task_type, task_id, rpc_layer)
  local spec = self:cluster_spec()
  task_type, task_id = task_type or self.task_type, task_id or self.task_id
  if self._master and self._master ~= "" and not (task_type and task_id) then return self._master end
  if spec:empty() or not task_type or not task_id then return self._master or "" end
  local address, layer = spec:task_address(task_type, task_id), rpc_layer or self.rpc_layer
  return layer and layer ~= "" and (layer .. "://" .. address) or address
end

local function class(name, methods)
  for k, v in pairs(Resolver) do methods[k] = methods[k] or v end
  methods.__index = methods.__index or methods
  methods.__name = "tm." .. name
  return methods
end

-- --- SimpleClusterResolver ---

local Simple = class("SimpleClusterResolver", {
  cluster_spec = function(self) return self._spec end,
})

--- A resolver of a spec that is known.
function M.SimpleClusterResolver(spec, opts)
  opts = options.read("SimpleClusterResolver", opts,
    { "task_type", "task_id", "rpc_layer", master = "", environment = "" })
  if not cluster_spec.is(spec) then
    bad("SimpleClusterResolver: the first argument must be a ClusterSpec, got %s", kinds.a(spec))
  end
  if type(opts.master) ~= "string" then bad("SimpleClusterResolver: master must be a string") end
  return setmetatable({
    _spec = spec, _master = opts.master, task_type = opts.task_type, task_id = opts.task_id,
    rpc_layer = opts.rpc_layer, environment = opts.environment,
  }, Simple)
end

-- --- TFConfigClusterResolver ---

--- Parse the JSON of TM_CONFIG or TF_CONFIG.  `name` is the variable, for errors.
local function parse_config(name, text)
  if text == nil or text == "" then return {} end
  local config, why = core.json_decode(text)
  if config == nil then bad("%s is not valid JSON: %s", name, why) end
  if type(config) ~= "table" then bad("%s must be a JSON object", name) end
  return config
end

local function config_task(name, config)
  local task = config.task or {}
  if type(task) ~= "table" then bad("%s: \"task\" must be an object with type and index", name) end
  local index = task.index
  if index ~= nil then
    local n = tonumber(index)
    if not n or n % 1 ~= 0 or n < 0 then
      bad("%s: task.index must be a whole number from 0, got %s", name, tostring(index))
    end
    index = math.floor(n)
  end
  return task.type and tostring(task.type), index
end

local TFConfig = {
  cluster_spec = function(self)
    local name, config = self:_config()
    if config.cluster ~= nil and type(config.cluster) ~= "table" then
      bad("%s: \"cluster\" must be an object of jobs", name)
    end
    local ok, spec = pcall(cluster_spec.new, config.cluster or {})
    if not ok then bad("%s: %s", name, errors.message(spec)) end
    return spec
  end,
  _config = function(self)
    local name = self._name
    return name, parse_config(name, os.getenv(name))
  end,
  --- Name of the cluster, for tasks to find each other; nil: a hash of it.
  cluster_id = function(self)
    local _, config = self:_config()
    return config.cluster_id
  end,
}
class("TFConfigClusterResolver", TFConfig)
local config_fields = {
  task_type = function(self) return (config_task(self:_config())) end,
  task_id = function(self) return (select(2, config_task(self:_config()))) end,
  rpc_layer = function(self) return (select(2, self:_config())).rpc_layer end,
  _master = function(self) return (select(2, self:_config())).session_master end,
}
TFConfig.__index = function(self, key)
  local field = config_fields[key]
  if field then return field(self) end
  return TFConfig[key]
end

local function from_variable(name, opts)
  local self = options.read("TFConfigClusterResolver", opts,
    { "task_type", "task_id", "rpc_layer", "environment" })
  self._name = name
  return setmetatable(self, TFConfig)
end

--- A resolver of the environment variable TF_CONFIG; fields given, or assigned later, win.
function M.TFConfigClusterResolver(opts) return from_variable("TF_CONFIG", opts) end

-- --- a cluster in this process ---

local Local = class("LocalClusterResolver", {
  cluster_spec = function(self)
    local spec = { worker = {}, ps = {} }
    for i = 1, self.workers do spec.worker[i] = "local:worker" .. i - 1 end
    for i = 1, self.ps do spec.ps[i] = "local:ps" .. i - 1 end
    return cluster_spec.new(spec)
  end,
})

local TASKS_MAX = 1024 -- each is a thread or more

local function sizes(where, opts)
  opts = options.read(where, opts, { "workers", "ps" })
  options.count(where, "workers", options.need(where, opts, "workers"), 1)
  options.count(where, "ps", options.need(where, opts, "ps"), 1)
  for _, name in ipairs { "workers", "ps" } do options.number(where, name, opts[name], 1, TASKS_MAX) end
  return opts
end

--- A cluster of so many workers and ps inside this process.
function M.local_cluster(opts)
  opts = sizes("local_cluster", opts)
  return setmetatable({ workers = opts.workers, ps = opts.ps, task_type = "chief", task_id = 0,
    in_process = true }, Local)
end

--- The group of evaluators that this one is of, by the environment, and whether a launcher
--- made it; nil: it is alone.
function M.evaluators()
  for _, name in ipairs { "TM_CONFIG", "TF_CONFIG" } do
    local text = os.getenv(name)
    if text and text ~= "" then
      local config = parse_config(name, text)
      if config_task(name, config) ~= "evaluator" then return nil end
      local id = config.cluster_id and tostring(config.cluster_id)
      if config.evaluators then return id or "launch-", true end
      local job = type(config.cluster) == "table" and config.cluster.evaluator
      return type(job) == "table" and #job > 1 and (id or "cluster") or nil, false
    end
  end
end

--- The cluster that TM_CONFIG or TF_CONFIG names, else a local one of this size.
function M.resolver(opts)
  opts = sizes("resolver", opts)
  for _, name in ipairs { "TM_CONFIG", "TF_CONFIG" } do
    local text = os.getenv(name)
    if text and text ~= "" then
      local r = from_variable(name)
      local spec = r:cluster_spec()
      if r.task_type == "evaluator" then return r end
      local function count(job) return spec._jobs[job] and spec:num_tasks(job) or 0 end
      local workers, ps = count "worker", count "ps"
      if workers ~= opts.workers or ps ~= opts.ps then
        core.log("warn", ("%s names %d workers and %d ps, the script asks for %d and %d: the environment wins")
          :format(name, workers, ps, opts.workers, opts.ps))
      end
      return r
    end
  end
  return M.local_cluster(opts)
end

return M
