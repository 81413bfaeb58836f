-- Who earns more than 50,000 dollars a year?  A wide and deep model (Cheng et al. 2016)
-- on the census data of examples/data/adult, trained on a cluster of 3 workers and 2
-- parameter servers inside this process; `tidemill launch --workers 3 --ps 2
-- examples/adult.lua` runs the same script on processes.
--
-- usage: tidemill examples/adult.lua [SEED]

local tm = require "tidemill"

local seed = tonumber(arg and arg[1]) or 1
local EPOCHS, BATCH, ROWS = 6, 128, 32561
local steps = math.ceil(ROWS / BATCH) -- of an epoch
local folder = (arg and arg[0] or "examples/adult.lua"):match "^(.*)/[^/]*$" or "."

tm.random.set_seed(seed)
local started = tm.time()

-- --- the data ---

local words = { "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex",
  "native_country" }
-- Numbers go into the model twice: as they are (the two sums of money by their
-- logarithm), and by the bin they fall into.
local bins = {
  age = { 18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 65 },
  hours_per_week = { 20, 30, 39, 41, 50, 60 },
  capital_gain = { 1, 3000, 5000, 7000, 10000, 20000 },
  capital_loss = { 1, 1500, 1700, 1850, 1950, 2300 },
}
local binned = { "age", "hours_per_week", "capital_gain", "capital_loss" }

local function csv(name)
  return tm.data.csv {
    files = folder .. "/data/adult/" .. name, na_value = "?", comment = "|", label = "income",
    columns = { "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
      "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income" },
  }
end

local train, test = csv "adult.data.gz", csv "adult.test.gz"

-- Every word and every bin gets an id of its own: ids of one column follow those of the
-- column before.
local lookups, first, ids = {}, {}, 0
for _, name in ipairs(words) do
  lookups[name] = tm.layers.StringLookup { name = name }
  lookups[name]:adapt(train:batch(4096):map(function(features) return features[name] end))
  first[name], ids = ids, ids + lookups[name]:vocabulary_size()
end
for _, name in ipairs(binned) do
  lookups[name] = tm.layers.Discretization { name = name, bin_boundaries = bins[name] }
  first[name], ids = ids, ids + #bins[name] + 1
end

local function numbers_of(x)
  local function number(name) return tm.cast(x[name], "float32") end
  return tm.stack({
    number "age", number "education_num", number "hours_per_week", tm.log1p(number "capital_gain"),
    tm.log1p(number "capital_loss"),
  }, 2)
end

local normal = tm.layers.Normalization()
normal:adapt(train:batch(4096):map(function(features) return numbers_of(features) end))

--- A batch of rows as { ids, numbers, label }.
local function encode(features, label)
  local columns = {}
  for _, list in ipairs { words, binned } do
    for _, name in ipairs(list) do columns[#columns + 1] = lookups[name](features[name]) + first[name] end
  end
  -- In the test file a dot stands after the label.
  local rich = tm.logical_or(tm.equal(label, ">50K"), tm.equal(label, ">50K."))
  return { tm.stack(columns, 2), normal(numbers_of(features)), tm.cast(tm.expand_dims(rich, 2), "float32") }
end

-- --- the model ---

local cluster = tm.distribute.resolver { workers = 3, ps = 2 }
local strategy = tm.distribute.ParameterServerStrategy(cluster)

local model, optimizer, mean_loss, accuracy
strategy:scope(function()
  local columns = #words + #binned
  local word_ids = tm.Input { shape = { columns }, dtype = "int64", name = "ids" }
  local numbers = tm.Input { shape = { 5 }, name = "numbers" }
  local function embedding(size, start)
    return tm.layers.Embedding { input_dim = ids, output_dim = size, embeddings_initializer = start }(word_ids)
  end
  local wide = tm.reduce_sum(embedding(1, "zeros"), 2)
  local deep = tm.layers.Concatenate() { tm.layers.Flatten()(embedding(8, "uniform")), numbers }
  for _, units in ipairs { 64, 32 } do
    deep = tm.layers.Dense { units = units, activation = "relu" }(deep)
    deep = tm.layers.Dropout(0.1)(deep)
  end
  local logit = wide + tm.layers.Dense { units = 1 }(deep)
  model = tm.Model { inputs = { word_ids, numbers }, outputs = tm.layers.Activation "sigmoid"(logit) }
  -- The rate falls to nothing, so the model does not depend on the order of the last steps.
  local rate = tm.optimizers.schedules.CosineDecay { initial_learning_rate = 0.001, decay_steps = EPOCHS * steps }
  optimizer = tm.optimizers.Adam { learning_rate = rate }
  mean_loss, accuracy = tm.metrics.Mean(), tm.metrics.BinaryAccuracy()
end)

-- --- training ---

local bce = tm.losses.BinaryCrossentropy()

local step = tm.func(function(iterator)
  local batch = iterator:next()
  local x, y = { batch[1], batch[2] }, batch[3]
  local tape = tm.GradientTape()
  local prediction = model(x, { training = true })
  local loss = bce(y, prediction)
  optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  mean_loss:update_state(loss)
  accuracy:update_state(y, prediction)
end)

local coordinator = tm.distribute.ClusterCoordinator(strategy)
local iterator = coordinator:create_per_worker_dataset(function()
  return train:shuffle(ROWS):rep():batch(BATCH):map(encode):prefetch(2)
end):iterator()

for epoch = 1, EPOCHS do
  mean_loss:reset_states()
  accuracy:reset_states()
  for _ = 1, steps do coordinator:schedule(step, { iterator }) end
  coordinator:join()
  print(("epoch %d of %d: loss %.4f, accuracy %.4f, %.1f s"):format(epoch, EPOCHS, mean_loss:result():item(),
    accuracy:result():item(), tm.time() - started))
end

-- --- the test set ---

local right, rows = 0, 0
local predict = tm.func(function(word_ids, numbers, y)
  local guess = tm.cast(tm.greater(model { word_ids, numbers }, 0.5), "float32")
  return tm.reduce_sum(tm.cast(tm.equal(guess, y), "int64"))
end)
for batch in test:batch(2048):map(encode):each() do
  right = right + predict(batch[1], batch[2], batch[3]):item()
  rows = rows + #batch[3]
end
print(("test accuracy %.4f on %d rows, %.1f s"):format(right / rows, rows, tm.time() - started))
coordinator:close()
