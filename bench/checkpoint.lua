-- Saving while training: MB of row tables with Adagrad slots on PS ps, saved SAVES times by
-- processes under `tidemill launch`.
-- usage: tidemill launch --workers 2 --ps 2 bench/checkpoint.lua MB SAVES DIR [stream]
-- Measures: the speed of a save against dd with fsync (same bytes, same directory), the
-- longest time that no UPDATE began, and how much memory ps and chief grew.
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local saving = require "tidemill.train.saving"
local mb, saves, dir, stream = tonumber(arg[1]) or 1024, tonumber(arg[2]) or 3, arg[3] or "/tmp", arg[4] == "stream"
local width, batch = 64, 256

local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 2, ps = 2 }, {
  variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = 2 } })
local rows = math.floor(mb * 2 ^ 20 / 2 / (4 * width)) -- the table and its slot
local root = strategy:scope(function()
  return { table = tm.Variable(function(shape) return tm.zeros(shape) end, { shape = { rows, width },
    dtype = "float32", name = "table" }), optimizer = tm.optimizers.Adagrad { learning_rate = 0.1 } }
end)
local step = tm.func(function()
  local ids = tm.random.uniform({ batch }, { minval = 0, maxval = rows, dtype = "int64" })
  local tape = tm.GradientTape()
  local loss = tm.reduce_sum(tm.square(tm.gather(root.table, ids) - 1))
  root.optimizer:apply_gradients(tape:gradient(loss, { root.table }), { root.table })
end)
local c = tm.distribute.ClusterCoordinator(strategy)

local function slurp(path)
  local f = io.open(path, "rb")
  local s = f and f:read "a" or ""
  if f then f:close() end
  return s
end

local function memory(pid, field)
  return (tonumber(slurp("/proc/" .. pid .. "/status"):match(field .. ":%s+(%d+)")) or 0) / 1024
end

--- Processes of this launch: those with the same parent.
local function pids()
  local mine = slurp("/proc/self/stat"):match "^%d+ %b() %a (%d+)"
  local list = {}
  local p = io.popen("grep -l '' /proc/[0-9]*/stat 2>/dev/null")
  for line in p:lines() do
    local pid, parent = slurp(line):match "^(%d+) %b() %a (%d+)"
    local config = pid and parent == mine and slurp("/proc/" .. pid .. "/environ"):match '"task": {"type": "(%a+)"'
    if config == "ps" then list[#list + 1] = pid end
  end
  p:close()
  return list
end

local function more()
  local s = c:stats()
  while s.queued + s.running < 2000 do
    for _ = 1, 2000 do c:schedule(step) end
    s = c:stats()
  end
end

--- Bytes a second of dd with fsync.
local function disk()
  local path = dir .. "/checkpoint-bench-dd"
  local t = tm.time()
  os.execute(("dd if=/dev/zero of=%s bs=1M count=%d conv=fsync 2>/dev/null"):format(path, mb))
  t = tm.time() - t
  os.remove(path)
  return mb / t
end

c:schedule(step)
c:join()
local ps = pids()
for _, pid in ipairs(ps) do -- peaks count from here
  local f = io.open("/proc/" .. pid .. "/clear_refs", "w")
  if f then f:write "5" f:close() end
end
local f = io.open("/proc/self/clear_refs", "w")
if f then f:write "5" f:close() end
local chief, base = memory("self", "VmHWM"), {}
for i, pid in ipairs(ps) do base[i] = memory(pid, "VmHWM") end
local plain = lib.rate(tm, c, step, {}, 100, 2000)
local checkpoint = tm.train.Checkpoint(root, { stream = stream })
local speed, alone, pause, dd, during = {}, {}, 0, {}, 0
for i = 1, saves do
  dd[i] = disk()
  c:join()
  local t0 = tm.time()
  assert(checkpoint:write(dir .. "/checkpoint-bench"))
  alone[i] = saving.last.bytes / 2 ^ 20 / (tm.time() - t0)
  more()
  local before, t = c:stats().steps, tm.time()
  assert(checkpoint:write(dir .. "/checkpoint-bench"))
  t = tm.time() - t
  during = during + (c:stats().steps - before) / t / saves
  speed[i] = saving.last.bytes / 2 ^ 20 / t
  pause = math.max(pause, saving.last.pause)
end
local grown = 0
for i, pid in ipairs(ps) do grown = math.max(grown, memory(pid, "VmHWM") - base[i]) end
local small = memory("self", "VmHWM") - chief
c:close()
table.sort(speed)
table.sort(dd)
table.sort(alone)
local mid = math.ceil(saves / 2)
os.execute("rm -rf " .. dir .. "/checkpoint-bench")
lib.result { { "name", "checkpoint" }, { "mb", mb }, { "stream", stream and 1 or 0 }, { "mb_s", alone[mid] },
  { "mb_s_training", speed[mid] }, { "dd_mb_s", dd[mid] }, { "ratio", alone[mid] / dd[mid] },
  { "pause_ms", pause * 1e3 }, { "steps_s", plain },
  { "steps_s_saving", during }, { "ps_table_mb", mb / #ps }, { "ps_grown_mb", grown }, { "chief_grown_mb", small } }
