-- tm.summary: event files as a script writes them.  What is in them is read back here by
-- framing; `make interop` has TensorBoard read them.
local tm = require "tidemill"
local events = dofile "spec/tools/events.lua"
local P = dofile "spec/tools/process.lua"

local raises = dofile("spec/tools/expect.lua").raises

local slurp, records = events.slurp, events.records

local function files(dir)
  local list = {}
  local p = io.popen("ls " .. dir)
  for name in p:lines() do list[#list + 1] = name end
  p:close()
  return list
end

describe("tm.summary", function()
  local dir
  before_each(function() dir = P.dir() end)
  after_each(function() P.cleanup() end)

  it("writes a file that TensorBoard looks for, its version first", function()
    local w = tm.summary.create_file_writer(dir .. "/new/run")
    local name = files(dir .. "/new/run")[1]
    assert.matches("^events%.out%.tfevents%.%d+%.[^/]+%.%d+%.%d+$", name)
    assert.equal(dir .. "/new/run/" .. name, w.path)
    assert.equal(1, #records(w.path))
    assert.is_truthy(records(w.path)[1]:find("brain.Event:2", 1, true))
    w:close()
    w:close()
    assert.matches("closed", tostring(w))
    local v2 = tm.summary.create_file_writer(dir, { filename_suffix = ".v2" })
    assert.matches("%.v2$", v2.path)
    v2:close()
  end)

  it("logs numbers, and what holds one", function()
    local w = tm.summary.create_file_writer(dir)
    local v = tm.Variable(3)
    local step = tm.Variable(7, { dtype = "int64", trainable = false })
    for _, x in ipairs { 1, 0.5, 0 / 0, math.huge, tm.tensor(2), tm.tensor { 2 }, v } do w:scalar("a/b", x, step) end
    w:scalar("имя", 1, -3)
    w:flush()
    local list, rest = records(w.path)
    assert.equal(9, #list)
    assert.equal(0, rest)
    assert.is_truthy(list[2]:find("a/b", 1, true))
    w:close()
  end)

  it("logs histograms, images and text", function()
    local w = tm.summary.create_file_writer(dir)
    w:histogram("h", tm.ones { 3, 4 }, 1)
    w:histogram("h", { 1, 2, 3 }, 2, { buckets = 5 })
    w:histogram("h", tm.Variable(tm.zeros { 4 }), 3)
    w:image("i", tm.zeros { 4, 5 }, 1)
    w:image("i", tm.zeros { 9, 4, 5, 3 }, 1, { max_outputs = 9 })
    w:text("t", "words", 1)
    w:text("t", { { "a", "b" }, { "c", "d" } }, 2)
    w:close()
    local list = records(w.path)
    assert.equal(8, #list)
    local _, pictures = list[6]:gsub("\137PNG", "")
    assert.equal(9, pictures)
    assert.is_truthy(list[7]:find("words", 1, true))
  end)

  it("names what is wrong and what to do", function()
    local w = tm.summary.create_file_writer(dir)
    raises("invalid_argument", "a tag is a string, got a number", w.scalar, w, 5, 1, 1)
    raises("invalid_argument", "the tag is empty", w.scalar, w, "", 1, 1)
    raises("invalid_argument", "not UTF-8", w.scalar, w, "a\255", 1, 1)
    raises("invalid_argument", "the step must be a whole number", w.scalar, w, "x", 1, 1.5)
    raises("invalid_argument", "the step must be a number, got nil", w.scalar, w, "x", 1)
    raises("invalid_argument", "the value must be a number, got nil", w.scalar, w, "x", nil, 1)
    raises("invalid_argument", 'scalar "x": the value must be a number', w.scalar, w, "x", tm.zeros { 2 }, 1)
    raises("invalid_argument", "of strings", w.histogram, w, "x", tm.tensor { "a" }, 1)
    raises("invalid_argument", "buckets", w.histogram, w, "x", tm.zeros { 2 }, 1, { buckets = 0 })
    raises("invalid_argument", "(height, width)", w.image, w, "x", tm.zeros { 2 }, 1)
    raises("invalid_argument", "int32", w.image, w, "x", tm.zeros({ 2, 2 }, "int32"), 1)
    raises("invalid_argument", "it takes strings", w.text, w, "x", tm.zeros { 2 }, 1)
    raises("invalid_argument", "string 2 is not UTF-8", w.text, w, "x", { "a", "\255" }, 1)
    local f = tm.func(function() w:scalar("x", 1, 1) end)
    raises("failed_precondition", "log it outside", f)
    w:close()
    assert.equal(1, #records(w.path))
    raises("failed_precondition", "create_file_writer", w.scalar, w, "x", 1, 1)
    raises("invalid_argument", "takes a directory, got nil", tm.summary.create_file_writer)
    raises("invalid_argument", '"flush_millis"', tm.summary.create_file_writer, dir, { flush_milis = 5 })
    raises("invalid_argument", "Not a directory", tm.summary.create_file_writer, w.path .. "/below")
  end)

  it("draws graphs of functions and models", function()
    local w = tm.summary.create_file_writer(dir)
    local x = tm.Input { shape = { 3 } }
    local dense = tm.layers.Dense { units = 2, name = "first" }
    local model = tm.Model { inputs = x, outputs = tm.layers.Dense { units = 1, name = "second" }(dense(x)) }
    w:graph(model)
    local traced = tm.func(function(a, n)
      local positive = tm.greater(tm.reduce_sum(a), 0)
      return tm.cond(positive, function() return dense(a) * n end, function() return dense(a) end)
    end)
    w:graph(traced, tm.zeros { 2, 3 }, 2)
    assert.equal(0, traced.trace_count)
    w:graph(dense, tm.zeros { 2, 3 })
    w:close()
    local list = events.of(dir)
    assert.equal(3, #list)
    local nodes = events.nodes(list[1].graph)
    assert.is_table(nodes["arg"])
    local found
    for name, inputs in pairs(nodes) do
      if name:find "second/matmul$" then found = inputs end
    end
    assert.is_truthy(found[1]:find("first/nn.bias_add", 1, true))
    assert.is_truthy(found[2]:find("second/kernel/read_variable", 1, true))
    raises("invalid_argument", "got a number", function()
      local v = tm.summary.create_file_writer(dir)
      v:graph(5)
    end)
  end)

  it("describes an experiment", function()
    local w = tm.summary.create_file_writer(dir)
    w:hparams_config { hparams = { { name = "lr", min = 0, max = 1 }, { name = "units", values = { 16, 32 } } },
      metrics = { { tag = "epoch_loss", group = "validation", name = "loss" } } }
    w:hparams({ lr = 0.5, units = 16, fast = true, kind = "adam" }, { trial_id = "one" })
    w:hparams_end "failure"
    raises("invalid_argument", '"failure"', w.hparams_end, w, "fail")
    raises("invalid_argument", "by name", w.hparams, w, { 1 })
    raises("invalid_argument", '"lr" must be a number', w.hparams, w, { lr = {} })
    raises("invalid_argument", '"metrics"', w.hparams_config, w, { metric = {} })
    w:close()
    local tags = {}
    for i, e in ipairs(events.of(dir)) do tags[i] = e.tag end
    assert.same({ "_hparams_/experiment", "_hparams_/session_start_info", "_hparams_/session_end_info" }, tags)
  end)

  it("has many writers in one directory", function()
    local writers = {}
    for i = 1, 20 do writers[i] = tm.summary.create_file_writer(dir) end
    for step = 1, 10 do
      for _, w in ipairs(writers) do w:scalar("x", step, step) end
    end
    for _, w in ipairs(writers) do w:close() end
    assert.equal(20, #files(dir))
    for _, w in ipairs(writers) do assert.equal(11, #records(w.path)) end
  end)

  it("takes 100,000 scalars in a moment", function()
    local w = tm.summary.create_file_writer(dir)
    local start = P.now()
    for step = 1, 100000 do w:scalar("x", step, step) end
    w:close()
    assert.is_true(P.now() - start < 20)
    assert.equal(100001, #records(w.path))
  end)

  it("shows what was logged soon, without a flush", function()
    local w = tm.summary.create_file_writer(dir, { flush_millis = 20 })
    w:scalar("x", 1, 1)
    P.sleep(0.03)
    w:scalar("x", 2, 2)
    assert.is_true(#records(w.path) >= 2)
    w:close()
  end)

  it("writes what waits when a writer is forgotten or a script ends", function()
    local path
    do
      local w = tm.summary.create_file_writer(dir)
      w:scalar("x", 1, 1)
      path = w.path
    end
    collectgarbage()
    collectgarbage()
    assert.equal(2, #records(path))
    local p = P.run { P.script(([[
      local tm = require "tidemill"
      local w = tm.summary.create_file_writer(%q)
      w:scalar("x", 1, 1)
    ]]):format(dir .. "/end") ) }
    assert.equal(0, p:wait(10), p:err())
    assert.equal(2, #records(dir .. "/end/" .. files(dir .. "/end")[1]))
  end)

  it("leaves whole records, and at most a cut one, when a process is killed", function()
    local p = P.run { P.script(([[
      local tm = require "tidemill"
      local w = tm.summary.create_file_writer(%q, { flush_millis = 0 })
      for step = 1, math.huge do w:scalar("x", step, step) end
    ]]):format(dir .. "/killed")) }
    assert.is_truthy(P.eventually(10, function()
      local name = files(dir .. "/killed 2>/dev/null")[1]
      return name and #slurp(dir .. "/killed/" .. name) > 1000
    end))
    p:kill "KILL"
    assert.equal(137, p:wait(5))
    local old = dir .. "/killed/" .. files(dir .. "/killed")[1]
    local list, rest = records(old)
    assert.is_true(#list > 10)
    assert.is_true(rest < 100)
    local w = tm.summary.create_file_writer(dir .. "/killed") -- the next run's file stands beside
    w:scalar("x", 1, 1)
    w:close()
    assert.equal(2, #files(dir .. "/killed"))
    assert.equal(2, #records(w.path))
    assert.equal(#list, #records(old))
  end)
end)
