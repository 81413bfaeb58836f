-- What docs/from-tensorflow.md writes beside the lines of TensorFlow's tutorial "Parameter
-- server training", run in the tutorial's order.

local process = require "spec.tools.process"
local tm = require "tidemill"
local D, unpack = tm.distribute, table.unpack or unpack

describe("the tutorial's lines", function()
  local strategy, coordinator

  after_each(function()
    if strategy then strategy:close() end
    strategy = nil
    process.cleanup()
  end)

  local function open(shards)
    local p = shards and D.partitioners.FixedShardsPartitioner { num_shards = shards }
      or D.partitioners.MinSizePartitioner { min_shard_bytes = 256 * 1024, max_shards = 2 }
    strategy = D.ParameterServerStrategy(D.resolver { workers = 3, ps = 2 }, { variable_partitioner = p })
    coordinator = D.ClusterCoordinator(strategy)
  end

  it("on Model.fit run", function()
    open()
    local dir = process.dir()
    local x, y = tm.random.uniform { 10, 10 }, tm.random.uniform { 10 }
    local dataset = tm.data.from_tensor_slices { x, y }:shuffle(10):rep():batch(64):prefetch(2)
    local model = strategy:scope(function()
      local m = tm.Sequential { tm.layers.Dense { units = 10 } }
      m:compile { optimizer = "sgd", loss = "mse", steps_per_execution = 10 }
      return m
    end)
    local callbacks = {
      tm.callbacks.TensorBoard { log_dir = dir .. "/log" },
      tm.callbacks.ModelCheckpoint { filepath = dir .. "/ckpt" },
      tm.callbacks.BackupAndRestore { backup_dir = dir .. "/backup" },
    }
    local history = model:fit(dataset, { epochs = 5, steps_per_epoch = 20, callbacks = callbacks, verbose = 0 })
    assert.equal(5, #history.loss)
    assert.is_true(history.loss[5] < history.loss[1])
    assert.equal(100, model.optimizer.iterations:read():item())
    assert.equal(10, tm.models.load(dir .. "/ckpt"):predict(x, { verbose = 0 }).shape[2])
    local creator = tm.data.DatasetCreator(function() return dataset end)
    assert.equal(1, #model:fit(creator, { steps_per_epoch = 5, verbose = 0 }).loss)
  end)

  local feature_vocab = { "avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman" }

  local function examples(n)
    local features, labels = {}, {}
    for i = 1, n do
      local deck, hand = { unpack(feature_vocab) }, {}
      for k = 1, 3 do hand[k] = table.remove(deck, math.random(#deck)) end
      features[i], labels[i] = hand, { (table.concat(hand, " "):find "avenger") and "yes" or "no" }
    end
    return { features = features, label = labels }
  end

  --- Layers, model, step: the tutorial's second half.
  local function build()
    local t = {}
    strategy:scope(function()
      t.features = tm.layers.StringLookup { vocabulary = feature_vocab }
      t.labels = tm.layers.StringLookup { vocabulary = { "yes", "no" }, num_oov_indices = 0 }
      local raw = tm.Input { shape = { 3 }, dtype = "string", name = "feature" }
      t.preprocess = tm.Model { inputs = { features = raw }, outputs = t.features(raw) }
      local raw_label = tm.Input { shape = { 1 }, dtype = "string", name = "label" }
      t.preprocess_label = tm.Model { inputs = { label = raw_label }, outputs = t.labels(raw_label) }
      local input = tm.Input { shape = { 3 }, dtype = "int64", name = "model_input" }
      t.emb = tm.layers.Embedding { input_dim = #t.features:get_vocabulary(), output_dim = 16384 }
      local dense = tm.layers.Dense { units = 1, activation = "sigmoid", kernel_regularizer = tm.regularizers.L2(1e-4) }
      local out = dense(tm.reduce_mean(t.emb(input), 2))
      t.model = tm.Model { inputs = { features = input }, outputs = out }
      t.optimizer = tm.optimizers.RMSprop { learning_rate = 0.1 }
      t.accuracy, t.eval_accuracy = tm.metrics.Accuracy(), tm.metrics.Accuracy()
    end)
    return t
  end

  local function raw_dataset(t, n)
    return tm.data.from_tensor_slices(examples(n)):map(function(x)
      return { { features = t.preprocess { features = x.features } }, t.preprocess_label { label = x.label } }
    end)
  end

  local function step_of(t)
    return tm.func(function(iterator)
      local function replica_fn(batch_data, labels)
        local tape = tm.GradientTape()
        local pred = t.model(batch_data, { training = true })
        local per_example_loss = tm.losses.BinaryCrossentropy { reduction = "none" }(labels, pred)
        local loss = tm.nn.compute_average_loss(per_example_loss)
        loss = loss + tm.nn.scale_regularization_loss(tm.add_n(t.model.losses))
        local gradients = tape:gradient(loss, t.model.trainable_variables)
        t.optimizer:apply_gradients(gradients, t.model.trainable_variables)
        t.accuracy:update_state(labels, tm.cast(tm.greater(pred, 0.5), "int64"))
        return loss
      end
      local batch_data, labels = unpack(iterator:next())
      return strategy:reduce("sum", strategy:run(replica_fn, { batch_data, labels }))
    end)
  end

  it("of a loop of one's own run, and of inline evaluation", function()
    tm.random.set_seed(3)
    math.randomseed(3)
    open(2)
    local t = build()
    assert(#t.emb.weights[1].variables == 2)
    assert.same({ 4, 16384 }, t.emb.weights[1].variables[1].shape)
    assert.equal("/job:ps/task:0", t.emb.weights[1].variables[1].device)
    assert.equal("/job:ps/task:1", t.emb.weights[1].variables[2].device)
    local function dataset_fn() return raw_dataset(t, 200):shuffle(200):batch(32):rep() end
    local it = coordinator:create_per_worker_dataset(function()
      return strategy:distribute_datasets_from_function(dataset_fn)
    end):iterator()
    local step_fn = step_of(t)
    for _ = 1, 8 do
      t.accuracy:reset_states()
      for _ = 1, 5 do coordinator:schedule(step_fn, { it }) end
      coordinator:join()
    end
    assert.is_true(t.accuracy:result():item() > 0.9)
    local loss = coordinator:schedule(step_fn, { it })
    local final = loss:fetch() -- most of it is the penalty of 16,384 weights
    assert.is_true(final > 0 and final < 10)
    for _ = 1, 3 do coordinator:schedule(step_fn, { it }) end
    while not coordinator:done() do tm.sleep(0.001) end

    local eval_dataset = raw_dataset(t, 16):batch(8)
    for batch in eval_dataset:each() do
      local pred = t.model(batch[1])
      t.eval_accuracy:update_state(batch[2], tm.cast(tm.greater(pred, 0.5), "int64"))
    end
    assert.is_true(t.eval_accuracy:result():item() > 0.9)
    t.eval_accuracy:reset_states()
    local eval_step = tm.func(function(iterator)
      local batch_data, labels = unpack(iterator:next())
      strategy:run(function(x, y)
        t.eval_accuracy:update_state(y, tm.cast(tm.greater(t.model(x), 0.5), "int64"))
      end, { batch_data, labels })
    end)
    local eval_it = coordinator:create_per_worker_dataset(function()
      return raw_dataset(t, 16):shuffle(16):rep():batch(8)
    end):iterator()
    for _ = 1, 2 do coordinator:schedule(eval_step, { eval_it }) end
    coordinator:join()
    assert.is_true(t.eval_accuracy:result():item() > 0.9)
  end)

  it("of the sidecar and of restarts run", function()
    open()
    local dir, epochs = process.dir(), 3
    local function build_model()
      local m = tm.Sequential { tm.layers.Dense { units = 1, input_shape = { 2 } } }
      m:compile { optimizer = "sgd", loss = "mse", metrics = { "mae" } }
      return m
    end
    local model = strategy:scope(build_model)
    local data = tm.data.from_tensor_slices { tm.ones { 8, 2 }, tm.ones { 8, 1 } }:batch(4)
    local manager = tm.train.CheckpointManager(tm.train.Checkpoint { model = model, optimizer = model.optimizer }, dir,
      { max_to_keep = 3 })
    for _ = 1, epochs do
      model:fit(data, { verbose = 0 })
      assert(manager:save())
    end

    local eval_model, seen = build_model(), 0
    local checkpoint = tm.train.Checkpoint { model = eval_model }
    for path in tm.train.checkpoints_iterator(dir, { timeout = 5 }) do
      local status = checkpoint:restore(path)
      if status then
        status:expect_partial()
        assert.equal(model:evaluate(data, { verbose = 0 }).mae, eval_model:evaluate(data, { verbose = 0 }).mae)
        seen = seen + 1
      end
      if path:match "%-(%d+)$" == tostring(epochs) then break end
    end
    assert.equal(1, seen)
    D.SidecarEvaluator { model = build_model(), data = data, checkpoint_dir = dir, max_evaluations = epochs }:start()

    local again = strategy:scope(build_model)
    local restored = tm.train.CheckpointManager(tm.train.Checkpoint { model = again, optimizer = again.optimizer }, dir,
      { max_to_keep = 3 })
    again:build { -1, 2 }
    assert(restored.checkpoint:restore(restored.latest_checkpoint)):assert_existing_objects_matched()
    assert.equal(2 * epochs, again.optimizer.iterations:read():item())
  end)
end)
