-- A training loop of one's own: closures are scheduled, the coordinator hands them to workers,
-- checkpoints are written while training goes on, and a restart goes on from the last one.
-- Penguins of three kinds are told apart by their measures.
--
--     tidemill examples/custom_loop.lua                                 in one process
--     tidemill launch --workers 2 --ps 1 examples/custom_loop.lua       on processes
--     tidemill examples/custom_loop.lua CHECKPOINT_DIRECTORY            keeps checkpoints
--
-- Result: accuracy 0.97 to 1.00 on 69 penguins held out, about 1 s.

local tm = require "tidemill"
local unpack = table.unpack or unpack

local directory = arg and arg[1]
local folder = (arg and arg[0] or "examples/custom_loop.lua"):match "^(.*)/[^/]*$" or "."
local EPOCHS, BATCH = 40, 16

tm.random.set_seed(1)

-- --- the data ---

local species = { "Adelie", "Chinstrap", "Gentoo" }
local names = { "bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g" }
local function measures(x)
  local list = {}
  for i, name in ipairs(names) do list[i] = x[name] end
  return tm.stack(list, -1)
end

local columns = { { "species", "string" } }
for i, name in ipairs(names) do columns[i + 1] = { name, "float32", 0 } end
local penguins = tm.data.csv { files = folder .. "/data/penguins/penguins.csv", header = true, na_value = "NA",
  columns = columns }
  :filter(function(x) return x.body_mass_g:greater(0) end) -- two were not measured

local kind = tm.layers.StringLookup { vocabulary = species, num_oov_indices = 0 }
local normal = tm.layers.Normalization()
normal:adapt(penguins:batch(64):map(measures))

local function encode(x) return { normal(measures(x)), kind(x.species) } end
local mixed = penguins:shuffle(400, { seed = 3, reshuffle = false })
local held_out, train = mixed:take(69):batch(69):map(encode), mixed:skip(69)

-- --- the model ---

local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 2, ps = 1 })
local model, optimizer, loss_seen, accuracy
strategy:scope(function()
  model = tm.Sequential {
    tm.layers.Dense { units = 16, activation = "relu", input_shape = { #names } },
    tm.layers.Dense { units = #species },
  }
  optimizer = tm.optimizers.Adam { learning_rate = 0.01 }
  loss_seen, accuracy = tm.metrics.Mean(), tm.metrics.SparseCategoricalAccuracy()
end)

local loss_of = tm.losses.SparseCategoricalCrossentropy { from_logits = true }

local step = tm.func(function(iterator)
  local x, y = unpack(iterator:next())
  local tape = tm.GradientTape()
  local logits = model(x, { training = true })
  local loss = loss_of(y, logits)
  optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  loss_seen:update_state(loss)
  accuracy:update_state(y, logits)
end)

-- --- training ---

local coordinator = tm.distribute.ClusterCoordinator(strategy)
local iterator = coordinator:create_per_worker_dataset(train:shuffle(400):batch(BATCH):map(encode),
  { visitation = "exactly_once" }):iterator()

local manager, epoch = nil, tm.Variable(1, { dtype = "int64", trainable = false })
if directory then
  local checkpoint = tm.train.Checkpoint { model = model, optimizer = optimizer, epoch = epoch }
  manager = tm.train.CheckpointManager(checkpoint, directory, { max_to_keep = 3 })
  local path, why = manager:restore_or_initialize()
  if why then error(why, 0) end
  if path then print(("going on after epoch %d"):format(epoch:read():item() - 1)) end
end

for e = epoch:read():item(), EPOCHS do
  loss_seen:reset_states()
  accuracy:reset_states()
  local steps = coordinator:run_epoch(step, { iterator }) -- schedules until the data are used up, and joins
  if e % 10 == 0 then
    print(("epoch %d: %d steps, loss %.4f, accuracy %.4f"):format(e, steps, loss_seen:result():item(),
      accuracy:result():item()))
  end
  epoch:assign(e + 1)
  if manager then assert(manager:save()) end
end

-- --- the penguins held out ---

accuracy:reset_states()
for batch in held_out:each() do accuracy:update_state(batch[2], model(batch[1])) end
print(("accuracy %.4f on 69 penguins held out"):format(accuracy:result():item()))
coordinator:close()
