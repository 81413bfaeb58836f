-- A cluster inside this process: closures, their order, arguments and results; errors;
-- sharded variables; placement; per-worker datasets; waits.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

local unpack = table.unpack
local D = tm.distribute

local function raised(code, pattern, fn, ...)
  local r = table.pack(pcall(fn, ...))
  assert.is_false(r[1], "no error was raised")
  assert.is_true(tm.is_error(r[2]), tostring(r[2]))
  assert.equal(code, r[2].code, tostring(r[2]))
  if pattern then assert.is_truthy(r[2].message:find(pattern), tostring(r[2])) end
  return r[2]
end

--- fn(strategy, coordinator) on a cluster of its own.
local function cluster(workers, ps, options, fn)
  local s = D.ParameterServerStrategy(D.local_cluster { workers = workers, ps = ps }, options)
  local ok, e = xpcall(fn, function(e) return type(e) == "string" and debug.traceback(e) or e end, s,
    D.ClusterCoordinator(s))
  s:close()
  if not ok then error(e, 0) end
end

local function variable(s, initial, o)
  return s:scope(function() return tm.Variable(initial, o) end)
end

local fixed = D.partitioners.FixedShardsPartitioner

describe("closures", function()
  it("on one worker see each other's effects in order", function()
    cluster(1, 2, nil, function(s, c)
      local v = variable(s, 0, { dtype = "int64" })
      local f = tm.func(function()
        v:assign_add(1)
        return v
      end)
      local values = {}
      for i = 1, 1000 do values[i] = c:schedule(f) end
      for i = 1, 1000 do assert.equal(i, values[i]:fetch()) end
      c:join()
      assert.equal(1000, v:read():item())
      assert.equal(1000, c:stats().steps)
    end)
  end)

  it("are each run once, whatever the number of workers", function()
    cluster(4, 2, nil, function(s, c)
      local v = variable(s, 0, { dtype = "int64" })
      local f = tm.func(function() v:assign_add(1) end)
      for _ = 1, 500 do c:schedule(f) end
      c:join()
      assert.equal(500, v:read():item())
      local done = 0
      for _, w in ipairs(c:stats().workers) do done = done + w.steps end
      assert.equal(500, done)
    end)
  end)

  it("take lists that end in a string-keyed table, and nested tables", function()
    cluster(1, 1, nil, function(_, c)
      local f = function(a, o) return a * o.scale + o.more[2].x end
      assert.equal(47, c:schedule(f, { tm.tensor(4), { scale = 10, more = { 1, { x = tm.tensor(7) } } } }):fetch())
      assert.equal(5, c:schedule(function(a, b) return a + b end, { tm.tensor(2), 3 }):fetch())
      assert.equal(1, c:schedule(function() return tm.tensor(1) end):fetch())
      raised("invalid_argument", "as a list", c.schedule, c, f, tm.tensor(1))
      raised("invalid_argument", "takes a function", c.schedule, c, 5)
      raised("invalid_argument", "%[1%]%.f is a function", c.schedule, c, function(x) return x.y end,
        { { f = print, y = 1 } })
    end)
  end)

  it("leave the table of arguments as it was", function()
    cluster(1, 1, nil, function(_, c)
      local args = { tm.tensor(1), { x = tm.tensor(2) } }
      c:schedule(function(a, b) return a + b.x end, args)
      c:join()
      assert.is_nil(args.n)
      assert.equal(2, #args)
    end)
  end)

  it("give nested results, several results and none", function()
    cluster(1, 1, nil, function(_, c)
      local r = c:schedule(function()
        return { loss = tm.tensor(1.5), list = { tm.tensor "a", tm.tensor { 1, 2 } } }
      end)
      local t = r:fetch()
      assert.equal(1.5, t.loss)
      assert.equal("a", t.list[1])
      assert.same({ 1, 2 }, t.list[2]:totable())
      assert.equal(1.5, r:get().loss:item())
      local a, b, n = c:schedule(function() return tm.tensor(true), tm.tensor(2) end):fetch()
      assert.is_true(a)
      assert.equal(2, b)
      assert.is_nil(n)
      assert.equal(0, select("#", c:schedule(function() end):fetch()))
    end)
  end)

  it("take remote values anywhere among the arguments", function()
    cluster(2, 1, nil, function(_, c)
      local one = c:schedule(function() return tm.tensor(1) end)
      local two = c:schedule(function(x, o) return x + o.y end, { one, { y = one } })
      assert.equal(2, two:fetch())
      local nothing = c:schedule(function()
        tm.assert_true(tm.tensor(false), "no luck")
        return tm.tensor(1)
      end)
      raised("invalid_argument", "no luck", c.join, c)
      local r = c:schedule(function(_, o) return o.y end, { 1, { y = nothing } })
      raised("invalid_argument", "argument %[2%]%.y failed: no luck", c.join, c)
      raised("invalid_argument", "argument %[2%]%.y failed: no luck", r.fetch, r)
      c:join()
    end)
  end)

  it("trace a function once for all closures of a signature", function()
    cluster(2, 1, nil, function(_, c)
      local f = tm.func(function(x) return x * 2 end, { input_signature = { { shape = { -1 }, dtype = "float32" } } })
      assert.same({ 2, 4 }, c:schedule(f, { tm.tensor { 1, 2 } }):fetch():totable())
      assert.same({ 6 }, c:schedule(f, { tm.tensor { 3 } }):fetch():totable())
      assert.equal(1, f.trace_count)
      raised("invalid_argument", "the signature says", c.schedule, c, f, { tm.tensor { { 1 } } })
      raised("invalid_argument", "takes 1 arguments, got 2", c.schedule, c, f, { tm.tensor { 1 }, 2 })
      local g = tm.func(function(x) return x + 1 end)
      for i = 1, 5 do assert.equal(i + 1, c:schedule(g, { tm.tensor(i) }):fetch()) end
      assert.equal(1, g.trace_count)
      assert.is_truthy(tostring(g.graph):find "add")
    end)
  end)

  it("refuse a variable of the chief alone, by name", function()
    cluster(1, 1, nil, function(_, c)
      local v = tm.Variable(1, { name = "lonely" })
      raised("invalid_argument", "lonely.*strategy:scope", c.schedule, c, function() return v:read() end)
      c:join()
    end)
  end)
end)

describe("remote values", function()
  it("come at once, though a long closure follows", function()
    cluster(1, 1, nil, function(_, c)
      local fast = tm.func(function() return tm.tensor(1) end)
      local slow = tm.func(function() tm.sleep(0.5) end)
      for _ = 1, 3 do c:schedule(fast) end
      local r = c:schedule(fast)
      c:schedule(slow)
      c:schedule(slow)
      local t = P.now()
      assert.equal(1, r:fetch())
      assert.is_true(P.within(0.3, t))
    end)
  end)

  it("are done once they have a value, and give it again and again", function()
    cluster(1, 1, nil, function(_, c)
      local r = c:schedule(function()
        tm.sleep(0.05)
        return tm.tensor(3)
      end)
      assert.is_false(r:done())
      assert.is_truthy(tostring(r):find "not done")
      raised("deadline_exceeded", "no result after 0.005 s", r.fetch, r, { timeout = 0.005 })
      assert.equal(3, r:fetch())
      assert.is_true(r:done())
      assert.equal(3, r:fetch())
      assert.equal(3, r:get():item())
    end)
  end)

  it("are fetched in a structure, and what is none stays", function()
    cluster(1, 1, nil, function(_, c)
      local f = tm.func(function(x) return x end)
      local t = c:fetch { a = c:schedule(f, { tm.tensor(1) }), b = { c:schedule(f, { tm.tensor(2) }), "text" }, n = 4 }
      assert.same({ a = 1, b = { 2, "text" }, n = 4 }, t)
    end)
  end)
end)

describe("the first error", function()
  it("has code, task, step and op, is raised once, and the coordinator is usable afterwards", function()
    cluster(2, 2, { variable_partitioner = fixed { num_shards = 2 } }, function(s, c)
      local table_ = variable(s, tm.ones { 4, 2 }, { name = "rows" })
      local f = tm.func(function(ids) return tm.nn.embedding_lookup(table_, ids) end)
      c:schedule(f, { tm.tensor({ 0, 3 }, "int64") })
      c:join()
      local bad = c:schedule(f, { tm.tensor({ 0, 4 }, "int64") })
      local e = raised("invalid_argument", "4", c.join, c)
      assert.is_truthy(e.task:find "^/job:worker/task:[01]$")
      assert.equal(2, e.step)
      assert.equal("gather_variable", e.op)
      c:join()
      assert.is_true(c:done())
      e = raised("invalid_argument", "4", bad.fetch, bad)
      assert.equal("gather_variable", e.op)
      raised("invalid_argument", "4", bad.fetch, bad)
      assert.equal(1, c:schedule(f, { tm.tensor({ 1 }, "int64") }):fetch():totable()[1][1])
    end)
  end)

  it("is that of the closure that made it, not of its neighbours", function()
    cluster(1, 2, { variable_partitioner = fixed { num_shards = 2 } }, function(s, c)
      local v = variable(s, tm.zeros { 4, 2 })
      local f = tm.func(function(ids, more)
        local rows = tm.nn.embedding_lookup(v, ids)
        v:scatter_add(ids, rows * 0 + more)
      end)
      -- Closure n + 1 asks for its rows in the frame that carries what n changes.
      local wait = tm.func(function() tm.sleep(0.1) end) -- until all of them are scheduled
      for round = 0, 5 do
        local values = {}
        c:schedule(wait)
        for i = 1, 4 do values[i] = c:schedule(f, { tm.tensor({ i == 3 and 4 or 1 }, "int64"), tm.tensor(1) }) end
        local e = raised("invalid_argument", "4", c.join, c)
        assert.equal(5 * round + 4, e.step)
        values[1]:fetch()
        values[2]:fetch()
        raised("invalid_argument", nil, values[3].fetch, values[3])
        raised("cancelled", nil, values[4].fetch, values[4])
        assert.equal(2 * (round + 1), v[2][1]:item())
      end
    end)
  end)

  it("names the op also for scatters, for the user's check and for shapes", function()
    cluster(1, 2, { variable_partitioner = fixed { num_shards = 2 } }, function(s, c)
      local v = variable(s, tm.ones { 4, 2 })
      c:schedule(function(i) v:scatter_add(i, tm.ones { 1, 2 }) end, { tm.tensor({ 9 }, "int64") })
      local e = raised("invalid_argument", "9", c.join, c)
      assert.equal("scatter_variable", e.op)
      c:schedule(function(x) return tm.check_numerics(x / 0, "the loss is bad") end, { tm.tensor { 1 } })
      e = raised("invalid_argument", "the loss is bad", c.join, c)
      assert.equal("check_numerics", e.op)
      assert.equal(2, e.step)
      local f = tm.func(function(a, b) return a + b end,
        { input_signature = { { shape = { -1 }, dtype = "float32" }, { shape = { -1 }, dtype = "float32" } } })
      c:schedule(f, { tm.tensor { 1, 2 }, tm.tensor { 1, 2, 3 } })
      e = raised("invalid_argument", nil, c.join, c)
      assert.equal("add", e.op)
      assert.equal("/job:worker/task:0", e.task)
    end)
  end)

  it("cancels what is queued", function()
    cluster(1, 1, nil, function(s, c)
      local v = variable(s, 0, { dtype = "int64" })
      local f = tm.func(function(bad)
        tm.sleep(0.01)
        tm.assert_true(tm.equal(bad, 0), "told to fail")
        v:assign_add(1)
        return v
      end)
      local values = {}
      for i = 1, 20 do values[i] = c:schedule(f, { tm.tensor(i == 3 and 1 or 0) }) end
      raised("invalid_argument", "told to fail", c.join, c)
      assert.equal(2, v:read():item())
      assert.equal(1, values[1]:fetch())
      raised("invalid_argument", "told to fail", values[3].fetch, values[3])
      for i = 4, 20 do
        assert.is_true(values[i]:done())
        raised("cancelled", "schedule it again", values[i].fetch, values[i])
      end
      c:join()
      assert.equal(3, c:schedule(f, { tm.tensor(0) }):fetch())
    end)
  end)

  it("is raised by schedule and by done as well", function()
    cluster(1, 1, nil, function(_, c)
      local bad = tm.func(function() return tm.assert_true(tm.tensor(false), "no") end)
      local r = c:schedule(bad)
      P.eventually(2, function() return r:done() end)
      raised("invalid_argument", "no", c.schedule, c, bad)
      c:join()
      r = c:schedule(bad)
      P.eventually(2, function() return r:done() end)
      raised("invalid_argument", "no", c.done, c)
      assert.is_true(c:done())
    end)
  end)

  it("stops what runs at its next op", function()
    cluster(2, 1, nil, function(_, c)
      local slow = tm.func(function() tm.sleep(5) end)
      local bad = tm.func(function()
        tm.sleep(0.05)
        tm.assert_true(tm.tensor(false), "no")
      end)
      local r = c:schedule(slow)
      c:schedule(bad)
      local t = P.now()
      raised("invalid_argument", "no", c.join, c)
      assert.is_true(P.within(1, t))
      raised("cancelled", nil, r.fetch, r)
    end)
  end)
end)

describe("waits", function()
  it("end at their timeout and say how much is left", function()
    cluster(1, 1, nil, function(_, c)
      local f = tm.func(function() tm.sleep(0.1) end)
      for _ = 1, 3 do c:schedule(f) end
      raised("deadline_exceeded", "join: after 0.02 s %d functions run and %d wait", c.join, c, { timeout = 0.02 })
      c:join { timeout = 5 * P.patience }
      raised("invalid_argument", "timeout", c.join, c, { timeout = -1 })
      raised("invalid_argument", "did you mean", c.join, c, { timeot = 1 })
    end)
  end)

  it("make schedule wait while the queue is full", function()
    cluster(1, 1, nil, function() end)
    local s = D.ParameterServerStrategy(D.local_cluster { workers = 2, ps = 1 })
    local c = D.ClusterCoordinator(s, { queue_size = 2 })
    local v = variable(s, 0, { dtype = "int64" })
    local f = tm.func(function() v:assign_add(1) end)
    for _ = 1, 300 do
      c:schedule(f)
      assert.is_true(c:stats().queued <= 2)
    end
    c:join()
    assert.equal(300, v:read():item())
    c:close()
    raised("invalid_argument", "queue_size", D.ClusterCoordinator,
      D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 }), { queue_size = 0 })
  end)

  it("yield inside tm.async: join, fetch, and schedule on a full queue", function()
    local s = D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 })
    local c = D.ClusterCoordinator(s, { queue_size = 1 })
    local f = tm.func(function()
      tm.sleep(0.01)
      return tm.tensor(1)
    end)
    local order = {}
    tm.async(function()
      for _ = 1, 8 do c:schedule(f) end
      order[#order + 1] = "scheduled"
      c:join()
      order[#order + 1] = "joined"
    end)
    assert.same({}, order) -- it waits for room
    tm.async(function()
      order[#order + 1] = "other"
      order[#order + 1] = c:schedule(f):fetch()
    end)
    assert.equal("other", order[1])
    c:join()
    P.eventually(2, function()
      c:join()
      return #order == 4
    end)
    table.sort(order, function(a, b) return tostring(a) < tostring(b) end)
    assert.same({ 1, "joined", "other", "scheduled" }, order)
    c:close()
  end)

  it("hand the error of a coroutine to the main program", function()
    cluster(1, 1, nil, function(_, c)
      local f = tm.func(function() tm.sleep(0.01) end)
      tm.async(function()
        c:schedule(f):fetch()
        error "from a coroutine"
      end)
      local ok, e = pcall(function()
        for _ = 1, 20 do c:schedule(f):fetch() end
      end)
      assert.is_false(ok)
      assert.is_truthy(tostring(e):find "from a coroutine")
    end)
  end)
end)

describe("the coordinator", function()
  it("is one a strategy", function()
    cluster(1, 1, nil, function(s, c)
      assert.equal(c, D.ClusterCoordinator(s))
      assert.equal(s, c.strategy)
      raised("invalid_argument", "Only `ParameterServerStrategy`", D.ClusterCoordinator, {})
    end)
  end)

  it("is closed once and then raises failed_precondition", function()
    cluster(1, 1, nil, function(s, c)
      local v = variable(s, 1)
      local f = tm.func(function() tm.sleep(3) end)
      local r = c:schedule(f)
      local t = P.now()
      c:close()
      assert.is_true(P.within(1, t))
      c:close()
      raised("cancelled", nil, r.fetch, r)
      raised("failed_precondition", "closed", c.schedule, c, f)
      raised("failed_precondition", "closed", c.join, c)
      raised("failed_precondition", "closed", c.done, c)
      raised("failed_precondition", "closed", c.stats, c)
      raised("failed_precondition", nil, v.read, v)
      raised("failed_precondition", "closed", variable, s, 1)
    end)
  end)

  it("says how it is in text", function()
    cluster(2, 1, nil, function(_, c)
      local text = c:status()
      assert.is_truthy(text:find "/job:worker/task:1 +ready")
      assert.is_truthy(text:find "/job:ps/task:0 +ready")
    end)
  end)
end)

describe("the strategy", function()
  it("gives back what a scope's function returns", function()
    cluster(1, 1, nil, function(s)
      local a, b = s:scope(function(x) return x, nil end, 7)
      assert.equal(7, a)
      assert.is_nil(b)
      assert.has_error(function() s:scope(function() error("inside", 0) end) end, "inside")
      assert.equal("/job:chief/task:0", tm.Variable(1).device)
    end)
  end)

  it("runs, reduces and gathers over its one replica", function()
    cluster(1, 1, nil, function(s)
      assert.equal(5, s:run(function(a, b) return a + b end, { 2, 3 }))
      assert.equal(1, s.num_replicas_in_sync)
      local x = tm.tensor { { 1, 2 }, { 3, 4 } }
      assert.same({ 4, 6 }, s:reduce("sum", x, 1):totable())
      assert.same({ 1.5, 3.5 }, s:reduce("mean", x, 2):totable())
      assert.equal(x, s:reduce("sum", x))
      assert.equal(x, s:gather(x, 1))
      raised("invalid_argument", "sum", s.reduce, s, "max", x)
    end)
  end)

  it("refuses clusters as TensorFlow does", function()
    local function refuse(pattern, jobs, o)
      raised("invalid_argument", pattern, D.ParameterServerStrategy,
        D.SimpleClusterResolver(D.ClusterSpec(jobs), o))
    end
    refuse("Cluster spec must be non%-empty", {})
    refuse("Disallowed task type found in", { worker = { "a:1" }, ps = { "a:2" }, boss = { "a:3" } })
    refuse("Unrecognized task_type: boss", { worker = { "a:1" }, ps = { "a:2" } }, { task_type = "boss" })
    refuse("'worker' not found in cluster_spec", { ps = { "a:2" } }, { task_type = "worker", task_id = 0 })
    refuse("at most one 'chief' job", { worker = { "a:1" }, ps = { "a:2" }, chief = { "a:3", "a:4" } })
    refuse("at most one 'evaluator' job", { worker = { "a:1" }, ps = { "a:2" }, evaluator = { "a:3", "a:4" } })
    refuse("exceeds the maximum id", { worker = { "a:1" }, ps = { "a:2" }, chief = { "a:3" } },
      { task_type = "chief", task_id = 1 })
    refuse("There must be at least one ps%.", { worker = { "a:1" } })
    refuse("There must be at least one ps%.", { chief = { "a:1" } })
    refuse("There must be at least one worker%.", { ps = { "a:1" } })
    refuse("Server{...}:join", { worker = { "a:1" }, ps = { "a:2" } }, { task_type = "worker", task_id = 0 })
    raised("invalid_argument", "cluster resolver", D.ParameterServerStrategy, 5)
    raised("invalid_argument", "did you mean.*placement", D.ParameterServerStrategy,
      D.local_cluster { workers = 1, ps = 1 }, { placment = "balanced" })
    raised("unimplemented", "prefetch_reads = true", D.ParameterServerStrategy, D.local_cluster { workers = 1, ps = 1 },
      { prefetch_reads = true })
    raised("invalid_argument", "heartbeat_timeout", D.ParameterServerStrategy,
      D.local_cluster { workers = 1, ps = 1 }, { heartbeat_timeout = "soon" })
  end)

  it("refuses partitioners that cut more than the first axis", function()
    for _, counts in ipairs { { 1, 2 }, { 0, 1 }, {}, { -1, 1 }, { 1.5, 1 } } do
      cluster(1, 2, { variable_partitioner = function() return counts end }, function(s)
        raised("invalid_argument", "elements are 1 besides the first element", variable, s, tm.ones { 4, 2 })
      end)
    end
    cluster(1, 2, { variable_partitioner = function() end }, function(s)
      raised("invalid_argument", "got: nil", variable, s, tm.ones { 4, 2 })
      assert.equal(1, #variable(s, 3).variables) -- a scalar is not asked about
    end)
  end)

  it("calls a partitioner with a shape, a dtype's name and axis 1", function()
    local seen
    cluster(1, 2, { variable_partitioner = function(...)
      seen = { ... }
      return { 9, 1 }
    end }, function(s)
      local v = variable(s, tm.zeros({ 4, 2 }, "int64"))
      assert.same({ { 4, 2 }, "int64", 1 }, seen)
      assert.equal(4, #v.variables) -- no more shards than rows
    end)
  end)

  local function devices(s, sizes)
    local list = {}
    for i, n in ipairs(sizes) do list[i] = tonumber(variable(s, tm.zeros { n }).device:match "ps/task:(%d+)") end
    return list
  end

  it("places by bytes held, by count, or as a function says", function()
    cluster(1, 3, nil, function(s) assert.same({ 0, 1, 2, 1, 1, 1 }, devices(s, { 100, 10, 20, 5, 5, 1 })) end)
    cluster(1, 2, { placement = "round_robin" }, function(s)
      assert.same({ 0, 1, 0, 1, 0 }, devices(s, { 100, 1, 1, 1, 100 }))
    end)
    local seen = {}
    cluster(1, 2, { placement = function(shape, dtype, held)
      seen[#seen + 1] = { shape[1], dtype, held[1], held[2] }
      return 2
    end }, function(s) assert.same({ 1, 1 }, devices(s, { 3, 4 })) end)
    assert.same({ { 3, "float32", 0, 0 }, { 4, "float32", 0, 12 } }, seen)
    for _, bad in ipairs { 0, 3, 1.5, "a" } do
      cluster(1, 2, { placement = function() return bad end }, function(s)
        raised("invalid_argument", "index of a ps, 1 to 2", variable, s, 1)
      end)
    end
    raised("invalid_argument", "placement", D.ParameterServerStrategy, D.local_cluster { workers = 1, ps = 1 },
      { placement = "anywhere" })
  end)

  it("puts a variable beside another, in one piece", function()
    cluster(1, 3, { placement = "round_robin", variable_partitioner = fixed { num_shards = 2 } }, function(s)
      local a, b = variable(s, 1), variable(s, 2)
      local with = s:colocate_with(b, function() return tm.Variable(tm.zeros { 4 }) end)
      assert.equal("/job:ps/task:1", b.device)
      assert.equal("/job:ps/task:1", with.device)
      assert.equal(1, #with.variables)
      assert.equal("/job:ps/task:0", a.device)
      assert.equal("/job:ps/task:2", variable(s, 3).device) -- it did not count
      raised("invalid_argument", "colocate_with", s.colocate_with, s, tm.Variable(1), function() end)
    end)
  end)
end)

-- Rows 0..9 in 3 shards of 4, 3 and 3.
local function rows10()
  local rows = {}
  for i = 0, 9 do rows[i + 1] = { i, 10 * i } end
  return rows
end

--- The same checks on a variable cut by the strategy, and on one made of two variables.
local function both(fn)
  cluster(1, 2, { variable_partitioner = fixed { num_shards = 3 } }, function(s, c)
    fn(variable(s, rows10(), { name = "t" }), s, c)
  end)
  cluster(1, 2, nil, function(s, c)
    local rows = rows10()
    local a = variable(s, { unpack(rows, 1, 4) }, { name = "a" })
    local b = variable(s, { unpack(rows, 5, 10) }, { name = "b" })
    fn(D.ShardedVariable { a, b }, s, c)
  end)
end

describe("a sharded variable", function()
  it("has shards with names, devices and shapes", function()
    cluster(1, 2, { variable_partitioner = fixed { num_shards = 3 }, placement = "round_robin" }, function(s)
      local v = variable(s, rows10(), { name = "t" })
      assert.same({ 10, 2 }, v.shape)
      assert.equal("t", v.name)
      assert.equal(3, #v.variables)
      for i, rows in ipairs { 4, 3, 3 } do
        local shard = v.variables[i]
        assert.same({ rows, 2 }, shard.shape)
        assert.equal("t/part_" .. i - 1, shard.name)
        assert.equal("/job:ps/task:" .. (i - 1) % 2, shard.device)
        assert.equal("float32", shard.dtype)
        assert.same({ shard }, shard.variables)
      end
      assert.same({ { 7, 70 }, { 8, 80 }, { 9, 90 } }, v.variables[3]:read():totable())
      local w = variable(s, 5)
      assert.equal(w, w.variables[1])
    end)
  end)

  it("becomes one tensor where a tensor is wanted", function()
    both(function(v, _, c)
      assert.same({ 10, 2 }, v.shape)
      assert.same(rows10(), v:read():totable())
      assert.equal(90, (v + 1)[10]:totable()[2] - 1)
      assert.equal(45 * 11, tm.reduce_sum(v):item())
      if _VERSION ~= "Lua 5.1" then assert.equal(10, #v) end -- LuaJIT asks no table for its length
      assert.equal(2, v.rank)
      assert.equal(45 * 11, c:schedule(function() return tm.reduce_sum(v) end):fetch())
    end)
  end)

  it("gives every position and slice, and says when there is none", function()
    both(function(v)
      for i = 1, 10 do
        assert.same({ i - 1, 10 * (i - 1) }, v[i]:totable())
        assert.same({ i - 1, 10 * (i - 1) }, v[i - 11]:totable())
      end
      raised("out_of_range", nil, function() return v[11] end)
      raised("out_of_range", nil, function() return v[-11] end)
      raised("invalid_argument", "positions count from 1", function() return v[0] end)
      raised("invalid_argument", "gather", function() return v[tm.tensor(1)] end)
      local all = v:read()
      for _, range in ipairs { { 3, 8 }, { 4, 5 }, { -3 }, { 1, -1, 2 }, { -1, 1, -1 }, { -1, 1, -3 }, { 2, 99, 3 },
        { -20, 10, 3 }, { 8, 3 }, { 9, 2, -4 } } do
        assert.same(all:slice({ range }):totable(), v:slice({ range }):totable())
        assert.same(all:slice({ range, 2 }):totable(), v:slice({ range, 2 }):totable())
      end
      assert.same({ 0, 2 }, v:slice({ { 8, 3 } }).shape)
      raised("invalid_argument", nil, v.slice, v, { { 1, 5, 0 } })
    end)
  end)

  it("reads rows in the order of the ids, repeated ones too", function()
    both(function(v, _, c)
      local ids = tm.tensor({ 9, 0, 3, 9, 4, 4, 6 }, "int64")
      local want = { { 9, 90 }, { 0, 0 }, { 3, 30 }, { 9, 90 }, { 4, 40 }, { 4, 40 }, { 6, 60 } }
      assert.same(want, v:sparse_read(ids):totable())
      assert.same(want, tm.nn.embedding_lookup(v, ids):totable())
      assert.same(want, c:schedule(function(i) return v:sparse_read(i) end, { ids }):fetch():totable())
      assert.same({ 0, 2 }, v:sparse_read(tm.zeros({ 0 }, "int64")).shape)
      assert.same({ 2, 1, 2 }, v:sparse_read(tm.tensor({ { 1 }, { 2 } }, "int64")).shape)
      for _, bad in ipairs { -1, 10 } do
        raised("invalid_argument", tostring(bad), v.sparse_read, v, tm.tensor({ 0, bad }, "int64"))
        raised("invalid_argument", tostring(bad), tm.nn.embedding_lookup, v, tm.tensor({ bad }, "int64"))
      end
    end)
  end)

  it("is assigned shard by shard and gives itself back", function()
    both(function(v, _, c)
      assert.equal(v, v:assign(tm.ones { 10, 2 }))
      assert.equal(v, v:assign_add(tm.fill({ 10, 2 }, 2)))
      assert.equal(v, v:assign_sub(rows10()))
      assert.same({ -6, -87 }, v[10]:totable())
      assert.same({ 3, 3 }, v[1]:totable())
      raised("invalid_argument", nil, v.assign, v, tm.ones { 9, 2 })
      c:schedule(function() v:assign(tm.zeros { 10, 2 }) end)
      c:join()
      assert.equal(0, tm.reduce_sum(v):item())
    end)
  end)

  it("scatters rows to their shards", function()
    both(function(v, _, c)
      local ids = tm.tensor({ 9, 0, 4, 9 }, "int64")
      assert.equal(v, v:scatter_add(ids, tm.ones { 4, 2 }))
      assert.same({ 11, 92 }, v[10]:totable())
      assert.same({ 5, 41 }, v[5]:totable())
      assert.equal(v, v:scatter_sub(ids, tm.ones { 4, 2 }))
      assert.same(rows10(), v:read():totable())
      assert.equal(v, v:scatter_update(tm.tensor({ 3, 7 }, "int64"), { { 1, 2 }, { 3, 4 } }))
      assert.same({ 1, 2 }, v[4]:totable())
      assert.same({ 3, 4 }, v[8]:totable())
      c:schedule(function(i) v:scatter_add(i, tm.ones { 1, 2 }) end, { tm.tensor({ 7 }, "int64") })
      c:join()
      assert.same({ 4, 5 }, v[8]:totable())
      raised("invalid_argument", "10", v.scatter_add, v, tm.tensor({ 10 }, "int64"), tm.ones { 1, 2 })
      raised("invalid_argument", "-1", v.scatter_add, v, tm.tensor({ -1 }, "int64"), tm.ones { 1, 2 })
      assert.same({ 9, 90 }, v[10]:totable())
    end)
  end)

  it("has gradients, dense and by rows", function()
    both(function(v)
      local tape = tm.GradientTape { persistent = true }
      local loss = tm.reduce_sum(v * v)
      local rows = tm.reduce_sum(tm.nn.embedding_lookup(v, tm.tensor({ 9, 1, 9 }, "int64")))
      local g = tape:gradient(loss, { v })[1]
      local r = tape:gradient(rows, { v })[1]
      tape:close()
      assert.same({ 18, 180 }, tm.identity(g)[10]:totable())
      local dense = tm.identity(r)
      assert.same({ 10, 2 }, dense.shape)
      assert.same({ 2, 2 }, dense[10]:totable())
      assert.same({ 1, 1 }, dense[2]:totable())
      assert.same({ 0, 0 }, dense[1]:totable())
      tm.optimizers.SGD { learning_rate = 1 }:apply_gradients({ r }, { v })
      assert.same({ 7, 88 }, v[10]:totable())
      assert.same({ 0, 9 }, v[2]:totable())
    end)
  end)

  it("has gradients by its shards, of what used all of it", function()
    both(function(v)
      local tape = tm.GradientTape { persistent = true }
      local loss = tm.reduce_sum(v * v)
      local rows = tm.reduce_sum(tm.nn.embedding_lookup(v, tm.tensor({ 9, 1, 9 }, "int64")))
      local g, r = tape:gradient(loss, v.variables), tape:gradient(rows, v.variables)
      tape:close()
      local n = #v.variables
      assert.same(v.variables[1].shape, tm.identity(g[1]).shape)
      assert.same({ 18, 180 }, tm.identity(g[n])[-1]:totable())
      assert.same({ 2, 2 }, tm.identity(r[n])[-1]:totable())
      assert.same({ 1, 1 }, tm.identity(r[1])[2]:totable())
      assert.equal(2, tm.reduce_sum(r[1]):item())
    end)
  end)

  it("is made only of variables that fit together", function()
    cluster(1, 2, nil, function(s)
      local a = variable(s, tm.ones { 2, 3 })
      raised("invalid_argument", "non%-empty list", D.ShardedVariable, {})
      raised("invalid_argument", "non%-empty list", D.ShardedVariable, { tm.ones { 2, 3 } })
      raised("invalid_argument", "same dtype", D.ShardedVariable, { a, variable(s, tm.ones({ 2, 3 }, "int64")) })
      raised("invalid_argument", "same shapes except for the first axis", D.ShardedVariable,
        { a, variable(s, tm.ones { 2, 4 }) })
      raised("invalid_argument", "scalar", D.ShardedVariable, { variable(s, 1), variable(s, 2) })
      raised("invalid_argument", "trainable", D.ShardedVariable,
        { a, variable(s, tm.ones { 2, 3 }, { trainable = false }) })
      local v = D.ShardedVariable { a, variable(s, tm.zeros { 5, 3 }) }
      assert.same({ 7, 3 }, v.shape)
      assert.equal("float32", v.dtype)
      assert.equal("ShardedVariable", v.name)
      assert.equal(a, v.variables[1])
      assert.is_true(v.trainable)
    end)
  end)
end)

describe("per-worker datasets", function()
  local function total(c, it, n)
    local f = tm.func(function(i) return i:next() end)
    local sum = 0
    local values = {}
    for k = 1, n do values[k] = c:schedule(f, { it }) end
    for k = 1, n do sum = sum + values[k]:fetch() end
    return sum
  end

  it("come from a dataset or from a function", function()
    cluster(1, 1, nil, function(s, c)
      local ds = tm.data.range(5)
      assert.equal(10, total(c, c:create_per_worker_dataset(ds):iterator(), 5))
      assert.equal(10, total(c, c:create_per_worker_dataset(function() return ds end):iterator(), 5))
      local context
      local from = s:distribute_datasets_from_function(function(x)
        context = x
        return ds
      end)
      assert.same({ num_input_pipelines = 1, input_pipeline_id = 0, num_replicas_in_sync = 1 }, context)
      assert.equal(10, total(c, c:create_per_worker_dataset(from):iterator(), 5))
      assert.equal(10, total(c, c:create_per_worker_dataset(s:experimental_distribute_dataset(ds)):iterator(), 5))
      local fn = function() return s:distribute_datasets_from_function(function() return ds end) end
      assert.equal(10, total(c, c:create_per_worker_dataset(fn):iterator(), 5))
      raised("invalid_argument", "takes a dataset or a function", c.create_per_worker_dataset, c, 5)
      raised("invalid_argument", "dataset", c.create_per_worker_dataset, c, function() return 5 end)
    end)
  end)

  it("begin anew with every iterator", function()
    cluster(1, 1, nil, function(_, c)
      local per_worker = c:create_per_worker_dataset(tm.data.range(3))
      local a, b = per_worker:iterator(), per_worker:iterator()
      local f = tm.func(function(x, y) return x:next() * 10 + y:next() end)
      assert.equal(0, c:schedule(f, { a, b }):fetch())
      assert.equal(11, c:schedule(f, { a, b }):fetch())
      assert.equal(20, c:schedule(f, { a, per_worker:iterator() }):fetch())
      assert.equal(1, f.trace_count)
      raised("failed_precondition", "lives on the workers", a.next, a)
    end)
  end)

  it("end with out_of_range, which names task, step and op", function()
    cluster(1, 1, nil, function(_, c)
      local it = c:create_per_worker_dataset(tm.data.range(3)):iterator()
      assert.equal(3, total(c, it, 3))
      c:schedule(function(i) return i:next() end, { it })
      local e = raised("out_of_range", nil, c.join, c)
      assert.equal("/job:worker/task:0", e.task)
      assert.equal(4, e.step)
      assert.equal("iterator_next", e.op)
      assert.equal(3, total(c, c:create_per_worker_dataset(tm.data.range(3)):iterator(), 3))
    end)
  end)

  it("are not used by another coordinator", function()
    cluster(1, 1, nil, function(_, c)
      cluster(1, 1, nil, function(_, other)
        local it = c:create_per_worker_dataset(tm.data.range(3)):iterator()
        raised("invalid_argument", "another coordinator", other.schedule, other, function(i) return i:next() end,
          { it })
      end)
    end)
  end)

  it("refuse variables made in their function", function()
    cluster(1, 1, nil, function(s, c)
      raised("invalid_argument", "Creating variables in a dataset function", c.create_per_worker_dataset, c, function()
        tm.Variable(1)
        return tm.data.range(3)
      end)
      raised("invalid_argument", "Creating variables in a dataset function", c.create_per_worker_dataset, c, function()
        return tm.data.range(3):map(function(x) return x + s:scope(function() return tm.Variable(1) end) end)
      end)
      assert.equal(1, tm.Variable(1):read():item())
    end)
  end)

  it("shard themselves by the worker's index", function()
    cluster(2, 1, nil, function(s, c)
      local it = c:create_per_worker_dataset(function()
        return tm.data.range(10):shard(s.num_workers, D.current_worker_index())
      end):iterator()
      local f = tm.func(function(i)
        tm.sleep(0.005)
        return i:next(), D.current_worker_index()
      end)
      local seen = { {}, {} }
      local values = {}
      for k = 1, 8 do values[k] = c:schedule(f, { it }) end
      for k = 1, 8 do
        local x, w = values[k]:fetch()
        assert.equal(w, x % 2)
        table.insert(seen[w + 1], x)
      end
      assert.is_true(#seen[1] > 0 and #seen[2] > 0)
      local index = c:schedule(function() return D.current_worker_index() end):get()
      assert.equal("int64", index.dtype)
      assert.same({}, index.shape)
      raised("failed_precondition", "scheduled functions", tm.func(function() return D.current_worker_index() end))
      raised("failed_precondition", "scheduled function", D.current_worker_index)
    end)
  end)

  it("map with the worker's index", function()
    cluster(2, 1, nil, function(_, c)
      local it = c:create_per_worker_dataset(function()
        local index = D.current_worker_index()
        return tm.data.range(100):map(function(x) return x * 10 + index end)
      end):iterator()
      local f = tm.func(function(i)
        tm.sleep(0.003)
        return i:next() % 10, D.current_worker_index()
      end)
      for _ = 1, 6 do
        local x, w = c:schedule(f, { it }):fetch()
        assert.equal(w, x)
      end
    end)
  end)
end)

describe("strategies side by side", function()

  local function made() return D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 }) end

  it("do not nest their scopes", function()
    local a, b = made(), made()
    local ok, e = pcall(a.scope, a, function() return b:scope(function() end) end)
    assert.is_false(ok)
    assert.equal("failed_precondition", e.code)
    assert.equal(3, a:scope(function() return a:scope(function() return 3 end) end))
    a:close()
    b:close()
  end)

  it("give no coordinator once they are closed", function()
    local a = made()
    D.ClusterCoordinator(a)
    a:close()
    local ok, e = pcall(D.ClusterCoordinator, a)
    assert.is_false(ok)
    assert.equal("failed_precondition", e.code)
  end)
end)
