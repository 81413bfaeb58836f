-- Chiefs: terms, two of them at once, one killed at any moment and the next that takes
-- over; tasks that no chief comes for.
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"

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
  local T = tasks.new(P, size or { workers = 2, ps = 2 })
  return T:start()
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
    local text = head .. [[
      local function train()
        for _ = 1, 20 do c:schedule(slow) end
        c:join()
        return v:read():item()
      end
      local ok, e = pcall(train)
      say(ok and "trained" or e.code, ok and e or e.message)
      os.exit(ok and 0 or 3)
    ]]
    for _ = 1, 20 do
      local a, b = T:chief(text), T:chief(text)
      local sa, sb = a:wait(10), b:wait(10)
      assert.equal(3, sa + sb, a:out() .. a:err() .. b:out() .. b:err())
      local won, lost = sa == 0 and a or b, sa == 0 and b or a
      assert.equal("trained\t20\n", won:out(), won:err())
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
end)
