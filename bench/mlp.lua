-- MLP 784-512-256-10, batch 128, Adam.  usage: mlp.lua local|cluster WORKERS PS STEPS
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local kind, workers, ps = arg[1] or "local", tonumber(arg[2]) or 3, tonumber(arg[3]) or 2
local steps = tonumber(arg[4]) or 500
local batch = 128
local x = tm.random.uniform { batch * 40, 784 }
local y = tm.cast(tm.random.uniform({ batch * 40 }, { maxval = 10 }), "int64")
local function dataset() return tm.data.from_tensor_slices { x, y }:batch(batch):rep():prefetch(2) end

local model, optimizer
local function build()
  model = tm.Sequential {
    tm.layers.Dense { units = 512, activation = "relu", input_shape = { 784 } },
    tm.layers.Dense { units = 256, activation = "relu" },
    tm.layers.Dense { units = 10 },
  }
  optimizer = tm.optimizers.Adam { learning_rate = 1e-3 }
end

local function one(images, labels)
  local tape = tm.GradientTape()
  local logits = model(images, { training = true })
  local loss = tm.reduce_mean(tm.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
  optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  return loss
end

local rate
if kind == "local" then
  build()
  local f, it = tm.func(one), dataset():iterator()
  for _ = 1, 5 do f(lib.unpack(it:next())) end
  local t = tm.time()
  for _ = 1, steps do f(lib.unpack(it:next())) end
  rate = steps / (tm.time() - t)
else
  local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = workers, ps = ps })
  workers, ps = strategy.num_workers, strategy.num_ps
  strategy:scope(build)
  local step = tm.func(function(it) return one(lib.unpack(it:next())) end)
  local coordinator = tm.distribute.ClusterCoordinator(strategy)
  local it = coordinator:create_per_worker_dataset(dataset):iterator()
  rate = lib.rate(tm, coordinator, step, { it }, 2 * workers, steps)
  coordinator:close()
end
lib.result { { "bench", "mlp" }, { "kind", kind }, { "workers", workers }, { "ps", ps }, { "steps", steps },
  { "steps_per_s", rate }, { "examples_per_s", batch * rate } }
