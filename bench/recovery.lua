-- A worker is killed while all train: how long until the rate is what it was.
-- usage: tidemill launch --workers 3 --ps 2 bench/recovery.lua [SECONDS A STEP] [KILLS]
-- (launch starts the worker again; a step sleeps, so the rate is that of the workers there are)
local tm = require "tidemill"
local lib = dofile "bench/lib.lua"

local pause, kills = tonumber(arg[1]) or 0.002, tonumber(arg[2]) or 5
local D = tm.distribute
local strategy = D.ParameterServerStrategy(D.resolver { workers = 3, ps = 2 })
local a, b
strategy:scope(function()
  a = tm.Variable(0, { dtype = "int64", name = "a" })
  b = tm.Variable(0, { dtype = "int64", name = "b" })
end)
local coordinator = D.ClusterCoordinator(strategy)
local step = tm.func(function()
  tm.sleep(pause)
  a:assign_add(1)
  b:assign_add(1)
end)

--- The process of worker `index` of this launch.
local function pid_of(index)
  local p = io.popen "grep -lsF TM_CONFIG /proc/[0-9]*/environ"
  local found
  for path in p:lines() do
    local f = io.open(path, "rb")
    local text = f and f:read "a" or ""
    if f then f:close() end
    local config = text:match "TM_CONFIG=([^%z]*)" or ""
    local _, mine = (os.getenv "TM_CONFIG" or ""):find('"worker": %b[]')
    local workers = config:match '"worker": (%b[])'
    if mine and workers == os.getenv("TM_CONFIG"):match '"worker": (%b[])'
      and config:find(('"type": "worker", "index": %d'):format(index), 1, true) then
      found = tonumber(path:match "%d+")
    end
  end
  p:close()
  return found
end

local scheduled = 0
local function feed()
  while coordinator:stats().queued < 500 do
    for _ = 1, 500 do coordinator:schedule(step) end
    scheduled = scheduled + 500
  end
end

--- Steps a second during `seconds`; the longest time without any.
local function rate(seconds)
  local t, from, last, worst = tm.time(), coordinator:stats().steps, nil, 0
  local at = t
  while tm.time() - t < seconds do
    feed()
    tm.sleep(0.001)
    local n = coordinator:stats().steps
    if n ~= last then last, at = n, tm.time() end
    worst = math.max(worst, tm.time() - at)
  end
  return (coordinator:stats().steps - from) / (tm.time() - t), worst
end

local worst = { ready = 0, full = 0, gap = 0 }
local sum = { ready = 0, full = 0 }
rate(0.5)
local before = rate(1)
for k = 1, kills do
  local index = k % strategy.num_workers
  local pid = pid_of(index)
  if not pid then error "run me under tidemill launch" end
  local t = tm.time()
  os.execute("kill -9 " .. pid)
  local ready, full
  repeat
    local now, gap = rate(0.05)
    worst.gap = math.max(worst.gap, gap)
    local state = coordinator:stats().workers[index + 1].state
    if state == "ready" and tm.time() - t > 0.06 then ready = ready or tm.time() - t end
    if ready and now >= 0.9 * before then full = tm.time() - t end
  until full or tm.time() - t > 20
  ready, full = ready or 20, full or 20
  sum.ready, sum.full = sum.ready + ready, sum.full + full
  worst.ready, worst.full = math.max(worst.ready, ready), math.max(worst.full, full)
  rate(1)
end
coordinator:join()
assert(a:read():item() == scheduled and b:read():item() == scheduled, "a step was lost or counted twice")
lib.result {
  { "bench", "recovery" }, { "steps_per_s", before }, { "kills", kills }, { "ready_s", sum.ready / kills },
  { "full_rate_s", sum.full / kills }, { "worst_full_rate_s", worst.full }, { "longest_gap_s", worst.gap },
}
