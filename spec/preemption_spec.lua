-- Preemption: tasks are asked to leave, by real signals, files and servers, and do.
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 }, OPTIONS)
local v = strategy:scope(function() return tm.Variable(0, { dtype = "int64", name = "counter" }) end)
local c = D.ClusterCoordinator(strategy)
local count = tm.func(function() v:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.02) v:assign_add(1) end)
local long = tm.func(function() tm.sleep(1) v:assign_add(1) end)
]]

local T

--- Workers and ps are started, with these arguments.
local function cluster(args)
  T = tasks.new(P, { workers = 2, ps = 1 })
  return T:start(args)
end

local function chief(text, more)
  local options = "heartbeat_interval = 0.2, heartbeat_timeout = 3, " .. (more or "")
  return T:chief((head:gsub("OPTIONS", "{ " .. options .. " }")) .. text)
end

local function ended(p, status, seconds)
  assert.equal(status, p:wait(seconds or 10), p:out() .. p:err())
end

local function said(p, text)
  assert.is_truthy((p:out() .. p:err()):find(text, 1, true), p:out() .. p:err())
end

local function says(p, pattern) assert.is_truthy(p:says(pattern, 15), p:out() .. p:err()) end

local function put(path, text)
  local f = assert(io.open(path, "w"))
  f:write(text)
  f:close()
end

local function after_all()
  assert.same({}, P.cleanup())
  if T then assert.equal(0, P.listeners(T.ports)) end
  T = nil
end

describe("preemption of a worker", function()
  after_each(after_all)

  it("by SIGTERM is the chief's message; it finishes its closure, the others run elsewhere", function()
    local all = cluster()
    local p = chief [[
      local w = D.PreemptionWatcher()
      say(w.preemption_message)
      w:on_message(function(text, task) say("message", text, task) end)
      for _ = 1, 4 do c:schedule(long) end
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), w.preemption_message, c:stats().retries)
      say("gone", w:block_until_worker_exit{ timeout = 5 }, c:stats().workers[2].state)
    ]]
    says(p, "go")
    P.sleep(0.3) -- a long closure runs
    all.worker[2]:kill "TERM"
    ended(all.worker[2], 0, 3)
    ended(p, 0)
    local text = "/job:worker/task:1: SIGTERM"
    assert.equal(("nil\ngo\nmessage\t%s\t/job:worker/task:1\n104\t%s\t0\ngone\ttrue\tdown\n"):format(text, text),
      p:out(), p:err())
  end)

  it("is over when a replacement comes back into work", function()
    local all = cluster()
    local p = chief [[
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      w:block_until_worker_exit()
      say "gone"
      local before = c:stats().workers[1].steps
      while c:stats().workers[1].steps < before + 5 do
        for _ = 1, 20 do c:schedule(count) end
        c:join()
        tm.sleep(0.01)
      end
      say("back", D.PreemptionWatcher().preemption_message)
    ]]
    says(p, "go")
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 0, 3)
    says(p, "gone")
    all:task("worker", 0)
    ended(p, 0)
    said(p, "back\tnil")
  end)

  it("block_until_worker_exit waits for the process, whatever was closed", function()
    local all = cluster()
    local fifo = P.dir() .. "/fifo"
    os.execute("mkfifo " .. fifo)
    local p = chief((([[
      local w = D.PreemptionWatcher()
      for _ = 1, 4 do c:schedule(long) end
      say "go"
      while not w.preemption_message do tm.sleep(0.01) end
      say "message"
      io.open(...):close()
      c:close()
      say("closed", w:block_until_worker_exit{ timeout = 0.2 })
      say(w:block_until_worker_exit())
    ]]):gsub("%.%.%.", ("%q"):format(fifo))))
    says(p, "go")
    P.sleep(0.2)
    all.worker[1]:kill "TERM"
    says(p, "message")
    all.worker[1]:kill "STOP"
    assert(io.open(fifo, "w")):close()
    says(p, "closed\tfalse")
    all.worker[1]:kill "KILL"
    ended(p, 0)
    said(p, "closed\tfalse\ntrue\n")
  end)

  it("by a second SIGTERM ends it at once, and its started closure runs elsewhere, once", function()
    local all = cluster()
    local p = chief [[
      for _ = 1, 6 do c:schedule(long) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    says(p, "go")
    P.sleep(0.3)
    all.worker[1]:kill "TERM"
    P.sleep(0.2)
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 143, 5)
    ended(p, 0)
    assert.equal("go\n6\n", p:out())
  end)

  it("ends it at once when the grace period is over, and its started closure runs elsewhere, once", function()
    local all = cluster { "--grace", "0.2" }
    local p = chief [[
      for _ = 1, 6 do c:schedule(long) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    says(p, "go")
    P.sleep(0.3)
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 143, 5)
    said(all.worker[1], "grace period")
    ended(p, 0)
    assert.equal("go\n6\n", p:out())
  end)

  it("by its --preemption-file and --preemption-url", function()
    local dir = P.dir()
    local server = P.start { P.tidemill:gsub("tidemill$", "httpd"), dir }
    local port = assert(server:says "%d+", "no port: make tools builds its server")
    T = tasks.new(P, { workers = 2, ps = 1 })
    T:task("ps", 0)
    T:task("worker", 0, { "--preemption-interval", "0.05", "--preemption-file", dir .. "/leave" })
    T:task("worker", 1, { "--preemption-interval", "0.05", "--preemption-url",
      ("http://127.0.0.1:%s/when"):format(port),
      "--preemption-header", "X-Who: me" })
    local p = chief [[
      local w = D.PreemptionWatcher():on_message(say)
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      c:schedule(slow):fetch()
      while not w.preemption_message:find "task:1" do c:schedule(slow):fetch() end
      say(w:block_until_worker_exit())
    ]]
    says(p, "go")
    put(dir .. "/leave", "the node is drained\n")
    ended(T.worker[1], 0, 3)
    put(dir .. "/_when", "200 X-Who: me\nTRUE\n")
    ended(T.worker[2], 0, 3)
    ended(p, 0)
    said(p, ("/job:worker/task:0: %s/leave: the node is drained\t/job:worker/task:0\n"):format(dir))
    said(p, ("/job:worker/task:1: http://127.0.0.1:%s/when: TRUE\t/job:worker/task:1\ntrue\n"):format(port))
    server:kill()
  end)

  it("again and again costs no closure and doubles none", function()
    local all, stop = cluster(), P.dir() .. "/stop"
    local p = chief((([[
      local w = D.PreemptionWatcher()
      local n, values = 0, {}
      local next_one = tm.func(function() v:assign_add(1) return v + 0 end)
      say "go"
      while not io.open(..., "r") do
        for _ = 1, 200 do values[#values + 1] = c:schedule(next_one) end
        c:join()
      end
      for _, r in ipairs(values) do n = n + (r:fetch() > 0 and 1 or 0) end
      say(v:read():item() == #values and "exact", n == #values, c:stats().steps == #values)
    ]]):gsub("%.%.%.", ("%q"):format(stop))))
    says(p, "go")
    for i = 1, 8 do
      local k = i % 2
      P.sleep(0.05 + 0.013 * i)
      all.worker[k + 1]:kill "TERM"
      ended(all.worker[k + 1], 0, 3)
      all:task("worker", k)
      assert.is_truthy(all.worker[k + 1]:says "listens")
    end
    assert(io.open(stop, "w")):close()
    ended(p, 0)
    assert.equal("go\nexact\ttrue\ttrue\n", p:out())
  end)

  it("13. when all leave gracefully, one after the other, nothing dead-locks", function()
    local all = cluster()
    local p = chief [[
      for _ = 1, 150 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    says(p, "go")
    for i = 1, 2 do
      P.sleep(0.2)
      all.worker[i]:kill "TERM"
      ended(all.worker[i], 0, 3)
    end
    assert.is_nil(p:status())
    all:task("worker", 1)
    ended(p, 0)
    assert.equal("go\n150\n", p:out())
  end)

  it("without a chief, or idle, ends it at once with status 0", function()
    local all = cluster()
    all.worker[1]:says "listens"
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 0, 3)
    all:task("worker", 0)
    local p = chief [[
      say "go"
      io.read()
      tm.sleep(0.3)
      say(c:schedule(function() return v + 5 end):fetch())
    ]]
    says(p, "go")
    all.worker[2]:kill "TERM"
    ended(all.worker[2], 0, 3)
    ended(p, 0)
    assert.equal("go\n5\n", p:out(), p:err())
  end)

  it("of a script with Server:join, when it has a watcher", function()
    T = tasks.new(P, { workers = 2, ps = 1 })
    T:task("ps", 0)
    T:task("worker", 0)
    local text = [[
      local tm = require "tidemill"
      local w = tm.distribute.PreemptionWatcher()
      local r = tm.distribute.resolver{ workers = 2, ps = 1 }
      local s = tm.distribute.Server{ cluster_spec = r:cluster_spec(), job_name = r.task_type, task_index = r.task_id }
      s:join()
      print("left", w.preemption_message)
    ]]
    local other = P.run({ "--no-role", P.script(text) }, T:env("worker", 1))
    local p = chief [[
      local w = D.PreemptionWatcher()
      for _ = 1, 4 do c:schedule(long) end
      say "go"
      c:join()
      say(v:read():item(), w.preemption_message, c:stats().retries)
    ]]
    says(p, "go")
    P.sleep(0.3)
    other:kill "TERM"
    ended(other, 0, 3)
    assert.equal("left\t/job:worker/task:1: SIGTERM\n", other:out())
    ended(p, 0)
    assert.equal("go\n4\t/job:worker/task:1: SIGTERM\t0\n", p:out())
  end)
end)

describe("preemption of a ps", function()
  after_each(after_all)

  it("is a message too; it serves on until the chief has gone", function()
    local all = cluster()
    local p = chief [[
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      for _ = 1, 30 do c:schedule(slow) end
      c:join()
      say(w.preemption_message, w:block_until_worker_exit{ timeout = 0.1 })
    ]]
    says(p, "go")
    all.ps[1]:kill "TERM"
    ended(p, 0)
    assert.equal("go\n/job:ps/task:0: SIGTERM\tfalse\n", p:out(), p:err())
    ended(all.ps[1], 0, 5)
  end)

  it("ends it when the grace period is over, which names it as lost", function()
    local all = cluster { "--grace", "0.3" }
    local p = chief [[
      local w = D.PreemptionWatcher()
      say "go"
      local ok, e
      repeat ok, e = pcall(function() c:schedule(slow):fetch() end) until not ok
      say(e.code, e.task, w.preemption_message, w:block_until_worker_exit())
    ]]
    says(p, "go")
    all.ps[1]:kill "TERM"
    ended(all.ps[1], 0, 5)
    ended(p, 0)
    assert.equal("go\nunavailable\t/job:ps/task:0\t/job:ps/task:0: SIGTERM\ttrue\n", p:out(), p:err())
  end)
end)

describe("a task that leaves", function()
  after_each(after_all)

  it("takes no other chief: whoever connects meanwhile gets its replacement", function()
    local all = cluster()
    local first = chief [[
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do tm.sleep(0.01) end
      say "leaving"
      tm.sleep(60)
    ]]
    says(first, "go")
    all.ps[1]:kill "TERM"
    says(first, "leaving")
    local second = chief "c:schedule(count):fetch() say(v:read():item())"
    P.sleep(0.3)
    assert.is_nil(second:status())
    first:kill "KILL"
    ended(all.ps[1], 0, 5)
    all:task("ps", 0)
    ended(second, 0)
    assert.equal("1\n", second:out())
  end)
end)

describe("preemption of the chief", function()
  after_each(after_all)

  it("without a watcher ends it after its files are closed, with status 143", function()
    local dir = P.dir()
    local endings = { "tm.sleep(60)", "while true do end", "while true do pcall(tm.sleep, 60) end",
      "local c = coroutine.wrap(function() tm.sleep(60) end) c()" }
    -- ThreadSanitizer holds signals back while nothing but Lua runs; LuaJIT compiles the loop.
    local build = os.getenv "TM_BUILD" or ""
    if build:find "tsan" or build:find "luajit" then table.remove(endings, 2) end
    for _, ending in ipairs(endings) do
      local p = P.run { P.script(([[
        local tm = require "tidemill"
        file = io.open(%q, "w")
        file:write "not flushed yet"
        print "go" io.stdout:flush()
        %s
      ]]):format(dir .. "/file", ending)) }
      says(p, "go")
      P.sleep(0.05)
      p:kill "TERM"
      ended(p, 143, 5)
      assert.equal("tidemill: ended by SIGTERM\n", p:err())
      assert.equal("not flushed yet", io.open(dir .. "/file"):read "a")
    end
  end)

  it("without a watcher ends a script that waits for its cluster, and the cluster waits for the next chief", function()
    local all = cluster()
    local text = [[
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    local p = chief(text)
    says(p, "go")
    P.sleep(0.2)
    p:kill "TERM"
    ended(p, 143, 5)
    p = chief(text)
    ended(p, 0)
    assert.equal("go\n100\n", p:out())
    all:each(function(task) assert.is_nil(task:status()) end)
  end)

  it("with a watcher is a message, and the script decides", function()
    cluster()
    local p = chief [[
      local w = D.PreemptionWatcher()
      for _ = 1, 60 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), w.preemption_message, w:block_until_worker_exit())
    ]]
    says(p, "go")
    p:kill "TERM"
    P.sleep(0.1)
    p:kill "TERM"
    ended(p, 0)
    assert.equal("go\n60\t/job:chief/task:0: SIGTERM\ttrue\n", p:out())
  end)

  it("runs on_message at a safe point: in a wait, and in calls of the coordinator; it may os.exit", function()
    for _, text in ipairs { "c:schedule(long) c:schedule(long) c:schedule(long) c:join()",
      "while true do c:schedule(count) end", "while true do c:done() end",
      "c:schedule(long) c:schedule(long) c:schedule(long):fetch()" } do
      cluster()
      local p = chief(([[
        local inside
        D.PreemptionWatcher():on_message(function(text, task)
          say(text, task, coroutine.isyieldable(), v:read():item() >= 0)
          os.exit(7, true)
        end)
        say "go"
        %s
        say "not reached"
      ]]):format(text))
      says(p, "go")
      P.sleep(0.1)
      p:kill "TERM"
      ended(p, 7, 3)
      assert.equal("go\n/job:chief/task:0: SIGTERM\t/job:chief/task:0\tfalse\ttrue\n", p:out(), p:err())
      after_all()
    end
  end)

  it("runs on_message at a step of fit, which goes on", function()
    local p = P.run { P.script [[
      local tm = require "tidemill"
      local watcher, told = tm.distribute.PreemptionWatcher(), {}
      watcher:on_message(function(text) told[#told + 1] = text end)
      local m = tm.Sequential { tm.layers.Dense { units = 1 } }
      m:compile { optimizer = "sgd", loss = "mse" }
      local last, until_told = 0
      m:fit(tm.data.from_tensors { tm.ones { 1, 2 }, tm.ones { 1, 1 } }:batch(1):rep(), { steps_per_epoch = 100000,
        verbose = 0, callbacks = { { on_train_batch_end = function(cb, batch)
          last = batch
          if batch == 3 then os.execute "kill -TERM $PPID" end
          if told[1] and not until_told then until_told = batch end
          if until_told and batch == until_told + 5 then cb.model.stop_training = true end
        end } } })
      print(told[1], #told, last - until_told)
    ]] }
    assert.equal(0, p:wait(30), p:err())
    assert.matches("SIGTERM\t1\t5\n$", p:out())
  end)

  it("an error of on_message is raised by the wait", function()
    cluster()
    local p = chief [[
      local w = D.PreemptionWatcher()
      w:on_message(function(text) error("stop: " .. text, 0) end)
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      say(pcall(c.join, c))
      c:join()
      say(v:read():item())
    ]]
    says(p, "go")
    P.sleep(0.1)
    p:kill "TERM"
    ended(p, 0)
    assert.equal("go\nfalse\tstop: /job:chief/task:0: SIGTERM\n100\n", p:out())
  end)

  it("ends it when its watcher was closed, and when its launcher is gone", function()
    local p = P.run { P.script [[
      local tm = require "tidemill"
      local w = tm.distribute.PreemptionWatcher()
      w:close()
      w:close()
      print "go" io.stdout:flush()
      tm.sleep(60)
    ]] }
    says(p, "go")
    p:kill "TERM"
    ended(p, 143, 5)
    p = P.run { "launch", "--workers", "1", "--ps", "1", P.script [[
      local tm = require "tidemill"
      tm.distribute.PreemptionWatcher()
      print "go" io.stdout:flush()
      tm.sleep(60)
    ]] }
    says(p, "go")
    p:kill "KILL"
    ended(p, 137, 2)
    assert.is_truthy(P.eventually(3, function() return #P.alive() == 0 end))
  end)
end)

describe("examples/preemption.lua", function()
  after_each(after_all)

  local dir

  local function example(steps)
    return P.run({ "examples/preemption.lua", dir, tostring(steps or 300), "0.01" }, T:env("chief", 0))
  end

  before_each(function()
    dir = P.dir()
    cluster()
  end)

  local function trained(p)
    ended(p, 0, 20)
    said(p, "done: y = 3.00 x1 -2.00 x2 +1.00\n")
  end

  it("survives SIGTERM of a worker: the loop does not even notice", function()
    local p = example()
    says(p, "step 60,")
    T.worker[1]:kill "TERM"
    ended(T.worker[1], 0, 3)
    T:task("worker", 0)
    trained(p)
    said(p, "preempted: /job:worker/task:0: SIGTERM\n")
    assert.is_falsy(p:out():find "connects again", p:out())
    said(p, "step 300,")
  end)

  it("survives SIGTERM of the chief: started again it goes on from the checkpoint", function()
    local p = example()
    says(p, "step 60,")
    p:kill "TERM"
    ended(p, 143, 5)
    said(p, "preempted: /job:chief/task:0: SIGTERM\n")
    local last
    for n in p:out():gmatch "step (%d+)," do last = tonumber(n) end
    p = example()
    trained(p)
    local from = tonumber(p:out():match "^goes on from step (%d+)\n")
    assert.is_true(from >= last and from < last + 40, ("%d after %d"):format(from, last))
  end)

  it("survives SIGTERM of all of a machine: launch has the chief save first", function()
    local function launch()
      return P.run { "launch", "--workers", "2", "--ps", "1", "examples/preemption.lua", dir, "300", "0.01" }
    end
    local p = launch()
    says(p, "step 60,")
    p:kill "TERM"
    ended(p, 143, 5)
    said(p, "preempted: /job:chief/task:0: SIGTERM\n")
    p = launch()
    trained(p)
    assert.is_true(tonumber(p:out():match "goes on from step (%d+)\n") >= 60, p:out())
  end)

  it("survives SIGTERM of a ps: it waits for the replacement and connects again", function()
    local p = example()
    says(p, "step 60,")
    T.ps[1]:kill "TERM"
    ended(T.ps[1], 0, 3)
    T:task("ps", 0)
    trained(p)
    said(p, "preempted: /job:ps/task:0: SIGTERM\n")
    said(p, "connects again after: unavailable: /job:ps/task:0 is lost")
    local from = tonumber(p:out():match "goes on from step (%d+)\n")
    assert.is_true(from >= 60, p:out())
  end)
end)

describe("preemption_checkpoint", function()
  after_each(after_all)

  --- What a new chief finds in the latest checkpoint of a directory, as a prefix or whole.
  local restore = [[
    local tm = require "tidemill"
    local v = tm.Variable(0, { dtype = "int64" })
    local path = tm.train.latest_checkpoint(...)
    tm.train.Checkpoint{ WHAT }:restore(path):assert_existing_objects_matched()
    print(v:read():item())
  ]]

  local function restored(dir, what)
    local p = P.run { P.script((restore:gsub("WHAT", what or "v = v"))), dir }
    ended(p, 0)
    return tonumber(p:out())
  end

  it("saves at a message within the grace period; the chief then ends, and a new one goes on from there", function()
    cluster()
    local dir = P.dir()
    local text = ([[
      c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v }, %q)
      say "go"
      while true do c:schedule(slow):fetch() say(v:read():item()) end
    ]]):format(dir)
    local p = chief(text, "preemption_checkpoint = true")
    says(p, "go\n1\n2\n")
    p:kill "TERM"
    ended(p, 143, 5)
    local last = tonumber(p:out():match "(%d+)\n$")
    local n = restored(dir)
    assert.is_true(n == last or n == last + 1, ("%d after %d"):format(n, last))
    local lines = 0
    for _ in p:err():gmatch "saved" do lines = lines + 1 end
    assert.equal(1, lines, p:err())
  end)

  it("leaves the end to the script when there is a watcher", function()
    cluster()
    local dir = P.dir()
    local p = chief(([[
      local checkpoint = tm.train.Checkpoint{ v = v }
      c.checkpoint_manager = tm.train.CheckpointManager(checkpoint, %q)
      local w = D.PreemptionWatcher()
      for _ = 1, 50 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), #c.checkpoint_manager.checkpoints)
    ]]):format(dir), "preemption_checkpoint = true")
    says(p, "go")
    p:kill "TERM"
    ended(p, 0, 3)
    assert.equal("go\n50\t1\n", p:out())
    assert.is_true(restored(dir) <= 50)
  end)

  it("takes a manager, or the prefix of a path", function()
    for _, way in ipairs { "manager", "prefix" } do
      cluster()
      local dir = P.dir()
      local p = T:chief(([[
        local tm = require "tidemill"
        local D = tm.distribute
        local checkpoint = tm.train.Checkpoint{}
        local manager = tm.train.CheckpointManager(checkpoint, %q)
        local s = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 },
          { preemption_checkpoint = %s })
        local v = s:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
        checkpoint.v = v
        local c = D.ClusterCoordinator(s)
        print "go" io.stdout:flush()
        while true do c:schedule(function() v:assign_add(1) end):fetch() end
      ]]):format(dir, way == "manager" and "manager" or ("%q"):format(dir .. "/ckpt")))
      says(p, "go")
      P.sleep(0.1)
      p:kill "TERM"
      ended(p, 143, 5)
      assert.is_true(restored(dir, way == "prefix" and "variables = { v }") > 0)
      after_all()
    end
  end)

  it("of a ps that leaves is saved first, then the ps ends, and its replacement gets the values back", function()
    local all = cluster()
    local dir = P.dir()
    local p = chief(([[
      c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v }, %q)
      say "go"
      for _ = 1, 150 do c:schedule(slow):fetch() end
      say(v:read():item() >= 149, c:stats().rollbacks)
    ]]):format(dir), 'preemption_checkpoint = true, on_ps_failure = "restore"')
    says(p, "go")
    P.sleep(0.3)
    all.ps[1]:kill "TERM"
    ended(all.ps[1], 0, 3)
    all:task("ps", 0)
    ended(p, 0)
    assert.is_truthy(p:out():find "go\ntrue\t%d+\n", p:out() .. p:err())
  end)

  it("that cannot be saved leaves the ps its grace period", function()
    local all = cluster()
    local p = chief([[
      c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v }, "/proc/nowhere/runs")
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      for _ = 1, 20 do c:schedule(slow) end
      c:join()
      say(w.preemption_message)
    ]], "preemption_checkpoint = true")
    says(p, "go")
    all.ps[1]:kill "TERM"
    ended(p, 0)
    assert.equal("go\n/job:ps/task:0: SIGTERM\n", p:out(), p:err())
    said(p, "nothing was saved")
  end)

  it("says what it lacks", function()
    cluster()
    local p = chief([[
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      for _ = 1, 50 do c:schedule(slow):fetch() end -- two watchers see it, each in its time
      say "end"
    ]], "preemption_checkpoint = true")
    says(p, "go")
    p:kill "TERM"
    ended(p, 0)
    said(p, "coordinator.checkpoint_manager is not set")
    p = chief("", "preemption_checkpoint = 5")
    ended(p, 1)
    said(p, "preemption_checkpoint is a CheckpointManager, the prefix of a path, or true")
  end)
end)
