-- Preemption: tasks are asked to leave, by real signals, files and servers, and do.
local P = dofile "spec/tools/process.lua"
local tm = require "tidemill"

local ports

--- Addresses of n tasks on ports that the system gave.
local function addresses(n)
  local list = {}
  while #list < n do
    local port = tm.distribute.pick_unused_port()
    local new = true
    for _, other in ipairs(ports) do new = new and other ~= port end
    if new then
      ports[#ports + 1] = port
      list[#list + 1] = "127.0.0.1:" .. port
    end
  end
  return list
end

local function quoted(list)
  local out = {}
  for i, x in ipairs(list) do out[i] = ("%q"):format(x) end
  return "[" .. table.concat(out, ", ") .. "]"
end

local function env(jobs, kind, index, more)
  local e = { TM_CONFIG = ('{"cluster": {"worker": %s, "ps": %s}, "task": {"type": "%s", "index": %d}}'):format(
    quoted(jobs.worker), quoted(jobs.ps), kind, index) }
  for k, v in pairs(more or {}) do e[k] = v end
  return e
end

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local function say(...) print(...) io.stdout:flush() end
local function has(path) local f = io.open(path) if f then f:close() end return f ~= nil end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 }, OPTIONS)
local v = strategy:scope(function() return tm.Variable(0, { dtype = "int64", name = "counter" }) end)
local c = D.ClusterCoordinator(strategy)
local count = tm.func(function() v:assign_add(1) end)
local slow = tm.func(function() tm.sleep(0.02) v:assign_add(1) end)
local long = tm.func(function() tm.sleep(1) v:assign_add(1) end)
]]
local options = "{ heartbeat_interval = 0.2, heartbeat_timeout = 3 }"

--- A cluster of hand-started tasks: {worker = {p, p}, ps = {p}, jobs}.
local function cluster(args)
  local jobs = { worker = addresses(2), ps = addresses(1) }
  local all = { jobs = jobs, worker = {}, ps = {} }
  function all.start(kind, index, more)
    local words = { kind }
    for _, w in ipairs(more or args or {}) do words[#words + 1] = w end
    local p = P.run(words, env(jobs, kind, index))
    all[kind][index + 1] = p
    return p
  end
  for i = 0, 1 do all.start("worker", i) end
  all.start("ps", 0)
  function all.chief(text, opts, more)
    return P.run({ P.script((head:gsub("OPTIONS", opts or options)) .. text) }, env(jobs, "chief", 0, more))
  end
  return all
end

local function ended(p, status, seconds)
  assert.equal(status, p:wait(seconds or 10), p:out() .. p:err())
end

describe("preemption", function()
  before_each(function() ports = {} end)
  after_each(function()
    assert.same({}, P.cleanup())
    assert.equal(0, P.listeners(ports))
  end)

  it("of a worker: SIGTERM is the chief's preemption_message, the closure is finished, the rest runs elsewhere", function()
    local all = cluster()
    local p = all.chief [[
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
    assert.is_truthy(p:says "go")
    P.sleep(0.3) -- a long closure runs
    all.worker[2]:kill "TERM"
    ended(all.worker[2], 0, 3)
    ended(p, 0)
    local text = "/job:worker/task:1: SIGTERM"
    assert.equal(("nil\ngo\nmessage\t%s\t/job:worker/task:1\n104\t%s\t0\ngone\ttrue\tdown\n"):format(text, text),
      p:out(), p:err())
  end)

  it("a replacement of a worker that left comes back into work", function()
    local all = cluster()
    local p = all.chief [[
      local w = D.PreemptionWatcher()
      say "go"
      while not w.preemption_message do c:schedule(slow):fetch() end
      w:block_until_worker_exit()
      say "gone"
      local before = c:stats().workers[1].steps
      local n = 0
      while c:stats().workers[1].steps < before + 5 do
        for _ = 1, 20 do c:schedule(count) end
        c:join()
        n = n + 20
        tm.sleep(0.01)
      end
      say("back", D.PreemptionWatcher().preemption_message)
    ]]
    assert.is_truthy(p:says "go")
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 0, 3)
    assert.is_truthy(p:says "gone")
    all.start("worker", 0)
    ended(p, 0)
    assert.is_truthy(p:out():find "back\tnil", p:out() .. p:err())
  end)

  it("a second SIGTERM ends a worker at once, and its started closure runs elsewhere, once", function()
    local all = cluster()
    local p = all.chief [[
      for _ = 1, 6 do c:schedule(long) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    assert.is_truthy(p:says "go")
    P.sleep(0.3)
    all.worker[1]:kill "TERM"
    P.sleep(0.2)
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 143, 0.5)
    ended(p, 0)
    assert.equal("go\n6\n", p:out())
  end)

  it("the end of the grace period ends a worker at once", function()
    local all = cluster { "--grace", "0.2" }
    local p = all.chief [[
      for _ = 1, 6 do c:schedule(long) end
      say "go"
      c:join()
      say(v:read():item())
    ]]
    assert.is_truthy(p:says "go")
    P.sleep(0.3)
    all.worker[1]:kill "TERM"
    ended(all.worker[1], 143, 1)
    assert.is_truthy(all.worker[1]:err():find "grace period", all.worker[1]:err())
    ended(p, 0)
    assert.equal("go\n6\n", p:out())
  end)
end)
