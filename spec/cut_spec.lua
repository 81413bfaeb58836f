-- Connections that are cut while both ends live: nobody is lost, nothing is done twice.
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local wires = dofile "spec/tools/wires.lua"

local script = [[
  local tm = require "tidemill"
  local n = tonumber(arg[1])
  local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 2, ps = 2 }, OPTIONS)
  local a, b = s:scope(function()
    return tm.Variable(0, { dtype = "int64" }), tm.Variable(0, { dtype = "int64" })
  end)
  local c = tm.distribute.ClusterCoordinator(s)
  c.checkpoint_manager = tm.train.CheckpointManager(tm.train.Checkpoint{ a = a, b = b }, arg[2])
  local f = tm.func(function() a:assign_add(1) b:assign_add(1) tm.sleep(0.002) end)
  for _ = 1, n do c:schedule(f) end
  io.stdout:write "begun\n"
  io.stdout:flush()
  c:join()
  print("count", a:read():item(), b:read():item())
  c:close()
]]

--- A cluster of 2 workers and 2 ps behind wires; the wires of its ps and of its workers.
local function behind_wires()
  local T = tasks.new(P, { workers = 2, ps = 2 })
  T.id = "wired"
  local list, jobs = { ps = {}, worker = {} }, { ps = {}, worker = {} }
  local own = T.jobs
  for _, kind in ipairs { "ps", "worker" } do
    for i, address in ipairs(own[kind]) do
      list[kind][i] = wires.new(P, tonumber(address:match ":(%d+)$"))
      jobs[kind][i] = "127.0.0.1:" .. list[kind][i].port
    end
  end
  T.jobs = jobs
  for _, kind in ipairs { "ps", "worker" } do
    for i = 1, 2 do T:task(kind, i - 1, { "--listen", own[kind][i] }) end
  end
  return T, list
end

--- Cut every wire of these jobs while 400 closures run: 8 times, or for some seconds.
local function count_while_cut(options, kinds, seconds)
  local T, list = behind_wires()
  local chief = T:chief((script:gsub("OPTIONS", options)), "400", P.dir())
  assert.is_truthy(chief:says "begun", chief:err())
  local start, rounds = P.now(), 0
  while seconds and P.now() - start < seconds or not seconds and rounds < 8 do
    for _, kind in ipairs(kinds) do
      for _, w in ipairs(list[kind]) do
        w.order "cut"
        P.sleep(seconds and 0.004 or 0.015)
      end
    end
    rounds = rounds + 1
  end
  assert.equal(0, chief:wait(20), chief:out() .. chief:err())
  assert.equal("begun\ncount\t400\t400\n", chief:out())
  T:each(function(p) assert.is_nil(p:status()) end)
  return chief:err()
end

describe("a connection that is cut", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("to a ps that lives is made again, and no ps is lost", function()
    local err = count_while_cut("nil", { "ps" })
    assert.is_nil(err:find("/job:ps/task:. is lost"), err)
    assert.is_truthy(err:find("is reached again", 1, true), err)
  end)

  it("to a ps is made again however soon it is cut again", function()
    local err = count_while_cut("nil", { "ps" }, 0.5)
    assert.is_nil(err:find("/job:ps/task:. is lost"), err)
  end)

  it("to a worker has its closures run elsewhere, each applied once", function()
    count_while_cut("nil", { "worker" })
  end)

  it("to anybody loses no UPDATE of a cluster with replicas", function()
    count_while_cut("{ replicas = 1 }", { "ps", "worker" })
  end)

  it("to a ps brings no checkpoint back", function()
    local err = count_while_cut('{ on_ps_failure = "restore_shards" }', { "ps" })
    assert.is_nil(err:find("restored", 1, true), err)
  end)
end)
