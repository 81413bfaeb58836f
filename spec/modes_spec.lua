-- The modes sync, ssp and async: what they compute, who may be ahead.  This process is
-- the chief; workers and ps are real processes.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local D = tm.distribute
local unpack = table.unpack or unpack

local function raised(code, pattern, f, ...)
  local ok, e = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(code, e.code, tostring(e))
  assert.is_truthy(e.message:find(pattern), e.message)
end

--- One batch: rows i of a fixed list of numbers.
local function batch(from, n)
  local x, ids, y = {}, {}, {}
  for i = 1, n do
    local k = from + i
    x[i] = { math.sin(k), math.cos(3 * k), math.sin(7 * k) }
    ids[i] = k * k % 11
    y[i] = math.cos(k)
  end
  return { tm.tensor(x), tm.tensor(ids, "int64"), tm.tensor(y) }
end

--- A model with a dense variable and rows, made where `scope` says.
local function model(scope, optimizer)
  local m = {}
  scope(function()
    m.w = tm.Variable({ 0.5, -1, 2 }, { name = "w" })
    m.rows = tm.Variable(function(shape) return tm.ones(shape) end,
      { shape = { 11, 3 }, dtype = "float32", name = "rows" })
    m.opt = optimizer()
  end)
  m.step = tm.func(function(x, ids, y)
    local tape = tm.GradientTape()
    local e = m.rows:sparse_read(ids)
    local loss = tm.reduce_mean(tm.square(tm.reduce_sum(x * m.w * e, 2) - y))
    local vars = { m.w, m.rows }
    m.opt:apply_gradients(tape:gradient(loss, vars), vars)
    return loss
  end)
  m.values = function()
    local out = m.w:read():totable()
    for _, row in ipairs(m.rows:read():totable()) do
      for _, v in ipairs(row) do out[#out + 1] = v end
    end
    return out
  end
  return m
end

local optimizers = {
  SGD = function() return tm.optimizers.SGD { learning_rate = 0.1 } end,
  momentum = function() return tm.optimizers.SGD { learning_rate = 0.05, momentum = 0.9 } end,
  Adam = function() return tm.optimizers.Adam { learning_rate = 0.05 } end,
  Adagrad = function() return tm.optimizers.Adagrad { learning_rate = 0.1 } end,
  RMSprop = function() return tm.optimizers.RMSprop { learning_rate = 0.02 } end,
  decay = function() return tm.optimizers.SGD { learning_rate = 0.1, weight_decay = 0.01 } end,
}

describe("the modes", function()
  local T, strategy, c

  local function connect(options)
    local o = { placement = "round_robin", heartbeat_interval = 0.2 }
    for k, x in pairs(options or {}) do o[k] = x end
    local resolver = D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" })
    function resolver.cluster_id() return T.id end
    strategy = D.ParameterServerStrategy(resolver, o)
    c = D.ClusterCoordinator(strategy)
    return function(fn) return strategy:scope(fn) end
  end

  local function open(size, options)
    T = tasks.new(P, size)
    T.id = "modes"
    T:start()
    return connect(options)
  end

  after_each(function()
    if strategy then strategy:close() end
    strategy = nil
    assert.same({}, P.cleanup())
  end)

  it("sync: 3 workers are one worker with 3 times the batch, to 1e-6, and the same bits each time (L2)", function()
    T = tasks.new(P, { workers = 3, ps = 2 })
    T.id = "modes"
    T:start()
    for name, optimizer in pairs(optimizers) do
      local one = model(function(fn) return fn() end, optimizer)
      for i = 0, 9 do one.step(unpack(batch(12 * i, 12))) end
      local want, bits = one.values(), nil
      for run = 1, 2 do
        local many = model(connect { mode = "sync" }, optimizer)
        for i = 0, 29 do c:schedule(many.step, batch(4 * i, 4)) end
        c:join()
        local got = many.values()
        for i, v in ipairs(want) do
          assert.is_true(math.abs(got[i] - v) <= 1e-6 * math.max(1, math.abs(v)),
            ("%s, element %d: %.9g, not %.9g"):format(name, i, got[i], v))
        end
        assert.equal(10, many.opt.iterations:read():item())
        if run == 2 then assert.same(bits, got, name) end
        bits = got
        strategy:close()
        strategy = nil
      end
    end
  end)

  it("sync: works in one process, with shards, and the last round ends with what it has", function()
    local function values(workers, steps, size)
      strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers, ps = 2 },
        { mode = "sync", variable_partitioner = D.partitioners.FixedShardsPartitioner { num_shards = 2 } })
      c = D.ClusterCoordinator(strategy)
      local m = model(function(fn) return strategy:scope(fn) end, optimizers.Adagrad)
      local last
      for i = 0, steps - 1 do last = c:schedule(m.step, batch(size * i, size)) end
      last:fetch() -- who asks for it waits for it
      c:join()
      local got, rounds = m.values(), m.opt.iterations:read():item()
      c:close()
      return got, rounds
    end
    local one, rounds = values(1, 4, 12)
    assert.equal(4, rounds)
    local got, more = values(3, 12, 4)
    assert.equal(4, more)
    for i, v in ipairs(one) do assert.is_true(math.abs(got[i] - v) <= 1e-6 * math.max(1, math.abs(v)), i) end
    local _, part = values(3, 14, 4)
    assert.equal(5, part)
    strategy = nil
  end)

  it("sync: fit on 3 workers has the history of one process with 3 times the batch", function()
    local x, y = {}, {}
    for i = 1, 240 do
      x[i] = { math.sin(i), math.cos(2 * i), math.sin(5 * i) }
      y[i] = { math.sin(i) - math.cos(2 * i) }
    end
    local function fit(scope, size)
      tm.random.set_seed(3)
      local m
      scope(function()
        m = tm.Sequential { tm.layers.Dense { units = 8, activation = "tanh" }, tm.layers.Dense { units = 1 } }
        m:compile { optimizer = tm.optimizers.Adam { learning_rate = 0.01 }, loss = "mse", metrics = { "mae" } }
      end)
      local data = tm.data.from_tensor_slices { tm.tensor(x), tm.tensor(y) }:batch(size)
      return m:fit(data, { epochs = 3, verbose = 0, validation_data = data }).history
    end
    local want = fit(function(fn) fn() end, 24)
    local got = fit(open({ workers = 3, ps = 2 }, { mode = "sync" }), 8)
    for _, name in ipairs { "loss", "mae", "val_loss", "val_mae" } do
      for e = 1, 3 do
        assert.is_true(math.abs(got[name][e] - want[name][e]) <= 1e-5 * math.abs(want[name][e]),
          ("%s of epoch %d: %.9g, not %.9g"):format(name, e, got[name][e], want[name][e]))
      end
    end
  end)

  it("sync: what is only counted applies at once, what applies nothing runs meanwhile", function()
    local scope = open({ workers = 2, ps = 1 }, { mode = "sync" })
    local m, seen = model(scope, optimizers.SGD), nil
    scope(function() seen = tm.Variable(0, { dtype = "int64" }) end)
    local step = tm.func(function(x, ids, y)
      seen:assign_add(1)
      return m.step(x, ids, y)
    end)
    local look = tm.func(function() return tm.reduce_sum(m.w:read()) end)
    local before = m.values()
    local value = c:schedule(step, batch(0, 4)) -- half a round
    assert.is_truthy(P.eventually(5, function() return seen:read():item() == 1 end))
    for _ = 1, 20 do c:schedule(look):fetch() end
    assert.same(before, m.values())
    assert.is_false(value._handle:done())
    c:schedule(step, batch(4, 4))
    value:fetch()
    assert.equal(1, m.opt.iterations:read():item())
    assert.is_true(before[1] ~= m.values()[1])
  end)

  it("sync with backup_workers does not wait for the slowest", function()
    local scope = open({ workers = 3, ps = 1 }, { mode = "sync", backup_workers = 1, heartbeat_timeout = 30 })
    local m = model(scope, optimizers.SGD)
    for i = 0, 8 do c:schedule(m.step, batch(i, 4)) end
    c:join()
    T.worker[2]:kill "STOP"
    local done, rounds = c:stats().steps, m.opt.iterations:read():item()
    for i = 0, 40 do c:schedule(m.step, batch(i, 4)) end
    assert.is_truthy(P.eventually(10, function() return c:stats().steps >= done + 35 end), c:status())
    assert.is_true(m.opt.iterations:read():item() >= rounds + 15)
    T.worker[2]:kill "CONT"
    c:join { timeout = 10 * P.patience }
    local stats = c:stats()
    assert.equal(done + 41, stats.steps)
    assert.is_true(stats.late >= 1)
    assert.equal(stats.rounds, m.opt.iterations:read():item())
  end)

  it("ssp: no worker begins a step further ahead of the slowest than staleness", function()
    local staleness = 2
    local scope = open({ workers = 3, ps = 1 }, { mode = "ssp", staleness = staleness, heartbeat_timeout = 30 })
    local m, clocks = model(scope, optimizers.SGD), {}
    scope(function()
      for i = 1, 3 do clocks[i] = tm.Variable(0, { dtype = "int64" }) end
    end)
    -- Each gives who it is and how far all were when it began.
    local step = tm.func(function(x, ids, y)
      local me = tm.distribute.current_worker_index()
      local all = tm.stack { clocks[1]:read(), clocks[2]:read(), clocks[3]:read() }
      m.step(x, ids, y)
      for i = 1, 3 do clocks[i]:assign_add(tm.cast(tm.equal(me, i - 1), "int64")) end
      return me, all
    end)
    local values = {}
    T.worker[3]:kill "STOP" -- the others may go on, but not far
    for i = 1, 400 do values[i] = c:schedule(step, batch(i, 2)) end
    local most = 2 * (staleness + 1)
    assert.is_truthy(P.eventually(10 * P.patience, function() return c:stats().steps == most end), c:status())
    P.sleep(0.1)
    assert.equal(most, c:stats().steps)
    T.worker[3]:kill "CONT"
    c:join { timeout = 20 * P.patience }
    local furthest = 0
    for i = 1, 390 do -- while the queue was not empty
      local me, all = values[i]:fetch()
      all = all:totable()
      local ahead = all[me + 1] - math.min(unpack(all))
      assert.is_true(ahead <= staleness, ("step %d began %d ahead"):format(i, ahead))
      furthest = math.max(furthest, ahead)
    end
    assert.equal(staleness, furthest)
  end)

  it("ssp: whoever is lost holds up nobody, and whoever is added begins with the slowest", function()
    local scope = open({ workers = 2, ps = 1 }, { mode = "ssp", staleness = 0, heartbeat_timeout = 1 })
    local m = model(scope, optimizers.SGD)
    for i = 1, 200 do c:schedule(m.step, batch(i, 2)) end
    T.worker[1]:kill()
    c:join { timeout = 10 * P.patience }
    local port = D.pick_unused_port()
    T.jobs.worker[3] = "127.0.0.1:" .. port
    T.ports[#T.ports + 1] = port
    T:task("worker", 2)
    c:add_worker("127.0.0.1:" .. port)
    assert.is_truthy(P.eventually(5 * P.patience, function() return c:stats().workers[3].state == "ready" end))
    for i = 1, 200 do c:schedule(m.step, batch(i, 2)) end
    c:join { timeout = 10 * P.patience }
    local w = c:stats().workers
    assert.equal(400, c:stats().steps)
    assert.is_true(w[3].steps > 50, w[3].steps)
  end)

  it("refuse what is not theirs, saying what to do", function()
    local function try(options) return D.ParameterServerStrategy(D.local_cluster { workers = 2, ps = 1 }, options) end
    raised("invalid_argument", 'did you mean "sync"', try, { mode = "synk" })
    raised("invalid_argument", 'backup_workers = 1 is of mode = "sync"', try, { backup_workers = 1 })
    raised("invalid_argument", 'staleness = 3 is of mode = "ssp"', try, { mode = "sync", staleness = 3 })
    raised("invalid_argument", "staleness must be a whole number", try, { mode = "ssp", staleness = 0.5 })
    raised("invalid_argument", "would wait for nobody", try, { mode = "sync", backup_workers = 2 })
  end)

  it("sync: a function that applies gradients twice, or looks at them, is refused where it is scheduled", function()
    strategy = D.ParameterServerStrategy(D.local_cluster { workers = 2, ps = 1 }, { mode = "sync" })
    c = D.ClusterCoordinator(strategy)
    local m = model(function(fn) return strategy:scope(fn) end, optimizers.SGD)
    local twice = tm.func(function(x, ids, y)
      m.step(x, ids, y)
      return m.step(x, ids, y)
    end)
    raised("invalid_argument", "steps_per_execution = 1", c.schedule, c, twice, batch(0, 4))
    local looks = tm.func(function(x, ids, y)
      m.step(x, ids, y)
      return tm.reduce_sum(m.w:read())
    end)
    raised("invalid_argument", "after it applied gradients", c.schedule, c, looks, batch(0, 4))
    c:schedule(m.step, batch(0, 4))
    c:join()
    assert.equal(1, m.opt.iterations:read():item())
    c:close()
    strategy = nil
  end)
end)
