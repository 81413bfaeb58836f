-- Optimizers and schedules against tf-keras's numbers, gradients by rows against a NumPy
-- twin (spec/fixtures/keras_optimizers.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_optimizers.lua"

--- A gradient by rows: what a lookup gives when the loss is sum(rows * found).
local function step_by_rows(opt, v, step)
  local tape = tm.GradientTape()
  local found = tm.nn.embedding_lookup(v, tm.tensor(step.ids, "int64"))
  local loss = tm.reduce_sum(found * tm.tensor(step.rows))
  opt:apply_gradients(tape:gradient(loss, { v }), { v })
end

describe("optimizers", function()
  for n, c in ipairs(keras.dense) do
    it(("%s steps as Keras's (case %d)"):format(c.optimizer, n), function()
      local opt = tm.optimizers[c.optimizer](c.options)
      local v = tm.Variable(tm.tensor(keras.start))
      for k, g in ipairs(keras.grads) do
        opt:apply_gradients({ tm.tensor(g) }, { v })
        close.check(v:read():totable(), c.values[k], 2e-5, 2e-6, "step " .. k)
      end
      assert.equal(#keras.grads, opt.iterations:read():item())
    end)
  end

  for n, c in ipairs(keras.rows) do
    it(("%s by rows changes the touched rows only (case %d)"):format(c.optimizer, n), function()
      local opt = tm.optimizers[c.optimizer](c.options)
      local v = tm.Variable(tm.tensor(keras.table))
      for k, step in ipairs(keras.row_steps) do
        step_by_rows(opt, v, step)
        close.check(v:read():totable(), c.values[k], 2e-5, 2e-6, "step " .. k)
      end
    end)
  end

  it("steps are the same in a traced function", function()
    local c = keras.dense[13]
    local opt = tm.optimizers[c.optimizer](c.options)
    local v = tm.Variable(tm.tensor(keras.start))
    local f = tm.func(function(g) opt:apply_gradients({ g }, { v }) end)
    for k, g in ipairs(keras.grads) do
      f(tm.tensor(g))
      close.check(v:read():totable(), c.values[k], 2e-5, 2e-6)
    end
    assert.equal(1, f.trace_count)
  end)

  it("apply_gradients takes pairs, and leaves variables without gradient alone", function()
    local a, b = tm.Variable { 1, 2 }, tm.Variable { 3, 4 }
    local opt = tm.optimizers.SGD { learning_rate = 1 }
    opt:apply_gradients { { tm.tensor { 1, 1 }, a } }
    opt:apply_gradients({ nil, tm.tensor { 1, 1 }, n = 2 }, { a, b })
    assert.same({ 0, 1 }, a:read():totable())
    assert.same({ 2, 3 }, b:read():totable())
  end)

  it("apply_gradients without any gradient raises", function()
    local v = tm.Variable { 1 }
    local ok, e = pcall(function() tm.optimizers.SGD():apply_gradients({ n = 1 }, { v }) end)
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
  end)

  it("minimize takes a step down", function()
    local v = tm.Variable { 2 }
    local opt = tm.optimizers.SGD { learning_rate = 0.25 }
    opt:minimize(function() return tm.reduce_sum(tm.square(v)) end, { v })
    assert.same({ 1 }, v:read():totable())
  end)

  it("the learning rate reads as a number and may be set while training", function()
    local v = tm.Variable { 0 }
    local opt = tm.optimizers.SGD { learning_rate = 0.5 }
    assert.equal(0.5, opt.learning_rate)
    local f = tm.func(function() opt:apply_gradients({ tm.tensor { 1 } }, { v }) end)
    f()
    opt.learning_rate = 0.25
    f()
    assert.equal(0.25, opt.learning_rate)
    assert.same({ -0.75 }, v:read():totable())
    assert.equal(1, f.trace_count)
    opt.learning_rate = 0.001
    assert.equal(0.001, opt.learning_rate)
  end)

  it("a schedule is read back as it was given, and followed in a trace", function()
    local s = tm.optimizers.schedules.PiecewiseConstantDecay { boundaries = { 0 }, values = { 1, 0.5 } }
    local v = tm.Variable { 0 }
    local opt = tm.optimizers.SGD { learning_rate = s }
    assert.equal(s, opt.learning_rate)
    local f = tm.func(function() opt:apply_gradients({ tm.tensor { 1 } }, { v }) end)
    f()
    assert.same({ -1 }, v:read():totable())
    f()
    assert.same({ -1.5 }, v:read():totable())
  end)

  it("slots can be looked at", function()
    local v = tm.Variable { 1, 1 }
    local opt = tm.optimizers.SGD { learning_rate = 0.5, momentum = 0.9 }
    opt:apply_gradients({ tm.tensor { 1, 2 } }, { v })
    close.check(opt:get_slot(v, "momentum"):totable(), { -0.5, -1 })
  end)

  it("constraints hold after a step", function()
    local Positive = tm.layers.Layer:extend "Positive"
    function Positive:build()
      self.w = self:add_weight { shape = { 2 }, initializer = "ones", constraint = "non_neg" }
    end
    function Positive:call(x) return x * self.w end
    local l = Positive()
    l(tm.ones { 1, 2 })
    tm.optimizers.SGD { learning_rate = 1 }:apply_gradients({ tm.tensor { 3, 0.5 } }, { l.w })
    assert.same({ 0, 0.5 }, l.w:read():totable())
  end)

  it("global_clipnorm measures dense gradients and rows together", function()
    local a, b = tm.Variable { 0, 0 }, tm.Variable(tm.zeros { 4, 1 })
    local opt = tm.optimizers.SGD { learning_rate = 1, global_clipnorm = 1 }
    local tape = tm.GradientTape()
    local found = tm.nn.embedding_lookup(b, tm.tensor({ 2, 2 }, "int64"))
    local loss = tm.reduce_sum(a) * 0 + 3 * a[1] + 2 * tm.reduce_sum(found)
    opt:apply_gradients(tape:gradient(loss, { a, b }), { a, b })
    close.check(a:read():totable(), { -0.6, 0 })
    close.check(b:read():totable(), { { 0 }, { 0 }, { -0.8 }, { 0 } })
  end)

  it("an unknown option is refused with the nearest name", function()
    local ok, e = pcall(tm.optimizers.Adam, { beta1 = 0.9 })
    assert.is_false(ok)
    assert.truthy(e.message:find("beta_1", 1, true))
  end)
end)

describe("schedules", function()
  for n, c in ipairs(keras.schedules) do
    it(("%s agrees with Keras (case %d)"):format(c.schedule, n), function()
      local s = tm.optimizers.schedules[c.schedule](c.options)
      local f = tm.func(function(k) return s(k) end)
      for i, k in ipairs(c.steps) do
        close.check(s(k):item(), c.rates[i], 2e-5, 1e-6, "step " .. k)
        close.check(f(tm.tensor(k, "int64")):item(), c.rates[i], 2e-5, 1e-6, "step " .. k)
      end
    end)
  end

  it("boundaries and values must fit", function()
    assert.has_error(function()
      tm.optimizers.schedules.PiecewiseConstantDecay { boundaries = { 1, 2 }, values = { 1, 2 } }
    end)
  end)
end)

