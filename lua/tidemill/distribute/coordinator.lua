--- ClusterCoordinator: functions are queued and run on whichever worker has room.

local colon = require "tidemill.lib.colon"
local core = require "tidemill.core"
local dealt = require "tidemill.distribute.dealt"
local errors = require "tidemill.errors"
local func = require "tidemill.func"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local per_worker = require "tidemill.distribute.per_worker"
local restoring = require "tidemill.distribute.restoring"
local tm = require "tidemill.lib.lazy"
local wait = require "tidemill.distribute.wait"

local unpack = table.unpack or unpack

-- --- remote values ---

local RemoteValue = { __name = "tm.RemoteValue" }
RemoteValue.__index = RemoteValue

--- With mode = "sync" a function is done when its round ends: who asks for it waits for
--- it, so the round ends with what it has if nobody brings more.
local function is_done(self)
  local done = self._handle:done()
  if not done and self._rounds then self._rounds:await(self._handle) end
  return done
end

local function outputs(self, timeout)
  is_done(self)
  local list = wait.until_true(tm.time, timeout, function(slice) return self._handle:wait(slice) end)
  if not list then
    errors.raise("deadline_exceeded", "fetch: closure %d has no result after %g s", self._handle:step(), timeout)
  end
  return list
end

local function timeout_of(where, opts)
  local o = options.read(where, opts, { "timeout" })
  if o.timeout ~= nil then options.number(where, "timeout", o.timeout, 0) end
  return o.timeout
end

local function get(self, where, opts)
  local list = outputs(self, timeout_of(where, opts))
  if list == "end_of_data" then return nil, list end
  return self._out.rebuild(list)
end

--- Wait for the result, as tensors; nil, "end_of_data": the function found no data left.
function RemoteValue:get(opts) return get(self, "get", opts) end

local function plain(x)
  if type(x) == "table" and getmetatable(x) == nil then return nest.map(plain, x) end
  if core.is_tensor(x) and x.rank == 0 then return x:item() end
  return x
end

--- Wait for the result; scalars become Lua values.
function RemoteValue:fetch(opts)
  local r = nest.pack(get(self, "fetch", opts))
  for i = 1, r.n do r[i] = plain(r[i]) end
  return unpack(r, 1, r.n)
end

--- True once it has a value or an error.
function RemoteValue:done() return is_done(self) end

function RemoteValue:__tostring()
  return ("RemoteValue(closure %d%s)"):format(self._handle:step(), self:done() and "" or ", not done")
end

-- --- the coordinator ---

---@class tm.ClusterCoordinator
---@field checkpoint_manager tm.train.CheckpointManager?  what a lost ps is restored from
local Coordinator = { __name = "tm.ClusterCoordinator" }

function Coordinator.__index(self, key)
  if key == "checkpoint_manager" then return rawget(self, "_manager") end
  return Coordinator[key]
end

function Coordinator.__newindex(self, key, value)
  if key ~= "checkpoint_manager" then return rawset(self, key, value) end
  if value ~= nil and (type(value) ~= "table" or not tm.train.is_manager(value)) then
    errors.raise("invalid_argument", "coordinator.checkpoint_manager is a tm.train.CheckpointManager, got %s",
      kinds.a(value))
  end
  if value then
    value:_count_by(function()
      local session = self._handle and self.strategy._session
      return session and { [session:vars()] = session:moment() }
    end)
  end
  rawset(self, "_manager", value)
end

local function new(strategy, opts)
  local o = options.read("ClusterCoordinator", opts, { queue_size = 262144 })
  options.count("ClusterCoordinator", "queue_size", o.queue_size, 1)
  return setmetatable({
    strategy = strategy,
    _handle = rawget(strategy, "coordinator_handle") or strategy._session:coordinator(o.queue_size, strategy),
    _functions = setmetatable({}, { __mode = "k" }), _checked = setmetatable({}, { __mode = "k" }),
    _detach = restoring.attend(strategy), _sync = strategy._options.mode == "sync",
  }, Coordinator)
end

--- Its handle; whoever attends is called first.
function Coordinator:_open()
  wait.heed()
  if not self._handle then errors.raise("failed_precondition", "this coordinator is closed") end
  return self._handle
end

local function as_function(self, fn)
  if tm.is_function(fn) then return fn end
  if type(fn) ~= "function" and not (getmetatable(fn) or {}).__call then
    errors.raise("invalid_argument", "schedule takes a function, got %s", kinds.a(fn))
  end
  local f = self._functions[fn]
  if not f then
    f = tm.func(fn)
    self._functions[fn] = f
  end
  return f
end

--- Remote values among the arguments become stand-ins of their results' types: the
--- function waits for the values, its caller does not.  A function without results gives
--- nil; that it is to be waited for goes to `after`.
local function stand_in(args, path, after)
  if getmetatable(args) == RemoteValue then
    if args._out.results.n == 0 then
      after[#after + 1] = { args._handle, 1, path }
      return nil
    end
    local r = nest.map(function(slot)
      local p = func.placeholder(args._out.types[slot.at])
      p.remote = { args._handle, slot.at, path }
      return p
    end, args._out.results)
    if r.n == 1 then return r[1] end
    r.n = nil
    return r
  end
  if type(args) ~= "table" or getmetatable(args) ~= nil then return args end
  local out = {}
  for k, v in pairs(args) do out[k] = stand_in(v, nest.path(path, k), after) end
  return out
end

local function has_remote(args, depth)
  if type(args) ~= "table" then return false end
  if getmetatable(args) == RemoteValue then return true end
  if getmetatable(args) ~= nil then return false end
  depth = nest.deeper(depth)
  for _, v in pairs(args) do
    if has_remote(v, depth) then return true end
  end
  return false
end

local function flat_argument(self, x)
  local uid = per_worker.uid(self, x)
  if uid then return uid end
  if type(x) == "table" and (getmetatable(x) or {}).__tm_iterator then
    errors.raise("invalid_argument", "this iterator lives in the chief's process: make one on the workers with "
      .. "coordinator:create_per_worker_dataset(ds):iterator()")
  end
  if func.is_placeholder(x) then return x.remote end
  return x
end

--- Queue fn(args...), for the worker `only` (from 0) where it is given: its handle, and
--- what its results are.
local function schedule(self, fn, args, only)
  local handle = self:_open()
  if core.tracing() then
    errors.raise("failed_precondition", "schedule is called inside a traced function: workers schedule nothing; "
      .. "call the function itself, it becomes a part of this one")
  end
  if args ~= nil and (type(args) ~= "table" or getmetatable(args) ~= nil) then
    errors.raise("invalid_argument", "schedule takes the arguments as a list: schedule(fn, { a, b }), got %s",
      kinds.a(args))
  end
  args = args or {}
  local n, after = args.n or #args, nil
  if has_remote(args) then
    after = {}
    args = stand_in(args, "", after)
    args.n = n
  end
  args = per_worker.expand(self, args)
  local f = as_function(self, fn)
  local trace, flat = self.strategy:scope(function() return f:_concrete(args) end)
  if not self._checked[trace.graph] then
    handle:check(trace.graph)
    self._checked[trace.graph] = true
  end
  for i = 1, #flat do flat[i] = flat_argument(self, flat[i]) end
  local value = handle:schedule(trace.graph, flat, only, after)
  while not value do
    wait.until_true(tm.time, nil, function(slice) return handle:wait_room(slice) end)
    value = handle:schedule(trace.graph, flat, only, after)
  end
  return value, trace.out
end

local function remote_value(self, handle, out)
  local r = setmetatable({ _handle = handle, _out = out }, RemoteValue)
  if self._sync then r._rounds = self._handle end
  return r
end

--- Queue fn(args...) for some worker; returns a RemoteValue at once.
function Coordinator:schedule(fn, args) return remote_value(self, schedule(self, fn, args)) end

--- The same for one worker, by its index from 0.
function Coordinator:_schedule_on(index, fn, args) return remote_value(self, schedule(self, fn, args, index)) end

--- The same where nobody wants the result.
function Coordinator:_schedule_only(fn, args) schedule(self, fn, args):forget() end

--- Schedule fn(args...) until the data of the exactly-once iterators among the arguments
--- are used up, and join; a new pass of those that were at their end already.  The number
--- of functions that had data.
---@return integer
function Coordinator:run_epoch(fn, args) return dealt.run_epoch(self, fn, args) end

--- Places of the workers that were not removed.
function Coordinator:_workers()
  local list = {}
  for i, w in ipairs(self:_open():stats().workers) do
    if w.state ~= "removed" then list[#list + 1] = i end
  end
  return list
end

--- Wait until everything scheduled is done; raises the first error.
function Coordinator:join(opts)
  local handle, timeout = self:_open(), timeout_of("join", opts)
  local ok = wait.until_true(tm.time, timeout, function(slice) return handle:join(slice) end)
  if not ok then
    local s = handle:stats()
    errors.raise("deadline_exceeded", "join: after %g s %d functions run and %d wait", timeout, s.running, s.queued)
  end
end

--- Cancel what is queued and stop what runs, without an error; remote values of these
--- functions fail as cancelled.  Waits for what runs, `timeout` seconds (1) at most.
function Coordinator:cancel(opts)
  self:_open():cancel(timeout_of("cancel", opts) or 1)
end

--- Is everything scheduled done?  Raises the first error.
function Coordinator:done() return self:_open():done() end

--- Fetch every remote value in a structure; what is none stays.
function Coordinator:fetch(struct, opts)
  if getmetatable(struct) == RemoteValue then return struct:fetch(opts) end
  return nest.map(function(x)
    if getmetatable(x) == RemoteValue then return x:fetch(opts) end
    return x
  end, struct)
end

--- A dataset on every worker: a dataset, or a function that describes one.  With
--- visitation = "exactly_once" its elements are dealt out: each is used by one function.
function Coordinator:create_per_worker_dataset(source, opts)
  self:_open()
  local how = options.read("create_per_worker_dataset", opts, { "visitation" }).visitation
  if how ~= nil and how ~= "exactly_once" then
    options.unknown("create_per_worker_dataset", "visitation", how, { "exactly_once" })
  end
  return per_worker.dataset(self, source, how ~= nil)
end

--- What fn makes (variables, tables, iterators; a structure of them) on every worker, to be
--- passed as an argument.
function Coordinator:create_per_worker_resource(fn)
  self:_open()
  return per_worker.resource(self, fn)
end

--- One more worker, at "host:port" (any name in a cluster inside this process); gives the
--- number of its task.  Functions run there once it is reached: a process that serves
--- /job:worker/task:NUMBER of this cluster's id.
function Coordinator:add_worker(address)
  local handle, strategy = self:_open(), self.strategy
  if type(address) ~= "string" or address:find "%c" then
    errors.raise("invalid_argument", 'add_worker takes an address like "host:port", got %s',
      type(address) == "string" and ("%q"):format(address) or kinds.a(address))
  end
  local place, task = handle:add_worker(address)
  strategy._worker_tasks[place + 1] = task
  strategy._workers[place + 1] = { task = task, address = address }
  strategy.num_workers = strategy.num_workers + 1
  return tonumber(task:match "%d+$")
end

--- The place of a worker, by address, task or number of its task.
local function worker_place(strategy, which)
  for i, w in ipairs(strategy._workers) do
    if not w.removed and (w.address == which or w.task == which or tonumber(w.task:match "%d+$") == which) then
      return i
    end
  end
  errors.raise("not_found", "remove_worker: there is no worker %s", tostring(which))
end

--- Let a worker go, by its address (or task, or number): it gets no more functions, ends
--- what it started, hands back the rest.
function Coordinator:remove_worker(which)
  local handle, strategy = self:_open(), self.strategy
  local i = worker_place(strategy, which)
  handle:remove_worker(i - 1)
  strategy._workers[i].removed = true
  strategy.num_workers = strategy.num_workers - 1
end

--- Counters since this coordinator began.
function Coordinator:stats()
  local s = self:_open():stats()
  s.rollbacks = restoring.rollbacks(self.strategy)
  return s
end

--- Have fn{ path, closures, ps } called, on the script's thread, after what a lost ps
--- held was restored: from which checkpoint (nil: none), how many functions done since
--- then are lost, on which ps.
function Coordinator:on_restore(fn)
  if type(fn) ~= "function" and not (getmetatable(fn) or {}).__call then
    errors.raise("invalid_argument", "on_restore takes a function, got %s", kinds.a(fn))
  end
  restoring.listen(self.strategy, fn)
end

--- The counters as text for people.
function Coordinator:status()
  local s = self:stats()
  local lines = { ("%d steps done, %d running, %d queued; %d reads, %d updates"):format(s.steps, s.running,
    s.queued, s.reads, s.updates) }
  for i, w in ipairs(s.workers) do
    lines[#lines + 1] = ("%s  %-10s %d steps"):format(self.strategy._worker_tasks[i], w.state, w.steps)
  end
  for i, p in ipairs(s.ps) do
    lines[#lines + 1] = ("%s  %-10s %d variables, %d slots, %.1f MB"):format(self.strategy._ps_tasks[i], p.state,
      p.variables, p.slots, p.bytes_held / 1e6)
  end
  return table.concat(lines, "\n")
end

function Coordinator:_close()
  self._detach()
  if self._handle then self._handle:close() end
  self._handle = nil
end

--- End it, its strategy, and a local cluster that it runs on; with stop_tasks = true
--- workers and ps in other processes too.
function Coordinator:close(opts)
  -- __close passes an error, or nothing, as second argument.
  local o = options.read("close", type(opts) == "table" and getmetatable(opts) == nil and opts or nil,
    { stop_tasks = false })
  local open = self._handle ~= nil
  self:_close()
  if open and o.stop_tasks then self.strategy._session:stop_tasks() end
  self.strategy:close()
end
Coordinator.__close = Coordinator.close

function Coordinator:__tostring()
  return ("ClusterCoordinator(%s%s)"):format(tostring(self.strategy), self._handle and "" or ", closed")
end

colon.check(Coordinator, Coordinator)

return { new = new }
