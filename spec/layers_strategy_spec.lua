-- Layers, metrics and optimizers under a strategy: where their variables live, and that
-- shards change no number.
local tm = require "tidemill"
local close = dofile "spec/close.lua"

local L = tm.layers

local function strategy(shards, fn)
  local s = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = 2 }, {
    variable_partitioner = shards and tm.distribute.partitioners.FixedShardsPartitioner { num_shards = shards } })
  local ok, e = pcall(fn, s)
  s:close()
  if not ok then error(e, 0) end
end

local function on_ps(v) return v.device:find("/job:ps/", 1, true) ~= nil end

describe("under a strategy", function()
  it("layers keep the scope they were constructed in", function()
    strategy(nil, function(s)
      local inside, outside = s:scope(function() return L.Dense { units = 2 } end), L.Dense { units = 2 }
      inside(tm.ones { 1, 3 })
      s:scope(function() outside(tm.ones { 1, 3 }) end)
      assert.is_true(on_ps(inside.kernel))
      assert.equal("/job:chief/task:0", outside.kernel.device)
    end)
  end)

  it("layers built during a trace keep it too", function()
    strategy(nil, function(s)
      local l = s:scope(function() return L.Dense { units = 2 } end)
      local f = tm.func(function(x) return l(x) end)
      assert.same({ 1, 2 }, f(tm.ones { 1, 3 }).shape)
      assert.is_true(on_ps(l.kernel))
      assert.equal(1, f.trace_count)
    end)
  end)

  it("a metric sits on one ps, in one piece", function()
    strategy(2, function(s)
      local auc, mean = s:scope(function() return tm.metrics.AUC(), tm.metrics.Mean() end)
      for _, m in ipairs { auc, mean } do
        assert.equal(2, #m.variables)
        for _, v in ipairs(m.variables) do
          assert.equal(1, #v.variables)
          assert.is_true(on_ps(v))
          assert.equal(m.variables[1].device, v.device)
        end
      end
      mean:update_state(tm.tensor { 1, 3 })
      assert.equal(2, mean:result():item())
      mean:reset_states()
      assert.equal(0, mean:result():item())
    end)
  end)

  it("iterations and learning rate live on a ps", function()
    strategy(nil, function(s)
      local opt = s:scope(function() return tm.optimizers.Adam { learning_rate = 0.5 } end)
      assert.is_true(on_ps(opt.iterations))
      for _, v in ipairs(opt.variables) do assert.is_true(on_ps(v)) end
      opt.learning_rate = 0.25
      assert.equal(0.25, opt.learning_rate)
    end)
  end)

  --- Weights after some steps of a model with a table and a head.
  local function train(s, options)
    tm.random.set_seed(3)
    local emb, head, opt
    local function build()
      emb = L.Embedding { input_dim = 7, output_dim = 3, embeddings_regularizer = "l2",
        embeddings_constraint = "max_norm" }
      head = L.Dense { units = 1, kernel_initializer = tm.initializers.Orthogonal() }
      opt = tm.optimizers.RMSprop(options)
    end
    if s then s:scope(build) else build() end
    local ids = tm.tensor({ { 0, 3 }, { 3, 6 }, { 5, 5 } }, "int64")
    local step = tm.func(function(x)
      local tape = tm.GradientTape()
      local loss = tm.reduce_mean(tm.square(head(tm.reduce_sum(emb(x), 2)) - 1))
      local vars = { emb.weights[1], head.weights[1], head.weights[2] }
      opt:apply_gradients(tape:gradient(loss, vars), vars)
      return loss
    end)
    local loss
    for _ = 1, 5 do loss = step(ids):item() end
    return { emb.embeddings:read():totable(), head.kernel:read():totable(), { loss } }, emb.embeddings
  end

  for name, options in pairs {
    ["plain"] = { learning_rate = 0.05 },
    ["clipnorm and weight decay"] = { learning_rate = 0.05, clipnorm = 0.1, weight_decay = 0.1 },
    ["global_clipnorm"] = { learning_rate = 0.05, global_clipnorm = 0.2 },
  } do
    it(("numbers are the same with 1 or 4 shards and without a strategy (%s)"):format(name), function()
      local here = train(nil, options)
      for _, shards in ipairs { 1, 4 } do
        strategy(shards, function(s)
          local there, v = train(s, options)
          assert.equal(shards, #v.variables)
          close.check(there, here, 0, 0)
        end)
      end
    end)
  end

  it("weights that no gradient reached stay as they were", function()
    strategy(2, function(s)
      local l = s:scope(function() return L.Embedding { input_dim = 6, output_dim = 1 } end)
      l { 0 }
      local before = l.embeddings:read():totable()
      local opt = s:scope(function() return tm.optimizers.Adam() end)
      local tape = tm.GradientTape()
      local loss = tm.reduce_sum(l { 4 })
      opt:apply_gradients(tape:gradient(loss, l.weights), l.weights)
      local after = l.embeddings:read():totable()
      for i = 1, 6 do assert.equal(i ~= 5, before[i][1] == after[i][1]) end
    end)
  end)
end)
