-- What the chaos driver disturbs: a cluster that trains on Adult until it is told to stop,
-- and then gives account of every closure.
--
-- usage: tidemill launch ... spec/chaos/train.lua DIR POLICY STEPS HEARTBEAT
--   DIR     writes DIR/state five times a second, stops when DIR/stop is there
--   POLICY  "none", "replicas", "restore" or "restore_shards"
--   STEPS   closures to run at least
--
-- Prints one line of "name value" pairs at the end.

local tm = require "tidemill"

local dir, policy, STEPS, heartbeat = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4])
local BATCH, AHEAD = 64, 200
local data = "examples/data/adult/"

tm.random.set_seed(1)

--- Open descriptors of this process, and what they are.
local function descriptors()
  local stat = assert(io.open "/proc/self/stat")
  local pid = stat:read "n"
  stat:close()
  os.execute(("ls -l /proc/%d/fd > %s/descriptors"):format(pid, dir)) -- no pipe that would count
  local list = assert(io.open(dir .. "/descriptors"))
  local text = list:read "a"
  list:close()
  return select(2, text:gsub("\n", "")), text
end
local fds = descriptors()

-- --- the model: logistic regression on words and numbers ---

local words = { "workclass", "education", "marital_status", "occupation", "relationship", "sex" }
local columns = { "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
  "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income" }
local function csv(name)
  return tm.data.csv { files = data .. name, na_value = "?", comment = "|", label = "income", columns = columns }
end
local train, test = csv "adult.data.gz", csv "adult.test.gz"

local BUCKETS = 64
local function encode(x, label)
  local ids, numbers = {}, {}
  for i, name in ipairs(words) do
    ids[i] = tm.strings.to_hash_bucket(x[name], BUCKETS) + (i - 1) * BUCKETS
  end
  for _, name in ipairs { "age", "education_num", "hours_per_week" } do
    numbers[#numbers + 1] = tm.cast(x[name], "float32") / 50
  end
  numbers[#numbers + 1] = tm.log1p(tm.cast(x.capital_gain, "float32")) / 10
  local rich = tm.logical_or(tm.equal(label, ">50K"), tm.equal(label, ">50K."))
  return { tm.stack(ids, 2), tm.stack(numbers, 2), tm.cast(rich, "float32") }
end

local options = { heartbeat_interval = heartbeat / 4, heartbeat_timeout = heartbeat }
if policy == "replicas" then options.replicas = 1 end
if policy:find "^restore" then options.on_ps_failure = policy end
local cluster = tm.distribute.resolver { workers = 4, ps = 2 }
local strategy = tm.distribute.ParameterServerStrategy(cluster, options)

local table_, weights, bias, counter, twin, optimizer
strategy:scope(function()
  counter = tm.Variable(0, { dtype = "int64", name = "counter", trainable = false })
  table_ = tm.Variable(tm.zeros { #words * BUCKETS, 1 }, { name = "table" })
  weights = tm.Variable(tm.zeros { 4, 1 }, { name = "weights" })
  bias = tm.Variable(0.0, { name = "bias" })
  twin = tm.Variable(0, { dtype = "int64", name = "twin", trainable = false })
  optimizer = tm.optimizers.Adagrad { learning_rate = 0.05 }
end)

local function loss_of(batch)
  local logits = tm.reduce_sum(tm.nn.embedding_lookup(table_, batch[1]), { 2, 3 })
    + tm.squeeze(tm.matmul(batch[2], weights), 2) + bias
  return tm.reduce_mean(tm.nn.sigmoid_cross_entropy_with_logits(batch[3], logits))
end

local step = tm.func(function(iterator)
  local batch = iterator:next()
  local variables = { table_, weights, bias }
  local tape = tm.GradientTape()
  local loss = loss_of(batch)
  optimizer:apply_gradients(tape:gradient(loss, variables), variables)
  counter:assign_add(1)
  twin:assign_add(1)
  return tm.check_numerics(loss, "the loss")
end)

-- --- a cluster that may lose its ps ---

local coordinator = tm.distribute.ClusterCoordinator(strategy)
local checkpoint = tm.train.Checkpoint { table = table_, weights = weights, bias = bias, counter = counter,
  twin = twin, optimizer = optimizer }
local manager = tm.train.CheckpointManager(checkpoint, dir .. "/checkpoints", { max_to_keep = 2 })
local lost = 0
if policy:find "^restore" then
  coordinator.checkpoint_manager = manager
  coordinator:on_restore(function(event) lost = lost + event.closures end)
end
manager:restore_or_initialize()

local iterator = coordinator:create_per_worker_dataset(function()
  return train:shuffle(4096):rep():batch(BATCH):map(encode)
end):iterator()

-- --- training until it is told to stop ---

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

local function write_state()
  local s = coordinator:stats()
  local parts = { ("steps %d rollbacks %d"):format(s.steps, s.rollbacks or 0) }
  for i, w in ipairs(s.workers) do parts[#parts + 1] = ("worker%d %s"):format(i - 1, w.state) end
  for i, p in ipairs(s.ps) do
    local state = policy == "replicas" and p.state == "ready" and not p.copied and "connecting" or p.state
    parts[#parts + 1] = ("ps%d %s"):format(i - 1, state)
  end
  local f = assert(io.open(dir .. "/state.new", "w"))
  f:write(table.concat(parts, " "), "\n")
  f:close()
  os.rename(dir .. "/state.new", dir .. "/state")
  return s
end

local scheduled, done, failed, waiting = 0, 0, 0, {}
local sum, saves, last_state, last_save = 0, 0, 0, tm.time()

--- Take the account of the closures that have ended; wait for all when `all`.
local function settle(all)
  local left = {}
  for _, value in ipairs(waiting) do
    if all or value:done() then
      local ok, loss = pcall(value.fetch, value)
      if ok then
        done, sum = done + 1, sum + loss
      else
        failed = failed + 1
        print("failed", tostring(loss))
      end
    else
      left[#left + 1] = value
    end
  end
  waiting = left
end

while scheduled < STEPS or not exists(dir .. "/stop") do
  while #waiting < AHEAD and (scheduled < STEPS or not exists(dir .. "/stop")) do
    waiting[#waiting + 1] = coordinator:schedule(step, { iterator })
    scheduled = scheduled + 1
  end
  waiting[1]:get()
  settle()
  if tm.time() - last_state > 0.2 then
    write_state()
    last_state = tm.time()
  end
  if tm.time() - last_save > 2 then
    local path, err = manager:save()
    if path then saves = saves + 1 else print("not saved", tostring(err)) end
    last_save = tm.time()
  end
end
settle(true)
coordinator:join()

-- --- the account ---

local rows, total = 0, 0
local evaluate = tm.func(loss_of)
for batch in test:batch(2048):map(encode):each() do
  local n = #batch[3]
  total, rows = total + evaluate(batch):item() * n, rows + n
end
local s = write_state()
local report = ("scheduled %d done %d failed %d counter %d twin %d lost %d rollbacks %d retries %d saves %d loss %.5f")
  :format(scheduled, done, failed, counter:read():item(), twin:read():item(), lost, s.rollbacks or 0, s.retries, saves,
    total / rows)

coordinator:close()
collectgarbage()
collectgarbage()
local left, which = descriptors()
left = left - fds
if left > 2 then print(which) end
print(("%s descriptors %d"):format(report, left))
