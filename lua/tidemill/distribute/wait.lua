--- Waiting that lets coroutines take turns.
--- `tm.async(fn)` starts a coroutine; inside one, join, fetch and a schedule on a full
--- queue yield.  A wait of the main program runs the others meanwhile.

local M = {}

local WAIT = {} -- what a waiting coroutine yields
local SLICE = 0.001

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

--- One turn for every coroutine that waits; raises the error of one that failed.
local function turn()
  for i = #tasks, 1, -1 do
    local task = tasks[i]
    if not task.ended and not task.idle and task.co ~= running() then resume(task) end
    if task.ended then
      table.remove(tasks, i)
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
    table.remove(tasks)
    if task.error ~= nil then error(task.error, 0) end
  end
  return task.co
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
    local r = poll(slice)
    if r then
      if not inside and #tasks > 0 then turn() end -- what they waited for may be there too
      return r
    end
    if deadline and now() >= deadline then return nil end
    if inside then coroutine.yield(WAIT) end
  end
end

return M
