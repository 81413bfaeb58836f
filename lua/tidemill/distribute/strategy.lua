--- ParameterServerStrategy: variables made in its scope live on the ps of a cluster.

local colon = require "tidemill.lib.colon"
local core = require "tidemill.core"
local coordinators = require "tidemill.distribute.coordinator"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local per_worker = require "tidemill.distribute.per_worker"
local preemption = require "tidemill.distribute.preemption"
local placement = require "tidemill.distribute.placement"
local restoring = require "tidemill.distribute.restoring"
local scopes = require "tidemill.scope"
local tm = require "tidemill.lib.lazy"
local trace = require "tidemill.trace"

local unpack = table.unpack or unpack

local Strategy = { __name = "tm.ParameterServerStrategy" }

local function bad(fmt, ...) errors.raise("invalid_argument", "ParameterServerStrategy: " .. fmt, ...) end

-- --- checking the cluster, in TensorFlow's order ---

local allowed = { chief = true, worker = true, ps = true, evaluator = true }

local function check_jobs(spec)
  if spec:empty() then bad("Cluster spec must be non-empty") end
  for _, job in ipairs(spec:jobs()) do
    if not allowed[job] then bad("Disallowed task type found in cluster spec: '%s'", job) end
  end
  for _, job in ipairs { "chief", "evaluator" } do
    if spec._jobs[job] and spec:num_tasks(job) > 1 then bad("There must be at most one '%s' job.", job) end
  end
end

local function check_task(spec, kind, id)
  if kind == nil then return end
  if not allowed[kind] then bad("Unrecognized task_type: %s", tostring(kind)) end
  if not spec._jobs[kind] then
    if kind == "chief" or kind == "evaluator" then return end
    bad("`task_type` '%s' not found in cluster_spec", kind)
  end
  if id and id >= spec:num_tasks(kind) then
    bad("task_id %d exceeds the maximum id of '%s', %d", id, kind, spec:num_tasks(kind) - 1)
  end
end

local function check_cluster(resolver)
  if type(resolver) ~= "table" or type(resolver.cluster_spec) ~= "function" then
    bad("the first argument must be a cluster resolver, got %s", kinds.a(resolver))
  end
  if resolver.task_type == "evaluator" then
    errors.raise("failed_precondition", "ParameterServerStrategy: this process is an evaluator, which has no part in "
      .. 'the training cluster; look first: if resolver.task_type == "evaluator" then '
      .. "tm.distribute.SidecarEvaluator{...}:start() ... end")
  end
  local spec = resolver:cluster_spec()
  check_jobs(spec)
  check_task(spec, resolver.task_type, resolver.task_id)
  for _, job in ipairs { "ps", "worker" } do
    if not spec._jobs[job] or spec:num_tasks(job) == 0 then bad("There must be at least one %s.", job) end
  end
  if resolver.task_type == "worker" or resolver.task_type == "ps" then
    bad("this process is /job:%s/task:%s; a strategy is made by the chief. A %s runs `tidemill %s`, "
      .. "or Server{...}:join()", resolver.task_type, tostring(resolver.task_id), resolver.task_type,
      resolver.task_type)
  end
  return spec
end

-- --- construction ---

local known = {
  "variable_partitioner", "placement", "secret", "tls", "worker_timeout", "preemption_checkpoint",
  "on_ps_failure", mode = "async", staleness = 0, backup_workers = 0, replicas = 0,
  prefetch_reads = false, heartbeat_interval = 1, heartbeat_timeout = 10, chief_timeout = 600,
}

local function later(o)
  local defaults = { prefetch_reads = false }
  for name, value in pairs(defaults) do
    if o[name] ~= value then
      errors.raise("unimplemented", "ParameterServerStrategy: %s = %s is not available in this version",
        name, tostring(o[name]))
    end
  end
  for _, name in ipairs { "secret", "tls" } do
    if o[name] ~= nil then
      errors.raise("unimplemented", "ParameterServerStrategy: %s is not available in this version", name)
    end
  end
end

local modes = { "async", "sync", "ssp" }

--- What belongs to one mode only is refused in the others.
local function check_mode(o)
  if o.mode ~= "async" and o.mode ~= "sync" and o.mode ~= "ssp" then
    options.unknown("ParameterServerStrategy", "mode", o.mode, modes)
  end
  options.count("ParameterServerStrategy", "backup_workers", o.backup_workers, 0)
  options.count("ParameterServerStrategy", "staleness", o.staleness, 0)
  if o.backup_workers > 0 and o.mode ~= "sync" then
    bad('backup_workers = %d is of mode = "sync", the mode is "%s"', o.backup_workers, o.mode)
  end
  if o.staleness > 0 and o.mode ~= "ssp" then
    bad('staleness = %d is of mode = "ssp", the mode is "%s"', o.staleness, o.mode)
  end
end

local function check_ps_failure(policy)
  if policy == nil or policy == "restore" or policy == "restore_shards" then return end
  bad('on_ps_failure is "restore" or "restore_shards" (nil: raise), got %s', tostring(policy))
end

--- On a local cluster nothing can be lost alone, so copies do nothing.
local function check_replicas(n, spec, resolver)
  if n ~= 0 and n ~= 1 then bad("replicas must be 0 or 1, got %s", tostring(n)) end
  if n == 1 and not resolver.in_process and spec:num_tasks("ps") < 2 then
    bad("replicas = 1 keeps a copy of each ps on the next one: it needs two ps or more")
  end
end

--- Names of a job's tasks; there may be gaps.
local function task_names(spec, job)
  local names = {}
  for i, index in ipairs(spec:task_indices(job)) do names[i] = ("/job:%s/task:%d"):format(job, index) end
  return names
end

local function open_session(resolver, spec, o)
  local args = { heartbeat_interval = o.heartbeat_interval, heartbeat_timeout = o.heartbeat_timeout,
    chief_timeout = o.chief_timeout, worker_timeout = o.worker_timeout, on_ps_failure = o.on_ps_failure,
    replicas = o.replicas, mode = o.mode, staleness = o.staleness, backup_workers = o.backup_workers }
  if resolver.in_process then
    args.workers, args.ps = resolver.workers, resolver.ps
  else
    args.worker_tasks, args.ps_tasks = task_names(spec, "worker"), task_names(spec, "ps")
    args.worker_addresses, args.ps_addresses = spec:job_tasks("worker"), spec:job_tasks("ps")
    args.cluster_id = type(resolver.cluster_id) == "function" and resolver:cluster_id() or nil
  end
  return core.session(args)
end

--- Connect to the cluster of a resolver (or start a local one).
local function new(resolver, opts)
  local o = options.read("ParameterServerStrategy", opts, known)
  later(o)
  check_mode(o)
  check_ps_failure(o.on_ps_failure)
  if o.preemption_checkpoint then preemption.check_checkpoint(o.preemption_checkpoint) end
  for _, name in ipairs { "heartbeat_interval", "heartbeat_timeout", "chief_timeout" } do
    options.number("ParameterServerStrategy", name, o[name], 0)
  end
  if o.worker_timeout ~= nil then
    options.number("ParameterServerStrategy", "worker_timeout", o.worker_timeout, 0.001)
  end
  local p = o.variable_partitioner
  if p ~= nil and type(p) ~= "function" and not (getmetatable(p) or {}).__call then
    bad("variable_partitioner must be a partitioner or a function, got %s", kinds.a(p))
  end
  local spec = check_cluster(resolver)
  check_replicas(o.replicas, spec, resolver)
  if o.backup_workers >= spec:num_tasks "worker" then
    bad("backup_workers = %d of %d workers: a round would wait for nobody", o.backup_workers,
      spec:num_tasks "worker")
  end
  local self = setmetatable({
    _options = o, _placement = placement.resolve(o.placement), _held = {}, _resolver = resolver,
    num_replicas_in_sync = 1, num_workers = spec:num_tasks("worker"), num_ps = spec:num_tasks("ps"),
  }, Strategy)
  for i = 1, self.num_ps do self._held[i] = 0 end
  self._ps_tasks, self._worker_tasks = task_names(spec, "ps"), task_names(spec, "worker")
  self._session = open_session(resolver, spec, o)
  self._workers = {} -- of each worker: its task, its address; removed
  for i, task in ipairs(self._worker_tasks) do
    self._workers[i] = { task = task, address = spec:job_tasks("worker")[i] }
  end
  if o.on_ps_failure then restoring.watch(self, o.on_ps_failure) end
  if o.preemption_checkpoint then
    self._variables = setmetatable({}, { __mode = "v" })
    self._unwatch = preemption.checkpoint(self, o.preemption_checkpoint)
  end
  return self
end

-- --- variables ---

--- How many shards the partitioner wants of the first axis.
local function shard_count(self, shape, dtype)
  local p = self._options.variable_partitioner
  if not p or #shape == 0 then return 1 end
  local counts = p({ unpack(shape) }, dtype, 1)
  local fine = type(counts) == "table" and type(counts[1]) == "number" and counts[1] >= 1
    and counts[1] % 1 == 0
  for i = 2, fine and #counts or 0 do fine = fine and counts[i] == 1 end
  if not fine then
    local text = type(counts) == "table" and "{" .. table.concat(counts, ", ") .. "}" or tostring(counts)
    bad("variable_partitioner must return a list whose elements are 1 besides the first element "
      .. "(non-zero), got: %s", text)
  end
  return math.min(counts[1], math.max(1, shape[1]))
end

local function place(self, shape, dtype)
  local at = self._placement(shape, dtype, self._held)
  if type(at) ~= "number" or at < 1 or at > self.num_ps or at % 1 ~= 0 then
    bad("placement must give the index of a ps, 1 to %d, got %s", self.num_ps, tostring(at))
  end
  self._held[at] = self._held[at] + placement.bytes(shape, dtype)
  return at - 1
end

--- Shards {ps, offset, rows} of a variable: the first dim % n have one row more.
local function layout(self, shape, dtype, n)
  if n == 1 then return { { place(self, shape, dtype), 0, shape[1] or 1 } } end
  local base, extra = math.floor(shape[1] / n), shape[1] % n
  local shards, offset = {}, 0
  for k = 1, n do
    local rows = base + (k <= extra and 1 or 0)
    local piece = { rows, unpack(shape, 2) }
    shards[k] = { place(self, piece, dtype), offset, rows }
    offset = offset + rows
  end
  return shards
end

--- Values of a user's init function, shard by shard, in pieces of at most 64 MB.
local function pieces(fn, shape, dtype, shards)
  local list = {}
  for k, s in ipairs(shards) do
    local piece = { s[3], unpack(shape, 2) }
    local t = trace.eagerly(fn, piece, dtype, s[2], shape)
    list[k] = tm.cast(tm.tensor(t), dtype)
  end
  return list
end

--- Called by tm.Variable in this scope: gives uid, handle and shards with devices.
function Strategy:create_variable(spec)
  local shape, dtype, home = spec.shape, spec.dtype, spec.colocate_with or self._colocate
  local shards
  if home then
    shards = { { home.shards[1].ps, 0, shape[1] or 1 } }
  else
    shards = layout(self, shape, dtype, spec.partition == false and 1 or shard_count(self, shape, dtype))
  end
  local init = spec.init
  if spec.fn then init = pieces(spec.fn, shape, dtype, shards) end
  local session = self._session
  local uid, handle = restoring.call(self, session.create, session, spec.name or "", dtype, shape, shards, init,
    spec.user ~= false)
  local list = {}
  for k, s in ipairs(shards) do
    list[k] = { ps = s[1], device = self._ps_tasks[s[1] + 1], offset = s[2], rows = s[3] }
  end
  return { uid = uid, handle = handle, shards = list }
end

--- Called with each variable that was made in this scope.
function Strategy:note(v)
  if self._variables then self._variables[#self._variables + 1] = v end
end

-- --- scope and replica methods ---

--- Run fn with this strategy's scope open; returns what fn returns.
function Strategy:scope(fn, ...)
  local open = scopes.current()
  if open and open ~= self then
    errors.raise("failed_precondition", "strategy:scope inside the scope of another strategy: end that one first")
  end
  return scopes.with(self, fn, ...)
end

--- Run fn; variables made in it go where v is, unpartitioned.
function Strategy:colocate_with(v, fn, ...)
  local home = type(v) == "table" and v.shards and v.shards[1]
  if not home or home.ps < 0 then
    bad("colocate_with takes a variable that lives on a ps, got %s", home and "one of the chief alone" or kinds.a(v))
  end
  local before = self._colocate
  self._colocate = v
  local r = nest.pack(pcall(self.scope, self, fn, ...))
  self._colocate = before
  if not r[1] then error(r[2], 0) end
  return unpack(r, 2, r.n)
end

--- One replica a worker: fn(args...) itself.
function Strategy:run(fn, args) return fn(unpack(args or {})) end

--- Reduce a value over replicas (one) and, with an axis, over that axis.
function Strategy:reduce(how, value, axis)
  if how ~= "sum" and how ~= "mean" then bad('reduce takes "sum" or "mean", got %s', tostring(how)) end
  if axis == nil then return value end
  return how == "sum" and tm.reduce_sum(value, axis) or tm.reduce_mean(value, axis)
end

--- Values of the replicas joined along an axis: the value itself.
function Strategy:gather(value) return value end

--- A dataset that fn(input_context) describes.
function Strategy:distribute_datasets_from_function(fn)
  return fn { num_input_pipelines = 1, input_pipeline_id = 0, num_replicas_in_sync = 1 }
end

--- A dataset for the cluster: the dataset itself, every worker reads all of it.
function Strategy:experimental_distribute_dataset(ds) return ds end

--- Its coordinator: one a strategy.
function Strategy:_get_coordinator(opts)
  if self._closed then errors.raise("failed_precondition", "ClusterCoordinator: this strategy is closed") end
  if not self._coordinator then
    self._coordinator = coordinators.new(self, opts)
    per_worker.flush(self, self._coordinator)
  end
  return self._coordinator
end

--- End the connection (and a local cluster).
function Strategy:close()
  self._closed = true
  if self._unwatch then self._unwatch() end
  if self._coordinator then self._coordinator:_close() end
  self._session:close()
  restoring.forget(self)
end
Strategy.__close = Strategy.close

function Strategy:__tostring()
  return ("ParameterServerStrategy(%d workers, %d ps)"):format(self.num_workers, self.num_ps)
end

Strategy.__index = Strategy
colon.check(Strategy, Strategy)

return { new = new, is = function(x) return getmetatable(x) == Strategy end }
