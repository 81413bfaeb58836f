-- Fits with tm.callbacks.TensorBoard, in one process and on a cluster; what was logged is
-- printed as JSON for spec/interop/tensorboard_fit.py.  Argument: directory.
local tm = require "tidemill"
local dir = arg[1]
local EPOCHS, BATCH, ROWS = 12, 32, 640

tm.random.set_seed(5)
local x = tm.random.uniform({ ROWS, 2 }, { minval = -1, maxval = 1 })
local inside = tm.less(tm.reduce_sum(tm.square(x), -1, { keepdims = true }), 0.6)
local y = tm.cast(inside, "float32")

local function model_of(units, rate)
  tm.random.set_seed(7)
  local model = tm.Sequential {
    tm.layers.Dense { units = units, activation = "relu", input_shape = { 2 }, name = "hidden" },
    tm.layers.Dense { units = units, activation = "relu", name = "deeper" },
    tm.layers.Dense { units = 1, activation = "sigmoid", name = "inside" },
  }
  model:compile { optimizer = tm.optimizers.Adam { learning_rate = rate }, loss = "binary_crossentropy",
    metrics = { "accuracy", tm.metrics.AUC { name = "auc" } } }
  return model
end

local function board(name, hparams)
  return tm.callbacks.TensorBoard { log_dir = dir .. "/" .. name, histogram_freq = 1, write_images = true,
    update_freq = 5, profile_batch = { 10, 20 }, write_steps_per_second = true, hparams = hparams }
end

local histories = {}

local function run(name, units, rate, strategy)
  local data = tm.data.from_tensor_slices { x, y }:batch(BATCH)
  local steps
  local model
  if strategy then
    model = strategy:scope(function() return model_of(units, rate) end)
    data, steps = data:rep(), ROWS / BATCH
  else
    model = model_of(units, rate)
  end
  histories[#histories + 1] = { name, model:fit(data, { epochs = EPOCHS, steps_per_epoch = steps, verbose = 0,
    validation_data = { x, y },
    callbacks = { board(name, { units = units, learning_rate = rate, where = strategy and "cluster" or "here" }) } }) }
end

run("small", 4, 0.01)
run("large", 32, 0.01)
local resolver = tm.distribute.local_cluster { workers = 3, ps = 2 }
local strategy = tm.distribute.ParameterServerStrategy(resolver)
run("cluster", 32, 0.01, strategy)
tm.distribute.ClusterCoordinator(strategy):close()

local w = tm.summary.create_file_writer(dir)
w:hparams_config { hparams = { { name = "units", values = { 4, 32 } }, { name = "learning_rate", min = 0, max = 1 },
  { name = "where", values = { "here", "cluster" } } }, metrics = { { tag = "epoch_accuracy", group = "validation",
    name = "accuracy" } } }
w:text("about", "What is **inside** a circle.", 0)
w:close()

local runs = {}
for i, h in ipairs(histories) do
  local parts = {}
  for _, key in ipairs { "loss", "accuracy", "auc", "val_loss", "val_accuracy", "val_auc" } do
    local numbers = {}
    for k, v in ipairs(h[2][key]) do numbers[k] = ("%.17g"):format(v) end
    parts[#parts + 1] = ('"%s": [%s]'):format(key, table.concat(numbers, ", "))
  end
  runs[i] = ('"%s": {%s}'):format(h[1], table.concat(parts, ", "))
end
print("{" .. table.concat(runs, ",\n") .. "}")
