-- What fit, evaluate and metrics say when targets, options and shapes stand in the wrong
-- place: the message names the thing, and what to write instead.
local tm = require "tidemill"

--- What fn() writes to the log.
local function logged(fn)
  local path = os.tmpname()
  tm.log.to(path, "warn")
  local ok, e = pcall(fn)
  tm.log.to(nil)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  os.remove(path)
  if not ok then error(e, 0) end
  return text
end

local L = tm.layers
local x = tm.ones { 6, 4 }
local ids = tm.tensor { 0, 1, 2, 0, 1, 2 }

local function model_of(metrics, loss)
  local m = tm.Sequential { L.Dense { units = 3, activation = "softmax" } }
  m:compile { optimizer = "adam", loss = loss or "sparse_categorical_crossentropy", metrics = metrics }
  return m
end

local function says(m, text, method, ...)
  local ok, e = pcall(m[method], m, ...)
  assert.is_false(ok, text)
  assert.equal("invalid_argument", e.code, tostring(e))
  assert.is_truthy(e.message:find(text, 1, true), e.message)
end

describe("metrics that do not fit the targets", function()
  local one_hot = { "AUC", "Precision", "Recall", "F1Score", "FBetaScore", "CategoricalAccuracy",
    "TopKCategoricalAccuracy", "CategoricalCrossentropy" }

  it("name themselves and what takes class ids", function()
    for _, name in ipairs(one_hot) do
      local m = model_of { tm.metrics[name]() }
      says(m, 'the targets y of the output "output_1" have the shape (?, 1), its predictions (?, 3): ' .. name
        .. " takes one-hot targets", "fit", x, { y = ids, verbose = 0 })
      says(m, name .. " takes one-hot targets", "evaluate", x, { y = ids, verbose = 0 })
    end
    local accuracy = model_of { tm.metrics.CategoricalAccuracy() }
    says(accuracy, "(class ids: SparseCategoricalAccuracy)", "fit", x, { y = ids, verbose = 0 })
    says(model_of { tm.metrics.F1Score() }, "tm.one_hot(ids, 3)", "fit", x, { y = ids, verbose = 0 })
    says(model_of { tm.metrics.Accuracy() }, "SparseCategoricalAccuracy", "fit", x, { y = ids, verbose = 0 })
  end)

  it("name themselves and what takes one-hot targets", function()
    local y = tm.one_hot(tm.cast(ids, "int64"), 3)
    for _, name in ipairs { "SparseCategoricalAccuracy", "SparseTopK", "SparseCategoricalCrossentropy",
      "ConfusionMatrix" } do
      local m = model_of({ tm.metrics[name](name == "ConfusionMatrix" and { num_classes = 3 } or {}) },
        "categorical_crossentropy")
      says(m, " takes class ids, one an example", "fit", x, { y = y, verbose = 0 })
    end
  end)

  it("say so when they are called by themselves, too", function()
    for _, name in ipairs(one_hot) do
      local ok, e = pcall(tm.metrics[name](), tm.expand_dims(ids, -1), tm.ones { 6, 3 })
      assert.is_false(ok)
      assert.is_truthy(e.message:find(name .. " takes one-hot targets", 1, true), e.message)
    end
  end)

  it("are all told in words, never by an op's error", function()
    for name, class in pairs(tm.metrics) do
      if type(class) == "table" and name ~= "Metric" and name ~= "MeanOf" then
        for _, y in ipairs { tm.ones { 6, 2 }, tm.ones { 6, 3, 2 } } do
          local m = model_of({ class(name == "ConfusionMatrix" and { num_classes = 3 } or {}) },
            function(_, p) return tm.reduce_mean(p) end)
          local ok, e = pcall(m.fit, m, x, { y = y, verbose = 0 })
          if not ok then
            assert.is_truthy(e.message:find("the targets y of the output", 1, true)
              or e.message:find('of the output "output_1" (y_true', 1, true), name .. ": " .. e.message)
          end
        end
      end
    end
  end)

  it("of one's own get their name and the output's into what ops say", function()
    local m = model_of { function(t, p) return t + p + tm.ones { 7, 5 } end }
    says(m, 'metric metric_1 of the output "output_1" (y_true float32 (?, 1), y_pred float32 (?, 3))', "fit", x,
      { y = ids, verbose = 0 })
  end)
end)

describe("results that are tables of numbers", function()
  it("stay out of progress lines and csv files", function()
    local dir = os.tmpname()
    os.remove(dir)
    local lines = {}
    local log = dir .. "/deep/log.csv"
    local m = model_of { tm.metrics.ConfusionMatrix { num_classes = 3, name = "confusion_matrix" }, "accuracy" }
    local h = m:fit(x, { y = ids, verbose = 2, callbacks = { tm.callbacks.CSVLogger(log),
      tm.callbacks.ProgbarLogger { columns = false, write = function(s) lines[#lines + 1] = s end } } })
    assert.same({ 3, 3 }, h.confusion_matrix[1].shape)
    local text = table.concat(lines)
    assert.is_nil(text:find("confusion", 1, true), text)
    assert.is_truthy(text:find("accuracy: ", 1, true))
    local f = assert(io.open(log))
    assert.equal("epoch,accuracy,loss,val_accuracy,val_loss", f:read "*l")
    f:close()
    os.execute("rm -r " .. dir)
  end)

  it("are lists where they are lists of numbers", function()
    local dir = os.tmpname()
    local lines = {}
    local m = model_of({ tm.metrics.F1Score { name = "f1_score" } }, "categorical_crossentropy")
    m:fit(x, { y = tm.one_hot(tm.cast(ids, "int64"), 3), verbose = 2, callbacks = { tm.callbacks.CSVLogger(dir),
      tm.callbacks.ProgbarLogger { columns = false, write = function(s) lines[#lines + 1] = s end } } })
    assert.is_truthy(table.concat(lines):match "f1_score: %[[%d.e+-]+ [%d.e+-]+ [%d.e+-]+%]")
    local f = assert(io.open(dir))
    assert.is_truthy(f:read "*a":find('\n1,"[', 1, true))
    f:close()
    os.remove(dir)
  end)
end)

describe("a file that CSVLogger cannot write", function()
  it("is told with the system's code", function()
    local m = model_of()
    for path, code in pairs { ["/proc/none/x.csv"] = "not_found", ["/dev/null/x.csv"] = "invalid_argument" } do
      local ok, e = pcall(m.fit, m, x, { y = ids, verbose = 0, callbacks = { tm.callbacks.CSVLogger(path) } })
      assert.is_false(ok)
      assert.equal(code, e.code)
      assert.is_truthy(e.message:find(path, 1, true), e.message)
    end
  end)
end)

describe("targets that stand where options are wanted", function()
  local m = model_of()

  it("are told where they go", function()
    says(m, "got a tensor; targets are an option: model:fit(x, { y = y })", "fit", x, ids)
    says(m, "entry 1 has none, got a tensor; targets are an option: model:fit(x, { y = y })", "fit", x,
      { ids, epochs = 2 })
    says(m, "got a tensor; targets are an option: model:evaluate(x, { y = y })", "evaluate", x, ids)
    says(m, "targets are an option: model:evaluate(x, { y = y })", "evaluate", x, { ids })
    says(m, "got a tensor; it takes no targets", "predict", x, ids)
    says(m, "got a dataset; targets are an option", "fit", x, tm.data.range(3))
    says(m, "train_on_batch(x, y, { sample_weight = w })", "train_on_batch", x, ids, ids)
    says(m, "test_on_batch(x, y, { sample_weight = w })", "test_on_batch", x, ids, { ids })
  end)

  it("are told from options beside a list of data", function()
    says(m, 'no entry "epochs"; options stand in a table of their own: fit({ x, y }, { epochs = ... })', "fit",
      { x, ids, epochs = 3 })
    says(m, 'no entry "verbose"', "evaluate", { x, ids, verbose = 0 })
    says(m, 'validation_data: the data are a list, which has no entry "foo"', "fit", x,
      { y = ids, verbose = 0, validation_data = { x, ids, foo = 1 } })
  end)

  it("are missed in validation_data before the first epoch", function()
    for _, data in ipairs { x, { x }, tm.data.from_tensor_slices(x):batch(3) } do
      says(m, "fit: validation_data has no targets y", "fit", x, { y = ids, verbose = 0, validation_data = data })
    end
    assert.is_true(pcall(m.fit, m, x, { y = ids, verbose = 0, validation_data = { x, ids } }))
  end)

  it("are one batch in train_on_batch", function()
    says(m, "takes the tensors of one batch, got a dataset", "train_on_batch", tm.data.range(3), ids)
    says(m, "takes the tensors of one batch, got a dataset", "predict_on_batch", tm.data.range(3))
  end)
end)

describe("messages", function()
  it("say what kind of thing was given, in users' words", function()
    local i = tm.Input { shape = { 2 } }
    for text, v in pairs { ["a tensor"] = x, ["a variable"] = tm.Variable(0), ["a dataset"] = tm.data.range(2),
      ["an iterator"] = tm.data.range(2):iterator(), ["a Dense layer"] = L.Dense { units = 1 }, ["a tm.Input"] = i,
      ["the class Dense"] = L.Dense, ["an Adam optimizer"] = tm.optimizers.Adam(), ["a number"] = 3,
      ["a Sequential model"] = model_of(), ["a traced function"] = tm.func(function() return 1 end) } do
      for _, fn in ipairs { L.Dense, tm.optimizers.Adam, tm.losses.Huber, tm.metrics.AUC,
        tm.callbacks.EarlyStopping } do
        local ok, e = pcall(fn, v)
        assert.is_false(ok)
        assert.is_truthy(tostring(e):find("got " .. text, 1, true), tostring(e))
      end
    end
  end)

  it("tell options without a name", function()
    for _, fn in ipairs { L.Dense, tm.optimizers.SGD, tm.metrics.AUC } do
      local ok, e = pcall(fn, { 64 })
      assert.is_false(ok)
      assert.is_truthy(e.message:find("entry 1 has none, it is a number", 1, true), e.message)
    end
  end)

  it("name what train_step returned", function()
    local Mine = tm.Model:extend "Mine"
    function Mine:init() self.out = L.Dense { units = 1 } end
    function Mine:call(v) return self.out(v) end
    function Mine:train_step(data) return tm.reduce_sum(self(data[1])) end
    local mine = Mine()
    mine:compile {}
    says(mine, "returns a table of logs by name, got a tensor", "fit", x, { y = ids, verbose = 0 })
  end)
end)

describe("a label without a class weight", function()
  it("is named", function()
    local m, weights = model_of(), { [0] = 1, [1] = 2 }
    says(m, "class_weight has no weight for the label 2", "fit", x, { y = ids, verbose = 0, class_weight = weights })
    says(m, "class_weight has no weight for the label 2", "train_on_batch", x, ids, { class_weight = weights })
    local one_hot = tm.one_hot(tm.cast(ids, "int64"), 3)
    says(model_of(nil, "categorical_crossentropy"), "class_weight has no weight for the label 2", "fit", x,
      { y = one_hot, verbose = 0, class_weight = weights })
    says(m, "class_weight has no weight for the label -1", "fit", x,
      { y = { 0, 1, -1, 0, 1, 0 }, verbose = 0, class_weight = weights })
  end)
end)

describe("variables that no loss reaches", function()
  it("are told once, with the outputs that have no targets", function()
    local i = tm.Input { shape = { 4 } }
    local m = tm.Model { inputs = i, outputs = { quality = L.Dense { units = 1, name = "quality" }(i),
      white = L.Dense { units = 1, name = "white" }(i) } }
    m:compile { optimizer = "sgd", loss = "mse" }
    local text = logged(function()
      m:fit(x, { y = { quality = ids }, epochs = 2, verbose = 0 })
      m:fit(x, { y = { quality = ids }, verbose = 0 })
    end)
    assert.is_truthy(text:find("gradients do not exist for white/kernel, white/bias", 1, true), text)
    assert.is_truthy(text:find("no targets y were given for the outputs: white", 1, true), text)
    local _, n = text:gsub("gradients do not exist", "")
    assert.equal(1, n)
    m:compile { optimizer = "sgd", loss = "mse" }
    assert.equal("", logged(function()
      m:fit(x, { y = { quality = ids, white = ids }, verbose = 0 })
    end))
  end)
end)
