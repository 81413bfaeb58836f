-- Evaluation beside the training: workers only train, and evaluators of their own take each
-- checkpoint, on data of theirs.  Who earns more than 50,000 dollars a year?
--
--     tidemill launch --workers 2 --ps 1 --evaluators 2 examples/sidecar.lua DIR
--
-- or by hand, in two terminals (evaluators may be started and ended at any time):
--
--     tidemill examples/sidecar.lua DIR
--     tidemill evaluator examples/sidecar.lua DIR
--
-- Result: "checkpoint 6 after 768 steps: accuracy 0.861", or very near it, from evaluators
-- that share the six checkpoints; the curve is in `tensorboard --logdir DIR`.  About 3 s.

local tm = require "tidemill"

local EPOCHS = 6
local directory = arg and arg[1] or "sidecar-run"
local folder = (arg and arg[0] or "examples/sidecar.lua"):match "^(.*)/[^/]*$" or "."
local adult = dofile(folder .. "/adult_data.lua")

local function make_model()
  local ids = tm.Input { shape = { adult.columns }, dtype = "int64", name = "ids" }
  local numbers = tm.Input { shape = { adult.numbers }, name = "numbers" }
  local words = tm.layers.Embedding { input_dim = adult.ids, output_dim = 8 }(ids)
  local x = tm.layers.Concatenate() { tm.layers.Flatten()(words), numbers }
  x = tm.layers.Dense { units = 32, activation = "relu" }(x)
  local y = tm.layers.Dense { units = 1, activation = "sigmoid" }(x)
  local model = tm.Model { inputs = { ids, numbers }, outputs = y }
  model:compile { optimizer = tm.optimizers.Adam { learning_rate = 0.005 }, loss = "binary_crossentropy",
    metrics = { "accuracy" } }
  return model
end

--- One script for all roles: this is what an evaluator does.
local function evaluate()
  local evaluator, model = nil, make_model()
  local report = { on_test_end = function(_, logs)
    print(("checkpoint %s after %d steps: accuracy %.3f"):format(evaluator.latest:match "%d+$",
      model.optimizer.iterations:read():item(), logs.accuracy))
  end }
  evaluator = tm.distribute.SidecarEvaluator {
    model = model,
    data = adult.test:batch(2048):map(adult.encode),
    checkpoint_dir = directory,
    every = true, -- each of them, not only the newest
    max_evaluations = EPOCHS, -- DIR/ckpt-6 is the last one
    callbacks = { report, tm.callbacks.TensorBoard { log_dir = directory } },
    verbose = 0,
  }
  evaluator:start()
end

--- And this the chief, with its workers.
local function train(cluster)
  local strategy = tm.distribute.ParameterServerStrategy(cluster)
  local model = strategy:scope(make_model)
  model:fit(adult.train:shuffle(adult.rows):batch(256):map(adult.encode):prefetch(2), {
    epochs = EPOCHS, verbose = 2,
    callbacks = { tm.callbacks.ModelCheckpoint(directory .. "/ckpt-{epoch}", { save_weights_only = true }) },
  })
  tm.distribute.ClusterCoordinator(strategy):close()
end

tm.random.set_seed(1)
local cluster = tm.distribute.resolver { workers = 2, ps = 1 }
if cluster.task_type == "evaluator" then evaluate() else train(cluster) end
