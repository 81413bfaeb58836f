-- Ctrl-C that a script survives: SIGINT to real processes.
local P = dofile "spec/tools/process.lua"

-- Loops that LuaJIT has compiled look at no hook; ThreadSanitizer holds signals back in them.
local deaf = _VERSION == "Lua 5.1" or (os.getenv "TM_BUILD" or ""):find "tsan"

local head = [[
local tm = require "tidemill"
local D = tm.distribute
io.stdout:setvbuf "no"
local interrupt = require "tidemill.lib.interrupt"
]]

local function run(text) return P.run { P.script(head .. text) } end

local function launch(text)
  return P.run { "launch", "--workers", "2", "--ps", "1", P.script(head .. text) }
end

local function ends(p, status, seconds)
  assert.equal(status, p:wait(seconds or 10), p:out() .. p:err())
end

local function says(p, pattern) assert.is_truthy(p:says(pattern, 20), p:out() .. p:err()) end

describe("Ctrl-C", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("that a pcall caught is taken note of, and the script goes on", function()
    local p = run [[
      for i = 1, 2 do
        print("go " .. i)
        print(pcall(tm.sleep, 60))
        print("noted " .. i, tm.interrupted())
        for _ = 1, 1e5 do local _ = i end
      end
      tm.sleep(0.01)
      print("none", tm.interrupted())
    ]]
    for i = 1, 2 do
      says(p, "go " .. i)
      P.sleep(0.25) -- two within 0.2 s are one
      p:kill "INT"
      says(p, "noted " .. i .. "\ttrue")
    end
    ends(p, 0)
    assert.is_truthy(p:out():find "none\tfalse")
  end)

  it("ends a catch also where the work catches its errors", function()
    if deaf then return end
    local p = run [[
      local ok, e, interrupted = interrupt.catch(function()
        print "go"
        while true do pcall(function() while true do end end) end
      end)
      for _ = 1, 1e5 do local _ = ok end
      print(ok, tm.is_error(e, "cancelled"), interrupted)
      interrupt.over()
      print(interrupt.catch(function() error("mine", 0) end))
    ]]
    says(p, "go")
    p:kill "INT"
    ends(p, 0)
    assert.is_truthy(p:out():find "false\ttrue\ttrue\nfalse\tmine\tfalse\n", p:out())
  end)

  it("twice ends the program, unless the script went on after the first", function()
    local p = run [[
      interrupt.catch(function() print "go" tm.sleep(60) end)
      print "stopping"
      tm.sleep(60)
    ]]
    says(p, "go")
    p:kill "INT"
    says(p, "stopping")
    P.sleep(0.25)
    p:kill "INT"
    ends(p, 130)
  end)

  it("under launch leaves workers and ps to a chief that goes on, be it told alone or with all", function()
    local p = launch [[
      local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 })
      local v = strategy:scope(function() return tm.Variable(0) end)
      local c = D.ClusterCoordinator(strategy)
      for i = 1, 2 do
        local _, _, interrupted = interrupt.catch(function()
          for _ = 1, 4 do c:schedule(function() tm.sleep(60) end) end
          print("go " .. i)
          c:join()
        end)
        c:cancel()
        interrupt.over()
        print("interrupted " .. i, interrupted)
        tm.sleep(1)
        for _ = 1, 10 do c:schedule(function() v:assign_add(1) end) end
        c:join()
        print("count " .. i, v:read():item())
      end
    ]]
    for i = 1, 2 do
      says(p, "go " .. i)
      p[i == 1 and "kill" or "kill_group"](p, "INT")
      says(p, "interrupted " .. i .. "\ttrue")
      says(p, "count " .. i)
    end
    ends(p, 0)
    assert.is_truthy(p:out():find "count 2\t20", p:out())
  end)

  it("under launch ends all when the chief does not answer", function()
    local p = launch [[
      print "go"
      interrupt.catch(function() tm.sleep(60) end)
      print "stopping"
      tm.sleep(60)
    ]]
    says(p, "go")
    P.sleep(0.1)
    p:kill "INT"
    says(p, "stopping")
    P.sleep(0.25)
    p:kill "INT"
    ends(p, 130)
  end)
end)

-- A fit that takes long; what it says when it was interrupted, and how all goes on.
local long_fit = [[
  local how = ...
  local strategy = how == "cluster" and D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 }) or nil
  local model
  local function scope(fn) if strategy then return strategy:scope(fn) end return fn() end
  scope(function()
    model = tm.Sequential{ tm.layers.Lambda(function(x) tm.sleep(0.01) return x end), tm.layers.Dense{ units = 1 } }
    model:compile{ optimizer = "sgd", loss = "mse", run_eagerly = how == "eager" }
  end)
  local data = tm.data.from_tensor_slices{ tm.ones{ 8, 2 }, tm.ones{ 8, 1 } }:batch(4):rep()
  local hooks = { on_epoch_end = function(_, epoch) if epoch == 2 then print "go" end end }
  local function fit(n)
    return model:fit(data, { steps_per_epoch = 20, epochs = n, verbose = 0, callbacks = hooks })
  end
  for round = 1, 2 do
    if round == 2 then hooks.on_train_batch_end = function() end end
    local h = fit(100000)
    print("interrupted", h.interrupted, #h.loss >= 2 and #h.loss == #h.epoch)
    print("predicts", model:predict(tm.ones{ 3, 2 }, { verbose = 0 }).shape[1])
    local e = model:evaluate(tm.ones{ 4, 2 }, { y = tm.ones{ 4, 1 }, verbose = 0 })
    print("fits", #fit(1).loss, "evaluates", e.loss < 1e9)
    print "over"
  end
]]

--- Wait until it has printed a line n times.
local function says_so_often(p, line, n)
  local function count() return select(2, p:out():gsub(line .. "\n", "")) end
  assert.is_truthy(P.eventually(20, function() return count() >= n end), p:out() .. p:err())
  assert.equal(n, count())
end

describe("Ctrl-C in fit", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  local function go(p)
    for round = 1, 2 do
      says_so_often(p, "go", round)
      p:kill "INT"
      local at = P.now()
      says_so_often(p, "interrupted\ttrue\ttrue", round)
      assert.is_true(P.within(3, at), P.now() - at) -- a second, on a machine with time
      says_so_often(p, "over", round)
    end
    ends(p, 0)
    local _, n = p:out():gsub("predicts\t3\nfits\t1\tevaluates\ttrue\n", "")
    assert.equal(2, n, p:out() .. p:err())
  end

  local function script() return P.script(head .. long_fit) end

  it("ends it within a second with the history so far, and the model goes on: in one process", function()
    go(P.run { script(), "alone" })
  end)

  it("run eagerly", function()
    go(P.run { script(), "eager" })
  end)

  it("on a cluster in one process", function()
    go(P.run { script(), "cluster" })
  end)

  it("under launch", function()
    go(P.run { "launch", "--workers", "2", "--ps", "1", script(), "cluster" })
  end)

  it("calls on_train_end: the best weights come back, a backup stays", function()
    local dir = P.dir()
    for how, options in pairs { alone = {}, cluster = { "launch", "--workers", "2", "--ps", "1" } } do
      table.insert(options, P.script(head .. [[
        local how, dir = ...
        local strategy = how == "cluster" and D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 }) or nil
        local function scope(fn) if strategy then return strategy:scope(fn) end return fn() end
        local model = scope(function()
          local slow = tm.layers.Lambda(function(x) tm.sleep(0.01) return x end)
          local m = tm.Sequential{ slow, tm.layers.Dense{ units = 1 } }
          m:compile{ optimizer = "sgd", loss = "mse" }
          return m
        end)
        local best, ended
        local early = tm.callbacks.EarlyStopping{ monitor = "loss", mode = "max", patience = 10000,
          restore_best_weights = true }
        model:fit(tm.ones{ 8, 2 }, { y = tm.ones{ 8, 1 }, epochs = 100000, verbose = 0, batch_size = 1, callbacks = {
          early, tm.callbacks.BackupAndRestore(dir), {
            on_epoch_end = function(_, epoch)
              if epoch == 1 then best = model:get_weights()[1]:totable() end
              if epoch == 3 then print "go" end
            end,
            on_train_end = function(_, logs) ended = logs.loss end,
          } } })
        print("ended", ended ~= nil and early.best_epoch, model:get_weights()[1]:totable()[1][1] == best[1][1])
      ]]))
      table.insert(options, how)
      table.insert(options, dir .. "/" .. how)
      local p = P.run(options)
      says(p, "go")
      p:kill "INT"
      ends(p, 0, 20)
      assert.is_truthy(p:out():find "ended	1	true", p:out() .. p:err())
      local f = assert(io.open(dir .. "/" .. how .. "/checkpoint"))
      f:close()
    end
  end)

  it("ends an evaluation and a prediction with an error, and the script where nobody catches it", function()
    local p = run [[
      local strategy = D.ParameterServerStrategy(D.local_cluster{ workers = 2, ps = 1 })
      local model = strategy:scope(function()
        return tm.Sequential{ tm.layers.Lambda(function(x) tm.sleep(0.01) return x end) }
      end)
      local data = tm.data.range(100000):batch(1)
      print "go 1"
      print("caught", select(2, pcall(model.predict, model, data, { verbose = 0 })), tm.interrupted())
      print(strategy:_get_coordinator():stats().queued, strategy:_get_coordinator():stats().running)
      print "go 2"
      model:predict(data, { verbose = 0 })
    ]]
    says(p, "go 1")
    P.sleep(0.3)
    p:kill "INT"
    says(p, "go 2")
    P.sleep(0.3)
    p:kill "INT"
    ends(p, 1)
    assert.is_truthy(p:out():find "caught\tcancelled: [^\n]*interrupted[^\n]*\ttrue\n0\t0\n", p:out())
    assert.is_truthy(p:err():find "interrupted")
  end)
end)

-- A Ctrl-C of its own: os.execute would have the signal ignored meanwhile.
local own = [[
  local function ctrl_c() io.popen("kill -INT $PPID"):close() end
]]

describe("Ctrl-C in the middle of a trace", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("leaves no trace, scope or call of a layer open", function()
    local p = run(own .. [[
      local strategy = D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 1 })
      local layer = tm.layers.Lambda(function(x)
        ctrl_c()
        for _ = 1, 1e4 do pcall(function() for i = 1, 1e3 do local _ = i end end) end -- it catches what it can
        return x
      end)
      local ok, e, interrupted = interrupt.catch(function()
        strategy:scope(function()
          tm.func(function(x) return layer(x) end)(tm.tensor(1))
        end)
      end)
      interrupt.over()
      print("caught", ok, interrupted, require("tidemill.core").tracing(), require("tidemill.scope").current(),
        require("tidemill.layers.context").depth(), require("tidemill.trace").context())
      print("eager", (tm.tensor(1) + 1):item(), tm.Variable(2).device)
      strategy:close()
    ]])
    ends(p, 0)
    assert.is_truthy(p:out():find("caught\tfalse\ttrue\tfalse\tnil\t0", 1, true), p:out() .. p:err())
    assert.is_truthy(p:out():find "eager\t2%.?0?\t/job:chief/task:0", p:out() .. p:err())
  end)

  it("leaves no half of a layer or of a metric", function()
    local p = run(own .. [[
      local Two = tm.layers.Layer:extend "Two"
      function Two:build()
        self.a = self:add_weight { name = "a", regularizer = tm.regularizers.L2(0.1) }
        if not _G.late then ctrl_c() end
        self.b = self:add_weight { name = "b" }
      end
      function Two:call(x) return x * self.a + self.b end
      local model = tm.Sequential { Two(), tm.layers.Dense { units = 2 } }
      model:compile { loss = "mse", metrics = { tm.metrics.R2Score() } }
      local x = tm.ones { 8, 2 }
      print("first", model:fit(x, { y = x, verbose = 0 }).interrupted)
      late = true
      print("then", model:fit(x, { y = x, verbose = 0 }).interrupted, #model.weights, #model.losses)
    ]])
    ends(p, 0)
    assert.is_truthy(p:out():find("first\ttrue\nthen\tnil\t4\t1", 1, true), p:out() .. p:err())
  end)
end)

describe("coordinator:cancel", function()
  it("ends what is queued and what runs without an error", function()
    local tm = require "tidemill"
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 1 })
    local c = tm.distribute.ClusterCoordinator(strategy)
    local v = strategy:scope(function() return tm.Variable(0) end)
    local values = {}
    for i = 1, 10 do values[i] = c:schedule(function() tm.sleep(60) end) end
    local began = tm.time()
    c:cancel()
    assert.is_true(tm.time() - began < 10)
    for _, x in ipairs(values) do
      local ok, e = pcall(x.fetch, x)
      assert.is_true(not ok and tm.is_error(e, "cancelled"), tostring(e))
    end
    c:cancel()
    for _ = 1, 10 do c:schedule(function() v:assign_add(1) end) end
    c:join()
    assert.equal(10, v:read():item())
    c:schedule(function() tm.assert_true(tm.tensor(false), "mine") end)
    c:cancel()
    c:join()
    c:close()
  end)
end)
