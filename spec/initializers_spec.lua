-- Initializers: deviation and range of tf-keras's (spec/fixtures/keras_initializers.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_initializers.lua"

local function moments(t)
  local list = tm.reshape(tm.cast(t, "float64"), { -1 }):totable()
  local sum, squares, largest = 0, 0, 0
  for _, x in ipairs(list) do
    sum, squares, largest = sum + x, squares + x * x, math.max(largest, math.abs(x))
  end
  local mean = sum / #list
  return mean, math.sqrt(squares / #list - mean * mean), largest, #list
end

describe("initializers", function()
  for _, c in ipairs(keras.cases) do
    it(("%s draws for {%s} as Keras's does"):format(c.initializer, table.concat(c.shape, ", ")), function()
      local o = { seed = 5 }
      for k, v in pairs(c.options or {}) do o[k] = v end
      local mean, stddev, largest, n = moments(tm.initializers[c.initializer](o)(c.shape))
      local tolerance = 5 / math.sqrt(2 * n)
      assert(math.abs(stddev / c.stddev - 1) < tolerance, ("%g, not %g"):format(stddev, c.stddev))
      assert(math.abs(mean) < 5 * c.stddev / math.sqrt(n))
      local bounded = c.initializer:match "Uniform" or c.initializer:match "Normal"
      if bounded and c.initializer ~= "RandomNormal" then assert(largest <= c.largest * 1.001) end
    end)
  end

  it("the same seed gives the same numbers, others give others", function()
    local a = tm.initializers.GlorotUniform { seed = 3 } { 4, 5 }:totable()
    assert.same(a, tm.initializers.GlorotUniform { seed = 3 } { 4, 5 }:totable())
    assert.not_same(a, tm.initializers.GlorotUniform { seed = 4 } { 4, 5 }:totable())
  end)

  it("the global seed makes weights repeat", function()
    local function draw()
      tm.random.set_seed(12)
      local l = tm.layers.Dense { units = 3 }
      l(tm.zeros { 1, 2 })
      return l.kernel:read():totable()
    end
    assert.same(draw(), draw())
  end)

  it("constants are what they say", function()
    assert.same({ { 0, 0 } }, tm.initializers.Zeros() { 1, 2 }:totable())
    assert.same({ 1, 1 }, tm.initializers.Ones() { 2 }:totable())
    assert.same({ 2.5 }, tm.initializers.Constant(2.5) { 1 }:totable())
    assert.same({ { 1, 0, 0 }, { 0, 1, 0 } }, tm.initializers.Identity() { 2, 3 }:totable())
    assert.same({ { 2, 0 }, { 0, 2 }, { 0, 0 } }, tm.initializers.Identity { gain = 2 } { 3, 2 }:totable())
  end)

  for _, shape in ipairs { { 5, 5 }, { 3, 7 }, { 7, 3 }, { 2, 3, 4 } } do
    it(("orthogonal rows or columns for {%s}"):format(table.concat(shape, ", ")), function()
      local q = tm.initializers.Orthogonal { seed = 1 }(shape)
      q = tm.reshape(q, { -1, shape[#shape] })
      local rows, cols = q.shape[1], q.shape[2]
      local product = rows <= cols and tm.matmul(q, tm.transpose(q)) or tm.matmul(tm.transpose(q), q)
      close.check(product:totable(), tm.eye(math.min(rows, cols)):totable(), 0, 1e-5)
    end)
  end

  it("initializers are found by name", function()
    for _, name in ipairs { "glorot_uniform", "he_normal", "zeros", "ones", "uniform", "orthogonal" } do
      assert.truthy(tm.initializers.get(name).class_name)
    end
    local ok, e = pcall(tm.initializers.get, "glorot_unifrom")
    assert.is_false(ok)
    assert.truthy(e.message:find("glorot_uniform", 1, true))
  end)
end)
