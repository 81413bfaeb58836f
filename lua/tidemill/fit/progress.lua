--- The text of progress: a bar on a terminal, lines elsewhere, as Keras writes them.
---
---     local bar = progress.new{ target = 100, verbose = 1, columns = 80, write = f }
---     if bar:due() then bar:update(done, { { "loss", 0.3 } }) end
---     bar:finish(done, { { "loss", 0.25 } })
---
--- On a terminal (`columns`) one line is written over and over.  Elsewhere progress lines
--- come seldom, and seldomer the longer it takes.

local text = require "tidemill.lib.text"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local WIDTH = 30 -- of the bar
local OFTEN = 0.05 -- seconds between two lines on a terminal
local FIRST, MOST, SHARE = 0.1, 30, 0.1 -- elsewhere: at first, at most, of the time that went by

---@class tm.fit.Progress
local Bar = {}
Bar.__index = Bar

--- target: steps in all (nil: unknown); verbose: 1 or 2; columns: of the terminal (nil: it
--- is none); write: takes text; now: the clock.
function M.new(o)
  local now = o.now or tm.time
  local start = now()
  return setmetatable({ target = o.target, verbose = o.verbose, columns = o.columns, write = o.write, now = now,
    start = start, next = start + (o.columns and 0 or FIRST), width = 0 }, Bar)
end

-- --- numbers ---

--- Seconds for people, of a step or an epoch: " 12ms/step".
function M.duration(seconds, unit)
  if seconds >= 1 or seconds == 0 then return (" %.0fs/%s"):format(seconds, unit) end
  if seconds >= 1e-3 then return (" %.0fms/%s"):format(seconds * 1e3, unit) end
  return (" %.0fus/%s"):format(seconds * 1e6, unit)
end

--- The time that is left: "1:05:09", "2:03" or "7s".
function M.eta(seconds)
  local s = math.floor(seconds)
  if s > 3600 then
    return ("%d:%02d:%02d"):format(math.floor(s / 3600), math.floor(s % 3600 / 60), s % 60)
  end
  if s > 60 then return ("%d:%02d"):format(math.floor(s / 60), s % 60) end
  return ("%ds"):format(s)
end

local number

--- A list of numbers on the line: [0.5000 0.2500].
local function list_text(x)
  local parts = {}
  for i, v in ipairs(x:totable()) do parts[i] = number(v) end
  return "[" .. table.concat(parts, " ") .. "]"
end

function number(x)
  if values.is_tensor(x) and x.rank == 1 then return list_text(x) end
  if type(x) ~= "number" then return tostring(x) end
  if x ~= x then return "nan" end
  if x == math.huge or x == -math.huge then return x > 0 and "inf" or "-inf" end
  return (math.abs(x) > 1e-3 and "%.4f" or "%.4e"):format(x)
end

local function values_text(list)
  local parts = {}
  for i, pair in ipairs(list or {}) do parts[i] = (" - %s: %s"):format(text.plain(pair[1]), number(pair[2])) end
  return table.concat(parts)
end

--- Seconds a step takes: the first ones are left out, which also trace.
local function pace(self, done, now)
  local first = self.first
  if first and done > first.done and first.done > 0 then return (now - first.at) / (done - first.done) end
  return done > 0 and (now - self.start) / done or 0
end

-- --- lines ---

local function count_text(self, done)
  if not self.target then return ("%7d/Unknown"):format(done) end
  local digits = #("%d"):format(self.target)
  return (("%%%dd/%%d"):format(digits)):format(done, self.target)
end

local function bar_text(self, done, width)
  if not self.target or self.target < 1 then return "" end
  local filled = math.min(width, math.floor(width * done / self.target))
  local head = filled > 0 and ("="):rep(filled - 1) .. (done < self.target and ">" or "=") or ""
  return (" [%s%s]"):format(head, ("."):rep(width - filled))
end

local function line(self, done, list, final, width)
  local now = self.now()
  local step = pace(self, done, now)
  local info
  if final or not self.target then
    info = (" - %.0fs"):format(now - self.start) .. M.duration(step, "step")
  else
    info = " -" .. M.duration(step, "step") .. " - ETA: " .. M.eta(step * math.max(0, self.target - done))
  end
  return count_text(self, done) .. bar_text(self, done, width) .. info .. values_text(list)
end

--- The line, shortened to the terminal: first the bar, then the end.
local function fitted(self, done, list, final)
  local room = self.columns - 1
  local s = line(self, done, list, final, WIDTH)
  local over = text.width(s) - room
  if over > 0 then s = line(self, done, list, final, math.max(5, WIDTH - over)) end
  return text.cut(s, room)
end

local function write_over(self, s, final)
  local width = text.width(s)
  local rest = (" "):rep(math.max(0, self.width - width))
  self.write("\r" .. s .. rest .. (final and "\n" or ""))
  self.width, self.open = final and 0 or width, not final
end

--- Is it time for a line?  Until then nobody need look what the numbers are.
function Bar:due() return self.verbose == 1 and self.now() >= self.next end

local function put_off(self)
  local now = self.now()
  local pause = self.columns and OFTEN or math.min(MOST, math.max(FIRST, SHARE * (now - self.start)))
  self.next = now + pause
end

--- So many steps are done; list: { name, value } in order.
function Bar:update(done, list)
  if self.columns then
    write_over(self, fitted(self, done, list, false), false)
  else
    self.write(line(self, done, list, false, WIDTH) .. "\n")
  end
  put_off(self)
end

--- Steps that are done, for the pace.
function Bar:saw(done)
  if not self.first and done > 0 then self.first = { done = done, at = self.now() } end
end

local function summary(self, done, list)
  local seconds = self.now() - self.start
  return count_text(self, done) .. (" - %.0fs"):format(seconds) .. values_text(list) .. " -"
    .. M.duration(seconds, "epoch") .. " -" .. M.duration(done > 0 and seconds / done or 0, "step") .. "\n"
end

--- All is done; `done` steps it were.
function Bar:finish(done, list)
  if not self.target then self.target = done end
  if self.verbose == 2 then
    self.write(summary(self, done, list))
  elseif self.columns then
    write_over(self, fitted(self, done, list, true), true)
  else
    self.write(line(self, done, list, true, WIDTH) .. "\n")
  end
end

--- It ends in the middle: what comes next begins a line of its own.
function Bar:leave()
  if self.open then self.write "\n" end
  self.open = false
end

return M
