local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

describe("tm.func", function()
  it("gives what the function gives, in its structure", function()
    local f = tm.func(function(x, k) return x * k, { list = { x + 1 }, y = x } end)
    local a, b = f(tm.tensor { 1, 2 }, 3)
    assert.same({ 3, 6 }, a:totable())
    assert.same({ 2, 3 }, b.list[1]:totable())
    assert.same({ 1, 2 }, b.y:totable())
  end)

  it("traces once a signature", function()
    local f = tm.func(function(x, k) return x * k end)
    f(tm.tensor { 1, 2 }, 3)
    f(tm.tensor { 5, 6 }, 3)
    assert.equal(1, f.trace_count)
    f(tm.tensor { 1, 2 }, 4)
    assert.equal(2, f.trace_count)
    f(tm.tensor { 1, 2, 3 }, 4)
    assert.equal(3, f.trace_count)
    f(tm.tensor({ 1, 2 }, "int32"), 4)
    assert.equal(4, f.trace_count)
  end)

  it("tells close numbers apart", function()
    local f = tm.func(function(k) return tm.tensor(k, "float64") end)
    assert.equal(0.3, f(0.3):item())
    assert.equal(0.1 + 0.2, f(0.1 + 0.2):item())
    assert.equal(2, f.trace_count)
  end)

  it("has one trace for an input signature", function()
    local f = tm.func(function(x) return x:reduce_sum() end,
      { name = "total", input_signature = { { shape = { -1 }, dtype = "float32" } } })
    assert.equal(3, f(tm.tensor { 1, 2 }):item())
    assert.equal(6, f(tm.tensor { 1, 2, 3 }):item())
    assert.equal(1, f.trace_count)
    raises("invalid_argument", "total", function() f(tm.tensor { { 1 } }) end)
    raises("invalid_argument", "takes 1 arguments", function() f() end)
  end)

  it("keeps the order of state", function()
    local v = tm.Variable(0.0)
    local f = tm.func(function()
      local a = v:read()
      v:assign_add(1)
      local b = v:read()
      v:assign(a * 10 + 5)
      return a, b, v:read()
    end)
    local a, b, c = f()
    assert.same({ 0, 1, 5 }, { a:item(), b:item(), c:item() })
  end)

  it("tells variables apart", function()
    local u, v = tm.Variable(1.0), tm.Variable(2.0)
    local f = tm.func(function(x) return x + 1 end)
    assert.equal(2, f(u):item())
    assert.equal(3, f(v):item())
    u:assign(5)
    assert.equal(6, f(u):item())
    assert.equal(2, f.trace_count)
  end)

  it("keeps the variables that it uses", function()
    local f
    do
      local v = tm.Variable(3.0)
      f = tm.func(function() return v * 2 end)
      f()
    end
    collectgarbage()
    collectgarbage()
    assert.equal(6, f():item())
  end)

  it("joins the trace that calls it", function()
    local inner = tm.func(function(x) return x * 2 end)
    local outer = tm.func(function(x) return inner(x) + 1 end)
    assert.equal(7, outer(tm.tensor(3)):item())
    assert.equal(0, inner.trace_count)
  end)

  it("prints its graph", function()
    local f = tm.func(function(x) return x * 2 end)
    f(tm.tensor(1))
    assert.truthy(f.graph:find "mul")
    assert.truthy(f.graph:find "return")
  end)

  it("gives constants as tensors", function()
    local a, b, c = tm.func(function() return 5, true, "x" end)()
    assert.same({ 5, true, "x" }, { a:item(), b:item(), c:item() })
  end)

  it("refuses functions as arguments and results, with their path", function()
    raises("invalid_argument", "[1].f", function() tm.func(function() return 1 end)({ f = print }) end)
    raises("invalid_argument", ".a", function() tm.func(function() return { a = print } end)() end)
  end)

  it("makes variables once", function()
    local f = tm.func(function(x) return x + tm.Variable(1.0) end)
    assert.equal(2, f(tm.tensor(1)):item())
    raises("failed_precondition", "second trace", function() f(tm.tensor { 1, 2 }) end)
  end)
end)

describe("a traced function", function()
  local function traced(fn) return function() tm.func(fn)(tm.tensor(1)) end end

  it("cannot compare its tensors in Lua", function()
    raises("invalid_argument", "tm.cond", traced(function(x) return x > x + 1 and x or x end))
    raises("invalid_argument", "tm.cond", traced(function(x) return x == x + 1 and x or x end))
    raises("invalid_argument", "tm.cond", traced(function(x) return x:item() end))
  end)

  it("leaves nothing open after an error", function()
    pcall(traced(function() error "boom" end))
    assert.equal(2, (tm.tensor(1) + 1):item())
    local _, e = pcall(traced(function() error "boom" end))
    assert.truthy(tostring(e):find "boom")
  end)

  it("keeps its tensors to itself", function()
    local kept
    tm.func(function(x)
      kept = x
      return x
    end)(tm.tensor(1))
    raises("failed_precondition", "outside", function() return kept + 1 end)
  end)

  it("knows unknown sizes as -1", function()
    local shape
    local f = tm.func(function(x)
      shape = x.shape
      return x:slice { { 2 } }
    end, { input_signature = { { shape = { -1, 2 }, dtype = "float32" } } })
    assert.same({ { 3, 4 } }, f(tm.tensor { { 1, 2 }, { 3, 4 } }):totable())
    assert.same({ -1, 2 }, shape)
  end)
end)

describe("tm.cond", function()
  it("is plain Lua where the condition is known", function()
    assert.equal("yes", tm.cond(tm.tensor(true), function() return "yes" end, function() return "no" end))
    assert.equal("no", tm.cond(false, function() return "yes" end, function() return "no" end))
  end)

  it("chooses when the function runs", function()
    local f = tm.func(function(x)
      return tm.cond(x:greater(0), function() return x * 2 end, function() return -x end)
    end)
    assert.equal(6, f(tm.tensor(3)):item())
    assert.equal(3, f(tm.tensor(-3)):item())
    assert.equal(1, f.trace_count)
  end)

  it("assigns only in the branch that runs", function()
    local v = tm.Variable(0.0)
    local f = tm.func(function(x)
      tm.cond(x:greater(0), function() v:assign_add(1) end, function() end)
      return v:read()
    end)
    assert.equal(1, f(tm.tensor(1)):item())
    assert.equal(1, f(tm.tensor(-1)):item())
  end)

  it("wants equally many results", function()
    raises("invalid_argument", "results", function()
      tm.func(function(x)
        return tm.cond(x:greater(0), function() return x, x end, function() return x end)
      end)(tm.tensor(1))
    end)
  end)

  it("has gradients", function()
    local w = tm.Variable(2.0)
    local f = tm.func(function(x)
      local tape = tm.GradientTape()
      local y = tm.cond(x:greater(0), function() return w * w end, function() return w * 3 end)
      return tape:gradient(y, w)
    end)
    assert.equal(4, f(tm.tensor(1)):item())
    assert.equal(3, f(tm.tensor(-1)):item())
  end)
end)

describe("tm.while_loop", function()
  local function sum(n)
    return tm.while_loop(function(i) return i:less(n) end, function(i, a) return i + 1, a + i end,
      { tm.tensor(0), tm.tensor(0) })
  end

  it("runs eagerly and traced alike", function()
    assert.equal(10, sum(5)[2]:item())
    assert.equal(10, tm.func(function(n) return sum(n)[2] end)(tm.tensor(5)):item())
  end)

  it("ends after maximum_iterations", function()
    local function count()
      return tm.while_loop(function(i) return i:less(99) end, function(i) return i + 2 end, { tm.tensor(0) },
        { maximum_iterations = 3 })
    end
    assert.equal(6, count()[1]:item())
    assert.equal(1, #count())
    assert.equal(6, tm.func(function() return count()[1] end)():item())
  end)
end)

describe("a coroutine", function()
  it("joins the trace and the tape of what resumed it", function()
    local f = tm.func(function(x)
      local y
      coroutine.wrap(function() y = x * 2 end)()
      return y
    end)
    assert.equal(6, f(tm.tensor(3)):item())
    local w = tm.Variable(3.0)
    local tape, y = tm.GradientTape(), nil
    coroutine.wrap(function() y = w * w end)()
    assert.equal(6, tape:gradient(y, w):item())
  end)

  it("that is suspended keeps its trace to itself", function()
    local co = coroutine.wrap(function()
      tm.func(function(x)
        coroutine.yield()
        return x + 1
      end)(tm.tensor(1))
    end)
    co()
    assert.equal(3, (tm.tensor(1) + 2):item())
    co()
  end)
end)
