-- A worker is killed and comes back: where its iterators go on, and what else it has.
-- Real processes, kill -9.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = WORKERS, ps = 1 })
local c = D.ClusterCoordinator(strategy)
local function results(n, f, args)
  local list = {}
  for i = 1, n do list[i] = c:schedule(f, args) end
  for i, r in ipairs(list) do list[i] = { r:fetch() } end
  return list
end
local function values(list)
  local out = {}
  for i, r in ipairs(list) do out[i] = ("%d"):format(r[1]) end
  return table.concat(out, " ")
end
local take = tm.func(function(it) return it:next() end)
local function back()
  say "go"
  await "back"
end
]]

local function script(workers, text) return (head:gsub("WORKERS", tostring(workers))) .. text end

--- A chief whose worker 0 is killed once it says "go", and comes back.
local function killed(workers, text, pause)
  local k = clusters.start(workers, 1)
  k:chief(script(workers, text))
  k:says "go"
  if pause then P.sleep(pause) end
  k:kill("worker", 0)
  k:run("worker", 0)
  k:tell "back"
  return k
end

describe("the iterator of a worker that comes back", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("starts at the first element with on_restart = restart, the default", function()
    for _, option in ipairs { "", ":with_options{ on_restart = 'restart' }" } do
      local k = killed(1, [[
        local it = c:create_per_worker_dataset(tm.data.range(100)]] .. option .. [[):iterator()
        say(values(results(5, take, { it })))
        back()
        say(values(results(5, take, { it })))
      ]])
      assert.equal("0 1 2 3 4\ngo\n0 1 2 3 4\n", k:ends(), k.boss:err())
    end
  end)

  it("goes on behind the last completed closure with on_restart = resume", function()
    local k = killed(1, [[
      local ds = tm.data.range(40):with_options{ on_restart = "resume" }:shuffle(10, { seed = 5 })
        :map(function(x) return x * 10 end):rep()
      local want, x = {}, ds:iterator()
      for i = 1, 60 do want[i] = ("%d"):format(x:next():item()) end
      local it = c:create_per_worker_dataset(ds):iterator()
      local first = values(results(35, take, { it }))
      back()
      say(first .. " " .. values(results(25, take, { it })) == table.concat(want, " "))
      say(it:state():match "at=([%d:]+)")
    ]])
    assert.equal("go\ntrue\n60:0\n", k:ends(), k.boss:err())
  end)

  it("gives again what closures took that were lost with the worker: resume", function()
    local k = killed(1, [[
      local it = c:create_per_worker_dataset(tm.data.range(1000):with_options{ on_restart = "resume" }):iterator()
      local slow = tm.func(function(i)
        local x = i:next()
        tm.sleep(0.01)
        return x
      end)
      local list = {}
      for i = 1, 60 do list[i] = c:schedule(slow, { it }) end
      list[5]:fetch()
      say "go"
      for i, r in ipairs(list) do list[i] = ("%d"):format(r:fetch()) end
      say(table.concat(list, " "))
      say(c:stats().retries > 0)
    ]], 0.05)
    local want = {}
    for i = 1, 60 do want[i] = tostring(i - 1) end
    assert.equal("go\n" .. table.concat(want, " ") .. "\ntrue\n", k:ends(), k.boss:err())
  end)

  it("is by itself: other workers' go on, closures that move take from those (pain point 15: dlrover 770)", function()
    local k = killed(2, [[
      local it = c:create_per_worker_dataset(tm.data.range(100000):with_options{ on_restart = "resume" }):iterator()
      local slow = tm.func(function(i)
        local x = i:next()
        tm.sleep(0.003)
        return D.current_worker_index(), x
      end)
      local list = {}
      for i = 1, 300 do list[i] = c:schedule(slow, { it }) end
      list[20]:fetch()
      say "go"
      for i, r in ipairs(list) do list[i] = { r:fetch() } end
      await "back"
      while c:stats().workers[1].state ~= "ready" do tm.sleep(0.01) end
      for _, r in ipairs(results(300, slow, { it })) do list[#list + 1] = r end
      local seen = { [0] = {}, {} }
      for _, r in ipairs(list) do table.insert(seen[math.floor(r[1])], math.floor(r[2])) end
      for w = 0, 1 do
        table.sort(seen[w])
        local fine = #seen[w] > 0
        for i, x in ipairs(seen[w]) do fine = fine and x == i - 1 end
        say(w, fine)
      end
      say(#seen[0] + #seen[1])
    ]], 0.05)
    assert.equal("go\n0\ttrue\n1\ttrue\n600\n", k:ends(), k.boss:err())
  end)

  it("comes with variables and resources made anew", function()
    local k = killed(2, [[
      local v = strategy:scope(function() return D.PerWorkerVariable(100, { dtype = "int64" }) end)
      local r = c:create_per_worker_resource(function()
        return { n = tm.Variable(tm.cast(D.current_worker_index(), "float32") * 10),
          words = tm.lookup.StaticHashTable{ keys = { "a" }, values = { 7 }, default = 0 },
          it = tm.data.range(1000):iterator() }
      end)
      local f = tm.func(function(x)
        v:assign_add(1)
        x.n:assign_add(1)
        x.it:next()
        tm.sleep(0.005)
        return D.current_worker_index(), x.n:read(), x.words:lookup(tm.tensor{ "a" })[1]
      end)
      local function all()
        local l = v:read_all()
        return ("%d %d"):format(l[1]:item(), l[2]:item())
      end
      while true do
        results(4, f, { r })
        local l = v:read_all()
        if l[1]:item() > 103 and l[2]:item() > 103 then break end
      end
      local before = v:read_all()[2]:item()
      back()
      while c:stats().workers[1].state ~= "ready" do tm.sleep(0.01) end
      say(v:read_all()[1]:item() == 100, v:read_all()[2]:item() == before)
      local fine, n = true, 0
      while n < 3 do
        for _, x in ipairs(results(8, f, { r })) do
          if x[1] == 0 then n = n + 1 end
          fine = fine and x[3] == 7 and (x[1] == 1 or x[2] <= 8 + 16 * n)
        end
      end
      say(fine, v:read_all()[1]:item() == 100 + n)
      local s = c:stats()
      say(s.ps[1].reads, s.ps[1].updates)
    ]])
    assert.equal("go\ntrue\ttrue\ntrue\ttrue\n0\t0\n", k:ends(), k.boss:err())
  end)

  it("goes back with the variables when a lost ps is restored from a checkpoint that holds it", function()
    for _, option in ipairs { "restart", "resume" } do
      local k = clusters.start(2, 1)
      k:chief((script(2, [[
        local v = strategy:scope(function() return tm.Variable(0, { dtype = "int64" }) end)
        local option = ]] .. ("%q"):format(option) .. [[

        local it = c:create_per_worker_dataset(tm.data.range(1000):with_options{ on_restart = option })
          :iterator()
        local f = tm.func(function(i)
          local x = i:next()
          v:assign_add(1)
          tm.sleep(0.002)
          return D.current_worker_index(), x
        end)
        local manager = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v, it = it }, DIR .. "/ckpt")
        c.checkpoint_manager = manager
        results(30, f, { it })
        assert(manager:save())
        local at = { it:state():match "at=(%d+):0,(%d+):0" }
        for _ = 1, 20 do c:schedule(f, { it }) end
        c:join()
        say "go"
        await "back"
        local least = { 1e9, 1e9 }
        for _, r in ipairs(results(100, f, { it })) do
          local w = math.floor(r[1]) + 1
          least[w] = math.min(least[w], math.floor(r[2]))
        end
        say(least[1] == tonumber(at[1]), least[2] == tonumber(at[2]), v:read():item())
        say(it:state():match "at=(%d+)" + it:state():match ",(%d+):0" == 130)
      ]]):gsub("ps = 1 }%)", 'ps = 1 }, { on_ps_failure = "restore", heartbeat_interval = 0.2 })', 1)))
      k:says "go"
      k:kill("ps", 0)
      k:run("ps", 0)
      k:tell "back"
      assert.equal("go\ntrue\ttrue\t130\ntrue\n", k:ends(), k.boss:err())
      P.cleanup()
    end
  end)
end)
