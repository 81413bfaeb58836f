-- What users of other systems asked for about tasks that die, tasks that never end, and the
-- data of tasks, by the number of the thread in the list of such threads (docs/failures.md).
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 },
  { heartbeat_interval = 0.2, heartbeat_timeout = 1.5, chief_timeout = 0.6 })
local v = strategy:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
local c = D.ClusterCoordinator(strategy)
local slow = tm.func(function() tm.sleep(0.01) v:assign_add(1) end)
]]

local function no_trouble(p)
  for _, word in ipairs { "core", "abort", "Segmentation", "sanitizer", "traceback" } do
    assert.is_falsy(p:err():find(word), p:err())
  end
end

describe("pain point", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("4 (dmlc/ps-lite#148): a failed scheduler, server or worker is restarted and the job goes on", function()
    local dir = P.dir()
    local p = P.run { "launch", "--workers", "2", "--ps", "2", "--restart-chief", P.script(head .. ([[
      local manager = tm.train.CheckpointManager(tm.train.Checkpoint { v = v }, %q)
      manager:restore_or_initialize()
      local from = v:read():item()
      say("from", from)
      for at = from + 10, 60, 10 do
        for _ = 1, 10 do c:schedule(slow) end
        c:join()
        assert(manager:save())
        say("at", v:read():item())
        if at == 50 then tm.sleep(0.2) end
      end
      say "done"
    ]]):format(dir)) }
    for i, who in ipairs { { "worker", 1 }, { "ps", 0 }, { "chief", 0 } } do
      assert.is_truthy(p:says("at\t" .. 10 * i .. "\n"), p:out() .. p:err())
      local pid = P.task(who[1], who[2])
      if pid then P.signal("KILL", pid) end
      -- A chief may have ended by itself, at the loss of the ps before.
      local line = ("/job:%s/task:%d ended (%s"):format(who[1], who[2], who[1] == "chief" and "" or "signal 9")
      assert.is_truthy(P.eventually(10, function() return p:err():find(line, 1, true) end), p:err())
    end
    assert.equal(0, p:wait(40), p:out() .. p:err())
    assert.is_truthy(p:out():find "at\t60\ndone\n$", p:out() .. p:err())
    local last = 0
    for word, n in p:out():gmatch "(%l+)\t(%d+)" do
      assert.equal(0, n % 10, p:out())
      assert.is_true(word == "at" or tonumber(n) >= last - 10, p:out())
      last = tonumber(n)
    end
  end)

  it("5 (apache/mxnet#9709): a node reboots and no other node stalls", function()
    local T = clusters.start(3, 1)
    local boss = T:chief(head:gsub("workers = 2, ps = 2", "workers = 3, ps = 1") .. [[
      for _ = 1, 400 do c:schedule(slow) end
      local before, longest, at = 0, 0, tm.time()
      say "go"
      while not c:done() do
        local n = c:stats().steps
        local now = tm.time()
        if n > before then before, at = n, now end
        longest = math.max(longest, now - at)
        tm.sleep(0.002)
      end
      say(v:read():item(), c:stats().workers[2].state, longest < 0.2 and "no stall" or longest)
    ]])
    assert.is_truthy(boss:says "go")
    P.sleep(0.2)
    T:kill("worker", 1)
    P.sleep(0.3) -- it boots
    T:run("worker", 1)
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    assert.equal("go\n400\tready\tno stall\n", boss:out(), boss:err())
  end)

  it("6 (apache/mxnet#2268): servers and workers end by themselves when their peers have died", function()
    local T = clusters.start(2, 2)
    local boss = T:chief(head .. "say 'go' for _ = 1, 1000 do c:schedule(slow) end c:join()")
    assert.is_truthy(boss:says "go")
    P.sleep(0.1)
    boss:kill()
    local t = P.now()
    T:each(function(p)
      assert.equal(1, p:wait(4), p:err())
      assert.is_truthy(p:err():find("no chief came for 0.6 s", 1, true), p:err())
      no_trouble(p)
    end)
    assert.is_true(P.now() - t > 0.5)
  end)

  it("7 (apache/mxnet#7153): recovery is the core's: also when stock Lua runs the chief", function()
    local T = clusters.start(2, 2)
    local script = P.script(head .. [[
      for _ = 1, 200 do c:schedule(slow) end
      say "go"
      c:join { timeout = 10 }
      say(v:read():item())
      c:close()
    ]])
    local boss = P.start({ os.getenv "LUA" or "lua5.4", script }, { TM_CONFIG = T:config("chief", 0) })
    assert.is_truthy(boss:says "go", boss:err())
    P.sleep(0.1)
    T:kill("worker", 0)
    T:run("worker", 0)
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    assert.equal("go\n200\n", boss:out())
  end)

  it("8 (bytedance/byteps#437): a straggler keeps what it has begun, nothing else waits for it", function()
    local T = clusters.start(2, 1)
    local boss = T:chief(head:gsub("ps = 2", "ps = 1") .. [[
      local nap = tm.func(function() tm.sleep(1.2) v:assign_add(1) end)
      for _ = 1, 20 do c:schedule(slow) end
      c:join()
      local last = c:schedule(nap)
      local list, t = {}, tm.time()
      for i = 1, 30 do list[i] = c:schedule(slow) end
      for i = 1, 30 do list[i]:get() end
      say(tm.time() - t < 1.1 or tm.time() - t, last:done())
      c:join()
      say(v:read():item())
    ]])
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    assert.equal("true\tfalse\n51\n", boss:out())
  end)

  it("12 (horovod/horovod#3264): all workers of one host die, the survivors go on", function()
    local T = clusters.start(4, 1)
    local boss = T:chief(head:gsub("workers = 2, ps = 2", "workers = 4, ps = 1") .. [[
      for _ = 1, 300 do c:schedule(slow) end
      say "go"
      c:join { timeout = 10 }
      local w = c:stats().workers
      say(v:read():item(), w[1].state, w[2].state)
    ]])
    assert.is_truthy(boss:says "go", boss:err())
    P.sleep(0.1)
    for i = 2, 3 do T.tasks.worker[i]:kill() end
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    assert.equal("go\n300\tready\tready\n", boss:out(), boss:err())
    for i = 0, 1 do
      assert.is_nil(T.tasks.worker[i]:status())
      no_trouble(T.tasks.worker[i])
    end
  end)

  it("14 (pytorch/pytorch#111646): a missed heartbeat is a lost worker, and nobody hangs", function()
    local T = clusters.start(2, 1)
    local boss = T:chief(head:gsub("ps = 2", "ps = 1"):gsub("heartbeat_timeout = 1.5", "heartbeat_timeout = 0.6") .. [[
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      c:join { timeout = 3 }
      say(v:read():item(), c:stats().workers[2].state ~= "ready")
      while c:stats().workers[2].state ~= "ready" do tm.sleep(0.01) end
      say "back"
    ]])
    assert.is_truthy(boss:says "go", boss:err())
    P.sleep(0.1)
    T:signal("STOP", "worker", 1)
    assert.is_truthy(boss:says("100\ttrue\n", 4), boss:out() .. boss:err())
    T:signal("CONT", "worker", 1)
    assert.equal(0, boss:wait(5), boss:out() .. boss:err())
    assert.is_truthy(boss:out():find "back\n$", boss:out())
  end)

  it("22 (tensorflow/tensorflow#61129): each worker has its part of the files, uneven or not", function()
    local T = clusters.start(2, 1)
    local names = {}
    for i, n in ipairs { 1, 4, 2 } do
      names[i] = T.dir .. ("/part %d.txt"):format(i)
      local file = assert(io.open(names[i], "w"))
      for k = 1, n do file:write(i * 10 + k, "\n") end
      file:close()
    end
    local boss = T:chief(head:gsub("ps = 2", "ps = 1") .. [[
      local function lines()
        return tm.data.text_line{ files = arg }:shard(2, D.current_worker_index())
          :map(function(line) tm.print("read", line) return line end)
      end
      local take = tm.func(function(i) tm.sleep(0.005) return D.current_worker_index(), i:next() end)
      -- Seven lines: one worker has four, the other three and then what stands for the end.
      local padded = c:create_per_worker_dataset(function()
        return lines():concatenate(tm.data.from_tensor_slices(tm.tensor { "" }):rep())
      end):iterator()
      local list, by = {}, { [0] = {}, {} }
      while #by[0] + #by[1] < 7 do
        for i = 1, 4 do list[i] = c:schedule(take, { padded }) end
        for _, r in ipairs(list) do
          local who, line = r:fetch()
          if line ~= "" then table.insert(by[who], line) end
        end
      end
      -- Without that, who has no more says so; the coordinator goes on.
      local bare = c:create_per_worker_dataset(lines):iterator()
      for _ = 1, 8 do c:schedule(take, { bare }) end
      local ok, e = pcall(c.join, c)
      assert(not ok and tm.is_error(e, "out_of_range") and e.task:find "^/job:worker/task:[01]$", tostring(e))
      -- A function that moved to another worker runs later than those scheduled after it.
      for k = 0, 1 do
        table.sort(by[k])
        say(table.concat(by[k], " "))
      end
      c:schedule(slow)
      c:join()
      say(v:read():item())
    ]], table.unpack(names))
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    assert.equal("11 22 24 32\n21 23 31\n1\n", boss:out(), boss:err())
    assert.is_nil(boss:err():find("read", 1, true))
    -- Their ops ran there, not on the chief, in the files' order.
    assert.is_truthy(T.tasks.worker[0]:err():find "read 11.*read 22.*read 24.*read 32", T.tasks.worker[0]:err())
    assert.is_truthy(T.tasks.worker[1]:err():find "read 21.*read 23.*read 31", T.tasks.worker[1]:err())
  end)

  it("69 (kubeflow/trainer#774, #661, #1059): servers end when the job is done, and their logs are kept", function()
    local T = clusters.start(2, 2)
    local text = head .. [[
      for _ = 1, 10 do c:schedule(slow) end
      c:schedule(function() tm.print("from", D.current_worker_index()) end)
      c:join()
    ]]
    local boss = T:chief(text .. "c:close { stop_tasks = true }")
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    local printed = 0
    T:each(function(p)
      assert.equal(0, p:wait(2), p:err())
      assert.is_truthy(p:err():find "^tidemill info: [^\n]*listens on [^\n]*\n", p:err())
      printed = printed + select(2, p:err():gsub("\nfrom [01]\n", ""))
    end)
    assert.equal(1, printed)
    -- Those of --once end with any end of the chief; under launch all do.
    T = clusters.start(2, 2, { "--once" })
    boss = T:chief(text)
    assert.equal(0, boss:wait(10), boss:out() .. boss:err())
    T:each(function(p) assert.equal(0, p:wait(2), p:err()) end)
  end)

  it("70 (PaddlePaddle/Paddle#44395, #37346): servers end together, in order, without a core dump", function()
    local p = P.run { "launch", "--workers", "2", "--ps", "3", P.script(head:gsub("ps = 2", "ps = 3") .. [[
      for _ = 1, 200 do c:schedule(slow) end
      say "go"
      tm.sleep(0.1)
    ]]) } -- the script ends in the midst of its work
    local t
    assert.is_truthy(p:says "go")
    assert.equal(0, p:wait(10), p:err())
    t = P.now()
    assert.is_truthy(P.eventually(1, function() return #P.alive() == 0 end))
    assert.is_true(P.within(0.5, t))
    no_trouble(p)
    assert.is_falsy(p:err():find "ended", p:err())
    local T = clusters.start(2, 3)
    local boss = T:chief(head:gsub("ps = 2", "ps = 3") .. [[
      for _ = 1, 200 do c:schedule(slow) end
      tm.sleep(0.1)
      c:close { stop_tasks = true }
    ]])
    assert.equal(0, boss:wait(10), boss:err())
    t = P.now()
    T:each(function(task)
      assert.equal(0, task:wait(2), task:err())
      no_trouble(task)
    end)
    assert.is_true(P.within(0.5, t))
  end)
end)
