-- What lives on each worker: iterators, resources, PerWorkerVariable, tables.
local tm = require "tidemill"

local D = tm.distribute

local raises = dofile("spec/tools/expect.lua").raises

local strategy, c

local function open(workers)
  strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers or 2, ps = 1 })
  c = D.ClusterCoordinator(strategy)
end

--- Results of n closures, all at once.
local function results(n, f, args)
  local list = {}
  for i = 1, n do list[i] = c:schedule(f, args) end
  for i, r in ipairs(list) do list[i] = { r:fetch() } end
  return list
end

local function no_traffic()
  local s = c:stats()
  assert.equal(0, s.reads)
  assert.equal(0, s.updates)
  assert.equal(0, s.ps[1].reads)
  assert.equal(0, s.ps[1].updates)
end

--- Per worker, the elements that its closures got, in order.
local function by_worker(list)
  local out = {}
  for _, r in ipairs(list) do
    local w = math.floor(r[1])
    out[w] = out[w] or {}
    table.insert(out[w], math.floor(r[2]))
  end
  for _, l in pairs(out) do table.sort(l) end
  return out
end

local take = tm.func(function(it) return D.current_worker_index(), it:next() end)

local function whole(list, first)
  for i, x in ipairs(list) do assert.equal((first or 0) + i - 1, x) end
end

describe("iterators on workers", function()
  after_each(function() c:close() end)

  it("have a state: what is restored goes on behind the last completed closures", function()
    open(2)
    local function ds() return tm.data.range(1000):shuffle(50, { seed = 3 }):rep() end
    local it = c:create_per_worker_dataset(ds):iterator()
    local sum = tm.func(function(i) return D.current_worker_index(), i:next() end)
    results(57, sum, { it })
    local state = it:state()
    local function order(from, n)
      local list, x = {}, ds():iterator()
      for i = 1, from + n do
        local e = x:next():item()
        if i > from then list[#list + 1] = math.floor(e) end
      end
      table.sort(list)
      return list
    end
    local at = { state:match "at=(%d+):0,(%d+):0" }
    assert.equal(57, at[1] + at[2])
    for _ = 1, 2 do -- from the same place twice
      it:restore(state)
      for w, list in pairs(by_worker(results(40, sum, { it }))) do
        assert.same(order(tonumber(at[w + 1]), #list), list)
      end
    end
  end)

  it("are part of a Checkpoint, each worker's position by itself (pain points 26 and 15: dlrover 382, 770)", function()
    open(2)
    local dir = os.tmpname()
    os.remove(dir)
    local it = c:create_per_worker_dataset(tm.data.range(1000)):iterator()
    local first = by_worker(results(30, take, { it }))
    local path = assert(tm.train.Checkpoint { it = it }:save(dir .. "/ckpt"))
    c:close()
    open(2)
    it = c:create_per_worker_dataset(tm.data.range(1000)):iterator()
    results(7, take, { it })
    assert(tm.train.Checkpoint { it = it }:restore(path)):assert_consumed()
    for w, list in pairs(by_worker(results(30, take, { it }))) do whole(list, #(first[w] or {})) end
    local other = c:create_per_worker_dataset(tm.data.range(999)):iterator()
    local ok, err = tm.train.Checkpoint { it = other }:restore(path)
    assert.is_nil(ok)
    assert.truthy(tostring(err):find("another dataset", 1, true), tostring(err))
    os.execute("rm -rf '" .. dir .. "'")
  end)

  it("are restored on another number of workers: new ones start at the first element", function()
    open(1)
    local it = c:create_per_worker_dataset(tm.data.range(1000)):iterator()
    results(10, take, { it })
    local state = it:state()
    c:close()
    open(2)
    it = c:create_per_worker_dataset(tm.data.range(1000)):iterator()
    it:restore(state)
    for w, list in pairs(by_worker(results(40, take, { it }))) do whole(list, w == 0 and 10 or 0) end
    raises("failed_precondition", "join first", function()
      c:schedule(function() tm.sleep(0.05) end)
      it:restore(state)
    end)
    c:join()
    raises("invalid_argument", "no state of a per-worker iterator", it.restore, it, tm.data.range(3):iterator():state())
  end)

  it("hand back what was fetched ahead for a closure that was cancelled", function()
    open(1)
    local it = c:create_per_worker_dataset(tm.data.range(100)):iterator()
    for round = 0, 2 do
      c:schedule(function()
        tm.sleep(0.02)
        tm.assert_true(tm.tensor(false), "stop")
      end)
      local values = { c:schedule(take, { it }), c:schedule(take, { it }) }
      raises("invalid_argument", "stop", c.join, c)
      for _, v in ipairs(values) do raises("cancelled", "", v.fetch, v) end
      assert.same({ { 0, round } }, results(1, take, { it }))
    end
    assert.truthy(it:state():find("at=3:0 ", 1, true), it:state())
  end)

  it("hand back what was fetched ahead for a closure that moved (pain point 25: tensorflow 11660)", function()
    open(2)
    local it = c:create_per_worker_dataset(tm.data.range(100000)):iterator()
    local mixed = tm.func(function(i, long)
      tm.cond(long, function() return tm.sleep(0.1) end, function() return tm.sleep(0) end)
      return D.current_worker_index(), i:next()
    end)
    local no, yes = tm.tensor(false), tm.tensor(true)
    local list = {}
    for round = 1, 3 do
      list[#list + 1] = c:schedule(mixed, { it, yes })
      for _ = 1, 300 * round do list[#list + 1] = c:schedule(mixed, { it, no }) end
      c:join()
    end
    for i, r in ipairs(list) do list[i] = { r:fetch() } end
    for _, l in pairs(by_worker(list)) do whole(l) end
  end)

  it("are what a function takes, not their dataset (L12), which may have been made outside", function()
    open(2)
    local outside = tm.data.range(6):map(function(x) return x * 3 end)
    local per_worker = c:create_per_worker_dataset(outside)
    raises("failed_precondition", "passed as an argument", c.schedule, c, function(d) return d:iterator():next() end,
      { per_worker })
    for _, l in pairs(by_worker(results(6, take, { per_worker:iterator() }))) do
      for i, x in ipairs(l) do assert.equal(3 * (i - 1), x) end
    end
    raises("failed_precondition", "lives on the workers", function() return per_worker:iterator():next() end)
  end)

  it("give a closure as many elements as it asks for, and have them back when it does not start", function()
    open(1)
    local it = c:create_per_worker_dataset(tm.data.range(100000)):iterator()
    local many = tm.func(function(i)
      local sum = i:next()
      for _ = 2, 300 do sum = sum + i:next() end
      return sum
    end)
    assert.equal(44850, c:schedule(many, { it }):fetch())
    c:schedule(function()
      tm.sleep(0.02)
      tm.assert_true(tm.tensor(false), "stop")
    end)
    for _ = 1, 3 do c:schedule(many, { it }) end
    raises("invalid_argument", "stop", c.join, c)
    assert.equal(44850 + 300 * 300, c:schedule(many, { it }):fetch())
  end)

  it("inherit the options of their dataset; on_restart is restart or resume (L13)", function()
    open(1)
    local ds = tm.data.range(4):with_options { on_restart = "resume", deterministic = true }
    assert.is_true(tm.data.resumes(ds:map(function(x) return x end):batch(2):rep()))
    assert.is_true(tm.data.resumes(tm.data.zip { tm.data.range(3), ds }))
    assert.is_false(tm.data.resumes(ds:with_options { on_restart = "restart" }))
    assert.is_true(tm.data.resumes(ds:with_options { deterministic = false }))
    assert.is_false(tm.data.resumes(tm.data.range(4)))
    raises("invalid_argument", 'on_restart is "restart" or "resume"', ds.with_options, ds, { on_restart = "never" })
  end)
end)

describe("create_per_worker_resource", function()
  before_each(function() open(2) end)
  after_each(function() c:close() end)

  it("makes variables, tables and iterators on each worker, without traffic to a ps", function()
    local r = c:create_per_worker_resource(function()
      return {
        count = tm.Variable(0, { dtype = "int64" }), big = tm.Variable(tm.initializers.Ones(), { shape = { 3, 2 } }),
        words = tm.lookup.StaticHashTable { keys = { "a", "b" }, values = { 10, 20 }, default = -1 },
        ids = tm.layers.StringLookup { vocabulary = { "x", "y" } },
        data = { tm.data.range(100):batch(2):iterator() },
      }
    end)
    local list = results(20, function(x)
      x.count:assign_add(1)
      return D.current_worker_index(), tm.reduce_max(x.data[1]:next()), x.count:read(),
        tm.reduce_sum(x.words:lookup(tm.tensor { "b", "z" })), tm.reduce_sum(x.ids(tm.tensor { "y", "q" })),
        tm.reduce_sum(x.big)
    end, { r })
    local n = {}
    for _, l in ipairs(list) do
      n[l[1]] = (n[l[1]] or 0) + 1
      assert.same({ 19, 2, 6 }, { l[4], l[5], l[6] })
      assert.equal(2 * l[3] - 1, l[2])
    end
    assert.equal(20, (n[0] or 0) + (n[1] or 0))
    no_traffic()
  end)

  it("knows the worker's index", function()
    local r = c:create_per_worker_resource(function()
      local index = D.current_worker_index()
      return {
        v = tm.Variable(tm.cast(index, "float32") * 10 + 1), w = tm.Variable(function(shape)
          return tm.fill(shape, 1) * tm.cast(D.current_worker_index(), "float32")
        end, { shape = { 4 } }),
        it = tm.data.range(100):shard(2, index):iterator(), plain = tm.Variable({ 1, 2 }),
      }
    end)
    local f = tm.func(function(x)
      return D.current_worker_index(), x.it:next(), x.v:read(), tm.reduce_sum(x.w), tm.reduce_sum(x.plain)
    end)
    for _, l in ipairs(results(30, f, { r })) do
      assert.equal(l[1], l[2] % 2)
      assert.same({ 10 * l[1] + 1, 4 * l[1], 3 }, { l[3], l[4], l[5] })
    end
    no_traffic()
  end)

  it("gives a single thing, also inside nested arguments", function()
    local v = c:create_per_worker_resource(function() return tm.Variable(7) end)
    assert.equal(9, c:schedule(function(a) return a.deep[1] + 2 end, { { deep = { v } } }):fetch())
    no_traffic()
  end)

  it("tells an error only to functions that use the resource, with the message it had", function()
    local broken = c:create_per_worker_resource(function() error "my own mistake" end)
    local bad = c:create_per_worker_resource(function()
      local zero = tm.cast(D.current_worker_index(), "float32") * 0
      return { v = tm.Variable(tm.check_numerics(1 / zero, "gone wrong")) }
    end)
    assert.equal(3, c:schedule(function() return tm.tensor(3) end):fetch())
    c:join() -- what is not used never raises
    raises("unknown", "my own mistake", c.schedule, c, function(x) return x + 1 end, { broken })
    local r = c:schedule(function(x) return x.v + 1 end, { bad })
    raises("invalid_argument", "gone wrong", r.fetch, r)
    raises("invalid_argument", "resource of this worker could not be built", c.join, c)
    assert.equal(3, c:schedule(function() return tm.tensor(3) end):fetch())
    raises("invalid_argument", "returns nothing", c.schedule, c, function(x) return x end,
      { c:create_per_worker_resource(function() end) })
    raises("invalid_argument", "return ds:iterator()", c.schedule, c, function(x) return x end,
      { c:create_per_worker_resource(function() return tm.data.range(3) end) })
    raises("invalid_argument", "takes a function", c.create_per_worker_resource, c, 5)
  end)

  it("is dropped on the workers with its handle", function()
    local graph
    do
      local r = c:create_per_worker_resource(function() return tm.Variable(tm.zeros { 1000 }) end)
      assert.equal(0, c:schedule(function(v) return tm.reduce_sum(v) end, { r }):fetch())
      graph = tm.func(function() return r._struct:read() end):_concrete({}).graph
      c._handle:check(graph)
    end
    collectgarbage()
    collectgarbage()
    raises("invalid_argument", "belongs to the chief alone or to another strategy", c._handle.check, c._handle, graph)
    assert.equal(4, c:schedule(function() return tm.tensor(4) end):fetch())
  end)
end)

describe("PerWorkerVariable", function()
  after_each(function() c:close() end)

  it("is one copy a worker, captured by functions, read by read_all, without traffic to a ps", function()
    strategy = D.ParameterServerStrategy(D.local_cluster { workers = 3, ps = 1 })
    local v = strategy:scope(function() return D.PerWorkerVariable(2, { name = "mine", dtype = "int64" }) end)
    c = D.ClusterCoordinator(strategy)
    assert.is_false(v.trainable)
    assert.equal("mine", v.name)
    local function items() local l = v:read_all() for i, x in ipairs(l) do l[i] = x:item() end return l end
    assert.same({ 2, 2, 2 }, items())
    local n = { 2, 2, 2 }
    for _, r in ipairs(results(30, function()
      v:assign_add(1)
      return D.current_worker_index(), v:read()
    end)) do n[r[1] + 1] = n[r[1] + 1] + 1 end
    assert.same(n, items())
    for _ = 1, 3 do c:schedule(function() v:assign(D.current_worker_index()) tm.sleep(0.02) end) end
    c:join()
    no_traffic()
    local late = strategy:scope(function() return D.PerWorkerVariable(tm.ones { 2, 2 }) end)
    assert.equal(4, c:schedule(function() return tm.reduce_sum(late) end):fetch())
    assert.equal(3, #late:read_all())
  end)

  it("is there on workers that are added, and not asked of those that were removed", function()
    open(1)
    local v = strategy:scope(function() return D.PerWorkerVariable(function() return D.current_worker_index() + 5 end,
      { shape = {}, dtype = "int64" }) end)
    c:add_worker "another"
    local l = v:read_all()
    assert.same({ 5, 6 }, { l[1]:item(), l[2]:item() })
    c:remove_worker(0)
    c:join()
    while c:stats().workers[1].state ~= "removed" do tm.sleep(0.005) end
    l = v:read_all()
    assert.equal(1, #l)
    assert.equal(6, l[1]:item())
  end)

  it("is refused where it cannot be", function()
    open(1)
    raises("failed_precondition", "in strategy:scope", D.PerWorkerVariable, 1)
    strategy:scope(function()
      raises("invalid_argument", "trainable", D.PerWorkerVariable, 1, { trainable = true })
      local traced = tm.func(function() return D.PerWorkerVariable(1) end)
      raises("failed_precondition", "outside of traced functions", traced)
    end)
  end)
end)

describe("tm.lookup.StaticHashTable", function()
  local T = tm.lookup.StaticHashTable

  it("looks up strings and numbers, and gives the default for what is not there", function()
    local t = T { keys = { "a", "b" }, values = { 1.5, 2.5 }, default = -1 }
    assert.same({ { 2.5, -1 }, { 1.5, 1.5 } }, t:lookup { { "b", "c" }, { "a", "a" } }:totable())
    assert.equal(2, t:size())
    assert.same({ "y", "?" }, T { keys = { 3, 9 }, values = { "x", "y" }, default = "?" }
      :lookup(tm.tensor({ 9, 8 }, "int32")):totable())
    assert.same({ 7, 0 }, T { keys = tm.tensor { "k" }, values = tm.tensor({ 7 }, "int32"), default = 0 }
      :lookup { "k", "" }:totable())
    assert.same({ 5 }, T { keys = {}, values = {}, default = 5 }:lookup { "k" }:totable())
  end)

  it("comes from a file", function()
    local name = os.tmpname()
    local function file(text)
      local f = assert(io.open(name, "w"))
      f:write(text)
      f:close()
      return T { file = name, default = -1 }
    end
    assert.same({ 2, -1 }, file "x\ny\nz\n":lookup { "z", "q" }:totable())
    assert.same({ 30, 10 }, file "x\t10\ny\t30\n":lookup { "y", "x" }:totable())
    raises("invalid_argument", "line 2", file, "x\t10\ny\n")
    os.remove(name)
    raises("not_found", "StaticHashTable", T, { file = name, default = 0 })
  end)

  it("refuses what is no table", function()
    raises("invalid_argument", "2 keys and 1 values", T, { keys = { "a", "b" }, values = { 1 }, default = 0 })
    raises("invalid_argument", "default", T, { keys = { "a" }, values = { 1 } })
    raises("invalid_argument", "keys is a list", T, { keys = "a", values = { 1 }, default = 0 })
    raises("invalid_argument", "keys are string", function()
      T { keys = { "a" }, values = { 1 }, default = 0 }:lookup { 5 }
    end)
  end)

  it("is local to the workers wherever it was made, in scheduled and dataset functions (L6)", function()
    open(2)
    local inside = strategy:scope(function() return T { keys = { "a" }, values = { 5 }, default = 0 } end)
    local outside = T { keys = { "b" }, values = { 7 }, default = 0 }
    local it = c:create_per_worker_dataset(function()
      return tm.data.from_tensor_slices { "a", "b", "c" }:map(function(w)
        return inside:lookup(w) + outside:lookup(w)
      end):rep()
    end):iterator()
    local sum = 0
    for _, r in ipairs(results(30, function(i) return i:next() + inside:lookup(tm.tensor { "a" })[1] end, { it })) do
      sum = sum + r[1]
    end
    assert.is_true(sum >= 30 * 5)
    no_traffic()
    c:close()
  end)
end)
