-- fit, evaluate and predict on a cluster: in this process, and with workers that are killed.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local D = tm.distribute

local T, strategy

local function open(workers, ps, options)
  strategy = D.ParameterServerStrategy(D.local_cluster { workers = workers or 2, ps = ps or 2 }, options)
end

local function open_tasks(size, options)
  T = tasks.new(P, size)
  T:start()
  local o = { heartbeat_interval = 0.2, heartbeat_timeout = 1 }
  for k, x in pairs(options or {}) do o[k] = x end
  strategy = D.ParameterServerStrategy(D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" }), o)
end

local function close()
  if strategy then strategy:close() end
  strategy, T = nil, nil
  assert.same({}, P.cleanup())
end

local raises = dofile("spec/tools/expect.lua").raises

--- A layer that counts how often each id (its input) was used in training.
local Count = tm.layers.Layer:extend("Count")
function Count:init(given)
  self.n = self:options(given, { "n" }).n
  self.seen = self:add_weight { name = "seen", shape = { self.n }, dtype = "int64", trainable = false,
    initializer = "zeros" }
end
function Count:call(ids, training)
  if training then self.seen:scatter_add(ids, tm.ones_like(ids)) end
  return tm.expand_dims(tm.cast(ids, "float32"), 2) / self.n
end

--- A model of ids 0 .. n - 1 that notes what it has seen.
local function counting(n, o)
  local count, model
  strategy:scope(function()
    count = Count { n = n }
    model = tm.Sequential { count, tm.layers.Dense { units = 1 } }
    o = o or {}
    o.optimizer, o.loss = o.optimizer or tm.optimizers.SGD { learning_rate = 1e-3 }, o.loss or "mse"
    model:compile(o)
  end)
  return model, function() return count.seen:read():totable() end
end

--- Elements { ids, targets }.
local function ids(n, how)
  local ds = tm.data.range(n):map(function(i) return { i, tm.cast(i, "float32") } end)
  if how and how.shuffle then ds = ds:shuffle(how.shuffle) end
  return ds:batch(how and how.batch or 8)
end

local function each(list, times)
  for i, x in ipairs(list) do
    if x ~= times then error(("example %d was used %d times, not %d"):format(i - 1, x, times), 2) end
  end
end

describe("fit on a cluster", function()
  after_each(close)

  it("visits each example once in an epoch without steps_per_epoch, however the data are made (L7)", function()
    open(3)
    local model, seen = counting(100)
    local steps = 0
    local function check(data, times, batches)
      local before = model.optimizer.iterations:read():item()
      model:fit(data, { epochs = 2, verbose = 0 })
      steps = model.optimizer.iterations:read():item() - before
      each(seen(), times)
      assert.equal(2 * batches, steps)
    end
    check(ids(100), 2, 13)
    check(ids(100, { shuffle = 30 }), 4, 13)
    check(ids(120):unbatch():filter(function(i) return i:less(100) end):batch(9), 6, 12)
    local x = tm.range(0, 100, 1, "int64")
    model:fit(x, { y = tm.cast(x, "float32"), epochs = 2, verbose = 0 })
    each(seen(), 8)
    check(tm.data.DatasetCreator(function() return ids(100) end), 10, 13)
    check(strategy:_get_coordinator():create_per_worker_dataset(ids(100)), 12, 13)
  end)

  it("takes datasets that the strategy distributes", function()
    open(2)
    local model, seen = counting(20)
    model:fit(strategy:experimental_distribute_dataset(ids(20)), { epochs = 2, verbose = 0 })
    each(seen(), 2)
    model:fit(strategy:distribute_datasets_from_function(function(context)
      assert.equal(0, context.input_pipeline_id)
      return ids(20)
    end), { epochs = 2, verbose = 0 })
    each(seen(), 4)
    model:evaluate(strategy:experimental_distribute_dataset(ids(20)), { verbose = 0 })
    assert.equal(20, model:predict(strategy:experimental_distribute_dataset(ids(20)), { verbose = 0 }).shape[1])
  end)

  it("needs no packing: a step is a function, and costs one READ and one UPDATE (L3)", function()
    open(1, 1)
    local model = counting(16)
    local c = strategy:_get_coordinator()
    model:fit(ids(16), { steps_per_epoch = 2, verbose = 0 })
    local before = c:stats()
    model:fit(ids(16, { batch = 2 }):rep(), { steps_per_epoch = 64, verbose = 0 })
    local after = c:stats()
    assert.equal(64, after.steps - before.steps)
    for _, what in ipairs { "reads", "updates" } do
      local n = after[what] - before[what]
      assert.is_true(n <= 64 + 4, ("%d %s"):format(n, what)) -- resetting metrics and reading them is a few more
    end
  end)

  it("goes on in the data from epoch to epoch with steps_per_epoch", function()
    open(1)
    local model, seen = counting(12)
    model:fit(ids(12, { batch = 2 }):rep(), { epochs = 3, steps_per_epoch = 4, verbose = 0 })
    each(seen(), 2)
  end)

  it("begins the data anew where steps_per_epoch is all of them, as TensorFlow", function()
    open(1)
    local model, seen = counting(12)
    model:fit(ids(12, { batch = 2, shuffle = 12 }), { epochs = 3, steps_per_epoch = 6, verbose = 0 })
    each(seen(), 3)
  end)

  it("has each worker read for itself with steps_per_epoch", function()
    open(2)
    local model, seen = counting(8)
    model:fit(ids(8, { batch = 4 }):rep(), { epochs = 1, steps_per_epoch = 50, verbose = 0 })
    local sum = 0
    for _, x in ipairs(seen()) do sum = sum + x end
    assert.equal(200, sum)
  end)

  it("says that data without an end need steps_per_epoch, and which worker's data ended", function()
    open(2)
    local model = counting(8)
    raises("invalid_argument", "steps_per_epoch", model.fit, model, ids(8):rep(), { verbose = 0 })
    local e = raises("out_of_range", { "/job:worker/task:", "rep()" }, model.fit, model, ids(8, { batch = 1 }),
      { steps_per_epoch = 100, verbose = 0 })
    assert.truthy(e.task:find "^/job:worker/task:[01]$")
    assert.is_number(e.step)
    assert.equal(1, #model:fit(ids(8), { verbose = 0 }).loss) -- all is in order afterwards
  end)

  it("calls batch hooks in order of count, with logs that are numbers and read only when looked at (L8)", function()
    open(3)
    local model = counting(64, { metrics = { "mae" } })
    local order, logged = {}, {}
    local steps = require("tidemill.fit.steps").of(model, "train")
    local reads, read = 0, steps.read
    rawset(steps, "read", function(...)
      reads = reads + 1
      return read(...)
    end)
    local hooks = {
      on_train_batch_begin = function(_, batch) order[#order + 1] = "b" .. batch end,
      on_train_batch_end = function(_, batch, logs)
        order[#order + 1] = "e" .. batch
        if batch % 4 == 0 then logged[#logged + 1] = logs.mae end
      end,
    }
    model:fit(ids(64), { epochs = 2, callbacks = { hooks }, verbose = 0 })
    local begun, ended = {}, {}
    for _, s in ipairs(order) do
      local list = s:sub(1, 1) == "b" and begun or ended
      list[#list + 1] = tonumber(s:sub(2))
      assert.is_true(#begun - #ended <= 4 * 3)
    end
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8 }, begun)
    assert.same(begun, ended)
    assert.equal(4, #logged)
    for _, x in ipairs(logged) do assert.is_number(x) end
    assert.equal(4 + 2, reads)
  end)

  it("stops within the steps that are out when a hook sets stop_training", function()
    open(2)
    local model = counting(8)
    local stop = { on_train_batch_end = function(_, batch)
      if batch == 10 then model.stop_training = true end
    end }
    local h = model:fit(ids(8, { batch = 1 }):rep(), { steps_per_epoch = 500, epochs = 3, callbacks = { stop },
      verbose = 0 })
    assert.equal(1, #h.loss)
    local n = model.optimizer.iterations:read():item()
    assert.is_true(n >= 10 and n <= 10 + 8, n)
  end)

  it("ends with the error of a step, and the cluster is in order", function()
    open(2)
    local model = counting(64)
    function model:train_step(data)
      tm.assert_true(tm.reduce_all(tm.less(data[1], 40)), "an id is too big")
      return getmetatable(self).parent.train_step(self, data)
    end
    raises("invalid_argument", "an id is too big", model.fit, model, ids(64), { verbose = 0 })
    strategy:_get_coordinator():join()
    assert.equal(0, strategy:_get_coordinator():stats().queued)
    assert.equal(1, #model:fit(ids(40), { verbose = 0 }).loss)
    raises("invalid_argument", "dense", model.fit, model, tm.data.from_tensor_slices { tm.zeros({ 8, 2 }, "int64"),
      tm.ones { 8, 1 } }:batch(2), { verbose = 0 })
    raises("invalid_argument", "mine", model.fit, model, ids(40), { verbose = 0, callbacks = {
      { on_train_batch_end = function() error(setmetatable({ code = "invalid_argument", message = "mine" },
        require("tidemill.core").Error), 0) end } } })
    local pred = model:predict(tm.range(0, 5, 1, "int64"), { verbose = 0 })
    assert.same({ 5, 1 }, pred.shape)
  end)

  it("shows tensors of a step of one's own: those of the newest step", function()
    open(2)
    local model = counting(64)
    function model:train_step(data)
      local logs = getmetatable(self).parent.train_step(self, data)
      logs.largest = tm.reduce_max(data[1])
      return logs
    end
    local h = model:fit(ids(64, { batch = 4 }), { epochs = 2, verbose = 0 })
    assert.is_true(h.largest[1] >= 3 and h.largest[1] % 4 == 3)
    assert.is_number(h.loss[2])
  end)

  it("runs eagerly on the chief with run_eagerly, against the same variables (L10)", function()
    open(2)
    local model, seen = counting(16, { run_eagerly = true })
    local printed = 0
    function model:train_step(data)
      assert.is_number(data[1][1]:item())
      printed = printed + 1
      return getmetatable(self).parent.train_step(self, data)
    end
    model:fit(ids(16, { batch = 4 }), { epochs = 2, verbose = 0 })
    assert.equal(8, printed)
    each(seen(), 2)
    assert.truthy(model.weights[1].device:find "^/job:ps")
    assert.equal(0, strategy:_get_coordinator():stats().steps)
    function model:train_step(data) return data[1].nothing.more end -- luacheck: ignore
    local ok, e = pcall(model.fit, model, ids(16), { verbose = 0 })
    assert.is_false(ok)
    assert.truthy(tostring(e):find "fit_cluster_spec.lua:%d+:", tostring(e))
  end)

  it("moves optimizers and metrics that were made outside of the scope to the cluster", function()
    open(2)
    local model = strategy:scope(function() return tm.Sequential { tm.layers.Dense { units = 1 } } end)
    local sgd, mae = tm.optimizers.SGD { learning_rate = 0.125 }, tm.metrics.MeanAbsoluteError { name = "mine" }
    assert.equal(0, sgd.iterations:read():item())
    mae:update_state(tm.tensor { 1 }, tm.tensor { 3 })
    model:compile { optimizer = sgd, loss = "mse", metrics = { mae } }
    assert.equal(2, mae:result():item())
    local x = tm.ones { 16, 2 }
    local h = model:fit(x, { y = tm.zeros { 16, 1 }, batch_size = 4, epochs = 2, verbose = 0 })
    assert.equal(8, sgd.iterations:read():item())
    assert.equal(0.125, sgd.learning_rate)
    for _, v in ipairs { sgd.iterations, mae.total, mae.variables[1] } do
      assert.truthy(v.device:find "^/job:ps", v.device)
    end
    assert.is_true(h.mine[2] < h.mine[1])
  end)

  it("keeps going when workers are killed, each example still being visited once an epoch", function()
    open_tasks { workers = 2, ps = 1 }
    local model, seen = counting(400)
    local slow = tm.layers.Lambda(function(x)
      tm.sleep(0.002)
      return x
    end)
    strategy:scope(function()
      local inner = model
      model = tm.Sequential { slow, inner }
      model:compile { optimizer = "sgd", loss = "mse" }
    end)
    local at, kills = { 20, 45, 70 }, 0
    local killer = { on_train_batch_end = function(_, batch)
      if batch ~= at[kills + 1] then return end
      local w = kills % 2
      kills = kills + 1
      T.worker[w + 1]:kill()
      assert(T.worker[w + 1]:wait(5))
      T:task("worker", w)
    end }
    model:fit(ids(400, { batch = 4, shuffle = 50 }), { epochs = 2, callbacks = { killer }, verbose = 0 })
    assert.equal(3, kills)
    each(seen(), 2)
  end)
end)

describe("the same script", function()
  after_each(close)

  it("runs without a cluster, with one in this process, and under launch, and computes the same", function()
    local script = P.script [[
      local tm = require "tidemill"
      local D = tm.distribute
      local function scope(fn) return fn() end
      local strategy = (...) == "cluster" and D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 },
        { variable_partitioner = D.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
      if strategy then scope = function(fn) return strategy:scope(fn) end end
      local x, y = tm.random.normal({ 64, 3 }, { seed = 1 }), tm.random.normal({ 64, 2 }, { seed = 2 })
      local model = scope(function()
        return tm.Sequential{ tm.layers.Dense{ units = 2, name = "only", input_shape = { 3 },
          kernel_initializer = tm.initializers.GlorotUniform{ seed = 3 } } }
      end)
      model:compile{ optimizer = tm.optimizers.SGD{ learning_rate = 0.05 }, loss = "mse", metrics = { "mae" } }
      local function show(what, e) print(what, ("%.3f %.3f"):format(e.loss, e.mae)) end
      show("before", model:evaluate(x, { y = y, verbose = 0 }))
      local h = model:fit(x, { y = y, batch_size = 64, epochs = 3, verbose = 2, validation_data = { x, y } })
      for i = 1, 3 do
        show("epoch " .. i, { loss = h.loss[i], mae = h.mae[i] })
        show("validation " .. i, { loss = h.val_loss[i], mae = h.val_mae[i] })
      end
      show("after", model:evaluate(x, { y = y, batch_size = 5, verbose = 0 }))
      local p = model:predict(x, { batch_size = 5, verbose = 0 })
      print("predicted", ("%.3f %.3f"):format(p[1][1]:item(), p[64][2]:item()))
    ]]
    local function numbers(p)
      assert.equal(0, p:wait(30), p:err())
      return (p:out():gsub("%- %d+[mu]?s[^\n]-([\n ])", "%1"))
    end
    local alone = numbers(P.run { script })
    assert.truthy(alone:find "Epoch 3/3\n1/1" and alone:find "predicted")
    assert.equal(alone, numbers(P.run { script, "cluster" }))
    assert.equal(alone, numbers(P.run { "launch", "--workers", "2", "--ps", "2", script, "cluster" }))
  end)
end)

describe("fit on a cluster whose ps is restored", function()
  after_each(close)

  it("does again what was lost, so that the epoch has each example once", function()
    open_tasks({ workers = 2, ps = 1 }, { on_ps_failure = "restore" })
    local model, seen = counting(400)
    local c = D.ClusterCoordinator(strategy)
    local manager = tm.train.CheckpointManager(tm.train.Checkpoint { model = model, optimizer = model.optimizer },
      P.dir())
    c.checkpoint_manager = manager
    local killed
    local hooks = { on_train_batch_end = function(_, batch)
      if batch == 20 then assert(manager:save()) end
      if batch ~= 60 or killed then return end
      killed = true
      T.ps[1]:kill()
      assert(T.ps[1]:wait(5))
      T:task("ps", 0)
    end }
    model:fit(ids(400, { batch = 4, shuffle = 50 }), { callbacks = { hooks }, verbose = 0 })
    assert.is_true(killed)
    assert.equal(1, c:stats().rollbacks)
    each(seen(), 1)
  end)
end)

describe("predict and evaluate on a cluster", function()
  after_each(close)

  --- A model in a scope with weights that are always the same.
  local function two_headed(scope)
    local model
    scope(function()
      local x = tm.Input { shape = { 3 } }
      local function dense(units, seed, name)
        return tm.layers.Dense { units = units, name = name,
          kernel_initializer = tm.initializers.GlorotUniform { seed = seed } }
      end
      model = tm.Model { inputs = x, outputs = { a = dense(2, 1, "a")(x), b = dense(1, 2, "b")(x) } }
      model:compile { optimizer = "sgd", loss = { a = "mse", b = "mae" }, metrics = { a = { "mae" } } }
    end)
    return model
  end

  local function alone(fn) return fn() end

  local function data(n)
    local x = tm.random.normal({ n, 3 }, { seed = 4 })
    return x, { a = tm.random.normal({ n, 2 }, { seed = 5 }), b = tm.random.normal({ n, 1 }, { seed = 6 }) }
  end

  it("give what they give without one, in the order of the input", function()
    open(3)
    local here, there = two_headed(alone), two_headed(function(fn) return strategy:scope(fn) end)
    for _, n in ipairs { 1, 33, 200 } do
      local x, y = data(n)
      local p, q = here:predict(x, { batch_size = 7, verbose = 0 }), there:predict(x, { batch_size = 7, verbose = 0 })
      assert.same(p.a:totable(), q.a:totable())
      assert.same(p.b:totable(), q.b:totable())
      local ds = tm.data.from_tensor_slices { x, y }:batch(7)
      local filtered = ds:filter(function() return tm.tensor(true) end)
      q = there:predict(filtered, { verbose = 0 })
      assert.same(p.a:totable(), q.a:totable())
      local e, f = here:evaluate(ds, { verbose = 0 }), there:evaluate(ds, { verbose = 0 })
      local g = there:evaluate(filtered, { verbose = 0 })
      for name, value in pairs(e) do
        assert.is_true(math.abs(value - f[name]) < 1e-6 * math.max(1, math.abs(value)), name)
        assert.is_true(math.abs(value - g[name]) < 1e-6 * math.max(1, math.abs(value)), name)
      end
    end
  end)

  it("join the outputs of very many batches", function()
    open(2)
    local here, there = two_headed(alone), two_headed(function(fn) return strategy:scope(fn) end)
    local x = data(1300)
    local p = here:predict(x, { batch_size = 2, verbose = 0 })
    assert.is_true(tm.allclose(here(x).a, p.a, 1e-5, 1e-6))
    assert.same(p.b:totable(), there:predict(x, { batch_size = 2, verbose = 0 }).b:totable())
  end)

  it("take a number of steps, of data without an end too", function()
    open(2)
    local here, there = two_headed(alone), two_headed(function(fn) return strategy:scope(fn) end)
    local x, y = data(20)
    local ds = tm.data.from_tensor_slices { x, y }:batch(4):rep()
    local o = { steps = 7, verbose = 0 }
    assert.same(here:predict(ds, o).a:totable(), there:predict(ds, o).a:totable())
    local e, f = here:evaluate(ds, o), there:evaluate(ds, o)
    assert.is_true(math.abs(e.loss - f.loss) < 1e-6)
    raises("invalid_argument", "steps", there.evaluate, there, ds, { verbose = 0 })
    local short = there:evaluate(ds:take(3), { verbose = 0 }) -- more steps than data: a line in the log, as Keras
    assert.is_true(math.abs(short.loss - there:evaluate(ds:take(3), { steps = 5, verbose = 0 }).loss) < 1e-9)
  end)

  it("of finite data are exact, begin at the beginning each time, and count metrics of layers (L14)", function()
    open(3)
    local Watch = tm.layers.Layer:extend("Watch")
    function Watch:call(x)
      self:add_metric(tm.reduce_sum(x), "sums")
      return x
    end
    for _, shards in ipairs { "auto", 4 } do
      local model = strategy:scope(function()
        local m = tm.Sequential { Watch(), tm.layers.Dense { units = 1 } }
        m:compile { optimizer = "sgd", loss = "mse", pss_evaluation_shards = shards }
        return m
      end)
      local x = tm.reshape(tm.range(0, 60, 1, "float32"), { 60, 1 })
      for _ = 1, 3 do
        assert.equal(1770 / 15, model:evaluate(x, { y = x, batch_size = 4, verbose = 0 }).sums)
      end
      local h = model:fit(x, { y = x, batch_size = 4, epochs = 2, validation_data = { x, x }, verbose = 0,
        validation_batch_size = 4 })
      assert.same({ 1770 / 15, 1770 / 15 }, h.val_sums)
    end
  end)

  it("are as TensorFlow's with pss_evaluation_shards = 0: so many steps, each worker for itself", function()
    open(2)
    local model = strategy:scope(function()
      local m = tm.Sequential { tm.layers.Dense { units = 1 } }
      m:compile { optimizer = "sgd", loss = "mse", pss_evaluation_shards = 0 }
      return m
    end)
    local x = tm.ones { 20, 2 }
    assert.is_number(model:evaluate(x, { y = tm.ones { 20, 1 }, batch_size = 2, steps = 5, verbose = 0 }).loss)
    local before = strategy:_get_coordinator():stats().steps
    model:evaluate(tm.data.from_tensor_slices { x, tm.ones { 20, 1 } }:batch(2):rep(), { steps = 30, verbose = 0 })
    assert.equal(30, strategy:_get_coordinator():stats().steps - before)
  end)

  it("count each example once when workers are killed in the middle", function()
    open_tasks { workers = 2, ps = 1 }
    local chaos = dofile "spec/chaos/evaluate.lua"
    local report = chaos.run { strategy = strategy, kills = 10, seed = 3, kill = function(i)
      T.worker[i + 1]:kill()
      assert(T.worker[i + 1]:wait(5))
      T:task("worker", i)
    end }
    assert.equal(10, report.kills)
    assert.same({}, report.wrong)
  end)
end)
