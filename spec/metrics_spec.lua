-- Metrics against tf-keras's numbers (spec/fixtures/keras_metrics.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_metrics.lua"

local unpack = rawget(table, "unpack") or rawget(_G, "unpack")

local function value(t)
  if t.rank == 0 then return t:item() end
  return t:totable()
end

local function args_of(c, batch)
  local list = {}
  for i, x in ipairs(batch.args) do
    local ids = c.metric == "Accuracy" or i == 1 and (c.metric:match "^Sparse" or c.metric == "TopK"
      or c.metric == "ConfusionMatrix")
    list[i] = tm.tensor(x, ids and "int64" or "float32")
  end
  list[#list + 1] = batch.weights and tm.tensor(batch.weights) or nil
  return unpack(list)
end

describe("metrics", function()
  for n, c in ipairs(keras.cases) do
    it(("%s agrees with Keras (case %d)"):format(c.metric, n), function()
      local m = tm.metrics[c.metric](c.options)
      for k, batch in ipairs(c.batches) do
        m:update_state(args_of(c, batch))
        close.check(value(m:result()), c.results[k], 1e-5, 2e-6)
      end
    end)
  end

  it("is finite and zero before there is anything to count", function()
    local made = {}
    for name, class in pairs(tm.metrics) do
      local plain = type(class) ~= "table" or name == "Metric" or name == "MeanOf"
      if not plain then made[name] = class(name == "ConfusionMatrix" and { num_classes = 2 } or nil) end
    end
    assert.is_table(made.R2Score)
    for name, m in pairs(made) do
      local list = m:result()
      list = list.rank == 0 and { list:item() } or tm.reshape(list, { -1 }):totable()
      for _, x in ipairs(list) do assert.equal(0, x, name) end
    end
  end)

  it("is finite where all weights are zero, or all targets alike", function()
    local y, p, w = tm.tensor { { 1, 0 }, { 1, 0 } }, tm.tensor { { 0.5, 0.25 }, { 1, 0 } }, tm.zeros { 2 }
    for _, name in ipairs { "MeanSquaredError", "AUC", "Precision", "Recall", "F1Score", "R2Score",
      "CosineSimilarity" } do
      local m = tm.metrics[name](name == "F1Score" and { average = "macro" } or nil)
      m:update_state(y, p, w)
      assert.equal(0, m:result():item(), name)
      m:update_state(y, p)
      local x = m:result():item()
      assert.is_true(x == x and math.abs(x) < 10, name)
    end
    local met = tm.metrics.R2Score()
    met:update_state(y, y)
    assert.equal(1, met:result():item())
  end)

  it("counts exactly beyond what a float32 holds", function()
    local many = 2 ^ 24
    local sum, precision = tm.metrics.Sum(), tm.metrics.Precision()
    local confusion = tm.metrics.ConfusionMatrix { num_classes = 2 }
    for _, m in ipairs { sum, precision, confusion } do
      for _, w in ipairs { many, 1, 1, 1 } do
        if m == sum then m:update_state(w) else m:update_state(tm.tensor { 1 }, tm.tensor { 1 }, tm.tensor { w }) end
      end
    end
    assert.equal(many + 3, sum:result():item())
    assert.equal(many + 3, precision.true_positives:read():select(1, 1):item())
    assert.equal(many + 3, confusion:result():select(1, 2):select(1, 2):item())
  end)

  it("all can be updated and read in a traced function", function()
    local y, p = tm.tensor { { 1, 0 }, { 0, 1 } }, tm.tensor { { 0.75, 0.25 }, { 0.5, 0.5 } }
    for name, class in pairs(tm.metrics) do
      if type(class) == "table" and name ~= "Metric" and name ~= "MeanOf" then
        local o = name == "ConfusionMatrix" and { num_classes = 2 } or nil
        local a, b = class(o), class(o)
        local of, from = y, p
        if name:match "^Sparse" or name == "ConfusionMatrix" then of = tm.tensor({ 0, 1 }, "int64") end
        local alone = name == "Mean" or name == "Sum"
        if alone then from = nil end
        a:update_state(of, from)
        local step = tm.func(function(t, q) b:update_state(t, q) end)
        step(of, from)
        close.check(value(tm.func(function() return b:result() end)()), value(a:result()), 1e-6, 0)
      end
    end
  end)

  it("a function, a loss and a short name are metrics", function()
    local far = tm.metrics.MeanOf(function(t, p) return tm.abs(t - p) end, { name = "far" })
    far:update_state(tm.tensor { 1, 2 }, tm.tensor { 2, 4 }, tm.tensor { 1, 3 })
    assert.equal(1.75, far:result():item())
    assert.equal("far", far.name)
    for name, class in pairs { mse = "MeanSquaredError", acc = "Accuracy", auc = "AUC", f1_score = "F1Score",
      sparse_top_k_categorical_accuracy = "SparseTopKCategoricalAccuracy", log_loss = "LogLoss" } do
      local m = tm.metrics.get(name)
      assert.equal(class, m.class_name)
      assert.equal(name, m.name)
    end
    local loss = tm.metrics.get(tm.losses.MeanSquaredError())
    loss:update_state(tm.tensor { { 1 }, { 3 } }, tm.tensor { { 1 }, { 1 } })
    assert.equal(2, loss:result():item())
    assert.equal("mean_squared_error", loss.name)
    assert.equal(far, tm.metrics.get(far))
    local ok, e = pcall(tm.metrics.get, "acuracy")
    assert.is_false(ok)
    assert.truthy(e.message:find('"accuracy"', 1, true), e.message)
  end)

  it("has Keras's names", function()
    for class, name in pairs { F1Score = "f1_score", R2Score = "r2_score", FBetaScore = "fbeta_score", AUC = "auc",
      SparseTopK = "sparse_top_k_categorical_accuracy", KLDivergence = "kullback_leibler_divergence",
      RootMeanSquaredError = "root_mean_squared_error", LogCoshError = "logcosh" } do
      assert.matches("^" .. name .. "_?%d*$", tm.metrics[class]().name)
    end
  end)

  it("a copy has its name and options, and state of its own", function()
    local a = tm.metrics.TopK { k = 1, name = "best" }
    a:update_state(tm.tensor({ 0 }, "int64"), tm.tensor { { 1, 2 } })
    local b = a:copy()
    assert.equal("best", b.name)
    assert.equal(1, b.k)
    b:update_state(tm.tensor({ 1 }, "int64"), tm.tensor { { 1, 2 } })
    assert.equal(1, b:result():item())
    assert.equal(0, a:result():item())
  end)

  it("count the same on a cluster as here, also those that make their variables late", function()
    local N, CLASSES = 96, 3
    local y, p = {}, {}
    for i = 1, N do
      y[i], p[i] = {}, {}
      for k = 1, CLASSES do
        y[i][k] = (i + k) % CLASSES == 0 and 1 or 0
        p[i][k] = (i * k * 7 % 11) / 11
      end
    end
    local function metrics_of()
      return { tm.metrics.F1Score { average = "macro" }, tm.metrics.AUC { multi_label = true }, tm.metrics.R2Score(),
        tm.metrics.Recall { top_k = 2 }, tm.metrics.CategoricalAccuracy(), tm.metrics.CosineSimilarity() }
    end
    local here = metrics_of()
    for _, m in ipairs(here) do m:update_state(tm.tensor(y), tm.tensor(p)) end
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 2 })
    local there, coordinator = strategy:scope(metrics_of), tm.distribute.ClusterCoordinator(strategy)
    local step = tm.func(function(t, q)
      for _, m in ipairs(there) do m:update_state(t, q) end
    end)
    for pass = 1, 2 do
      for i = 1, N, 12 do
        local t, q = {}, {}
        for k = 0, 11 do t[k + 1], q[k + 1] = y[i + k], p[i + k] end
        coordinator:schedule(step, { tm.tensor(t), tm.tensor(q) })
      end
      coordinator:join()
      for i, m in ipairs(there) do
        local got, want = m:result():item(), here[i]:result():item()
        if m.class_name == "AUC" or m.class_name == "Recall" or m.class_name:match "Accuracy" then
          assert.equal(want, got, m.class_name .. pass)
        end
        close.check(got, want, 1e-6, 0)
        m:reset_states()
        assert.equal(0, m:result():item(), m.class_name)
      end
    end
    coordinator:close()
  end)

  it("that make their variables late come back from a checkpoint", function()
    local y, p = tm.tensor { { 1, 0 }, { 0, 1 } }, tm.tensor { { 0.75, 0.25 }, { 0.6, 0.4 } }
    local a = tm.metrics.F1Score { average = "macro" }
    a:update_state(y, p)
    local path = os.tmpname()
    os.remove(path)
    tm.train.Checkpoint { metric = a }:write(path)
    local b = tm.metrics.F1Score { average = "macro" }
    tm.train.Checkpoint { metric = b }:read(path)
    b:update_state(y, p)
    os.execute("rm -rf " .. path)
    assert.equal(a:result():item(), b:result():item())
    assert.equal(2, b.true_positives:read():select(1, 1):item())
  end)

  it("names the class id that is too large", function()
    local m = tm.metrics.ConfusionMatrix { num_classes = 2 }
    local ok, e = pcall(m.update_state, m, tm.tensor({ 2 }, "int64"), tm.tensor({ 0 }, "int64"))
    assert.is_false(ok)
    assert.truthy(e.message:find("0 .. 1; set num_classes", 1, true), e.message)
  end)

  it("reset_states goes back to the start", function()
    local m = tm.metrics.Mean()
    m:update_state(tm.tensor { 1, 3 })
    assert.equal(2, m:result():item())
    m:reset_states()
    assert.equal(0, m:result():item())
    m:update_state(5)
    assert.equal(5, m:result():item())
  end)

  it("update_state works in a traced function", function()
    local m = tm.metrics.AUC()
    local f = tm.func(function(y, p) m:update_state(y, p) end)
    local y, p = tm.tensor { { 0 }, { 1 }, { 1 } }, tm.tensor { { 0.2 }, { 0.9 }, { 0.1 } }
    f(y, p)
    local other = tm.metrics.AUC()
    other:update_state(y, p)
    close.check(m:result():item(), other:result():item())
  end)

  it("a metric made during a trace keeps its state", function()
    local m
    local f = tm.func(function(x)
      m = m or tm.metrics.Mean()
      m:update_state(x)
    end)
    f(tm.tensor { 1, 2 })
    f(tm.tensor { 3, 6 })
    assert.equal(3, m:result():item())
  end)

  it("a metric of one's own has weights, update_state and result", function()
    local Count = tm.metrics.Metric:extend "Count"
    function Count:init() self.n = self:add_weight { name = "n" } end
    function Count:update_state(x) self.n:assign_add(tm.cast(tm.size_of(x), "float32")) end
    function Count:result() return self.n:read() end
    local m = Count { name = "mine" }
    m:update_state(tm.zeros { 2, 3 })
    assert.equal(6, m(tm.zeros { 0 }):item())
    assert.equal("mine", m.name)
    assert.equal(1, #m.variables)
  end)

  it("AUC refuses what is no probability", function()
    local ok, e = pcall(function() tm.metrics.AUC():update_state(tm.tensor { 1 }, tm.tensor { 1.5 }) end)
    assert.is_false(ok)
    assert.truthy(tostring(e):find("from_logits", 1, true))
  end)

  it("an unknown option is refused with the nearest name", function()
    local ok, e = pcall(tm.metrics.AUC, { num_threshold = 10 })
    assert.is_false(ok)
    assert.truthy(e.message:find("num_thresholds", 1, true))
  end)
end)

describe("a prediction that is no number", function()
  local nan = 0 / 0
  local y, pred = tm.tensor { { 1, 0 }, { 0, 1 } }, tm.tensor { { nan, 0.5 }, { 0.2, nan } }

  it("is refused by no metric", function()
    for name, class in pairs(tm.metrics) do
      local ok, m = pcall(class, name == "ConfusionMatrix" and { num_classes = 2 } or {})
      if ok and type(m) == "table" and m.update_state and name ~= "Metric" then
        local ids = name == "ConfusionMatrix" or name == "TopK" or name:match "^Sparse"
        local real = ids and tm.tensor({ 1, 0 }, "int64") or y
        tm.func(function() m:update_state(real, pred) end)()
        m:result()
      end
    end
  end)

  it("makes every AUC no number, until it is reset", function()
    for _, o in ipairs { {}, { curve = "PR" }, { curve = "PR", summation_method = "majoring" }, { multi_label = true },
      { summation_method = "minoring" }, { thresholds = { 0.3, 0.6 } }, { from_logits = true } } do
      local m = tm.metrics.AUC(o)
      m:update_state(y, pred)
      local x = m:result():item()
      assert.is_true(x ~= x)
      m:reset_states()
      m:update_state(y, y)
      x = m:result():item()
      assert.is_true(x == x)
    end
  end)
end)

describe("a metric that makes its variables late", function()
  it("makes them once, also where the first attempt was ended", function()
    local m = tm.metrics.R2Score()
    local add, n = m.add_weight, 0
    rawset(m, "add_weight", function(...)
      n = n + 1
      if n == 3 then error("not now", 0) end
      return add(...)
    end)
    local x = tm.tensor { { 1 }, { 2 }, { 4 } }
    assert.is_false(pcall(m.update_state, m, x, x))
    m:update_state(x, x)
    m:update_state(x, x)
    assert.equal(5, #m.variables)
    assert.equal(1, m:result():item())
  end)
end)
