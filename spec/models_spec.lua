local tm = require "tidemill"
local close = dofile "spec/close.lua"

local L = tm.layers

local function dense(units, o)
  o = o or {}
  o.units, o.kernel_initializer = units, "ones"
  return L.Dense(o)
end

describe("functional models", function()
  it("replay layers and loose ops", function()
    local x = tm.Input { shape = { 3 } }
    local y = dense(1)(tm.reduce_mean(x * 2, 2, { keepdims = true })) + 1
    local model = tm.Model { inputs = x, outputs = y }
    assert.same({ { 5 } }, model(tm.tensor { { 1, 2, 3 } }):totable())
    assert.same({ -1, 1 }, y.shape)
    assert.equal(2, #model.weights)
  end)

  it("the tutorial's model has a table and a head", function()
    local ids = tm.Input { shape = { 3 }, dtype = "int64", name = "features" }
    local emb = L.Embedding { input_dim = 8, output_dim = 5 }
    local out = L.Dense { units = 1, activation = "sigmoid", kernel_regularizer = tm.regularizers.L2(1e-4) }(
      tm.reduce_mean(emb(ids), 2))
    local model = tm.Model { inputs = ids, outputs = out }
    assert.same({ 8, 5 }, emb.weights[1].shape)
    assert.same({ 2, 1 }, model(tm.tensor({ { 0, 1, 2 }, { 7, 7, 7 } }, "int64")).shape)
    assert.equal(3, #model.trainable_variables)
    assert.equal(1, #model.losses)
  end)

  it("take lists and tables of inputs", function()
    local a = tm.Input { shape = { 2 }, name = "a" }
    local b = tm.Input { shape = { 1 }, name = "b" }
    local joined = L.Concatenate() { a, b }
    local list = tm.Model { inputs = { a, b }, outputs = joined }
    local xa, xb = tm.tensor { { 1, 2 } }, tm.tensor { { 3 } }
    assert.same({ { 1, 2, 3 } }, list { xa, xb }:totable())
    assert.same({ { 1, 2, 3 } }, list { b = xb, a = xa }:totable())
    local named = tm.Model { inputs = { left = a, right = b }, outputs = { out = joined, first = a } }
    local r = named { left = xa, right = xb }
    assert.same({ { 1, 2, 3 } }, r.out:totable())
    assert.same({ { 1, 2 } }, r.first:totable())
  end)

  it("hand training to their layers", function()
    local x = tm.Input { shape = { 1000 } }
    local model = tm.Model { inputs = x, outputs = L.Dropout(0.5)(x) }
    local ones = tm.ones { 1, 1000 }
    assert.equal(1000, tm.reduce_sum(model(ones)):item())
    local dropped = model(ones, { training = true })
    assert(tm.reduce_min(dropped):item() == 0)
  end)

  it("use methods and subscripts of symbols", function()
    local x = tm.Input { shape = { 4 } }
    local model = tm.Model { inputs = x, outputs = { x:select(2, 3), x:greater(2), -x, x[1] } }
    local r = model(tm.tensor { { 1, 2, 3, 4 } })
    assert.same({ 3 }, r[1]:totable())
    assert.same({ { false, false, true, true } }, r[2]:totable())
    assert.same({ { -1, -2, -3, -4 } }, r[3]:totable())
    assert.same({ 1, 2, 3, 4 }, r[4]:totable())
  end)

  it("track variables that loose ops use", function()
    local x = tm.Input { shape = { 2 } }
    local v = tm.Variable({ 2, 3 })
    local model = tm.Model { inputs = x, outputs = x * v }
    assert.equal(v, model.trainable_variables[1])
    assert.same({ { 2, 3 } }, model(tm.ones { 1, 2 }):totable())
  end)

  it("stand in other models", function()
    local x = tm.Input { shape = { 2 } }
    local inner = tm.Model { inputs = x, outputs = dense(1)(x) }
    local y = tm.Input { shape = { 2 } }
    local outer = tm.Model { inputs = y, outputs = inner(y) + inner(y * 2) }
    assert.same({ { 9 } }, outer(tm.tensor { { 1, 2 } }):totable())
    assert.equal(2, #outer.weights)
  end)

  it("share layers, counted once", function()
    local x, l = tm.Input { shape = { 2 } }, dense(2)
    local model = tm.Model { inputs = x, outputs = l(l(x)) }
    assert.equal(1, #model.layers)
    assert.equal(2, #model.weights)
  end)

  it("work in traced functions with any batch", function()
    local x = tm.Input { shape = { 2 } }
    local model = tm.Model { inputs = x, outputs = L.Flatten()(dense(1)(x)) }
    local f = tm.func(function(v) return model(v, { training = true }) end,
      { input_signature = { { shape = { -1, 2 }, dtype = "float32" } } })
    assert.same({ { 3 } }, f(tm.tensor { { 1, 2 } }):totable())
    assert.same({ { 3 }, { 7 } }, f(tm.tensor { { 1, 2 }, { 3, 4 } }):totable())
    assert.equal(1, f.trace_count)
  end)

  it("say which input is missing", function()
    local a, b = tm.Input { shape = { 1 }, name = "a" }, tm.Input { shape = { 1 }, name = "b" }
    local ok, e = pcall(tm.Model, { inputs = a, outputs = a + b })
    assert.is_false(ok)
    assert.truthy(e.message:find('"b"', 1, true))
    local model = tm.Model { inputs = { a, b }, outputs = a + b }
    assert.has_error(function() model(tm.ones { 1, 1 }) end)
  end)

  it("refuse Lua comparisons of symbols", function()
    local x = tm.Input { shape = { 1 } }
    local ok, e = pcall(function() return x < x end)
    assert.is_false(ok)
    assert.truthy(e.message:find("tm.cond", 1, true))
  end)
end)

describe("Sequential", function()
  it("runs one layer after the other", function()
    local model = tm.Sequential { dense(2, { activation = "relu" }), dense(1), name = "pair" }
    assert.equal("pair", model.name)
    assert.same({ { 6 } }, model(tm.tensor { { 1, 2 } }):totable())
    assert.equal(4, #model.weights)
    assert.equal(2, #model.layers)
  end)

  it("is built at once with an input_shape", function()
    local model = tm.Sequential { dense(2, { input_shape = { 3 } }), dense(1) }
    assert.equal(4, #model.weights)
    assert.same({ 3, 2 }, model.weights[1].shape)
    model = tm.Sequential { tm.Input { shape = { 3 } }, dense(1) }
    assert.equal(2, #model.weights)
  end)

  it("takes layers one by one", function()
    local model = tm.Sequential()
    model:add(dense(1))
    assert.same({ { 3 } }, model(tm.tensor { { 1, 2 } }):totable())
    assert.has_error(function() model:add "dense" end)
  end)

  it("learns", function()
    tm.random.set_seed(1)
    local hidden = L.Dense { units = 8, activation = "tanh" }
    local model = tm.Sequential { hidden, L.Dense { units = 1, activation = "sigmoid" } }
    local x, y = tm.tensor { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }, tm.tensor { { 0 }, { 1 }, { 1 }, { 0 } }
    local bce, opt = tm.losses.BinaryCrossentropy(), tm.optimizers.Adam { learning_rate = 0.05 }
    local step = tm.func(function()
      local tape = tm.GradientTape()
      local loss = bce(y, model(x, { training = true }))
      opt:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
      return loss
    end)
    local loss
    for _ = 1, 400 do loss = step():item() end
    assert(loss < 0.1, "loss " .. loss)
    close.check(model(x):totable(), y:totable(), 0, 0.3)
  end)
end)

describe("models of one's own", function()
  local Two = tm.Model:extend "Two"
  function Two:init(units)
    self.first = dense(units)
    self.second = dense(1)
  end
  function Two:call(x) return self.second(self.first(x)) end

  it("have call and track their layers", function()
    local model = Two(2)
    assert.same({ { 6 } }, model(tm.tensor { { 1, 2 } }):totable())
    assert.equal(2, #model.layers)
    assert.equal(4, #model.trainable_variables)
  end)

  it("have losses of the newest call only", function()
    local Lossy = tm.Model:extend "Lossy"
    function Lossy:call(x)
      self:add_loss(tm.reduce_sum(x))
      return x
    end
    local model = Lossy()
    model(tm.tensor { 1 })
    model(tm.tensor { 2 })
    assert.equal(1, #model.losses)
    assert.equal(2, model.losses[1]:item())
  end)

  it("set and get weights", function()
    local a, b = Two(2), Two(2)
    a(tm.ones { 1, 3 })
    b(tm.ones { 1, 3 })
    a.first.kernel:assign(tm.fill({ 3, 2 }, 7))
    b:set_weights(a:get_weights())
    assert.same(a.first.kernel:read():totable(), b.first.kernel:read():totable())
    assert.has_error(function() b:set_weights {} end)
  end)
end)

describe("summary", function()
  it("lists layers, shapes and numbers of weights", function()
    local lines = {}
    local model = tm.Sequential { dense(20, { input_shape = { 100 }, name = "wide" }), dense(1, { name = "last" }) }
    model:summary { print_fn = function(s) lines[#lines + 1] = s end }
    local text = table.concat(lines, "\n")
    assert.truthy(text:find("wide (Dense)", 1, true))
    assert.truthy(text:find("2,020", 1, true))
    assert.truthy(text:find("Total params: 2,041 (7.97 KB)", 1, true))
  end)
end)
