-- The tutorial's step: embedding 8 x 16384 in 2 shards, RMSprop, 3 workers, 2 ps.  usage: tutorial.lua STEPS
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local start, steps = tm.time(), tonumber(arg[1]) or 2000
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 3, ps = 2 },
  { variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = 2 } })

local heroes = { "avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman" }
math.randomseed(1)
local features, labels = {}, {}
for i = 1, 200 do
  local deck, row, label = { lib.unpack(heroes) }, {}, "no"
  for j = 1, 3 do
    row[j] = table.remove(deck, math.random(#deck))
    if row[j] == "avenger" then label = "yes" end
  end
  features[i], labels[i] = row, { label }
end

local lookup, label_lookup, model, optimizer, accuracy
strategy:scope(function()
  lookup = tm.layers.StringLookup { vocabulary = heroes }
  label_lookup = tm.layers.StringLookup { vocabulary = { "yes", "no" }, num_oov_indices = 0 }
  local ids = tm.Input { shape = { 3 }, dtype = "int64" }
  local mean = tm.reduce_mean(tm.layers.Embedding { input_dim = 8, output_dim = 16384 }(ids), 2)
  local out = tm.layers.Dense { units = 1, activation = "sigmoid", kernel_regularizer = tm.regularizers.L2(1e-4) }(mean)
  model = tm.Model { inputs = ids, outputs = out }
  optimizer = tm.optimizers.RMSprop { learning_rate = 0.1 }
  accuracy = tm.metrics.Accuracy()
end)
local bce = tm.losses.BinaryCrossentropy { reduction = "none" }
local step = tm.func(function(it)
  local x, y = lib.unpack(it:next())
  local tape = tm.GradientTape()
  local p = model(x, { training = true })
  local loss = tm.nn.compute_average_loss(bce(y, p)) + tm.nn.scale_regularization_loss(tm.add_n(model.losses))
  optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  accuracy:update_state(y, tm.cast(p:greater(0.5), "int64"))
  return loss
end)
local coordinator = tm.distribute.ClusterCoordinator(strategy)
local it = coordinator:create_per_worker_dataset(function()
  return tm.data.from_tensor_slices { features = features, label = labels }
    :map(function(e) return { lookup(e.features), label_lookup(e.label) } end):shuffle(200):batch(32):rep()
end):iterator()
for _ = 1, 3 do coordinator:schedule(step, { it }) end
coordinator:join()
local first = tm.time() - start
local rate = lib.rate(tm, coordinator, step, { it }, 0, steps)
lib.result { { "bench", "tutorial" }, { "steps", steps }, { "steps_per_s", rate }, { "first_steps_done_s", first },
  { "accuracy", accuracy:result():item() } }
coordinator:close()
