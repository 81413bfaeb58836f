-- Losses against tf-keras's numbers (spec/fixtures/keras_losses.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_losses.lua"

local function tensor(x, like_ids)
  return tm.tensor(x, like_ids and "int64" or "float32")
end

local function value(t)
  if t.rank == 0 then return t:item() end
  return t:totable()
end

describe("losses", function()
  for n, c in ipairs(keras.cases) do
    it(("%s agrees with Keras (case %d)"):format(c.loss, n), function()
      local ids = c.loss:match "^Sparse" ~= nil
      for _, reduction in ipairs { "none", "sum", "sum_over_batch_size" } do
        local o = { reduction = reduction }
        for k, v in pairs(c.options) do o[k] = v end
        local loss = tm.losses[c.loss](o)
        local got = loss(tensor(c.y_true, ids), tensor(c.y_pred), c.weights and tensor(c.weights))
        close.check(value(got), c[reduction], 2e-5, 2e-6)
      end
    end)
  end

  it("a crossentropy of a sigmoid is computed from its logits", function()
    local s = keras.saturated
    local z = tm.Variable(tm.tensor(s.logits))
    local tape = tm.GradientTape()
    local y = tm.layers.Activation "sigmoid"(z:read())
    local loss = tm.losses.BinaryCrossentropy()(tm.tensor { { 0 }, { 1 } }, y)
    close.check(loss:item(), s.loss)
    close.check(tape:gradient(loss, { z })[1]:totable(), s.grad)
  end)

  it("a crossentropy of a softmax is computed from its logits", function()
    local s = keras.saturated
    local z = tm.Variable(tm.tensor(s.softmax_logits))
    local tape = tm.GradientTape()
    local y = tm.layers.Activation "softmax"(z:read())
    local loss = tm.losses.SparseCategoricalCrossentropy()(tm.tensor({ 2 }, "int64"), y)
    close.check(loss:item(), s.softmax_loss)
    close.check(tape:gradient(loss, { z })[1]:totable(), s.softmax_grad)
  end)

  it("targets are cast to the dtype of the predictions", function()
    local loss = tm.losses.MeanSquaredError()
    assert.equal(0.25, loss(tm.tensor({ 1, 0 }, "int64"), tm.tensor { 0.5, 0.5 }):item())
    assert.equal("float64", loss(tm.tensor({ 1, 0 }, "int64"), tm.tensor({ 0.5, 0.5 }, "float64")).dtype)
  end)

  it("losses work on an unknown batch in a traced function", function()
    local f = tm.func(function(y, p) return tm.losses.BinaryCrossentropy()(y, p) end,
      { input_signature = { { shape = { -1, 1 }, dtype = "float32" }, { shape = { -1, 1 }, dtype = "float32" } } })
    local y, p = tm.tensor { { 1 }, { 0 } }, tm.tensor { { 0.9 }, { 0.2 } }
    close.check(f(y, p):item(), tm.losses.BinaryCrossentropy()(y, p):item())
  end)

  it("an unknown option is refused with the nearest name", function()
    local ok, e = pcall(tm.losses.BinaryCrossentropy, { from_logit = true })
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
    assert.truthy(e.message:find("from_logits", 1, true))
  end)

  it("an unknown reduction is refused", function()
    local ok, e = pcall(tm.losses.Huber, { reduction = "mean" })
    assert.is_false(ok)
    assert.truthy(e.message:find("reduction", 1, true))
  end)

  it("a loss of one's own has a method call", function()
    local Mine = tm.losses.Loss:extend "Mine"
    function Mine.call(_, y, p) return tm.abs(y - p) end
    assert.equal(1.5, Mine { reduction = "sum" }(tm.tensor { 1, 2 }, tm.tensor { 2, 1.5 }):item())
  end)

  it("each loss is a function too", function()
    local v = tm.losses.mean_squared_error(tm.tensor { { 1, 2 } }, tm.tensor { { 2, 4 } })
    assert.same({ 2.5 }, v:totable())
  end)
end)
