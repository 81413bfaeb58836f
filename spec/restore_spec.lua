-- Restoring clusters of processes: each ps reads its part itself, into any layout.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

-- One script saves and restores.  Arguments: what to do, path, number of shards (0: a
-- list of uneven ones), rows of the large table.
local script = [[
local tm = require "tidemill"
local what, path, shards, rows = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4] or 103)
local function uneven(shape)
  local list = {}
  for i = 1, #shape do list[i] = 1 end
  if shape[1] >= 20 then list[1] = 3 end
  return list
end
local partitioner = shards == 0 and uneven
  or shards > 1 and tm.distribute.partitioners.FixedShardsPartitioner{ num_shards = shards } or nil
local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 1, ps = 1 }, {
  variable_partitioner = partitioner, placement = "round_robin" })
local c = tm.distribute.ClusterCoordinator(s)
local function hwm()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmHWM:%s+(%d+)"
    if kb then return tonumber(kb) / 1024 end
  end
end
local state = s:scope(function()
  local optimizer = tm.optimizers.Adam{ learning_rate = 0.1 }
  return { table = tm.Variable(tm.zeros{ rows, 4 }), dense = tm.Variable(tm.zeros{ 7, 3 }),
    count = tm.Variable(0, { dtype = "int64", trainable = false }), optimizer = optimizer,
    big = what:find "big" and tm.Variable(function(shape) return tm.zeros(shape) end,
      { shape = { 1048576, 32 }, dtype = "float32" }) or nil }
end)
local step = tm.func(function(ids)
  local tape = tm.GradientTape()
  local x = tm.gather(state.table, ids)
  local loss = tm.reduce_sum(tm.square(x - tm.cast(tm.expand_dims(ids, 2), "float32")))
    + tm.reduce_sum(tm.square(state.dense - 1))
  state.optimizer:apply_gradients(tape:gradient(loss, { state.table, state.dense }), { state.table, state.dense })
  state.count:assign_add(1)
  return loss
end)
local function run(n)
  local last
  for i = 1, n do
    last = c:schedule(step, { tm.tensor({ i, i + 21, i + 42, i + 63, i + 84, i * 7, rows - 1 }, "int64") })
    c:join()
  end
  return last:fetch()
end
local checkpoint = tm.train.Checkpoint(state)
if what:find "save" then
  run(5)
  if state.big then state.big:scatter_update(tm.tensor({ 5, 777777 }, "int64"), tm.ones{ 2, 32 }) end
  assert(checkpoint:write(path))
  print("after", ("%.9g"):format(run(4)), state.count:read():item())
else
  if what:find "after" then run(3) end
  local before = hwm()
  assert(checkpoint:restore(path)):assert_consumed()
  local grown = hwm() - before
  if state.big then
    local x = state.big:sparse_read(tm.tensor({ 4, 5, 777777 }, "int64")):totable()
    assert(x[1][1] == 0 and x[2][1] == 1 and x[3][32] == 1)
    -- A sanitizer keeps what was freed.
    assert(grown < 50 or (os.getenv "TM_BUILD" or ""):find "san", "the chief grew by " .. grown .. " MB")
  end
  local sum = tm.reduce_sum(state.table):item()
  print("after", ("%.9g"):format(run(4)), state.count:read():item())
end
io.stdout:flush()
]]

describe("a checkpoint of a cluster", function()
  local dir, file
  setup(function()
    dir, file = P.dir(), P.script(script)
  end)
  teardown(function() assert.same({}, P.cleanup()) end)

  --- Environments of the tasks of a cluster with one worker.
  local function cluster(ps)
    local function address() return ('"127.0.0.1:%d"'):format(tm.distribute.pick_unused_port()) end
    local list = {}
    for i = 1, ps do list[i] = address() end
    local text = ('{"cluster": {"worker": [%s], "ps": [%s]}, "task": {"type": "%%s", "index": %%d}}'):format(address(),
      table.concat(list, ", "))
    return function(kind, index) return { TM_CONFIG = text:format(kind, index) } end
  end

  local function launch(ps, ...)
    local p = P.run { "launch", "--workers", "1", "--ps", tostring(ps), file, ... }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    return p:out():match "after[^\n]*", p
  end

  local layouts = { { ps = 1, shards = "1" }, { ps = 2, shards = "2" }, { ps = 3, shards = "0" },
    { ps = 2, shards = "5" } }
  local want = {}

  for i, a in ipairs(layouts) do
    it(("is the same whether saved on %d ps in %s shards"):format(a.ps, a.shards), function()
      want[i] = assert(launch(a.ps, "save", dir .. "/ckpt-" .. i, a.shards))
      assert.equal(want[1], want[i])
    end)
  end

  for i, a in ipairs(layouts) do
    for j, b in ipairs(layouts) do
      local kind = (i + j) % 2 == 0 and "restore" or "restore after"
      it(("saved on %d ps in %s shards continues on %d in %s (%s)"):format(a.ps, a.shards, b.ps, b.shards, kind),
        function() assert.equal(want[i], launch(b.ps, kind, dir .. "/ckpt-" .. i, b.shards)) end)
    end
  end

  it("tears nothing when it is restored while functions run", function()
    local p = P.run { "launch", "--workers", "2", "--ps", "2", P.script [[
      local tm = require "tidemill"
      local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 2, ps = 2 }, {
        variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
      local c = tm.distribute.ClusterCoordinator(s)
      local w, emb = s:scope(function() return tm.Variable(tm.zeros{ 500, 40 }), tm.Variable(tm.zeros{ 500, 4 }) end)
      local ids = tm.range(0, 500, 1, "int64")
      emb:scatter_add(ids, tm.zeros{ 500, 4 })
      local f = tm.func(function()
        w:assign_add(tm.ones{ 500, 40 })
        emb:scatter_add(ids, tm.ones{ 500, 4 })
        return tm.reduce_max(w) - tm.reduce_min(w), tm.reduce_max(emb, 2) - tm.reduce_min(emb, 2)
      end)
      local checkpoint = tm.train.Checkpoint{ w = w, emb = emb }
      assert(checkpoint:write(arg[1]))
      local values = {}
      for turn = 1, 10 do
        for i = 1, 30 do values[#values + 1] = c:schedule(f) end
        assert(checkpoint:read(arg[1]))
      end
      c:join()
      for k = 1, 2 do -- a dense shard has one value in all places, a row of a table too
        local x = w.variables[k]:read()
        assert(tm.reduce_max(x):item() == tm.reduce_min(x):item())
      end
      assert(tm.allclose(tm.reduce_max(emb, 2), tm.reduce_min(emb, 2), 0, 0))
      print "whole"
    ]], dir .. "/running" }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.truthy(p:out():find("whole", 1, true))
  end)

  it("restores the copies of replicated shards too: they serve what was restored", function()
    local p = P.run { "launch", "--workers", "1", "--ps", "2", "--no-restart", P.script [[
      local tm = require "tidemill"
      local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 1, ps = 2 }, { replicas = 1,
        variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
      local c = tm.distribute.ClusterCoordinator(s)
      local w, o = s:scope(function() return tm.Variable(tm.ones{ 50, 4 }), tm.optimizers.Adam{} end)
      local f = tm.func(function()
        local tape = tm.GradientTape()
        o:apply_gradients(tape:gradient(tm.reduce_sum(tm.square(w)), { w }), { w })
      end)
      local function train() c:schedule(f) c:join() end
      train()
      local checkpoint = tm.train.Checkpoint{ w = w, o = o }
      assert(checkpoint:write(arg[1]))
      local want, slot = w:read(), o:get_slot(w, "m")
      train()
      assert(checkpoint:read(arg[1])):assert_consumed()
      local list = io.popen "ps -o pid=,args= --ppid $(ps -o ppid= -p $(ps -o ppid= -p $$)) | grep 'tidemill ps'"
      local pid = list:read "a":match "%d+"
      list:close()
      os.execute("kill -9 " .. pid)
      assert(tm.allclose(w, want, 0, 0) and tm.allclose(o:get_slot(w, "m"), slot, 0, 0))
      assert(checkpoint:write(arg[1] .. "-again"))
      assert(tm.allclose(tm.train.load_variable(arg[1] .. "-again", "w"), want, 0, 0))
      print "served"
    ]], dir .. "/copies" }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.truthy(p:out():find("served", 1, true))
  end)

  it("restores on ps that do not see its directory, and the chief stays small", function()
    local before = launch(2, "save big", dir .. "/big", "2")
    assert.equal(before, (launch(1, "restore big", dir .. "/big", "4")))
    -- The chief works in another directory, so this path is another one for each task.
    local env = cluster(3)
    P.run({ "ps" }, env("ps", 0))
    P.run({ "ps" }, env("ps", 1))
    P.run({ "ps" }, env("ps", 2))
    P.run({ "worker" }, env("worker", 0))
    local pwd = io.popen "pwd"
    local tidemill = P.tidemill:sub(1, 1) == "/" and P.tidemill or pwd:read "l" .. "/" .. P.tidemill
    pwd:close()
    local command = { "sh", "-c", 'cd "$0" && exec "$@"', dir, tidemill, file, "restore big", "/proc/self/cwd/big",
      "3" }
    local p = P.start(command,
      env("chief", 0))
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.equal(before, p:out():match "after[^\n]*")
  end)
end)
