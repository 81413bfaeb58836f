-- `tidemill launch`: a cluster of processes on one machine; how it ends, and what happens
-- when one of its processes dies or hangs.
local P = dofile "spec/tools/process.lua"

-- What every script here begins with: a strategy, a coordinator, a counter on ps 0.
local head = [[
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 },
  { heartbeat_interval = 0.2, heartbeat_timeout = 1.5, placement = "round_robin",
    worker_timeout = tonumber(os.getenv "WORKER_TIMEOUT") })
local v, other
strategy:scope(function()
  v = tm.Variable(0, { dtype = "int64", name = "counter" })
  other = tm.Variable(0, { name = "other" })
end)
local c = D.ClusterCoordinator(strategy)
local count = tm.func(function() v:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.02) v:assign_add(1) end)
local function try(f, ...)
  local t = tm.time()
  local ok, e = pcall(f, ...)
  say(ok and "fine" or ("%s %s %.1f"):format(e.code, e.task or "-", tm.time() - t), e)
  return ok, e
end
]]

local function launch(text, args, env, options)
  local words = { "launch", "--workers", "2", "--ps", "2" }
  for _, o in ipairs(options or {}) do words[#words + 1] = o end
  words[#words + 1] = P.script(head .. text)
  for _, a in ipairs(args or {}) do words[#words + 1] = a end
  return P.run(words, env)
end

local function lines(text)
  local n = 0
  for _ in text:gmatch "[^\n]+" do n = n + 1 end
  return n
end

describe("launch", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  --- It ended within 2 s and nothing is left.
  local function ended(p, status, seconds)
    assert.equal(status, p:wait(seconds or 2), p:out() .. p:err())
    assert.is_truthy(P.eventually(2, function() return #P.alive() == 0 end))
  end

  it("runs a script on its cluster and passes the chief's output through as it is", function()
    local p = launch([[
      for _ = 1, 100 do c:schedule(count) end
      c:join()
      say("count", v:read():item(), strategy.num_workers, strategy.num_ps, ...)
      io.stderr:write("to standard error\n")
      io.stdout:write("no end of line")
    ]], { "first", "--second" })
    ended(p, 0, 10)
    assert.equal("count\t100\t2\t2\tfirst\t--second\nno end of line", p:out())
    assert.is_truthy(("\n" .. p:err()):find "\nto standard error\n")
  end)

  it("puts the task before each line of workers and ps", function()
    local p = launch [[
      c:schedule(function() tm.print("from the worker", D.current_worker_index()) end)
      c:join()
    ]]
    ended(p, 0, 10)
    assert.equal("", p:out())
    assert.is_truthy(p:err():find "\n%[worker [01]%] from the worker [01]\n", p:err())
    for _, task in ipairs { "worker 0", "worker 1", "ps 0", "ps 1" } do
      assert.is_truthy(p:err():find("[" .. task .. "] tidemill info: /job:", 1, true), p:err())
    end
    assert.equal(5, lines(p:err()))
  end)

  it("runs the same program in one process", function()
    local text = [[
      for _ = 1, 100 do c:schedule(count) end
      c:join()
      say("count", v:read():item(), v.device, other.device)
    ]]
    local alone = P.run { P.script(head .. text) }
    assert.equal(0, alone:wait())
    local p = launch(text)
    ended(p, 0, 10)
    assert.equal("count\t100\t/job:ps/task:0\t/job:ps/task:1\n", p:out())
    assert.equal(alone:out(), p:out())
  end)

  it("exits with the chief's status", function()
    ended(launch "", 0, 10)
    ended(launch "os.exit(3)", 3, 10)
    ended(launch "os.exit(4, true)", 4, 10)
    local p = launch "error('uncaught')"
    ended(p, 1, 10)
    assert.is_truthy(p:err():find "uncaught" and p:err():find "stack traceback")
  end)

  it("says what is wrong with its own arguments", function()
    local function wrong(pattern, ...)
      local p = P.run { "launch", ... }
      assert.equal(2, p:wait(5))
      assert.is_truthy(p:err():find(pattern), p:err())
    end
    wrong("%-%-workers", "--ps", "1", "x.lua")
    wrong("%-%-ps", "--workers", "1", "x.lua")
    wrong("%-%-workers", "--workers", "none", "--ps", "1", "x.lua")
    wrong("no script", "--workers", "1", "--ps", "1")
    wrong("unknown option %-%-worker", "--worker", "1", "x.lua")
    local p = P.run { "launch", "--workers", "1", "--ps", "1", "/nowhere/x.lua" }
    assert.equal(1, p:wait(5))
    assert.equal("tidemill launch: cannot read /nowhere/x.lua: No such file or directory\n", p:err())
  end)

  it("ends all when the chief is killed, with status 137", function()
    local p = launch "say 'go' tm.sleep(60)"
    assert.is_truthy(p:says "go")
    P.signal("KILL", P.task("chief", 0))
    ended(p, 137)
  end)

  it("leaves nothing behind when it is killed itself", function()
    local p = launch "say 'go' tm.sleep(60)"
    assert.is_truthy(p:says "go")
    p:kill "KILL"
    ended(p, 137)
  end)

  it("ends all when it is told to, with status 143", function()
    local p = launch "say 'go' tm.sleep(60)"
    assert.is_truthy(p:says "go")
    p:kill "TERM"
    ended(p, 143)
  end)

  it("ends all at Ctrl-C, be it told alone or with all its processes", function()
    local texts = { "say 'go' for _ = 1, 1000 do c:schedule(slow) end c:join()", "say 'go' tm.sleep(60)" }
    -- ThreadSanitizer holds signals back while nothing but Lua runs, and a loop that LuaJIT
    -- has compiled looks at no hook.
    if not P.tidemill:find "tsan" and _VERSION ~= "Lua 5.1" then texts[3] = "say 'go' while true do end" end
    for _, how in ipairs { "kill", "kill_group" } do
      for _, text in ipairs(texts) do
        local p = launch(text)
        assert.is_truthy(p:says "go")
        P.sleep(0.05)
        p[how](p, "INT")
        ended(p, 1)
        assert.is_truthy(p:err():find "cancelled: [^\n]*interrupted", p:err())
        assert.is_falsy(p:err():find "is lost", p:err())
      end
    end
  end)

  it("ends a chief that hangs after Ctrl-C", function()
    local p = launch "say 'go' while true do pcall(tm.sleep, 60) end"
    assert.is_truthy(p:says "go")
    p:kill "INT"
    P.sleep(0.3)
    p:kill "INT"
    assert.is_truthy(p:wait(2))
    assert.is_truthy(P.eventually(2, function() return #P.alive() == 0 end))
  end)

  -- --- what dies and hangs ---

  it("runs closures of a killed worker elsewhere, each once", function()
    for _, kind in ipairs { "slow", "count" } do
      local p = launch(([[
        local n = %q == "slow" and 300 or 30000
        say "go"
        for _ = 1, n do c:schedule(%s) end
        c:join()
        local s = c:stats()
        say(n == v:read():item() and "exact", s.steps == n, s.workers[1].state)
        while c:stats().workers[2].state ~= "ready" do tm.sleep(0.01) end
        c:schedule(count):fetch()
        c:join { timeout = 5 }
        say(v:read():item() - n)
      ]]):format(kind, kind))
      assert.is_truthy(p:says "go")
      P.sleep(kind == "slow" and 0.1 or 0.02)
      P.signal("KILL", P.task("worker", 1))
      ended(p, 0, 20)
      assert.equal("go\nexact\ttrue\tready\n1\n", p:out(), p:err())
      assert.is_truthy(p:err():find "/job:worker/task:1 is lost", p:err())
    end
  end)

  it("gives closures of a worker that hangs to others, and its late updates are refused", function()
    local p = launch [[
      for _ = 1, 150 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), c:stats().workers[1].state)
      io.read()
      while c:stats().workers[1].state ~= "ready" do tm.sleep(0.01) end
      tm.sleep(0.3)
      say(v:read():item())
    ]]
    assert.is_truthy(p:says "go")
    P.sleep(0.1)
    local worker = P.task("worker", 0)
    P.signal("STOP", worker)
    assert.is_truthy(p:says("150\tdown", 10), p:out() .. p:err())
    P.signal("CONT", worker) -- standard input is at its end
    ended(p, 0, 5)
    assert.equal("go\n150\tdown\n150\n", p:out())
  end)

  it("waits when all workers are gone, and says unavailable after worker_timeout", function()
    local p = launch([[
      for _ = 1, 300 do c:schedule(slow) end
      say "go"
      try(c.join, c)
      try(c.schedule, c, count)
      try(c.join, c)
      try(v.read, v)
    ]], {}, { WORKER_TIMEOUT = "0.6" }, { "--no-restart" })
    assert.is_truthy(p:says "go")
    P.signal("KILL", P.task("worker", 1))
    P.sleep(0.1)
    P.signal("KILL", P.task("worker", 0))
    ended(p, 0, 5)
    local out = p:out():gsub("[^\n]*\n", "", 1)
    local line = "unavailable /job:worker/task:0 (%d+%.%d)%s[^\n]*worker_timeout[^\n]*\n"
    local first, second = out:match("^" .. line .. "fine[^\n]*\n" .. line .. "fine")
    assert.is_truthy(first, out)
    for _, waited in ipairs { first, second } do assert.is_true(tonumber(waited) >= 0.6, out) end
  end)

  it("names a killed ps at once, whatever waits", function()
    for task, uses in pairs { [0] = true, [1] = false } do -- ps 1 holds nothing that runs
      local p = launch(([[
        for _ = 1, 500 do c:schedule(slow) end
        local r = c:schedule(function() return %s + 0 end)
        say "go"
        try(r.fetch, r)
        try(c.join, c)
        tm.sleep(0.2)
        try(c.join, c)
        try(c.done, c)
        try(c.schedule, c, count)
        local w = %s
        try(w.read, w)
        try(w.assign, w, 1)
        say(c:stats().ps[%d].state)
      ]]):format(uses and "v" or "other", uses and "v" or "other", task + 1))
      assert.is_truthy(p:says "go")
      P.sleep(0.1)
      P.signal("KILL", P.task("ps", task))
      ended(p, 0, 5)
      local n = 0
      for line in p:out():gmatch "[^\n]+" do
        if line ~= "go" and line ~= "down" then
          n = n + 1
          local fetched = n == 1 and line:find "^cancelled"
          local named = line:find("^unavailable /job:ps/task:" .. task .. " 0%.%d") -- well before heartbeat_timeout
          assert.is_truthy(fetched or named, p:out() .. p:err())
        end
      end
      assert.equal(7, n, p:out())
      assert.is_truthy(p:out():find "down\n$")
    end
  end)

  it("names a ps that hangs after heartbeat_timeout", function()
    local p = launch [[
      for _ = 1, 1000 do c:schedule(slow) end
      say "go"
      local t = tm.time()
      local _, e = try(c.join, c)
      local took = tm.time() - t
      say(took > 1.2 and took < 10, e.message:find "hangs" ~= nil)
      try(v.read, v)
      try(c.schedule, c, count)
    ]]
    assert.is_truthy(p:says "go")
    P.signal("STOP", P.task("ps", 0))
    ended(p, 0, 6)
    local out = p:out()
    assert.is_truthy(out:find "unavailable /job:ps/task:0 [1-9]%.", out)
    assert.is_truthy(out:find "\ntrue\ttrue\nunavailable /job:ps/task:0 0%.%d", out)
    assert.is_truthy(out:find "\nunavailable /job:ps/task:0 0%.%d[^\n]*\n$", out)
  end)

  it("bears a ps that stands still for less than heartbeat_timeout", function()
    local p = launch [[
      for _ = 1, 100 do c:schedule(slow) end
      say "go"
      c:join()
      say(v:read():item(), c:stats().retries)
    ]]
    assert.is_truthy(p:says "go")
    P.sleep(0.1)
    local ps = P.task("ps", 0)
    P.signal("STOP", ps)
    P.sleep(0.9)
    P.signal("CONT", ps)
    ended(p, 0, 5)
    assert.equal("go\n100\t0\n", p:out())
  end)

  -- --- what is started again ---

  --- The pid of a task's next life.
  local function reborn(job, index, old)
    return P.eventually(5, function()
      local pid = P.task(job, index)
      return pid and pid ~= old and pid
    end)
  end

  it("restarts dead workers and ps at the same address, with back-off", function()
    local p = launch("say 'go' io.read() tm.sleep(60)", nil, nil, { "--max-restarts=3" })
    assert.is_truthy(p:says "go")
    for _, job in ipairs { "worker", "ps" } do
      local address = p:err():match("/job:" .. job .. "/task:1 listens on ([%d.:]+)")
      local told = ("%%[%s 1%%] [^\n]*listens on %s\n"):format(job, (address:gsub("%.", "%%.")))
      local pid = P.task(job, 1)
      for i, delay in ipairs { "0.1", "0.2", "0.4" } do
        P.signal("KILL", pid)
        pid = reborn(job, 1, pid)
        assert.is_truthy(pid, p:err())
        local line = "\ntidemill launch: /job:%s/task:1 ended (signal 9); starting it again in %s s\n"
        line = line:format(job, delay)
        assert.is_truthy(p:err():find(line, 1, true), p:err())
        local lives = P.eventually(2, function() return select(2, p:err():gsub(told, "")) == i + 1 end)
        assert.is_truthy(lives, p:err())
      end
    end
    p:kill "TERM"
    ended(p, 143)
  end)

  it("gives up when a task dies too often, and says so", function()
    local p = launch("say 'go' tm.sleep(60)", nil, nil, { "--max-restarts", "2" })
    assert.is_truthy(p:says "go")
    local pid = P.task("worker", 0)
    for i = 1, 3 do
      P.signal("KILL", pid)
      pid = i < 3 and reborn("worker", 0, pid)
    end
    ended(p, 1, 3)
    local line = "/job:worker/task:0 ended (signal 9); it died more than 2 times within 60 s: giving up"
    assert.is_truthy(p:err():find(line, 1, true), p:err())
  end)

  it("leaves the dead where they are with --no-restart", function()
    local p = launch("say 'go' tm.sleep(0.6) say 'end'", nil, nil, { "--no-restart" })
    assert.is_truthy(p:says "go")
    P.signal("KILL", P.task("worker", 1))
    assert.is_truthy(p:says "/job:worker/task:1 ended %(signal 9%)")
    assert.is_truthy(p:says "end")
    ended(p, 0)
    assert.equal(5, lines(p:err():gsub("[^\n]*warn[^\n]*\n", "")), p:err())
  end)

  it("does not restart tasks that were told to end", function()
    local p = launch "say 'go' tm.sleep(0.4) c:close { stop_tasks = true } tm.sleep(0.4)"
    assert.is_truthy(p:says "go")
    ended(p, 0)
    assert.is_falsy(p:err():find "again", p:err())
    assert.is_truthy(p:err():find("/job:ps/task:1 ended (status 0); it was told to, and stays away\n", 1, true),
      p:err())
  end)

  it("puts another worker in the place of one that left", function()
    local p = launch "say 'go' tm.sleep(1.5)"
    assert.is_truthy(p:says "go")
    local pid = P.task("worker", 1)
    P.signal("TERM", pid)
    assert.is_truthy(p:says "/job:worker/task:1 ended %(status 143%); starting it again")
    assert.is_truthy(reborn("worker", 1, pid))
    ended(p, 0)
  end)

  -- Its n-th life does what text[n] says.
  local function lives(...)
    local parts = { ("local f = io.open(%q, 'a') f:write 'x' f:close()\n"):format(P.dir() .. "/lives") }
    parts[2] = parts[1]:match "local f = io.open(%b())":gsub("^%((.-), 'a'%)$", "local n = #io.open(%1):read 'a'\n")
    for i, text in ipairs { ... } do parts[#parts + 1] = ("if n == %d then %s end\n"):format(i, text) end
    return table.concat(parts)
  end

  it("restarts the chief with --restart-chief: after a signal, after a status", function()
    local p = launch(lives("say 'one' tm.sleep(60)", "say 'two' os.exit(5)", [[
      for _ = 1, 10 do c:schedule(count) end
      c:join()
      say("three", v:read():item())
    ]]), nil, nil, { "--restart-chief" })
    assert.is_truthy(p:says "one")
    P.signal("KILL", P.task("chief", 0))
    ended(p, 0, 5)
    assert.equal("one\ntwo\nthree\t10\n", p:out(), p:err())
    assert.is_truthy(p:err():find("/job:chief/task:0 ended (signal 9); starting it again in 0.1 s\n", 1, true), p:err())
    assert.is_truthy(p:err():find("/job:chief/task:0 ended (status 5); starting it again in 0.2 s\n", 1, true), p:err())
  end)

  it("gives up a chief that fails too often, and does not restart it after Ctrl-C", function()
    local p = launch("os.exit(7)", nil, nil, { "--restart-chief", "--max-restarts=1" })
    ended(p, 1, 5)
    assert.is_truthy(p:err():find("/job:chief/task:0 ended (status 7); it died more than 1 times", 1, true), p:err())
    p = launch("say 'go' tm.sleep(60)", nil, nil, { "--restart-chief" })
    assert.is_truthy(p:says "go")
    p:kill "INT"
    ended(p, 1)
    assert.is_falsy(p:err():find "again", p:err())
  end)

  it("says that the port of a dead task is taken, and takes it when it is free", function()
    local p = launch "say 'go' tm.sleep(60)"
    assert.is_truthy(p:says "go")
    local pid = P.task("worker", 0)
    local port = p:err():match "/job:worker/task:0 listens on 127.0.0.1:(%d+)"
    p:kill "STOP"
    P.signal("KILL", pid)
    local config = ('{"cluster": {"ps": ["127.0.0.1:%s"]}, "task": {"type": "ps", "index": 0}}'):format(port)
    local other = P.run({ "ps" }, { TM_CONFIG = config })
    assert.is_truthy(other:says "listens on")
    p:kill "CONT"
    local line = ("/job:worker/task:0 cannot start: 127.0.0.1:%s is in use by another process"):format(port)
    assert.is_truthy(P.eventually(3, function() return p:err():find(line, 1, true) end), p:err())
    other:kill()
    other:wait()
    assert.is_truthy(reborn("worker", 0, pid), p:err())
    p:kill "TERM"
    ended(p, 143)
  end)

  it("ends the chief first when it is told to end, and waits for it no longer than --grace", function()
    local p = launch("say 'go' tm.sleep(60)", nil, nil, { "--grace", "1" })
    assert.is_truthy(p:says "go")
    local chief = P.task("chief", 0)
    P.signal("STOP", chief)
    p:kill "TERM"
    P.sleep(0.5)
    assert.equal(6, #P.alive())
    ended(p, 143, 3)
  end)

  it("runs 64 workers", function()
    local p = P.run { "launch", "--workers", "64", "--ps", "2", P.script(head .. [[
      for _ = 1, 6400 do c:schedule(count) end
      c:join()
      say(v:read():item(), strategy.num_workers)
    ]]) }
    ended(p, 0, 20)
    assert.is_truthy(p:out():find "^6400\t64\n$", p:out() .. p:err())
  end)
end)
