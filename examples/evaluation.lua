-- Four ways to evaluate a model that trains on a cluster, as in TensorFlow's tutorial; all
-- four give the same numbers here, since each sees every test row once.
--
--   1  inline, direct: the chief loops over the test data by itself
--   2  inline, distributed: a test step of one's own runs on workers
--   3  exact: model:evaluate (and validation_data of fit)
--   4  sidecar: a loop of one's own follows the checkpoints; it is another task
--      (tidemill evaluator examples/evaluation.lua DIRECTORY), or runs after training as here
--
--     tidemill examples/evaluation.lua
--     tidemill launch --workers 3 --ps 2 examples/evaluation.lua
--
-- Result: the four agree: 13,900 to 14,050 of 16,281 rows are right (0.85 to 0.86), about 1 s.

local tm = require "tidemill"

local folder = (arg and arg[0] or "examples/evaluation.lua"):match "^(.*)/[^/]*$" or "."
local adult = dofile(folder .. "/adult_data.lua")
local EPOCHS, BATCH = 2, 256

local function temporary()
  local pipe = io.popen "mktemp -d"
  local path = pipe:read "l"
  pipe:close()
  return path
end

local given = arg and arg[1]
local directory = given or temporary()
local test = adult.test:batch(1024):map(adult.encode)

local function build()
  local ids = tm.Input { shape = { adult.columns }, dtype = "int64", name = "ids" }
  local numbers = tm.Input { shape = { adult.numbers }, name = "numbers" }
  local words = tm.layers.Embedding { input_dim = adult.ids, output_dim = 4 }(ids)
  local x = tm.layers.Concatenate() { tm.layers.Flatten()(words), numbers }
  x = tm.layers.Dense { units = 32, activation = "relu" }(x)
  local m = tm.Model { inputs = { ids, numbers }, outputs = tm.layers.Dense { units = 1, activation = "sigmoid" }(x) }
  m:compile { optimizer = "adam", loss = "binary_crossentropy", metrics = { "accuracy" } }
  return m
end

--- The rows that are right, of those that a metric saw.
local function show(way, accuracy, rows)
  print(("%-24s %d of %d rows are right"):format(way, math.floor(accuracy * rows + 0.5), rows))
end

-- --- 4: the sidecar ---

local function sidecar(timeout)
  local model = build()
  local checkpoint = tm.train.Checkpoint { model = model }
  for path in tm.train.checkpoints_iterator(directory, { timeout = timeout }) do
    local status = checkpoint:restore(path) -- nil: it was deleted meanwhile; the next one will do
    if status then
      status:expect_partial()
      show("4 sidecar", model:evaluate(test, { verbose = 0 }).accuracy, adult.test_rows)
    end
    if path:match "%-(%d+)$" == tostring(EPOCHS) then break end
  end
end

local cluster = tm.distribute.resolver { workers = 3, ps = 2 }
if cluster.task_type == "evaluator" then
  sidecar()
  return
end

-- --- training ---

tm.random.set_seed(1)
local strategy = tm.distribute.ParameterServerStrategy(cluster)
local model = strategy:scope(build)
local coordinator = tm.distribute.ClusterCoordinator(strategy)
local manager = tm.train.CheckpointManager(tm.train.Checkpoint { model = model }, directory, { max_to_keep = 3 })

local train = adult.train:shuffle(adult.rows):batch(BATCH):map(adult.encode)
local saves = { on_epoch_end = function() assert(manager:save()) end }
model:fit(train, { epochs = EPOCHS, verbose = 0, callbacks = { saves } })

-- --- 1: inline, direct ---

local accuracy = strategy:scope(function() return tm.metrics.BinaryAccuracy() end)
local test_step = tm.func(function(x, y) accuracy:update_state(y, model(x)) end)
for batch in test:each() do test_step(batch[1], batch[2]) end
show("1 inline, direct", accuracy:result():item(), adult.test_rows)

-- --- 2: inline, distributed ---

accuracy:reset_states()
local iterator = coordinator:create_per_worker_dataset(test, { visitation = "exactly_once" }):iterator()
coordinator:run_epoch(tm.func(function(it)
  local batch = it:next()
  accuracy:update_state(batch[2], model(batch[1]))
end), { iterator })
show("2 inline, distributed", accuracy:result():item(), adult.test_rows)

-- --- 3: exact ---

show("3 model:evaluate", model:evaluate(test, { verbose = 0 }).accuracy, adult.test_rows)
coordinator:close()

if not given then
  sidecar(5)
  os.execute("rm -r '" .. directory .. "'")
end
