-- The order of hooks, steps of one's own, eager steps, without a cluster.
local tm = require "tidemill"

local x = tm.random.normal({ 40, 3 }, { seed = 1 })
local y = tm.reduce_sum(x, 2, { keepdims = true })

local function model(o)
  local m = tm.Sequential { tm.layers.Dense { units = 1, input_shape = { 3 } } }
  o = o or {}
  o.optimizer, o.loss = o.optimizer or "sgd", o.loss or "mse"
  m:compile(o)
  return m
end

--- A callback that notes what is called.
local function noter(list, hooks)
  local cb = {}
  for _, hook in ipairs(hooks) do
    cb[hook] = function(_, n) list[#list + 1] = type(n) == "number" and hook .. " " .. n or hook end
  end
  return cb
end

local function run(fit, hooks, compiled)
  local list = {}
  fit.y, fit.verbose, fit.callbacks = y, 0, noter(list, hooks)
  model(compiled):fit(x, fit)
  return list
end

describe("hooks of fit", function()
  it("are called in Keras's order, and count from 1", function()
    local list = run({ batch_size = 20, epochs = 2, validation_data = { x, y }, validation_batch_size = 40 },
      { "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_begin",
        "on_test_batch_begin", "on_test_batch_end", "on_test_end", "on_epoch_end", "on_train_end" })
    local epoch = "on_epoch_begin %d,on_train_batch_begin 1,on_train_batch_end 1,on_train_batch_begin 2,"
      .. "on_train_batch_end 2,on_test_begin,on_test_batch_begin 1,on_test_batch_end 1,on_test_end,on_epoch_end %d"
    assert.equal("on_train_begin," .. epoch:format(1, 1) .. "," .. epoch:format(2, 2) .. ",on_train_end",
      table.concat(list, ","))
  end)

  it("begin at initial_epoch, the first is 1, and end with epochs", function()
    local list = run({ initial_epoch = 3, epochs = 4 }, { "on_epoch_begin" })
    assert.same({ "on_epoch_begin 3", "on_epoch_begin 4" }, list)
  end)

  it("of batches come once an execution, with its last batch's number", function()
    local list = run({ batch_size = 4 }, { "on_train_batch_begin", "on_train_batch_end" }, { steps_per_execution = 4 })
    assert.same({ "on_train_batch_begin 1", "on_train_batch_end 4", "on_train_batch_begin 5", "on_train_batch_end 8",
      "on_train_batch_begin 9", "on_train_batch_end 10" }, list)
  end)

  it("of batches are given numbers, fetched when looked at", function()
    local seen, after = {}, {}
    local m = model { metrics = { "mae" } }
    m:fit(x, { y = y, batch_size = 10, verbose = 0, callbacks = { on_train_batch_end = function(cb, n, logs)
      assert.equal(m, cb.model)
      seen[n], after[n] = logs.loss, logs.mae
      if n == 4 then
        local names = {}
        for k in pairs(logs) do names[#names + 1] = k end
        assert.equal(2, #names)
      end
    end } })
    assert.equal(4, #seen)
    assert.is_number(seen[1])
    assert.is_number(after[4])
  end)

  it("may end the training: in the middle of an epoch", function()
    local list = {}
    local m = model()
    local cb = noter(list, { "on_train_batch_end", "on_epoch_end", "on_train_end" })
    local note = cb.on_train_batch_end
    cb.on_train_batch_end = function(self, n)
      note(self, n)
      if n == 2 then self.model.stop_training = true end
    end
    local h = m:fit(x, { y = y, batch_size = 10, epochs = 3, verbose = 0, callbacks = cb })
    assert.same({ "on_train_batch_end 1", "on_train_batch_end 2", "on_epoch_end 1", "on_train_end" }, list)
    assert.equal(1, #h.loss)
    assert.equal(3, #m:fit(x, { y = y, epochs = 3, verbose = 0 }).loss)
  end)

  it("that raise end fit with that error, and the model can be used", function()
    local m = model()
    local ok, e = pcall(m.fit, m, x, { y = y, verbose = 0, callbacks = { on_epoch_end = function() error "mine" end } })
    assert.is_false(ok)
    assert.truthy(tostring(e):find "fit_hooks_spec.lua:%d+: mine")
    assert.is_nil(rawget(m, "fitting"))
    assert.equal(1, #m:fit(x, { y = y, verbose = 0 }).loss)
  end)

  it("are called for evaluate and predict", function()
    local list = {}
    local cb = noter(list, { "on_test_begin", "on_test_batch_end", "on_test_end", "on_predict_begin",
      "on_predict_batch_begin", "on_predict_batch_end", "on_predict_end" })
    local m = model()
    m:evaluate(x, { y = y, callbacks = { cb }, batch_size = 40, verbose = 0 })
    m:predict(x, { callbacks = { cb }, batch_size = 40, verbose = 0 })
    assert.same({ "on_test_begin", "on_test_batch_end 1", "on_test_end", "on_predict_begin", "on_predict_batch_begin 1",
      "on_predict_batch_end 1", "on_predict_end" }, list)
  end)

  it("can note where fit is and go on from there", function()
    local function order(epochs, state, stop_at)
      local seen, kept = {}, nil
      local ds = tm.data.range(12):shuffle(12, { seed = 7 }):batch(3)
        :map(function(i) return { tm.reshape(tm.cast(i, "float32"), { -1, 1 }), tm.zeros { 3, 1 } } end)
      local Seen = tm.Model:extend "Seen"
      function Seen:init() self.out = tm.layers.Dense { units = 1 } end
      function Seen:call(v)
        seen[#seen + 1] = table.concat(tm.reshape(v, { -1 }):totable(), " ")
        return self.out(v)
      end
      local m = Seen()
      m:compile { optimizer = "sgd", loss = "mse", run_eagerly = true }
      m:fit(ds, { epochs = epochs, verbose = 0, callbacks = {
        on_train_begin = function(cb) if state then cb.model.fitting:resume(state) end end,
        on_train_batch_end = function(cb, n)
          if stop_at == cb.model.fitting.epoch .. "." .. n then
            kept = cb.model.fitting:state()
            cb.model.stop_training = true
          end
        end,
        on_epoch_end = function(cb, n)
          if stop_at == tostring(n) then
            kept = cb.model.fitting:state()
            cb.model.stop_training = true
          end
        end,
      } })
      return seen, kept
    end
    local all = order(3)
    assert.equal(12, #all)
    for _, stop in ipairs { "1", "2.3", "1.1" } do
      local first, state = order(3, nil, stop)
      local rest = order(3, state)
      for _, s in ipairs(rest) do first[#first + 1] = s end
      assert.same(all, first)
    end
  end)
end)

describe("steps of one's own", function()
  local function own(step)
    local Own = tm.Model:extend "Own"
    function Own:init() self.out = tm.layers.Dense { units = 1 } end
    function Own:call(v) return self.out(v) end
    for name, fn in pairs(step) do Own[name] = fn end
    local m = Own()
    m:compile { optimizer = "sgd", loss = "mse" }
    return m
  end

  it("may call the inherited one and add to its logs", function()
    local m = own { train_step = function(self, data)
      local logs = tm.Model.train_step(self, data)
      logs.double = 2 * tm.reduce_mean(data[1])
      logs.three = 3
      return logs
    end }
    local h = m:fit(x, { y = y, batch_size = 40, verbose = 0 })
    assert.is_number(h.loss[1])
    assert.equal(3, h.three[1])
    assert.is_true(math.abs(h.double[1] - 2 * tm.reduce_mean(x):item()) < 1e-6)
  end)

  it("may be those of evaluation and prediction", function()
    local m = own {
      test_step = function(self, data) return { off = tm.reduce_sum(self(data[1]) * 0 + 7) } end,
      predict_step = function(_, data) return { twice = 2 * data[1] } end,
    }
    assert.equal(40 * 7, m:evaluate(x, { y = y, batch_size = 40, verbose = 0 }).off)
    assert.is_true(tm.allclose(m:predict(x, { verbose = 0 }).twice, 2 * x))
  end)

  it("may be the loss alone", function()
    local m = own { compute_loss = function(_, _, _, y_pred) return tm.reduce_sum(y_pred) * 0 end }
    local before = m(x)
    m:fit(x, { y = y, verbose = 0 })
    assert.is_true(tm.allclose(before, m(x)))
  end)

  it("must return a table by name", function()
    local m = own { train_step = function() return 3 end }
    local ok, e = pcall(m.fit, m, x, { y = y, verbose = 0 })
    assert.is_false(ok)
    assert.truthy(tostring(e):find("train_step of Own returns a table", 1, true))
  end)
end)

describe("eager steps", function()
  it("see values, and errors have lines of the script", function()
    local printed
    local Looking = tm.Model:extend "Looking"
    function Looking:init() self.out = tm.layers.Dense { units = 1 } end
    function Looking:call(v)
      printed = tm.reduce_sum(v):item()
      if self.broken then error "here" end
      return self.out(v)
    end
    local m = Looking()
    m:compile { optimizer = "sgd", loss = "mse", run_eagerly = true }
    m:fit(x, { y = y, batch_size = 40, shuffle = false, verbose = 0 })
    assert.is_true(math.abs(printed - tm.reduce_sum(x):item()) < 1e-4)
    m.broken = true
    local ok, e = pcall(m.fit, m, x, { y = y, verbose = 0 })
    assert.is_false(ok)
    assert.truthy(tostring(e):find "fit_hooks_spec.lua:%d+: here")
  end)
end)

describe("metrics in fit", function()
  it("may have several results, a reset of their own, results that cannot be traced", function()
    local Both = tm.metrics.Metric:extend "Both"
    function Both:init()
      self.n = self:add_weight { name = "n" }
      self.resets = 0
    end
    function Both:update_state() self.n:assign_add(1) end
    function Both:reset_states()
      self.resets = self.resets + 1
      self.n:assign(0)
    end
    function Both:result() return { steps = self.n:read(), twice = 2 * self.n:read() } end
    local Plain = Both:extend "Plain"
    function Plain:result() return self.n:read():item() + 0.5 end
    local both, other = Both(), Plain { name = "other" }
    local m = model { metrics = { both, other } }
    local h = m:fit(x, { y = y, batch_size = 10, epochs = 3, verbose = 0 })
    assert.same({ 4, 4, 4 }, h.steps)
    assert.same({ 8, 8, 8 }, h.twice)
    assert.same({ 4.5, 4.5, 4.5 }, h.other)
    assert.equal(3, both.resets)
    assert.same({ "loss", both.name, "other" }, m.metrics_names)
  end)

  it("cost one trace, whatever the sizes of batches", function()
    local m = model { metrics = { "mae" } }
    m:fit(x, { y = y, batch_size = 15, epochs = 3, validation_data = { x, y }, verbose = 0 })
    m:fit(x:narrow(1, 1, 7), { y = y:narrow(1, 1, 7), batch_size = 2, verbose = 0 })
    assert.equal(1, m._steps.train.fn.trace_count)
    assert.equal(1, m._steps.test.fn.trace_count)
  end)
end)

describe("training", function()
  it("is true in fit and false in evaluate and predict", function()
    local seen = {}
    local m = tm.Sequential { tm.layers.Lambda(function(v, training)
      seen[#seen + 1] = training
      return v
    end), tm.layers.Dense { units = 1 } }
    m:compile { optimizer = "sgd", loss = "mse", run_eagerly = true }
    m:fit(x, { y = y, batch_size = 40, verbose = 0 })
    m:evaluate(x, { y = y, batch_size = 40, verbose = 0 })
    m:predict(x, { batch_size = 40, verbose = 0 })
    assert.same({ true, false, false }, seen)
  end)

  it("leaves layers alone that are not trainable", function()
    local frozen = tm.layers.Dense { units = 3, trainable = false }
    local m = tm.Sequential { frozen, tm.layers.Dense { units = 1 } }
    m:compile { optimizer = "adam", loss = "mse" }
    m(x)
    local before, other = frozen.weights[1]:read(), m.weights[1]:read()
    m:fit(x, { y = y, verbose = 0 })
    assert.is_true(tm.allclose(before, frozen.weights[1]:read(), 0, 0))
    assert.is_false(tm.allclose(other, m.trainable_variables[1]:read(), 0, 0))
  end)
end)

describe("one batch", function()
  it("is trained, evaluated and predicted", function()
    local m, n = model { metrics = { "mae" } }, model { metrics = { "mae" } }
    n:set_weights(m:get_weights())
    local logs = m:train_on_batch(x, y)
    local h = n:fit(x, { y = y, batch_size = 40, shuffle = false, verbose = 0 })
    assert.equal(h.loss[1], logs.loss)
    assert.equal(h.mae[1], logs.mae)
    local r = m:test_on_batch(x, y)
    assert.is_true(r.loss < logs.loss)
    assert.equal(r.loss, m:test_on_batch(x, y).loss)
    assert.is_true(tm.allclose(m:predict_on_batch(x), m(x)))
  end)
end)

describe("add_loss and add_metric", function()
  it("take symbols of a functional model, and functions", function()
    local i = tm.Input { shape = { 3 } }
    local layer = tm.layers.Dense { units = 1 }
    local out = layer(i)
    local m = tm.Model { inputs = i, outputs = out }
    m:add_loss(0.5 * tm.reduce_sum(tm.square(out)))
    m:add_loss(function() return tm.reduce_sum(layer.weights[1]) * 0 + 2 end)
    m:add_metric(tm.reduce_max(out), "highest")
    m:compile { optimizer = "sgd", loss = "mse" }
    local r = m:evaluate(x, { y = y, batch_size = 40, verbose = 0 })
    local p = m(x)
    local wanted = tm.reduce_mean(tm.square(p - y)) + 0.5 * tm.reduce_sum(tm.square(p)) + 2
    assert.is_true(math.abs(wanted:item() - r.loss) < 1e-3)
    assert.is_true(math.abs(tm.reduce_max(p):item() - r.highest) < 1e-5)
  end)

  it("are enough without a loss", function()
    local i = tm.Input { shape = { 3 } }
    local out = tm.layers.Dense { units = 1 }(i)
    local m = tm.Model { inputs = i, outputs = out }
    m:add_loss(tm.reduce_mean(tm.square(out)))
    m:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.1 } }
    local h = m:fit(x, { epochs = 5, verbose = 0 })
    assert.is_true(h.loss[5] < h.loss[1])
  end)
end)

describe("compile", function()
  local function fails(text, o)
    local m = tm.Sequential { tm.layers.Dense { units = 1 } }
    local ok, e = pcall(function()
      m:compile(o)
      m:fit(x, { y = y, verbose = 0 })
    end)
    assert.is_false(ok)
    assert.is_true(tm.is_error(e, "invalid_argument"), tostring(e))
    assert.truthy(tostring(e):find(text, 1, true), tostring(e))
  end

  it("tells what is wrong", function()
    fails("optimizer", { optimiser = "adam", loss = "mse" })
    fails('did you mean "adam"', { optimizer = "adamm", loss = "mse" })
    fails("optimizer is a name", { optimizer = 3, loss = "mse" })
    fails('unknown loss "mze"', { loss = "mze" })
    fails('unknown metric "nosuch"', { loss = "mse", metrics = { "nosuch" } })
    fails('did you mean "accuracy"', { loss = "mse", metrics = { "acuracy" } })
    fails("steps_per_execution", { loss = "mse", steps_per_execution = 0 })
    fails("pss_evaluation_shards", { loss = "mse", pss_evaluation_shards = "all" })
    fails("there is no loss", {})
    fails('unknown output "other"', { loss = { other = "mse" } })
    fails('have the name "mse"', { loss = "mse", metrics = { "mse", "mse" } })
  end)

  it("in a scope wants a model that was made there", function()
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = 1 })
    local m = model()
    local ok, e = pcall(strategy.scope, strategy, function() m:compile { loss = "mse" } end)
    strategy:close()
    assert.is_false(ok)
    assert.is_true(tm.is_error(e, "failed_precondition"))
  end)

  it("may be called again, and training goes on with the new one", function()
    local m = model()
    m:fit(x, { y = y, verbose = 0 })
    m:compile { optimizer = "adam", loss = "mae", metrics = { tm.metrics.MeanSquaredError { name = "sq" } } }
    local h = m:fit(x, { y = y, verbose = 0 })
    assert.is_number(h.sq[1])
    m:compile { optimizer = "adam", loss = "mae", metrics = { "mae" } }
    h = m:fit(x, { y = y, verbose = 0 })
    assert.is_nil(h.sq)
    assert.is_true(math.abs(h.loss[1] - h.mae[1]) < 1e-6)
  end)

  it("takes functions as losses and metrics", function()
    local m = model { loss = function(t, p) return tm.reduce_mean(tm.square(t - p), -1) end,
      metrics = { function(t, p) return tm.square(t - p) end } }
    local h = m:fit(x, { y = y, verbose = 0, batch_size = 40 })
    assert.is_true(math.abs(h.loss[1] - h.metric_1[1]) < 1e-5)
  end)
end)
