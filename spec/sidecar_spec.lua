-- SidecarEvaluator: what follows a training's checkpoints, alone and with others.
local core = require "tidemill.core"
local events = dofile "spec/tools/events.lua"
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

local function Sidecar(o)
  o.verbose = 0
  return tm.distribute.SidecarEvaluator(o)
end

local raises = dofile("spec/tools/expect.lua").raises

local X, Y = tm.tensor { { 1 }, { 2 }, { 3 } }, tm.tensor { { 1 }, { 2 }, { 3 } }

local function model_of()
  local m = tm.Sequential { tm.Input { shape = { 1 } }, tm.layers.Dense { units = 1, use_bias = false } }
  m:compile { optimizer = "sgd", loss = "mse", metrics = { "mae" } }
  return m
end

local function data_of() return tm.data.from_tensor_slices({ X, Y }):batch(2) end

--- Saves checkpoints k of a model that multiplies by k + 1, so its mae is 2 k.
local function trainer(dir, more)
  local m = model_of()
  local manager = tm.train.CheckpointManager(tm.train.Checkpoint { model = m, optimizer = m.optimizer }, dir,
    more or { max_to_keep = false })
  return function(k, at)
    m.weights[1]:assign { { (at or k) + 1 } }
    m.optimizer.iterations:assign(10 * k)
    assert(manager:save(k))
    return manager.latest_checkpoint
  end
end

--- Scalars of a directory of events, by step and tag.
local function scalars(where)
  local list = events.of(where)
  table.sort(list, function(x, y)
    if x.step ~= y.step then return x.step < y.step end
    return x.tag < y.tag
  end)
  return list
end

--- The mae by step, as events say.
local function maes(dir)
  local out = {}
  for _, e in ipairs(scalars(dir)) do
    if e.tag == "evaluation_mae_vs_iterations" then out[#out + 1] = ("%d:%g"):format(e.step, e.value) end
  end
  return table.concat(out, " ")
end

-- Evaluators as processes: every one prints what it evaluates, and may be held up.
local SCRIPT = [[
  local tm = require "tidemill"
  local dir, name, options = ...
  local X = tm.tensor { { 1 }, { 2 }, { 3 } }
  local m = tm.Sequential { tm.Input { shape = { 1 } }, tm.layers.Dense { units = 1, use_bias = false } }
  m:compile { optimizer = "sgd", loss = "mse", metrics = { "mae" } }
  local o = load("return {" .. (options or "") .. "}")()
  o.model, o.data, o.checkpoint_dir = m, tm.data.from_tensor_slices({ X, X }):batch(2), dir
  local function there(file)
    local f = io.open(file)
    if f then f:close() end
    return f ~= nil
  end
  local evaluator
  o.callbacks = { { on_test_begin = function()
    print("begins " .. evaluator.latest:match "%d+$")
    io.stdout:flush()
    while there(dir .. "/hold-" .. name) do tm.sleep(0.005) end
  end } }
  evaluator = tm.distribute.SidecarEvaluator(o)
  evaluator:start()
  print "ended"
]]

describe("SidecarEvaluator", function()
  local dir, script

  before_each(function() dir = P.dir() .. "/ckpt" end)
  after_each(function() assert.same({}, P.cleanup()) end)

  local function evaluator(name, options, env)
    script = P.script(SCRIPT)
    return P.run({ script, dir, name, options }, env)
  end

  local function hold(name) assert(io.open(dir .. "/hold-" .. name, "w")):close() end
  local function let(name) os.remove(dir .. "/hold-" .. name) end

  it("evaluates the newest checkpoint, writes events at the optimizer's iterations, and stops", function()
    local save = trainer(dir)
    save(1)
    save(3)
    local m = model_of()
    Sidecar { model = m, data = data_of(), checkpoint_dir = dir, max_evaluations = 3 }:start()
    assert.equal("30:6", maes(dir .. "/validation"))
    assert.equal(30, m.optimizer.iterations:read():item())
    local tags = {}
    for i, e in ipairs(scalars(dir .. "/validation")) do tags[i] = e.tag end
    assert.same({ "evaluation_loss_vs_iterations", "evaluation_mae_vs_iterations" }, tags)
    save(5)
    Sidecar { model = m, data = data_of(), checkpoint_dir = dir, max_evaluations = 2, log_dir = dir .. "/logs" }:start()
    assert.equal("50:10", maes(dir .. "/logs/validation"))
  end)

  it("takes each checkpoint in turn where every is true, up to the last one wanted (L15)", function()
    local save = trainer(dir)
    for k = 1, 5 do save(k) end
    Sidecar { model = model_of(), data = data_of(), checkpoint_dir = dir .. "/", max_evaluations = 4, every = true }
      :start()
    assert.equal("10:2 20:4 30:6 40:8", maes(dir .. "/validation"))
  end)

  it("follows what ModelCheckpoint saves, weights alone", function()
    local m = model_of()
    m:fit(X, { y = Y, epochs = 3, verbose = 0, callbacks = {
      tm.callbacks.ModelCheckpoint(dir .. "/ckpt-{epoch}", { save_weights_only = true }) } })
    local n = model_of()
    Sidecar { model = n, data = data_of(), checkpoint_dir = dir, max_evaluations = 3 }:start()
    assert.equal(3, n.optimizer.iterations:read():item())
    assert.is_true(tm.allclose(m(X), n(X), 0, 0))
  end)

  it("keeps the best model where it is told to", function()
    local save, best = trainer(dir), dir .. "-best"
    for k, at in ipairs { 5, 2, 3, 1, 4 } do save(k, at) end
    local function export() return tm.callbacks.SidecarEvaluatorModelExport(best .. "/best-{epoch:02d}",
      dir .. "/ckpt-{epoch}", { monitor = "mae", mode = "min" }) end
    Sidecar { model = model_of(), data = data_of(), checkpoint_dir = dir, max_evaluations = 5, every = true,
      callbacks = { export() } }:start()
    local names = {}
    for name in io.popen("ls " .. best):lines() do
      if name:find "^best%-%d+$" then names[#names + 1] = name end
    end
    assert.same({ "best-01", "best-02", "best-04" }, names)
    local m = assert(tm.models.load(best .. "/best-04"))
    assert.same({ { 2 } }, m.weights[1]:read():totable())
    raises("invalid_argument", "choose another directory", tm.callbacks.SidecarEvaluatorModelExport, dir .. "/best",
      dir .. "/ckpt-{epoch}")
  end)

  it("builds a model that is not built yet, and counts steps", function()
    trainer(dir)(1)
    local m = tm.Sequential { tm.layers.Dense { units = 1, use_bias = false } }
    m:compile { optimizer = "sgd", loss = "mse", metrics = { "mae" } }
    Sidecar { model = m, data = data_of():rep(), steps = 4, checkpoint_dir = dir, max_evaluations = 1 }:start()
    assert.equal("10:2", maes(dir .. "/validation"))
  end)

  it("waits politely where there is nothing, for as long as it takes", function()
    local p = evaluator("a", "max_evaluations = 2")
    P.sleep(0.3)
    assert.is_nil(p:status())
    local save = trainer(dir)
    save(1)
    assert.truthy(p:says("begins 1", 30))
    save(2)
    assert.equal(0, p:wait(60))
    assert.truthy(p:out():find "ended")
  end)

  it("says after 30 seconds that there is nothing, and again", function()
    local file, now, sleeps = P.dir() .. "/log", 0, 0
    local time, sleep = core.time, core.sleep
    core.time = function() return now end -- luacheck: ignore
    core.sleep = function(seconds) -- luacheck: ignore
      now, sleeps = now + seconds, sleeps + 1
      if sleeps == 300 then trainer(dir)(1) end
    end
    tm.log.to(file)
    local ok, e = pcall(function()
      Sidecar { model = model_of(), data = data_of(), checkpoint_dir = dir, max_evaluations = 1 }:start()
    end)
    tm.log.to(nil)
    core.time, core.sleep = time, sleep -- luacheck: ignore
    assert.is_true(ok, tostring(e))
    local f = assert(io.open(file))
    local _, n = f:read("*a"):gsub("No checkpoints appear to be found after 30 seconds", "")
    f:close()
    assert.equal(2, n)
  end)

  it("goes on with the next checkpoint when one is deleted under it", function()
    local save = trainer(dir)
    local open, path = core.ckpt.open, save(1)
    for k, what in ipairs { "/data-*", "" } do -- half of it is gone when it is read, or all
      core.ckpt.open = function(...) -- luacheck: ignore
        core.ckpt.open = open -- luacheck: ignore
        os.execute("rm -rf '" .. path .. "'" .. what)
        path = save(k + 1)
        return open(...)
      end
      local ok, e = pcall(function()
        Sidecar { model = model_of(), data = data_of(), checkpoint_dir = dir, max_evaluations = k + 1 }:start()
      end)
      core.ckpt.open = open -- luacheck: ignore
      assert.is_true(ok, tostring(e))
    end
    assert.equal("20:4 30:6", maes(dir .. "/validation"))
  end)

  it("passes over a damaged checkpoint", function()
    local save = trainer(dir)
    local first = save(1)
    local f = assert(io.open(first .. "/data-00000.safetensors", "r+b"))
    f:seek("end", -1)
    f:write "?"
    f:close()
    save(2)
    Sidecar { model = model_of(), data = data_of(), checkpoint_dir = dir, max_evaluations = 2, every = true }:start()
    assert.equal("20:4", maes(dir .. "/validation"))
  end)

  it("says what a checkpoint lacks", function()
    local m, n = model_of(), model_of()
    local function start(root, model)
      os.execute("rm -rf '" .. dir .. "'")
      assert(tm.train.Checkpoint(root):save(dir .. "/ckpt"))
      Sidecar { model = model or n, data = data_of(), checkpoint_dir = dir, max_evaluations = 1 }:start()
    end
    raises("failed_precondition", '"iterations" cannot be loaded', start, { model = m })
    raises("failed_precondition", "Nothing to load", start, { net = m, optimizer = m.optimizer })
    local two = { tm.layers.Dense { units = 1 }, tm.layers.Dense { units = 1 } }
    local deep = tm.Sequential { tm.Input { shape = { 1 } }, two[1], two[2] }
    deep:compile { optimizer = "sgd", loss = "mse" }
    raises("not_found", "lacks", start, { model = m, optimizer = m.optimizer }, deep)
    local wide = tm.Sequential { tm.Input { shape = { 2 } }, tm.layers.Dense { units = 1, use_bias = false } }
    wide:compile { optimizer = "sgd", loss = "mse" }
    raises("invalid_argument", "of shape (1, 1)", start, { model = m, optimizer = m.optimizer }, wide)
    local plain = tm.Sequential { tm.Input { shape = { 1 } }, tm.layers.Dense { units = 1 } }
    raises("failed_precondition", "is not compiled", start, { model = m, optimizer = m.optimizer }, plain)
  end)

  it("says what is wrong with its options", function()
    local m = model_of()
    raises("invalid_argument", "model is a tm.Model", Sidecar, { data = X, checkpoint_dir = dir })
    raises("invalid_argument", "data is missing", Sidecar, { model = m, checkpoint_dir = dir })
    raises("invalid_argument", "a directory as checkpoint_dir", Sidecar, { model = m, data = X })
    raises("invalid_argument", "unknown option", Sidecar, { model = m, data = X, checkpoint_dir = dir, evry = true })
    raises("invalid_argument", "max_evaluations", Sidecar, { model = m, data = X, checkpoint_dir = dir,
      max_evaluations = "3" })
  end)

  describe("shared by several evaluators", function()
    local three = "shared = true, every = true, max_evaluations = 6"

    local function evaluated(list)
      local n, all = {}, {}
      for _, p in ipairs(list) do
        for k in p:out():gmatch "begins (%d+)" do n[tonumber(k)] = (n[tonumber(k)] or 0) + 1 end
      end
      for k = 1, 6 do all[k] = n[k] or 0 end
      return all
    end

    it("takes each checkpoint once, results in one directory (L15)", function()
      local save = trainer(dir)
      save(1)
      local list = { evaluator("a", three), evaluator("b", three), evaluator("c", three) }
      for k = 2, 6 do save(k) end
      for _, p in ipairs(list) do assert.equal(0, p:wait(60), p:err()) end
      assert.same({ 1, 1, 1, 1, 1, 1 }, evaluated(list))
      assert.equal("10:2 20:4 30:6 40:8 50:10 60:12", maes(dir .. "/validation"))
    end)

    it("gives what a killed one had to another", function()
      local save = trainer(dir)
      save(6)
      hold "a"
      local a = evaluator("a", three)
      assert.truthy(a:says("begins 6", 30))
      local b = evaluator("b", three)
      P.sleep(0.3)
      assert.equal("", b:out())
      a:kill()
      assert.equal(0, b:wait(60), b:err())
      assert.truthy(b:out():find("begins 6", 1, true))
      assert.equal("60:12", maes(dir .. "/validation"))
    end)

    it("takes over from one that hangs, which writes nothing when it wakes", function()
      local save = trainer(dir)
      save(6)
      hold "a"
      local a = evaluator("a", three)
      assert.truthy(a:says("begins 6", 30))
      P.signal("STOP", a.pid)
      local b = evaluator("b", three .. ", claim_timeout = 0.5")
      assert.equal(0, b:wait(60), b:err())
      assert.equal("60:12", maes(dir .. "/validation"))
      let "a"
      P.signal("CONT", a.pid)
      assert.equal(0, a:wait(60), a:err())
      assert.truthy(a:err():find("taken this checkpoint over", 1, true))
      assert.equal("60:12", maes(dir .. "/validation"))
    end)

    it("keeps as many claims as there are checkpoints", function()
      local save = trainer(dir, { max_to_keep = 2 })
      save(1)
      local p = evaluator("a", "shared = true, every = true, max_evaluations = 8")
      for k = 2, 8 do
        assert.truthy(p:says("begins " .. k - 1, 30))
        save(k)
      end
      assert.equal(0, p:wait(60), p:err())
      local names = core.claim.list(dir .. "/.evaluators/shared")
      assert.is_true(#names <= 2, table.concat(names, " "))
    end)

    it("evaluates a checkpoint again when it is another one of the same name", function()
      trainer(dir)(6)
      for _ = 1, 2 do
        assert.equal(0, evaluator("a", three):wait(60))
        assert.equal("60:12", maes(dir .. "/validation"))
      end
      os.execute("rm -rf '" .. dir .. "'/ckpt-* '" .. dir .. "'/validation")
      trainer(dir)(6)
      local m = tm.train.latest_checkpoint(dir)
      assert.truthy(m)
      local w = assert(core.ckpt.create(m)) -- other numbers, the same name
      for _, t in ipairs(tm.train.list_variables(m)) do
        local x = tm.train.load_variable(m, t.name)
        assert(w:put(t.name, t.name:find "iterations" and x + 1 or x, x.shape, 0))
      end
      assert(w:commit())
      assert.equal(0, evaluator("a", three):wait(60))
      assert.equal("61:12", maes(dir .. "/validation"))
    end)
  end)

  describe("under tidemill", function()
    local ROLE = [[
      local tm = require "tidemill"
      local resolver = tm.distribute.resolver { workers = 1, ps = 1 }
      print("role " .. resolver.task_type)
      if resolver.task_type == "evaluator" then
        local ok, e = pcall(tm.distribute.ParameterServerStrategy, resolver)
        print(ok, e)
      end
    ]]

    it("the role of an evaluator has no part in the cluster", function()
      local p = P.run { "evaluator", P.script(ROLE) }
      assert.equal(0, p:wait(60))
      assert.truthy(p:out():find("role evaluator\nfalse\tfailed_precondition: ParameterServerStrategy: this process is "
        .. "an evaluator", 1, true), p:out())
      p = P.run({ P.script(ROLE) }, { TF_CONFIG = '{"cluster": {"worker": ["h:1"], "ps": ["h:2"]}, '
        .. '"task": {"type": "evaluator", "index": 0}}' })
      assert.equal(0, p:wait(60))
      assert.truthy(p:out():find("role evaluator", 1, true))
      p = P.run({ "evaluator", P.script(ROLE) }, { TM_CONFIG = '{"cluster": {"worker": ["h:1"], "ps": ["h:2"]}, '
        .. '"task": {"type": "worker", "index": 0}}' })
      assert.equal(1, p:wait(60))
      assert.truthy(p:err():find("says this task is a worker", 1, true))
      assert.equal(2, P.run({ "evaluator" }):wait(60))
    end)

    local TRAINING = [[
      local tm = require "tidemill"
      local dir = ...
      local resolver = tm.distribute.resolver { workers = 1, ps = 1 }
      local X = tm.range(1, 17, 1, "float32"):reshape { 16, 1 }
      local function make()
        local m = tm.Sequential { tm.Input { shape = { 1 } }, tm.layers.Dense { units = 1 } }
        m:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.001 }, loss = "mse" }
        return m
      end
      if resolver.task_type == "evaluator" then
        local evaluator
        evaluator = tm.distribute.SidecarEvaluator { model = make(), data = tm.data.from_tensor_slices { X, X * 2 }
          :batch(4), checkpoint_dir = dir, every = true, callbacks = { { on_test_begin = function()
            print("begins " .. evaluator.latest:match "%d+$")
            io.stdout:flush()
            local f = io.open(dir .. "/hold")
            while f do
              f:close()
              tm.sleep(0.005)
              f = io.open(dir .. "/hold")
            end
          end } } }
        evaluator:start()
        print "caught up"
        return
      end
      local strategy = tm.distribute.ParameterServerStrategy(resolver)
      local m = strategy:scope(make)
      m:fit(X, { y = X * 2, batch_size = 4, epochs = 4, verbose = 0, callbacks = {
        tm.callbacks.ModelCheckpoint(dir .. "/ckpt-{epoch}", { save_weights_only = true }) } })
      print "trained"
    ]]

    it("launch --evaluators starts them, and ends when they have caught up", function()
      local p = P.run { "launch", "--workers", "1", "--ps", "1", "--evaluators", "2", P.script(TRAINING), dir }
      assert.equal(0, p:wait(60), p:err())
      local n = {}
      for k in p:out():gmatch "begins (%d+)" do n[#n + 1] = tonumber(k) end
      table.sort(n)
      assert.same({ 1, 2, 3, 4 }, n, p:out() .. p:err())
      local _, caught = p:out():gsub("caught up", "")
      assert.equal(2, caught)
      local steps = {}
      for i, e in ipairs(scalars(dir .. "/validation")) do steps[i] = e.step end
      assert.same({ 4, 8, 12, 16 }, steps)
    end)

    it("launch starts an evaluator again that was killed, and what it had is done", function()
      os.execute("mkdir -p '" .. dir .. "'")
      hold ""
      os.rename(dir .. "/hold-", dir .. "/hold")
      local p = P.run { "launch", "--workers", "1", "--ps", "1", "--evaluators", "1", P.script(TRAINING), dir }
      assert.truthy(p:says("begins 1", 30), p:err())
      local pid = assert(P.task("evaluator", 0))
      P.signal("INT", pid) -- Ctrl-C is for the chief
      P.sleep(0.1)
      assert.equal(pid, P.task("evaluator", 0))
      P.signal("KILL", pid)
      assert.truthy(p:says("/job:evaluator/task:0 ended %(signal 9%)", 30))
      os.remove(dir .. "/hold")
      assert.equal(0, p:wait(60), p:err())
      assert.same(4, #scalars(dir .. "/validation"))
    end)

    it("launch ends evaluators that do not end when their time is over", function()
      os.execute("mkdir -p '" .. dir .. "'")
      hold ""
      os.rename(dir .. "/hold-", dir .. "/hold")
      local p = P.run { "launch", "--workers", "1", "--ps", "1", "--evaluators", "1", "--catch-up", "1",
        P.script(TRAINING), dir }
      assert.equal(0, p:wait(60), p:err())
      assert.truthy(p:err():find("evaluators are not done 1 s after the chief", 1, true))
    end)
  end)
end)
