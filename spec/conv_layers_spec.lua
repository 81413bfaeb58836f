-- Layers of images and normalization against tf-keras (spec/fixtures/keras_conv.py).
local tm = require "tidemill"
local close = require "spec.close"
local L = tm.layers
local keras = dofile "spec/fixtures/keras_conv.lua"

local function flat(x) return tm.reshape(x, { -1 }):totable() end

--- Assign weights from flat lists.
local function set(weights, lists)
  assert.equal(#lists, #weights)
  for i, v in ipairs(weights) do v:assign(tm.reshape(tm.tensor(lists[i], "float32"), v.shape)) end
end

--- Weights layer by layer, as tf-keras lists those of a model.
local function by_layers(model)
  local list = {}
  for _, l in ipairs(model.layers) do
    for _, v in ipairs(l.weights) do list[#list + 1] = v end
  end
  return list
end

local function text(options)
  local parts = {}
  for k, v in pairs(options) do parts[#parts + 1] = k .. " " .. tostring(type(v) == "table" and #v or v) end
  table.sort(parts)
  return table.concat(parts, ", ")
end

describe("a layer of images", function()
  for i, case in ipairs(keras.layers) do
    it(("agrees with tf-keras: %d %s, %s"):format(i, case.layer, text(case.options)), function()
      local layer = L[case.layer](case.options)
      local inputs = {}
      for k = 2, #case.shape do inputs[k - 1] = case.shape[k] end
      local symbol = layer(tm.Input { shape = inputs })
      assert.same({ -1, (table.unpack or unpack)(case.out) }, symbol.shape)
      local shapes = {}
      for k, v in ipairs(layer.weights) do shapes[k] = v.shape end
      assert.same(case.shapes, shapes)
      set(layer.weights, case.weights)
      local y = layer(tm.tensor(case.x, "float32"))
      assert.equal(#case.out + 1, #y.shape)
      close.check(flat(y), case.y, 2e-5, 2e-5)
    end)
  end
end)

local models = {
  images = function()
    return tm.Sequential {
      L.Conv2D { filters = 4, kernel_size = 3, padding = "same", use_bias = false },
      L.BatchNormalization { momentum = 0.8 }, L.Activation "relu", L.MaxPooling2D(),
      L.DepthwiseConv2D { kernel_size = 2, strides = 2, padding = "same" },
      L.BatchNormalization { momentum = 0.9, scale = false }, L.AveragePooling2D { pool_size = 2 }, L.Flatten(),
      L.Dense { units = 2 },
    }
  end,
  vectors = function()
    return tm.Sequential { L.Dense { units = 4 }, L.BatchNormalization { momentum = 0.7, epsilon = 0.01 },
      L.Dense { units = 2 } }
  end,
  sequences = function()
    return tm.Sequential { L.Conv1D { filters = 3, kernel_size = 3, padding = "causal" }, L.LayerNormalization(),
      L.BatchNormalization { axis = 2, momentum = 0.5 }, L.GlobalMaxPooling1D(), L.Dense { units = 1 } }
  end,
  frozen = function()
    return tm.Sequential { L.Conv2D { filters = 2, kernel_size = 2 },
      L.BatchNormalization { momentum = 0.5, trainable = false }, L.GlobalAveragePooling2D() }
  end,
}

describe("training", function()
  for _, case in ipairs(keras.trained) do
    it("changes weights and moving averages as in tf-keras: " .. case.name, function()
      local model = models[case.name]()
      local x, y = tm.tensor(case.x, "float32"), tm.tensor(case.y, "float32")
      model(x)
      local weights = by_layers(model)
      set(weights, case.start)
      local optimizer = tm.optimizers.SGD { learning_rate = case.rate }
      local step = tm.func(function(a, b)
        local tape = tm.GradientTape()
        local loss = tm.reduce_mean(tm.square(model(a, { training = true }) - b))
        optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss
      end)
      for _, want in ipairs(case.losses) do close.check(step(x, y):item(), want, 1e-4) end
      for i, v in ipairs(weights) do close.check(flat(v:read()), case.weights[i], 1e-4, 1e-4) end
      close.check(flat(model(x)), case.after, 2e-4, 2e-4)
    end)
  end
end)

describe("BatchNormalization", function()
  local x = tm.tensor { { 1, 10 }, { 3, 30 } }

  it("takes the averages in inference and moves nothing", function()
    local l = L.BatchNormalization { epsilon = 0 }
    assert.same({ 1, 10, 3, 30 }, flat(l(x)))
    assert.same({ 0, 0 }, l.moving_mean:totable())
  end)

  it("normalizes by the batch in training and moves the averages by 1 - momentum", function()
    local l = L.BatchNormalization { epsilon = 0, momentum = 0.75 }
    close.check(flat(l(x, { training = true })), { -1, -1, 1, 1 }, 1e-6, 1e-6)
    close.check(l.moving_mean:totable(), { 0.5, 5 }, 1e-6, 1e-6)
    close.check(l.moving_variance:totable(), { 1, 25.75 }, 1e-6, 1e-6)
  end)

  it("moves nothing where the batch is empty", function()
    for _, shape in ipairs { { 0, 3 }, { 0, 2, 2, 3 } } do
      local l = L.BatchNormalization { momentum = 0.5, moving_mean_initializer = "ones" }
      local step = tm.func(function(a) return l(a, { training = true }) end)
      step(tm.zeros(shape))
      l(tm.zeros(shape), { training = true })
      assert.same({ 1, 1, 1 }, l.moving_mean:totable())
      assert.same({ 1, 1, 1 }, l.moving_variance:totable())
    end
  end)

  it("runs in inference when it, or a model around it, is frozen", function()
    local l = L.BatchNormalization { epsilon = 0 }
    local model = tm.Sequential { l }
    model.trainable = false
    assert.same({ 1, 10, 3, 30 }, flat(model(x, { training = true })))
    model.trainable, l.trainable = true, false
    assert.same({ 1, 10, 3, 30 }, flat(model(x, { training = true })))
    assert.same({ 0, 0 }, l.moving_mean:totable())
    l.trainable = true
    close.check(flat(model(x, { training = true })), { -1, -1, 1, 1 }, 1e-6, 1e-6)
  end)

  it("adds up what several steps take off the averages, in any order", function()
    local cluster = tm.distribute.resolver { workers = 2, ps = 2 }
    local strategy = tm.distribute.ParameterServerStrategy(cluster)
    local layer
    strategy:scope(function()
      layer = L.BatchNormalization { momentum = 0.9 }
      layer(tm.zeros { 2, 2 })
    end)
    local coordinator = tm.distribute.ClusterCoordinator(strategy)
    local step = tm.func(function() layer(tm.tensor { { 1, 10 }, { 3, 30 } }, { training = true }) end)
    for _ = 1, 200 do coordinator:schedule(step) end
    coordinator:join()
    -- Two may have read the same average: then each took the whole difference.
    for i, mean in ipairs { 2, 20 } do
      local got = layer.moving_mean:read():totable()[i]
      assert(math.abs(got - mean) < 1e-2 * mean, got)
    end
    coordinator:close()
  end)
end)

describe("mistakes", function()
  local function raises(part, fn, ...)
    local ok, e = pcall(fn, ...)
    assert.is_false(ok)
    assert(tostring(e):find(part, 1, true), tostring(e))
  end
  local image = tm.zeros { 1, 4, 4, 3 }

  it("are named with layer, place and remedy", function()
    raises("data_format is \"channels_last\" only", L.Conv2D,
      { filters = 1, kernel_size = 1, data_format = "channels_first" })
    raises("needs the option kernel_size", L.Conv2D, { filters = 1 })
    raises("kernel_size must be a number or a list of 2", L.Conv2D, { filters = 1, kernel_size = { 1, 2, 3 } })
    raises("must be a whole number of at least 1", L.MaxPooling2D, { pool_size = 0 })
    raises("same", L.AveragePooling2D, { padding = "smae" })
    raises("causal", L.Conv1D, { filters = 1, kernel_size = 1, padding = "casual" })
    raises("multiple of groups", L.Conv2D, { filters = 3, kernel_size = 1, groups = 2 })
    raises("the input's channels (3)", L.Conv2D { filters = 2, kernel_size = 1, groups = 2 }, image)
    raises("(batch, height, width, channels)", L.Conv2D { filters = 1, kernel_size = 1 }, tm.zeros { 4, 4, 3 })
    raises("does not fit", L.Conv2D { filters = 1, kernel_size = 5 }, image)
    raises("(batch, height, width, channels)", L.MaxPooling2D(), tm.zeros { 4, 3 })
    raises("axis 5", L.BatchNormalization { axis = 5 }, image)
    raises("axis 0", L.LayerNormalization { axis = 0 }, image)
    raises("one axis", L.BatchNormalization, { axis = { 1, 2 } })
    raises("did you mean", L.Conv2D, { filters = 1, kernel_sise = 1 })
    local built = L.Conv2D { filters = 1, kernel_size = 1 }
    built(image)
    raises("was built for 3 channels", built, tm.zeros { 1, 4, 4, 2 })
  end)

  it("are found while a layer graph is made", function()
    raises("does not fit", function()
      return L.Conv2D { filters = 1, kernel_size = 5 }(tm.Input { shape = { 4, 4, 1 } })
    end)
  end)
end)

describe("a saved model of images", function()
  it("comes back with its options, weights and averages, and goes on training alike", function()
    local dir = os.tmpname()
    os.remove(dir)
    local function norm(l) return tm.regularizers.L2(l) end
    local model = tm.Sequential {
      L.ZeroPadding2D { padding = { { 1, 0 }, { 0, 2 } }, input_shape = { 6, 6, 2 } },
      L.Conv2D { filters = 4, kernel_size = { 3, 2 }, strides = 1, padding = "same", dilation_rate = { 1, 2 },
        groups = 2, activation = "relu", kernel_regularizer = norm(0.1), kernel_constraint = "non_neg",
        bias_initializer = tm.initializers.Constant { value = 0.5 } },
      L.BatchNormalization { momentum = 0.6, epsilon = 0.01, beta_initializer = "ones" },
      L.MaxPooling2D { pool_size = 2, strides = 1, padding = "same" },
      L.DepthwiseConv2D { kernel_size = 2, depth_multiplier = 2, use_bias = false },
      L.LayerNormalization { axis = { 2, 4 }, center = false }, L.AveragePooling2D { pool_size = { 2, 1 } },
      L.UpSampling2D { size = { 1, 2 } }, L.Reshape { -1, 8 },
      L.Conv1D { filters = 3, kernel_size = 2, padding = "causal" }, L.MaxPooling1D(), L.GlobalAveragePooling1D(),
      L.Dense { units = 1 },
    }
    model:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.05 }, loss = "mse" }
    local x, y = tm.random.normal({ 8, 6, 6, 2 }, { seed = 3 }), tm.random.normal({ 8, 1 }, { seed = 4 })
    local function fit(m) return m:fit(x, { y = y, batch_size = 4, epochs = 2, shuffle = false, verbose = 0 }).loss end
    fit(model)
    assert(model:save(dir))
    local twin = assert(tm.models.load(dir))
    os.execute("rm -rf '" .. dir .. "'")
    assert.is_true(tm.allclose(model(x), twin(x), 0, 0))
    close.check(fit(twin), fit(model), 1e-6)
    for i, v in ipairs(model.weights) do close.check(flat(twin.weights[i]:read()), flat(v:read()), 1e-6) end
    for i, l in ipairs(model.layers) do
      assert.equal(l.name, twin.layers[i].name)
      for _, key in ipairs { "strides", "padding", "dilation_rate", "groups", "momentum", "axis", "pool_size" } do
        assert.same(l[key], twin.layers[i][key])
      end
    end
  end)
end)
