--- Waiting that lets coroutines take turns.
--- `tm.async(fn)` starts a coroutine; inside one, join, fetch and a schedule on a full
--- queue yield.  A wait of the main program runs the others meanwhile, and hooks:
--- `attend(fn)` has fn called on the script's thread, at each turn of a wait of the main
--- program and at `heed()`, which calls of a coordinator begin with.

local core = require "tidemill.core"

local M = {}

local WAIT = {} -- what a waiting coroutine yields
local SLICE = 0.001
local ATTEND = 0.05 -- seconds between two calls of a hook

local tasks = {} -- coroutines started by async that have not ended
local mine = setmetatable({}, { __mode = "k" })

local function running()
  local co, main = coroutine.running()
  return co and not main and mine[co] and co or nil
end

local function resume(task, ...)
  local ok, what = coroutine.resume(task.co, ...)
  if not ok then
    task.error = what
  elseif coroutine.status(task.co) ~= "dead" and what ~= WAIT then
    task.idle = true -- it yielded for reasons of its own: its owner resumes it
  end
  task.ended = coroutine.status(task.co) == "dead"
end

local function forget(task)
  for i, t in ipairs(tasks) do
    if t == task then return table.remove(tasks, i) end
  end
end

--- One turn for every coroutine that waits; raises the error of one that failed.
local function turn()
  for i = #tasks, 1, -1 do
    local task = tasks[i] -- none: a wait of what was resumed took a turn too
    if task and not task.ended and not task.idle and coroutine.status(task.co) == "suspended" then resume(task) end
    if task and task.ended then
      forget(task)
      if task.error ~= nil then error(task.error, 0) end
    end
  end
end

--- Start fn(...) as a coroutine; it runs at once until its first wait.
---@return thread
function M.async(fn, ...)
  local task = { co = coroutine.create(fn) }
  mine[task.co] = true
  tasks[#tasks + 1] = task
  resume(task, ...)
  if task.ended then
    forget(task)
    if task.error ~= nil then error(task.error, 0) end
  end
  return task.co
end

-- --- hooks ---

local hooks = {} -- {fn, busy}

--- Have fn() called while the main program waits, at least every 0.05 s.  It may wait
--- itself (others are called meanwhile, it is not); its error is raised by the wait.
---@return fun() detach
function M.attend(fn)
  local hook = { fn = fn }
  hooks[#hooks + 1] = hook
  return function()
    for i, h in ipairs(hooks) do
      if h == hook then return table.remove(hooks, i) and nil end
    end
  end
end

local function call(hook)
  hook.busy = true
  local ok, what = pcall(hook.fn)
  hook.busy = nil
  if not ok then error(what, 0) end
end

--- Call every hook once; nothing inside a coroutine of async, or while tracing.
function M.heed()
  if #hooks == 0 or running() or core.tracing() then return end
  local i = 1
  while hooks[i] do
    local h = hooks[i]
    if not h.busy then call(h) end
    if hooks[i] == h then i = i + 1 end -- it may have detached itself
  end
end

--- Call poll(seconds) until it gives something true, and return that.  nil when
--- `timeout` seconds have passed.
function M.until_true(now, timeout, poll)
  local deadline = timeout and now() + timeout
  local inside = running()
  while true do
    local slice = deadline and math.max(0, deadline - now()) or nil
    if inside then
      slice = 0
    elseif #tasks > 0 then
      turn() -- also when there is nothing to wait for, so that none starves
      slice = math.min(slice or SLICE, SLICE)
    end
    if #hooks > 0 and not inside then
      M.heed()
      slice = math.min(slice or ATTEND, ATTEND)
    end
    local r = poll(slice)
    if r then
      if not inside and #tasks > 0 then turn() end -- what they waited for may be there too
      return r
    end
    if deadline and now() >= deadline then return nil end
    if inside then coroutine.yield(WAIT) end
  end
end

--- Sleep; coroutines of async run meanwhile.
function M.sleep(seconds)
  if #tasks == 0 or type(seconds) ~= "number" or seconds <= 0 or seconds ~= seconds then return core.sleep(seconds) end
  M.until_true(core.time, seconds, core.sleep)
end

return M
