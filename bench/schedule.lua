-- Empty closures through one coordinator.  usage: schedule.lua WORKERS N
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local workers, n = tonumber(arg[1]) or 3, tonumber(arg[2]) or 100000
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = workers, ps = 1 })
local coordinator = tm.distribute.ClusterCoordinator(strategy)
local f = tm.func(function() return tm.tensor(1) end)
coordinator:schedule(f)
coordinator:join()

local t = tm.time()
for _ = 1, n do coordinator:schedule(f) end
local scheduled = tm.time() - t
coordinator:join()
local all = tm.time() - t

local trips = {}
for i = 1, 2000 do
  local start = tm.time()
  coordinator:schedule(f):fetch()
  trips[i] = tm.time() - start
end
table.sort(trips)
lib.result { { "bench", "schedule" }, { "workers", strategy.num_workers }, { "n", n }, { "closures_per_s", n / all },
  { "schedule_us", scheduled / n * 1e6 }, { "roundtrip_us_median", trips[1000] * 1e6 } }
coordinator:close()
