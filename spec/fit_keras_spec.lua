-- Histories of fit, weights and results of evaluate against tf-keras's
-- (spec/fixtures/keras_fit.py): the same initial weights, the same batches.
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_fit.lua"

local L, S, A = tm.layers, tm.optimizers.SGD, tm.optimizers.Adam
local x, y, ids, w = tm.tensor(keras.x), tm.tensor(keras.y), tm.tensor(keras.ids, "int64"), tm.tensor(keras.w)
local height, onehot = tm.tensor(keras.height), tm.tensor(keras.onehot)
local xs, flags, steps = tm.tensor(keras.xs), tm.tensor(keras.flags), tm.tensor(keras.steps, "int64")
local x_val, y_val, w_val = tm.tensor(keras.x_val), tm.tensor(keras.y_val), tm.tensor(keras.w_val)
local BCE, SCE = "binary_crossentropy", "sparse_categorical_crossentropy"

local function classifier(units, activation, o)
  o = o or {}
  o.units, o.activation = units or 1, activation or "sigmoid"
  return tm.Sequential { L.Dense { units = 6, activation = "tanh", input_shape = { 4 } }, L.Dense(o) }
end

local function listed()
  local i = tm.Input { shape = { 4 } }
  local h = L.Dense { units = 5, activation = "tanh" }(i)
  local a = L.Dense { units = 1, name = "height" }(h)
  return tm.Model { inputs = i, outputs = { a, L.Dense { units = 3, activation = "softmax", name = "kind" }(h) } }
end

local function keyed()
  local i = tm.Input { shape = { 4 } }
  local h = L.Dense { units = 5, activation = "tanh" }(i)
  local a = L.Dense { units = 3, activation = "softmax", name = "kind" }(h)
  return tm.Model { inputs = i, outputs = { a = a, b = L.Dense { units = 1, name = "height" }(h) } }
end

local function steps_model(units, activation)
  return function()
    return tm.Sequential { L.Dense { units = units, activation = activation, input_shape = { 5, 4 } } }
  end
end

local Own = tm.Model:extend "Own"
function Own:init()
  self.out = L.Dense { units = 1 }
  self.seen = tm.metrics.Mean { name = "seen" }
end
function Own:call(v)
  local out = self.out(v)
  self:add_loss(0.01 * tm.reduce_sum(tm.square(out)))
  self:add_metric(tm.reduce_mean(out), "level")
  return out
end

local Penalised = Own:extend "Penalised"

function Own:train_step(data)
  local tape = tm.GradientTape()
  local p = self(data[1], { training = true })
  local loss = tm.reduce_mean(tm.abs(p - data[2])) + tm.add_n(self.losses)
  local variables = self.trainable_variables
  local grads = tape:gradient(loss, variables)
  for i = 1, #variables do grads[i] = 0.5 * grads[i] end
  self.optimizer:apply_gradients(grads, variables)
  self.seen:update_state(loss)
  return { seen = self.seen, last = loss }
end
Penalised.train_step = tm.Model.train_step

local Normed = tm.Model:extend "Normed"
function Normed:init()
  self.inner = L.Dense { units = 4, activation = "tanh" }
  self.norm = L.BatchNormalization { momentum = 0.9 }
  self.out = L.Dense { units = 1, activation = "sigmoid" }
end
function Normed:call(v, training) return self.out(self.norm(self.inner(v), { training = training })) end

local function fit(o)
  o.batch_size, o.shuffle, o.verbose = o.batch_size or 8, false, 0
  return o
end

local cases = {
  sgd = { "with SGD", classifier, x, fit { y = y, epochs = 4 },
    { optimizer = S { learning_rate = 0.1 }, loss = BCE,
      metrics = { "accuracy", "mse", tm.metrics.AUC { name = "auc" } } } },
  adam = { "with Adam and validation data", classifier, x,
    fit { y = y, epochs = 4, validation_data = { x_val, y_val } },
    { optimizer = A { learning_rate = 0.01 }, loss = BCE, metrics = { "acc", "crossentropy" } } },
  weights = { "with weights of examples", classifier, x,
    fit { y = y, epochs = 3, sample_weight = w, validation_data = { x_val, y_val, w_val } },
    { optimizer = A { learning_rate = 0.01 }, loss = BCE, metrics = { "accuracy" },
      weighted_metrics = { "accuracy", tm.metrics.AUC { name = "auc" }, "mae" } } },
  classes = { "with weights of classes", function() return classifier(3, "softmax") end, x,
    fit { y = ids, epochs = 3, class_weight = { [0] = 1, [1] = 2.5, [2] = 0.5 } },
    { optimizer = S { learning_rate = 0.1 }, loss = SCE, metrics = { "accuracy" }, weighted_metrics = { "acc" } } },
  onehot = { "with one-hot targets", function() return classifier(3, "softmax") end, x,
    fit { y = onehot, epochs = 3, sample_weight = w },
    { optimizer = S { learning_rate = 0.1 }, loss = "categorical_crossentropy", metrics = { "accuracy", "ce" } } },
  penalties = { "with regularizers and a validation split", function()
    return classifier(1, "sigmoid", { kernel_regularizer = tm.regularizers.L2(0.05),
      activity_regularizer = tm.regularizers.L1(0.01) })
  end, x, fit { y = y, epochs = 3, validation_split = 0.3 },
    { optimizer = A { learning_rate = 0.01 }, loss = BCE, metrics = { "accuracy" } } },
  sum = { "with a summed loss", classifier, x, fit { y = y, epochs = 3 },
    { optimizer = S { learning_rate = 0.02 }, loss = tm.losses.BinaryCrossentropy { reduction = "sum" } } },
  two_outputs = { "with lists for two outputs", listed, x, fit { y = { height, ids }, epochs = 3 },
    { optimizer = A { learning_rate = 0.01 }, loss = { "mse", SCE }, loss_weights = { 0.5, 2 },
      metrics = { { "mae" }, { "accuracy" } } } },
  by_name = { "with names for two outputs", listed, x, fit { y = { height = height, kind = ids }, epochs = 3,
    sample_weight = { height = w, kind = tm.reverse(w, 1) } },
    { optimizer = A { learning_rate = 0.01 }, loss = { height = "mse", kind = SCE }, loss_weights = { kind = 0.25 },
      metrics = { kind = { "accuracy", "ce" } }, weighted_metrics = { kind = "accuracy", height = "mse" } } },
  one_loss = { "with one loss for all outputs", listed, x, fit { y = { height, height }, epochs = 2 },
    { optimizer = S { learning_rate = 0.01 }, loss = "mse", metrics = { "mae" } } },
  some_loss = { "with a loss for one of two outputs", listed, x, fit { y = { kind = ids }, epochs = 2 },
    { optimizer = S { learning_rate = 0.01 }, loss = { kind = SCE }, metrics = { kind = "accuracy" } } },
  keyed = { "with outputs in a table", keyed, x, fit { y = { a = ids, b = height }, epochs = 2 },
    { optimizer = S { learning_rate = 0.05 },
      loss = { a = SCE, b = "mse" }, metrics = { a = "accuracy", b = "mse" } } },
  sequences = { "with a class a step of a sequence", steps_model(3, "softmax"), xs,
    fit { y = steps, epochs = 2, sample_weight = w },
    { optimizer = S { learning_rate = 0.1 }, loss = SCE, metrics = { "accuracy" },
      weighted_metrics = { "accuracy" } } },
  flags = { "with a probability a step of a sequence", steps_model(1, "sigmoid"), xs,
    fit { y = flags, epochs = 2, sample_weight = w },
    { optimizer = S { learning_rate = 0.1 }, loss = BCE, metrics = { "accuracy", "mae" },
      weighted_metrics = { "acc" } } },
  column = { "with class ids in a column", function() return classifier(3, "softmax") end, x,
    fit { y = tm.expand_dims(ids, -1), epochs = 2, class_weight = { [0] = 1, [1] = 2.5, [2] = 0.5 } },
    { optimizer = S { learning_rate = 0.1 }, loss = SCE, metrics = { "accuracy" }, weighted_metrics = { "ce" } } },
  weight_column = { "with weights in a column", classifier, x,
    fit { y = tm.expand_dims(y, -1), epochs = 2, sample_weight = tm.expand_dims(w, -1) },
    { optimizer = S { learning_rate = 0.1 }, loss = "mae", weighted_metrics = { "mse", "accuracy" } } },
  normed = { "with moving averages", Normed, x, fit { y = y, epochs = 3, batch_size = 7 },
    { optimizer = A { learning_rate = 0.01 }, loss = BCE, metrics = { "accuracy" } } },
  own = { "with a train_step of its own", Own, x, fit { y = height, epochs = 3 },
    { optimizer = S { learning_rate = 0.1 }, loss = "mse" } },
  added = { "with losses and metrics that call adds", Penalised, x, fit { y = height, epochs = 3 },
    { optimizer = S { learning_rate = 0.02 }, loss = "mse", metrics = { "mae" } } },
}

local function set_weights(m, list, input)
  m(input)
  local values = {}
  for i = 1, #m.weights do values[i] = tm.tensor(list[i]) end -- Keras lists states of metrics behind them
  m:set_weights(values)
end

local function names(t)
  local out = {}
  for k in pairs(t) do
    if k ~= "epoch" and k ~= "params" then out[#out + 1] = k end
  end
  table.sort(out)
  return out
end

describe("fit agrees with Keras", function()
  local strategy
  setup(function()
    strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = 2 })
  end)
  teardown(function() strategy:close() end)

  for _, how in ipairs { "", ", eagerly", ", on a cluster of one worker" } do
    for key, c in pairs(cases) do
      it(c[1] .. how, function()
        local wanted, eager = keras.cases[key], how == ", eagerly"
        local m = how:find "cluster" and strategy:scope(c[2]) or c[2]()
        set_weights(m, wanted.weights, c[3])
        local o = {}
        for k, v in pairs(c[5]) do o[k] = v end
        o.run_eagerly = eager
        o.optimizer = getmetatable(o.optimizer) { learning_rate = o.optimizer.learning_rate }
        m:compile(o)
        local h = m:fit(c[3], c[4])
        assert.same(names(wanted.history), names(h))
        for name, list in pairs(wanted.history) do close.check(h[name], list, 2e-5, 2e-5) end
        local after = wanted.after
        for i, v in ipairs(m.weights) do close.check(v:read():totable(), after[i], 1e-4, 1e-5) end
        local r = m:evaluate(c[3], { y = c[4].y, sample_weight = c[4].sample_weight, batch_size = 8, verbose = 0 })
        assert.same(names(wanted.evaluate), names(r))
        for name, v in pairs(wanted.evaluate) do close.check(r[name], v, 2e-5, 2e-5) end
      end)
    end
  end
end)
