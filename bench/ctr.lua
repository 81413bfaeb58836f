-- A wide sparse model: 26 columns of ids, tables of VOCAB x 16, MLP 256-128-1, Adagrad.
-- usage: ctr.lua WORKERS PS VOCAB BATCH STEPS
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local workers, ps, vocab = tonumber(arg[1]) or 3, tonumber(arg[2]) or 2, tonumber(arg[3]) or 100000
local batch, steps = tonumber(arg[4]) or 256, tonumber(arg[5]) or 500
local columns, width, rows = 26, 16, batch * 40

math.randomseed(1)
-- Zipf's law by Devroye's rejection (Non-Uniform Random Variate Generation, 1986, X.6.1).
local function zipf(a)
  local b = 2 ^ (a - 1)
  while true do
    local x = math.floor(math.random() ^ (-1 / (a - 1)))
    local t = (1 + 1 / x) ^ (a - 1)
    if x < 2 ^ 52 and math.random() * x * (t - 1) / (b - 1) <= t / b then return x end
  end
end

local ids, dense, clicked = {}, {}, {}
for i = 1, rows do
  local r, d = {}, {}
  for c = 1, columns do r[c] = math.fmod(zipf(1.2), vocab) end
  for c = 1, 13 do d[c] = math.random() end
  ids[i], dense[i], clicked[i] = r, d, { math.random() < 0.25 and 1 or 0 }
end
ids, dense, clicked = tm.tensor(ids, "int64"), tm.tensor(dense), tm.tensor(clicked)

local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = workers, ps = ps }, {
  variable_partitioner = tm.distribute.partitioners.MinSizePartitioner { min_shard_bytes = 262144, max_shards = ps },
})
local tables, mlp, optimizer = {}, nil, nil
strategy:scope(function()
  for c = 1, columns do tables[c] = tm.layers.Embedding { input_dim = vocab, output_dim = width } end
  mlp = tm.Sequential {
    tm.layers.Dense { units = 256, activation = "relu" }, tm.layers.Dense { units = 128, activation = "relu" },
    tm.layers.Dense { units = 1 },
  }
  optimizer = tm.optimizers.Adagrad { learning_rate = 0.05 }
end)

local step = tm.func(function(it)
  local i, d, label = lib.unpack(it:next())
  local tape = tm.GradientTape()
  local parts = {}
  for c = 1, columns do parts[c] = tables[c](i:select(2, c)) end
  parts[columns + 1] = d
  local loss = tm.reduce_mean(tm.nn.sigmoid_cross_entropy_with_logits(label, mlp(tm.concat(parts, 2))))
  local vars = {}
  for c = 1, columns do vars[c] = tables[c].weights[1] end
  for _, v in ipairs(mlp.trainable_variables) do vars[#vars + 1] = v end
  optimizer:apply_gradients(tape:gradient(loss, vars), vars)
  return loss
end)
local coordinator = tm.distribute.ClusterCoordinator(strategy)
local it = coordinator:create_per_worker_dataset(function()
  return tm.data.from_tensor_slices { ids, dense, clicked }:batch(batch):rep():prefetch(2)
end):iterator()
local rate = lib.rate(tm, coordinator, step, { it }, 2 * strategy.num_workers, steps)
lib.result { { "bench", "ctr" }, { "workers", strategy.num_workers }, { "ps", strategy.num_ps }, { "vocab", vocab },
  { "batch", batch }, { "steps", steps }, { "steps_per_s", rate }, { "examples_per_s", batch * rate } }
coordinator:close()
