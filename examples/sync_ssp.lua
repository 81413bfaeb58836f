-- One model in four ways: asynchronous; in rounds whose gradients are averaged; the same
-- without waiting for the slowest; and with workers that may be two steps apart at most.
-- Three workers train on the census data of examples/data/adult, one of them is slow.
--
-- usage: tidemill examples/sync_ssp.lua
-- or, on processes: tidemill launch --workers 3 --ps 2 examples/sync_ssp.lua
--
-- Result: in one process on two cores, in 2 s (which worker does how many steps varies but in
-- mode sync; accuracies by 0.005):
--
--     async                  accuracy 0.861, 254 updates, steps of each worker 118 114 22
--     sync                   accuracy 0.859,  85 updates, steps of each worker 85 85 84
--     sync, 1 backup worker  accuracy 0.861, 120 updates, steps of each worker 120 119 15
--     ssp, staleness 2       accuracy 0.859, 254 updates, steps of each worker 85 85 84

local tm = require "tidemill"

local folder = (arg and arg[0] or "examples/sync_ssp.lua"):match "^(.*)/[^/]*$" or "."
local adult = dofile(folder .. "/adult_data.lua")
local BATCH, SLOW = 128, 0.004
local STEPS = math.floor(adult.rows / BATCH) -- about one epoch over all workers

local function train(name, options, rate)
  tm.random.set_seed(1)
  local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 3, ps = 2 }, options)
  local coordinator = tm.distribute.ClusterCoordinator(strategy)

  local model, optimizer
  strategy:scope(function()
    local ids = tm.Input { shape = { adult.columns }, dtype = "int64" }
    local numbers = tm.Input { shape = { adult.numbers } }
    local words = tm.layers.Embedding { input_dim = adult.ids, output_dim = 4 }(ids)
    local all = tm.layers.Concatenate() { tm.layers.Flatten()(words), numbers }
    local hidden = tm.layers.Dense { units = 32, activation = "relu" }(all)
    model = tm.Model { inputs = { ids, numbers },
      outputs = tm.layers.Dense { units = 1, activation = "sigmoid" }(hidden) }
    optimizer = tm.optimizers.Adam { learning_rate = rate }
  end)

  -- It applies its gradients once: in mode "sync" they wait until the round ends.
  local bce = tm.losses.BinaryCrossentropy()
  local step = tm.func(function(iterator)
    local batch = iterator:next()
    local slow = tm.equal(tm.distribute.current_worker_index(), 2)
    tm.cond(slow, function() tm.sleep(SLOW) end, function() end)
    local tape = tm.GradientTape()
    local loss = bce(batch[2], model(batch[1], { training = true }))
    optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  end)

  local iterator = coordinator:create_per_worker_dataset(function()
    return adult.train:shuffle(4096):rep():batch(BATCH):map(adult.encode):prefetch(2)
  end):iterator()
  local started = tm.time()
  for _ = 1, STEPS do coordinator:schedule(step, { iterator }) end
  coordinator:join()
  local seconds = tm.time() - started

  local right = tm.func(function(x, y)
    return tm.reduce_sum(tm.cast(tm.equal(tm.cast(tm.greater(model(x), 0.5), "float32"), y), "int64"))
  end)
  local n = 0
  for batch in adult.test:batch(4096):map(adult.encode):each() do n = n + right(batch[1], batch[2]):item() end
  local each = {}
  for i, w in ipairs(coordinator:stats().workers) do each[i] = w.steps end
  print(("%-22s accuracy %.3f, %3d updates, steps of each worker %s, %.1f s"):format(name, n / adult.test_rows,
    optimizer.iterations:read():item(), table.concat(each, " "), seconds))
  coordinator:close()
end

train("async", nil, 0.003)
-- A third as many updates, each of three times the data: larger steps.
train("sync", { mode = "sync" }, 0.009)
train("sync, 1 backup worker", { mode = "sync", backup_workers = 1 }, 0.006)
train("ssp, staleness 2", { mode = "ssp", staleness = 2 }, 0.003)
