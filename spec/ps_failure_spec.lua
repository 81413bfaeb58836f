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
    it(("is restored while functions run and the chief joins: ps %s killed (pain points 1, 10, 11)")
      :format(name), function()
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

  --- A chief whose ps 0 is killed once it says "go", and is back 0.1 s later.
  local function killed(policy, text, plain)
    local k = clusters.start(2, 2)
    k:chief(script(policy, text, plain))
    k:says "go"
    k:kill("ps", 0)
    P.sleep(0.1)
    k:run("ps", 0)
    return k
  end

  it("is restored while the chief fetches, with and without a timeout", function()
    local k = killed("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      local r = c:schedule(function() tm.sleep(0.3) a:assign_add(1) b:assign_add(1) return a + b end)
      local early = c:schedule(function() return tm.tensor(7) end):fetch()
      say "go"
      local ok, e = pcall(r.fetch, r, { timeout = 0.02 })
      say(early, ok, e.code)
      say(r:fetch(), a:read():item(), b:read():item(), restored)
    ]])
    local out = k:ends()
    assert.is_truthy(out:find "7[.0]*\tfalse\tdeadline_exceeded\nrestored[^\n]*\n42\t21\t21\t1\n$", out .. k.boss:err())
  end)

  -- Its UPDATE is in a checkpoint while it sleeps; it ends after the loss, or before.
  local sleeper = [[
    local late = tm.func(function()
      a:assign_add(1) b:assign_add(1)
      local x = a + b
      tm.sleep(SECONDS)
      return x
    end)
    run(20)
    c:join()
    for _ = 1, 2 do c:schedule(late) end
    while a:read():item() < 22 or b:read():item() < 22 do tm.sleep(0.01) end
    assert(manager:save())
    run(30)
  ]]
  for _, policy in ipairs { "restore", "restore_shards" } do
    it(("counts a function once that was unfinished in the checkpoint: %q"):format(policy), function()
      local text = sleeper:gsub("SECONDS", "0.8") .. [[
        say "go"
        while restored < 1 do a:read() tm.sleep(0.01) end
        c:join()
        say(a:read():item() == 52 - lost, b:read():item() == 52 - (POLICY == "restore" and lost or 0), c:stats().steps)
      ]]
      local k = killed(policy, (text:gsub("POLICY", ("%q"):format(policy))))
      local out = k:ends()
      assert.is_truthy(out:find "true\ttrue\t52\n$", out .. k.boss:err())
    end)
  end

  it("counts a function once that was unfinished in the checkpoint, where both copies are lost", function()
    local k = clusters.start(2, 2)
    local text = script("restore", sleeper:gsub("SECONDS", "0.8") .. [[
      say "go"
      while restored < 1 do a:read() tm.sleep(0.01) end
      c:join()
      say(a:read():item() == 52 - lost, b:read():item() == 52 - lost, c:stats().steps)
    ]])
    k:chief((text:gsub("on_ps_failure", "replicas = 1, %0")))
    k:says "go"
    for i = 0, 1 do k:kill("ps", i) end
    for i = 0, 1 do k:run("ps", i) end
    local out = k:ends()
    assert.is_truthy(out:find "true\ttrue\t52\n$", out .. k.boss:err())
  end)

  it("does not count as lost what was in the checkpoint and ended after it, again and again", function()
    local k = killed("restore", sleeper:gsub("SECONDS", "0.2") .. [[
      c:join()
      say "go"
      while restored < 1 do a:read() tm.sleep(0.01) end
      say(a:read():item(), b:read():item(), c:stats().steps, lost)
      run(10)
      c:join()
      say "again"
      while restored < 2 do a:read() tm.sleep(0.01) end
      say(a:read():item(), b:read():item(), c:stats().steps, lost)
      assert(manager:save())
      run(5)
      c:join()
      say(a:read():item(), b:read():item(), c:stats().steps, lost)
    ]])
    k:says "again"
    k:kill("ps", 1)
    k:run("ps", 1)
    local out = k:ends()
    assert.is_truthy(out:find "\n22\t22\t52\t30\nagain\nrestored[^\n]*\n22\t22\t62\t40\n27\t27\t67\t40\n$",
      out .. k.boss:err())
  end)

  it("loses no count when a worker dies between an update and its completion", function()
    local k = clusters.start(2, 2)
    k:chief(script("restore", sleeper:gsub("SECONDS", "0.6"):gsub("assert%(manager:save%(%)%)", [[
      say "kill"
      await "killed"
      assert(manager:save())]]) .. [[
      say "go"
      while restored < 1 do a:read() tm.sleep(0.01) end
      c:join()
      say(a:read():item() == c:stats().steps - lost, b:read():item() == a:read():item(), c:stats().steps, restored)
    ]]))
    k:says "kill"
    k:kill("worker", 0)
    k:tell "killed"
    k:run("worker", 0)
    k:says "go"
    k:kill("ps", 0)
    k:run("ps", 0)
    local out = k:ends()
    assert.is_truthy(out:find "true\ttrue\t52\t1\n$", out .. k.boss:err())
  end)

  it("is restored when only the chief's own reads and assigns meet it", function()
    local k = killed("restore", [[
      a:assign(5) b:assign(6)
      assert(manager:save())
      a:assign(50) b:assign(60)
      say "go"
      await "killed"
      say(a:read():item(), b:read():item())
      b:assign_add(1)
      a:assign_add(1)
      say(a:read():item(), b:read():item(), c:stats().rollbacks)
    ]])
    k:tell "killed"
    local out = k:ends()
    assert.is_truthy(out:find "restored[^\n]*\n5\t6\n6\t7\t1\n$", out .. k.boss:err())
  end)

  it("is restored under variables that are being made", function()
    local k = killed("restore", [[
      run(10)
      c:join()
      assert(manager:save())
      local made = {}
      strategy:scope(function()
        for i = 1, 40 do
          made[i] = tm.Variable(i, { name = "made" .. i })
          if i == 3 then say "go" end
          tm.sleep(0.01)
        end
      end)
      local sum = 0
      for i = 1, 40 do sum = sum + made[i]:read():item() end
      c:schedule(function() made[1]:assign_add(1) made[2]:assign_add(1) end)
      c:join()
      say(sum, made[1]:read():item(), made[2]:read():item(), a:read():item(), b:read():item(), restored)
    ]])
    local out = k:ends()
    assert.is_truthy(out:find "\n820[.0]*\t2[.0]*\t3[.0]*\t10\t10\t1\n$", out .. k.boss:err())
    assert.is_truthy(k.boss:err():find "variables start from their initial values", k.boss:err())
  end)

  it("is restored under a checkpoint that is being written, and the one before stays whole", function()
    local k = killed("restore", [[
      local big
      strategy:scope(function() big = tm.Variable(tm.zeros({ 2000, 1000 }), { name = "big" }) end)
      checkpoint.big = big
      big:assign(tm.ones({ 2000, 1000 }))
      run(10)
      c:join()
      assert(manager:save())
      run(10)
      c:join()
      say "go"
      for _ = 1, 15 do
        local path, err = manager:save()
        say(path and "saved" or err.code)
      end
      c:join()
      local n = a:read():item()
      say(big:read():reduce_sum():item(), n == c:stats().steps - lost, n == b:read():item(), n >= 10, restored)
    ]])
    local out = k:ends(20)
    assert.is_truthy(out:find "\n2000000%.?0?\ttrue\ttrue\ttrue\t1\n$", out .. k.boss:err())
    assert.is_falsy(out:find "unavailable", out)
  end)

  it("is restored under checkpoints that are written while functions run", function()
    local k = clusters.start(2, 2)
    k:chief(script("restore", [[
      run(10)
      c:join()
      assert(manager:save())
      run(300, slow)
      say "go"
      while not c:done() do assert(manager:save()) end
      local n = a:read():item()
      local steps = c:stats().steps -- what ran while a checkpoint began may be in it
      say(n >= steps - lost and n <= steps, n == b:read():item(), restored >= 1)
    ]]))
    k:says "go"
    for i = 1, 3 do
      P.sleep(0.1 + 0.03 * i)
      k:kill("ps", i % 2)
      k:run("ps", i % 2)
    end
    local out = k:ends(20)
    assert.is_truthy(out:find "\ntrue\ttrue\ttrue\n$", out .. k.boss:err())
  end)

  it("is restored again when a ps is killed during the restoring", function()
    local k = clusters.start(2, 2)
    k:chief(script("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      run(300, slow)
      say "go"
      c:join()
      say(a:read():item() == c:stats().steps - lost, a:read():item() == b:read():item())
    ]]))
    k:says "go"
    for i = 1, 6 do
      local which = i % 2
      k:kill("ps", which)
      P.sleep(0.01 * i)
      k:run("ps", which)
      P.sleep(0.02)
    end
    local out = k:ends(20)
    assert.is_truthy(out:find "restored[^\n]*\ntrue\ttrue\n$", out .. k.boss:err())
  end)

  it("that is stopped for longer than heartbeat_timeout is started anew when it wakes", function()
    local k = clusters.start(2, 2)
    k:chief(script("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      run(100, slow)
      say "go"
      c:join()
      say(a:read():item() == c:stats().steps - lost, a:read():item() == b:read():item(), restored)
    ]]))
    k:says "go"
    k:signal("STOP", "ps", 1)
    k:says("task:1 is lost", 5)
    P.sleep(0.3)
    k:signal("CONT", "ps", 1)
    local out = k:ends(20)
    assert.is_truthy(out:find "restored[^\n]*\ntrue\ttrue\t1\n$", out .. k.boss:err())
  end)

  it("that is stopped for 3 s is not dead", function()
    local k = clusters.start(2, 2)
    k:chief((script("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      run(50, slow)
      say "go"
      c:join()
      say(a:read():item(), b:read():item(), restored, c:stats().retries)
    ]]):gsub("heartbeat_timeout = 1", "heartbeat_timeout = 10")))
    k:says "go"
    k:signal("STOP", "ps", 1)
    P.sleep(3)
    k:signal("CONT", "ps", 1)
    assert.equal("go\n70\t70\t0\t0\n", k:ends())
  end)

  it("is started again by launch, and training ends well (pain points 3, 11)", function()
    local text = script("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      run(200, slow)
      say "go"
      c:join()
      say(a:read():item() == c:stats().steps - lost, a:read():item() == b:read():item(), restored)
    ]])
    local p = P.run({ "launch", "--workers", "2", "--ps", "2", P.script(text) }, { DIR = P.dir() })
    assert.is_truthy(p:says "go")
    P.sleep(0.1)
    P.signal("KILL", P.task("ps", 1))
    assert.equal(0, p:wait(20), p:out() .. p:err())
    assert.is_truthy(p:out():find "restored[^\n]*\ntrue\ttrue\t1\n$", p:out() .. p:err())
  end)

  it("without a checkpoint manager is failed_precondition, which names it, each time until there is one", function()
    local k = killed("restore", [[
      run(20)
      c:join()
      assert(manager:save())
      run(20)
      c:join()
      say "go"
      await "killed"
      try(c.join, c)
      try(a.read, a)
      try(function() local _, err = manager:save() error(err, 0) end)
      c.checkpoint_manager = manager
      say(a:read():item(), b:read():item(), restored)
    ]], true)
    k:tell "killed"
    local out = k:ends()
    local line = "failed_precondition [^\n]*coordinator%.checkpoint_manager[^\n]*\n"
    assert.is_truthy(out:find("go\n" .. line .. line .. line .. "restored[^\n]*\n20\t20\t1\n$"), out .. k.boss:err())
  end)

  it("without a checkpoint begins with initial values, which is said", function()
    local k = killed("restore", [[
      run(20)
      c:join()
      say "go"
      await "killed"
      run(5)
      c:join()
      say(a:read():item(), b:read():item(), lost, c:stats().rollbacks)
    ]])
    k:tell "killed"
    local out = k:ends()
    assert.is_truthy(out:find "restored\tnil\t[^\n]*\n5\t5\t20\t1\n$" , out .. k.boss:err())
    local err = k.boss:err()
    assert.is_truthy(err:find "2 variables start from their initial values, there is no checkpoint yet", err)
  end)

  it('with "restore_shards" is restored alone: other ps keep what they have, each function once', function()
    local k = killed("restore_shards", [[
      run(20)
      c:join()
      assert(manager:save())
      run(20)
      c:join()
      run(200, slow)
      say "go"
      c:join()
      local n = c:stats().steps
      say(b:read():item() == 240, a:read():item() == n - lost, n >= 240, lost >= 20, restored)
    ]])
    local out = k:ends()
    assert.is_truthy(out:find "restored\tckpt%-1\t/job:ps/task:0\ntrue\ttrue\ttrue\ttrue\t1\n$", out .. k.boss:err())
  end)

  it("is survived by the loop of docs/running.md (pain points 1, 2, 11)", function()
    local text = io.open("docs/running.md"):read("a"):match "## A ps that comes back.-```lua\n(.-)```"
    local k = clusters.start(2, 2)
    text = text:gsub('"runs/demo"', ("%q"):format(k.dir .. "/demo")):gsub("local path, err", 'print "saved" %0')
    k:chief("io.stdout:setvbuf 'line'\n" .. text)
    for i = 0, 1 do
      k:says(i == 0 and "saved" or "are lost.*saved")
      k:kill("ps", i)
      k:run("ps", i)
      k:says(i == 0 and "are lost" or "are lost.*are lost")
    end
    local out = k:ends(20)
    assert.is_truthy(out:find "done\t2%d%d%d\t2\n$", out .. k.boss:err())
  end)

  it("is a matter of options that are checked", function()
    local tm = require "tidemill"
    local D = tm.distribute
    local function code(f, ...)
      local ok, e = pcall(f, ...)
      return not ok and e.code or ok, tostring(e)
    end
    local cluster = D.local_cluster{ workers = 1, ps = 1 }
    local got, text = code(D.ParameterServerStrategy, cluster, { on_ps_failure = "retry" })
    assert.equal("invalid_argument", got)
    assert.is_truthy(text:find("restore_shards", 1, true) and text:find("retry", 1, true))
    local strategy = D.ParameterServerStrategy(cluster, { on_ps_failure = "restore" })
    local c = D.ClusterCoordinator(strategy)
    assert.equal("invalid_argument", code(function() c.checkpoint_manager = "runs" end))
    assert.equal("invalid_argument", code(function() c.checkpoint_manager = tm.train.Checkpoint{} end))
    assert.equal("invalid_argument", code(c.on_restore, c, 7))
    local manager = tm.train.CheckpointManager(tm.train.Checkpoint{}, P.dir())
    c.checkpoint_manager = manager
    assert.equal(manager, c.checkpoint_manager)
    c.checkpoint_manager = nil
    assert.is_nil(c.checkpoint_manager)
    assert.equal(0, c:stats().rollbacks)
    c:close()
  end)
end)
