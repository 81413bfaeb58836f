-- Results as arguments of later functions: the function waits for them, schedule does not.
local tm = require "tidemill"
local D = tm.distribute

local function raised(code, pattern, f, ...)
  local ok, e = pcall(f, ...)
  assert.is_false(ok)
  assert.equal(code, e.code, tostring(e))
  if pattern then assert.is_truthy(e.message:find(pattern), e.message) end
  return e
end

describe("a remote value as an argument", function()
  local strategy, c

  local function open(workers, queue_size)
    strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers or 2, ps = 1 })
    c = D.ClusterCoordinator(strategy, { queue_size = queue_size })
  end

  after_each(function()
    if strategy then strategy:close() end
    strategy = nil
  end)

  local add = tm.func(function(a, b) return a + b end)
  local slow = tm.func(function(x)
    tm.sleep(0.1)
    return x + 1
  end)

  it("does not make schedule wait, wherever it stands in the arguments", function()
    open(3)
    local t = tm.time()
    local a = c:schedule(slow, { tm.tensor(1) })
    local b = c:schedule(slow, { a })
    local d = c:schedule(function(x, o) return x + o.deep[2].y, o.deep[1] end, { a, { deep = { 7, { y = b } } } })
    assert.is_true(tm.time() - t < 0.08)
    assert.is_false(d:done())
    local sum, seven = d:fetch()
    assert.equal(5, sum)
    assert.equal(7, seven)
    assert.is_true(tm.time() - t >= 0.2)
  end)

  it("may have any structure, and several results are a list", function()
    open()
    local two = c:schedule(function() return tm.tensor { 1, 2 }, { k = tm.tensor(5), l = { tm.tensor(6) } } end)
    local r = c:schedule(function(l) return l[1] + l[2].k + l[2].l[1] end, { two })
    assert.same({ 12, 13 }, r:get():totable())
  end)

  it("gives one trace, done or not, of the result's type with its unknown sizes", function()
    open()
    local strings = tm.func(function(n) return tm.boolean_mask(tm.range(0, 5, 1, "float32"), tm.range(5):less(n)) end)
    local total = tm.func(function(x) return tm.reduce_sum(x), tm.size_of(x) end)
    local first = c:schedule(strings, { tm.tensor(3, "int64") })
    local early = c:schedule(total, { first })
    c:join()
    local late = c:schedule(total, { first })
    assert.same({ 3, 3 }, { early:fetch() })
    assert.same({ 3, 3 }, { late:fetch() })
    assert.same({ 10, 5 }, { c:schedule(total, { c:schedule(strings, { tm.tensor(5, "int64") }) }):fetch() })
    assert.equal(1, total.trace_count)
    for _ = 1, 3 do c:schedule(add, { c:schedule(slow, { tm.tensor(1) }), tm.tensor(1) }) end
    assert.equal(7, c:schedule(add, { tm.tensor(3), tm.tensor(4) }):fetch())
    assert.equal(1, add.trace_count) -- a tensor of the same type is the same signature
    local signature = { { shape = { -1 }, dtype = "float32" } }
    local signed = tm.func(function(x) return x * 2 end, { input_signature = signature })
    assert.same({ 0, 2, 4 }, c:schedule(signed, { first }):get():totable())
    raised("invalid_argument", "the signature says", c.schedule, c, signed, { early })
  end)

  it("without a result is nil, and waited for all the same", function()
    open(2)
    local v = strategy:scope(function() return tm.Variable(0) end)
    local first = c:schedule(function()
      tm.sleep(0.1)
      v:assign(7)
    end)
    assert.equal(7, c:schedule(function() return v:read() end, { first, tm.tensor(1) }):fetch())
    assert.equal(8, c:schedule(function(_, b) return v + b end, { { first }, tm.tensor(1) }):fetch())
    local bad = c:schedule(function()
      tm.sleep(0.05)
      tm.assert_true(tm.tensor(false), "no luck")
    end)
    local r = c:schedule(function() return tm.tensor(1) end, { bad })
    raised("invalid_argument", "^no luck", c.join, c)
    raised("invalid_argument", "^argument %[1%] failed: no luck", r.fetch, r)
  end)

  it("makes long chains, each link in its place", function()
    open(3)
    local r = c:schedule(add, { tm.tensor(0), tm.tensor(0) })
    local one = c:schedule(slow, { tm.tensor(0) })
    for _ = 1, 3000 do r = c:schedule(add, { r, one }) end
    assert.equal(3000, r:fetch())
    c:join()
    assert.equal(3002, c:stats().steps)
  end)

  it("counts as queued: the queue stays bounded, and a full one does not lock up", function()
    open(2, 4)
    local r = c:schedule(slow, { tm.tensor(0) })
    for _ = 1, 40 do
      r = c:schedule(add, { r, tm.tensor(1) })
      assert.is_true(c:stats().queued <= 4)
    end
    local done = 0
    for k = 1, 3 do
      tm.async(function()
        local x = r
        for _ = 1, 20 do x = c:schedule(add, { x, tm.tensor(k) }) end
        assert.equal(41 + 20 * k, x:fetch())
        done = done + 1
      end)
    end
    while done < 3 do c:join() end
  end)

  it("that comes just as a wait of no time ends is taken", function()
    open(2)
    local done = 0
    for k = 1, 2 do
      tm.async(function()
        for i = 1, 8000 do assert.equal(i + k, c:schedule(add, { tm.tensor(i), tm.tensor(k) }):fetch()) end
        done = done + 1
      end)
    end
    while done < 2 do c:join() end
  end)

  it("that fails fails the function with its code, and names the argument", function()
    open()
    local bad = c:schedule(function()
      tm.sleep(0.05)
      tm.assert_true(tm.tensor(false), "no luck")
      return tm.tensor(1)
    end)
    local dep = c:schedule(function(_, o) return o.y end, { 1, { y = bad } })
    local far = c:schedule(function(o) return o end, { dep })
    local apart = c:schedule(add, { c:schedule(slow, { tm.tensor(1) }), tm.tensor(1) })
    raised("invalid_argument", "^no luck", c.join, c)
    raised("invalid_argument", "^no luck", bad.fetch, bad)
    raised("invalid_argument", "^argument %[2%]%.y failed: no luck", dep.fetch, dep)
    raised("invalid_argument", "^argument %[1%] failed: argument %[2%]%.y failed: no luck", far.fetch, far)
    raised("cancelled", nil, apart.fetch, apart)
    c:join() -- raised once
    local late = c:schedule(function(x) return x end, { bad })
    raised("invalid_argument", "^argument %[1%] failed: no luck", c.join, c)
    raised("invalid_argument", "^argument %[1%] failed: no luck", late.fetch, late)
    assert.equal(3, c:schedule(add, { tm.tensor(1), tm.tensor(2) }):fetch())
  end)

  it("of another coordinator is taken when it is there", function()
    open()
    local other = D.ClusterCoordinator(D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 }))
    local theirs = other:schedule(slow, { tm.tensor(1) })
    raised("invalid_argument", "argument %[1%] is a result of another coordinator", c.schedule, c, slow, { theirs })
    assert.equal(2, theirs:fetch())
    assert.equal(3, c:schedule(slow, { theirs }):fetch())
    other:close()
  end)
end)
