--- A timeline of steps, as Chrome's trace viewer (chrome://tracing, Perfetto) and
--- TensorBoard's profile plugin read it.
---
--- Ops are told by the executor of this process (core.spans_begin); on a cluster the
--- closures as workers finished them.

local core = require "tidemill.core"
local tm = require "tidemill.lib.lazy"

local M = {}

local MOST = 200000 -- spans

---@class tm.callbacks.Timeline
local Timeline = {}
Timeline.__index = Timeline

local current

--- The timeline that is being recorded; nil: none.
function M.current() return current end

--- Record from now on; one at a time, a second start ends the first.
function M.start()
  core.spans_begin(MOST)
  local now = tm.time()
  current = setmetatable({ began = now, last = now, steps = {}, closures = {}, free = {},
    sent = setmetatable({}, { __mode = "k" }) }, Timeline)
  return current
end

--- A step is done.
function Timeline:step(batch)
  local now = tm.time()
  self.steps[#self.steps + 1] = { ("step %d"):format(batch), self.last, now }
  self.last = now
end

--- A closure is scheduled.
function Timeline:scheduled(handle) self.sent[handle] = tm.time() end

--- A closure is done.  A worker runs one after another: this one began when the one before
--- was done, or when it was scheduled.
function Timeline:closure(handle)
  local worker, to = handle:ran()
  if not worker or to < self.began or #self.closures >= MOST then return end
  local from = math.max(self.free[worker] or self.began, self.sent[handle] or self.began)
  self.free[worker] = math.max(to, self.free[worker] or to)
  self.closures[#self.closures + 1] = { ("closure %.0f"):format(handle:step()), math.min(from, to), to, worker }
end

--- Record no more; gives the spans.
function Timeline:stop()
  if current ~= self then return {}, 0 end
  current = nil
  return core.spans_take()
end

local function quoted(s) return ('"%s"'):format(s:gsub('[%c"\\]', "_")) end

local function event(out, began, pid, tid, name, from, to)
  out[#out + 1] = ('{"ph":"X","pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,"name":%s}'):format(pid, tid,
    (from - began) * 1e6, math.max(to - from, 0) * 1e6, quoted(name))
end

local function meta(out, kind, pid, tid, name)
  out[#out + 1] = ('{"ph":"M","pid":%d,"tid":%d,"name":"%s","args":{"name":%s}}'):format(pid, tid, kind, quoted(name))
end

--- The text of the file.
function Timeline:text()
  local spans, lost = self:stop()
  local out = {}
  meta(out, "process_name", 1, 0, "/job:chief")
  meta(out, "thread_name", 1, 1, "steps")
  meta(out, "thread_name", 1, 2, lost > 0 and ("ops (%d left out)"):format(lost) or "ops")
  for _, s in ipairs(self.steps) do event(out, self.began, 1, 1, s[1], s[2], s[3]) end
  for _, s in ipairs(spans) do event(out, self.began, 1, 2, s[1], s[2], s[3]) end
  local known = {}
  for _, s in ipairs(self.closures) do
    local pid = 2 + s[4]
    if not known[pid] then
      known[pid] = true
      meta(out, "process_name", pid, 0, ("/job:worker/task:%d"):format(s[4]))
      meta(out, "thread_name", pid, 1, "closures")
    end
    event(out, self.began, pid, 1, s[1], s[2], s[3])
  end
  return '{"displayTimeUnit":"ns","traceEvents":[\n' .. table.concat(out, ",\n") .. "\n]}\n"
end

--- Write it below a directory of logs; gives the path.
function Timeline:write(log_dir)
  local text = self:text()
  local dir = ("%s/plugins/profile/%s"):format(log_dir, os.date "%Y_%m_%d_%H_%M_%S")
  core.make_dir(dir)
  local path = ("%s/%s.trace.json.gz"):format(dir, M.host())
  core.write_gzip(path, text)
  return path
end

--- The name of this machine, for a file's.
function M.host()
  local f = io.open "/proc/sys/kernel/hostname"
  local name = f and f:read "*l" or "localhost"
  if f then f:close() end
  return (name:gsub("[^%w_-]", "_"))
end

return M
