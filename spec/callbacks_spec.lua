-- Callbacks against tf-keras's decisions (spec/fixtures/keras_callbacks.py), and their files.
local tm = require "tidemill"
local keras = dofile "spec/fixtures/keras_callbacks.lua"
local format = require "tidemill.callbacks.path_format"
local monitor = require "tidemill.callbacks.monitor"

local C = tm.callbacks

--- As much of a model as callbacks look at; its weights are the number of the epoch.
local function fake(rate)
  local model = { optimizer = { learning_rate = rate or 0.5 }, epoch = 0 }
  function model:get_weights() return { self.epoch } end
  function model:set_weights(w) self.weights = w[1] end
  return model
end

--- Show a callback a value an epoch; gives the model, the epochs that ran, the rates.
local function run(cb, values, rate)
  local model, rates, ran = fake(rate), {}, 0
  cb:set_model(model)
  cb:on_train_begin()
  for epoch, v in ipairs(values) do
    model.epoch, ran = epoch, epoch
    cb:on_epoch_begin(epoch)
    cb:on_epoch_end(epoch, { [cb.monitor or "loss"] = v })
    rates[epoch] = model.optimizer.learning_rate
    if model.stop_training then break end
  end
  cb:on_train_end()
  return model, ran, rates
end

local function near(want, got, what)
  assert(math.abs(want - got) <= 1e-6 * math.max(1, math.abs(want)), ("%s: %g, not %g"):format(what, got, want))
end

local dirs = {}

local function temporary()
  local dir = os.tmpname()
  os.remove(dir)
  assert(os.execute("mkdir " .. dir))
  dirs[#dirs + 1] = dir
  return dir
end

local function contents(path)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  return text
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

local function fails(code, pattern, fn, ...)
  local ok, err = pcall(fn, ...)
  assert.is_false(ok)
  assert(tm.is_error(err, code), tostring(err))
  assert.matches(pattern, tostring(err))
end

local function model_of(units, rate)
  local model = tm.Sequential { tm.layers.Dense { units = units or 1, input_shape = { 3 } } }
  model:compile { optimizer = tm.optimizers.SGD { learning_rate = rate or 0.05 }, loss = "mse" }
  return model
end

local x = tm.random.normal({ 32, 3 }, { seed = 1 })
local y = tm.matmul(x, tm.tensor { { 1 }, { -2 }, { 3 } })

local function fit(model, o)
  o.y, o.verbose, o.batch_size = y, 0, o.batch_size or 8
  return model:fit(x, o)
end

after_each(function()
  for _, dir in ipairs(dirs) do os.execute("rm -rf " .. dir) end
  dirs = {}
end)

describe("EarlyStopping", function()
  for n, c in ipairs(keras.early) do
    it("stops and restores as Keras (case " .. n .. ")", function()
      local cb = C.EarlyStopping(c.options)
      local model, ran = run(cb, c.values)
      assert.equal(c.ran, ran)
      assert.equal(c.stopped, cb.stopped_epoch)
      assert.equal(c.wait, cb.wait)
      assert.equal(c.weights, model.weights)
      near(c.best, cb.best, "best")
    end)
  end

  it("gives the best weights back at a normal end too", function()
    local model = model_of()
    local seen = {}
    local h = fit(model, { epochs = 6, callbacks = {
      C.LearningRateScheduler(function(epoch) return epoch < 4 and 0.05 or 2 end), -- gets worse from the fourth on
      C.EarlyStopping { monitor = "loss", patience = 10, restore_best_weights = true },
      { on_epoch_end = function(cb, epoch) seen[epoch] = cb.model:get_weights() end },
    } })
    assert.equal(6, #h.loss)
    local best = 1
    for epoch, loss in ipairs(h.loss) do
      if loss < h.loss[best] then best = epoch end
    end
    assert(best < 6)
    assert(tm.allclose(seen[best][1], model:get_weights()[1], 0, 0))
  end)

  it("refuses an unknown mode and an unknown option", function()
    fails("invalid_argument", 'unknown mode "mix"', C.EarlyStopping, { mode = "mix" })
    fails("invalid_argument", 'did you mean "patience"', C.EarlyStopping, { patiance = 1 })
  end)
end)

describe("ReduceLROnPlateau", function()
  for n, c in ipairs(keras.plateau) do
    it("sets the rates that Keras sets (case " .. n .. ")", function()
      local cb = C.ReduceLROnPlateau(c.options)
      local _, _, rates = run(cb, c.values)
      for epoch, rate in ipairs(c.rates) do near(rate, rates[epoch], "rate of epoch " .. epoch) end
      near(c.best, cb.best, "best")
    end)
  end

  it("refuses a factor that does not reduce, and a schedule", function()
    fails("invalid_argument", "factor is below 1", C.ReduceLROnPlateau, { factor = 1 })
    local model = model_of()
    model:compile { optimizer = tm.optimizers.SGD { learning_rate = tm.optimizers.schedules.CosineDecay {
      initial_learning_rate = 1, decay_steps = 4 } }, loss = "mse" }
    fails("failed_precondition", "is a schedule", fit, model, { callbacks = { C.ReduceLROnPlateau {} } })
  end)
end)

describe("LearningRateScheduler", function()
  local schedules = {
    falling = function(_, rate) return rate * 0.9 end,
    stairs = function(epoch) return epoch <= 3 and 0.1 or 0.01 end,
  }
  for _, c in ipairs(keras.rates) do
    it("sets a rate an epoch, as Keras (" .. c.name .. ")", function()
      local _, _, rates = run(C.LearningRateScheduler(schedules[c.name]), { 1, 1, 1, 1, 1, 1 })
      for epoch, rate in ipairs(c.rates) do near(rate, rates[epoch], "rate of epoch " .. epoch) end
    end)
  end

  it("puts the rate into the history", function()
    local h = fit(model_of(), { epochs = 3, callbacks = { C.LearningRateScheduler(function(e) return 0.1 / e end) } })
    assert.same({ 0.1, 0.05, 0.1 / 3 }, h.lr)
  end)

  it("wants a number of its function", function()
    fails("invalid_argument", "must give a number for epoch 1, got a string", fit, model_of(),
      { callbacks = { C.LearningRateScheduler(function() return "low" end) } })
  end)
end)

describe("CSVLogger", function()
  it("writes names once and a line an epoch, which is there when the epoch ends", function()
    local path = temporary() .. "/log.csv"
    local seen = {}
    local h = fit(model_of(), { epochs = 2, validation_split = 0.25, callbacks = { C.CSVLogger(path),
      { on_epoch_end = function() seen[#seen + 1] = contents(path) end } } })
    local want = "epoch,loss,val_loss\n"
    for epoch = 1, 2 do
      local line = contents(path):match("\n(" .. epoch .. "[^\n]*)\n")
      local loss, val = line:match "^%d,([^,]+),([^,]+)$"
      assert.equal(h.loss[epoch], tonumber(loss))
      assert.equal(h.val_loss[epoch], tonumber(val))
      want = want .. line .. "\n"
      assert.equal(want, seen[epoch])
    end
  end)

  it("appends to what a run before has written, in its columns", function()
    local path = temporary() .. "/log.csv"
    local f = assert(io.open(path, "w"))
    f:write "epoch;val_loss;loss\n1;0.5;0.25\n2;0.4"
    f:close()
    local cb = C.CSVLogger(path, { append = true, separator = ";" })
    fit(model_of(), { epochs = 3, initial_epoch = 2, callbacks = { cb } })
    local text = contents(path)
    assert.matches("^epoch;val_loss;loss\n1;0.5;0.25\n2;NA;[%d.]+\n3;NA;[%d.]+\n$", text)
    fit(model_of(), { epochs = 1, callbacks = { C.CSVLogger(path) } })
    assert.matches("^epoch,loss,val_loss\n1,[%d.]+,NA\n$", contents(path))
  end)

  it("quotes what needs quotes", function()
    local path = temporary() .. "/log.csv"
    local cb = C.CSVLogger(path)
    cb:on_train_begin()
    cb:on_epoch_end(1, { ['a,"b"'] = 1 / 3 })
    cb:on_train_end()
    assert.equal('epoch,"a,""b""","val_a,""b"""\n1,0.3333333333333333,NA\n', contents(path))
    local again = C.CSVLogger(path, { append = true })
    again:on_train_begin()
    again:on_epoch_end(2, { ['a,"b"'] = 2 })
    again:on_train_end()
    assert.matches("\n2,2,NA\n$", contents(path))
  end)

  it("a full disk ends the fit, naming the file", function()
    fails("resource_exhausted", '"/dev/full" cannot be written: .*No space', fit, model_of(),
      { callbacks = { C.CSVLogger "/dev/full" } })
    fails("not_found", '"/proc/nowhere/log.csv" cannot be written', fit, model_of(),
      { callbacks = { C.CSVLogger "/proc/nowhere/log.csv" } })
  end)
end)

describe("TerminateOnNaN", function()
  it("ends a fit whose loss is no number", function()
    local model, batches = model_of(1, 1e30), 0
    local h = fit(model, { epochs = 5, callbacks = { C.TerminateOnNaN(),
      { on_batch_end = function() batches = batches + 1 end } } })
    assert.equal(1, #h.loss)
    assert(batches < 4)
  end)
end)

describe("LambdaCallback", function()
  it("calls functions without the callback", function()
    local seen = {}
    fit(model_of(), { epochs = 2, callbacks = { C.LambdaCallback {
      on_epoch_begin = function(epoch) seen[#seen + 1] = "begin " .. epoch end,
      on_epoch_end = function(epoch, logs) seen[#seen + 1] = ("end %d %s"):format(epoch, type(logs.loss)) end,
      on_train_batch_end = function(batch) seen[#seen + 1] = batch end,
    } } })
    assert.same({ "begin 1", 1, 2, 3, 4, "end 1 number", "begin 2", 1, 2, 3, 4, "end 2 number" }, seen)
    fails("invalid_argument", 'did you mean "on_epoch_end"', C.LambdaCallback, { on_epoch_ends = print })
  end)
end)

describe("names of files", function()
  local function path(template, numbers) return format.path("ModelCheckpoint", template, numbers) end

  it("are written as Python does", function()
    local n = { epoch = 3, batch = 120, val_loss = 0.12345, acc = 1, loss = 1234567.5 }
    assert.equal("runs/03-0.12", path("runs/{epoch:02d}-{val_loss:.2f}", n))
    assert.equal("3/120/0.12345/1", path("{epoch}/{batch}/{val_loss}/{acc}", n))
    assert.equal("{x}1.23e+06 100.0%", path("{{x}}{loss:.2e} {acc:.1%}", n))
    assert.equal("00120 +3", path("{batch:05d} {epoch:+d}", n))
  end)

  it("an unknown name in them is told, with the nearest", function()
    fails("invalid_argument", "asks for {val_los}.*did you mean {val_loss}", path, "a{val_los}", { val_loss = 1 })
    fails("invalid_argument", "braces", path, "a{epoch", { epoch = 1 })
    fails("invalid_argument", '"q" is no way to write a number', path, "a{epoch:q}", { epoch = 1 })
    fails("invalid_argument", "writes whole numbers", path, "{loss:d}", { loss = 0.5 })
  end)
end)

describe("ModelCheckpoint", function()
  it("saves weights and optimizer each epoch and moves latest", function()
    local dir, model = temporary(), model_of()
    fit(model, { epochs = 3, callbacks = { C.ModelCheckpoint(dir .. "/{epoch:02d}", { save_weights_only = true }) } })
    for epoch = 1, 3 do assert(exists(("%s/%02d"):format(dir, epoch))) end
    assert.equal(dir .. "/03", tm.train.latest_checkpoint(dir))
    local other = model_of()
    assert(tm.train.Checkpoint { model = other, optimizer = other.optimizer }:restore(dir .. "/03"))
      :assert_existing_objects_matched()
    assert(tm.allclose(model.weights[1]:read(), other.weights[1]:read(), 0, 0))
    assert.equal(12, other.optimizer.iterations:read():item())
  end)

  it("saves the whole model as tm.models.load reads it, and moves latest", function()
    local dir, model = temporary(), model_of()
    fit(model, { epochs = 2, callbacks = { C.ModelCheckpoint(dir .. "/{epoch:02d}-{loss:.3f}") } })
    local latest = tm.train.latest_checkpoint(dir)
    assert.matches("/02%-%d+%.%d%d%d$", latest)
    local other = assert(tm.models.load(latest))
    assert(tm.allclose(model:predict(x, { verbose = 0 }), other:predict(x, { verbose = 0 }), 0, 0))
    assert.equal(8, other.optimizer.iterations:read():item())
    local h = fit(model, { callbacks = {} })
    assert.same(h.loss, fit(other, { callbacks = {} }).loss)
  end)

  it("saves only the best, and remembers it over a restart", function()
    local dir = temporary()
    local path = dir .. "/best"
    local function new(o)
      o.save_weights_only, o.save_best_only, o.monitor = true, true, "loss"
      local cb = C.ModelCheckpoint(path, o)
      cb:set_model(model_of())
      cb:on_train_begin()
      return cb
    end
    local cb = new {}
    cb:on_epoch_end(1, { loss = 3 })
    cb:on_epoch_end(2, { loss = 2 })
    assert.equal(2, cb.best)
    local again = new {}
    assert.equal(2, again.best)
    assert(os.execute(("rm -rf %s"):format(path)))
    again:on_epoch_end(3, { loss = 2.5 })
    assert.is_false(exists(path))
    again:on_epoch_end(4, { loss = 1 })
    assert(exists(path))
    assert(os.execute(("rm -rf %s"):format(path)))
    assert.equal(math.huge, new({}).best)
    assert.equal(0.5, new({ initial_value_threshold = 0.5 }).best)
  end)

  it("takes larger for better where mode or the name says so", function()
    local dir = temporary()
    for i, o in ipairs { { monitor = "score", mode = "max" }, { monitor = "val_accuracy" } } do
      local path = ("%s/%d-{epoch}"):format(dir, i)
      o.save_best_only, o.save_weights_only, o.initial_value_threshold = true, true, 0.3
      local cb = C.ModelCheckpoint(path, o)
      cb:set_model(model_of())
      cb:on_train_begin()
      for epoch, v in ipairs { 0.2, 0.4, 0.35, 0.5 } do cb:on_epoch_end(epoch, { [o.monitor] = v }) end
      local saved = {}
      for epoch = 1, 4 do saved[epoch] = exists(("%s/%d-%d"):format(dir, i, epoch)) end
      assert.same({ false, true, false, true }, saved)
    end
  end)

  it("saves after so many batches, over the ends of epochs", function()
    local dir, model = temporary(), model_of()
    local iterations = {}
    fit(model, { epochs = 3, callbacks = { C.ModelCheckpoint(dir .. "/{epoch}-{batch}", { save_weights_only = true,
      save_freq = 3 }) } })
    for _, name in ipairs { "1-3", "2-2", "3-1", "3-4" } do
      iterations[#iterations + 1] = assert(tm.train.load_variable(dir .. "/" .. name, "optimizer/iterations")):item()
    end
    assert.same({ 3, 6, 9, 12 }, iterations)
  end)

  it("a path that cannot be written ends the fit with a clear error", function()
    local dir = temporary()
    local f = assert(io.open(dir .. "/file", "w"))
    f:close()
    local ok, err = pcall(fit, model_of(), { callbacks = { C.ModelCheckpoint(dir .. "/file/ckpt",
      { save_weights_only = true }) } })
    assert.is_false(ok)
    assert.matches('ModelCheckpoint: "' .. dir .. '/file/ckpt" cannot be saved', tostring(err))
    fails("invalid_argument", "asks for {val_loss}", fit, model_of(), { callbacks = { C.ModelCheckpoint(
      dir .. "/{val_loss}", { save_weights_only = true }) } })
  end)
end)

describe("verbose callbacks", function()
  local say, said

  before_each(function()
    say, said = monitor.say, {}
    monitor.say = function(...) said[#said + 1] = (...):format(select(2, ...)) end
  end)
  after_each(function() monitor.say = say end)

  it("say what they do in Keras's words", function()
    local path = temporary() .. "/{epoch}"
    run(C.EarlyStopping { verbose = 1, patience = 1, restore_best_weights = true }, { 2, 1, 3 })
    run(C.ReduceLROnPlateau { verbose = 1, patience = 1, factor = 0.5 }, { 1, 2 })
    run(C.LearningRateScheduler(function() return 0.25 end, { verbose = 1 }), { 1 })
    local cb = C.ModelCheckpoint(path, { verbose = 1, monitor = "loss", save_best_only = true,
      save_weights_only = true })
    cb:set_model(model_of())
    cb:on_train_begin()
    for epoch, loss in ipairs { 2, 3, 1 } do cb:on_epoch_end(epoch, { loss = loss }) end
    cb = C.ModelCheckpoint(path, { verbose = true, save_weights_only = true })
    cb:set_model(model_of())
    cb:on_train_begin()
    cb:on_epoch_end(4, { loss = 1 })
    path = path:gsub("{epoch}", "")
    assert.same({
      "Epoch 3: early stopping",
      "Restoring model weights from the end of the best epoch: 2.",
      "Epoch 2: ReduceLROnPlateau reducing learning rate to 0.25.",
      "Epoch 1: LearningRateScheduler setting learning rate to 0.25.",
      ("Epoch 1: loss improved from inf to 2.00000, saving model to %s1"):format(path),
      "Epoch 2: loss did not improve from 2.00000",
      ("Epoch 3: loss improved from 2.00000 to 1.00000, saving model to %s3"):format(path),
      ("Epoch 4: saving model to %s4"):format(path),
    }, said)
  end)

  it("are silent by default", function()
    run(C.EarlyStopping { patience = 1, restore_best_weights = true }, { 2, 1, 3 })
    run(C.ReduceLROnPlateau { patience = 1, factor = 0.5 }, { 1, 2 })
    run(C.LearningRateScheduler(function() return 0.25 end), { 1 })
    fit(model_of(), { callbacks = { C.ModelCheckpoint(temporary() .. "/c", { save_weights_only = true }) } })
    assert.same({}, said)
  end)
end)

describe("callbacks", function()
  it("an error in one ends fit with that error, and files are closed", function()
    local dir = temporary()
    local csv = C.CSVLogger(dir .. "/log.csv")
    local ended = false
    local err = { "mine" }
    local ok, got = pcall(fit, model_of(), { epochs = 3, callbacks = { csv, {
      on_epoch_end = function() error(err) end, on_train_end = function() ended = true end } } })
    assert.is_false(ok)
    assert.equal(err, got)
    assert.is_false(ended)
    assert.is_nil(csv._file)
  end)

  it("one that does not look into its logs causes no reading", function()
    local model, reads = model_of(), 0
    local metrics
    fit(model, { callbacks = { { on_batch_end = function(cb)
      metrics = metrics or cb.model.metrics
      for _, m in ipairs(metrics) do
        if not rawget(m, "_watched") then
          local result = m.result
          rawset(m, "_watched", true)
          rawset(m, "result", function(...)
            reads = reads + 1
            return result(...)
          end)
        end
      end
    end } } })
    assert(reads <= 1)
  end)
end)
