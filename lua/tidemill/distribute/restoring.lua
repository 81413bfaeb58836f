--- Restoring what a lost ps held: `on_ps_failure = "restore"` and "restore_shards".
---
--- The session (core/cluster/session.h) suspends the coordinator and starts the ps anew;
--- here, on the script's thread, variables are made again and get the values of the
--- latest checkpoint.  It happens at the next wait or call of the coordinator
--- (wait.lua), a little at a time, or inside an eager op that needs a lost ps, until it
--- is done.
---
--- Invariants
---   (1) Of one strategy at most one restoring runs (`busy`); what it calls and what
---       meets another lost ps ends with "unavailable", and it begins again.
---   (2) Training goes on only after everything was restored; after an error it stays
---       suspended and the next call tries again.

local core = require "tidemill.core"
local dealt = require "tidemill.distribute.dealt"
local errors = require "tidemill.errors"
local trace = require "tidemill.trace"
local tm = require "tidemill.lib.lazy"
local wait = require "tidemill.distribute.wait"

local M = {}

local SLICE = 0.05
local PAUSE = 0.25 -- seconds between two tries, when the first ones failed

--- Of each strategy with such a policy: { strategy, policy, busy, rollbacks, listeners }.
local policies = setmetatable({}, { __mode = "k" })

local function warn(...) core.log("warn", (...):format(select(2, ...))) end

--- fn(...) as if no trace and no tape were open.
local function outside(fn, ...)
  return trace.guard(function(...)
    core.push_eager()
    local a, b = fn(...)
    core.pop_eager()
    return a, b
  end, ...)
end

-- --- what is restored ---

local function manager_of(self, why)
  local coordinator = self.strategy._coordinator
  local manager = coordinator and coordinator.checkpoint_manager
  if not manager then
    errors.raise("failed_precondition", "%s; on_ps_failure = %q needs a checkpoint to go back to: set "
      .. "coordinator.checkpoint_manager to a tm.train.CheckpointManager", why.message, self.policy)
  end
  return manager
end

--- From the newest checkpoint that can be read: its path and status; nil without any.
local function from_latest(manager, only)
  local paths, last = manager.checkpoints, nil
  for i = #paths, 1, -1 do
    local status, err = manager.checkpoint:_bring_back(paths[i], only)
    if status then return paths[i], status end
    if err.code ~= "not_found" and err.code ~= "data_loss" then error(err, 0) end
    warn("a lost ps is not restored from \"%s\": %s", paths[i], tostring(err))
    last = err
  end
  if last then error(last, 0) end
end

local function names(list)
  local text = {}
  for i = 1, math.min(#list, 5) do text[i] = '"' .. list[i] .. '"' end
  if #list > 5 then text[6] = ("and %d more"):format(#list - 5) end
  return table.concat(text, ", ")
end

--- Say which variables begin anew because no checkpoint has them.
local function tell_rest(made, fresh, path, brought)
  local first, zeros = {}, {}
  for _, v in ipairs(made) do
    local touched = false
    for _, ps in ipairs(v.shards) do touched = touched or fresh[ps] end
    if touched and not brought[v.uid] then
      local list = v.lossy and zeros or first
      list[#list + 1] = v.name
    end
  end
  local where = path and ('"%s" lacks them'):format(path) or "there is no checkpoint yet"
  if #first > 0 then warn("%d variables start from their initial values, %s: %s", #first, where, names(first)) end
  if #zeros > 0 then
    warn("%d variables are zero now (their initial values were too large to be kept), %s: %s", #zeros, where,
      names(zeros))
  end
end

--- Path, ps, and what how many functions changed is lost.
local function bring_back(self, manager)
  local session = self.strategy._session
  local fresh, made = session:remake()
  local list = {}
  for k in pairs(fresh) do list[#list + 1] = self.strategy._ps_tasks[k + 1] end
  table.sort(list)
  local some = self.policy == "restore_shards" and #list < self.strategy.num_ps
  local coordinator = self.strategy._coordinator
  local kept = some and {} or dealt.kept(coordinator)
  local path, status = from_latest(manager, some and fresh or nil)
  if not path and not some then dealt.begin_anew(coordinator) end
  if path then dealt.go_back(kept) end
  tell_rest(made, fresh, path, status and status.brought or {})
  local moments = path and manager._marks[path]
  return { path = path, ps = list, closures = session:rewind(fresh, moments and moments[session:vars()]) }
end

-- --- when ---

--- Until all ps are there: false when that takes longer than this call may wait.
local function all_there(session, patient)
  while not session:await(patient and SLICE or 0) do
    if not patient then return false end
    wait.heed()
  end
  return true
end

--- Restore and go on: what was done, or false when it is not over.
local function restore(self, manager, patient)
  local session, tries = self.strategy._session, 0
  while all_there(session, patient) do
    local ok, event = pcall(outside, bring_back, self, manager)
    if ok and session:go_on() then return event end
    if not ok then
      if not errors.is_error(event, "unavailable") then error(event, 0) end
      session:suspect(event.task)
      session:suspect()
    end
    tries = tries + 1
    if not patient then return false end
    if tries > 2 then core.sleep(PAUSE) end
  end
  return false
end

--- Count it, say it, tell whoever wants to know.
local function finish(self, event)
  local path = event.path
  self.rollbacks = self.rollbacks + 1
  warn("%s restored from %s; what %d functions changed %s is lost", table.concat(event.ps, ", "),
    path and '"' .. path .. '"' or "initial values", event.closures,
    self.policy == "restore" and "since" or "there since")
  for _, fn in ipairs(self.listeners) do fn { path = path, closures = event.closures, ps = event.ps } end
end

--- Restore what is lost.  patient: until it is done.  True when it was done.
local function mend(self, patient)
  local strategy = self.strategy
  if self.busy or strategy._closed then return false end
  local why = strategy._session:lost()
  if not why then return false end
  local manager = manager_of(self, why)
  self.busy = true
  local ok, event = pcall(restore, self, manager, patient)
  self.busy = false
  if not ok then
    strategy._session:suspect()
    error(event, 0)
  end
  if event then finish(self, event) end
  return event and true
end

-- --- who asks ---

--- Look after a strategy that was just made.
function M.watch(strategy, policy)
  policies[strategy] = { strategy = strategy, policy = policy, rollbacks = 0, listeners = {} }
end

--- A strategy is closed.
function M.forget(strategy) policies[strategy] = nil end

--- Have waits of the script restore; gives what ends that.
function M.attend(strategy)
  if not policies[strategy] then return function() end end
  local weak, detach = setmetatable({ strategy }, { __mode = "v" }), nil
  detach = wait.attend(function()
    local self = policies[weak[1] or false]
    if self then return mend(self, false) end
    detach()
  end)
  return detach
end

function M.rollbacks(strategy) return policies[strategy] and policies[strategy].rollbacks or 0 end

--- Have fn{path, closures, ps} called after each restoring.
function M.listen(strategy, fn)
  local self = policies[strategy]
  if self then self.listeners[#self.listeners + 1] = fn end
end

--- A request to this task got no answer: restore what is lost.  Whether it is may be
--- known a moment later.
local function mend_task(self, task)
  if self.busy then return false end
  local session = self.strategy._session
  session:suspect(task)
  local deadline = tm.time() + 1
  while not session:lost() and tm.time() < deadline do core.sleep(0.01) end
  return mend(self, true)
end

--- fn(...), again after what it needed was restored.
function M.call(strategy, fn, ...)
  local self = policies[strategy]
  while self and not self.busy do
    local ok, a, b = pcall(fn, ...)
    if ok then return a, b end
    if not errors.is_error(a, "unavailable") then error(a, 0) end
    if not mend_task(self, a.task) then error(a, 0) end
  end
  return fn(...)
end

--- The strategies that have such a ps; open ones under a policy.
local function owners(task)
  local list = {}
  for strategy, self in pairs(policies) do
    for _, t in ipairs(strategy._closed and {} or strategy._ps_tasks) do
      if t == task then list[#list + 1] = self end
    end
  end
  return list
end

--- fn(), which gives nil and an error, again after what it needed was restored.
function M.again(fn)
  while true do
    local a, err = fn()
    if a ~= nil or err == nil or err.code ~= "unavailable" then return a, err end
    local list, done = owners(err.task), false
    for _, self in ipairs(list) do
      done = (#list == 1 and mend_task(self, err.task) or mend(self, true)) or done
    end
    if not done then return a, err end
  end
end

--- An eager op got no answer from a ps of the session with these variables.
function core.hooks.mend(vars, task)
  for strategy, self in pairs(policies) do
    if not strategy._closed and not self.busy and strategy._session:vars() == vars then
      return mend_task(self, task)
    end
  end
  return false
end

return M
