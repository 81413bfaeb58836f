local tm = require "tidemill"
local close = dofile "spec/close.lua"

local L = tm.layers

describe("Dense", function()
  it("multiplies, adds and activates", function()
    local l = L.Dense { units = 2, activation = "relu", kernel_initializer = "ones", bias_initializer = 1 }
    assert.same({ { 4, 4 }, { 0, 0 } }, l(tm.tensor { { 1, 2 }, { -3, 0 } }):totable())
    assert.same({ 2, 2 }, l.kernel.shape)
    assert.equal(2, #l.weights)
  end)

  it("keeps the axes before the last", function()
    local l = L.Dense { units = 4 }
    assert.same({ 2, 5, 4 }, l(tm.zeros { 2, 5, 3 }).shape)
  end)

  it("works without bias", function()
    local l = L.Dense { units = 4, use_bias = false }
    l(tm.zeros { 1, 3 })
    assert.equal(1, #l.weights)
  end)

  it("casts integers", function()
    local l = L.Dense { units = 1, kernel_initializer = "ones" }
    assert.same({ { 3 } }, l(tm.tensor({ { 1, 2 } }, "int64")):totable())
  end)

  it("says what it needs", function()
    local ok, e = pcall(L.Dense, { unit = 3 })
    assert.is_false(ok)
    assert.truthy(e.message:find("units", 1, true))
    ok, e = pcall(L.Dense, {})
    assert.is_false(ok)
    assert.truthy(e.message:find("units", 1, true))
    ok, e = pcall(L.Dense, { units = 1, activation = "rely" })
    assert.is_false(ok)
    assert.truthy(e.message:find('"relu"', 1, true))
    assert.has_error(function() L.Dense { units = 2.5 } end)
    local l = L.Dense { units = 1, name = "head" }
    l(tm.zeros { 1, 2 })
    ok, e = pcall(l, tm.zeros { 1, 3 })
    assert.is_false(ok)
    assert.truthy(e.message:find("head was built for vectors of 2, got 3", 1, true))
  end)
end)

describe("Embedding", function()
  it("gives the rows of ids", function()
    local l = L.Embedding { input_dim = 3, output_dim = 2 }
    local out = l { { 0, 2 } }
    assert.same({ 1, 2, 2 }, out.shape)
    l.embeddings:assign { { 1, 2 }, { 3, 4 }, { 5, 6 } }
    assert.same({ { { 1, 2 }, { 5, 6 } } }, l { { 0, 2 } }:totable())
  end)

  it("starts within 0.05", function()
    local l = L.Embedding { input_dim = 100, output_dim = 10 }
    l { 0 }
    local t = l.embeddings:read()
    assert(tm.reduce_max(tm.abs(t)):item() <= 0.05)
    assert(tm.reduce_max(t):item() > 0.04)
  end)

  it("refuses ids outside the table", function()
    local l = L.Embedding { input_dim = 3, output_dim = 2 }
    local ok, e = pcall(function() return l { 3 } end)
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
  end)

  it("has a gradient by rows", function()
    local l = L.Embedding { input_dim = 5, output_dim = 1, embeddings_initializer = "zeros" }
    l { 0 }
    local tape = tm.GradientTape()
    local loss = tm.reduce_sum(l { 3, 3, 1 })
    local g = tape:gradient(loss, l.weights)
    tm.optimizers.SGD { learning_rate = 1 }:apply_gradients(g, l.weights)
    assert.same({ { 0 }, { -1 }, { 0 }, { -2 }, { 0 } }, l.embeddings:read():totable())
  end)
end)

describe("shapes", function()
  it("Flatten keeps the batch", function()
    assert.same({ 2, 12 }, L.Flatten()(tm.zeros { 2, 3, 4 }).shape)
    assert.same({ 2, 1 }, L.Flatten()(tm.zeros { 2 }).shape)
    assert.same({ 0, 6 }, L.Flatten()(tm.zeros { 0, 3, 2 }).shape)
  end)

  it("Reshape keeps the batch", function()
    assert.same({ 2, 3, 4 }, L.Reshape { 3, 4 }(tm.zeros { 2, 12 }).shape)
    assert.same({ 2, 6, 2 }, L.Reshape { target_shape = { -1, 2 } }(tm.zeros { 2, 3, 4 }).shape)
    assert.has_error(function() L.Reshape { 5 }(tm.zeros { 2, 12 }) end)
  end)
end)

describe("Dropout", function()
  it("does nothing outside of training", function()
    local x = tm.ones { 100 }
    assert.same(x:totable(), L.Dropout(0.5)(x):totable())
  end)

  it("keeps the mean in training", function()
    local y = L.Dropout { rate = 0.25, seed = 3 }(tm.ones { 10000 }, { training = true })
    close.check(tm.reduce_mean(y):item(), 1, 0.05)
    assert(tm.reduce_sum(tm.cast(tm.equal(y, 0), "float32")):item() > 2000)
  end)

  it("refuses rates outside of 0 to 1", function() assert.has_error(function() L.Dropout(1.5) end) end)
end)

describe("functions as layers", function()
  it("Activation takes a name or a function", function()
    assert.same({ 0, 2 }, L.Activation "relu"(tm.tensor { -1, 2 }):totable())
    assert.same({ 1, 4 }, L.Activation(tm.square)(tm.tensor { -1, 2 }):totable())
  end)

  it("Lambda gets the input and training", function()
    local l = L.Lambda(function(x, training) return training and x + 1 or x end)
    assert.equal(1, l(tm.tensor(1)):item())
    assert.equal(2, l(tm.tensor(1), { training = true }):item())
  end)
end)

describe("merging layers", function()
  local a, b = tm.tensor { { 1, 2 } }, tm.tensor { { 3, 5 } }

  it("join lists of tensors", function()
    assert.same({ { 1, 2, 3, 5 } }, L.Concatenate() { a, b }:totable())
    assert.same({ { 1, 2 }, { 3, 5 } }, L.Concatenate { axis = 1 } { a, b }:totable())
    assert.same({ { 4, 7 } }, L.Add() { a, b }:totable())
    assert.same({ { 3, 10 } }, L.Multiply() { a, b }:totable())
    assert.same({ { 2, 3.5 } }, L.Average() { a, b }:totable())
    assert.same({ { -2, -3 } }, L.Subtract() { a, b }:totable())
    assert.same({ { 3, 5 } }, L.Maximum() { a, b }:totable())
  end)

  it("Dot multiplies and sums along an axis of each", function() -- numbers of tf-keras's Dot
    local x = tm.reshape(tm.range(24), { 2, 3, 4 }):cast("float32") / 10
    local y = (tm.reshape(tm.range(40), { 2, 5, 4 }):cast("float32") - 7) / 9
    local dot = L.Dot { axes = -1 } { x, y }
    assert.same({ 2, 3, 5 }, dot.shape)
    assert.is_true(tm.allclose(dot[1][2], tm.tensor { -1.2889, -0.3111, 0.6667, 1.6444, 2.6222 }, 0, 1e-4))
    local angle = L.Dot { axes = { 3, 3 }, normalize = true } { x, y }
    assert.is_true(tm.allclose(angle[1][1], tm.tensor { -0.6667, -0.2857, 0.9759, 0.8915, 0.8606 }, 0, 1e-4))
    local pair = L.Dot { axes = 2 } { x:select(3, 1), y:select(3, 2):narrow(2, 1, 3) }
    assert.is_true(tm.allclose(pair, tm.tensor { { 0.0889 }, { 9.9556 } }, 0, 1e-4))
    local s = L.Dot { axes = 2 } { tm.Input { shape = { 4 } }, tm.Input { shape = { 4 } } }
    assert.same({ -1, 1 }, s.shape)
    assert.error_matches(function() L.Dot { axes = 1 } { x, y } end, "positions from 2")
    assert.error_matches(function() L.Dot { axes = { 2, 3 } } { x, y } end,
      "axis 2 of input 1 has 3, axis 3 of input 2 has 4")
  end)

  it("refuse what is no list", function() assert.has_error(function() L.Add()(a) end) end)
end)

describe("layers of one's own", function()
  local Scale = L.Layer:extend "Scale"
  function Scale:init(o) self.by = o and o.by or 1 end
  function Scale:build(shape)
    self.built_with = shape
    self.factor = self:add_weight { name = "factor", shape = { shape[#shape] }, initializer = "ones",
      regularizer = tm.regularizers.L2(0.5) }
  end
  function Scale:call(x, training)
    self:add_loss(tm.reduce_sum(x))
    self:add_metric(tm.reduce_mean(x), "mean_input")
    return x * self.factor * (training and 2 or self.by)
  end

  it("build at the first call, with the batch unknown", function()
    local l = Scale { by = 3, name = "mine" }
    assert.is_false(l.built)
    assert.same({ { 3, 6 } }, l(tm.tensor { { 1, 2 } }):totable())
    assert.same({ -1, 2 }, l.built_with)
    assert.equal("mine", l.name)
    assert.equal("mine/factor", l.factor.name)
    assert.same({ { 2, 4 } }, l(tm.tensor { { 1, 2 } }, { training = true }):totable())
  end)

  it("have losses and metrics", function()
    local l = Scale()
    l(tm.tensor { { 1, 2 } })
    assert.equal(2, #l.losses)
    assert.equal(1, l.losses[1]:item())
    assert.equal(3, l.losses[2]:item())
    l(tm.tensor { { 3, 3 } })
    assert.equal(6, l.losses[2]:item())
    assert.equal("mean_input", l.metrics[1].name)
    assert.equal(2.25, l.metrics[1]:result():item())
  end)

  it("track layers, variables and lists of them, in order", function()
    local Block = L.Layer:extend "Block"
    function Block:init()
      self.zeta = L.Dense { units = 2 }
      self.alpha = { L.Dense { units = 2 }, L.Dense { units = 1 } }
      self.extra = tm.Variable({ 1 }, { name = "extra" })
    end
    function Block:call(x)
      x = self.zeta(x)
      for _, l in ipairs(self.alpha) do x = l(x) end
      return x + self.extra
    end
    local l = Block()
    l(tm.zeros { 1, 3 })
    local names = {}
    for i, v in ipairs(l.trainable_variables) do names[i] = v end
    assert.equal(7, #names)
    assert.equal(l.extra, names[1])
    assert.equal(l.zeta.kernel, names[2])
    assert.equal(l.alpha[2].bias, names[7])
    l.zeta.trainable = false
    assert.equal(5, #l.trainable_variables)
    assert.equal(7, #l.weights)
    l.trainable = false
    assert.equal(0, #l.trainable_variables)
  end)

  it("hand training to the layers inside", function()
    local Outer = L.Layer:extend "Outer"
    function Outer:init() self.inner = L.Lambda(function(x, training) return training and x + 1 or x end) end
    function Outer:call(x) return self.inner(x) end
    assert.equal(2, Outer()(tm.tensor(1), { training = true }):item())
    assert.equal(1, Outer()(tm.tensor(1)):item())
  end)

  it("are built once, also during a trace", function()
    local l = L.Dense { units = 1, kernel_initializer = "ones" }
    local f = tm.func(function(x) return l(x) end)
    assert.same({ { 3 } }, f(tm.tensor { { 1, 2 } }):totable())
    assert.same({ { 3 }, { 7 } }, f(tm.tensor { { 1, 2 }, { 3, 4 } }):totable())
    assert.equal(2, #l.weights)
  end)

  it("forget training after an error", function()
    local l = L.Lambda(function(_, training) return training and error "stop" or 1 end)
    pcall(l, tm.tensor(1), { training = true })
    assert.equal(1, l(tm.tensor(1)))
  end)

  it("say when call is missing", function()
    local ok, e = pcall(L.Layer:extend "Empty"(), tm.tensor(1))
    assert.is_false(ok)
    assert.truthy(e.message:find("call(x, training)", 1, true))
  end)
end)

describe("regularizers", function()
  it("are sums of absolute values and squares", function()
    local w = tm.tensor { 1, -2 }
    close.check(tm.regularizers.L1(0.1)(w):item(), 0.3)
    close.check(tm.regularizers.L2(0.1)(w):item(), 0.5)
    close.check(tm.regularizers.L1L2 { l1 = 0.1, l2 = 0.1 }(w):item(), 0.8)
    close.check(tm.regularizers.L2()(w):item(), 0.05)
    close.check(tm.regularizers.get "l2"(w):item(), 0.05)
  end)
end)

describe("a layer whose build raised", function()
  it("is built anew, without what was made of it", function()
    local Two = tm.layers.Layer:extend "Two"
    function Two:build(shape)
      self.a = self:add_weight { name = "a", shape = { shape[2] } }
      if shape[2] ~= 3 then error("three are wanted", 0) end
      self.b = self:add_weight { name = "b" }
    end
    function Two:call(x) return x * self.a + self.b end
    local layer = Two()
    assert.is_false(pcall(layer, tm.ones { 1, 2 }))
    layer(tm.ones { 1, 3 })
    assert.equal(2, #layer.weights)
    assert.same({ 3 }, layer.weights[1].shape)
  end)
end)
