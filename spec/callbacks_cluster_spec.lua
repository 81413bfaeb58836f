-- Callbacks on a cluster in this process: hooks at batches, errors, saving.
local tm = require "tidemill"

local D, C = tm.distribute, tm.callbacks

local strategy, model

local x = tm.random.normal({ 96, 3 }, { seed = 1 })
local y = tm.matmul(x, tm.tensor { { 1 }, { -2 }, { 3 } })

local function fit(o)
  o.y, o.verbose, o.batch_size, o.shuffle = y, 0, o.batch_size or 4, false
  return model:fit(x, o)
end

describe("callbacks on a cluster", function()
  before_each(function()
    strategy = D.ParameterServerStrategy(D.local_cluster { workers = 2, ps = 1 })
    model = strategy:scope(function()
      local m = tm.Sequential { tm.layers.Dense { units = 1, input_shape = { 3 } } }
      m:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.01 }, loss = "mse", metrics = { "mae" } }
      return m
    end)
  end)

  after_each(function() strategy:_get_coordinator():close() end)

  it("hooks at batches are called for each batch, in order", function()
    local seen, want = {}, { "train" }
    fit { epochs = 2, callbacks = { {
      on_train_begin = function() seen[#seen + 1] = "train" end,
      on_epoch_begin = function(_, epoch) seen[#seen + 1] = "epoch " .. epoch end,
      on_train_batch_end = function(_, batch) seen[#seen + 1] = batch end,
      on_epoch_end = function(_, epoch) seen[#seen + 1] = "end " .. epoch end,
      on_train_end = function() seen[#seen + 1] = "over" end,
    } } }
    for epoch = 1, 2 do
      want[#want + 1] = "epoch " .. epoch
      for batch = 1, 24 do want[#want + 1] = batch end
      want[#want + 1] = "end " .. epoch
    end
    want[#want + 1] = "over"
    assert.same(want, seen)
  end)

  it("with steps_per_execution a hook is called once an execution, with its last batch", function()
    local seen = {}
    strategy:scope(function()
      model:compile { optimizer = "sgd", loss = "mse", steps_per_execution = 5 }
    end)
    fit { callbacks = { { on_batch_end = function(_, batch) seen[#seen + 1] = batch end } } }
    assert.same({ 5, 10, 15, 20, 24 }, seen)
  end)

  it("hooks of evaluation and prediction are called too", function()
    local seen = { test = 0, predict = 0 }
    local cb = { on_test_batch_end = function() seen.test = seen.test + 1 end,
      on_predict_batch_end = function() seen.predict = seen.predict + 1 end }
    model:evaluate(x, { y = y, batch_size = 32, verbose = 0, callbacks = { cb } })
    model:predict(x, { batch_size = 24, verbose = 0, callbacks = { cb } })
    assert.same({ test = 3, predict = 4 }, seen)
  end)

  it("stop_training at a batch ends the epoch there", function()
    local last = 0
    local h = fit { epochs = 5, callbacks = { { on_batch_end = function(cb, batch)
      last = batch
      if batch == 3 then cb.model.stop_training = true end
    end } } }
    assert.equal(1, #h.loss)
    assert(last >= 3 and last <= 3 + 8) -- what was started ahead is told too
  end)

  it("a loss that is no number ends fit with its history, whatever metrics there are", function()
    strategy:scope(function()
      model = tm.Sequential { tm.layers.Dense { units = 1, activation = "sigmoid" } }
      model:compile { optimizer = "sgd", loss = "binary_crossentropy", metrics = { "auc", "precision" } }
    end)
    local bad = tm.zeros { 96, 1 } / 0
    local h = model:fit(x, { y = bad, batch_size = 4, verbose = 0, epochs = 3, callbacks = { C.TerminateOnNaN() } })
    assert.equal(1, #h.loss)
    assert.is_true(h.loss[1] ~= h.loss[1]) -- predictions, so h.auc too, from the second batch on only
  end)

  it("an error in a callback ends fit with that error and the cluster in order", function()
    for _, hook in ipairs { "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end",
      "on_epoch_end", "on_train_end" } do
      local err = { hook }
      local ok, got = pcall(fit, { epochs = 2, callbacks = { { [hook] = function() error(err) end } } })
      assert.is_false(ok)
      assert.equal(err, got)
      assert.equal(1, #fit({}).loss)
      local stats = strategy:_get_coordinator():stats()
      assert.same({ 0, 0 }, { stats.queued, stats.running })
    end
  end)

  it("ModelCheckpoint saves after a batch what it is then, with nothing ahead of it", function()
    local dir = os.tmpname()
    os.remove(dir)
    fit { callbacks = { C.ModelCheckpoint(dir .. "/{batch}", { save_weights_only = true, save_freq = 7 }) } }
    for _, batch in ipairs { 7, 14, 21 } do
      assert.equal(batch, tm.train.load_variable(("%s/%d"):format(dir, batch), "optimizer/iterations"):item())
    end
    os.execute("rm -rf " .. dir)
  end)

  it("ModelCheckpoint saves a whole model that another process loads", function()
    local dir = os.tmpname()
    os.remove(dir)
    fit { callbacks = { C.ModelCheckpoint(dir .. "/best", { monitor = "loss", save_best_only = true }) } }
    local other, err = tm.models.load(dir .. "/best")
    os.execute("rm -rf " .. dir)
    assert(other, tostring(err))
    assert(tm.allclose(model.weights[1]:read(), other.weights[1]:read(), 0, 0))
    assert.equal(24, other.optimizer.iterations:read():item())
  end)
end)
