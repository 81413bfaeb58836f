-- Whole models on disk: save, load, export; what is hostile or missing.
local core = require "tidemill.core"
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

local unpack = table.unpack or unpack

local expect = dofile "spec/tools/expect.lua"
local raises, fails = expect.raises, expect.fails

local X = tm.tensor { { 1, -2, 3 }, { -4, 5, 6 }, { 0.5, 0.25, -1 }, { 2, 2, 2 } }
local Y = tm.tensor { { 1 }, { 0 }, { 1 }, { 0 } }

local function same(a, b) return tm.allclose(a, b, 0, 0) end

local function model_of()
  local x = tm.Input { shape = { 3 }, name = "x" }
  local h = tm.layers.Dense { units = 4, activation = "tanh", kernel_regularizer = tm.regularizers.L2(1e-3) }(x)
  local y = tm.layers.Dense { units = 1, activation = "sigmoid" }(tm.concat({ h * 2, -tm.nn.relu(h), h:square() }, 2))
  return tm.Model { inputs = x, outputs = y }
end

local function fit(model, steps)
  local h = model:fit(X, { y = Y, batch_size = 4, epochs = steps, shuffle = false, verbose = 0 })
  return h.loss
end

describe("a saved model", function()
  local dir, kept

  setup(function() kept = tm.log.to(nil) end)
  teardown(function() if kept then tm.log.to(kept) end end)
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
  end)
  after_each(function()
    os.execute(("rm -rf '%s' '%s'.tmp-*"):format(dir, dir)) -- also what a killed save left
    assert.same({}, P.cleanup())
  end)

  --- A save of a hand-made description, with the tensors of `model`.
  local function forge(doc, model)
    local w = assert(core.ckpt.create(dir))
    assert(w:document(doc))
    for i, v in ipairs(model and model.weights or {}) do assert(w:put("w" .. i, v:read(), v.shape, 0)) end
    assert(w:commit())
    return dir
  end

  it("computes the same: loose ops, methods, operators, subscripts, shared layers, models in models", function()
    local a, b = tm.Input { shape = { 3 }, name = "left" }, tm.Input { shape = { 3 }, name = "right" }
    local shared = tm.layers.Dense { units = 4, name = "both" }
    local inner = tm.Sequential { tm.Input { shape = { 4 } }, tm.layers.Dense { units = 2 }, tm.layers.Dropout(0.5) }
    local table_ = tm.Variable(tm.random.normal({ 3, 2 }), { name = "t" })
    local p, q = shared(a), shared(b)
    local rows = tm.gather(table_, tm.argmax(a, 2))
    local parts = tm.split(p, 2, 2)
    local out = inner(p * 2 - q / 4) + rows + parts[1] + tm.where(a:narrow(2, 1, 2):greater(0), 1, -1)
    local m = tm.Model { inputs = { left = a, right = b }, outputs = { sum = out, first = p:select(2, 1) ^ 2 } }
    assert.equal(dir, m:save(dir))
    local n = assert(tm.models.load(dir))
    local x = { left = X, right = X + 1 }
    assert.is_true(same(m(x).sum, n(x).sum) and same(m(x).first, n(x).first))
    assert.equal(#m.weights, #n.weights)
    assert.equal("both", n:get_layer("both").name)
    assert.is_true(same(m:predict(x, { verbose = 0 }).sum, n:predict(x, { verbose = 0 }).sum))
  end)

  local made = {
    SGD = function() return tm.optimizers.SGD { learning_rate = 0.1, momentum = 0.9 } end,
    Adam = function() return tm.optimizers.Adam { learning_rate = 0.1, amsgrad = true } end,
    RMSprop = function() return tm.optimizers.RMSprop { learning_rate = 0.01, centered = true, momentum = 0.5 } end,
    Ftrl = function() return tm.optimizers.Ftrl { learning_rate = 0.1 } end,
    ["AdamW and a schedule"] = function()
      return tm.optimizers.AdamW { learning_rate = tm.optimizers.schedules.ExponentialDecay {
        initial_learning_rate = 0.1, decay_steps = 2, decay_rate = 0.5, staircase = true } }
    end,
  }
  for name, optimizer in pairs(made) do
    it("trains on as if nothing had happened with " .. name, function()
      tm.random.set_seed(7)
      local m = model_of()
      m:compile { optimizer = optimizer(), loss = "binary_crossentropy", metrics = { "accuracy", tm.metrics.AUC() } }
      fit(m, 5)
      assert(m:save(dir))
      local n = assert(tm.models.load(dir))
      assert.equal(5, n.optimizer.iterations:read():item())
      assert.same(fit(m, 5), fit(n, 5))
      assert.is_true(same(m(X), n(X)))
      assert.same(m:evaluate(X, { y = Y, verbose = 0 }), n:evaluate(X, { y = Y, verbose = 0 }))
    end)
  end

  it("keeps a learning rate that was changed while training", function()
    local m = model_of()
    m:compile { optimizer = "sgd", loss = "mse" }
    m.optimizer.learning_rate = 0.125
    assert(m:save(dir))
    assert.equal(0.125, assert(tm.models.load(dir)).optimizer.learning_rate)
    assert.is_nil(assert(tm.models.load(dir, { compile = false })).optimizer)
    assert(m:save(dir, { include_optimizer = false }))
    assert.is_nil(assert(tm.models.load(dir)).optimizer)
  end)

  it("moves between any numbers of shards, ps and none, with its optimizer", function()
    local function strategy_of(shards)
      return tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = shards },
        { variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = shards } })
    end
    local three, two = strategy_of(3), strategy_of(2)
    local m = three:scope(function()
      local m = model_of()
      m:compile { optimizer = tm.optimizers.Adam { learning_rate = 0.1 }, loss = "binary_crossentropy" }
      return m
    end)
    fit(m, 3)
    assert(m:save(dir))
    local n = assert(tm.models.load(dir))
    local o = two:scope(function() return assert(tm.models.load(dir)) end)
    assert.equal(2, #o.weights[1].variables)
    assert.is_true(same(m(X), n(X)) and same(m(X), o(X)))
    assert.is_true(same(n.optimizer:get_slot(n.weights[1], "m"), o.optimizer:get_slot(o.weights[1], "m")))
    assert.equal(3, o.optimizer.iterations:read():item())
    assert(o:export(dir .. "-e"))
    local g = three:scope(function() return assert(tm.models.load(dir .. "-e")) end)
    assert.is_true(same(m(X), g(X)))
    assert.equal(3, #g.weights[1].variables)
    os.execute("rm -rf '" .. dir .. "-e'")
    three:close()
    two:close()
  end)

  it("is a Sequential again, also one that was built by its first call", function()
    for _, first in ipairs { tm.Input { shape = { 3 } }, tm.layers.Dense { units = 3, input_shape = { 3 } }, false } do
      local m = tm.Sequential {}
      if first then m:add(first) end
      m:add(tm.layers.Dense { units = 2, activation = "relu", kernel_initializer = "he_normal" })
      m:add(tm.layers.Flatten())
      local y = m(X)
      assert(m:save(dir))
      local n = assert(tm.models.load(dir))
      assert.is_true(tm.is_error(select(2, pcall(error, n)), "x") == false and n.class_name == "Sequential")
      assert.is_true(same(y, n(X)))
      assert.equal(#m.layers, #n.layers)
    end
  end)

  it("knows losses and metrics of symbols", function()
    local x = tm.Input { shape = { 3 } }
    local h = tm.layers.Dense { units = 2 }(x)
    local m = tm.Model { inputs = x, outputs = tm.layers.Dense { units = 1 }(h) }
    m:add_loss(tm.reduce_mean(tm.square(h)))
    m:add_metric(tm.reduce_max(h), "largest")
    m:compile { optimizer = "sgd", loss = "mse" }
    local want = m:evaluate(X, { y = Y, verbose = 0 })
    assert(m:save(dir))
    assert.same(want, assert(tm.models.load(dir)):evaluate(X, { y = Y, verbose = 0 }))
    assert.truthy(want.largest)
  end)

  it("has what preprocessing layers learned", function()
    local words = tm.layers.StringLookup { output_mode = "multi_hot" }
    words:adapt { "b", "a", "b" }
    local scale, bins = tm.layers.Normalization(), tm.layers.Discretization { num_bins = 3 }
    scale:adapt(X)
    bins:adapt(X)
    local w, x = tm.Input { shape = { 2 }, dtype = "string" }, tm.Input { shape = { 3 } }
    local fixed = tm.layers.Discretization { bin_boundaries = { 0, 2.5 } }
    local m = tm.Model { inputs = { w, x }, outputs = { words(w), scale(x), bins(x), fixed(x) } }
    assert(m:save(dir))
    local n = assert(tm.models.load(dir))
    local input = { tm.tensor { { "a", "?" }, { "b", "b" }, { "a", "b" }, { "?", "?" } }, X }
    for i = 1, 4 do assert.is_true(same(tm.cast(m(input)[i], "float32"), tm.cast(n(input)[i], "float32"))) end
  end)

  describe("of classes of one's own", function()
    local Scale = tm.layers.Layer:extend("ScaleOfSpec")
    function Scale:init(given) self.by = given and given.by or 3 end
    function Scale:build(shape) self.factor = self:add_weight { name = "factor", shape = { shape[#shape] } } end
    function Scale:call(x) return x * self.factor * self.by end

    local function with_scale()
      local x = tm.Input { shape = { 3 } }
      return tm.Model { inputs = x, outputs = Scale { by = 5 }(x) }
    end

    it("comes back where they are registered, or given in custom_objects", function()
      local m = with_scale()
      raises("invalid_argument", 'layer "scale_of_spec" (ScaleOfSpec) is of a class that a file cannot hold; '
        .. "tm.models.register(ScaleOfSpec)", m.save, m, dir)
      assert(m:save(dir, { custom_objects = { Mine = Scale } }))
      fails("not_found", 'nobody registered "Mine"', tm.models.load(dir))
      local n = assert(tm.models.load(dir, { custom_objects = { Mine = Scale } }))
      assert.is_true(same(m(X), n(X)))
      assert.equal(5, n.layers[1].by)
      tm.models.register(Scale)
      assert(m:save(dir))
      assert.is_true(same(m(X), assert(tm.models.load(dir))(X)))
    end)

    it("asks for a name for a Lua function", function()
      local double = function(x) return x * 2 end
      local x = tm.Input { shape = { 3 } }
      local m = tm.Model { inputs = x, outputs = tm.layers.Lambda { fn = double, name = "twice" }(x) }
      raises("invalid_argument", 'layer "twice" (Lambda).fn is a function, which a file cannot hold; '
        .. "tm.models.register(fn,", m.save, m, dir)
      tm.models.register(double, "double of spec")
      assert(m:save(dir))
      assert.is_true(same(X * 2, assert(tm.models.load(dir))(X)))
      assert(m:save(dir, { custom_objects = { other = double } }))
      fails("not_found", 'nobody registered "other"', tm.models.load(dir))
    end)

    it("is its graph where a model's class has no name, and predicts", function()
      local Two = tm.Model:extend("TwoOfSpec")
      function Two:init() self.a, self.b = tm.layers.Dense { units = 4 }, tm.layers.Dense { units = 1 } end
      function Two:call(x, training)
        if training then x = x * 0 end
        self:add_metric(tm.reduce_mean(x), "mean")
        local function plus() return self.a(x) end
        local function minus() return self.a(-x) end
        local h = tm.cond(tm.reduce_sum(x):greater(0), plus, minus)
        return { out = self.b(h), hidden = h }
      end
      local m = Two()
      raises("failed_precondition", "has no weights yet", m.save, m, dir)
      m(X)
      assert(m:save(dir))
      local n = assert(tm.models.load(dir))
      assert.is_true(same(m(X).out, n(X).out) and same(m(-X).out, n(-X).out) and same(m(X).hidden, n(X).hidden))
      assert.is_true(same(m:predict(X, { verbose = 0 }).out, n:predict(X, { verbose = 0 }).out))
      raises("invalid_argument", "the model takes float32", n, tm.tensor { { 1, 2 } })
      assert(n:save(dir .. "/again"))
      assert.is_true(same(m(X).out, assert(tm.models.load(dir .. "/again"))(X).out))
      tm.models.register(Two)
      assert(m:save(dir .. "/class"))
      local c = assert(tm.models.load(dir .. "/class"))
      assert.equal("TwoOfSpec", c.class_name)
      assert.is_true(same(m(X).out, c(X).out))
    end)

    it("says which variable nobody holds", function()
      local v = tm.Variable(2)
      local Loose = tm.Model:extend("LooseOfSpec")
      function Loose:call(x) return x * v end
      local m = Loose()
      m(X)
      raises("invalid_argument", "uses a variable that none of its fields or layers holds", m.save, m, dir)
    end)

    it("leaves a loss function without a name out, and says so when it is loaded", function()
      local m = model_of()
      m:compile { optimizer = "adam", loss = function(y, p) return tm.square(y - p) end }
      fit(m, 2)
      assert(m:save(dir))
      local log = dir .. ".log"
      tm.log.to(log)
      local n = assert(tm.models.load(dir))
      tm.log.to(nil)
      local f = assert(io.open(log))
      assert.truthy(f:read("a"):find("compile: loss", 1, true))
      f:close()
      os.remove(log)
      assert.equal(2, n.optimizer.iterations:read():item())
    end)
  end)

  it("of every layer has a configuration that makes the same layer", function()
    local L = tm.layers
    for name, config in pairs {
      Dense = { units = 3, activation = "relu", use_bias = false }, Embedding = { input_dim = 4, output_dim = 2 },
      Flatten = {}, Reshape = { target_shape = { 3, 1 } }, Dropout = { rate = 0.25 },
      Activation = { activation = "elu" },
      Concatenate = { axis = 2 }, Add = {}, Multiply = {}, Average = {}, StringLookup = { vocabulary = { "a", "b" } },
      IntegerLookup = { vocabulary = { 5, 6 } }, Hashing = { num_bins = 7 }, Normalization = { axis = false },
      Discretization = { num_bins = 4 }, CategoryEncoding = { num_tokens = 3 }, Dot = { axes = 2 },
      Conv1D = { filters = 2, kernel_size = 3, padding = "same" }, BatchNormalization = { momentum = 0.5 },
      Conv2D = { filters = 2, kernel_size = { 3, 2 }, strides = 2 }, MaxPooling2D = { pool_size = 3 },
      LayerNormalization = { epsilon = 0.5 }, GlobalAveragePooling2D = {}, ZeroPadding2D = { padding = 2 },
    } do
      local a = L[name](config)
      local got = a:get_config()
      for k, v in pairs(config) do assert.same(v, got[k], name .. "." .. k) end
      assert.equal(a.name, got.name)
      local b = L[name]:from_config(got)
      assert.same(got, b:get_config())
    end
    local o = tm.optimizers.Adam:from_config(tm.optimizers.Adam { learning_rate = 0.5 }:get_config())
    assert.equal(0.5, o.learning_rate)
  end)

  describe("exported", function()
    it("is one safetensors file and a description, read as weights too", function()
      local m, n, o = model_of(), model_of(), model_of()
      assert.equal(dir, m:export(dir))
      local g = assert(tm.models.load(dir))
      assert.is_true(same(m(X), g(X)) and tm.allclose(m(X), g:predict(X, { verbose = 0 }), 1e-6, 1e-6))
      assert.truthy(n:load_weights(dir))
      assert.is_true(o:load_weights(dir .. "/model.safetensors"))
      assert.is_true(same(m(X), n(X)) and same(m(X), o(X)))
      assert(m:export(dir))
    end)

    it("predicts on a cluster", function()
      local m = model_of()
      assert(m:export(dir))
      local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 2 })
      local g = strategy:scope(function() return assert(tm.models.load(dir)) end)
      assert.is_true(tm.allclose(m(X), g:predict(X, { verbose = 0 }), 1e-6, 1e-6))
      strategy:close()
    end)

    it("gives gradients: a graph is a model like others", function()
      local m = model_of()
      assert(m:export(dir))
      local g = assert(tm.models.load(dir))
      g:compile { optimizer = "sgd", loss = "mse" }
      local before = g.weights[1]:read()
      fit(g, 1)
      assert.is_false(same(before, g.weights[1]))
    end)
  end)

  describe("that is damaged or hostile", function()
    local function load_of(doc, model) return tm.models.load(forge(doc, model)) end

    local function doc_of(layers, more)
      local doc = { format = "tidemill model", version = 1, root = 1, layers = layers, variables = {} }
      for k, v in pairs(more or {}) do doc[k] = v end
      return doc
    end

    local input = { kind = "input", name = "x", shape = { -1, 3 }, dtype = "float32" }
    local function sym(node) return { ["$"] = "symbol", node = node, out = 1 } end

    local function graph(nodes, out)
      return { name = "m", class = "models.Model",
        graph = { nodes = nodes, inputs = sym(1), outputs = sym(out or #nodes) } }
    end

    it("is an error at every flipped byte", function()
      local m = model_of()
      m:compile { optimizer = "adam", loss = "mse" }
      fit(m, 1)
      assert(m:save(dir))
      for _, name in ipairs { "model.json", "checkpoint.json", "data-00000.safetensors" } do
        local f = assert(io.open(dir .. "/" .. name, "rb"))
        local text = f:read "a"
        f:close()
        for at = 1, #text, math.max(1, math.floor(#text / 40)) do
          f = assert(io.open(dir .. "/" .. name, "wb"))
          f:write(text:sub(1, at - 1), string.char((text:byte(at) + 1) % 256), text:sub(at + 1))
          f:close()
          fails("data_loss", "", tm.models.load(dir))
        end
        f = assert(io.open(dir .. "/" .. name, "wb"))
        f:write(text:sub(1, math.floor(#text / 2)))
        f:close()
        fails("data_loss", "", tm.models.load(dir))
        f = assert(io.open(dir .. "/" .. name, "wb"))
        f:write(text)
        f:close()
      end
      assert(tm.models.load(dir))
    end)

    it("is told apart: nothing there, weights alone, another thing, another version", function()
      fails("not_found", "", tm.models.load(dir))
      assert(model_of():save_weights(dir))
      fails("not_found", "holds weights and no model", tm.models.load(dir))
      fails("data_loss", "model.json of something else", load_of { format = "?" })
      fails("unimplemented", "version 99", load_of { format = "tidemill model", version = 99 })
      raises("invalid_argument", "the path of a directory", tm.models.load, 7)
      raises("invalid_argument", "unknown option", tm.models.load, dir, { compiled = true })
    end)

    it("is an error whatever is missing or of another kind", function()
      fails("data_loss", "no root", load_of { format = "tidemill model", version = 1 })
      fails("data_loss", "there is no layer 1", load_of(doc_of {}))
      fails("data_loss", "without class or name", load_of(doc_of { { class = 3, name = "x" } }))
      fails("not_found", 'no class "layers.Nothing"', load_of(doc_of { { class = "layers.Nothing", name = "x" } }))
      fails("data_loss", "no table", load_of(doc_of { { class = "layers.Dense", name = "x", config = 5 } }))
      fails("invalid_argument", "unknown option", load_of(doc_of { { class = "layers.Dense", name = "x",
        config = { unitz = 5 } } }))
      fails("data_loss", "root of the file is no model", load_of(doc_of { { class = "layers.Flatten", name = "x",
        config = {} } }))
      fails("invalid_argument", "no class", load_of(doc_of { { class = "nn.relu", name = "x", config = {} } }))
      fails("data_loss", "no layer", load_of(doc_of { { class = "initializers.Zeros", name = "x", config = {} } }))
      fails("data_loss", "a thing of the kind", load_of(doc_of { { class = "layers.Dense", name = "x",
        config = { ["$"] = "evil" } } }))
      fails("data_loss", "a node of the kind", load_of(doc_of { graph { input, { kind = "x", name = "y" } } }))
      fails("data_loss", 'there is no op "system"', load_of(doc_of { graph { input, { kind = "op", name = "system",
        args = { sym(1) } } } }))
      fails("data_loss", 'there is no op "assign_variable"', load_of(doc_of { graph { input,
        { kind = "op", name = "assign_variable", args = { sym(1), { uid = 1, dtype = "float32", shape = {} } } } } }))
      fails("data_loss", "there is no output", load_of(doc_of { graph { input, { kind = "op", name = "exp",
        args = { sym(7) } } } }))
      fails("data_loss", "there is no variable", load_of(doc_of { graph { input, { kind = "op", name = "exp",
        args = { { ["$"] = "variable", id = 4 } } } } }))
      fails("data_loss", "a graph without signature", load_of(doc_of({}, { graph = "AAAA" })))
    end)

    it("is an error where layers are made of themselves, or nested without end", function()
      local own = { class = "models.Sequential", name = "s", stack = { 1 } }
      fails("data_loss", "is made of itself", load_of(doc_of { own }))
      local deep = {}
      for i = 1, 20000 do deep[i] = { class = "models.Sequential", name = "s" .. i, stack = { i + 1 } } end
      local x, e = load_of(doc_of(deep))
      assert.is_nil(x)
      assert.truthy(tm.is_error(e))
      local f = io.open(dir .. "/model.json", "wb")
      local text = (" "):rep(0) .. '"format":"tidemill model","version":1,"root":' .. ("["):rep(100000) .. "\n"
      f:write('{"crc32c": "00000000",\n ', text)
      f:close()
      fails("data_loss", "", tm.models.load(dir))
    end)

    it("allocates nothing that it merely claims", function()
      local dense = { class = "layers.Dense", name = "d", config = { units = 1e12 } }
      local node = { kind = "layer", name = "d", layer = 2, args = { sym(1) } }
      fails("data_loss", "larger than all that its file holds", load_of(doc_of { graph { input, node }, dense }))
      fails("data_loss", "larger than all that its file holds", load_of(doc_of({ graph { input, { kind = "op",
        name = "gather", args = { { ["$"] = "variable", id = 1 }, sym(1) } } } },
        { variables = { { name = "v", shape = { 1e9, 1e6 }, dtype = "float32" } } })))
      fails("data_loss", "a tensor with", load_of(doc_of { graph { input, { kind = "op", name = "add",
        args = { sym(1), { ["$"] = "tensor", shape = { 1e15 }, dtype = "float32", values = { 1 } } } } } }))
      fails("data_loss", "a size of a shape", load_of(doc_of { graph { { kind = "input", name = "x",
        shape = { -1, 0 / 1 + 0.5 }, dtype = "float32" } } }))
    end)

    it("is a model or an error, whatever is changed in its graph", function()
      local digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
      local m, seed, ran, codes = model_of(), 5, 0, {}
      local function random(n)
        seed = (seed * 16807) % 2147483647
        return seed % n + 1
      end
      assert(m:export(dir))
      local doc, uids, held = assert(core.ckpt.document(dir)), {}, {}
      for i, e in ipairs(doc.variables) do
        held[i] = tm.Variable(tm.zeros(e.shape, e.dtype))
        uids[e.uid] = held[i]._uid
      end
      for _ = 1, 1000 do
        local at, k = random(#doc.graph), random(64)
        local text = doc.graph:sub(1, at - 1) .. digits:sub(k, k) .. doc.graph:sub(at + 1)
        local ok, e = pcall(function()
          return core.graph_replay(core.graph_unpack(text, uids), { core.as_value(X) })
        end)
        ran = ran + (ok and 1 or 0)
        assert.is_true(ok or tm.is_error(e), tostring(e))
        if not ok then codes[e.code] = true end
      end
      assert.is_true(ran > 0)
      assert.truthy(codes.invalid_argument)
      assert.is_nil(codes.internal or codes.unknown)
    end)

    it("is a model or an error, whatever is changed in its description", function()
      local m = model_of()
      m:compile { optimizer = "adam", loss = "mse", metrics = { "mae" } }
      assert(m:save(dir))
      local text = core.json_encode(assert(core.ckpt.document(dir)))
      local strange = { 0, -1, 1e18, 1.5, "", "x", "layers.Dense", true, {}, { 1 }, sym(1), { ["$"] = "layer", id = 1 },
        { ["$"] = "variable", id = 1 }, { ["$"] = "table", keys = { 1 }, values = { 2 }, n = 1e9 } }
      local seed = 7
      local function random(n)
        seed = (seed * 16807) % 2147483647
        return seed % n + 1
      end
      local function places(x, out)
        local keys = {}
        for k in pairs(x) do keys[#keys + 1] = k end
        table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
        for _, k in ipairs(keys) do
          out[#out + 1] = { x, k }
          if type(x[k]) == "table" then places(x[k], out) end
        end
        return out
      end
      local path, codes = dir, {}
      dir = dir .. "/strange"
      for _ = 1, 150 do
        local doc = core.json_decode(text)
        local all = places(doc, {})
        local at = all[random(#all)]
        at[1][at[2]] = strange[random(#strange)]
        if core.json_encode(doc) then
          local n, e = load_of(doc)
          assert.is_true(n ~= nil or tm.is_error(e), tostring(e))
          if e then codes[e.code] = true end
        end
      end
      dir = path
      assert.is_nil(codes.unknown)
      assert.truthy(codes.data_loss and codes.invalid_argument)
    end)

    it("is an error where weights are missing, of another dtype or of another shape", function()
      local m = model_of()
      assert(m:save(dir))
      local doc = assert(core.ckpt.document(dir))
      local function weights_of(fn)
        local w = assert(core.ckpt.create(dir))
        assert(w:document(doc))
        for _, t in ipairs(tm.train.list_variables(dir)) do fn(w, t) end
        assert(w:commit())
        return tm.models.load(dir)
      end
      local function put(w, t, x) assert(w:put(t.name, x, x.shape, 0)) end
      local names = tm.train.list_variables(dir)
      fails("invalid_argument", "float64 of shape", weights_of(function(w, t)
        put(w, t, tm.zeros(t.shape, t.name == names[1].name and "float64" or t.dtype))
      end))
      assert(m:save(dir))
      fails("invalid_argument", "of shape (1)", weights_of(function(w, t) put(w, t, tm.zeros { 1 }) end))
      assert(m:save(dir))
      fails("not_found", "lacks", weights_of(function(w, t)
        if not t.name:find "bias" then put(w, t, tm.zeros(t.shape)) end
      end))
      assert(m:save(dir))
      assert(weights_of(function(w, t) put(w, t, tm.fill(t.shape, 0 / 0)) end)) -- NaN is a number like others
    end)
  end)

  it("is whole whenever its writer is killed", function()
    local script = P.script [[
      local tm, path = require "tidemill", ...
      local m = tm.Sequential { tm.Input { shape = { 64 } }, tm.layers.Dense { units = 64, name = "d" } }
      m:compile { optimizer = "adam", loss = "mse" }
      for i = 1, math.huge do
        m.weights[1]:assign(tm.fill({ 64, 64 }, i))
        m.weights[2]:assign(tm.fill({ 64 }, i))
        assert(m:save(path))
        if i == 2 then print "saving" io.stdout:flush() end
      end
    ]]
    for turn = 1, 8 do
      local p = P.run { script, dir }
      assert.truthy(p:says("saving", 30))
      P.sleep(turn * 0.003)
      p:kill()
      p:wait()
      local m = assert(tm.models.load(dir))
      local a, b = m.weights[1]:read():totable(), m.weights[2]:read():totable()
      assert.equal(a[1][1], a[64][64])
      assert.equal(a[1][1], b[1])
    end
  end)

  it("has values that only strings and lists of Lua can have", function()
    local Odd = tm.layers.Layer:extend("OddOfSpec")
    function Odd:init(given) self.o = given end
    function Odd:call(x) return x end
    tm.models.register(Odd)
    local given = { text = "\0\255", list = { 1, "two", { three = true } }, mixed = { "a", key = math.huge },
      tensor = tm.tensor { { 1, 2 } }, ["$"] = "dollar", start = tm.initializers.Constant(3), n = 4, nan = -math.huge }
    local x = tm.Input { shape = { 3 } }
    assert(tm.Model { inputs = x, outputs = Odd(given)(x) }:save(dir))
    local o = assert(tm.models.load(dir)).layers[1].o
    assert.is_true(same(given.tensor, o.tensor))
    assert.equal(3, o.start.options.value)
    for _, k in ipairs { "text", "list", "mixed", "$", "n", "nan" } do assert.same(given[k], o[k]) end
    local several = tm.layers.Layer:extend("SeveralOfSpec")
    function several:init(a, b) self.a, self.b = a, b end
    function several:call(y) return y * self.a + self.b end
    tm.models.register(several)
    assert(tm.Model { inputs = x, outputs = several(2, 3)(x) }:save(dir))
    assert.is_true(same(X * 2 + 3, assert(tm.models.load(dir))(X)))
    assert.truthy(unpack)
  end)
end)
