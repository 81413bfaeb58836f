-- What schedule, join, done and fetch promise, in one process and by processes; and what
-- users of other systems missed (pain points 16 to 25 and 27).
local tm = require "tidemill"
local clusters = dofile "spec/tools/cluster.lua"

local P, D = clusters.P, tm.distribute

local function raises(code, text, fn, ...)
  local r = table.pack(pcall(fn, ...))
  assert.is_false(r[1], "no error was raised")
  assert.is_true(tm.is_error(r[2], code), tostring(r[2]))
  if text then assert.is_truthy(tostring(r[2]):find(text, 1, true), tostring(r[2])) end
  return r[2]
end

local function took(fn, ...)
  local t = tm.time()
  fn(...)
  return tm.time() - t
end

--- A resolver of the processes of k.
local function resolver_of(k)
  local r = D.SimpleClusterResolver(D.ClusterSpec { worker = k.jobs.worker, ps = k.jobs.ps }, { task_type = "chief" })
  r.cluster_id = function() return "spec" end
  return r
end

local modes = {
  ["in one process"] = {
    start = function() end, stop = function() end,
    resolver = function(workers) return D.local_cluster { workers = workers, ps = 2 } end,
  },
}

local kept = {}
modes["by processes"] = {
  start = function()
    for workers = 1, 2 do kept[workers] = clusters.start(workers, 2) end
  end,
  stop = function()
    for _, k in pairs(kept) do
      for job, list in pairs(k.tasks) do
        for i in pairs(list) do k:kill(job, i) end
      end
    end
    kept = {}
    assert.same({}, P.cleanup())
  end,
  resolver = function(workers) return resolver_of(kept[workers]) end,
}

for name, mode in pairs(modes) do
  describe("closures " .. name, function()
    local s, c

    local function open(workers, options)
      s = D.ParameterServerStrategy(mode.resolver(workers), { heartbeat_interval = 0.2 })
      c = D.ClusterCoordinator(s, options)
    end

    local function counter()
      return s:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
    end

    setup(mode.start)
    teardown(mode.stop)
    after_each(function()
      if c then c:close() end
      c = nil
    end)

    it("start in the order in which they were scheduled", function()
      open(1)
      local v = s:scope(function() return tm.Variable(tm.zeros({ 200 }, "int64")) end)
      local n = counter()
      local f = tm.func(function(i)
        n:assign_add(1)
        v:scatter_update(tm.reshape(i, { 1 }), tm.reshape(n:read(), { 1 }))
      end)
      for i = 0, 199 do c:schedule(f, { tm.tensor(i, "int64") }) end
      c:join()
      local at = v:read():totable()
      for i = 1, 200 do assert.equal(i, at[i]) end
    end)

    it("are scheduled without waiting for any of them", function()
      open(2)
      local f, one = tm.func(function() tm.sleep(0.8) end), tm.func(function() return tm.tensor(1) end)
      assert.is_true(took(function()
        for _ = 1, 4 do c:schedule(f) end
        for _ = 1, 500 do c:schedule(one) end
      end) < 0.7)
      c:join()
    end)

    it("wait for room when the queue is full; coroutines yield meanwhile (L22, L24)", function()
      open(2, { queue_size = 3 })
      local v = counter()
      local f, done = tm.func(function() v:assign_add(1) end), 0
      for _ = 1, 4 do
        tm.async(function()
          for i = 1, 50 do
            c:schedule(f)
            if i % 20 == 0 then c:join() end
          end
          done = done + 1
        end)
      end
      for _ = 1, 50 do c:schedule(f) end
      assert.is_truthy(P.eventually(5, function()
        c:join()
        return done == 4
      end))
      c:join()
      assert.equal(250, v:read():item())
    end)

    it("never wait behind a straggler once another worker is idle", function()
      open(2)
      local long = tm.func(function() tm.sleep(1.2) end)
      local short = tm.func(function() tm.sleep(0.001) return tm.tensor(1) end)
      local last = {}
      for _ = 1, 50 do c:schedule(short) end
      c:join()
      local t0 = tm.time()
      c:schedule(long)
      for i = 1, 60 do last[i] = c:schedule(short) end
      for _, r in ipairs(last) do r:fetch() end
      assert.is_true(tm.time() - t0 < 1, tm.time() - t0)
      c:join()
    end)

    it("fail once: the first error wins, what waits is cancelled, what runs is awaited, the rest goes on", function()
      open(2)
      local v = counter()
      local bad = tm.func(function(text) return tm.assert_true(tm.tensor(false), text) end)
      local slow = tm.func(function() tm.sleep(0.05) v:assign_add(1) return v:read() end)
      for _, raise in ipairs { "join", "schedule", "done" } do
        local before = c:schedule(slow)
        before:fetch()
        local failed = c:schedule(bad, { "first" })
        local waiting = {}
        P.eventually(2, function() return failed:done() end)
        -- The error waits to be raised: what comes now is refused, then things go on.
        if raise == "schedule" then
          raises("invalid_argument", "first", c.schedule, c, slow)
        elseif raise == "done" then
          raises("invalid_argument", "first", c.done, c)
        else
          raises("invalid_argument", "first", c.join, c)
        end
        c:join() -- once
        for _ = 1, 2 do raises("invalid_argument", "first", failed.fetch, failed) end
        assert.is_number(before:fetch())
        failed = c:schedule(function() tm.sleep(0.2) return tm.assert_true(tm.tensor(false), "second") end)
        for i = 1, 60 do waiting[i] = c:schedule(slow) end
        local e = raises("invalid_argument", "second", c.join, c)
        assert.equal(0, c:stats().running)
        assert.truthy(e.task:find("/job:worker/task:", 1, true))
        raises("cancelled", nil, waiting[60].fetch, waiting[60])
        raises("invalid_argument", "second", failed.fetch, failed)
        local n = v:read():item()
        tm.sleep(0.06)
        assert.equal(n, v:read():item())
        assert.equal(n + 1, c:schedule(slow):fetch())
      end
    end)

    it("have errors typed by where they came from, not by their text (L23)", function()
      open(2)
      for _, text in ipairs { "/job:worker/replica:0/task:0 is unavailable", "UnavailableError: Socket closed",
        "GRPC error information from remote target /job:ps/replica:0/task:0" } do
        c:schedule(function() return tm.check_numerics(tm.tensor(0) / 0, text) end)
        local e = raises("invalid_argument", text, c.join, c)
        assert.is_nil(e.message:find "lost")
      end
      local st = c:stats()
      assert.equal(0, st.retries)
      for _, w in ipairs(st.workers) do assert.equal("ready", w.state) end
    end)

    it("stop within a second when an error strikes, in a long loop or product too", function()
      open(2)
      local x = tm.ones { 700, 700 }
      local loop = tm.func(function()
        return tm.while_loop(function(i) return i:less(1000000000) end, function(i) return i + 1 end,
          { tm.tensor(0) })[1]
      end)
      local product = tm.func(function(a)
        return tm.while_loop(function(i) return i:less(100000) end, function(i, y)
          return i + 1, tm.matmul(y, a) * 0.001
        end, { tm.tensor(0), a })[2]
      end)
      for _, f in ipairs { loop, product } do
        local running = c:schedule(f, f == product and { x } or {})
        c:schedule(function() tm.sleep(0.05) return tm.assert_true(tm.tensor(false), "stop") end)
        assert.is_true(took(raises, "invalid_argument", "stop", c.join, c) < 1)
        raises("cancelled", nil, running.fetch, running)
      end
    end)

    it("are waited for by join and fetch for a time, and go on when it is up (L18)", function()
      open(1)
      local v = counter()
      local r = c:schedule(function() tm.sleep(0.5) v:assign_add(1) return v:read() end)
      assert.is_true(took(raises, "deadline_exceeded", "closure 1 has no result", r.fetch, r, { timeout = 0.02 }) < 0.4)
      assert.is_true(took(raises, "deadline_exceeded", "join", c.join, c, { timeout = 0.02 }) < 0.4)
      assert.is_false(c:done())
      c:join { timeout = 5 * P.patience }
      assert.is_true(c:done())
      assert.equal(1, r:fetch { timeout = 0 })
    end)

    it("are fetched while others run, in lists and nested tables too", function()
      open(2)
      local long = c:schedule(function() tm.sleep(1) return tm.tensor(9) end)
      local f = tm.func(function(x) return { sum = x + 1, both = { x, x * 2 } }, tm.tensor { 1, 2 } end)
      local t = took(function()
        local a, b = c:schedule(f, { tm.tensor(3) }), c:schedule(f, { tm.tensor(4) })
        local first, second = a:fetch()
        assert.same({ sum = 4, both = { 3, 6 } }, first)
        assert.same({ 1, 2 }, second:totable())
        local all = c:fetch { x = { b, 5 }, y = "text", z = a }
        assert.same({ 4, 8 }, all.x[1].both)
        assert.equal(5, all.x[2])
        assert.equal("text", all.y)
        assert.equal(4, all.z.sum)
        assert.equal(4, a:get().sum:item())
      end)
      assert.is_true(t < 0.8, t)
      assert.is_false(long:done())
      assert.equal(9, long:fetch())
    end)

    it("take results of others as arguments, wherever those ran (L19)", function()
      open(2)
      local add = tm.func(function(a, b) return a + b.x[1] end)
      local r = c:schedule(function() return tm.tensor(1) end)
      for i = 1, 40 do r = c:schedule(add, { r, { x = { tm.tensor(i) } } }) end
      assert.equal(821, r:fetch())
      local failed = c:schedule(function() return tm.check_numerics(tm.tensor(0) / 0, "no value") end)
      P.eventually(2, function() return failed:done() end)
      pcall(c.join, c)
      local ok, after = pcall(c.schedule, c, add, { failed, { x = { tm.tensor(1) } } })
      if ok then ok, after = pcall(after.fetch, after) end
      assert.is_false(ok)
      assert.equal("invalid_argument", after.code)
      assert.truthy(after.message:find "argument.*no value", tostring(after))
      pcall(c.join, c)
    end)

    it("are scheduled, joined and fetched by coroutines beside the main program", function()
      open(2)
      local f = tm.func(function(x) tm.sleep(0.005) return x end)
      local sum = 0
      for k = 1, 5 do
        tm.async(function()
          for i = 1, 5 do
            local x = c:schedule(f, { tm.tensor(k * i) }):fetch()
            sum = sum + x
          end
          c:join()
        end)
      end
      assert.is_truthy(P.eventually(5, function()
        c:join()
        tm.sleep(0.001)
        return sum == 15 * 15
      end))
    end)

    it("of a coordinator that is closed raise failed_precondition, and values that came stay", function()
      open(2)
      local v = counter()
      local r = c:schedule(function() return tm.tensor(3) end)
      assert.equal(3, r:fetch())
      local it = c:create_per_worker_dataset(tm.data.range(5)):iterator()
      local ahead = c:schedule(function() tm.sleep(5) return tm.tensor(4) end)
      assert.is_true(took(c.close, c) < 1)
      for _, call in ipairs { "schedule", "join", "done", "stats", "status" } do
        raises("failed_precondition", "closed", c[call], c, function() end)
      end
      raises("failed_precondition", "closed", c.create_per_worker_dataset, c, tm.data.range(3))
      raises("failed_precondition", "closed", c.create_per_worker_resource, c, function() end)
      raises("failed_precondition", "closed", it.state, it)
      raises("failed_precondition", "closed", v.read, v)
      raises("cancelled", nil, ahead.fetch, ahead)
      assert.equal(3, r:fetch())
      c:close()
    end)

    it("leave nothing behind: no thread, no descriptor", function()
      local function held()
        local n = {}
        for _, what in ipairs { "fd", "task" } do
          local p = io.popen("ls /proc/" .. tostring(tm._pid or "$PPID") .. "/" .. what .. " | wc -l")
          n[what] = p:read "n"
          p:close()
        end
        return n
      end
      local function round()
        open(2)
        local it = c:create_per_worker_dataset(tm.data.range(50):prefetch(2):rep()):iterator()
        for _ = 1, 20 do c:schedule(function(i) return i:next() end, { it }) end
        c:schedule(function() return tm.assert_true(tm.tensor(false), "x") end)
        pcall(c.join, c)
        c:close()
        c = nil
      end
      round()
      local before
      P.eventually(1, function()
        before = held()
        return false
      end)
      for _ = 1, 3 do round() end
      assert.is_truthy(P.eventually(2, function()
        local now = held()
        return now.fd <= before.fd and now.task <= before.task
      end))
    end)
  end)
end

describe("a cluster that changes", function()
  local k, s, c, v, f

  local function open(workers, listed)
    k = clusters.start(workers, 1)
    local jobs = { worker = {}, ps = k.jobs.ps }
    for i = 1, listed do jobs.worker[i] = k.jobs.worker[i] end
    local r = D.SimpleClusterResolver(D.ClusterSpec(jobs), { task_type = "chief" })
    r.cluster_id = function() return "spec" end
    s = D.ParameterServerStrategy(r, { heartbeat_interval = 0.2, heartbeat_timeout = 1 })
    c = D.ClusterCoordinator(s)
    v = s:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
    f = tm.func(function() tm.sleep(0.002) v:assign_add(1) end)
  end

  local function run(n)
    for _ = 1, n do c:schedule(f) end
  end

  local function exact(n)
    c:join { timeout = 10 * P.patience }
    assert.equal(n, v:read():item())
  end

  local function ready(n)
    return P.eventually(5, function()
      local count = 0
      for _, w in ipairs(c:stats().workers) do count = count + (w.state == "ready" and 1 or 0) end
      return count == n
    end)
  end

  after_each(function()
    if c then c:close() end
    c = nil
    for job, list in pairs(k.tasks) do
      for i in pairs(list) do k:kill(job, i) end
    end
    assert.same({}, P.cleanup())
  end)

  it("takes and gives back workers under one coordinator (pain point 16: tensorflow 48601)", function()
    open(2, 1)
    run(100)
    c:add_worker(k.jobs.worker[2])
    assert.is_truthy(ready(2))
    run(100)
    c:remove_worker(k.jobs.worker[1])
    run(100)
    exact(300)
    assert.is_true(c:stats().workers[2].steps > 0)
  end)

  it("grows while functions run, and none waits for the new worker (pain point 17: tensorflow 6381)", function()
    open(3, 1)
    run(300)
    for i = 2, 3 do c:add_worker(k.jobs.worker[i]) end
    run(300)
    exact(600)
    for i = 2, 3 do assert.is_true(c:stats().workers[i].steps > 0, i) end
  end)

  it("shrinks without a restart (pain points 18 and 20: mxnet 5001, horovod 2248)", function()
    open(3, 3)
    run(200)
    for i = 1, 2 do
      c:remove_worker(k.jobs.worker[i])
      run(100)
    end
    exact(400)
    assert.equal(1, s.num_workers)
  end)

  it("is not stalled by a new worker that hangs at its start (pain point 19: horovod 2652)", function()
    open(3, 2)
    k:signal("STOP", "worker", 2)
    c:add_worker(k.jobs.worker[3])
    run(200)
    assert.is_true(took(exact, 200) < 3)
    k:signal("CONT", "worker", 2)
    assert.is_truthy(ready(3))
  end)

  it("does not hang when workers come and go many times (pain point 21: elastic 25)", function()
    open(5, 1)
    local n = 0
    for i = 2, 5 do
      run(30)
      c:add_worker(k.jobs.worker[i])
      if i % 2 == 0 then assert.is_truthy(ready(2)) end -- else it leaves before it is there
      run(30)
      c:remove_worker(k.jobs.worker[i])
      run(30)
      n = n + 90
      exact(n)
    end
  end)

  it("takes back a worker that it removed", function()
    open(2, 1)
    for round = 1, 3 do
      assert.equal(1, c:add_worker(k.jobs.worker[2]))
      assert.is_truthy(ready(2))
      run(40)
      c:remove_worker(k.jobs.worker[2])
      exact(40 * round)
    end
  end)

  it("splits data among workers, once each (pain points 23 and 27: tensorflow 44987, horovod 1100)", function()
    open(2, 2)
    local it = c:create_per_worker_dataset(function()
      return tm.data.range(101):shard(2, D.current_worker_index()):concatenate(tm.data.range(-1, -2, -1):rep())
    end):iterator()
    local take = tm.func(function(i) return D.current_worker_index(), i:next() end)
    local seen, list = {}, {}
    local function more(n)
      list = {}
      for i = 1, n do list[i] = c:schedule(take, { it }) end
      for i, r in ipairs(list) do list[i] = { r:fetch() } end
      for _, r in ipairs(list) do
        if r[2] >= 0 then
          assert.is_nil(seen[r[2]])
          assert.equal(r[1], r[2] % 2)
          seen[r[2]] = true
        end
      end
    end
    assert.is_truthy(P.eventually(5, function()
      more(20)
      local n = 0
      for _ in pairs(seen) do n = n + 1 end
      return n == 101
    end))
  end)
end)
