--- Runs the steps of a model on the workers of its strategy.
---
--- A runner is what docs/fit.md says; `run` schedules closures and returns.  Where every
--- example counts once, the coordinator deals the batches out (docs/fit.md, "Once each"):
--- a closure that finds none left ends quietly, which tells that the data have ended.
---
--- Invariants
---   (1) `out` lists the remote values of closures that were not seen done, oldest first.
---   (2) `done` counts those that had data; it never goes down within a pass.
---   (3) No wait ends a round of mode = "sync" to which this runner still brings steps: its
---       steps make the same rounds however often it is looked at.
---   (4) After close nothing of this runner is out, and the coordinator is in order.

local errors = require "tidemill.errors"
local local_runner = require "tidemill.fit.local_runner"
local restoring = require "tidemill.distribute.restoring"
local wait = require "tidemill.distribute.wait"
local timeline = require "tidemill.fit.timeline"
local tm = require "tidemill.lib.lazy"

local M = {}

local AHEAD = 4 -- steps a worker that are started ahead where a hook looks at batches
local FAR, FAR_UNKNOWN = 1024, 64 -- where none does; the same while nobody knows how many there are
local SLICE = 0.1 -- seconds
local STOP = 0.5 -- seconds that close waits for what runs

---@class tm.fit.ClusterRunner
local Runner = {}

function Runner.__index(self, key)
  if Runner[key] ~= nil then return Runner[key] end
  local workers = math.max(1, self.coordinator.strategy.num_workers)
  if key == "ahead" then return AHEAD * workers end
  if key == "far" then
    local unknown = self.once and self.source.cardinality == "unknown"
    return math.max(unknown and FAR_UNKNOWN or FAR, 2 * AHEAD * workers)
  end
  if key == "round" and self.coordinator.strategy._options.mode == "sync" then return workers end
end

--- Does every batch count once?  Training with steps is TensorFlow's: each worker reads
--- for itself; so is evaluation with pss_evaluation_shards = 0.
local function deals(steps, source)
  if steps.kind == "train" then return source.steps == nil end
  if steps.kind == "predict" then return true end
  return rawget(steps.model, "_compiled").given.pss_evaluation_shards ~= 0
end

--- The dataset as it is dealt out: not more than is wanted, numbered for predict.
local function dealt_dataset(steps, source)
  local ds = source.dataset
  if source.steps and steps.kind ~= "train" then ds = ds:take(source.steps) end
  if steps.kind == "predict" then ds = ds:enumerate() end
  return ds
end

--- Outputs with the number of their batch.
local function numbered(steps)
  local fn = rawget(steps, "numbered")
  if not fn then
    fn = tm.func(function(it)
      local e = it:next()
      return e[1], steps:run(e[2])
    end, { name = "predict_step" })
    rawset(steps, "numbered", fn)
  end
  return fn
end

--- A runner for one call of fit, evaluate or predict.
---@param steps tm.fit.Steps
---@param source table
function M.new(steps, source, eager, strategy)
  if eager then return local_runner.new(steps, source, true) end
  local coordinator = strategy:_get_coordinator()
  coordinator:_open()
  local once = deals(steps, source)
  return setmetatable({
    steps = steps, source = source, coordinator = coordinator, once = once,
    fn = steps.kind == "predict" and numbered(steps) or steps.fn,
    per_worker = coordinator:create_per_worker_dataset(once and dealt_dataset(steps, source) or source.dataset,
      { visitation = once and "exactly_once" or nil }),
    out = {}, done = 0, found = {},
  }, Runner)
end

--- Iterators on the workers.  Data that each worker has another part of cannot be dealt.
local function iterator(self)
  local ok, it = pcall(self.per_worker.iterator, self.per_worker)
  if not ok then
    if self.once and errors.is_error(it, "invalid_argument") then
      it.message = ("%s; or say how many steps: each worker reads for itself then"):format(it.message)
    end
    error(it, 0)
  end
  it._of_fit = true
  return it
end

--- The next pass follows on the state of one that was over, of an earlier process.
function Runner:follow(state)
  if not self.once or state == "" then return end
  self.iterator = iterator(self)
  self.iterator:restore(state)
end

--- Begin a pass: data that do not go on begin anew.
function Runner:start_pass()
  if not self.iterator or not (self.once or self.source.continues) then
    if self.iterator then self.iterator:_drop() end
    self.iterator = iterator(self)
  elseif self.once then
    self.iterator:_start_pass()
  end
  self.args = { self.iterator }
  self.done, self.ended, self.newest = 0, false, nil
  self.rollbacks = restoring.rollbacks(self.coordinator.strategy)
end

-- --- what is out ---

--- The error that ended a step, in words of fit where the data ended.
local function explained(self, e)
  if self.once or not errors.is_error(e, "out_of_range") or e.op ~= "iterator_next" then return e end
  local where = e.task and " of " .. e.task or ""
  e.message = ("the data%s ended before all steps were done; each worker reads the dataset for itself: let it repeat "
    .. "(ds:rep()), or leave the number of steps out"):format(where)
  return e
end

--- A step failed, and all others with it: the first error is raised.  (What is no error
--- object is no step's: a hook's, or Ctrl-C.)
local function fail(self, e)
  if not errors.is_error(e) then error(e, 0) end
  local ok, first = pcall(self.coordinator.join, self.coordinator)
  error(explained(self, ok and e or first), 0)
end

--- Keep what a finished closure gave.
local function take(self, value, list)
  self.done = self.done + 1
  local t = timeline.current()
  if t then t:closure(value._handle) end
  if self.steps.kind == "predict" then
    local number, outputs = value._out.rebuild(list)
    self.found[number:item() + 1] = outputs
  elseif #list > 0 then
    local step = value._handle:step()
    if not self.newest or step > self.newest.step then self.newest = { step = step, value = value, list = list } end
  end
end

--- Look at what is out; a round of mode = "sync" goes on as it would.
local function look(self)
  local out, kept = self.out, 0
  local n = #out
  for i = 1, n do
    local value = out[i]
    if value._handle:done() then
      local ok, list = pcall(value._handle.wait, value._handle, 0)
      if not ok then fail(self, list) end
      if list == "end_of_data" then self.ended = true else take(self, value, list) end
    else
      kept = kept + 1
      out[kept] = value
    end
  end
  for i = kept + 1, n do out[i] = nil end
end

local function start(self, n)
  local out = self.out
  for i = 1, n do
    if self.ended then return i - 1 end
    out[#out + 1] = self.coordinator:schedule(self.fn, self.args)
    local t = timeline.current()
    if t then t:scheduled(out[#out]._handle) end
  end
  return n
end

--- Start n more steps; gives how many were started, fewer once the data have ended.
function Runner:run(n)
  local ok, got = pcall(start, self, n)
  if not ok then
    if #self.out > 0 then fail(self, got) end
    error(got, 0)
  end
  return got
end

--- Steps of this pass that are done.
function Runner:finished()
  look(self)
  return self.done
end

--- Steps that were started and are not done.
function Runner:left() return #self.out end

--- Wait until n steps are done, or all that were started; false: not within `timeout`.
--- all: no more come before that, so a round of mode = "sync" ends with what it has.
function Runner:wait(n, timeout, all)
  local deadline = timeout and tm.time() + timeout
  look(self)
  while self.done < n and #self.out > 0 do
    local left = deadline and deadline - tm.time() or SLICE
    if left <= 0 then return false end
    local handle, most = self.coordinator:_open(), math.max(0, #self.out - (n - self.done))
    -- Closures of others count too, so it is looked at now and then.
    local ok, e = pcall(wait.until_true, tm.time, math.min(left, SLICE), function(slice)
      return handle:wait_room(slice, most, all or self.ended)
    end)
    if not ok then fail(self, e) end
    look(self)
  end
  return true
end

--- Once all that was started is done: how many steps more there are data for, because a
--- lost ps was restored and what was done since its checkpoint was given back.
function Runner:given_back()
  local rollbacks = restoring.rollbacks(self.coordinator.strategy)
  if not self.once or rollbacks == self.rollbacks then return 0 end
  self.rollbacks = rollbacks
  self.ended = false
  return self.iterator:_progress().left or 0
end

--- Tensors that the newest step returned, by name.
function Runner:last() return self.newest and self.newest.value._out.rebuild(self.newest.list) end

--- Outputs of all batches, in the order of the input.
function Runner:outputs() return local_runner.join(self.found) end

--- Where the data are, as a string to keep; nothing runs.
function Runner:state() return self.iterator and self.iterator:state() or "" end

--- Go on from a state, within a pass of which `done` steps were done.
function Runner:restore(state, done)
  if state ~= "" then self.iterator:restore(state) end
  self.done = done
end

--- Nothing of it runs any more.
function Runner:close()
  local running = #self.out > 0
  self.out, self.found = {}, {}
  if running then self.coordinator:cancel { timeout = STOP } end
  if self.iterator and self.coordinator._handle then self.iterator:_drop() end
  self.iterator = nil
end

return M
