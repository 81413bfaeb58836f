--- What lives on each worker: iterators, variables, structures of them that a function
--- makes.
---
--- A resource function runs here, once, and what it makes is described to the workers:
--- iterators by their dataset, variables by a graph of their first values, tables travel
--- inside of the functions that use them.  Where it asks for the worker's index it runs
--- again in a trace, so that first values may depend on it.
---
--- Invariants
---   (1) A variable of workers has a copy in this process under the same uid, so that its
---       type is known to traces; its value here is nobody else's.
---   (2) What lives on workers is dropped there when its handle is collected here.

local core = require "tidemill.core"
local dealt = require "tidemill.distribute.dealt"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local scopes = require "tidemill.scope"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

-- --- iterators ---

local PerWorkerIterator = { __name = "tm.PerWorkerIterator", __tm_per_worker = true }
PerWorkerIterator.__index = PerWorkerIterator

local PerWorkerDataset = { __name = "tm.PerWorkerDataset" }
PerWorkerDataset.__index = PerWorkerDataset

local function iterator_of(coordinator, ds, is_dealt)
  local uid, handle = coordinator:_open():add_iterator(ds._handle, tm.data.resumes(ds), is_dealt)
  local self = setmetatable({ _uid = uid, _handle = handle, _coordinator = coordinator, _dataset = ds,
    _dealt = is_dealt, element_spec = ds.element_spec }, PerWorkerIterator)
  if is_dealt then dealt.note(self) end
  return self
end

--- New iterators on all workers.
function PerWorkerDataset:iterator()
  if core.tracing() then
    errors.raise("failed_precondition", "a per-worker iterator is made outside of traced functions and "
      .. "passed as an argument")
  end
  return iterator_of(self._coordinator, self._dataset, self._dealt)
end

function PerWorkerIterator:next()
  errors.raise("failed_precondition", "a per-worker iterator lives on the workers: pass it to a scheduled "
    .. "function and call next there")
end

local function outside(where)
  if core.tracing() then
    errors.raise("failed_precondition", "%s: inside a traced function it would be called once, by the trace; call it "
      .. "outside", where)
  end
end

local STATE = "tidemill iterators 1 seed=%s at=%s of %s"
local PARTS = "^tidemill iterators 1 seed=(%x+) at=([%d:,]*) of (.*)$"

--- Where it is on each worker, behind the last closure that the worker completed, as a
--- string to keep.
---@return string
function PerWorkerIterator:state()
  outside "state"
  if self._dealt then return dealt.state(self) end
  local seed, given, failed = self._coordinator:_open():places(self._uid)
  local at = {}
  for i = 1, #given do at[i] = ("%d:%d"):format(given[i], failed[i]) end
  return STATE:format(seed, table.concat(at, ","), core.data.marks(self._dataset._handle))
end

local function parse(state)
  local seed, at, marks
  if type(state) == "string" then seed, at, marks = state:match(PARTS) end
  if not seed then errors.raise("invalid_argument", "this is no state of a per-worker iterator") end
  local given, failed = {}, {}
  for g, f in at:gmatch "(%d+):(%d+)" do given[#given + 1], failed[#failed + 1] = tonumber(g), tonumber(f) end
  return seed, given, failed, marks
end

--- Go on from a state, while nothing is queued or runs.  A worker that the state does not
--- know starts at the first element; a place of a worker that is not there is left out.
function PerWorkerIterator:restore(state)
  outside "restore"
  if self._dealt then return dealt.restore(self, state) end
  local seed, given, failed, marks = parse(state)
  core.data.check_marks(self._dataset._handle, marks)
  local handle = self._coordinator:_open()
  local now = #select(2, handle:places(self._uid))
  if now ~= #given then
    core.log("warn", ("an iterator was saved with %d workers, here are %d: %s"):format(#given, now,
      now > #given and "the new ones start at the first element"
      or "the places of the others are left out, and so is what they had not read"))
  end
  handle:seek(self._uid, seed, given, failed)
  return self
end

--- As `state`, for the checkpoint whose variables were written last: of their moment.
function PerWorkerIterator:_saved_state() return self._dealt and dealt.state(self, true) or self:state() end

--- It is used no more: workers let go of it and of its data now.
function PerWorkerIterator:_drop() self._coordinator:_open():drop(self._handle) end

--- Of exactly-once visitation: the next pass, while nothing that takes from it is queued
--- or runs.
function PerWorkerIterator:_start_pass() self._coordinator:_open():start_pass(dealt.uid(self, "_start_pass")) end

--- Of exactly-once visitation: { pass, dealt, done, left, endless, ended }, numbers of
--- elements in this pass; left (for functions to come) is nil while it is not known.
function PerWorkerIterator:_progress() return self._coordinator:_open():progress(dealt.uid(self, "_progress")) end

--- A dataset on every worker: a dataset, or a function that describes one.
function M.dataset(coordinator, source, is_dealt)
  local ds = source
  if type(source) == "function" then ds = tm.data.describe(source) end
  if not tm.data.is_dataset(ds) then
    errors.raise("invalid_argument", "create_per_worker_dataset takes a dataset or a function that returns "
      .. "one, got %s", kinds.a(ds))
  end
  return setmetatable({ _coordinator = coordinator, _dataset = ds, _dealt = is_dealt, element_spec = ds.element_spec },
    PerWorkerDataset)
end

--- The uid of one that belongs to this coordinator; nil: x is none.
function M.uid(coordinator, x)
  if getmetatable(x) ~= PerWorkerIterator then return nil end
  if x._coordinator ~= coordinator then
    errors.raise("invalid_argument", "this iterator belongs to another coordinator: make it with "
      .. "create_per_worker_dataset of the one that schedules")
  end
  return x._uid
end

-- --- variables ---

--- A scope whose variables are made on each worker.
local function scope_of(made)
  local scope = { takes_symbols = true }

  --- The first value: a tensor, or a symbol of the trace.
  local function first_value(spec, made_here)
    if spec.fn then return core.as_value(spec.fn(spec.shape, spec.dtype, nil, spec.shape), spec.dtype) end
    if core.is_tensor(spec.init) then return spec.init end
    return trace.eagerly(core.ops.read_variable, { uid = made_here, dtype = spec.dtype, shape = spec.shape })
  end

  function scope.create_variable(_, spec)
    local known = not spec.fn and not (core.is_tensor(spec.init) and spec.init.symbolic)
    local init = known and spec.init
    for _, n in ipairs(spec.shape) do
      if n < 0 then errors.raise("invalid_argument", "tm.Variable: the shape of a worker's variable must be known") end
    end
    if not known then init = trace.eagerly(tm.zeros, spec.shape, spec.dtype) end
    local uid, handle = core.variable(spec.name, spec.dtype, spec.shape, init)
    local keep = { handle }
    made[#made + 1] = { uid = uid, value = first_value(spec, uid), keep = keep }
    return { uid = uid, handle = keep,
      shards = { { ps = -1, device = "/job:worker", offset = 0, rows = spec.shape[1] or 1 } } }
  end

  return scope
end

--- Describe once more, in a trace: the worker's index is a symbol there.
local function describe_traced(fn)
  local made, result
  local graph = trace.graph("resource", function()
    made = {}
    result = trace.describing_as(true, scopes.with, scope_of(made), fn)
    local list = {}
    for i, v in ipairs(made) do list[i] = v.value end
    return list
  end, { name = "resource", first = true })
  return result, made, graph
end

--- What fn makes: its result, the variables, the graph of their first values.
local function describe(fn)
  local made = {}
  local ok, result = pcall(trace.describe, scopes.with, scope_of(made), fn)
  if not ok then
    if not (errors.is_error(result) and result.wants_worker) then error(result, 0) end
    return describe_traced(fn)
  end
  local graph = trace.graph("resource", function()
    local list = {}
    for i, v in ipairs(made) do list[i] = v.value end
    return list
  end, {})
  return result, made, graph
end

--- Tell the coordinator of the variables; `keeps` says who keeps them on the workers.
local function send_variables(coordinator, made, graph)
  if #made == 0 then return nil end
  local uids = {}
  for i, v in ipairs(made) do uids[i] = v.uid end
  return coordinator:_open():add_locals(uids, core.graph_optimize(graph))
end

-- --- resources ---

---@class tm.PerWorkerResource
local Resource = { __name = "tm.PerWorkerResource" }
Resource.__index = Resource

local function leaf(coordinator, x, path)
  if values.is_variable(x) then
    if x.device == "/job:worker" then return x end
    errors.raise("invalid_argument", "a resource function returns what it made; result%s is a variable made elsewhere",
      path)
  end
  if type(x) == "table" and (getmetatable(x) or {}).__tm_iterator then return iterator_of(coordinator, x._dataset) end
  if tm.data.is_dataset(x) then
    errors.raise("invalid_argument", "result%s of the resource function is a dataset: return ds:iterator()", path)
  end
  if core.is_tensor(x) and x.symbolic then
    errors.raise("invalid_argument", "result%s of the resource function depends on the worker: return tm.Variable(x)",
      path)
  end
  if type(x) == "function" or type(x) == "thread" then
    errors.raise("invalid_argument", "result%s of the resource function is a %s", path, kinds.of(x))
  end
  return x
end

local function build(self, coordinator, fn)
  local result, made, graph = describe(fn)
  if result == nil then errors.raise("invalid_argument", "the resource function returns nothing") end
  self._handle = send_variables(coordinator, made, graph)
  self._struct = nest.map_path(function(x, path) return leaf(coordinator, x, path) end, result, "")
end

--- What fn makes, on each worker.  A failure is told to whom uses it.
function M.resource(coordinator, fn)
  if type(fn) ~= "function" and not (getmetatable(fn) or {}).__call then
    errors.raise("invalid_argument", "create_per_worker_resource takes a function, got %s", kinds.a(fn))
  end
  if core.tracing() then
    errors.raise("failed_precondition", "create_per_worker_resource is called outside of traced functions")
  end
  local self = setmetatable({ _coordinator = coordinator }, Resource)
  local ok, e = pcall(build, self, coordinator, fn)
  if not ok then self._error = errors.wrap(e) end
  return self
end

function Resource:__tostring() return "tm.PerWorkerResource" end

local function has_resource(x, depth)
  if getmetatable(x) == Resource then return true end
  if not nest.is_nested(x) then return false end
  depth = nest.deeper(depth)
  for _, v in pairs(x) do
    if has_resource(v, depth) then return true end
  end
  return false
end

local function expand(coordinator, x, path)
  if getmetatable(x) == Resource then
    local e = x._error
    if e then
      errors.raise(e.code, "argument%s: this per-worker resource could not be built: %s", path, e.message)
    end
    if x._coordinator ~= coordinator then
      errors.raise("invalid_argument", "argument%s: this per-worker resource belongs to another coordinator", path)
    end
    return x._struct
  end
  if not nest.is_nested(x) then return x end
  local out = {}
  for k, v in pairs(x) do out[k] = expand(coordinator, v, nest.path(path, k)) end
  return out
end

--- Arguments with what resources are made of in their places.
function M.expand(coordinator, args)
  if not has_resource(args) then return args end
  return expand(coordinator, args, "")
end

-- --- PerWorkerVariable ---

local function read_all(v, strategy, opts)
  local coordinator = strategy:_get_coordinator()
  v._read = v._read or tm.func(function() return v:read() end, { name = "read_all" })
  local list = {}
  for _, i in ipairs(coordinator:_workers()) do list[#list + 1] = coordinator:_schedule_on(i - 1, v._read) end
  for i, x in ipairs(list) do list[i] = x:get(opts) end
  return list
end

local function check(o)
  if o.trainable then
    errors.raise("invalid_argument", "PerWorkerVariable: trainable = true: a variable of each worker is not trained")
  end
  if core.tracing() then
    errors.raise("failed_precondition", "PerWorkerVariable is made outside of traced functions")
  end
  local strategy = scopes.current()
  if not strategy or not strategy._get_coordinator then
    errors.raise("failed_precondition", "PerWorkerVariable is made in strategy:scope")
  end
  return strategy
end

--- PerWorkerVariable(initial, { name, dtype, shape }): one copy a worker, made there when
--- it is first used, and anew when the worker comes back; v:read_all() lists them.
function M.variable(initial, given)
  local o = options.read("PerWorkerVariable", given, { "name", "dtype", "shape", "trainable" })
  local strategy = check(o)
  local result, made, graph = describe(function()
    return tm.Variable(initial, { name = o.name or "PerWorkerVariable", dtype = o.dtype, shape = o.shape,
      trainable = false })
  end)
  local function send(coordinator) made[1].keep[2] = send_variables(coordinator, made, graph) end
  if strategy._coordinator then
    send(strategy._coordinator)
  else
    strategy._late = strategy._late or {}
    table.insert(strategy._late, send)
  end
  rawset(result, "read_all", function(v, opts) return read_all(v, strategy, opts) end)
  return result
end

--- A strategy has its coordinator now: tell it of the variables made before.
function M.flush(strategy, coordinator)
  local late = strategy._late or {}
  strategy._late = nil
  for _, send in ipairs(late) do send(coordinator) end
end

return M
