local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

describe("tm.GradientTape", function()
  it("watches trainable variables by itself", function()
    local w = tm.Variable { 1, 2 }
    local tape = tm.GradientTape()
    local g = tape:gradient(tm.reduce_sum(w * w * w), { w })
    assert.same({ 3, 12 }, g[1]:totable())
    assert.equal(1, g.n)
  end)

  it("watches tensors when told", function()
    local x = tm.tensor(3)
    local tape = tm.GradientTape()
    tape:watch(x)
    assert.equal(6, tape:gradient(x * x, x):item())
  end)

  it("gives nil for what is not connected", function()
    local w, u = tm.Variable { 1, 2 }, tm.Variable { 1 }
    local tape = tm.GradientTape()
    local g = tape:gradient(tm.reduce_sum(w * w), { u, w })
    assert.is_nil(g[1])
    assert.same({ 2, 4 }, g[2]:totable())
    assert.equal(2, g.n)
  end)

  it("is asked once, unless persistent", function()
    local w = tm.Variable(2.0)
    local once = tm.GradientTape()
    local y = w * w
    once:gradient(y, w)
    raises("failed_precondition", "persistent", function() once:gradient(y, w) end)
    local tape = tm.GradientTape { persistent = true }
    y = w * w
    assert.equal(4, tape:gradient(y, w):item())
    assert.equal(4, tape:gradient(y, w):item())
    tape:close()
  end)

  it("gives rows for looked-up tables", function()
    local v = tm.Variable { { 1, 2 }, { 3, 4 }, { 5, 6 } }
    local tape = tm.GradientTape()
    local g = tape:gradient(tm.reduce_sum(tm.nn.embedding_lookup(v, { 0, 0, 2 }) * 2), { v })[1]
    assert.same({ 0, 0, 2 }, g.indices:totable())
    assert.same({ { 2, 2 }, { 2, 2 }, { 2, 2 } }, g.values:totable())
    assert.same({ 3, 2 }, g.dense_shape)
  end)

  it("differentiates a Lua variable's gather like a lookup", function()
    local v = tm.Variable { { 1, 2 }, { 3, 4 } }
    local tape = tm.GradientTape()
    local g = tape:gradient(tm.reduce_sum(tm.gather(v, { 1 })), v)
    assert.same({ 1 }, g.indices:totable())
  end)

  it("works in traced functions", function()
    local w = tm.Variable(2.0)
    local f = tm.func(function(x)
      local tape = tm.GradientTape()
      return tape:gradient(w * w * x, w)
    end)
    assert.equal(12, f(tm.tensor(3)):item())
  end)

  it("nests for second derivatives", function()
    local x = tm.tensor(2)
    local outer = tm.GradientTape()
    outer:watch(x)
    local inner = tm.GradientTape()
    inner:watch(x)
    local first = inner:gradient(x * x * x, x)
    assert.equal(12, first:item())
    assert.equal(12, outer:gradient(first, x):item())
  end)

  it("says what is no source", function()
    local tape = tm.GradientTape()
    raises("invalid_argument", "source", function() tape:gradient(tm.tensor(1), { 3 }) end)
  end)
end)

describe("tm.value_and_grad", function()
  it("gives the value and the gradients", function()
    local w = tm.Variable(3.0)
    local value, grads = tm.value_and_grad(function() return w * w end, { w })
    assert.equal(9, value:item())
    assert.equal(6, grads[1]:item())
  end)

  it("closes its tape after an error", function()
    local ok = pcall(tm.value_and_grad, function() error "boom" end, {})
    assert.is_false(ok)
    assert.equal(2, (tm.tensor(1) + 1):item())
  end)
end)
