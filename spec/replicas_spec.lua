-- replicas = 1: a ps is lost and the copy on the next one goes on.  Real processes, real
-- signals.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P
local tm = require "tidemill"

-- Counters a and b, on ps 0 and 1.
local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = WORKERS, ps = PS },
  { heartbeat_interval = 0.2, heartbeat_timeout = 1, placement = "round_robin", replicas = 1, OPTIONS })
local a, b
strategy:scope(function()
  a = tm.Variable(0, { dtype = "int64", name = "a" })
  b = tm.Variable(0, { dtype = "int64", name = "b" })
end)
local c = D.ClusterCoordinator(strategy)
local count = tm.func(function() a:assign_add(1) b:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.005) a:assign_add(1) b:assign_add(1) end)
local function run(n, f)
  for _ = 1, n do c:schedule(f or slow) end
end
local function exact(n)
  return a:read():item() == n and b:read():item() == n and c:stats().steps == n
end
--- Wait until every ps has a copy; false after 10 s (more under a sanitizer).
local function copied()
  for _ = 1, 1000 * PATIENCE do
    local all = true
    for _, p in ipairs(c:stats().ps) do all = all and p.copied and p.state == "ready" end
    if all then return true end
    tm.sleep(0.01)
  end
  return false
end
local function try(f, ...)
  local ok, e = pcall(f, ...)
  say(ok and "fine" or ("%s %s"):format(e.code, e.task or "-"), e)
  return ok, e
end
]]

local function script(text, workers, ps, options)
  local top = head:gsub("PATIENCE", P.patience)
  return (top:gsub("WORKERS", workers or 2):gsub("PS", ps or 2):gsub("OPTIONS", options or "")) .. text
end

describe("replicas = 1", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  for _, which in ipairs { 0, 1 } do
    it(("loses and doubles no UPDATE when ps %d is killed"):format(which), function()
      local k = clusters.start(2, 2)
      k:chief(script [[
        run(300)
        say "go"
        c:join()
        say(exact(300), c:stats().ps[1].state, c:stats().ps[2].state)
        run(2000, count)
        c:join()
        say(exact(2300))
      ]])
      k:says "go"
      P.sleep(0.2)
      k:kill("ps", which)
      assert.equal(("go\ntrue\t%s\t%s\ntrue\n"):format(which == 0 and "down" or "ready",
        which == 1 and "down" or "ready"), (k:ends():gsub("connecting", "down")))
      assert.is_truthy(k.boss:err():find(("/job:ps/task:%d serves the shards of /job:ps/task:%d now"):format(
        1 - which, which), 1, true), k.boss:err())
    end)
  end

  it("bears the loss of one ps after the other when there was time for a new copy", function()
    local k = clusters.start(2, 2)
    k:chief(script [[
      run(200)
      say "one"
      c:join()
      say(copied(), exact(200))
      run(200)
      say "two"
      c:join()
      say(copied(), exact(400))
      run(200)
      say "three"
      c:join()
      say(exact(600))
    ]])
    for i, which in ipairs { 0, 1, 0 } do
      k:says(({ "one", "two", "three" })[i])
      P.sleep(0.15)
      k:kill("ps", which)
      k:run("ps", which)
    end
    assert.equal("one\ntrue\ttrue\ntwo\ntrue\ttrue\nthree\ntrue\n", k:ends(20), k.boss:err())
  end)

  it("works with three ps, whichever is killed", function()
    local k = clusters.start(2, 3)
    k:chief(script([[
      run(150)
      say "one"
      c:join()
      say(copied(), exact(150))
      run(150)
      say "two"
      c:join()
      say(exact(300))
    ]], 2, 3))
    k:says "one"
    P.sleep(0.1)
    k:kill("ps", 2)
    k:run("ps", 2)
    k:says "two"
    P.sleep(0.1)
    k:kill("ps", 1)
    assert.equal("one\ntrue\ttrue\ntwo\ntrue\n", k:ends(20), k.boss:err())
  end)

  -- Weights and slots of two rules, dense and by rows; every bit of them.
  local training = [[
    local w, e, opt, rows
    strategy:scope(function()
      w = tm.Variable(tm.ones{ 40, 3 } * 0.5, { name = "w" })
      e = tm.Variable(tm.ones{ 50, 4 } * 0.25, { name = "e" })
      opt = tm.optimizers.Adam{ learning_rate = 0.01 }
      rows = tm.optimizers.Adagrad{ learning_rate = 0.1 }
    end)
    local x = tm.reshape(tm.range(0, 80, 1, "float32"), { 2, 40 }) / 80
    local step = tm.func(function(i)
      local t = tm.GradientTape()
      local ids = tm.range(0, 8, 1, "int64") * i % tm.tensor(50, "int64")
      local g = tm.gather(e, ids)
      local loss = tm.reduce_sum(tm.square(tm.matmul(x, w) - 1)) + tm.reduce_sum(tm.square(g - 2))
      local gw, ge = (table.unpack or unpack)(t:gradient(loss, { w, e }))
      opt:apply_gradients{ { gw, w } }
      rows:apply_gradients{ { ge, e } }
      tm.sleep(0.003)
    end)
    local function bits()
      local list = {}
      for _, t in ipairs { w:read(), e:read(), opt:get_slot(w, "m"), opt:get_slot(w, "v"),
        rows:get_slot(e, "accumulator") } do
        for _, v in ipairs(tm.reshape(t, { -1 }):totable()) do list[#list + 1] = ("%a"):format(v) end
      end
      return table.concat(list, " ")
    end
    for i = 1, 150 do c:schedule(step, { tm.tensor(i, "int64") }) end
    say "go"
    c:join()
    local out = io.open(DIR .. "/bits", "w")
    out:write(bits())
    out:close()
  ]]

  it("gives the same bits as an undisturbed run, slots too", function()
    local function result(kill)
      local k = clusters.start(1, 2)
      k:chief(script(training, 1))
      k:says "go"
      for _, i in ipairs(kill) do
        P.sleep(0.15)
        k:kill("ps", i)
        k:run("ps", i)
      end
      k:ends(20)
      local f = assert(io.open(k.dir .. "/bits"))
      local s = f:read "a"
      f:close()
      return s
    end
    local want = result {}
    assert.is_true(#want > 1000)
    assert.equal(want, result { 0 })
    assert.equal(want, result { 1 })
  end)

  it("bears a loss while variables are made", function()
    for _, which in ipairs { 0, 1 } do
      local k = clusters.start(1, 2)
      k:chief(script([[
        local list = {}
        strategy:scope(function()
          for i = 1, 60 do
            list[i] = tm.Variable(tm.fill({ 1000, 30 }, i), { name = "v" .. i })
            if i == 5 then say "go" end
            tm.sleep(0.005)
          end
        end)
        local sum = 0
        for i, v in ipairs(list) do sum = sum + tm.reduce_mean(v:read()):item() - i end
        c:schedule(function() for _, v in ipairs(list) do v:assign_add(tm.ones{ 1000, 30 }) end end)
        c:join()
        for i, v in ipairs(list) do sum = sum + tm.reduce_mean(v:read()):item() - i - 1 end
        say(sum)
      ]], 1))
      k:says "go"
      k:kill("ps", which)
      k:run("ps", which)
      assert.equal("go\n0\n", (k:ends(20):gsub("0%.0\n", "0\n")), k.boss:err())
    end
  end)

  it("bears the loss of a copy that is being made", function()
    local k = clusters.start(1, 2)
    k:chief(script([[
      local big = {}
      strategy:scope(function()
        for i = 1, 16 do big[i] = tm.Variable(tm.fill({ 1000, 1000 }, i), { name = "big" .. i }) end
      end)
      run(20)
      c:join()
      say "go"
      run(400)
      await "killed"
      c:join()
      say(copied(), exact(420))
      await "other"
      local sum = 0
      for i, v in ipairs(big) do sum = sum + tm.reduce_mean(v:read()):item() - i end
      say(exact(420), sum)
    ]], 1))
    k:says "go"
    k:kill("ps", 1)
    for _ = 1, 3 do
      k:run("ps", 1)
      assert(k.tasks.ps[1]:says "listens")
      P.sleep(0.05)
      k:kill("ps", 1)
    end
    k:run("ps", 1)
    k:tell "killed"
    k:says "true\ttrue"
    k:kill("ps", 0) -- ps 1 has everything
    k:tell "other"
    assert.equal("go\ntrue\ttrue\ntrue\t0\n", (k:ends(20):gsub("0%.0\n", "0\n")), k.boss:err())
  end)

  it("refuses a ps that was stopped and comes back, and makes it a copy again", function()
    local k = clusters.start(2, 2)
    k:chief(script [[
      run(300)
      say "go"
      c:join()
      say(exact(300))
      await "woken"
      say(copied(), exact(300))
      run(100)
      c:join()
      await "other"
      run(100)
      c:join()
      say(exact(500))
    ]])
    k:says "go"
    P.sleep(0.1)
    k:signal("STOP", "ps", 0)
    k:says "true\n"
    k:signal("CONT", "ps", 0)
    k:tell "woken"
    k:says "true\ttrue\n"
    k:kill("ps", 1)
    k:tell "other"
    assert.equal("go\ntrue\ntrue\ttrue\ntrue\n", k:ends(20), k.boss:err())
  end)

  it("bears a ps that stands still for less than heartbeat_timeout", function()
    local k = clusters.start(2, 2)
    k:chief(script [[
      run(200)
      say "go"
      c:join()
      say(exact(200), c:stats().ps[1].copied)
    ]])
    k:says "go"
    k:signal("STOP", "ps", 0)
    P.sleep(0.5)
    k:signal("CONT", "ps", 0)
    assert.equal("go\ntrue\ttrue\n", k:ends(), k.boss:err())
    assert.is_falsy(k.boss:err():find "is lost")
  end)

  it("says unavailable when the second ps is lost before there is a copy again", function()
    local k = clusters.start(2, 2)
    k:chief(script [[
      run(300)
      say "go"
      try(c.join, c)
      try(a.read, a)
      try(c.schedule, c, count)
    ]])
    k:says "go"
    k:kill("ps", 0)
    P.sleep(0.1)
    k:kill("ps", 1)
    k:ends()
    local n = 0
    for _ in k.boss:out():gmatch "\nunavailable /job:ps/task:[01]" do n = n + 1 end
    assert.equal(3, n, k.boss:out())
  end)

  it("is restored from a checkpoint then, if on_ps_failure says so", function()
    local k = clusters.start(2, 2)
    k:chief(script([[
      local manager = tm.train.CheckpointManager(tm.train.Checkpoint{ a = a, b = b }, DIR .. "/ckpt")
      c.checkpoint_manager = manager
      local lost = 0
      c:on_restore(function(r) lost = lost + r.closures end)
      run(50)
      c:join()
      assert(manager:save())
      run(200)
      say "go"
      c:join()
      local n = a:read():item()
      say(n == b:read():item(), n == c:stats().steps - lost, c:stats().rollbacks, copied())
      await "again"
      run(100)
      c:join()
      say(a:read():item() == n + 100)
    ]], 2, 2, 'on_ps_failure = "restore"'))
    k:says "go"
    P.sleep(0.1)
    k:kill("ps", 0)
    k:kill("ps", 1)
    P.sleep(0.2)
    k:run("ps", 0)
    k:run("ps", 1)
    k:says("true\ttrue\t1\ttrue", 20)
    k:kill("ps", 1)
    k:tell "again"
    assert.equal("go\ntrue\ttrue\t1\ttrue\ntrue\n", k:ends(20), k.boss:err())
  end)

  it("saves and restores a checkpoint while a ps is away", function()
    local k = clusters.start(2, 2)
    k:chief(script [[
      local checkpoint = tm.train.Checkpoint{ a = a, b = b }
      run(100)
      say "go"
      c:join()
      local path = checkpoint:save(DIR .. "/ckpt/x")
      run(50)
      c:join()
      checkpoint:restore(path)
      say(a:read():item(), b:read():item())
      await "back"
      say(copied())
      await "other"
      say(a:read():item(), b:read():item())
    ]])
    k:says "go"
    k:kill("ps", 0)
    k:says "100\t100"
    k:run("ps", 0)
    k:tell "back"
    k:says "true"
    k:kill("ps", 1)
    k:tell "other"
    assert.equal("go\n100\t100\ntrue\n100\t100\n", k:ends(20), k.boss:err())
  end)

  it("needs two ps, and does nothing on a local cluster", function()
    local spec = tm.distribute.ClusterSpec { worker = { "h:1" }, ps = { "h:2" } }
    local ok, e = pcall(tm.distribute.ParameterServerStrategy, tm.distribute.SimpleClusterResolver(spec),
      { replicas = 1 })
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
    assert.is_truthy(e.message:find "two ps", e.message)
    ok, e = pcall(tm.distribute.ParameterServerStrategy, tm.distribute.local_cluster { workers = 1, ps = 1 },
      { replicas = 2 })
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
    local s = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = 1 },
      { replicas = 1 })
    s:close()
  end)
end)
