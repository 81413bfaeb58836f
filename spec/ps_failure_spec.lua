-- What happens when a ps is lost: on_ps_failure.  Real processes, real signals.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

-- Counters a and b, on ps 0 and 1, in the checkpoint of a manager.
local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 },
  { heartbeat_interval = 0.2, heartbeat_timeout = 1, placement = "round_robin", on_ps_failure = POLICY })
local a, b
strategy:scope(function()
  a = tm.Variable(0, { dtype = "int64", name = "a" })
  b = tm.Variable(0, { dtype = "int64", name = "b" })
end)
local c = D.ClusterCoordinator(strategy)
local count = tm.func(function() a:assign_add(1) b:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.01) a:assign_add(1) b:assign_add(1) end)
local checkpoint = tm.train.Checkpoint{ a = a, b = b }
local manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
local lost, restored = 0, 0
c:on_restore(function(r)
  lost, restored = lost + r.closures, restored + 1
  say("restored", r.path and r.path:match "[^/]+$", table.concat(r.ps, " "))
end)
local function run(n, f)
  for _ = 1, n do c:schedule(f or count) end
end
local function try(f, ...)
  local t = tm.time()
  local ok, e = pcall(f, ...)
  say(ok and "fine" or ("%s %s %.1f"):format(e.code, e.task or "-", tm.time() - t), e)
  return ok, e
end
]]

local manage = "c.checkpoint_manager = manager\n"

local function script(policy, text, plain)
  return (head:gsub("POLICY", ("%q"):format(policy))) .. (plain and "" or manage) .. text
end

describe("a lost ps", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  for _, which in ipairs { { 0 }, { 1 }, { 0, 1 } } do
    local name = table.concat(which, " and ")
    it(("is restored while functions run and the chief joins: ps %s killed"):format(name), function()
      local k = clusters.start(2, 2)
      k:chief(script("restore", [[
        run(50)
        c:join()
        assert(manager:save())
        run(200, slow)
        say "go"
        c:join()
        local steps = c:stats().steps
        say(a:read():item() == b:read():item(), a:read():item() == steps - lost, steps >= 250, c:stats().rollbacks)
      ]]))
      k:says "go"
      P.sleep(0.2)
      for _, i in ipairs(which) do k:kill("ps", i) end
      P.sleep(0.2)
      for _, i in ipairs(which) do k:run("ps", i) end
      local out = k:ends()
      assert.is_truthy(out:find "restored\tckpt%-1\t/job:ps/task:0 /job:ps/task:1\ntrue\ttrue\ttrue\t1\n$",
        out .. k.boss:err())
    end)
  end
end)
