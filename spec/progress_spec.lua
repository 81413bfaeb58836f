-- The progress bar: its text, when it comes, what it costs.
local P = dofile "spec/tools/process.lua"
local progress = require "tidemill.fit.progress"
local text = require "tidemill.lib.text"
local tm = require "tidemill"

--- A bar with a clock that the test sets.
local function bar(o)
  local out, clock = {}, { now = 0 }
  o.write = function(s) out[#out + 1] = s end
  o.now = function() return clock.now end
  return progress.new(o), out, clock
end

describe("the progress bar", function()
  it("on a terminal writes one line over and over: steps, pace, time that is left, values", function()
    local b, out, clock = bar { target = 100, verbose = 1, columns = 120 }
    b:saw(10)
    clock.now = 10
    assert.is_true(b:due())
    b:update(60, { { "loss", 0.25 }, { "accuracy", 0.0005 } })
    assert.equal("\r 60/100 [=================>............] - 200ms/step - ETA: 8s - loss: 0.2500 "
      .. "- accuracy: 5.0000e-04",
      out[1])
    assert.is_false(b:due())
    clock.now = 18
    b:finish(100, { { "loss", 0.2 } })
    assert.equal("\r100/100 [==============================] - 18s 200ms/step - loss: 0.2000",
      (out[2]:gsub(" *\n$", "")))
    assert.equal(#out[1] - 1, #out[2] - 2) -- what was longer is written over
  end)

  it("is as Keras writes it for times and numbers", function()
    assert.equal(" 2s/step", progress.duration(1.6, "step"))
    assert.equal(" 45ms/epoch", progress.duration(0.045, "epoch"))
    assert.equal(" 300us/step", progress.duration(3e-4, "step"))
    assert.equal("59s", progress.eta(59.9))
    assert.equal("2:03", progress.eta(123))
    assert.equal("1:01:05", progress.eta(3665))
    local b, out = bar { verbose = 2 }
    b:finish(5, { { "loss", 0 / 0 }, { "big", math.huge }, { "small", -1e-7 } })
    assert.equal("5/5 - 0s - loss: nan - big: inf - small: -1.0000e-07 - 0s/epoch - 0s/step\n", out[1])
  end)

  it("says Unknown where it does not know how many steps there are", function()
    local b, out, clock = bar { verbose = 1, columns = 80 }
    clock.now = 2
    b:update(4, {})
    assert.equal("\r      4/Unknown - 2s 500ms/step", out[1])
    b:finish(8, {})
    assert.truthy(out[2]:find("8/8 [=", 1, true))
  end)

  it("elsewhere than on a terminal writes plain lines, seldomer the longer it takes", function()
    local b, out, clock = bar { target = 1000, verbose = 1 }
    for i = 1, 1000 do
      clock.now = i * 0.1
      b:saw(i)
      if b:due() then b:update(i, { { "loss", 1 } }) end
    end
    assert.is_true(#out > 5 and #out < 60, #out)
    for _, s in ipairs(out) do
      assert.is_nil(s:find("[\r\b]"))
      assert.equal("\n", s:sub(-1))
    end
  end)

  it("never is longer than the line, whatever the names are", function()
    for _, name in ipairs { ("損失"):rep(40), ("e\204\129"):rep(80), "\240\159\152\128", "a\nb\27[31m", "\255\254" } do
      for columns = 20, 100, 20 do
        local b, out = bar { target = 10, verbose = 1, columns = columns }
        b:update(5, { { name, 1 }, { "other", 2 } })
        b:finish(10, { { name, 1 }, { "other", 2 } })
        for _, s in ipairs(out) do
          local plain = s:gsub("^\r", ""):gsub("\n$", "")
          assert.is_true(text.width(plain) < columns, s)
          assert.is_nil(plain:find "%c")
        end
      end
    end
  end)

  it("counts the columns that text takes", function()
    assert.equal(3, text.width "abc")
    assert.equal(4, text.width "損失")
    assert.equal(1, text.width "e\204\129")
    assert.equal("損…", text.cut("損失関数", 4))
    assert.equal("abc", text.cut("abc", 3))
  end)
end)

local function model_of(slow)
  local model = tm.Sequential { tm.layers.Lambda(function(x)
    tm.sleep(slow)
    return x
  end), tm.layers.Dense { units = 1 } }
  model:compile { optimizer = "sgd", loss = "mse", metrics = { "mae" } }
  return model
end

local function data() return tm.data.from_tensor_slices { tm.ones { 8, 2 }, tm.ones { 8, 1 } }:batch(8):rep() end

describe("fit's progress", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  local function on(scope)
    local model = scope(function() return model_of(0.002) end)
    local steps = require("tidemill.fit.steps").of(model, "train")
    local reads, out = 0, {}
    local read = steps.read
    rawset(steps, "read", function(...)
      reads = reads + 1
      return read(...)
    end)
    local began = tm.time()
    local bar_of = tm.callbacks.ProgbarLogger { columns = 100, write = function(s) out[#out + 1] = s end }
    model:fit(data(), { steps_per_epoch = 300, epochs = 2, callbacks = { bar_of }, verbose = 1 })
    local took = tm.time() - began
    assert.is_true(reads <= took / 0.1 + 4, ("%d reads in %.2f s"):format(reads, took))
    local all = table.concat(out)
    assert.truthy(all:find "Epoch 1/2\n\r")
    assert.truthy(all:find "\r *%d+/300 %[=*>%.+%] %- %d+[mu]?s/step %- ETA: %d+s %- loss: [%d.e+-]+ %- mae: ")
    assert.truthy(all:find "\r300/300 %[=+%] %- %d+s %d+[mu]?s/step %- loss: [%d.e+-]+ %- mae: [%d.e+-]+ *\n")
  end

  it("reads the metrics at most once in 100 ms, and shows them within an epoch", function()
    on(function(fn) return fn() end)
  end)

  it("does so on a cluster too (L9)", function()
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 1 })
    on(function(fn) return strategy:scope(fn) end)
    strategy:close()
  end)

  it("is a line an epoch where standard output is no terminal, and plain lines with verbose = 1", function()
    local script = [[
      local tm = require "tidemill"
      local m = tm.Sequential{ tm.layers.Dense{ units = 1 } }
      m:compile{ optimizer = "sgd", loss = "mse", metrics = { "mae" } }
      local x, y = tm.ones{ 64, 2 }, tm.ones{ 64, 1 }
      m:fit(x, { y = y, epochs = 2, verbose = ... , validation_data = { x, y } })
      m:evaluate(x, { y = y, verbose = %s })
    ]]
    local function run(verbose)
      local p = P.run { P.script((script:gsub("%.%.%.", "%%s"):gsub("%%s", verbose))) }
      assert.equal(0, p:wait(20), p:err())
      assert.is_nil(p:out():find("[\r\b]"))
      return p:out()
    end
    local number = "[%d.e+-]+"
    local line = ("2/2 %%- %%d+s %%- loss: N %%- mae: N %%- val_loss: N %%- val_mae: N %%- %%d+[mu]?s/epoch "
      .. "%%- %%d+[mu]?s/step\n"):gsub("N", (number:gsub("%%", "%%%%"))):gsub("%%%%", "%%")
    local auto = run '"auto"'
    assert.truthy(auto:find("^Epoch 1/2\n" .. line .. "Epoch 2/2\n" .. line .. "2/2 %- %d+s %- loss"), auto)
    assert.truthy(run("2"):find("^Epoch 1/2\n" .. line))
    assert.truthy(run("1"):find("^Epoch 1/2\n2/2 %[=+%] %- %d+s %d+[mu]?s/step %- loss: "))
    assert.equal("", run "0")
  end)

  it("counts steps, and takes Keras's stateful_metrics", function()
    local out = {}
    local m = tm.Sequential { tm.layers.Dense { units = 1 } }
    m:compile { optimizer = "sgd", loss = "mse" }
    m:fit(tm.ones { 64, 2 }, { y = tm.ones { 64, 1 }, verbose = 2, callbacks = { tm.callbacks.ProgbarLogger {
      count_mode = "steps", stateful_metrics = { "loss" }, columns = false,
      write = function(s) out[#out + 1] = s end } } })
    assert.matches("^2/2 %- %d+s %- loss: [%d.e+-]+ %- ", table.concat(out))
    local ok, e = pcall(tm.callbacks.ProgbarLogger, { count_mode = "samples" })
    assert.is_false(ok)
    assert.matches('count_mode is "steps", got samples', e.message, 1, true)
  end)

  it("is a bar where it is one", function()
    local p = P.start { "script", "-qec", P.tidemill .. " " .. P.script [[
      local tm = require "tidemill"
      local m = tm.Sequential{ tm.layers.Dense{ units = 1 } }
      m:compile{ optimizer = "sgd", loss = "mse" }
      m:fit(tm.ones{ 64, 2 }, { y = tm.ones{ 64, 1 } })
    ]], "/dev/null" }
    assert.equal(0, p:wait(20), p:err())
    assert.truthy(p:out():find "\r2/2 %[=+%] %- %d+s %d+[mu]?s/step %- loss: ", p:out())
  end)
end)
