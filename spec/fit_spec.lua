-- compile, fit, evaluate and predict without a cluster.
local tm = require "tidemill"

local function data(n)
  tm.random.set_seed(3)
  local x = tm.random.normal({ n, 4 }, { seed = 5 })
  return x, tm.cast(tm.reduce_sum(x, 2):greater(0), "float32")
end

local function classifier(o)
  local m = tm.Sequential { tm.layers.Dense { units = 8, activation = "tanh" },
    tm.layers.Dense { units = 1, activation = "sigmoid" } }
  o = o or {}
  o.optimizer, o.loss = o.optimizer or tm.optimizers.Adam { learning_rate = 0.02 }, o.loss or "binary_crossentropy"
  m:compile(o)
  return m
end

describe("fit", function()
  it("learns, and its history has a number an epoch", function()
    local x, y = data(256)
    local m = classifier { metrics = { "accuracy" } }
    local h = m:fit(x, { y = y, epochs = 5, verbose = 0 })
    assert.equal(5, #h.loss)
    assert.same({ 1, 2, 3, 4, 5 }, h.epoch)
    assert.equal(5, h.params.epochs)
    assert.is_true(h.loss[5] < h.loss[1])
    assert.is_true(h.accuracy[5] > 0.8)
  end)

  it("asks for compile first", function()
    local x, y = data(8)
    local m = tm.Sequential { tm.layers.Dense { units = 1 } }
    local ok, e = pcall(m.fit, m, x, { y = y, verbose = 0 })
    assert.is_false(ok)
    assert.is_true(tm.is_error(e, "failed_precondition"))
    assert.truthy(e.message:find("compile", 1, true))
  end)
end)

describe("evaluate and predict", function()
  it("give results by name, and the outputs of all batches joined", function()
    local x, y = data(70)
    local m = classifier { metrics = { "accuracy" } }
    m:fit(x, { y = y, verbose = 0 })
    local r = m:evaluate(x, { y = y, verbose = 0 })
    assert.is_number(r.loss)
    local p = m:predict(x, { verbose = 0 })
    assert.same({ 70, 1 }, p.shape)
    assert.is_true(tm.allclose(p, m(x), 1e-5, 1e-6))
    local right = tm.reduce_mean(tm.cast(tm.equal(tm.squeeze(p, 2):greater(0.5), y:greater(0.5)), "float32"))
    assert.is_true(math.abs(right:item() - r.accuracy) < 1e-6)
  end)
end)
