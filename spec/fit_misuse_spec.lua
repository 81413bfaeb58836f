local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

local function invalid(text, fn, ...) raises("invalid_argument", text, fn, ...) end

local x = tm.random.normal({ 40, 4 }, { seed = 1 })
local y = tm.cast(tm.reduce_sum(x, 2):greater(0), "float32")

local function made(o)
  local model = tm.Sequential { tm.layers.Dense { units = 3, activation = "relu" }, tm.layers.Dense { units = 1 } }
  model:compile(o or { optimizer = "sgd", loss = "mse", metrics = { "mae" } })
  return model
end

local function fit(model, o)
  o.y, o.verbose = o.y or y, 0
  return model:fit(x, o)
end

describe("an option of fit", function()
  it("is no number when it is text, and the message shows that", function()
    invalid('batch_size must be a whole number of at least 1, got "3"', fit, made(), { batch_size = "3" })
    invalid('shuffle must be true or false, got "no"', fit, made(), { shuffle = "no" })
  end)

  it("is no count when it is infinite", function()
    for _, name in ipairs { "epochs", "batch_size", "steps_per_epoch", "validation_freq" } do
      invalid(name .. " must be a whole number", fit, made(), { [name] = math.huge })
      invalid(name .. " must be a whole number", fit, made(), { [name] = 2 ^ 63 })
    end
    invalid("steps must be a whole number", made().evaluate, made(), x, { y = y, steps = math.huge, verbose = 0 })
    invalid("steps must be a whole number", made().predict, made(), x, { steps = math.huge, verbose = 0 })
  end)

  it("that is an empty table is told by its name", function()
    invalid("fit: y is an empty table", fit, made(), { y = {} })
    invalid("sample_weight is an empty table", fit, made(), { sample_weight = {} })
    invalid("validation_data: x is an empty table", fit, made(), { validation_data = {} })
    invalid("predict: x is an empty table", function() made():predict({}, { verbose = 0 }) end)
    invalid("class_weight has a number for each class id", fit, made(), { class_weight = {} })
  end)
end)

describe("an option of compile", function()
  it("is an object and not its class", function()
    invalid("is the class SGD, not an object of it; write SGD()", made, { optimizer = tm.optimizers.SGD, loss = "mse" })
    invalid("is the class Huber", made, { optimizer = "sgd", loss = tm.losses.Huber })
    invalid("is the class AUC", made, { optimizer = "sgd", loss = "mse", metrics = { tm.metrics.AUC } })
  end)

  it("loss_weights has numbers", function()
    invalid("an entry of loss_weights must be a number", made, { optimizer = "sgd", loss = "mse", loss_weights = "2" })
    invalid("an entry of loss_weights must be a number", made, { loss = "mse", loss_weights = { 0 / 0 } })
  end)

  it("that contains itself raises", function()
    local t = {}
    t[1] = t
    invalid("does a table contain itself?", made, { loss = "mse", metrics = t })
    invalid("does a table contain itself?", fit, made(), { callbacks = t })
  end)

  it("metrics have no metric that is called loss", function()
    invalid('two metrics have the name "loss"', fit,
      made { loss = "mse", metrics = { tm.metrics.MeanSquaredError { name = "loss" } } }, {})
  end)
end)

describe("a callback", function()
  it("has functions as hooks", function()
    invalid("callbacks[1].on_epoch_end must be a function", fit, made(), { callbacks = { { on_epoch_end = 3 } } })
    invalid("callbacks.set_model must be a function", fit, made(), { callbacks = { set_model = "x" } })
  end)

  it("has verbose as a number or a flag", function()
    invalid("verbose must be a whole number", tm.callbacks.EarlyStopping, { verbose = "1" })
    assert.equal(0, tm.callbacks.EarlyStopping({ verbose = false }).verbose)
    assert.equal(1, tm.callbacks.ModelCheckpoint("x", { verbose = true }).verbose)
  end)

  it("TensorBoard takes its directory first", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert.equal(dir, tm.callbacks.TensorBoard(dir).log_dir)
    assert.equal(2, tm.callbacks.TensorBoard(dir, { histogram_freq = 2 }).histogram_freq)
    invalid('did you mean "histogram_freq"?', tm.callbacks.TensorBoard, dir, { histogram_frq = 2 })
  end)

  it("that compiles the model of its fit raises, and the fit can be repeated", function()
    local model = made()
    raises("failed_precondition", "is in a fit", fit, model, { callbacks = { on_epoch_end = function(cb)
      cb.model:compile { loss = "mse" }
    end } })
    assert.equal(1, #fit(model, {}).loss)
    model:compile { loss = "mse" }
  end)

  it("may fit the same model: the outer fit goes on with its own callbacks and history", function()
    local model, inner, dir = made(), 0, os.tmpname()
    os.remove(dir)
    local h = fit(model, { epochs = 3, callbacks = {
      { on_epoch_end = function(cb)
        if cb.busy then return end
        cb.busy, inner = true, inner + 1
        assert.equal(2, #fit(cb.model, { epochs = 2 }).epoch)
        cb.busy = false
      end },
      tm.callbacks.BackupAndRestore(dir),
    } })
    assert.same({ 1, 2, 3 }, h.epoch)
    assert.equal(3, inner)
    assert.same({ 1, 2, 3 }, model.history.epoch)
    assert.is_nil(rawget(model, "fitting"))
  end)

  it("may let other fits run in coroutines, also of the same model", function()
    local model, other, order, ended = made(), made(), {}, 0
    local function run(m, name)
      tm.async(function()
        local h = fit(m, { epochs = 3, callbacks = { on_epoch_end = function()
          order[#order + 1] = name
          tm.sleep(0.001)
        end } })
        assert.equal(3, #h.epoch)
        ended = ended + 1
      end)
    end
    run(model, "a")
    run(model, "b")
    run(other, "c")
    while ended < 3 do tm.sleep(0.001) end -- a wait of the main program
    table.sort(order)
    assert.equal("aaabbbccc", table.concat(order))
    assert.is_nil(rawget(model, "fitting"))
    model:compile { loss = "mse" }
  end)

  -- tf_keras looks at stop_training after a batch only.
  it("that stops an epoch at its beginning gets one batch", function()
    local batches = 0
    local h = fit(made(), { epochs = 3, batch_size = 4, callbacks = {
      on_epoch_begin = function(cb) cb.model.stop_training = true end,
      on_train_batch_end = function() batches = batches + 1 end,
    } })
    assert.equal(1, batches)
    assert.equal(1, #h.loss)
  end)
end)

describe("a model", function()
  -- tf_keras: apply_gradients of nothing does nothing.
  it("that is frozen as a whole is fitted in vain", function()
    local model = made()
    model:predict(x, { verbose = 0 })
    model.trainable = false
    model:compile { optimizer = "sgd", loss = "mse" }
    local before = model:get_weights()
    assert.equal(2, #fit(model, { epochs = 2 }).loss)
    for i, w in ipairs(model:get_weights()) do assert.same(before[i]:totable(), w:totable()) end
  end)
end)

describe("a layer", function()
  it("of one tensor says so to a table of tensors", function()
    for _, layer in ipairs { tm.layers.Dense { units = 1 }, tm.layers.Flatten(), tm.layers.MaxPooling2D(),
      tm.layers.Embedding { input_dim = 2, output_dim = 2 }, tm.layers.Conv1D { filters = 1, kernel_size = 1 } } do
      invalid("takes one tensor, got a table of 2", layer, { x, x })
      invalid("takes one tensor, got a table of 2", layer, { a = x, b = x })
      invalid("is a function, not a tensor", layer, print)
    end
  end)

  it("has a text as its name, flags as flags, functions as functions", function()
    local function dense(o)
      o.units = 1
      return tm.layers.Dense(o)
    end
    invalid("Dense: name is a text, got number", dense, { name = 3 })
    invalid("Dense: trainable must be true or false", dense, { trainable = "no" })
    invalid("Dense: use_bias must be true or false, got 0", dense, { use_bias = 0 })
    invalid("Dense: an activation that is no name must be a function", dense, { activation = 3 })
    for name, class in pairs { kernel_regularizer = tm.regularizers.L2, kernel_constraint = tm.constraints.NonNeg } do
      invalid("that is no name must be a function, got", function() dense { [name] = 0.1 }(x) end)
      invalid("not an object of it", function() dense { [name] = class }(x) end)
    end
    invalid("is the class Ones, not an object of it", function()
      dense { kernel_initializer = tm.initializers.Ones }(x)
    end)
  end)

  it("Dense names the shape when rows come without a batch", function()
    local layer = tm.layers.Dense { units = 1 }
    layer(x)
    invalid("the input must be a batch of vectors of known size, got shape (4)", layer, x[1])
  end)
end)

describe("several inputs and outputs", function()
  local function two(outputs)
    local a, b = tm.Input { shape = { 4 } }, tm.Input { shape = { 4 } }
    local both = tm.layers.Concatenate() { a, b }
    local model = tm.Model { inputs = { a, b },
      outputs = outputs(tm.layers.Dense { units = 1 }(both), tm.layers.Dense { units = 1 }(both)) }
    model:compile { optimizer = "sgd", loss = "mse" }
    return model
  end

  it("are told where x is one tensor", function()
    invalid("x is one tensor, the model takes 2", function()
      two(function(p, q) return { p, q } end):fit(x, { y = { y, y }, verbose = 0 })
    end)
  end)

  it("may be nested, targets in the same way", function()
    local model = two(function(p, q) return { p = { p }, q = { r = q } } end)
    local h = model:fit({ x, x }, { y = { p = { y }, q = { r = y } }, sample_weight = { q = { r = y } }, verbose = 0 })
    assert.equal("number", type(h.loss[1]))
    local out = model:predict({ x, x }, { verbose = 0, batch_size = 7 })
    assert.same({ 40, 1 }, out.p[1].shape)
    assert.same({ 40, 1 }, out.q.r.shape)
  end)

  -- tf_keras stacks what is a scalar a batch.
  it("may be a number a batch in predict", function()
    local Mean = tm.Model:extend "Mean"
    function Mean:call(v) return tm.reduce_mean(v) end
    assert.same({ 3 }, Mean():predict(x, { verbose = 0, batch_size = 16 }).shape)
  end)
end)

describe("what is monitored", function()
  it("is a number", function()
    local log = { on_epoch_end = function(_, _, logs) logs.mine = "low" end }
    for _, cb in ipairs { tm.callbacks.EarlyStopping { monitor = "mine" },
      tm.callbacks.ReduceLROnPlateau { monitor = "mine" } } do
      local text = '"mine" is to be monitored, which takes a number; it is a string'
      invalid(text, fit, made(), { callbacks = { log, cb } })
    end
  end)
end)

describe("a metric or a loss", function()
  it("has text as its name, flags as flags, numbers as numbers", function()
    invalid("Mean: name is a text, got number", tm.metrics.Mean, { name = 3 })
    invalid("MeanSquaredError: name is a text, got boolean", tm.losses.MeanSquaredError, { name = true })
    for _, of in ipairs { tm.metrics, tm.losses } do
      invalid("from_logits must be true or false, got 1", of.BinaryCrossentropy, { from_logits = 1 })
      invalid("label_smoothing must be a number", of.CategoricalCrossentropy, { label_smoothing = false })
    end
    invalid("AUC: thresholds is a list of numbers, got number", tm.metrics.AUC, { thresholds = 0.5 })
    invalid("AUC: label_weights is a list of numbers", tm.metrics.AUC, { label_weights = 2, multi_label = true })
    invalid("threshold must be a number", tm.metrics.BinaryAccuracy, { threshold = "0.5" })
  end)
end)
