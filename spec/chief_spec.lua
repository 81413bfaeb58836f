-- Chiefs: terms, two of them at once, one killed at any moment and the next that takes
-- over; tasks that no chief comes for.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

-- What every script here begins with: a strategy, a coordinator, a counter on ps 0.
local head = [[
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
local function try(what, f, ...)
  local t = tm.time()
  local ok, e = pcall(f, ...)
  say(what, ok and "fine" or e.code, tm.time() - t < 3 and "soon" or "late", ok and "" or e.message)
  return ok, e
end
local options = { heartbeat_interval = 0.2, heartbeat_timeout = 1.5, placement = "round_robin" }
for k, value in pairs(MORE or {}) do options[k] = value end
local ok, strategy = pcall(D.ParameterServerStrategy, D.resolver{ workers = 2, ps = 2 }, options)
if not ok then say("open", strategy.code, strategy.message) os.exit(3) end
local v, other, c
local function make()
  strategy:scope(function()
    v = tm.Variable(0, { dtype = "int64", name = "counter" })
    other = tm.Variable(tm.zeros { 1000 }, { name = "other" })
  end)
  c = D.ClusterCoordinator(strategy)
end
local ok, e = pcall(make)
if not ok then say("make", e.code, e.message) os.exit(3) end
local count = tm.func(function() v:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.02) v:assign_add(1) return 1 end)
]]

local small = head:gsub("workers = 2, ps = 2", "workers = 1, ps = 1")

-- Every call of the coordinator and of an eager op, each said with its error.
local calls = [[
  try("fetch", r.fetch, r)
  try("join", c.join, c)
  try("schedule", c.schedule, c, count)
  try("done", c.done, c)
  try("join", c.join, c)
  try("read", v.read, v)
  try("assign", v.assign, v, 7)
  try("other", other.read, other)
  try("variable", strategy.scope, strategy, function() tm.Variable(1) end)
  try("close", c.close, c)
]]

local function cluster(size)
  size = size or 2
  return clusters.start(size, size)
end

--- Each line but "close" says `aborted`, soon, and which chief took over.
local function all_aborted(p)
  local n = 0
  for line in p:out():gmatch "[^\n]+" do
    local what, code = line:match "^(%l+)\t(%l+)\tsoon"
    if what then
      n = n + 1
      assert.equal(what == "close" and "fine" or "aborted", code, p:out() .. p:err())
    end
    assert.is_falsy(line:find "\tlate", p:out())
  end
  assert.equal(10, n, p:out() .. p:err())
  assert.is_truthy(p:out():find "another chief took over")
end

describe("two chiefs", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("that start at the same moment: one trains to the end, the other gets aborted", function()
    local T = cluster()
    local text = [[
      print "ready" io.stdout:flush()
      local tm = require "tidemill"
      local go, over = ...
      while not io.open(go) do tm.sleep(0.001) end
    ]] .. head .. [[
      local function train()
        for _ = 1, 19 do c:schedule(slow) end
        while not io.open(over) do c:join() tm.sleep(0.001) end -- the other one has ended
        c:schedule(slow)
        c:join()
        return v:read():item()
      end
      local ok, e = pcall(train)
      say(ok and "trained" or e.code, ok and e or e.message)
      os.exit(ok and 0 or 3)
    ]]
    for i = 1, 20 do
      local go, over = T.dir .. "/go" .. i, T.dir .. "/over" .. i
      local a, b = T:chief(text, go, over), T:chief(text, go, over)
      assert.is_truthy(a:says "ready" and b:says "ready")
      T:tell("go" .. i)
      assert.is_truthy(P.eventually(10, function() return a:status() or b:status() end), a:out() .. b:out())
      T:tell("over" .. i)
      local sa, sb = a:wait(10), b:wait(10)
      assert.equal(3, sa + sb, a:out() .. a:err() .. b:out() .. b:err())
      local won, lost = sa == 0 and a or b, sa == 0 and b or a
      assert.equal("ready\ntrained\t20\n", won:out(), won:err())
      assert.is_truthy(lost:out():find "aborted\t.*another chief took over", lost:out() .. lost:err())
      local x, y = lost:out():match "term %d+ of chief (%x+), this is term %d+ of chief (%x+)"
      assert.is_true(x ~= nil and x ~= y, lost:out())
    end
  end)

  -- The second one; nothing of the first lands in what it makes.
  local second = head .. [[
    say "took over"
    tm.sleep(0.3)
    for _ = 1, 30 do c:schedule(count) end
    c:join()
    say("count", v:read():item())
  ]]

  it("one after the other: the older one fails for good with aborted, from whatever it calls", function()
    for _, more in ipairs { "", "MORE = { on_ps_failure = 'restore' }\n" } do
      local T = cluster()
      local a = T:chief(more .. head .. [[
        for _ = 1, 1000 do c:schedule(slow) end
        local r = c:schedule(slow)
        say "go"
      ]] .. calls)
      assert.is_truthy(a:says "go")
      P.sleep(0.1)
      local b = T:chief(second)
      assert.equal(0, a:wait(10), a:out() .. a:err())
      all_aborted(a)
      assert.equal(0, b:wait(10), b:out() .. b:err())
      assert.equal("took over\ncount\t30\n", b:out())
      assert.same({}, P.cleanup())
    end
  end)

  it("the older one stopped, and awake again when the other has been there for long", function()
    local T = cluster()
    local a = T:chief(head .. [[
      for _ = 1, 1000 do c:schedule(slow) end
      local r = c:schedule(slow)
      say "go"
    ]] .. calls)
    assert.is_truthy(a:says "go")
    a:kill "STOP"
    P.sleep(1.8) -- the tasks have given it up
    local b = T:chief(second)
    assert.equal(0, b:wait(10), b:out() .. b:err())
    assert.equal("took over\ncount\t30\n", b:out())
    a:kill "CONT"
    assert.equal(0, a:wait(10), a:out() .. a:err())
    all_aborted(a)
  end)

  it("in two clusters of one id: a worker added that the other one has says nothing about who is in charge", function()
    local T = clusters.start(2, 1)
    for _ = 1, 2 do assert.equal(0, T:chief(small):wait(10)) end
    T:kill("worker", 0)
    T:kill("ps", 0)
    T:run("worker", 0)
    T:run("ps", 0)
    local taken = table.remove(T.jobs.worker)
    local a = T:chief(small .. ([[
      c:add_worker %q
      tm.sleep(0.3)
      for _ = 1, 10 do c:schedule(count) end
      c:join()
      say("count", v:read():item(), c:stats().workers[2].state)
    ]]):format(taken))
    assert.equal(0, a:wait(10), a:out() .. a:err())
    assert.equal("count\t10\tconnecting\n", a:out(), a:err())
    assert.is_truthy(a:err():find "/job:worker/task:1 cannot be had: [^\n]*another chief took over", a:err())
  end)
end)

-- Trains `counter` up to 60, ten steps a checkpoint; every element of `big`, which lies on
-- both ps, goes with it.  Says where it is, so that it can be killed there.
local training = [[
local dir, target = ...
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
say "connecting"
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 2 }, {
  heartbeat_interval = 0.2, heartbeat_timeout = 1.5,
  variable_partitioner = D.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
say "creating"
local counter, big
strategy:scope(function()
  counter = tm.Variable(0, { dtype = "int64", name = "counter" })
  big = tm.Variable(tm.zeros { 1000, 100 }, { name = "big" })
end)
local c = D.ClusterCoordinator(strategy)
local step = tm.func(function()
  tm.sleep(0.001)
  counter:assign_add(1)
  big:assign_add(tm.ones { 1000, 100 })
end)
local checkpoint = tm.train.Checkpoint { counter = counter, big = big }
local manager = tm.train.CheckpointManager(checkpoint, dir, { max_to_keep = 2 })
say "restoring"
manager:restore_or_initialize()
local function state()
  local all = big:read()
  return counter:read():item(), tm.reduce_min(all):item(), tm.reduce_max(all):item()
end
say("from", state())
while counter:read():item() < tonumber(target or 60) do
  for _ = 1, 10 do c:schedule(step) end
  say "training"
  c:join()
  say "saving"
  assert(manager:save())
  say("saved", state())
end
say("end", state())
c:close { stop_tasks = target == nil }
]]

--- What each chief said it began with and last saved: all of one moment, never less than
--- what the one before it had saved.
local function check_run(chiefs)
  local saved = 0
  for _, p in ipairs(chiefs) do
    local from, low, high = p:out():match "from\t(%d+)\t([%d.]+)\t([%d.]+)"
    if from then
      assert.equal(tonumber(from), tonumber(low), p:out())
      assert.equal(tonumber(from), tonumber(high), p:out())
      assert.is_true(tonumber(from) % 10 == 0 and tonumber(from) >= saved, p:out() .. saved)
      saved = tonumber(from)
    end
    for n in p:out():gmatch "saved\t(%d+)" do saved = tonumber(n) end
  end
end

describe("a chief killed with -9", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("at any moment: the next one takes over the waiting tasks, restores, continues", function()
    local T, dir, chiefs = cluster(), P.dir(), {}
    local n = 0
    for _, moment in ipairs { "connecting", "creating", "restoring", "training", "saving", "saved",
      "training", "saving", "restoring", "creating", "connecting" } do
      local p = T:chief(training, dir)
      chiefs[#chiefs + 1] = p
      assert.is_truthy(p:says(moment), p:out() .. p:err())
      P.sleep(n % 4 * 0.002)
      n = n + 1
      p:kill()
      assert.equal(137, p:wait(2))
    end
    local last = T:chief(training, dir)
    chiefs[#chiefs + 1] = last
    assert.equal(0, last:wait(20), last:out() .. last:err())
    assert.is_truthy(last:out():find "end\t60\t60[.0]*\t60[.0]*\n", last:out())
    check_run(chiefs)
    T:each(function(p) assert.equal(0, p:wait(2), p:err()) end)
  end)

  it("again and again at moments that nobody chose", function()
    local T, dir, chiefs = cluster(), P.dir(), {}
    math.randomseed(11)
    for _ = 1, 12 do
      local p = T:chief(training, dir, "100000")
      chiefs[#chiefs + 1] = p
      P.sleep(0.02 + math.random() * 0.12)
      p:kill()
      p:wait(2)
    end
    local last = T:chief(training, dir)
    chiefs[#chiefs + 1] = last
    assert.equal(0, last:wait(20), last:out() .. last:err())
    check_run(chiefs)
  end)
end)

describe("tasks without a chief", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  local function leaves(p, seconds)
    assert.equal(1, p:wait(4), p:err())
    assert.is_truthy(p:err():find("no chief came for " .. seconds .. " s", 1, true), p:err())
  end

  it("wait for the next one as long as the last one's chief_timeout, then end", function()
    for _, ending in ipairs { "", "say 'go' tm.sleep(60)" } do
      local T = cluster(1)
      local a = T:chief("MORE = { chief_timeout = 1.5 }\n" .. small .. ending)
      if ending ~= "" then
        assert.is_truthy(a:says "go")
        a:kill()
      end
      a:wait(10)
      T:each(function(p) assert.is_nil(p:status()) end)
      T:each(function(p) leaves(p, "1.5") end)
      assert.same({}, P.cleanup())
    end
  end)

  it("wait as long as they were told on their command line, whatever a chief says", function()
    local T = cluster(1)
    T:kill("ps", 0)
    T:run("ps", 0, { "--chief-timeout", "30" })
    local a = T:chief("MORE = { chief_timeout = 0.3 }\n" .. small)
    assert.equal(0, a:wait(10), a:out() .. a:err())
    leaves(T.tasks.worker[0], "0.3")
    assert.is_nil(T.tasks.ps[0]:status())
  end)
end)
