-- States of iterators: what is restored goes on as the original would have.
local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

local function text_of(x)
  if tm.is_tensor and tm.is_tensor(x) or type(x) == "userdata" then x = x:totable() end
  if type(x) ~= "table" then return tostring(x) end
  local keys, parts = {}, {}
  for k in pairs(x) do keys[#keys + 1] = k end
  table.sort(keys)
  for i, k in ipairs(keys) do parts[i] = tostring(k) .. "=" .. text_of(x[k]) end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- The next n outcomes, errors too.
local function outcomes(it, n)
  local list = {}
  for i = 1, n do
    local ok, e = pcall(it.try_next, it)
    list[i] = ok and (e == nil and "end" or text_of(e)) or "error: " .. e.message
  end
  return list
end

-- From each position, a state restored in a fresh iterator of the same description gives
-- the elements that the original gives.
local function check(describe_it, n, positions)
  for _, at in ipairs(positions) do
    local it = describe_it():iterator()
    outcomes(it, at)
    local state = it:state()
    assert.equal("string", type(state))
    local other = describe_it():iterator()
    outcomes(other, 2)
    other:restore(state)
    assert.equal(state, other:state())
    assert.same(outcomes(it, n), outcomes(other, n), "after " .. at)
    assert.equal(it:state(), other:state())
  end
end

local dir

local function file(name, text)
  local path = dir .. "/" .. name
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
  return path
end

local function lines(n, fn)
  local list = {}
  for i = 1, n do list[i] = fn(i) end
  return table.concat(list, "\n") .. "\n"
end

local function idx(name, n, cols)
  local b = { string.char(0, 0, 8, cols and 2 or 1, 0, 0, math.floor(n / 256), n % 256) }
  if cols then b[2] = string.char(0, 0, 0, cols) end
  for i = 1, n * (cols or 1) do b[#b + 1] = string.char(i % 251) end
  return file(name, table.concat(b))
end

describe("the state of an iterator", function()
  setup(function()
    local p = io.popen "mktemp -d"
    dir = p:read "l"
    p:close()
  end)
  teardown(function() os.execute("rm -rf '" .. dir .. "'") end)

  local range = tm.data.range

  it("goes on as the original would have, for every source", function()
    check(function() return range(20) end, 25, { 0, 1, 7, 19, 20, 25 })
    check(function() return range(10000):skip(4000) end, 600, { 0, 1, 255, 256, 5000 })
    check(function() return tm.data.from_tensor_slices { x = { 1, 2, 3 }, y = { "a", "b", "c" } } end, 5, { 0, 2, 4 })
    check(function() return tm.data.from_tensors { 1, 2 } end, 3, { 0, 1, 2 })
    local a = file("a.txt", lines(300, function(i) return "line " .. i end))
    local b = file("b.txt", "x\n\ny")
    check(function() return tm.data.text_line { files = { a, b } } end, 320, { 0, 1, 63, 64, 65, 299, 300, 302, 303 })
    local csv = file("a.csv", "n,s\n" .. lines(200, function(i) return i .. ',"a ""quoted""\nname ' .. i .. '"' end))
    check(function() return tm.data.csv(csv) end, 210, { 0, 1, 64, 100, 199, 200 })
    local x, y, z = idx("x", 100, 3), idx("y", 100), idx("z", 50, 3)
    check(function() return tm.data.idx { images = x, labels = y } end, 110, { 0, 1, 15, 16, 17, 99, 100 })
    check(function() return tm.data.idx { images = { x, z } } end, 60, { 98, 100, 101, 120, 149, 150 })
  end)

  it("goes on as the original would have, for every transform", function()
    local noisy = function(x) return x * 2 + tm.cast(tm.random.uniform({}, { maxval = 1000 }), "int64") end
    local all = { 0, 1, 2, 5, 9, 10, 11, 23, 40, 41 }
    local transforms = {
      function(ds) return ds:map(noisy) end,
      function(ds) return ds:filter(function(x) return (x % 3):equal(0) end) end,
      function(ds) return ds:shuffle(4, { seed = 3 }) end,
      function(ds) return ds:shuffle(100) end,
      function(ds) return ds:shuffle(7):rep(3) end,
      function(ds) return ds:shuffle(7, { seed = 1, reshuffle = false }):rep() end,
      function(ds) return ds:rep(4) end,
      function(ds) return ds:rep() end,
      function(ds) return ds:rep(3):shuffle(6):map(noisy):rep(2) end,
      function(ds) return ds:rep():shuffle(6):map(noisy):batch(3) end,
      function(ds) return ds:map(noisy):rep(3):shuffle(5):batch(4) end,
      function(ds) return ds:batch(3) end,
      function(ds) return ds:batch(3, { drop_remainder = true }):rep(2) end,
      function(ds) return ds:batch(4):unbatch() end,
      function(ds) return ds:batch(4):map(noisy):unbatch():shuffle(3) end,
      function(ds) return ds:take(7):rep(2) end,
      function(ds) return ds:skip(3):rep(4):skip(2) end,
      function(ds) return ds:shard(3, 1):rep(5) end,
      function(ds) return ds:rep(5):shard(3, 2) end,
      function(ds) return ds:map(noisy):cache():rep(4) end,
      function(ds) return ds:shuffle(5):cache():shuffle(20):rep(4) end,
      function(ds) return ds:shuffle(11):cache():shuffle(4):rep(4) end,
      function(ds) return ds:map(noisy):cache():shuffle(11):rep(4) end,
      function(ds) return ds:prefetch(2):rep(3) end,
      function(ds) return ds:rep(3):map(noisy):shuffle(5):batch(2):prefetch(3) end,
      function(ds) return ds:enumerate(5):rep(2) end,
      function(ds) return tm.data.zip { ds, ds:shuffle(3):rep(), ds:take(6) } end,
      function(ds) return tm.data.zip { ds:map(noisy), ds:take(6), ds:map(noisy) }:rep(3) end,
      function(ds) return tm.data.zip { ds:map(noisy):filter(function(x) return (x % 2):equal(0) end), ds }:rep(3) end,
      function(ds) return ds:concatenate(ds:take(2)):shuffle(4):rep(3) end,
      function(ds) return ds:concatenate(ds:rep()):shuffle(4) end,
    }
    for i, fn in ipairs(transforms) do
      local ok, e = pcall(check, function() return fn(range(11)) end, 45, all)
      if not ok then error(("transform %d: %s"):format(i, tostring(e)), 0) end
    end
  end)

  it("counts elements that failed, and the batches that they took with them", function()
    local ds = function()
      return range(40):map(function(x) return tm.floordiv(x * 0 + 100, x % 5) end):batch(3)
    end
    check(ds, 20, { 0, 1, 2, 3, 7, 13, 20 })
    local bad = file("bad.csv", "n\n1\n2\n3\nx\n5\n6\ny\n8\n9\n10\n")
    check(function() return tm.data.csv { files = bad, columns = { { "n", "int64" } }, header = true }:batch(2) end, 8,
      { 0, 1, 2, 3, 4, 5 })
  end)

  it("holds the epoch and the seed, so that an order by chance comes back", function()
    local ds = range(30):shuffle(30)
    local first, second = ds:iterator(), ds:iterator()
    outcomes(first, 4)
    outcomes(second, 9)
    local state = second:state()
    tm.random.set_seed(4711)
    local other = range(30):shuffle(30):iterator()
    other:restore(state)
    assert.same(outcomes(second, 25), outcomes(other, 25))
    assert.are_not.same(outcomes(ds:iterator(), 30), outcomes(first, 30))
  end)

  it("is restored in a moment where elements have numbers", function()
    local x, ran = tm.zeros({ 1000, 4 }), 0
    local ds = tm.data.from_tensor_slices(x):map(function(r) return tm.reduce_sum(r) end):shuffle(500):rep():batch(10)
    local it = ds:iterator()
    local state = it:state():gsub("given=0", "given=100000000")
    local t0 = tm.time()
    it:restore(state)
    it:next()
    assert.is_true(tm.time() - t0 < 5, "1000000 epochs took " .. tm.time() - t0)
    assert.equal(0, ran)
  end)

  it("of another dataset raises, naming what differs", function()
    local it = range(10):shuffle(3):batch(2):iterator()
    raises("invalid_argument", "step 1, range, was made from other arguments",
      it.restore, it, range(11):shuffle(3):batch(2):iterator():state())
    raises("invalid_argument", "step 2 is rep there and shuffle here", it.restore, it,
      range(10):rep(3):batch(2):iterator():state())
    raises("invalid_argument", "step 3 is nothing there and batch here", it.restore, it,
      range(10):shuffle(3):iterator():state())
    raises("invalid_argument", "step 3, batch, was made from other arguments", it.restore, it,
      range(10):shuffle(3):batch(4):iterator():state())
    raises("invalid_argument", "this is no state of an iterator", it.restore, it, "given=7")
    raises("invalid_argument", "this is no state of an iterator", it.restore, it,
      (it:state():gsub("given=0", "given=-1")))
    raises("invalid_argument", "what it:state() gave", it.restore, it, 7)
    assert.same({ 2 }, it:next().shape) -- as it was
    it:restore(range(10):prefetch(2):shuffle(3):batch(2):prefetch(4):iterator():state())
  end)

  it("behind the end of data that became fewer raises data_loss", function()
    local path = file("shrinks.txt", lines(10, tostring))
    local it = tm.data.text_line(path):iterator()
    outcomes(it, 8)
    local state = it:state()
    file("shrinks.txt", lines(5, tostring))
    raises("data_loss", "the data end after 5 elements, it was behind element 8", it.restore, it, state)
  end)

  it("is part of a Checkpoint (pain point 26: dlrover 382)", function()
    local function ds() return range(100):shuffle(20):rep():batch(7) end
    local v, it = tm.Variable(0), ds():iterator()
    local ckpt = tm.train.Checkpoint { v = v, data = { train = it } }
    outcomes(it, 23)
    v:assign(5)
    local path = assert(ckpt:save(dir .. "/ckpt"))
    local want = outcomes(it, 30)
    local v2, it2 = tm.Variable(0), ds():iterator()
    local ckpt2 = tm.train.Checkpoint { v = v2, data = { train = it2 } }
    assert(ckpt2:restore(path)):assert_consumed()
    assert.equal(5, v2:read():item())
    assert.same(want, outcomes(it2, 30))
    local wrong = tm.train.Checkpoint { v = v2, data = { train = range(5):iterator() } }
    local status, err = wrong:restore(path)
    assert.is_nil(status)
    assert.is_true(tm.is_error(err, "invalid_argument"))
    assert.truthy(tostring(err):find("another dataset", 1, true), tostring(err))
  end)
end)
