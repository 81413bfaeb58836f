-- fit where mode = "sync": the rounds it makes, whoever looks, and that they repeat.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local D, L = tm.distribute, tm.layers

local BATCHES, EPOCHS = 32, 3

describe("fit with mode = sync", function()
  local strategy

  after_each(function()
    if strategy then strategy:close() end
    strategy = nil
    assert.same({}, P.cleanup())
  end)

  local function examples(n)
    local x, y = {}, {}
    for i = 1, n do
      x[i] = { math.sin(i), math.cos(2 * i), math.sin(5 * i) }
      y[i] = { math.sin(i) - math.cos(2 * i) }
    end
    return tm.data.from_tensor_slices { tm.tensor(x), tm.tensor(y) }
  end

  --- Weights, and how many updates the optimizer made.
  local function fit(callback, o)
    o = o or {}
    tm.random.set_seed(3)
    strategy = D.ParameterServerStrategy(D.local_cluster { workers = o.workers or 3, ps = 1 },
      { mode = o.mode or "sync" })
    local m = strategy:scope(function()
      local m = tm.Sequential { L.Dense { units = 8, activation = "tanh" }, o.layer or L.Activation "linear",
        L.Dense { units = 1 } }
      m:compile { optimizer = "adam", loss = "mse" }
      return m
    end)
    m:fit(o.data or examples(4 * BATCHES):batch(4), { epochs = EPOCHS, verbose = 0, callbacks = { callback },
      steps_per_epoch = o.steps, validation_data = o.held })
    local weights = {}
    for i, w in ipairs(m:get_weights()) do weights[i] = w:totable() end
    local n = m.optimizer.iterations:read():item()
    strategy:close()
    strategy = nil
    return weights, n
  end

  it("makes the same rounds, and the same bits, whatever looks at batches and saves", function()
    local dir = P.dir()
    local want, n = fit()
    assert.equal(EPOCHS * math.ceil(BATCHES / 3), n)
    local looked = 0
    for name, callback in pairs {
      hook = { on_train_batch_end = function() end },
      looks = { on_train_batch_end = function(_, _, logs) looked = looked + (logs.loss and 1) end },
      slow = { on_train_batch_begin = function(_, batch) if batch % 8 == 0 then tm.sleep(0.02) end end },
      nan = tm.callbacks.TerminateOnNaN(),
      saves = tm.callbacks.ModelCheckpoint(dir .. "/{epoch}.{batch}", { save_freq = 7, monitor = "loss" }),
    } do
      local got, updates = fit(callback)
      assert.equal(n, updates, name)
      assert.same(want, got, name)
    end
    assert.equal(EPOCHS * BATCHES, looked)
  end)

  it("draws the same where nobody knows how many batches there are, and with one worker in every mode", function()
    local function filtered()
      return examples(4 * BATCHES):filter(function(x) return tm.is_finite(x[1]) end):batch(4)
    end
    for mode, workers in pairs { sync = 3, async = 1, ssp = 1 } do
      local want
      -- How many functions find no data left depends on who is when told of the end.
      for _, pause in ipairs { 0, 0.003 } do
        local callback = pause > 0 and { on_train_batch_end = function() tm.sleep(pause) end } or {}
        local got = fit(callback, { mode = mode, workers = workers, data = filtered(), layer = L.Dropout(0.5),
          held = filtered() })
        want = want or got
        assert.same(want, got, mode)
      end
    end
  end)

  it("ends a round early only where a pass ends: with workers added, and where fit is told to stop", function()
    local _, n = fit({
      on_epoch_end = function(_, epoch)
        if epoch == 1 then D.ClusterCoordinator(strategy):add_worker "one-more" end
      end,
      on_train_batch_end = function(_, _, logs) return logs.loss end,
    }, { workers = 1 })
    assert.is_true(n <= 3 * BATCHES and n >= BATCHES + 2 * math.ceil(BATCHES / 2), n)
    local stop
    stop = { on_train_batch_end = function(_, batch) if batch == 6 then stop.model.stop_training = true end end }
    _, n = fit(stop)
    assert.is_true(n <= 6, n) -- what was started ahead, 12 steps, and what it brought meanwhile
  end)
end)
