-- What fit, evaluate and predict take as data, without a cluster.
local tm = require "tidemill"

local x = tm.random.normal({ 50, 3 }, { seed = 1 })
local y = tm.reduce_sum(x, 2, { keepdims = true })
local w = tm.random.uniform({ 50 }, { seed = 2 })

--- A model that notes the sizes of its batches: with a seed of its own, run eagerly.
local function noting(seen, o)
  local Noting = tm.Model:extend "Noting"
  function Noting:init() self.out = tm.layers.Dense { units = 1, kernel_initializer = "ones" } end
  function Noting:call(v)
    seen[#seen + 1] = v.shape[1]
    return self.out(v)
  end
  local m = Noting()
  m(x)
  for i = #seen, 1, -1 do seen[i] = nil end
  o = o or {}
  o.optimizer, o.loss, o.run_eagerly = "sgd", "mse", true
  m:compile(o)
  return m
end

local function plain(o)
  local m = tm.Sequential { tm.layers.Dense { units = 1, kernel_initializer = "ones", input_shape = { 3 } } }
  o = o or {}
  o.optimizer, o.loss = o.optimizer or tm.optimizers.SGD { learning_rate = 0.05 }, o.loss or "mse"
  m:compile(o)
  return m
end

local fails = dofile("spec/tools/expect.lua").raises

describe("data of fit", function()
  it("are tensors in batches of 32, of which the last is smaller", function()
    local seen = {}
    noting(seen):fit(x, { y = y, verbose = 0 })
    assert.same({ 32, 18 }, seen)
  end)

  it("are in batches of batch_size", function()
    local seen = {}
    noting(seen):fit(x, { y = y, batch_size = 20, epochs = 2, verbose = 0 })
    assert.same({ 20, 20, 10, 20, 20, 10 }, seen)
  end)

  it("may be one list { x, y } or { x, y, weights }", function()
    local function loss(...) return plain():fit(...).loss[1] end
    local o = { shuffle = false, verbose = 0 }
    assert.equal(loss(x, { y = y, shuffle = false, verbose = 0 }), loss({ x, y }, o))
    assert.equal(loss(x, { y = y, sample_weight = w, shuffle = false, verbose = 0 }), loss({ x, y, w }, o))
  end)

  it("may be Lua lists of numbers", function()
    local h = plain():fit({ { 1, 2, 3 }, { 4, 5, 6 } }, { y = { 6, 15 }, verbose = 0 })
    assert.is_true(math.abs(h.loss[1]) < 1e-9)
  end)

  it("may be a dataset of { x, y } or { x, y, weights }", function()
    local with = plain():fit(x, { y = y, sample_weight = w, shuffle = false, batch_size = 10, verbose = 0 })
    local ds = tm.data.from_tensor_slices { x, y, w }:batch(10)
    assert.equal(with.loss[1], plain():fit(ds, { verbose = 0 }).loss[1])
  end)

  it("may be a function, or a DatasetCreator of one, that describes a dataset", function()
    local function describe(context)
      assert.equal(1, context.num_input_pipelines)
      return tm.data.from_tensor_slices { x, y }:batch(10)
    end
    local one = plain():fit(describe, { verbose = 0 }).loss[1]
    local creator = tm.data.DatasetCreator(describe, { input_options = {} })
    assert.equal(one, plain():fit(creator, { verbose = 0 }).loss[1])
    assert.equal(one, plain():fit(tm.data.from_tensor_slices { x, y }:batch(10), { verbose = 0 }).loss[1])
  end)

  it("are shuffled anew each epoch, unless shuffle = false", function()
    local function orders(shuffle)
      local seen = {}
      local Order = tm.Model:extend "Order"
      function Order:init() self.out = tm.layers.Dense { units = 1 } end
      function Order:call(v)
        seen[#seen + 1] = table.concat(tm.reshape(v, { -1 }):totable(), " ")
        return self.out(v)
      end
      local m = Order()
      m:compile { optimizer = "sgd", loss = "mse", run_eagerly = true }
      local n = tm.reshape(tm.range(0, 20, 1, "float32"), { 20, 1 })
      m:fit(n, { y = n, batch_size = 20, epochs = 2, shuffle = shuffle, verbose = 0 })
      return seen[1], seen[2]
    end
    local a, b = orders(true)
    assert.are_not.equal(a, b)
    a, b = orders(false)
    assert.equal(a, b)
    assert.truthy(a:find "^0[.0]* 1[.0]* 2")
  end)

  it("of tensors begin again when steps_per_epoch asks for more", function()
    local seen = {}
    local h = noting(seen):fit(x, { y = y, batch_size = 25, steps_per_epoch = 3, epochs = 2, verbose = 0 })
    assert.equal(6, #seen)
    assert.equal(2, #h.loss)
  end)

  it("of an endless dataset go on from epoch to epoch", function()
    local numbers = {}
    local ds = tm.data.range(1000):rep():batch(1):map(function(i) return { tm.cast(tm.reshape(i, { 1, 1 }), "float32"),
      tm.zeros { 1, 1 } } end)
    local Seen = tm.Model:extend "Seen"
    function Seen:init() self.out = tm.layers.Dense { units = 1, kernel_initializer = "zeros" } end
    function Seen:call(v)
      numbers[#numbers + 1] = v:totable()[1][1]
      return self.out(v)
    end
    local m = Seen()
    m:compile { optimizer = "sgd", loss = "mse", run_eagerly = true }
    m:fit(ds, { steps_per_epoch = 2, epochs = 3, verbose = 0 })
    assert.same({ 0, 1, 2, 3, 4, 5 }, numbers)
  end)

  it("of a dataset of that cardinality begin anew", function()
    local seen = {}
    local ds = tm.data.from_tensor_slices { x, y }:batch(25)
    noting(seen):fit(ds, { steps_per_epoch = 2, epochs = 3, verbose = 0 })
    assert.equal(6, #seen)
  end)

  it("may have no known length", function()
    local ds = tm.data.from_tensor_slices { x, y }:filter(function(a) return a[1]:greater(0) end):batch(5)
    local h = plain():fit(ds, { epochs = 2, verbose = 0 })
    assert.equal(2, #h.loss)
  end)
end)

describe("an input of one number", function()
  it("takes rows without an axis of one, and with one", function()
    local m = tm.Sequential { tm.layers.Dense { units = 1, kernel_initializer = "ones", input_shape = { 1 } } }
    m:compile { optimizer = "sgd", loss = "mse" }
    local n = tm.tensor { 1, 2, 3 }
    assert.same({ 3, 1 }, m:predict(n, { verbose = 0 }).shape)
    assert.is_true(m:evaluate(n, { y = n, verbose = 0 }).loss < 1e-9)
    local i = tm.Input { shape = { 1 } }
    local f = tm.Model { inputs = i, outputs = 2 * i }
    assert.same({ 3, 1 }, f:predict(n, { verbose = 0 }).shape)
    assert.same({ 3, 1 }, f:predict(tm.reshape(n, { 3, 1, 1 }), { verbose = 0 }).shape)
  end)
end)

describe("validation", function()
  it("takes tensors, with weights, and puts val_ in front of names", function()
    local m = plain { metrics = { "mae" } }
    local h = m:fit(x, { y = y, validation_data = { x, y, w }, epochs = 2, verbose = 0 })
    assert.equal(2, #h.val_loss)
    local r = m:evaluate(x, { y = y, sample_weight = w, verbose = 0 })
    assert.is_true(math.abs(r.loss - h.val_loss[2]) < 1e-6)
    assert.is_true(math.abs(r.mae - h.val_mae[2]) < 1e-6)
  end)

  it("takes a dataset and validation_steps, and begins anew each time", function()
    local ds = tm.data.from_tensor_slices { x, y }:batch(10)
    local m = plain { optimizer = tm.optimizers.SGD { learning_rate = 0 } }
    local h = m:fit(x, { y = y, validation_data = ds:rep(), validation_steps = 2, epochs = 3, verbose = 0 })
    assert.equal(h.val_loss[1], h.val_loss[2])
    assert.equal(h.val_loss[1], h.val_loss[3])
  end)

  it("comes every validation_freq epochs, or in the epochs of a list", function()
    local h = plain():fit(x, { y = y, validation_data = { x, y }, validation_freq = 2, epochs = 5, verbose = 0 })
    assert.equal(2, #h.val_loss)
    h = plain():fit(x, { y = y, validation_data = { x, y }, validation_freq = { 1, 4, 5 }, epochs = 5, verbose = 0 })
    assert.equal(3, #h.val_loss)
  end)

  it("splits the last examples off before shuffling", function()
    local seen, lot = {}, tm.range(0, 10, 1, "float32")
    local m = noting(seen)
    m:fit(x, { y = y, validation_split = 0.4, batch_size = 30, validation_batch_size = 7, verbose = 0 })
    assert.same({ 30, 7, 7, 6 }, seen)
    local h = plain { optimizer = tm.optimizers.SGD { learning_rate = 0 } }:fit(
      tm.concat({ x:narrow(1, 1, 10), tm.reshape(lot, { 10, 1 }) * tm.ones { 1, 3 } }, 1),
      { y = tm.concat({ y:narrow(1, 1, 10), tm.reshape(3 * lot, { 10, 1 }) }, 1), validation_split = 0.5, verbose = 0 })
    assert.is_true(h.val_loss[1] < 1e-9)
  end)
end)

describe("predict", function()
  it("takes tensors, datasets with and without targets, and steps", function()
    local m = plain()
    local wanted = m(x)
    assert.is_true(tm.allclose(m:predict(x, { verbose = 0 }), wanted, 1e-6, 1e-6))
    local ds = tm.data.from_tensor_slices { x, y }:batch(7)
    assert.is_true(tm.allclose(m:predict(ds, { verbose = 0 }), wanted, 1e-6, 1e-6))
    ds = tm.data.from_tensor_slices(x):batch(7)
    assert.is_true(tm.allclose(m:predict(ds, { verbose = 0 }), wanted, 1e-6, 1e-6))
    assert.same({ 14, 1 }, m:predict(ds:rep(), { steps = 2, verbose = 0 }).shape)
    assert.same({ 2, 1 }, m:predict({ { 1, 2, 3 }, { 4, 5, 6 } }, { verbose = 0 }).shape)
  end)

  it("gives the structure of the model's outputs, and needs no compile", function()
    local a, b = tm.Input { shape = { 3 }, name = "a" }, tm.Input { shape = { 3 }, name = "b" }
    local m = tm.Model { inputs = { a, b }, outputs = { sum = a + b, other = { a, b } } }
    local r = m:predict({ x, 2 * x }, { batch_size = 8, verbose = 0 })
    assert.is_true(tm.allclose(r.sum, 3 * x))
    assert.is_true(tm.allclose(r.other[2], 2 * x))
    r = m:predict({ a = x, b = x }, { verbose = 0 })
    assert.is_true(tm.allclose(r.sum, 2 * x))
    r = m:predict(tm.data.from_tensor_slices { x, x }:batch(9), { verbose = 0 })
    assert.is_true(tm.allclose(r.sum, 2 * x))
  end)
end)

describe("several inputs", function()
  it("are a list or a table by name, beside y", function()
    local a, b = tm.Input { shape = { 3 }, name = "a" }, tm.Input { shape = { 3 }, name = "b" }
    local out = tm.layers.Dense { units = 1, kernel_initializer = "ones" }(tm.layers.Concatenate() { a, b })
    local m = tm.Model { inputs = { a, b }, outputs = out }
    m:compile { optimizer = tm.optimizers.SGD { learning_rate = 0 }, loss = "mse" }
    local o = { y = y, verbose = 0 }
    local one = m:fit({ x, x }, o).loss[1]
    assert.is_true(math.abs(one - m:fit({ a = x, b = x }, o).loss[1]) < 1e-6)
    assert.is_true(math.abs(one - m:fit({ { x, x }, y }, { verbose = 0 }).loss[1]) < 1e-6)
    local ds = tm.data.from_tensor_slices { { a = x, b = x }, y }:batch(32)
    assert.is_true(math.abs(one - m:evaluate(ds, { verbose = 0 }).loss) < 1e-6)
  end)
end)

describe("what is wrong with data", function()
  it("is told: no end and no steps", function()
    local ds = tm.data.from_tensor_slices { x, y }:batch(10):rep()
    local m = plain()
    fails("invalid_argument", "steps_per_epoch", m.fit, m, ds, { verbose = 0 })
    fails("invalid_argument", "steps", m.evaluate, m, ds, { verbose = 0 })
    fails("invalid_argument", "steps", m.predict, m, ds, { verbose = 0 })
    fails("invalid_argument", "validation_steps", m.fit, m, x, { y = y, validation_data = ds, verbose = 0 })
  end)

  it("is told: they end before steps_per_epoch", function()
    local ds = tm.data.from_tensor_slices { x, y }:batch(10)
    local m = plain()
    local e = fails("out_of_range", "steps_per_epoch", m.fit, m, ds, { steps_per_epoch = 3, epochs = 4, verbose = 0 })
    assert.equal(5, e.step)
  end)

  it("is told in the log where they end before the steps of evaluation and prediction", function()
    local ds = tm.data.from_tensor_slices { x, y }:batch(10)
    local m = plain()
    local name = os.tmpname()
    tm.log.to(name)
    local loss = m:evaluate(ds, { steps = 9, verbose = 0 }).loss
    local rows = m:predict(ds, { steps = 9, verbose = 0 }).shape[1]
    tm.log.to(nil)
    local f = io.open(name)
    local text = f:read "*a"
    f:close()
    os.remove(name)
    assert.equal(50, rows)
    assert.is_true(math.abs(loss - m:evaluate(ds, { verbose = 0 }).loss) < 1e-6)
    assert.truthy(text:find("evaluate: the data ended after 5 steps, steps is 9", 1, true), text)
    assert.truthy(text:find("predict: the data ended after 5 steps", 1, true), text)
  end)

  it("is told: y is missing", function()
    local m = plain()
    fails("invalid_argument", "y is missing", m.fit, m, x, { verbose = 0 })
    fails("invalid_argument", "y is missing", m.evaluate, m, x, { verbose = 0 })
    fails("invalid_argument", "y is missing", m.fit, m, tm.data.from_tensor_slices(x):batch(5), { verbose = 0 })
  end)

  it("is told: lengths that differ, scalars, things that are no data", function()
    local m = plain()
    fails("invalid_argument", "x has 50 examples, y has 20", m.fit, m, x, { y = y:narrow(1, 1, 20), verbose = 0 })
    fails("invalid_argument", "scalar", m.fit, m, tm.tensor(1), { y = y, verbose = 0 })
    fails("invalid_argument", "data are missing", m.fit, m)
    fails("invalid_argument", "tm.Input", m.fit, m, tm.Input { shape = { 3 } }, { y = y, verbose = 0 })
    fails("invalid_argument", "thread", function() m:fit(coroutine.create(print), { y = y }) end)
    fails("invalid_argument", "goes with tensors", m.fit, m, tm.data.from_tensor_slices { x, y }:batch(3), { y = y })
    fails("invalid_argument", "goes with tensors", m.fit, m, tm.data.from_tensor_slices { x, y }:batch(3),
      { batch_size = 3 })
    fails("invalid_argument", "examples leaves one part empty", m.fit, m, x, { y = y, validation_split = 0.999 })
    fails("invalid_argument", "no examples", m.fit, m, tm.zeros { 0, 3 }, { y = tm.zeros { 0, 1 } })
  end)

  it("is told: shapes that do not fit, with the output's name", function()
    local m = plain()
    local e = fails("invalid_argument", "dense", m.fit, m, x, { y = tm.zeros { 50, 4, 2 }, verbose = 0 })
    assert.truthy(e.message:find("mean_squared_error", 1, true), e.message)
    fails("invalid_argument", "3", m.fit, m, tm.zeros { 50, 7 }, { y = y, verbose = 0 })
  end)

  it("is told: a dataset that is not in batches", function()
    local m = plain()
    fails("invalid_argument", "ds:batch(32)", m.fit, m, tm.data.from_tensor_slices { x, y }, { verbose = 0 })
  end)

  it("is told: weights of classes without a number for each id", function()
    local m = plain()
    fails("invalid_argument", "none for 0", m.fit, m, x, { y = y, class_weight = { 1, 2 }, verbose = 0 })
  end)

  it("is told: options that are misspelt or out of range", function()
    local m = plain()
    fails("invalid_argument", "epochs", m.fit, m, x, { y = y, epoch = 3 })
    fails("invalid_argument", "epochs", m.fit, m, x, { y = y, epochs = 1.5 })
    fails("invalid_argument", "initial_epoch", m.fit, m, x, { y = y, initial_epoch = 0 })
    fails("invalid_argument", "verbose", m.fit, m, x, { y = y, verbose = 3 })
    fails("invalid_argument", "batch_size", m.fit, m, x, { y = y, batch_size = 0 })
  end)

  it("is told with the number of the step, where a step finds it", function()
    local m = tm.Sequential { tm.layers.Dense { units = 3, activation = "softmax" } }
    m:compile { optimizer = "sgd", loss = "sparse_categorical_crossentropy" }
    local ids = tm.concat({ tm.zeros({ 40 }, "int64"), tm.fill({ 10 }, 7, "int64") }, 1)
    local e = fails("invalid_argument", "label 7", m.fit, m, x, { y = ids, batch_size = 10, shuffle = false, epochs = 2,
      verbose = 0 })
    assert.equal(5, e.step)
  end)

  it("is not NaN, which passes", function()
    local nan = 0 / 0
    local h = plain():fit(tm.fill({ 4, 3 }, nan), { y = tm.zeros { 4, 1 }, verbose = 0 })
    assert.is_true(h.loss[1] ~= h.loss[1])
  end)
end)
