-- Rounds under failures: workers and ps that die in the middle of one.  Real processes,
-- real signals.
--
-- Every function applies the gradient 1 to a row of its own in two tables on two ps, so
-- that row says how many shared its round: -1/k after a round of k, and of such rows
-- there is a multiple of k.  Anything half applied, lost or doubled shows.
local clusters = dofile "spec/tools/cluster.lua"
local tasks = dofile "spec/tools/tasks.lua"
local wires = dofile "spec/tools/wires.lua"
local P = clusters.P

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR, N = os.getenv "DIR", 4000
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = WORKERS, ps = 2 }, { heartbeat_interval = 0.2,
  heartbeat_timeout = 1, placement = "round_robin", mode = "sync", OPTIONS })
local a, b, one, two, opt
strategy:scope(function()
  local function table_of(name)
    return tm.Variable(function(shape) return tm.zeros(shape) end, { shape = { N, 1 }, dtype = "float32", name = name })
  end
  a = tm.Variable(0, { dtype = "int64", name = "a" })
  b = tm.Variable(0, { dtype = "int64", name = "b" })
  one, two = table_of "one", table_of "two"
  opt = tm.optimizers.SGD{ learning_rate = 1 }
end)
local c = D.ClusterCoordinator(strategy)
local function body(id)
  local tape = tm.GradientTape()
  local loss = tm.reduce_sum(one:sparse_read(id)) + tm.reduce_sum(two:sparse_read(id))
  opt:apply_gradients(tape:gradient(loss, { one, two }), { one, two })
  a:assign_add(1)
  b:assign_add(1)
end
local fast = tm.func(body)
local slow = tm.func(function(id) tm.sleep(0.005) body(id) end)
local next_id = 0
local function run(n, f)
  for _ = 1, n do
    c:schedule(f or slow, { tm.tensor({ next_id }, "int64") })
    next_id = next_id + 1
  end
end
--- "exact" if all is consistent, and how many rows are set; else why not.
local function check(n)
  local x, y, sizes, set = one:read():totable(), two:read():totable(), {}, 0
  for i = 1, N do
    local v, w = x[i][1], y[i][1]
    if v ~= w then return ("row %d: %g and %g"):format(i, v, w) end
    if v ~= 0 then
      local k = math.floor(-1 / v + 0.5)
      if k < 1 or k > WORKERS or math.abs(v + 1 / k) > 1e-6 then return ("row %d: %g"):format(i, v) end
      sizes[k] = (sizes[k] or 0) + 1
      set = set + 1
    end
  end
  local rounds = 0
  for k, m in pairs(sizes) do
    if m % k ~= 0 then return ("%d rows of rounds of %d"):format(m, k) end
    rounds = rounds + m / k
  end
  if rounds ~= opt.iterations:read():item() then
    return ("%d rounds, iterations %d"):format(rounds, opt.iterations:read():item())
  end
  if n and (set ~= n or a:read():item() ~= n or b:read():item() ~= n or c:stats().steps ~= n) then
    return ("%d rows, %d, %d, %d steps, not %d"):format(set, a:read():item(), b:read():item(), c:stats().steps, n)
  end
  return "exact", set
end
local function exact(n) return (check(n)) end
local function copied()
  for _ = 1, 1000 * PATIENCE do
    local all = true
    for _, p in ipairs(c:stats().ps) do all = all and p.copied and p.state == "ready" end
    if all then return true end
    tm.sleep(0.01)
  end
  return false
end
]]

local function script(text, workers, options)
  local top = head:gsub("PATIENCE", P.patience)
  return (top:gsub("WORKERS", workers or 3):gsub("OPTIONS", options or "")) .. text
end

describe("a round", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("loses and doubles nothing when workers are killed in the middle of it", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      run(300)
      say "go"
      c:join()
      say(exact(300))
    ]])
    k:says "go"
    for i = 1, 6 do
      P.sleep(0.04 + 0.013 * i)
      k:kill("worker", i % 3)
      P.sleep(0.02)
      k:run("worker", i % 3)
    end
    assert.equal("go\nexact\n", k:ends(30), k.boss:err())
  end)

  it("counts on both ps or on none when a worker dies between its updates to two ps", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      run(90)
      say "go"
      c:join()
      say(exact(90))
    ]])
    k:says "go"
    for i = 0, 1 do
      P.sleep(0.05)
      k:signal("STOP", "ps", 1) -- updates of the first ps go on, those of the second wait
      P.sleep(0.1)
      k:kill("worker", i)
      P.sleep(0.1)
      k:signal("CONT", "ps", 1)
    end
    assert.equal("go\nexact\n", k:ends(30), k.boss:err())
  end)

  it("is one of those who are left when all workers but one are killed", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      run(120)
      say "go"
      c:join()
      say(exact(120))
    ]])
    k:says "go"
    P.sleep(0.1)
    k:kill("worker", 0)
    k:kill("worker", 2)
    assert.equal("go\nexact\n", k:ends(30), k.boss:err())
  end)

  it("waits while all workers are gone, and goes on when one is back", function()
    local k = clusters.start(2, 2)
    k:chief(script([[
      run(60)
      say "go"
      c:join()
      say(exact(60))
    ]], 2))
    k:says "go"
    P.sleep(0.05)
    k:kill("worker", 0)
    k:kill("worker", 1)
    P.sleep(0.1)
    k:run("worker", 1)
    assert.equal("go\nexact\n", k:ends(30), k.boss:err())
  end)

  it("that a function fails in is void: the first error, and the coordinator goes on", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      run(30)
      c:join()
      say(exact(30))
      local bad = tm.func(function(id)
        body(id)
        return tm.gather(tm.tensor{ 1, 2 }, tm.cast(id + 5000, "int64"))
      end)
      local ok, e = pcall(function()
        run(1, bad)
        run(20)
        c:join()
      end)
      say(ok, e.code)
      local before, set = exact(), a:read():item()
      say(before, set == b:read():item())
      run(30)
      c:join()
      say(exact(), a:read():item() == set + 30)
      local ok, e = pcall(c.join, c, { timeout = 0.05 })
      say(ok)
      run(40)
      ok, e = pcall(c.join, c, { timeout = 0.02 })
      say(ok, e.code)
      c:join()
      say(exact())
    ]])
    assert.equal("exact\nfalse\tinvalid_argument\nexact\ttrue\nexact\ttrue\ntrue\nfalse\tdeadline_exceeded\nexact\n",
      k:ends(30), k.boss:err())
  end)

  it("is as large as there are workers: one is removed, and one is there again", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      run(60)
      c:join()
      say(exact(60), opt.iterations:read():item())
      run(60)
      c:remove_worker(1)
      c:join()
      say(exact(120))
      local before = opt.iterations:read():item()
      run(60)
      c:join()
      say(exact(180), opt.iterations:read():item() - before)
    ]])
    assert.equal("exact\t20\nexact\nexact\t30\n", k:ends(30), k.boss:err())
  end)

  for _, which in ipairs { 0, 1 } do
    it(("is on the copy too when ps %d is killed in the middle of it (replicas = 1)"):format(which), function()
      local k = clusters.start(3, 2)
      k:chief(script([[
        run(200)
        say "go"
        c:join()
        say(exact(200), copied())
        run(300, fast)
        c:join()
        say(exact(500))
      ]], 3, "replicas = 1"))
      k:says "go"
      P.sleep(0.1)
      k:kill("ps", which)
      P.sleep(0.15)
      k:run("ps", which) -- its copy is made while rounds are under way
      assert.equal("go\nexact\ttrue\nexact\n", k:ends(30), k.boss:err())
    end)
  end

  it("is on a copy that was made while it was under way", function()
    local k = clusters.start(3, 2)
    k:chief(script([[
      local n = 0
      for i = 1, 3 do
        assert(copied())
        say("copied " .. i)
        while copied() and not io.open(DIR .. "/killed" .. i) do -- rounds all the time
          run(30)
          n = n + 30
          c:join()
        end
      end
      run(60)
      c:join()
      say(exact(n + 60))
    ]], 3, "replicas = 1"))
    for i = 1, 3 do
      k:says("copied " .. i, 20)
      local which = i % 2
      k:kill("ps", which)
      k:run("ps", which)
      P.sleep(0.3)
      k:tell("killed" .. i)
    end
    assert.is_truthy(k:ends(60):find "exact\n$", k.boss:out() .. k.boss:err())
  end)

  for _, policy in ipairs { "restore", "restore_shards" } do
    it(("under way is thrown away when a ps is lost and restored: %q"):format(policy), function()
      local k = clusters.start(3, 2)
      local text = [[
        c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ a = a, b = b, one = one, two = two,
          opt = opt }, DIR .. "/ckpt")
        local lost = 0
        c:on_restore(function(r) lost = lost + r.closures end)
        run(60)
        c:join()
        run(200)
        tm.sleep(0.05)
        assert(c.checkpoint_manager:save()) -- in the middle of rounds
        say "go"
        c:join()
        local steps = c:stats().steps
        say(steps, c:stats().rollbacks)
        if POLICY then
          say("shards", lost > 0)
        else
          local how, set = check()
          say(how, set and set + lost == steps)
        end
        run(30)
        c:join()
        say(c:stats().steps - steps)
      ]]
      text = text:gsub("POLICY", policy == "restore" and "nil" or '"shards"')
      k:chief(script(text, 3, ('on_ps_failure = "%s"'):format(policy)))
      k:says "go"
      P.sleep(0.2)
      k:kill("ps", 1)
      P.sleep(0.1)
      k:run("ps", 1)
      local out = k:ends(30)
      if policy == "restore" then
        assert.equal("go\n260\t1\nexact\ttrue\n30\n", out, k.boss:err())
      else
        assert.equal("go\n260\t1\nshards\ttrue\n30\n", out, k.boss:err())
      end
    end)
  end

  it("ends once when connections to ps and workers are cut", function()
    local T = tasks.new(P, { workers = 3, ps = 2 })
    T.id = "wired"
    local list, own, jobs = {}, T.jobs, { ps = {}, worker = {} }
    for _, kind in ipairs { "ps", "worker" } do
      for i, address in ipairs(own[kind]) do
        local w = wires.new(P, tonumber(address:match ":(%d+)$"))
        list[#list + 1], jobs[kind][i] = w, "127.0.0.1:" .. w.port
      end
    end
    T.jobs = jobs
    for _, kind in ipairs { "ps", "worker" } do
      for i = 1, #own[kind] do T:task(kind, i - 1, { "--listen", own[kind][i] }) end
    end
    local chief = T:chief(script [[
      run(300)
      say "go"
      c:join()
      say(exact(300))
    ]])
    assert.is_truthy(chief:says("go", 10), chief:err())
    for _ = 1, 5 do
      for _, w in ipairs(list) do
        w.order "cut"
        P.sleep(0.012)
      end
    end
    assert.equal(0, chief:wait(30), chief:out() .. chief:err())
    assert.equal("go\nexact\n", chief:out(), chief:err())
  end)

  it("is in a checkpoint whole or not at all, and saving waits for no function", function()
    local k = clusters.start(3, 2)
    k:chief(script [[
      local core = require "tidemill.core"
      local checkpoint = tm.train.Checkpoint{ one = one, two = two, opt = opt }
      local last, seen = -1, 0
      run(400)
      for i = 1, 10 do
        local path = assert(checkpoint:write(DIR .. "/w" .. i))
        local r = assert(core.ckpt.open(path))
        local x, y = r:read "one":totable(), r:read "two":totable()
        local n = 0
        for i = 1, N do
          assert(x[i][1] == y[i][1])
          n = n - x[i][1]
        end
        local rounds = r:read "opt/iterations":item()
        r:close()
        assert(math.abs(n - rounds) < 1e-3, n .. " " .. rounds)
        assert(rounds >= last)
        last, seen = rounds, seen + (rounds > last and 1 or 0)
      end
      c:join()
      say(exact(400))
    ]])
    assert.equal("exact\n", k:ends(40), k.boss:err())
  end)
end)
