-- Workers that die, hang, come back, are new, are removed.  This process is the chief;
-- workers and ps are real processes, signals are real.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local D = tm.distribute

local function raised(code, pattern, f, ...)
  local ok, e = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(code, e.code, tostring(e))
  if pattern then assert.is_truthy(e.message:find(pattern), e.message) end
  return e
end

describe("workers", function()
  local T, strategy, c, counters, count

  -- A cluster of processes; a counter on each ps, that every function adds to.
  local function open(size, options)
    T = tasks.new(P, size)
    T:start()
    local o = { heartbeat_interval = 0.2, heartbeat_timeout = 1, placement = "round_robin" }
    for k, x in pairs(options or {}) do o[k] = x end
    strategy = D.ParameterServerStrategy(D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" }), o)
    c = D.ClusterCoordinator(strategy)
    counters = {}
    strategy:scope(function()
      for i = 1, size.ps or 1 do counters[i] = tm.Variable(0, { dtype = "int64", name = "counter" .. i }) end
    end)
    count = function()
      for _, v in ipairs(counters) do v:assign_add(1) end
    end
  end

  after_each(function()
    if strategy then strategy:close() end
    strategy = nil
    assert.same({}, P.cleanup())
  end)

  local function state(i) return c:stats().workers[i].state end
  local function await(i, what, seconds)
    assert.is_truthy(P.eventually(seconds or 5, function() return state(i) == what end), state(i))
  end

  --- Every function done counted once, on every ps.
  local function exact(n)
    c:join { timeout = 60 * P.patience }
    assert.equal(n, c:stats().steps)
    for _, v in ipairs(counters) do assert.equal(n, v:read():item()) end
  end

  --- Run fn while the workers in `others` are watched: the longest time one of them did not end a function.
  local function pause_of(others, seconds)
    local t, worst, last, at = P.now(), 0, {}, {}
    while P.now() - t < seconds do
      local w = c:stats().workers
      for _, i in ipairs(others) do
        if w[i].steps ~= last[i] then last[i], at[i] = w[i].steps, P.now() end
        worst = math.max(worst, P.now() - at[i])
      end
      P.sleep(0.002)
    end
    return worst
  end

  local function slow(seconds) return tm.func(function() tm.sleep(seconds) count() end) end

  it("that are killed: their functions run elsewhere at once, others never pause, each counts once", function()
    open { workers = 3, ps = 2 }
    local f = slow(0.005)
    for _ = 1, 1000 do c:schedule(f) end
    local before = pause_of({ 1, 3 }, 0.3) -- of the machine's own
    T.worker[2]:kill()
    local worst = pause_of({ 1, 3 }, 0.5)
    assert.is_true(worst < 0.1 + 3 * before, worst)
    await(2, "down")
    exact(1000)
    assert.is_true(c:stats().retries > 0)
  end)

  it("that start again at the same address are back at work within half a second", function()
    open { workers = 2, ps = 2 }
    local batches = c:create_per_worker_dataset(tm.data.range(1000000)):iterator()
    local f = tm.func(function(iterator)
      local x = iterator:next()
      tm.sleep(0.002)
      count()
      return x
    end)
    local n = 0
    for round = 1, 3 do
      for _ = 1, 1500 do c:schedule(f, { batches }) end
      n = n + 1500
      P.sleep(0.05)
      T.worker[1]:kill()
      await(1, "down")
      local before = c:stats().workers[1].steps
      local p = T:task("worker", 0)
      assert.is_truthy(p:says("listens", 5))
      local t = P.now()
      await(1, "ready")
      assert.is_truthy(P.eventually(2, function() return c:stats().workers[1].steps > before end))
      assert.is_true(P.within(0.5, t), ("round %d: %.3f s"):format(round, P.now() - t))
      exact(n)
    end
  end)

  it("that hang longer than the heartbeat and go on: late updates are refused, and they come back", function()
    open { workers = 2, ps = 2 }
    local f = slow(0.01)
    for _ = 1, 200 do c:schedule(f) end
    P.sleep(0.05)
    T.worker[1]:kill "STOP"
    await(1, "down")
    exact(200)
    T.worker[1]:kill "CONT"
    await(1, "ready")
    P.sleep(0.1)
    exact(200)
    for _ = 1, 100 do c:schedule(f) end
    exact(300)
    assert.is_true(c:stats().workers[1].steps > 20)
  end)

  it("that hang for less than the heartbeat lose nothing", function()
    open { workers = 2, ps = 1 }
    local f = slow(0.005)
    for _ = 1, 100 do c:schedule(f) end
    T.worker[1]:kill "STOP"
    P.sleep(0.4)
    T.worker[1]:kill "CONT"
    exact(100)
    assert.equal(0, c:stats().retries)
  end)

  it("that die while they connect are tried until they stay", function()
    open { workers = 2, ps = 2 }
    local f = slow(0.005)
    for _ = 1, 400 do c:schedule(f) end
    T.worker[1]:kill()
    for i = 1, 5 do
      local p = T:task("worker", 0)
      p:says("listens", 5)
      P.sleep(0.01 * i)
      p:kill()
      p:wait(5)
    end
    T:task("worker", 0)
    await(1, "ready")
    exact(400)
  end)

  it("that die while their dataset is built or in fetch leave its functions to others", function()
    open { workers = 2, ps = 2 }
    local ds = tm.data.range(100000):map(function(x)
      tm.sleep(0.02)
      return x
    end):shuffle(8)
    local batches = c:create_per_worker_dataset(ds):iterator()
    local f = tm.func(function(iterator)
      local x = iterator:next()
      count()
      return x
    end)
    for _ = 1, 60 do c:schedule(f, { batches }) end
    for _ = 1, 3 do
      P.sleep(0.12) -- the buffer of the shuffle is being filled
      T.worker[1]:kill()
      T.worker[1]:wait(5)
      T:task("worker", 0)
      await(1, "ready")
    end
    exact(60)
  end)

  it("that die while they compute leave the function to others", function()
    open { workers = 2, ps = 2 }
    local a = tm.fill({ 200, 200 }, 1e-3)
    local f = tm.func(function(x)
      local y = tm.while_loop(function(i) return i:less(40) end,
        function(i, z) return i + 1, tm.matmul(z, x) end, { tm.tensor(0), x })
      count()
      return tm.reduce_sum(y[2])
    end)
    local r = {}
    for i = 1, 40 do r[i] = c:schedule(f, { a }) end
    P.sleep(0.05)
    T.worker[1]:kill()
    exact(40)
    for i = 2, 40 do assert.equal(r[1]:fetch(), r[i]:fetch()) end
  end)

  it("that die between two updates to two ps count once on both", function()
    open { workers = 2, ps = 2 }
    local f = slow(0.005)
    for round = 1, 2 do
      for _ = 1, 60 do c:schedule(f) end
      P.sleep(0.05)
      T.ps[2]:kill "STOP" -- updates of the first ps go on, those of the second wait
      P.sleep(0.1)
      T.worker[1]:kill()
      P.sleep(0.2)
      T.ps[2]:kill "CONT"
      exact(60 * round)
      T.worker[1]:wait(5)
      T:task("worker", 0)
      await(1, "ready")
    end
  end)

  it("that die while they send a result, or are asked for one, give it by another worker", function()
    open { workers = 2, ps = 1 }
    local big = tm.func(function()
      tm.sleep(0.02)
      count()
      return tm.random.uniform({ 4000000 }, { seed = 3 })
    end)
    local r = {}
    for i = 1, 12 do r[i] = c:schedule(big) end
    P.sleep(0.06)
    T.worker[1]:kill()
    local first = tm.reduce_sum(r[1]:fetch()):item()
    for i = 2, 12 do assert.equal(first, tm.reduce_sum(r[i]:fetch()):item()) end
    exact(12)
    T.worker[1]:wait(5)
    T:task("worker", 0)
    await(1, "ready")
    local long = slow(0.3)
    local asked = { c:schedule(long), c:schedule(long) }
    P.sleep(0.1)
    T.worker[2]:kill()
    for _, x in ipairs(asked) do x:fetch { timeout = 5 } end
    exact(14)
  end)

  it("that are lost meanwhile: schedule from several coroutines on a full queue does not lock up", function()
    T = tasks.new(P, { workers = 2, ps = 1 }):start()
    strategy = D.ParameterServerStrategy(D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" }),
      { heartbeat_interval = 0.2, heartbeat_timeout = 1 })
    c = D.ClusterCoordinator(strategy, { queue_size = 4 })
    strategy:scope(function() counters = { tm.Variable(0, { dtype = "int64" }) } end)
    count = function() counters[1]:assign_add(1) end
    local f, ended = slow(0.002), 0
    for _ = 1, 5 do
      tm.async(function()
        for _ = 1, 60 do c:schedule(f) end
        ended = ended + 1
      end)
    end
    for i = 1, 100 do
      c:schedule(f)
      if i == 20 then T.worker[1]:kill() end
      if i == 50 then
        T.worker[2]:kill() -- none is left
        T.worker[1]:wait(5)
        T:task("worker", 0)
      end
    end
    while ended < 5 do c:join() end
    exact(400)
  end)

  -- The chief reaches the first worker through a wire that is cut, silent, slow.
  local function open_wired()
    T = tasks.new(P, { workers = 2, ps = 2 })
    T.id = "wired"
    T:start()
    local control = P.dir() .. "/control"
    io.open(control, "w"):close()
    local wire = P.start { (P.tidemill:gsub("tidemill$", "proxy")), T.jobs.worker[1], control }
    local port = wire:says "port (%d+)"
    local said = 0
    local function tell(line)
      local f = io.open(control, "a")
      f:write(line, "\n")
      f:close()
      said = said + 1
      assert.is_truthy(wire:says("done " .. said .. " "))
    end
    local jobs = { worker = { "127.0.0.1:" .. port, T.jobs.worker[2] }, ps = T.jobs.ps }
    local resolver = D.SimpleClusterResolver(D.ClusterSpec(jobs), { task_type = "chief" })
    resolver.cluster_id = function() return "wired" end
    strategy = D.ParameterServerStrategy(resolver, { heartbeat_interval = 0.2, heartbeat_timeout = 1,
      placement = "round_robin" })
    c = D.ClusterCoordinator(strategy)
    strategy:scope(function()
      counters = { tm.Variable(0, { dtype = "int64" }), tm.Variable(0, { dtype = "int64" }) }
    end)
    count = function()
      for _, v in ipairs(counters) do v:assign_add(1) end
    end
    return tell
  end

  it("whose connection is cut run nothing twice, and are back at once", function()
    local tell = open_wired()
    local f = slow(0.002)
    for round = 1, 5 do
      for _ = 1, 200 do c:schedule(f) end
      P.sleep(0.03)
      local retries = c:stats().retries
      tell "cut"
      local t = P.now()
      -- It may be back before anybody looks.
      assert.is_truthy(P.eventually(5, function() return c:stats().retries > retries or state(1) == "down" end))
      await(1, "ready")
      assert.is_true(P.within(0.5, t), P.now() - t)
      exact(200 * round)
    end
    for round = 6, 8 do -- in the middle of a message
      for _ = 1, 200 do c:schedule(f) end
      P.sleep(0.02)
      tell(round % 2 == 0 and "cutafter down 37" or "cutafter up 21")
      exact(200 * round)
    end
    await(1, "ready")
  end)

  it("whose connection is silent are lost after the heartbeat, and come back when it is not", function()
    local tell = open_wired()
    local f = slow(0.01)
    for _ = 1, 200 do c:schedule(f) end
    tell "drop on"
    P.sleep(0.5)
    tell "drop off" -- shorter than the heartbeat: nothing is lost
    P.sleep(0.1)
    assert.equal(0, c:stats().retries)
    tell "drop on"
    await(1, "down")
    tell "drop off"
    await(1, "ready")
    exact(200)
  end)

  it("whose messages are late lose nothing", function()
    local tell = open_wired()
    local f = slow(0.002)
    tell "delay 60"
    local t = P.now()
    for _ = 1, 300 do c:schedule(f) end
    exact(300)
    assert.is_true(P.within(1.5, t))
    assert.equal(0, c:stats().retries)
  end)

  it("that are slow do not hold up the last functions, nor lose a batch", function()
    open { workers = 2, ps = 1 }
    local batches = c:create_per_worker_dataset(tm.data.range(100000)):iterator()
    local f = tm.func(function(iterator)
      count()
      return iterator:next()
    end)
    local nap = slow(0.4)
    local seen, n = {}, 0
    for round = 1, 3 do
      local t = P.now()
      c:schedule(nap)
      local r = {}
      for i = 1, 6 do r[i] = c:schedule(f, { batches }) end
      for i = 1, 6 do
        local x = r[i]:fetch()
        seen[x] = (seen[x] or 0) + 1
      end
      assert.is_true(P.within(0.3, t), P.now() - t)
      n = n + 7
      exact(n)
      assert.is_true(P.within(1, t), round)
    end
    -- Each worker counts from 0 without a gap.
    local before = 2
    for x = 0, 17 do
      assert.is_true((seen[x] or 0) <= before, x)
      before = seen[x] or 0
    end
  end)

  it("that are all gone: the coordinator waits, and goes on when one is back", function()
    open { workers = 2, ps = 1 }
    local f = slow(0.005)
    for _ = 1, 100 do c:schedule(f) end
    T:each(function(p, kind) if kind == "worker" then p:kill() end end)
    await(1, "down")
    await(2, "down")
    local r, cpu = c:schedule(f), os.clock()
    raised("deadline_exceeded", nil, c.join, c, { timeout = 0.4 })
    assert.is_true(os.clock() - cpu < 0.2, "it waits, and does not spin")
    assert.is_false(r:done())
    T.worker[2]:wait(5)
    T:task("worker", 1)
    exact(101)
  end)

  it("that are all gone for worker_timeout are unavailable; the next one may come", function()
    open({ workers = 1, ps = 1 }, { worker_timeout = 0.4 })
    local f = slow(0.005)
    for _ = 1, 100 do c:schedule(f) end
    local late = c:schedule(f)
    T.worker[1]:kill()
    local t = P.now()
    local e = raised("unavailable", "worker_timeout", c.join, c)
    assert.equal("/job:worker/task:0", e.task)
    assert.is_true(P.now() - t > 0.3 and P.within(1.5, t), P.now() - t)
    raised("cancelled", nil, late.fetch, late)
    c:join() -- raised once
    T.worker[1]:wait(5)
    T:task("worker", 0)
    await(1, "ready")
    local n = c:stats().steps
    for _ = 1, 10 do c:schedule(f) end
    c:join()
    assert.equal(n + 10, c:stats().steps)
  end)

  it("that are added while training get work; one that is removed drains first", function()
    T = tasks.new(P, { workers = 2, ps = 1 })
    T.id = "grows"
    local second = table.remove(T.jobs.worker)
    T:start()
    local resolver = D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" })
    resolver.cluster_id = function() return "grows" end
    strategy = D.ParameterServerStrategy(resolver, { heartbeat_interval = 0.2, heartbeat_timeout = 1 })
    c = D.ClusterCoordinator(strategy)
    strategy:scope(function() counters = { tm.Variable(0, { dtype = "int64" }) } end)
    count = function() counters[1]:assign_add(1) end
    local batches = c:create_per_worker_dataset(tm.data.range(100000)):iterator()
    local f = tm.func(function(iterator)
      iterator:next()
      tm.sleep(0.005)
      count()
      return D.current_worker_index()
    end)
    for _ = 1, 100 do c:schedule(f, { batches }) end
    assert.equal(1, c:add_worker(second))
    assert.equal(2, strategy.num_workers)
    assert.equal("connecting", state(2))
    raised("already_exists", nil, c.add_worker, c, second)
    raised("already_exists", "/job:ps/task:0 already", c.add_worker, c, T.jobs.ps[1])
    for _, wrong in ipairs { "nowhere", "a b:22", "a:22x", "a:", ":22", "a:0", "a:65536", "a:22\0", "a:22\n" } do
      raised("invalid_argument", "host:port", c.add_worker, c, wrong)
    end
    T.jobs.worker[2] = second
    T:task("worker", 1)
    await(2, "ready")
    for _ = 1, 100 do c:schedule(f, { batches }) end
    exact(200)
    assert.is_true(c:stats().workers[2].steps > 20)
    for _ = 1, 50 do c:schedule(f, { batches }) end
    c:remove_worker(T.jobs.worker[1])
    assert.equal(1, strategy.num_workers)
    await(1, "removed")
    exact(250)
    raised("not_found", nil, c.remove_worker, c, T.jobs.worker[1])
    assert.is_nil(T.worker[1]:status()) -- it waits for another chief
  end)
end)

describe("workers that are all removed", function()
  it("leave what waits to a new one; worker_timeout says so and forgets who came and went", function()
    local strategy = D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 }, { worker_timeout = 0.3 })
    local c = D.ClusterCoordinator(strategy)
    c:remove_worker(0)
    assert.is_truthy(P.eventually(2, function() return c:stats().workers[1].state == "removed" end))
    local f = tm.func(function() return tm.ones { 1 } end)
    c:schedule(f)
    raised("unavailable", "all were removed: add_worker", c.join, c, { timeout = 5 })
    c:add_worker "another"
    assert.equal(1, c:schedule(f):fetch { timeout = 5 }[1]:item())
    c:close()
  end)
end)

describe("workers inside this process", function()
  it("are added under any name and removed", function()
    local strategy = D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 })
    local c = D.ClusterCoordinator(strategy)
    local v = strategy:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
    local batches = c:create_per_worker_dataset(tm.data.range(100000)):iterator()
    local f = tm.func(function(iterator)
      iterator:next()
      tm.sleep(0.002)
      v:assign_add(1)
      return D.current_worker_index()
    end)
    for _ = 1, 50 do c:schedule(f, { batches }) end
    assert.equal(1, c:add_worker "another")
    local seen = {}
    for i = 1, 50 do seen[i] = c:schedule(f, { batches }) end
    c:join()
    local both = {}
    for i = 1, 50 do both[seen[i]:fetch()] = true end
    assert.same({ [0] = true, [1] = true }, both)
    local each = strategy:scope(function() return D.PerWorkerVariable(3) end)
    assert.equal(2, #each:read_all())
    for _ = 1, 20 do c:schedule(f, { batches }) end
    c:remove_worker(0)
    c:join()
    assert.is_truthy(P.eventually(2, function() return c:stats().workers[1].state == "removed" end))
    assert.equal(1, #each:read_all())
    assert.equal(120, v:read():item())
    assert.equal("removed", c:stats().workers[1].state)
    assert.equal(1, strategy.num_workers)
    raised("not_found", nil, c.remove_worker, c, 0)
    c:close()
  end)
end)
