-- Training that outlives preemption: the loop of TensorFlow's PreemptionWatcher page, in
-- Lua.  Machines that are taken away (SIGTERM, a spot instance's notice, Slurm's or
-- Kubernetes's signal) cost a moment, not the run:
--
--   a worker   tells the chief, finishes what it began and hands the rest back; training
--              goes on with the others, and its replacement gets work as soon as it is there
--   a ps       a checkpoint is saved, the ps ends, the loop waits for its replacement and
--              goes on from the checkpoint
--   the chief  a checkpoint is saved, the chief ends with status 143; started again it goes
--              on from there
--
-- usage: tidemill launch --workers 2 --ps 1 examples/preemption.lua [DIRECTORY [STEPS [PAUSE]]]
--        (or with tasks of your own, see docs/running.md), then: kill -TERM some task.
--        (launch starts a task again that died, not one that was told to leave.)
--        PAUSE: seconds that a step takes longer, so that there is something to interrupt
--
-- Result: "done: y = 3.00 x1 -2.00 x2 +1.00", whoever was told to leave; 2,000 steps in 20 s, nearly all
-- of it PAUSE.

local tm = require "tidemill"

local directory = arg and arg[1] or "/tmp/tidemill-preemption"
local STEPS, PAUSE = tonumber(arg and arg[2]) or 2000, tonumber(arg and arg[3]) or 0.02
local ROUND = 20 -- closures that are scheduled together

local function say(...)
  print((...):format(select(2, ...)))
  io.stdout:flush()
end

-- y = 3 x1 - 2 x2 + 1
local function examples()
  local x, y = {}, {}
  for i = 1, 256 do
    local a, b = (i * 37 % 256) / 128 - 1, (i * 91 % 256) / 128 - 1
    x[i], y[i] = { a, b }, { 3 * a - 2 * b + 1 }
  end
  return tm.data.from_tensor_slices({ tm.tensor(x), tm.tensor(y) }):shuffle(256):rep():batch(16)
end

local function train_model(strategy)
  local weights, bias, steps, optimizer
  strategy:scope(function()
    weights = tm.Variable(tm.zeros { 2, 1 }, { name = "weights" })
    bias = tm.Variable(tm.zeros { 1 }, { name = "bias" })
    steps = tm.Variable(0, { dtype = "int64", name = "steps", trainable = false })
    optimizer = tm.optimizers.SGD { learning_rate = 0.02, momentum = 0.9 }
  end)
  local coordinator = tm.distribute.ClusterCoordinator(strategy)
  local checkpoint = tm.train.Checkpoint { weights = weights, bias = bias, steps = steps, optimizer = optimizer }
  local manager = tm.train.CheckpointManager(checkpoint, directory, { max_to_keep = 3 })
  coordinator.checkpoint_manager = manager -- what preemption_checkpoint = true saves

  local path, why = manager:restore_or_initialize()
  if why then error(why, 0) end
  say("%s step %d", path and "goes on from" or "begins at", steps:read():item())

  local iterator = coordinator:create_per_worker_dataset(examples):iterator()
  local function step(it)
    tm.sleep(PAUSE)
    local x, y = (table.unpack or unpack)(it:next())
    local tape = tm.GradientTape()
    local loss = tm.reduce_mean(tm.square(tm.matmul(x, weights) + bias - y))
    optimizer:apply_gradients(tape:gradient(loss, { weights, bias }), { weights, bias })
    steps:assign_add(1) -- counted where the weights are, so that a checkpoint has both
    return loss
  end

  while steps:read():item() < STEPS do
    local loss
    for _ = 1, ROUND do loss = coordinator:schedule(step, { iterator }) end
    coordinator:join()
    say("step %d, loss %.4f", steps:read():item(), loss:fetch())
  end
  manager:save()
  local w = weights:read()
  say("done: y = %.2f x1 %+.2f x2 %+.2f", w[1]:item(), w[2]:item(), bias:read():item())
end

local keep_running, strategy, preemption_watcher = true, nil, nil
while keep_running do
  local ok, e = pcall(function()
    local resolver = tm.distribute.resolver { workers = 2, ps = 1 }
    strategy = tm.distribute.ParameterServerStrategy(resolver, { preemption_checkpoint = true })

    -- Created after the cluster is connected.
    preemption_watcher = tm.distribute.PreemptionWatcher()
    preemption_watcher:on_message(function(text, task)
      say("preempted: %s", text)
      -- The chief itself: what preemption_checkpoint saved is safe, so it may go.
      if task:find "/job:chief/" then os.exit(143, true) end
    end)
    train_model(strategy)
    keep_running = false
  end)
  if not ok then
    if not (preemption_watcher and preemption_watcher.preemption_message) then error(e, 0) end
    say("connects again after: %s", tostring(e))
    -- Else it might meet the very processes that are about to end.
    preemption_watcher:block_until_worker_exit()
    preemption_watcher:close()
    strategy:close()
    preemption_watcher = nil
  end
end
strategy:close()
