-- Trains a small model and prints every loss with all digits.  usage: same_seed.lua SEED SHARDS
local tm = require "tidemill"
local unpack = table.unpack or unpack
tm.random.set_seed(tonumber(arg[1]))
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 1, ps = 2 }, {
  variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = tonumber(arg[2]) },
})
local model, optimizer
strategy:scope(function()
  local x = tm.Input { shape = { 8 }, dtype = "float32" }
  local ids = tm.Input { shape = { 3 }, dtype = "int64" }
  local rows = tm.layers.Flatten()(tm.layers.Embedding { input_dim = 50, output_dim = 16 }(ids))
  local h = tm.layers.Dense { units = 32, activation = "relu" }(tm.layers.Concatenate() { x, rows })
  h = tm.layers.Dropout { rate = 0.2 }(h)
  model = tm.Model { inputs = { x, ids }, outputs = tm.layers.Dense { units = 4 }(h) }
  optimizer = tm.optimizers.Adam { learning_rate = 0.01 }
end)
local step = tm.func(function(it)
  local x, ids, y = unpack(it:next())
  local tape = tm.GradientTape()
  local logits = model({ x, ids }, { training = true })
  local loss = tm.reduce_mean(tm.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
  optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  return loss
end)
local coordinator = tm.distribute.ClusterCoordinator(strategy)
local x = tm.random.normal { 256, 8 }
local ids = tm.cast(tm.random.uniform({ 256, 3 }, { maxval = 50 }), "int64")
local y = tm.cast(tm.random.uniform({ 256 }, { maxval = 4 }), "int64")
local it = coordinator:create_per_worker_dataset(function()
  return tm.data.from_tensor_slices { x, ids, y }:shuffle(256):batch(32):rep()
end):iterator()
local values = {}
for i = 1, 30 do values[i] = coordinator:schedule(step, { it }) end
for i = 1, 30 do print(("%.9g"):format(values[i]:fetch())) end
for _, v in ipairs(model.weights) do print(("%.9g"):format(tm.reduce_sum(tm.square(v:read())):item())) end
coordinator:close()
