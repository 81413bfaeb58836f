local tm = require "tidemill"

local D = tm.distribute

local raises = dofile("spec/tools/expect.lua").raises

describe("a table that contains itself", function()
  local me = {}
  me[1], me.again = me, me
  local deep = "nested more than"

  it("is refused as argument, as result and as source", function()
    local v = tm.Variable(1)
    raises("invalid_argument", deep, tm.func(function() return 1 end), me)
    raises("invalid_argument", deep, tm.func(function() return me end), 1)
    raises("invalid_argument", deep, tm.data.from_tensor_slices, me)
    local tape = tm.GradientTape()
    raises("invalid_argument", deep, tape.gradient, tape, v * 2, me)
    tape:close()
  end)
end)

describe("structures", function()
  it("with different names have different traces", function()
    local f = tm.func(function(t) return t[1] and 1 or 2 end)
    assert.equal(1, f({ tm.ones {} }):item())
    assert.equal(2, f({ ["1"] = tm.ones {} }):item())
    local g = tm.func(function(t) return t.a and t.a + t.b or 0 end)
    assert.equal(3, g({ a = 1, b = 2 }):item())
    assert.equal(0, g({ ["a=i1,b"] = 2 }):item())
  end)

  it("may have an entry called n", function()
    local f = tm.func(function(t) return t.n * 2 end)
    assert.equal(6, f({ n = tm.tensor(3) }):item())
    assert.equal(10, f({ n = 5 }):item())
    assert.equal(12, f({ n = 6 }):item())
    assert.equal(7, tm.func(function(x) return { n = x + 5 } end)(tm.tensor(2)).n:item())
    local e = tm.data.from_tensor_slices { n = { 1, 2 }, x = { 3, 4 } }:iterator():next()
    assert.equal(1, e.n:item())
    assert.equal(3, e.x:item())
  end)

  it("have positions and names as keys", function()
    raises("invalid_argument", "positions and names", tm.func(function() return 1 end), { [true] = 1 })
  end)
end)

describe("a function that calls itself without end", function()
  it("is refused while traced, and the next trace works", function()
    local f
    f = tm.func(function(x) return f(x) end)
    raises("failed_precondition", "tm.while_loop", f, tm.ones { 2 })
    f = tm.func(function(x) return x + 1 end)
    assert.equal(2, f(tm.tensor(1)):item())
  end)
end)

describe("what is put together from ops", function()
  local t = tm.ones { 4, 2 }

  it("checks its arguments", function()
    raises("invalid_argument", "split takes", tm.split, t, true)
    raises("invalid_argument", "equal parts", tm.split, t, 0)
    raises("invalid_argument", "equal parts", tm.split, t, 1.5)
    raises("invalid_argument", "size 1", tm.split, t, { -1, 5 })
    raises("invalid_argument", "axis x", tm.unstack, t, "x")
    raises("invalid_argument", "axis 0", tm.unstack, t, 0)
    raises("invalid_argument", "axis 3", tm.split, t, 2, 3)
    raises("invalid_argument", "list of tensors", tm.clip_by_global_norm, 1, 2)
    raises("invalid_argument", "takes a function", tm.value_and_grad, 5, {})
  end)
end)

describe("an input_signature", function()
  it("is checked when given", function()
    local function signed(s) return function() tm.func(function(x) return x end, { input_signature = s }) end end
    raises("invalid_argument", "entry 1", signed(5))
    raises("invalid_argument", "entry 1", signed { 5 })
    raises("invalid_argument", "entry 1", signed { { dtype = "int32" } })
    raises("invalid_argument", "got -5", signed { { shape = { -5 } } })
    raises("invalid_argument", 'got "a"', signed { { shape = { "a" } } })
  end)
end)

describe("a local cluster", function()
  it("has a number of tasks that fits a machine", function()
    raises("invalid_argument", "workers must be a number from 1 to 1024", D.local_cluster, { workers = 1e9, ps = 1 })
  end)
end)

describe("integers beyond 2^53", function()
  if not math.type then return end
  local big, less = 9007199254740993, 9007199254740992

  it("compare exactly", function()
    assert.is_true(tm.tensor(big, "int64") > tm.tensor(less, "int64"))
    assert.is_false(tm.tensor(big, "int64") <= less)
  end)

  it("are refused where they would be rounded", function()
    raises("invalid_argument", "beyond 2^53", tm.fill, { 1 }, big, "int64")
    raises("invalid_argument", "beyond 2^53", tm.range, big, big + 2, 1, "int64")
    assert.equal(less, tm.fill({ 1 }, less, "int64"):item())
  end)
end)

describe("a csv file", function()
  local path = os.tmpname()

  it("may start with a byte order mark, before a quote too", function()
    local f = assert(io.open(path, "wb"))
    f:write('\239\187\191"a\nb",c\n1,2\n')
    f:close()
    local e = tm.data.csv { files = path, header = true }:iterator():next()
    os.remove(path)
    assert.equal(1, e["a\nb"]:item())
    assert.equal(2, e.c:item())
  end)

  it("has columns with names", function()
    raises("invalid_argument", "column 1 has no name", tm.data.csv, { files = path, columns = { {} } })
  end)
end)

describe("the program", function()
  it("launches with its standard streams closed", function()
    local root = debug.getinfo(1, "S").source:match "^@(.*)spec/" or ""
    local program = root .. "build/tidemill"
    local f = io.open(program)
    if not f then return end
    f:close()
    local path = os.tmpname()
    local script = assert(io.open(path, "w"))
    script:write "os.exit(7)"
    script:close()
    local _, _, code = os.execute(program .. " launch --workers 1 --ps 1 " .. path .. " <&- >&- 2>&-")
    os.remove(path)
    if code then assert.equal(7, code) end
  end)
end)
