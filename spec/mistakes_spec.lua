local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

local function invalid(text, fn, ...) raises("invalid_argument", text, fn, ...) end

local function cluster(fn)
  local D = tm.distribute
  local strategy = D.ParameterServerStrategy(D.local_cluster { workers = 2, ps = 2 },
    { variable_partitioner = D.partitioners.FixedShardsPartitioner { num_shards = 2 } })
  local c = D.ClusterCoordinator(strategy)
  local ok, e = pcall(fn, c, strategy)
  c:close()
  if not ok then error(e, 0) end
end

describe("an unknown option", function()
  it("is often a shortened one", function()
    invalid('did you mean "stddev"?', tm.random.normal, { 2 }, { std = 2 })
    invalid('did you mean "activation"?', tm.layers.Dense, { units = 1, activ = "relu" })
  end)

  it("that is like none gets the list", function()
    invalid("there are compression, images, labels", tm.data.idx, { files = "x" })
    invalid("learning_rate", tm.optimizers.SGD, { lr = 1 })
  end)
end)

describe("a dataset", function()
  local ds = tm.data.range(4)

  it("is called by a loop that forgot each", function()
    invalid("for x in ds:each() do", function() for x in ds do assert(x) end end)
    if _VERSION ~= "Lua 5.1" then invalid("cardinality", function() return #ds end) end -- no __len of tables there
  end)

  it("has an iterator that a loop takes", function()
    local n = 0
    for x in ds:iterator() do n = n + x:item() end
    assert.equal(6, n)
  end)

  it("tells its elements", function()
    local pair = tm.data.from_tensor_slices { x = { { 1, 2 } }, y = { "a" } }:batch(1)
    assert.equal("tm.data.Dataset of { x = float32 (?, 2), y = string (?) }", tostring(pair))
  end)

  it("wants functions and lists of datasets", function()
    invalid("map takes a function", ds.map, ds)
    invalid("zip{ a, b }", tm.data.zip, ds, ds)
    invalid("concatenate{ a, b }", tm.data.concatenate, ds, ds)
  end)

  it("is not filtered by what Lua's == says", function()
    invalid("x:equal(y)", ds.filter, ds, function(x) return x == 2 end)
  end)

  it("of a csv file has a header where columns are not named", function()
    local name = os.tmpname()
    local f = assert(io.open(name, "w"))
    f:write "a,b\n1,2\n3,4\n"
    f:close()
    local rows = {}
    for e in tm.data.csv { files = name, label = "b" }:each() do rows[#rows + 1] = { e[1].a:item(), e[2]:item() } end
    local bare = tm.data.csv { files = name, header = false }:iterator():next()
    os.remove(name)
    assert.same({ { 1, 2 }, { 3, 4 } }, rows)
    assert.is_nil(bare.a)
  end)
end)

describe("a layer", function()
  it("takes several inputs as one list", function()
    local a, b = tm.ones { 1, 2 }, tm.ones { 1, 2 }
    invalid("one list", tm.layers.Concatenate(), a, b)
  end)

  it("that returns nothing is named", function()
    local Silent = tm.layers.Layer:extend "Silent"
    function Silent.call() end
    invalid("returns nothing", Silent { name = "quiet" }, tm.ones { 1 })
  end)

  it("says how one vector becomes a batch", function()
    invalid("expand_dims", tm.layers.Dense { units = 1 }, tm.ones { 3 })
  end)

  it("with inputs by name misses the one that is not there", function()
    local a, b = tm.Input { shape = { 1 } }, tm.Input { shape = { 1 } }
    local m = tm.Model { inputs = { a = a, b = b }, outputs = a + b }
    invalid('the input "b" is missing', m, { a = tm.ones { 1, 1 } })
  end)
end)

describe("a variable", function()
  it("has its options in the second argument", function()
    invalid("second argument", tm.Variable, { 1, 2, name = "w" })
  end)

  it("is not assigned by position", function()
    local v = tm.Variable { 1, 2 }
    invalid("scatter_update", function() v[1] = 3 end)
    assert.same({ 1, 2 }, v:read():totable())
  end)

  it("tells its shards", function()
    cluster(function(_, strategy)
      local v = strategy:scope(function() return tm.Variable(tm.zeros { 4, 2 }, { name = "w" }) end)
      assert.equal('tm.ShardedVariable("w", shape (4, 2), float32, 2 shards)', tostring(v))
    end)
  end)
end)

describe("an object", function()
  it("is no empty list", function()
    invalid("a tm.Dense cannot become a tensor", tm.tensor, tm.layers.Dense { units = 1 })
    invalid("a tm.data.Dataset cannot become a tensor", tm.add, tm.ones { 1 }, tm.data.range(3))
    invalid("cannot become a tensor", tm.func(function() return tm.layers.Dense { units = 1 } end))
    assert.same({ { 1 }, { 2 } }, tm.tensor({ tm.ones { 1 }, { 2 } }):totable())
  end)
end)

describe("tm.print", function()
  it("takes text and tensors in a traced function", function()
    local f = tm.func(function(x)
      tm.print("x is", x, "and", 3)
      return x
    end)
    assert.equal(1, f(tm.tensor(1)):item())
    assert.truthy(f.graph:find("print", 1, true))
  end)
end)

describe("tm.func", function()
  it("reads a signature in both spellings", function()
    for _, spec in ipairs { { shape = { -1, 2 }, dtype = "float32" }, { { -1, 2 }, "float32" } } do
      local f = tm.func(function(x) return x * 2 end, { input_signature = { spec } })
      f(tm.ones { 1, 2 })
      f(tm.ones { 3, 2 })
      assert.equal(1, f.trace_count)
    end
    invalid("entry 1 must be like", tm.func, function() end, { input_signature = { "float32" } })
  end)
end)

describe("a dot where a colon belongs", function()
  local function colon(name, fn, ...) invalid("as in x:" .. name .. "(...)", fn, ...) end

  it("is noticed by datasets, tapes, strategies and coordinators", function()
    local function id(x) return x end
    colon("map", tm.data.range(3).map, id)
    colon("gradient", tm.GradientTape().gradient, tm.tensor(1), tm.tensor(1))
    cluster(function(c, strategy)
      colon("schedule", c.schedule, id)
      colon("scope", strategy.scope, id)
    end)
  end)
end)

describe("a loss", function()
  it("wants both", function()
    invalid("takes (y_true, y_pred)", tm.losses.MeanSquaredError(), tm.ones { 1 })
    local accuracy = tm.metrics.BinaryAccuracy()
    invalid("(y_true, y_pred)", accuracy.update_state, accuracy, tm.ones { 1 })
  end)

  it("has a name to print", function()
    assert.equal('MeanSquaredError "mean_squared_error"', tostring(tm.losses.MeanSquaredError()))
    assert.equal("L2", tostring(tm.regularizers.L2(0.1)))
  end)
end)

describe("Normalization", function()
  it("adapts to batches", function()
    local ds = tm.data.from_tensor_slices { 1, 2, 3 }
    invalid("ds:batch(32)", function() tm.layers.Normalization():adapt(ds) end)
    invalid("axis = false", function() tm.layers.Normalization():adapt(ds:batch(3)) end)
    local one = tm.layers.Normalization { axis = false }
    one:adapt(ds:batch(2))
    assert.equal(2, one.mean:item())
  end)
end)

describe("a schedule by pieces", function()
  it("counts its values when it is made", function()
    invalid("2 boundaries need 3 values", tm.optimizers.schedules.PiecewiseConstantDecay,
      { boundaries = { 1, 2 }, values = { 1, 2 } })
  end)
end)

describe("a coordinator", function()
  it("refuses an iterator of the chief", function()
    cluster(function(c)
      local it = tm.data.range(3):iterator()
      invalid("create_per_worker_dataset", c.schedule, c, function(i) return i:next() end, { it })
    end)
  end)

  it("is not called by what it runs", function()
    cluster(function(c)
      raises("failed_precondition", "inside a traced function", c.schedule, c, function()
        return c:schedule(function() return 1 end)
      end)
    end)
  end)

  it("lets coroutines go on once a join is over", function()
    cluster(function(c)
      local seen = 0
      for i = 1, 3 do
        tm.async(function()
          local x = c:schedule(function() return i end):fetch()
          seen = seen + x
        end)
      end
      c:join()
      c:join()
      assert.equal(6, seen)
    end)
  end)
end)
