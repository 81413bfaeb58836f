-- What variables, slots and plain values are after a lost ps was restored.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
tm.random.set_seed(1)
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 1, ps = 2 },
  { heartbeat_interval = 0.2, heartbeat_timeout = 1, on_ps_failure = POLICY, placement = "round_robin",
    variable_partitioner = D.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
local c = D.ClusterCoordinator(strategy)
local function run(n, f)
  for _ = 1, n do c:schedule(f) end
  c:join()
end
local function killed()
  if os.getenv "TM_CONFIG" then
    say "go"
    await "killed"
  end
end
]]

--- Run a script on a cluster of which a ps is killed when it says "go"; what it printed.
local function killed(which, policy, text)
  local k = clusters.start(1, 2)
  k:chief(head:gsub("POLICY", ("%q"):format(policy)) .. text)
  k:says "go"
  k:kill("ps", which)
  P.sleep(0.05)
  k:run("ps", which)
  k:tell "killed"
  return k:ends(20):gsub("go\n", ""), k.boss:err()
end

--- What the same script prints in one process.
local function alone(text)
  local p = P.run({ P.script((head:gsub("POLICY", "nil")) .. text) }, { DIR = P.dir() })
  assert.equal(0, p:wait(20), p:out() .. p:err())
  return p:out()
end

local training = [[
  local table_, optimizer
  strategy:scope(function()
    table_ = tm.Variable(tm.range(0, 12, 1, { dtype = "float32" }):reshape({ 6, 2 }), { name = "table" })
    optimizer = tm.optimizers.OPTIMIZER
  end)
  local step = tm.func(function()
    local tape = tm.GradientTape()
    local loss = tm.reduce_sum(tm.square(table_:sparse_read({ 0, 1, 4 }))) + tm.reduce_sum(table_:read())
    optimizer:apply_gradients(tape:gradient(loss, { table_ }), { table_ })
  end)
  local checkpoint = tm.train.Checkpoint{ optimizer = optimizer, table = table_, epoch = 1 }
  local manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
  c.checkpoint_manager = manager
  run(7, step)
  assert(manager:save())
  checkpoint.epoch = 2
]]

local ending = [[
  run(5, step)
  say(table_:read(), optimizer.iterations:read():item(), checkpoint.epoch)
]]

describe("after a lost ps was restored", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  for name, optimizer in pairs {
    Adam = "Adam{ learning_rate = 0.1 }", momentum = "SGD{ learning_rate = 0.01, momentum = 0.9 }",
    Adagrad = "Adagrad{ learning_rate = 0.1 }",
  } do
    it(("shards, slots and iterations are those of the checkpoint and of what came after: %s (pain points 9, 15)")
      :format(name), function()
      local text = training:gsub("OPTIMIZER", function() return optimizer end)
      local expected = alone(text .. "checkpoint.epoch = 1\n" .. ending)
      for which = 0, 1 do
        local out = killed(which, "restore", text .. "run(3, step)\nkilled()\n" .. ending)
        assert.equal(expected, out)
      end
    end)
  end

  it('with "restore_shards" other shards and plain values are as they were, without a step lost', function()
    local text = training:gsub("OPTIMIZER", function() return "SGD{ learning_rate = 0.01, momentum = 0.9 }" end)
    local function rows(steps)
      local out = alone(text .. ("run(%d, step)\n"):format(steps) .. "say(table_:read())")
      return out:match "%[(.*)%]"
    end
    local function row(x, i) return select(i, (x .. "\n"):match(("(%b[])[^%[]*"):rep(6))) end
    local out, err = killed(0, "restore_shards", text .. "run(3, step)\nkilled()\n" .. ending)
    local got = out:match "%[(.*)%]"
    local old, new = rows(5), rows(8)
    for i = 1, 3 do assert.equal(row(old, i), row(got, i), out .. err) end
    for i = 4, 6 do assert.equal(row(new, i), row(got, i), out .. err) end
    assert.is_truthy(out:find "\t2\n$", out)
  end)

  it("what no checkpoint has starts from its initial value, or is zero where that was large; it is logged", function()
    local out, err = killed(1, "restore", [[
      local small, large, drawn, late
      strategy:scope(function()
        small = tm.Variable({ 1, 2, 3 }, { name = "small" })
        large = tm.Variable(tm.ones({ 400, 1000 }), { name = "large" })
        drawn = tm.Variable(tm.initializers.RandomNormal{ seed = 3 }, { shape = { 4, 4 }, name = "drawn" })
        late = tm.Variable({ 5, 6 }, { name = "late" })
      end)
      local first = drawn:read()
      local checkpoint = tm.train.Checkpoint{ late = late }
      c.checkpoint_manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
      late:assign({ 7, 8 })
      assert(c.checkpoint_manager:save())
      for _, v in ipairs { small, large, drawn, late } do v:assign_add(v * 0 + 1) end
      killed()
      say(small:read(), late:read(), large:read():reduce_sum():item(), tm.reduce_all(drawn:read():equal(first)):item())
      say(small + 1)
    ]])
    assert.is_truthy(out:find "%[1, 2, 3%].-%[7, 8%].-\t0[.0]*\ttrue\n", out .. err)
    assert.is_truthy(err:find '2 variables start from their initial values[^\n]*"small"[^\n]*"drawn"', err)
    assert.is_truthy(err:find '1 variables are zero now[^\n]*"large"', err)
  end)

  it("a model that is built meanwhile, and a coroutine that joins, go on", function()
    local out, err = killed(0, "restore", [[
      local model, count
      strategy:scope(function()
        model = tm.Sequential{ tm.layers.Dense{ units = 3, kernel_initializer = "ones" } }
        count = tm.Variable(0, { dtype = "int64", name = "count" })
      end)
      local checkpoint = tm.train.Checkpoint{ model = model, count = count }
      c.checkpoint_manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
      run(4, function() count:assign_add(1) end)
      assert(c.checkpoint_manager:save())
      killed()
      local joined = false
      tm.async(function()
        for _ = 1, 3 do c:schedule(function() count:assign_add(1) end) end
        c:join()
        joined = true
      end)
      local y = model(tm.ones({ 1, 2 }))
      while not joined do c:join() end
      say(y:reduce_sum():item(), count:read():item(), c:stats().rollbacks)
    ]])
    assert.equal("6.0\t7\t1\n", out:gsub("^6\t", "6.0\t"), err)
  end)

  it("iterators are where the checkpoint has them: data and variables agree (pain points 15, 26)", function()
    local text = [[
      local sum
      strategy:scope(function() sum = tm.Variable(0, { dtype = "int64", name = "sum" }) end)
      local it = c:create_per_worker_dataset(function() return tm.data.range(1000) end):iterator()
      local checkpoint = tm.train.Checkpoint{ sum = sum, it = it }
      c.checkpoint_manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
      local step = tm.func(function(data) sum:assign_add(data:next()) end)
      local function run_steps(n)
        for _ = 1, n do c:schedule(step, { it }) end
        c:join()
      end
      run_steps(10)
      assert(c.checkpoint_manager:save())
      LOST
      run_steps(5)
      say(sum:read():item())
    ]]
    local expected = alone((text:gsub("LOST", "")))
    assert.equal("105\n", expected)
    for which = 0, 1 do
      local out, err = killed(which, "restore", (text:gsub("LOST", "run_steps(7) killed()")))
      assert.equal(expected, out, err)
    end
  end)

  it("the chief's own change of a variable with shards on both is in once", function()
    for policy, expected in pairs { restore = "[[1, 1], [1, 1]]", restore_shards = "[[11, 11], [1, 1]]" } do
      local out, err = killed(1, policy, [[
        local v
        strategy:scope(function() v = tm.Variable(tm.zeros({ 2, 2 }), { name = "v" }) end)
        c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v }, DIR .. "/ckpt")
        assert(c.checkpoint_manager:save())
        v:assign_add(tm.ones({ 2, 2 }) * 10)
        killed()
        v:assign_add(tm.ones({ 2, 2 }))
        say(v:read(), c:stats().rollbacks)
      ]])
      assert.is_truthy(out:gsub("%s+", " "):gsub("%], %[", "], ["):find(expected, 1, true), out .. err)
    end
  end)
end)
