-- Tasks started by hand: TM_CONFIG and TF_CONFIG, scripts that serve a role, one chief
-- after the other, and how tasks end.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

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

local function json(x)
  if type(x) ~= "table" then return type(x) == "number" and ("%d"):format(x) or ("%q"):format(x) end
  local parts = {}
  if x[1] ~= nil then
    for i, v in ipairs(x) do parts[i] = json(v) end
    return "[" .. table.concat(parts, ", ") .. "]"
  end
  for k, v in pairs(x) do parts[#parts + 1] = json(k) .. ": " .. json(v) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- One worker (unless more are wanted) and one ps.
local function cluster(workers) return { worker = addresses(workers or 1), ps = addresses(1) } end

local function config(jobs, kind, index, id)
  return json { cluster = jobs, task = kind and { type = kind, index = index } or nil, cluster_id = id }
end

local function env(...) return { TM_CONFIG = config(...) } end

local chief = [[
  local tm = require "tidemill"
  local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 1, ps = 1 }, OPTIONS)
  local v = s:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
  local c = tm.distribute.ClusterCoordinator(s)
  local f = tm.func(function() v:assign_add(1) end)
  for _ = 1, 10 do c:schedule(f) end
  c:join()
  print("count", v:read():item(), s.num_workers, s.num_ps)
  io.stdout:flush()
  END
]]

local function script(ending, options)
  return P.script((chief:gsub("OPTIONS", options or "nil"):gsub("END", ending or "")))
end

local function runs(p, out)
  assert.equal(0, p:wait(10), p:out() .. p:err())
  assert.equal(out or "count\t10\t1\t1\n", p:out(), p:err())
end

--- It ends by itself with this status, and says so.
local function fails(p, status, ...)
  assert.equal(status, p:wait(5), p:out() .. p:err())
  for _, text in ipairs { ... } do assert.is_truthy(p:err():find(text, 1, true), p:err()) end
end

describe("tasks started by hand", function()
  before_each(function() ports = {} end)
  after_each(function()
    assert.same({}, P.cleanup())
    assert.equal(0, P.listeners(ports))
  end)

  it("begin without a worker that is not there, which gets work when it is", function()
    local jobs = cluster(2)
    local ps, one = P.run({ "ps" }, env(jobs, "ps", 0)), P.run({ "worker" }, env(jobs, "worker", 1))
    local boss = P.run({ P.script [[
      local tm = require "tidemill"
      local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 2, ps = 1 })
      local v = s:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
      local c = tm.distribute.ClusterCoordinator(s)
      local f = tm.func(function() v:assign_add(1) end)
      for _ = 1, 10 do c:schedule(f) end
      c:join()
      print("count", v:read():item(), c:stats().workers[1].state)
      io.stdout:flush()
      while c:stats().workers[1].state ~= "ready" do tm.sleep(0.01) end
      local slow = tm.func(function() tm.sleep(0.02) end)
      while c:stats().workers[1].steps == 0 do
        for _ = 1, 4 do c:schedule(slow) end
        c:join()
      end
      print "both"
    ]] }, env(jobs, "chief", 0))
    assert.is_truthy(boss:says("count\t10\tconnecting"), boss:out() .. boss:err())
    assert.is_truthy(boss:err():find("/job:worker/task:0 is not there yet", 1, true), boss:err())
    local two = P.run({ "worker" }, env(jobs, "worker", 0))
    assert.equal(0, boss:wait(10), boss:err())
    assert.is_truthy(boss:out():find "both", boss:err())
    for _, p in ipairs { ps, one, two } do p:kill "TERM" end
    for _, p in ipairs { ps, one, two } do assert.equal(0, p:wait(5)) end
  end)

  it("listen elsewhere than at the address that others use", function()
    local jobs, there = cluster(), addresses(2)
    local behind = { worker = { there[1] }, ps = { there[2] } }
    local worker = P.run({ "worker", "--listen", there[1] }, env(jobs, "worker", 0, "moved"))
    local ps = P.run({ "ps", "--listen", there[2] }, env(jobs, "ps", 0, "moved"))
    runs(P.run({ script() }, env(behind, "chief", 0, "moved")))
    worker:kill "TERM"
    ps:kill "TERM"
    assert.equal(0, worker:wait(5))
    assert.equal(0, ps:wait(5))
  end)

  it("find each other by TM_CONFIG, whatever starts first", function()
    local jobs = cluster()
    local boss = P.run({ script() }, env(jobs, "chief", 0))
    P.sleep(0.1)
    local worker = P.run({ "worker" }, env(jobs, "worker", 0))
    P.sleep(0.1)
    local ps = P.run({ "ps" }, env(jobs, "ps", 0))
    runs(boss)
    assert.is_nil(worker:status())
    assert.is_nil(ps:status())
    assert.equal(4, P.listeners(ports))
    worker:kill "TERM"
    ps:kill "INT"
    assert.equal(0, worker:wait(2))
    assert.equal(0, ps:wait(2))
  end)

  it("find each other by TF_CONFIG: gaps in a job, indices as text, TM_CONFIG before it", function()
    local a = addresses(3)
    local jobs = { worker = { ["0"] = a[1], ["2"] = a[2] }, ps = { a[3] }, chief = addresses(1) }
    P.run({ "worker" }, { TF_CONFIG = config(jobs, "worker", "2") })
    P.run({ "worker" }, { TF_CONFIG = config(jobs, "worker", "0"), TM_CONFIG = config(jobs, "worker", 0) })
    P.run({ "ps" }, { TF_CONFIG = config(jobs, "worker", 0), TM_CONFIG = config(jobs, "ps", 0) })
    runs(P.run({ script() }, { TF_CONFIG = config(jobs, "chief", 0) }), "count\t10\t2\t1\n")
  end)

  it("serve their role when they are given the script, and do not run it", function()
    local jobs, file = cluster(), script()
    local worker = P.run({ file }, { TF_CONFIG = config(jobs, "worker", 0) })
    local ps = P.run({ file }, { TF_CONFIG = config(jobs, "ps", 0) })
    runs(P.run({ file }, { TF_CONFIG = config(jobs, "chief", 0) }))
    assert.equal("", worker:out() .. ps:out())
  end)

  it("run the script as chief, as evaluator, and with --no-role", function()
    local jobs, file = cluster(), P.script "print('ran', ...)"
    jobs.evaluator = addresses(1)
    jobs.chief = addresses(1)
    runs(P.run({ file, "x" }, env(jobs, "chief", 0)), "ran\tx\n")
    runs(P.run({ file }, env(jobs, "evaluator", 0)), "ran\n")
    runs(P.run({ "--no-role", file }, env(jobs, "worker", 0)), "ran\n")
    runs(P.run({ file }, env(jobs)), "ran\n")
    fails(P.run({ "--no-role", script() }, env(cluster(), "worker", 0)), 1, "/job:worker/task:0", "Server{...}:join()")
  end)

  it("serve by Server:join, in tidemill and in stock Lua", function()
    local jobs = cluster()
    local file = P.script [[
      local D = require("tidemill").distribute
      local r = D.TFConfigClusterResolver()
      D.Server{ cluster_spec = r:cluster_spec(), job_name = r.task_type, task_index = r.task_id }:join()
    ]]
    P.run({ "--no-role", file }, { TF_CONFIG = config(jobs, "worker", 0) })
    P.start({ os.getenv "LUA" or "lua5.4", file }, { TF_CONFIG = config(jobs, "ps", 0) })
    runs(P.run({ script() }, { TF_CONFIG = config(jobs) }))
  end)

  it("say what is wrong with the description", function()
    local jobs = cluster()
    fails(P.run({ script() }, env(jobs, "boss", 0)), 1, "\"boss\"", "chief, worker, ps, evaluator")
    fails(P.run { "worker" }, 1, "neither TM_CONFIG nor TF_CONFIG")
    fails(P.run({ "ps" }, env(jobs, "worker", 0)), 1, "says this task is a worker")
    fails(P.run({ "ps" }, env(jobs)), 1, "no \"task\"")
    fails(P.run({ "worker" }, env(jobs, "worker", 1)), 1, "worker", "1")
    for _, role in ipairs { "worker", script() } do
      fails(P.run({ role }, { TF_CONFIG = "{\"cluster\": {\"ps\" [1]}}" }), 1, "TF_CONFIG", "19")
      fails(P.run({ role }, { TM_CONFIG = "[1, 2]" }), 1, "TM_CONFIG")
      local nowhere = { worker = { "nowhere" }, ps = jobs.ps }
      fails(P.run({ role }, { TM_CONFIG = config(nowhere, "worker", 0) }), 1, "nowhere")
    end
    fails(P.run { "worker", "--onec" }, 2, "--onec")
  end)

  it("name a port that is in use", function()
    local jobs = cluster()
    local first = P.run({ "worker" }, env(jobs, "worker", 0))
    assert.is_truthy(first:says "listens on")
    fails(P.run({ "worker" }, env(jobs, "worker", 0)), 1, "/job:worker/task:0", jobs.worker[1], "in use")
  end)

  it("refuse a chief of another cluster, and go on with their own", function()
    local jobs = cluster()
    P.run({ "worker" }, env(jobs, "worker", 0, "mine"))
    P.run({ "ps" }, env(jobs, "ps", 0, "mine"))
    local boss = P.run({ script "tm.sleep(1) c:schedule(f) c:join() print(v:read():item())" },
      env(jobs, "chief", 0, "mine"))
    assert.is_truthy(boss:says "count")
    fails(P.run({ script() }, env(jobs, "chief", 0, "yours")), 1, "yours", "mine")
    runs(boss, "count\t10\t1\t1\n11\n")
  end)

  it("refuse to stand for another task", function()
    local jobs = cluster(2)
    P.run({ "worker" }, env(jobs, "worker", 0, "x"))
    P.run({ "worker" }, env(jobs, "worker", 1, "x"))
    P.run({ "ps" }, env(jobs, "ps", 0, "x"))
    jobs.worker[1], jobs.worker[2] = jobs.worker[2], jobs.worker[1]
    fails(P.run({ script() }, env(jobs, "chief", 0, "x")), 1, "/job:worker/task:0", "/job:worker/task:1")
  end)

  it("serve one chief after the other, each from the beginning", function()
    local jobs = cluster()
    local worker = P.run({ "worker" }, env(jobs, "worker", 0))
    local ps = P.run({ "ps" }, env(jobs, "ps", 0))
    for _ = 1, 3 do runs(P.run({ script() }, env(jobs, "chief", 0))) end
    runs(P.run({ script "os.exit(0)" }, env(jobs, "chief", 0)))
    local killed = P.run({ script "for _ = 1, 1e5 do c:schedule(f) end tm.sleep(60)" }, env(jobs, "chief", 0))
    assert.is_truthy(killed:says "count")
    P.sleep(0.1)
    killed:kill()
    runs(P.run({ script() }, env(jobs, "chief", 0)))
    assert.is_nil(worker:status())
    assert.is_nil(ps:status())
  end)

  it("end after their chief with --once, and when it says so", function()
    local jobs = cluster()
    local function start(...)
      return P.run({ "worker", ... }, env(jobs, "worker", 0)), P.run({ "ps", ... }, env(jobs, "ps", 0))
    end
    local worker, ps = start "--once"
    runs(P.run({ script() }, env(jobs, "chief", 0)))
    assert.equal(0, worker:wait(2))
    assert.equal(0, ps:wait(2))
    worker, ps = start()
    runs(P.run({ script "c:close{ stop_tasks = true }" }, env(jobs, "chief", 0)))
    assert.equal(0, worker:wait(2))
    assert.equal(0, ps:wait(2))
  end)

  it("end when no chief comes for --chief-timeout", function()
    local jobs = cluster()
    local t = P.now()
    fails(P.run({ "worker", "--chief-timeout", "0.4" }, env(jobs, "worker", 0)), 1, "no chief came for 0.4 s")
    assert.is_true(P.now() - t > 0.4 and P.within(2, t))
    local ps = P.run({ "ps", "--chief-timeout", "3" }, env(jobs, "ps", 0)) -- the chief begins within that
    P.run({ "worker" }, env(jobs, "worker", 0))
    runs(P.run({ script "tm.sleep(3.3)" }, env(jobs, "chief", 0))) -- it is there for longer
    fails(ps, 1, "no chief came")
    fails(P.run { "worker", "--chief-timeout", "soon" }, 2, "soon")
  end)
end)
