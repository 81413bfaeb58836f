-- Exactly-once visitation: elements of a dataset are dealt out to functions, each to one.
-- In one process, and on real workers and ps that are killed and stopped.
local tm = require "tidemill"
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P
local tasks = dofile "spec/tools/tasks.lua"
local D = tm.distribute

local ONCE = { visitation = "exactly_once" }

local raises = dofile("spec/tools/expect.lua").raises

local T, strategy, c, seen, examples

--- `seen` counts for each of n examples how often it was used; `examples` all.
local function variables(n)
  strategy:scope(function()
    seen = tm.Variable(tm.zeros({ n }, "int64"), { name = "seen" })
    examples = tm.Variable(0, { dtype = "int64", name = "examples" })
  end)
end

local function open(n, workers)
  strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers or 3, ps = 2 })
  c = D.ClusterCoordinator(strategy)
  variables(n)
end

local function open_tasks(n, size, options)
  T = tasks.new(P, size)
  T:start()
  local o = { heartbeat_interval = 0.2, heartbeat_timeout = 1 }
  for k, x in pairs(options or {}) do o[k] = x end
  strategy = D.ParameterServerStrategy(D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" }), o)
  c = D.ClusterCoordinator(strategy)
  variables(n)
end

local function close()
  if strategy then strategy:close() end
  strategy = nil
  assert.same({}, P.cleanup())
end

local function iterator(ds) return c:create_per_worker_dataset(ds, ONCE):iterator() end

--- A function that notes the ids of one batch.
local function note(pause)
  return tm.func(function(it)
    local ids = it:next()
    if pause then tm.sleep(pause) end
    seen:scatter_add(ids, tm.ones_like(ids))
    examples:assign_add(tm.reduce_sum(tm.ones_like(ids)))
    return tm.reduce_sum(ids)
  end)
end

--- Each of the first n examples was used `times` times.
local function each(n, times)
  local counts = seen:read():totable()
  for i, x in ipairs(counts) do
    if x ~= (i <= n and times or 0) then error(("example %d was used %d times"):format(i - 1, x), 2) end
  end
  assert.equal(n * times, examples:read():item())
end

describe("exactly-once visitation", function()
  after_each(close)

  it("uses each element once in every pass, and run_epoch tells how many steps had data (L11)", function()
    open(1000)
    local it, f = iterator(tm.data.range(1000):shuffle(100):batch(7)), note()
    for pass = 1, 3 do
      assert.equal(143, c:run_epoch(f, { it }))
      each(1000, pass)
    end
  end)

  it("ends quietly where no data are left: nothing is cancelled, fetch gives nil, end_of_data", function()
    open(10)
    local it, f = iterator(tm.data.range(10):batch(4)), note()
    local list = {}
    for i = 1, 8 do list[i] = c:schedule(f, { it }) end
    c:join()
    local sum, ends = 0, 0
    for _, r in ipairs(list) do
      local x, why = r:fetch()
      if x then sum = sum + x else ends = ends + 1 assert.equal("end_of_data", why) end
    end
    assert.equal(45, sum)
    assert.equal(5, ends)
    each(10, 1)
    assert.same({ nil, "end_of_data" }, { list[8]:get() })
  end)

  it("finds the end of data of unknown number: what is filtered", function()
    open(1000)
    local ds = tm.data.range(1000):filter(function(x) return x:less(900) end):batch(7):prefetch(2)
    local it, f = iterator(ds), note()
    for pass = 1, 3 do
      assert.equal(129, c:run_epoch(f, { it }))
      each(900, pass)
    end
  end)

  it("refuses what it cannot deal out, and says what to do", function()
    open(10)
    raises("invalid_argument", "leave out shard", iterator, function()
      return tm.data.range(10):shard(2, D.current_worker_index())
    end)
    raises("invalid_argument", 'did you mean "exactly_once"', c.create_per_worker_dataset, c, tm.data.range(10),
      { visitation = "exactly once" })
    local it = iterator(tm.data.range(10))
    raises("invalid_argument", "outside of branches and loops", c.schedule, c, function(i, p)
      return tm.cond(p, function() return i:next() end, function() return tm.tensor(0, "int64") end)
    end, { it, tm.tensor(true) })
    raises("invalid_argument", "never ends", c.run_epoch, c, note(), { iterator(tm.data.range(10):rep():batch(2)) })
    raises("invalid_argument", "none of the arguments", c.run_epoch, c, function() end)
  end)

  it("has the same elements for a closure that runs again, whatever map draws for them", function()
    open(64)
    local it = iterator(tm.data.range(64):map(function(x) return { x, tm.random.uniform({}) } end):shuffle(9):batch(4))
    local f = tm.func(function(i) return i:next() end)
    local start, drawn = it:state(), {}
    for round = 1, 3 do
      local list = {}
      for i = 1, 16 do list[i] = c:schedule(f, { it }) end
      for _, r in ipairs(list) do
        local batch = r:get()
        local ids, x = batch[1]:totable(), batch[2]:totable()
        for k, id in ipairs(ids) do
          if round == 1 then drawn[id] = x[k] else assert.equal(drawn[id], x[k]) end
        end
      end
      it:restore(start)
    end
  end)

  it("lets a cancelled function's elements be used by the next; what failed counts as used", function()
    open(40)
    local it, f = iterator(tm.data.range(40):batch(2)), note(0.001)
    local bad = tm.func(function(i)
      local ids = i:next()
      tm.assert_true(tm.reduce_sum(ids):less(0), "bad batch")
      return ids
    end)
    for _ = 1, 3 do c:schedule(f, { it }) end
    c:join()
    raises("invalid_argument", "bad batch", function()
      c:schedule(bad, { it })
      for _ = 1, 12 do c:schedule(f, { it }) end
      c:join()
    end)
    local p = it:_progress()
    c:run_epoch(f, { it })
    local counts, missing = seen:read():totable(), 0
    for _, x in ipairs(counts) do
      assert.is_true(x <= 1)
      if x == 0 then missing = missing + 1 end
    end
    assert.equal(2, missing)
    assert.is_true(p.done >= 4)
    assert.equal(20, it:_progress().done)
  end)

  it("lets functions run whose ids are computed ahead, after one that ran was cancelled", function()
    open(40)
    local it = iterator(tm.data.range(40))
    local f = tm.func(function(i)
      local ids = tm.reshape(i:next() * 2, { 1 })
      return tm.reduce_sum(tm.gather(seen, ids))
    end)
    for _ = 1, 3 do
      c:schedule(function() tm.sleep(5) end)
      c:schedule(function() tm.sleep(5) end)
      c:schedule(function()
        tm.sleep(0.02)
        tm.assert_true(tm.tensor(false), "stop")
      end)
      raises("invalid_argument", "stop", c.join, c)
      for _ = 1, 6 do assert.equal(0, c:schedule(f, { it }):fetch()) end
    end
  end)

  it("with several elements a function: what is left for none stays for those that take fewer", function()
    open(50)
    local it = iterator(tm.data.range(50):batch(5))
    local three = tm.func(function(i)
      for _ = 1, 3 do
        local ids = i:next()
        seen:scatter_add(ids, tm.ones_like(ids))
        examples:assign_add(tm.reduce_sum(tm.ones_like(ids)))
      end
    end)
    assert.equal(3, c:run_epoch(three, { it }))
    assert.equal(1, it:_progress().left)
    assert.is_false(it:_progress().ended)
    assert.equal(1, c:run_epoch(note(), { it }))
    each(50, 1)
    local some = iterator(tm.data.range(50):filter(function(x) return x:less(50) end):batch(5))
    assert.equal(3, c:run_epoch(three, { some }))
    assert.equal(1, c:run_epoch(note(), { some }))
    each(50, 2)
  end)

  it("counts functions that take from one of two iterators, and says so where they take from none", function()
    open(60)
    local function all(n) return tm.data.range(n):filter(function(x) return x:less(n) end):batch(2) end
    local one = tm.func(function(a)
      local ids = a:next()
      seen:scatter_add(ids, tm.ones_like(ids))
      examples:assign_add(tm.reduce_sum(tm.ones_like(ids)))
    end)
    local first = tm.func(function(a, _) return one(a) end)
    for pass = 1, 4 do
      local a = iterator(pass % 2 == 0 and all(20) or tm.data.range(20):batch(2))
      local b = iterator(pass > 2 and all(60) or tm.data.range(60):batch(2))
      assert.equal(10, c:run_epoch(first, { a, b }))
      each(20, pass)
      assert.equal(0, b:_progress().done)
    end
    raises("invalid_argument", "calls next on none", c.run_epoch, c,
      tm.func(function() return tm.tensor(1) end), { iterator(all(60)) })
    assert.equal(30, c:run_epoch(note(), { iterator(all(60)) }))
  end)

  it("ends what waits for a result that has no data, quietly", function()
    open(4)
    local it = iterator(tm.data.range(4):batch(4))
    local f = note()
    local twice = tm.func(function(x) return x * 2 end)
    local a, b = c:schedule(f, { it }), c:schedule(f, { it })
    local x, y = c:schedule(twice, { a }), c:schedule(twice, { b })
    local z = c:schedule(twice, { y })
    c:join()
    assert.equal(12, x:fetch())
    assert.same({ nil, "end_of_data" }, { y:fetch() })
    assert.same({ nil, "end_of_data" }, { z:fetch() })
  end)

  for where, seeds in pairs { ["in one process"] = 3, ["by processes"] = 1 } do
    it("is part of a checkpoint that is taken while functions run: the next chief goes on exactly once, " .. where,
      function()
        local function begin()
          if where == "by processes" then open_tasks(600, { workers = 3, ps = 2 }) else open(600) end
        end
        for seed = 1, seeds do
          begin()
          local dir = os.tmpname()
          os.remove(dir)
          local function ds() return tm.data.range(600):shuffle(100, { seed = seed }):batch(3) end
          local it, f = iterator(ds()), note(0.0005)
          for _ = 1, 130 do c:schedule(f, { it }) end
          P.eventually(5, function() return it:_progress().done >= 30 * seed end)
          local path = assert(tm.train.Checkpoint { it = it, seen = seen, examples = examples }:save(dir .. "/ckpt"))
          c:join()
          close()
          begin()
          it = iterator(ds())
          assert(tm.train.Checkpoint { it = it, seen = seen, examples = examples }:restore(path)):assert_consumed()
          assert.equal(examples:read():item(), it:_progress().done * 3)
          c:run_epoch(note(), { it })
          each(600, 1)
          assert.equal(200, c:run_epoch(note(), { it }))
          each(600, 2)
          close()
          os.execute("rm -rf '" .. dir .. "'")
        end
      end)
  end

  it("works on workers that are processes", function()
    open_tasks(1000, { workers = 3, ps = 2 })
    local it, f = iterator(tm.data.range(1000):shuffle(50):batch(8)), note()
    for pass = 1, 3 do
      assert.equal(125, c:run_epoch(f, { it }))
      each(1000, pass)
    end
  end)

  it("run_epoch tells the steps of its pass, also when a ps was restored to one before", function()
    open_tasks(600, { workers = 2, ps = 2 }, { on_ps_failure = "restore" })
    local it, f, dir, lost = iterator(tm.data.range(600):batch(3)), note(0.002), P.dir(), false
    local checkpoint = tm.train.Checkpoint { it = it, seen = seen, examples = examples }
    c.checkpoint_manager = tm.train.CheckpointManager(checkpoint, dir, { max_to_keep = 2 })
    assert.equal(200, c:run_epoch(f, { it }))
    assert(c.checkpoint_manager:save())
    local detach = require("tidemill.distribute.wait").attend(function()
      local p = it:_progress()
      if lost or p.pass ~= 1 or p.done < 60 then return end
      lost = true
      T.ps[1]:kill()
      T.ps[1]:wait(5)
      T:task("ps", 0)
    end)
    assert.equal(200, c:run_epoch(f, { it }))
    detach()
    assert.is_true(lost)
    assert.equal(1, c:stats().rollbacks)
    each(600, 2)
    assert.equal(200, c:run_epoch(f, { it }))
  end)

  it("bears workers that are killed, in every pass", function()
    open_tasks(900, { workers = 3, ps = 2 })
    local it, f = iterator(tm.data.range(900):shuffle(50):batch(3)), note(0.002)
    for pass = 1, 3 do
      for _ = 1, 300 do c:schedule(f, { it }) end
      P.eventually(5, function() return it:_progress().done >= 60 * pass end)
      T.worker[pass]:kill()
      T.worker[pass]:wait(5)
      T:task("worker", pass - 1)
      c:join()
      each(900, pass)
      it:_start_pass()
    end
    assert.is_true(c:stats().retries > 0)
  end)

  it("bears a worker that hangs longer than the heartbeat, and comes back", function()
    open_tasks(900, { workers = 2, ps = 1 })
    local it, f = iterator(tm.data.range(900):filter(function(x) return x:less(900) end):batch(3)), note(0.002)
    for _ = 1, 150 do c:schedule(f, { it }) end
    P.eventually(5, function() return it:_progress().done >= 60 end)
    T.worker[1]:kill "STOP"
    c:run_epoch(f, { it })
    each(900, 1)
    T.worker[1]:kill "CONT"
    assert.is_truthy(P.eventually(20, function() return c:stats().workers[1].state == "ready" end))
    assert.equal(300, c:run_epoch(f, { it }))
    each(900, 2)
  end)

  it("follows functions that move away from a slow worker", function()
    open_tasks(300, { workers = 2, ps = 1 })
    local it = iterator(tm.data.range(300):batch(1))
    local f = tm.func(function(i)
      local ids = i:next()
      tm.cond(tm.reduce_sum(ids):less(1), function() return tm.sleep(0.3) end, function() return tm.sleep(0) end)
      seen:scatter_add(ids, tm.ones_like(ids))
      examples:assign_add(1)
    end)
    for pass = 1, 2 do
      assert.equal(300, c:run_epoch(f, { it }))
      each(300, pass)
    end
  end)

  it("takes and gives back workers in the middle of a pass", function()
    open_tasks(600, { workers = 3, ps = 1 })
    local it, f = iterator(tm.data.range(600):batch(2)), note(0.001)
    for _ = 1, 200 do c:schedule(f, { it }) end
    c:remove_worker(T.jobs.worker[1])
    for _ = 1, 100 do c:schedule(f, { it }) end
    c:join()
    each(600, 1)
    c:add_worker(T.jobs.worker[1])
    assert.equal(300, c:run_epoch(f, { it }))
    each(600, 2)
  end)

  for mode, options in pairs { sync = { backup_workers = 1 }, ssp = { staleness = 2 } } do
    it(("holds in mode %q too, when a worker is killed in the middle"):format(mode), function()
      options.mode = mode
      open_tasks(600, { workers = 3, ps = 2 }, options)
      local w, opt
      strategy:scope(function()
        w = tm.Variable(tm.zeros { 4 }, { name = "w" })
        opt = tm.optimizers.SGD { learning_rate = 0.01 }
      end)
      local it = iterator(tm.data.range(600):batch(4))
      local f = tm.func(function(i)
        local ids = i:next()
        seen:scatter_add(ids, tm.ones_like(ids))
        examples:assign_add(tm.reduce_sum(tm.ones_like(ids)))
        local tape = tm.GradientTape()
        local grads = tape:gradient(tm.reduce_sum((w - 1) * (w - 1)), { w })
        tm.sleep(0.001)
        opt:apply_gradients(grads, { w })
      end)
      for pass = 1, 2 do
        for _ = 1, 100 do c:schedule(f, { it }) end
        P.eventually(5, function() return it:_progress().done >= 20 end)
        T.worker[pass]:kill()
        T.worker[pass]:wait(5)
        T:task("worker", pass - 1)
        c:run_epoch(f, { it })
        each(600, pass)
        if not it:_progress().ended then error "it is not over" end
        it:_start_pass()
      end
    end)
  end

  --- Numbers from 1 to n by chance, the same everywhere.
  local function generator(seed)
    local x = seed * 7919 + 1
    return function(n)
      x = (x * 1103515245 + 12345) % 2147483648
      return math.floor(x / 65536) % n + 1
    end
  end

  --- One thing that happens to a worker: it is killed and starts again, or is stopped, for
  --- less or more time than its heartbeat may be silent.
  local function disturb(random)
    local i, what = random(3), random(5)
    P.sleep(random(40) / 1000)
    if what <= 3 then
      T.worker[i]:kill()
      T.worker[i]:wait(5)
      T:task("worker", i - 1)
    else
      T.worker[i]:kill "STOP"
      P.sleep(what == 4 and 0.03 or 0.8)
      T.worker[i]:kill "CONT"
    end
  end

  for seed = 1, tonumber(os.getenv "SEEDS" or 2) do
    it(("bears whatever happens to workers: each example once in every pass, seed %d"):format(seed), function()
      open_tasks(600, { workers = 3, ps = 2 }, { heartbeat_timeout = 0.6 })
      local known = seed % 2 == 0
      local ds = tm.data.range(600)
      if not known then ds = ds:filter(function(x) return x:less(600) end) end
      local it, f = iterator(ds:shuffle(64):batch(4):prefetch(2)), note(0.002)
      local random = generator(seed)
      for pass = 1, 2 do
        while not it:_progress().ended do
          for _ = 1, 40 do c:schedule(f, { it }) end
          disturb(random)
        end
        c:join()
        assert.equal(150, it:_progress().done)
        each(600, pass)
        it:_start_pass()
      end
    end)
  end

  local RESTORED = [[
    local tm = require "tidemill"
    local D = tm.distribute
    local DIR = os.getenv "DIR"
    local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 },
      { heartbeat_interval = 0.2, heartbeat_timeout = 1, placement = "round_robin", on_ps_failure = "restore" })
    local seen, examples
    strategy:scope(function()
      seen = tm.Variable(tm.zeros({ 600 }, "int64"), { name = "seen" })
      examples = tm.Variable(0, { dtype = "int64", name = "examples" })
    end)
    local c = D.ClusterCoordinator(strategy)
    local ds = tm.data.range(600):filter(function(x) return x:less(600) end):shuffle(64):batch(3)
    local it = c:create_per_worker_dataset(ds, { visitation = "exactly_once" }):iterator()
    local f = tm.func(function(i)
      local ids = i:next()
      tm.sleep(0.003)
      seen:scatter_add(ids, tm.ones_like(ids))
      examples:assign_add(tm.reduce_sum(tm.ones_like(ids)))
    end)
    c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ it = it, seen = seen, examples = examples },
      DIR .. "/ckpt")
    local function say(...) print(...) io.stdout:flush() end
    local function each(n)
      local low, high = math.huge, 0
      for _, x in ipairs(seen:read():totable()) do low, high = math.min(low, x), math.max(high, x) end
      say(("each %d %d %d"):format(low, high, examples:read():item()))
    end
    FIRST
    for _ = 1, 100 do c:schedule(f, { it }) end
    SAVE
    for _ = 1, 40 do c:schedule(f, { it }) end
    tm.sleep(0.1)
    say "go"
    c:run_epoch(f, { it })
    each()
    say(("steps %d rollbacks %d"):format(c:run_epoch(f, { it }), c:stats().rollbacks))
    each()
  ]]

  for name, save in pairs { ["to a checkpoint"] = "assert(c.checkpoint_manager:save())",
    ["to the beginning"] = "" } do
    it("goes back with the variables when a ps is restored " .. name, function()
      local k = clusters.start(2, 2)
      k:chief((RESTORED:gsub("FIRST", ""):gsub("SAVE", save)))
      k:says "go"
      k:kill("ps", 0)
      P.sleep(0.1)
      k:run("ps", 0)
      local out = k:ends(30)
      assert.is_truthy(out:find "each 1 1 600\nsteps 200 rollbacks 1\neach 2 2 1200\n$", out .. k.boss:err())
    end)
  end

  it("goes back to an earlier pass when a ps is restored to it, and to its end", function()
    local k = clusters.start(2, 2)
    k:chief((RESTORED:gsub("FIRST", [[
      for _ = 1, 100 do c:schedule(f, { it }) end
      c:join()
      assert(c.checkpoint_manager:save())
      c:run_epoch(f, { it })
      it:_start_pass()
    ]]):gsub("SAVE", "")))
    k:says "go"
    k:kill("ps", 1)
    P.sleep(0.1)
    k:run("ps", 1)
    local out = k:ends(30)
    assert.is_truthy(out:find "each 2 2 1200\nsteps 200 rollbacks 1\neach 3 3 1800\n$", out .. k.boss:err())
  end)
end)
