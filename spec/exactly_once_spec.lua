-- Exactly-once visitation: elements of a dataset are dealt out to functions, each to one.
-- In one process, and on real workers and ps that are killed and stopped.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local D = tm.distribute

local ONCE = { visitation = "exactly_once" }

local function raises(code, text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.is_true(tm.is_error(e, code), tostring(e))
  assert.truthy(tostring(e):find(text, 1, true), tostring(e))
end

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

  it("uses each element once in every pass, and run_epoch tells how many steps had data", function()
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

  it("works on workers that are processes", function()
    open_tasks(1000, { workers = 3, ps = 2 })
    local it, f = iterator(tm.data.range(1000):shuffle(50):batch(8)), note()
    for pass = 1, 3 do
      assert.equal(125, c:run_epoch(f, { it }))
      each(1000, pass)
    end
  end)
end)
