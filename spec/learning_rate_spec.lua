-- Learning rates on a cluster: schedules against tf-keras's numbers
-- (spec/fixtures/keras_optimizers.py), rates that are set while training.
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_optimizers.lua"

local D = tm.distribute

--- A cluster in this process, one variable, and a step whose gradient is 1.
local function cluster(workers)
  local strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers or 1, ps = 1 })
  local self = { strategy = strategy, coordinator = D.ClusterCoordinator(strategy) }
  self.w = strategy:scope(function() return tm.Variable({ 0 }, { name = "w" }) end)
  function self.optimizer(rate)
    return strategy:scope(function() return tm.optimizers.SGD { learning_rate = rate } end)
  end
  function self.step(optimizer)
    return tm.func(function()
      local tape = tm.GradientTape()
      local loss = tm.reduce_sum(self.w)
      optimizer:apply_gradients(tape:gradient(loss, { self.w }), { self.w })
    end)
  end
  --- What one step takes off.
  function self.rate(step)
    self.w:assign { 0 }
    self.coordinator:schedule(step)
    self.coordinator:join()
    return -self.w:read():totable()[1]
  end
  function self.close() self.coordinator:close() end
  return self
end

describe("learning rates on a cluster", function()
  it("schedules are computed on workers from the step they read, with Keras's values (L17)", function()
    local k = cluster()
    for n, c in ipairs(keras.schedules) do
      local optimizer = k.optimizer(tm.optimizers.schedules[c.schedule](c.options))
      local step = k.step(optimizer)
      for i, at in ipairs(c.steps) do
        optimizer.iterations:assign(at)
        close.check(k.rate(step), c.rates[i], 2e-5, 1e-6, ("%s, case %d, step %d"):format(c.schedule, n, at))
      end
    end
    k.close()
  end)

  it("a schedule causes no READ and no variable that a constant rate does not have (L17)", function()
    local k = cluster(2)
    local function cost(rate)
      local optimizer = k.optimizer(rate)
      local step = k.step(optimizer)
      local function run()
        for _ = 1, 40 do k.coordinator:schedule(step) end
        k.coordinator:join()
        return k.coordinator:stats()
      end
      local a = run()
      local b = run()
      assert.equal(80, optimizer.iterations:read():item())
      return { steps = b.steps - a.steps, reads = b.reads - a.reads, updates = b.updates - a.updates,
        bytes_read = b.bytes_read - a.bytes_read, variables = b.ps[1].variables }
    end
    local before = k.coordinator:stats().ps[1].variables
    local schedule = cost(tm.optimizers.schedules.CosineDecay { initial_learning_rate = 0.1, decay_steps = 100 })
    assert.equal(before + 1, schedule.variables) -- iterations
    local constant = cost(0.1)
    assert.equal(schedule.variables + 2, constant.variables) -- iterations and learning_rate
    assert.equal(constant.steps, schedule.steps)
    assert.equal(constant.reads, schedule.reads)
    assert.equal(constant.updates, schedule.updates)
    assert(schedule.bytes_read < constant.bytes_read)
    k.close()
  end)

  it("one that is set while training counts from the next step on", function()
    local k = cluster()
    local optimizer = k.optimizer(0.5)
    local step = k.step(optimizer)
    for _, rate in ipairs { 0.5, 0.25, 0.1, 2 } do
      if optimizer.learning_rate ~= rate then optimizer.learning_rate = rate end
      assert.equal(rate, optimizer.learning_rate)
      assert(math.abs(k.rate(step) - rate) < 1e-6)
    end
    k.close()
  end)

  --- A model whose steps take the rate off its only weight.
  local function model_of(k)
    return k.strategy:scope(function()
      local model = tm.Sequential { tm.layers.Dense { units = 1, input_shape = { 1 } } }
      function model:train_step()
        local tape = tm.GradientTape()
        local loss = tm.reduce_sum(k.w)
        self.optimizer:apply_gradients(tape:gradient(loss, { k.w }), { k.w })
        return { loss = loss }
      end
      model:compile { optimizer = tm.optimizers.SGD { learning_rate = 1 }, loss = "mse" }
      return model
    end)
  end

  it("callbacks set it, and workers take it for the steps that follow", function()
    local k = cluster(2)
    local model = model_of(k)
    local h = model:fit(tm.zeros { 40, 1 }, { y = tm.zeros { 40, 1 }, batch_size = 2, epochs = 3, verbose = 0,
      callbacks = { tm.callbacks.LearningRateScheduler(function(epoch) return epoch / 10 end),
        tm.callbacks.ReduceLROnPlateau { monitor = "loss", mode = "max", patience = 1, factor = 0.5 } } })
    assert.same({ 0.1, 0.2, 0.3 }, h.lr)
    assert(math.abs(k.w:read():totable()[1] + 20 * (0.1 + 0.2 + 0.3)) < 1e-4)
    assert.equal(0.15, model.optimizer.learning_rate) -- w only falls
    k.close()
  end)
end)
