local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

local function all(ds)
  local list = {}
  for x in ds:each() do list[#list + 1] = x:totable() end
  return list
end

local function rows() return tm.data.from_tensor_slices { x = { { 1, 2 }, { 3, 4 }, { 5, 6 } }, y = { 0, 1, 2 } } end

local function with_file(text, fn)
  local name = os.tmpname()
  local f = assert(io.open(name, "w"))
  f:write(text)
  f:close()
  local ok, e = pcall(fn, name)
  os.remove(name)
  if not ok then error(e, 0) end
end

describe("a dataset", function()
  it("keeps the structure of its elements", function()
    local ds = rows()
    assert.same({ 2 }, ds.element_spec.x.shape)
    assert.equal("float32", ds.element_spec.y.dtype)
    assert.equal(3, ds:cardinality())
    local e = ds:iterator():next()
    assert.same({ 1, 2 }, e.x:totable())
    assert.equal(0, e.y:item())
  end)

  it("ends with out_of_range, or nil for try_next", function()
    local it = tm.data.range(1):iterator()
    it:next()
    assert.is_nil(it:try_next())
    raises("out_of_range", "", function() it:next() end)
  end)

  it("is transformed", function()
    assert.same({ 1, 2, 3, 4, 0 }, all(tm.data.range(5):rep(2):skip(1):take(5)))
    assert.same({ { 0, 1 }, { 2, 3 }, { 4 } }, all(tm.data.range(5):batch(2)))
    assert.same({ { 0, 1 }, { 2, 3 } }, all(tm.data.range(5):batch(2, { drop_remainder = true })))
    assert.same({ 1, 3 }, all(tm.data.range(4):shard(2, 1)))
    assert.same({ 0, 1, 2, 3 }, all(tm.data.range(4):batch(2):unbatch()))
    assert.same({ 0, 1, 0, 1, 2 }, all(tm.data.range(2):concatenate(tm.data.range(3))))
    assert.equal("infinite", tm.data.range(4):rep():cardinality())
    assert.same({ 0, 1, 2 }, all(tm.data.range(3):prefetch(2):cache()))
  end)

  it("shuffles by seed", function()
    local a, b = all(tm.data.range(50):shuffle(50, { seed = 3 })), all(tm.data.range(50):shuffle(50, { seed = 3 }))
    assert.same(a, b)
    table.sort(a)
    for i = 1, 50 do assert.equal(i - 1, a[i]) end
  end)

  it("maps traced functions: lists are unpacked, tables are not", function()
    local pairs_of = tm.data.zip { tm.data.range(3), tm.data.range(10, 13) }
    assert.same({ 10, 12, 14 }, all(pairs_of:map(function(a, b) return a + b end)))
    assert.same({ 0, 1, 2 }, all(rows():map(function(e) return e.y end)))
    local two = rows():map(function(e) return e.x, e.y end):iterator():next()
    assert.same({ 1, 2 }, two[1]:totable())
    local named = rows():map(function(e) return { z = e.y + 1 } end):iterator():next()
    assert.equal(1, named.z:item())
  end)

  it("filters and enumerates", function()
    assert.same({ 0, 2, 4 }, all(tm.data.range(6):filter(function(x) return (x % 2):equal(0) end)))
    local last
    for e in tm.data.range(10, 13):enumerate():each() do last = e end
    assert.equal(2, last[1]:item())
    assert.equal(12, last[2]:item())
  end)

  it("says what is wrong", function()
    raises("invalid_argument", "batch size", function() rows():batch(0) end)
    raises("invalid_argument", 'did you mean "drop_remainder"', function()
      rows():batch(2, { drop_reminder = true })
    end)
    raises("invalid_argument", "cast", function() rows():map(function(e) return e.x + "a" end) end)
    raises("invalid_argument", "variables", function()
      local v = tm.Variable(1.0)
      rows():map(function(e) return e.x + v end)
    end)
    raises("not_found", "/no/such/file", function() tm.data.csv { files = "/no/such/file" } end)
  end)
end)

describe("an iterator in a traced function", function()
  it("is an input: one trace for iterators of one type", function()
    local f = tm.func(function(it) return it:next().y end)
    local a, b = rows():rep():batch(2):iterator(), rows():rep():batch(2):iterator()
    assert.same({ 0, 1 }, f(a):totable())
    assert.same({ 2, 0 }, f(a):totable())
    assert.same({ 0, 1 }, f(b):totable())
    assert.equal(1, f.trace_count)
    f(rows():rep():batch(3):iterator())
    assert.equal(1, f.trace_count)
  end)

  it("raises at the end", function()
    local f = tm.func(function(it) return it:next() end)
    local it = tm.data.range(1):iterator()
    f(it)
    raises("out_of_range", "", function() f(it) end)
  end)

  it("must be an argument", function()
    local it = rows():iterator()
    raises("invalid_argument", "argument", function() tm.func(function() return it:next().y end)() end)
  end)
end)

describe("files", function()
  it("are read as csv, with inferred types, header and label", function()
    with_file("a,b,y\n1,x,0\n2,?,1\n", function(name)
      local ds = tm.data.csv { files = name, header = true, label = "y", na_value = "?" }
      assert.equal("int64", ds.element_spec[1].a.dtype)
      assert.equal("string", ds.element_spec[1].b.dtype)
      local it = ds:iterator()
      it:next()
      local e = it:next()
      assert.equal(2, e[1].a:item())
      assert.equal("", e[1].b:item())
      assert.equal(1, e[2]:item())
    end)
  end)

  it("name file and line when a row is ragged", function()
    with_file("1,2\n3\n", function(name)
      raises("invalid_argument", name, function()
        all(tm.data.csv { files = name, columns = { { "a", "int64" }, { "b", "int64" } } }
          :map(function(e) return e.a end))
      end)
    end)
  end)

  it("are read as lines", function()
    with_file("one\n\r\n\nthree", function(name)
      assert.same({ "one", "", "", "three" }, all(tm.data.text_line(name)))
    end)
  end)
end)
