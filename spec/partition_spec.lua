-- A network that is cut between tasks which all live.  Real processes; a proxy is the
-- wire.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P
local tm = require "tidemill"

--- A wire to a port: the others use `address` instead.
local function wire(port)
  local control = P.dir() .. "/control"
  assert(io.open(control, "w")):close()
  local process = P.start { (P.tidemill:gsub("tidemill$", "proxy")), "127.0.0.1:" .. port, control }
  local self = { address = "127.0.0.1:" .. assert(process:says "port (%d+)"), said = 0 }
  function self.say(...)
    for _, command in ipairs { ... } do
      local f = assert(io.open(control, "a"))
      f:write(command, "\n")
      f:close()
      self.said = self.said + 1
      assert(process:says(("done %d ([^\n]*)\n"):format(self.said)))
    end
  end
  function self.close() process:kill "TERM" process:wait(5) end
  return self
end

--- A cluster whose ps 0 is reached through a wire.
local function start(workers)
  local k = clusters.start(workers, 1)
  local real = tm.distribute.pick_unused_port()
  local w = wire(real)
  k.tasks.ps[0]:kill "KILL"
  assert(k.tasks.ps[0]:wait(5))
  k.jobs.ps[1] = w.address
  k:run("ps", 0, { "--listen", "127.0.0.1:" .. real })
  for i = 0, workers - 1 do
    k:kill("worker", i)
    k:run("worker", i)
  end
  return k, w
end

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 },
  { heartbeat_interval = 0.2, heartbeat_timeout = TIMEOUT })
local v
strategy:scope(function() v = tm.Variable(0, { dtype = "int64", name = "v" }) end)
local c = D.ClusterCoordinator(strategy)
local slow = tm.func(function() tm.sleep(0.005) v:assign_add(1) end)
local function state(i) return c:stats().workers[i].state end
local function try(f, ...)
  local ok, e = pcall(f, ...)
  say(ok and "fine" or ("%s %s"):format(e.code, e.task or "-"), e)
end
]]

local function script(text, timeout) return (head:gsub("TIMEOUT", timeout or 1)) .. text end

describe("a partition between one worker and one ps", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  for _, how in ipairs { "refuse", "drop" } do
    it(("takes that worker away until it heals, nothing else: %s"):format(how), function()
      local k, w = start(2)
      k:chief(script [[
        for _ = 1, 400 do c:schedule(slow) end
        say "go"
        c:join()
        say(v:read():item(), c:stats().steps, state(1) ~= "ready", state(2))
        await "healed"
        for _ = 1, 1000 do
          if state(1) == "ready" then break end
          tm.sleep(0.01)
        end
        local before = c:stats().workers[1].steps
        for _ = 1, 100 do c:schedule(slow) end
        c:join()
        say(v:read():item(), state(1), c:stats().workers[1].steps > before)
      ]])
      k:says "go"
      P.sleep(0.1)
      w.say("only /job:worker/task:0", how .. " on")
      if how == "refuse" then w.say "cut" end
      k:says "400"
      w.say(how .. " off")
      k:tell "healed"
      assert.equal("go\n400\t400\ttrue\tready\n500\tready\ttrue\n", k:ends(20), k.boss:err())
      assert.is_truthy(k.boss:err():find("/job:worker/task:0 is lost: [^\n]*/job:ps/task:0"), k.boss:err())
      assert.is_falsy(k.boss:err():find "/job:ps/task:0 is lost", k.boss:err())
      w.close()
    end)
  end

  it("is not even seen when the connection is only cut", function()
    local k, w = start(2)
    k:chief(script [[
      for _ = 1, 300 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), c:stats().retries, state(1), state(2))
    ]])
    k:says "go"
    w.say "only /job:worker/task:0"
    for _ = 1, 10 do
      P.sleep(0.03)
      w.say "cut"
    end
    w.say "only /job:worker/task:1"
    for i = 1, 10 do
      P.sleep(0.02)
      w.say(("cutafter %s %d"):format(i % 2 == 0 and "up" or "down", 100 * i))
    end
    assert.equal("go\n300\t0\tready\tready\n", k:ends(20), k.boss:err())
    w.close()
  end)
end)

describe("a slow way to a ps", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("makes steps slower and breaks nothing", function()
    local k, w = start(2)
    k:chief(script [[
      for _ = 1, 60 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), c:stats().retries)
    ]])
    k:says "go"
    w.say "delay 20"
    assert.equal("go\n60\t0\n", k:ends(20), k.boss:err())
    w.close()
  end)
end)

describe("the chief cut off from a ps", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("says unavailable, naming it", function()
    local k, w = start(2)
    k:chief(script [[
      for _ = 1, 2000 do c:schedule(slow) end
      say "go"
      try(c.join, c)
      try(v.read, v)
    ]])
    k:says "go"
    w.say("only /job:chief/task:0", "drop on")
    local out = k:ends(20)
    assert.is_truthy(out:find "^go\nunavailable /job:ps/task:0[^\n]*\nunavailable /job:ps/task:0[^\n]*\n$", out)
    w.close()
  end)
end)

describe("a ps that is stopped for 3 s", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("is not dead", function()
    local k = clusters.start(2, 1)
    k:chief(script([[
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), c:stats().retries, state(1), state(2), c:stats().ps[1].state)
    ]], 10))
    k:says "go"
    k:signal("STOP", "ps", 0)
    P.sleep(3)
    k:signal("CONT", "ps", 0)
    assert.equal("go\n100\t0\tready\tready\tready\n", k:ends(20), k.boss:err())
    assert.is_falsy(k.boss:err():find "lost")
  end)
end)
