--- Processes for specs: start them, read what they print, signal and await them.
--- Every process, and what it starts, carries TM_SPEC_RUN in its environment, so
--- `leftovers` finds what was left behind.

local system = require "system"

local M = {}

local build = os.getenv "TM_BUILD" or "build"
M.tidemill = build .. "/tidemill"

--- What is awaited may take so many times longer under a sanitizer.
M.patience = build:find "tsan" and 5 or build:find "asan" and 2 or 1

local started, made = {}, {}
local base = os.getenv "TM_SPEC_BASE" or ("%d.%d"):format(math.floor(system.gettime() * 1e6), math.random(1e6))

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

local function slurp(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local s = f:read "a"
  f:close()
  return s
end

--- How many times longer things may take now: 1 on a machine with time, more where this
--- process gets but a part of a core.
function M.slowness()
  local wall, cpu = system.monotime(), os.clock()
  while os.clock() - cpu < 0.05 do end
  local share = (os.clock() - cpu) / (system.monotime() - wall)
  return share > 0.85 and 1 or 3 / share
end

--- Are these seconds (of a plain build, on a machine with time) not yet over?
function M.within(seconds, since)
  local took = system.monotime() - since
  return took < seconds * M.patience or took < seconds * M.patience * M.slowness()
end

--- Poll fn until it gives something true, for at most `seconds` (as above).
function M.eventually(seconds, fn)
  local start = system.monotime()
  while true do
    local r = fn()
    if r then return r end
    if not M.within(seconds, start) then return fn() end
    system.sleep(0.005)
  end
end

function M.now() return system.monotime() end
function M.sleep(seconds) system.sleep(seconds) end

--- A directory of this spec's own; removed by cleanup.
function M.dir()
  local p = io.popen "mktemp -d"
  local path = p:read "l"
  p:close()
  made[#made + 1] = path
  return path
end

--- A script in a directory of its own; its path.
function M.script(text)
  local path = M.dir() .. "/script.lua"
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
  return path
end

local Process = {}
Process.__index = Process

--- Start a command (a list); env is added to the environment.
function M.start(command, env)
  local dir = M.dir()
  local words = { "exec", "env", "-u", "TM_CONFIG", "-u", "TF_CONFIG", "TM_SPEC_RUN=" .. base }
  for k, v in pairs(env or {}) do words[#words + 1] = quote(k .. "=" .. v) end
  words[#words + 1] = "spec/tools/process.sh"
  words[#words + 1] = dir
  for _, w in ipairs(command) do words[#words + 1] = quote(w) end
  local handle = io.popen(table.concat(words, " "))
  local self = setmetatable({ handle = handle, dir = dir, pid = tonumber(handle:read "l") }, Process)
  started[#started + 1] = self
  return self
end

--- Start build/tidemill with these arguments.
function M.run(args, env)
  local command = { M.tidemill }
  for _, a in ipairs(args) do command[#command + 1] = a end
  return M.start(command, env)
end

function Process:out() return slurp(self.dir .. "/out") or "" end
function Process:err() return slurp(self.dir .. "/err") or "" end

--- Its exit status (128 + n after signal n); nil while it runs.
function Process:status()
  local s = slurp(self.dir .. "/status")
  return s and tonumber(s)
end

--- Wait for its end; the status, or nil when it still runs after `seconds`.
function Process:wait(seconds)
  local s = M.eventually(seconds or 20, function() return self:status() end)
  if s and self.handle then
    self.handle:close()
    self.handle = nil
  end
  return s
end

--- Wait until it has printed a text that matches; the match.
function Process:says(pattern, seconds)
  return M.eventually(seconds or 10, function() return (self:out() .. self:err()):match(pattern) end)
end

--- Run examples/NAME.lua with these arguments to its end; the lines that it prints.
function M.example(name, ...)
  local p, lines = M.run { "examples/" .. name .. ".lua", ... }, {}
  local status = p:wait(60)
  assert(status == 0, ("examples/%s.lua: status %s: %s"):format(name, tostring(status), p:err()))
  for line in p:out():gmatch "[^\n]+" do lines[#lines + 1] = line end
  return lines
end

local function kill(signal, pid) os.execute(("kill -s %s -- %d"):format(signal, pid)) end

--- Do all threads of a process stand still?
function M.stopped(pid)
  local p = io.popen("cat /proc/" .. pid .. "/task/*/stat 2>/dev/null")
  local text = p:read "a"
  p:close()
  return not text:find "%) [^TZ]"
end

--- Send a signal; after STOP the process stands still.
function M.signal(signal, pid)
  kill(signal, pid)
  if signal == "STOP" then assert(M.eventually(5, function() return M.stopped(pid) end)) end
end

function Process:kill(signal)
  if not self:status() then M.signal(signal or "KILL", self.pid) end
end
--- The same to its whole process group.
function Process:kill_group(signal) kill(signal or "KILL", -self.pid) end

--- pids that carry the mark of this spec, the supervising shells left out.
function M.alive()
  local list = {}
  local p = io.popen("grep -lzs 'TM_SPEC_RUN=" .. base .. "' /proc/[0-9]*/environ")
  for line in p:lines() do
    local pid = line:match "%d+"
    local command = (slurp("/proc/" .. pid .. "/cmdline") or ""):gsub("%z", " ")
    local state = (slurp("/proc/" .. pid .. "/stat") or ""):match "%) (%a)"
    if command ~= "" and state ~= "Z" and not command:find("process.sh", 1, true)
      and not command:find("grep", 1, true) and not command:find("busted", 1, true) then
      list[#list + 1] = { pid = tonumber(pid), command = command }
    end
  end
  p:close()
  return list
end

--- The pid of a task that a launcher started: "worker", 0.
function M.task(job, index)
  for _, p in ipairs(M.alive()) do
    local config = (slurp("/proc/" .. p.pid .. "/environ") or ""):match "TM_CONFIG=([^%z]*)"
    if config and config:find(('"task": {"type": "%s", "index": %d}'):format(job, index), 1, true) then
      return p.pid
    end
  end
end

--- How many tasks listen at these ports, on TCP or on their Unix socket.
function M.listeners(ports)
  local n, unix, tcp = 0, slurp "/proc/net/unix" or "", slurp "/proc/net/tcp" or ""
  for _, port in ipairs(ports) do
    if unix:find("@tidemill-" .. port .. "\n", 1, true) then n = n + 1 end
    if tcp:find((": 0100007F:%04X 00000000:0000 0A"):format(port), 1, true) then n = n + 1 end
  end
  return n
end

--- End what was started, remove what was made.  Gives what should not have been there any
--- more: commands of processes that still lived though their starter had ended.
function M.cleanup()
  local left = {}
  M.eventually(2, function()
    left = {}
    local mine = {}
    for _, p in ipairs(started) do mine[p.pid] = not p:status() end
    for _, p in ipairs(M.alive()) do
      if not mine[p.pid] then left[#left + 1] = p.command end
    end
    return #left == 0
  end)
  for _, p in ipairs(M.alive()) do
    kill("CONT", p.pid)
    kill("KILL", p.pid)
  end
  for _, p in ipairs(started) do p:wait(5) end
  for _, dir in ipairs(made) do os.execute("rm -rf " .. quote(dir)) end
  started, made = {}, {}
  return left
end

return M
