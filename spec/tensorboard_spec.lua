-- tm.callbacks.TensorBoard: what is in the files after a fit.  `make interop` has
-- TensorBoard itself read them.
local tm = require "tidemill"
local E = dofile "spec/tools/events.lua"
local P = dofile "spec/tools/process.lua"

local function data(rows)
  local x = {}
  for i = 1, rows or 40 do x[i] = { i % 5 / 5, i % 7 / 7, i % 3 / 3 } end
  x = tm.tensor(x)
  return x, tm.cast(tm.greater(tm.reduce_sum(x, -1, { keepdims = true }), 1.2), "float32")
end

local function model(metrics)
  tm.random.set_seed(3)
  local m = tm.Sequential {
    tm.layers.Dense { units = 4, input_shape = { 3 }, name = "hidden", activation = "relu" },
    tm.layers.Dense { units = 1, name = "out", activation = "sigmoid" },
  }
  m:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.25 }, loss = "binary_crossentropy",
    metrics = metrics or { "accuracy" } }
  return m
end

local function fit(m, board, more)
  local x, y = data()
  local o = { y = y, epochs = 3, batch_size = 10, shuffle = false, verbose = 0, callbacks = { board } }
  for k, v in pairs(more or {}) do o[k] = v end
  return m:fit(x, o)
end

local function steps(list)
  local out = {}
  for i, e in ipairs(list) do out[i] = e.step end
  return out
end

local function near(a, b)
  assert.is_true(math.abs(a - b) < 1e-6 * math.max(1, math.abs(b)), ("%g, not %g"):format(a, b))
end

describe("tm.callbacks.TensorBoard", function()
  local dir
  before_each(function() dir = P.dir() end)
  after_each(function() P.cleanup() end)
  local function board(o)
    o = o or {}
    o.log_dir = dir
    return tm.callbacks.TensorBoard(o)
  end

  it("writes the numbers of epochs below train and validation, with Keras's tags", function()
    local x, y = data()
    local h = fit(model(), board(), { validation_data = { x, y } })
    local train, validation = E.of(dir .. "/train"), E.of(dir .. "/validation")
    for i, e in ipairs(E.tag(train, "epoch_loss")) do
      assert.equal(i, e.step)
      near(e.value, h.loss[i])
    end
    assert.same({ 1, 2, 3 }, steps(E.tag(train, "epoch_accuracy")))
    assert.equal(0.25, E.tag(train, "epoch_learning_rate")[2].value)
    assert.equal(0, #E.tag(train, "epoch_val_loss"))
    for i, e in ipairs(E.tag(validation, "epoch_loss")) do near(e.value, h.val_loss[i]) end
    assert.equal(3, #E.tag(validation, "epoch_accuracy"))
    assert.same({ 4, 8, 12 }, steps(E.tag(validation, "evaluation_loss_vs_iterations")))
    assert.equal(0, #E.tag(train, "batch_loss"))
  end)

  it("writes every batch, or every n-th, where that is asked", function()
    fit(model(), board { update_freq = "batch", write_steps_per_second = true })
    local train = E.of(dir .. "/train")
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, steps(E.tag(train, "batch_loss")))
    assert.is_true(E.tag(train, "batch_steps_per_second")[5].value > 0)
    assert.is_true(E.tag(train, "epoch_steps_per_second")[3].value > 0)
    dir = dir .. "/third"
    fit(model(), board { update_freq = 3 })
    assert.same({ 3, 6, 9, 12 }, steps(E.tag(E.of(dir .. "/train"), "batch_loss")))
  end)

  it("looks into the logs of a batch only where they are written", function()
    local b = board { update_freq = 4 }
    b.model = { optimizer = false }
    local looks = 0
    local function logs()
      return setmetatable({}, { __index = function(t, key)
        looks = looks + 1
        setmetatable(t, nil)
        t.loss = 1
        return t[key]
      end })
    end
    b:on_train_begin()
    b:on_epoch_begin(1)
    b._graph = false
    for batch = 1, 9 do
      b:on_train_batch_begin(batch)
      b:on_train_batch_end(batch, logs())
    end
    b:_release()
    assert.equal(2, looks)
    assert.is_nil(rawget(board(), "on_train_batch_end"))
  end)

  it("writes histograms and pictures of weights every so many epochs", function()
    fit(model(), board { histogram_freq = 2, write_images = true })
    local train = E.of(dir .. "/train")
    for _, name in ipairs { "hidden/kernel", "hidden/bias", "out/kernel", "out/bias" } do
      local h = E.tag(train, name .. "/histogram")
      assert.same({ 2 }, steps(h))
      assert.equal("histogram", h[1].kind)
    end
    assert.equal("images", E.tag(train, "hidden/kernel/image")[1].kind)
  end)

  it("draws the graph of the step by layers, loss, gradients and optimizer", function()
    fit(model(), board())
    local graphs = {}
    for _, e in ipairs(E.of(dir .. "/train")) do
      if e.kind == "graph" then graphs[#graphs + 1] = e.graph end
    end
    assert.equal(1, #graphs)
    local nodes, known, prefixes = E.nodes(graphs[1]), 0, {}
    for name, inputs in pairs(nodes) do
      prefixes[name:match "^[^/]+"] = true
      known = known + 1
      for _, input in ipairs(inputs) do assert.is_table(nodes[input:match "^[^:]+"], input) end
    end
    assert.is_true(known > 20)
    assert.is_table(prefixes.gradients and nodes, "gradients")
    local found = {}
    for name in pairs(nodes) do
      if name:find("hidden/matmul", 1, true) then found.layer = true end
      if name:find("hidden/kernel/read_variable", 1, true) then found.kernel = true end
      if name:find("binary_crossentropy", 1, true) then found.loss = true end
      if name:find "^sgd" then found.optimizer = true end
    end
    assert.same({ layer = true, kernel = true, loss = true, optimizer = true }, found)
    dir = dir .. "/none"
    fit(model(), board { write_graph = false })
    for _, e in ipairs(E.of(dir .. "/train")) do assert.not_equal("graph", e.kind) end
  end)

  it("changes nothing of the training", function()
    local a = fit(model(), board { histogram_freq = 1, update_freq = 1, profile_batch = 2, hparams = { lr = 1 } })
    local b = fit(model(), {})
    assert.same(b.loss, a.loss)
    assert.same(b.accuracy, a.accuracy)
  end)

  it("writes a timeline of the ops of some batches that Chrome reads", function()
    fit(model(), board { profile_batch = { 3, 6 } })
    local p = io.popen(("gzip -dc %s/plugins/profile/*/*.trace.json.gz"):format(dir))
    local text = p:read "*a"
    p:close()
    assert.is_truthy(text:find('"traceEvents":[', 1, true))
    for _, name in ipairs { "step 3", "step 4", "matmul", "nn.bias_add_grad", "variables" } do
      assert.is_truthy(text:find(('"name":"%s"'):format(name), 1, true), name)
    end
    local _, n = text:gsub('"name":"step ', "")
    assert.equal(4, n)
  end)

  it("writes hyperparameters, and how the run ended", function()
    fit(model(), board { hparams = { learning_rate = 0.25, units = 4, activation = "relu" } })
    local list = E.of(dir)
    local start, finish = E.tag(list, "_hparams_/session_start_info"), E.tag(list, "_hparams_/session_end_info")
    assert.equal("hparams", start[1].kind)
    local info = E.field(start[1].content, 3)
    local names = {}
    for _, f in ipairs(E.fields(info)) do
      if f[1] == 1 then names[#names + 1] = E.field(f[2], 1) end
    end
    assert.same({ "activation", "learning_rate", "units" }, names)
    assert.equal(1, E.field(E.field(finish[1].content, 4), 1))
    dir = dir .. "/failed"
    local ok = pcall(fit, model(), board { hparams = { units = 4 } }, { callbacks = { board { hparams = { units = 4 } },
      { on_epoch_end = function() error "enough" end } } })
    assert.is_false(ok)
    assert.equal(2, E.field(E.field(E.tag(E.of(dir), "_hparams_/session_end_info")[1].content, 4), 1))
  end)

  it("keeps what was logged before an error", function()
    local ok = pcall(fit, model(), nil, { callbacks = { board { update_freq = 1 },
      { on_train_batch_end = function(_, batch) if batch == 3 then error "enough" end end } } })
    assert.is_false(ok)
    assert.same({ 1, 2, 3 }, steps(E.tag(E.of(dir .. "/train"), "batch_loss")))
  end)

  it("shows metrics of several numbers", function()
    local matrix = tm.metrics.ConfusionMatrix { num_classes = 2, name = "matrix" }
    local precision = tm.metrics.Precision { thresholds = { 0.3, 0.6 }, name = "precision" }
    local m = model { precision }
    fit(m, board(), { epochs = 1 })
    assert.equal(1, #E.tag(E.of(dir .. "/train"), "epoch_precision/2"))
    local b = board()
    b.model = {}
    matrix:update_state(tm.tensor({ 0, 1, 1 }, "int64"), tm.tensor({ 0, 1, 0 }, "int64"))
    b:on_test_end { matrix = matrix:result() }
    b:_release()
    assert.equal("images", E.tag(E.of(dir .. "/validation"), "evaluation_matrix_vs_iterations")[1].kind)
  end)

  it("writes tables of embeddings for the projector", function()
    local m = tm.Sequential { tm.layers.Embedding { input_dim = 6, output_dim = 2, input_length = 1, name = "word" },
      tm.layers.Flatten(), tm.layers.Dense { units = 1 } }
    m:compile { optimizer = "sgd", loss = "mse" }
    m:fit(tm.tensor({ { 1 }, { 2 } }, "int64"), { y = tm.tensor { { 0 }, { 1 } }, verbose = 0,
      callbacks = { board { embeddings_freq = 1, embeddings_metadata = "words.tsv" } } })
    local f = assert(io.open(dir .. "/projector_config.pbtxt"))
    local config = f:read "*a"
    f:close()
    assert.is_truthy(config:find('tensor_path: "train/word.tsv"', 1, true))
    assert.is_truthy(config:find('metadata_path: "words.tsv"', 1, true))
    local rows = 0
    for line in io.lines(dir .. "/train/word.tsv") do
      assert.matches("^%S+\t%S+$", line)
      rows = rows + 1
    end
    assert.equal(6, rows)
  end)

  it("evaluate alone writes to validation", function()
    local m = model()
    local x, y = data()
    local logs = m:evaluate(x, { y = y, verbose = 0, callbacks = { board() } })
    local e = E.tag(E.of(dir .. "/validation"), "evaluation_loss_vs_iterations")
    assert.same({ 0 }, steps(e))
    near(e[1].value, logs.loss)
  end)

  it("names what is wrong", function()
    local function raises(text, o)
      local ok, e = pcall(tm.callbacks.TensorBoard, o)
      assert.is_false(ok)
      assert.equal("invalid_argument", e.code)
      assert.is_truthy(e.message:find(text, 1, true), e.message)
    end
    raises('"log_dir"', { logdir = "x" })
    raises("update_freq", { update_freq = "step" })
    raises("update_freq", { update_freq = 0 })
    raises("profile_batch", { profile_batch = { 5, 3 } })
    raises("histogram_freq", { histogram_freq = -1 })
    raises("log_dir", { log_dir = 5 })
    local ok, e = pcall(fit, model(), board { hparams = { list = {} } })
    assert.is_false(ok)
    assert.is_truthy(tostring(e):find('"list" must be a number', 1, true), tostring(e))
  end)

  it("works on a cluster: numbers, weights, graph, and closures by worker", function()
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 2 })
    local m = strategy:scope(model)
    local x, y = data()
    local ds = tm.data.from_tensor_slices { x, y }:batch(10):rep()
    local h = m:fit(ds, { epochs = 2, steps_per_epoch = 8, verbose = 0, callbacks = {
      board { histogram_freq = 1, update_freq = 4, profile_batch = { 2, 12 }, hparams = { workers = 2 } } } })
    local train = E.of(dir .. "/train")
    for i, e in ipairs(E.tag(train, "epoch_loss")) do near(e.value, h.loss[i]) end
    assert.same({ 4, 8, 12, 16 }, steps(E.tag(train, "batch_loss")))
    assert.same({ 1, 2 }, steps(E.tag(train, "hidden/kernel/histogram")))
    local graph
    for _, e in ipairs(train) do graph = graph or e.graph end
    assert.is_truthy(graph:find("hidden/matmul", 1, true))
    local p = io.popen(("gzip -dc %s/plugins/profile/*/*.trace.json.gz"):format(dir))
    local text = p:read "*a"
    p:close()
    assert.is_truthy(text:find('"name":"/job:worker/task:%d"'))
    local _, n = text:gsub('"name":"closure ', "")
    assert.is_true(n >= 1, n)
    tm.distribute.ClusterCoordinator(strategy):close()
  end)
end)
