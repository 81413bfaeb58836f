-- Saving clusters of processes while they train: one moment, files by each ps, failures.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

-- One script trains and saves.  Arguments: what to do, directory, a number.
local script = [[
local tm = require "tidemill"
local core = require "tidemill.core"
local saving = require "tidemill.train.saving"
local what, dir, n = arg[1], arg[2], tonumber(arg[3] or 0)
local local_ = what:find "local"
local resolver = local_ and tm.distribute.local_cluster{ workers = 2, ps = 2 }
  or tm.distribute.resolver{ workers = 2, ps = 2 }
local strategy = tm.distribute.ParameterServerStrategy(resolver, { placement = "round_robin" })
local c = tm.distribute.ClusterCoordinator(strategy)
local function int(name) return tm.Variable(0, { dtype = "int64", trainable = false, name = name }) end
local root = strategy:scope(function()
  return { a = int "a", b = int "b",
    table = what:find "big" and tm.Variable(function(shape) return tm.zeros(shape) end,
      { shape = { n, 64 }, dtype = "float32", name = "table" }) or nil }
end)
local both = tm.func(function()
  root.a:assign_add(1)
  root.b:assign_add(1)
end)
local checkpoint = tm.train.Checkpoint(root, { stream = what:find "stream" ~= nil })
local function say(...)
  print(...)
  io.stdout:flush()
end
local function values(path)
  local r = assert(core.ckpt.open(path))
  assert(r:verify())
  local a, b = r:read "a":item(), r:read "b":item()
  r:close()
  return a, b
end

if what:find "still" then
  -- Updates wait until all is written: what the next read finds is what was saved, or more.
  for i = 1, n do
    for _ = 1, 20 do c:schedule(both) end
    local path = assert(saving.save(dir .. "/still", require "tidemill.train.tree".walk(root), { still = true,
      stream = i % 2 == 0 }))
    local a, b = values(path)
    assert(a == b)
  end
  c:join()
  assert(root.a:read():item() == 20 * n and root.b:read():item() == 20 * n)
  say("still", n)
elseif what:find "often" then
  local last, moved, pause = -1, 0, 0
  for i = 1, n do
    for _ = 1, 20 do c:schedule(both) end
    local path = assert(checkpoint:write(dir .. "/often-" .. what:gsub(" ", "-")))
    local a, b = values(path)
    assert(a == b, ("%d: %d and %d"):format(i, a, b))
    assert(a >= last)
    if a > last then moved = moved + 1 end
    last, pause = a, math.max(pause, saving.last.pause)
  end
  c:join()
  assert(root.a:read():item() == 20 * n and root.b:read():item() == 20 * n)
  say("equal", n, "moved", moved > n / 4, "streamed", saving.last.streamed, ("pause %.4f"):format(pause))
elseif what:find "slow" then
  local slow = tm.func(function()
    local x = tm.ones { 400, 400 }
    for _ = 1, 60 do x = tm.matmul(x, x) * 1e-3 end
    root.a:assign_add(tm.cast(tm.reduce_sum(x) * 0 + 1, "int64"))
    root.b:assign_add(1)
  end)
  local t0 = os.clock()
  for _ = 1, 12 do c:schedule(slow) end
  local saves = 0
  while not c:done() do
    local path = assert(checkpoint:write(dir .. "/slow"))
    local a, b = values(path)
    assert(a == b)
    if a < 12 then saves = saves + 1 end
    tm.reduce_sum(tm.ones { 10 })
  end
  say("saves while closures ran", saves)
else
  for i = 1, 10 do c:schedule(both) end
  c:join()
  say "ready"
  io.stdin:read "l"
end
]]

-- Closures that each change all rows of a table, which is more than a ps copies aside.
local heavy = [[
local tm = require "tidemill"
local saving, core = require "tidemill.train.saving", require "tidemill.core"
core.log = print
local dir, more, part = arg[1], tonumber(arg[2]), tonumber(arg[3])
local rows, width = 400000, 64
local per = math.floor(rows / part)
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 2, ps = 2 }, {
  placement = "round_robin" })
local c = tm.distribute.ClusterCoordinator(strategy)
local root = strategy:scope(function()
  return { table = tm.Variable(function(shape) return tm.zeros(shape) end,
    { shape = { rows, width }, dtype = "float32", name = "table" }), count = tm.Variable(0, { dtype = "int64" }) }
end)
-- Rows r + i * part for all i: one more each, and one more closure that did so.
local step = tm.func(function(r)
  root.table:scatter_add(tm.range(0, part) * per + r, tm.ones { part, width })
  root.count:assign_add(1)
end)
local n = 0
local function go()
  for _ = 1, per do
    c:schedule(step, { tm.tensor(n % per, "int64") })
    n = n + 1
  end
end
go()
c:join()
for _ = 1, more do go() end
io.stdout:write "ready\n"
io.stdout:flush()
local how = { stream = true }
local path, err = saving.save(dir .. "/heavy", require "tidemill.train.tree".walk(root), how)
local steps = c:stats().steps
print("saved", path, err, "streamed", saving.last and saving.last.streamed)
local r = assert(core.ckpt.open(path))
assert(r:verify())
local count, sum = r:read "count":item(), 0
for at = 0, rows - 1, part do sum = sum + tm.reduce_sum(r:read("table", at, part)):item() end
print("right", sum == count * part * width, "moved", count > per, count, steps, n, sum / (part * width))
r:close()
c:join()
]]

-- Saves once, at once or when the file `go` is there, and says how it went.
local once = [[
local tm = require "tidemill"
local dir, rows, go = arg[1], tonumber(arg[2]), arg[3]
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 1, ps = 2 }, {
  placement = "round_robin",
  heartbeat_timeout = 1, heartbeat_interval = 0.1 })
local c = tm.distribute.ClusterCoordinator(strategy)
local root = strategy:scope(function()
  local function table_() return tm.Variable(function(shape) return tm.ones(shape) end,
    { shape = { rows, 256 }, dtype = "float32", name = "table" }) end
  return { one = table_(), two = table_(), count = tm.Variable(0, { dtype = "int64", name = "count" }) }
end)
local step = tm.func(function() root.count:assign_add(1) end)
for _ = 1, 10 do c:schedule(step) end
c:join()
print "ready"
io.stdout:flush()
for _ = 1, 20000 do c:schedule(step) end
if go then while not io.open(go) do tm.reduce_sum(tm.ones { 10 }) end end
local path, err = tm.train.Checkpoint(root):write(dir .. "/once")
print("saved", path, err and err.code, err and err.task, err and err.message)
print("streamed", require "tidemill.train.saving".last and require "tidemill.train.saving".last.streamed)
io.stdout:flush()
]]

describe("saving a cluster", function()
  local dir, file, single
  setup(function()
    dir, file, single = P.dir(), P.script(script), P.script(once)
  end)
  teardown(function() assert.same({}, P.cleanup()) end)

  local function launch(what, n)
    local p = P.run { "launch", "--workers", "2", "--ps", "2", file, what, dir, tostring(n or "") }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    return p:out()
  end

  local function environments(workers, ps)
    local function list(n)
      local out = {}
      for i = 1, n do out[i] = ('"127.0.0.1:%d"'):format(tm.distribute.pick_unused_port()) end
      return table.concat(out, ", ")
    end
    local text = ('{"cluster": {"chief": [%s], "worker": [%s], "ps": [%s]}, "task": {"type": "%%s", "index": %%d}}')
      :format(list(1), list(workers), list(ps))
    return function(kind, index) return { TM_CONFIG = text:format(kind, index) } end
  end

  local function files(pattern)
    local p = io.popen(("ls -d %s/%s 2>/dev/null"):format(dir, pattern))
    local list = {}
    for line in p:lines() do list[#list + 1] = line end
    p:close()
    return list
  end

  it("holds no half of an update: two counters on two ps, saved 200 times while training, are equal", function()
    assert.matches("equal%s+200%s+moved%s+true%s+streamed%s+0", launch("often", 200))
  end)

  it("holds no half of an update in one process", function()
    local p = P.run { file, "often local", dir, "60" }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.matches("equal%s+60%s+moved%s+true", p:out())
  end)

  it("by the chief's own hand (stream = true) is of one moment too", function()
    assert.matches("equal%s+50%s+moved%s+true%s+streamed%s+2", launch("often stream", 50))
  end)

  it("without updates meanwhile, for tables that change faster than they are written, lets training go on after it",
    function() assert.matches("still%s+20", launch("still", 20)) end)

  it("does not wait for closures", function()
    local saves = tonumber(launch("slow"):match "closures ran%s+(%d+)")
    assert.is_true(saves >= 3, "saved " .. saves .. " times while they ran")
  end)

  it("leaves each ps a file of its own, and nothing else", function()
    launch("often", 1)
    local p = io.popen(("cd %s/often-often && ls"):format(dir))
    local names = p:read "a"
    p:close()
    assert.equal("checkpoint.json\ndata-00000.safetensors\ndata-00001.safetensors\n", names)
    assert.same({}, files "*.tmp-*")
  end)

  --- Tasks by hand; what runs them is given by `how` ("" or a shell prefix).
  local function tasks(env, how)
    local list = {}
    for i = 0, 1 do
      local command = (how and how(i) or "") .. ' exec "$@"'
      list["ps" .. i] = P.start({ "sh", "-c", command, "sh", P.tidemill, "ps" }, env("ps", i))
    end
    list.worker0 = P.run({ "worker" }, env("worker", 0))
    return list
  end

  local function stop(list)
    for _, p in pairs(list) do p:kill() end
    for _, p in pairs(list) do p:wait(5) end
  end

  it("streamed while all rows of a table change makes writers wait for room, and nobody else", function()
    local p = P.run { "launch", "--workers", "2", "--ps", "2", P.script(heavy), dir, "8", "4000" }
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.matches("saved%s+%S+heavy%s+nil%s+streamed%s+2", p:out())
    assert.matches("right%s+true", p:out())
    assert.not_matches("again, without updates", p:out())
    os.execute("rm -rf " .. dir .. "/heavy*")
  end)

  it("streamed is repeated without updates when the chief did not read for so long that training went on", function()
    local env = environments(2, 2)
    local t = tasks(env)
    t.worker1 = P.run({ "worker" }, env("worker", 1))
    local p = P.run({ P.script(heavy), dir, "8", "100000" }, env("chief", 0))
    assert.truthy(p:says("ready", 20), p:out() .. p:err())
    assert.truthy(P.eventually(10, function() return #files "heavy.tmp-*/data-*.safetensors" > 0 end))
    p:kill "STOP"
    tm.sleep(10) -- 5 s of one UPDATE, which begins when the room is full
    p:kill "CONT"
    assert.equal(0, p:wait(60), p:out() .. p:err())
    assert.matches("again, without updates", p:out())
    assert.matches("saved%s+%S+heavy%s+nil%s+streamed%s+2", p:out())
    assert.matches("right%s+true", p:out())
    os.execute("rm -rf " .. dir .. "/heavy*")
    stop(t)
  end)

  it("is streamed through the chief when ps do not see its directory", function()
    local env = environments(1, 2)
    local t = tasks(env)
    local pwd = io.popen "pwd"
    local tidemill = P.tidemill:sub(1, 1) == "/" and P.tidemill or pwd:read "l" .. "/" .. P.tidemill
    pwd:close()
    local p = P.start({ "sh", "-c", 'cd "$0" && exec "$@"', dir, tidemill, single, "/proc/self/cwd", "1000" },
      env("chief", 0))
    assert.equal(0, p:wait(30), p:out() .. p:err())
    assert.matches("saved%s+/proc/self/cwd/once", p:out())
    assert.matches("streamed%s+2", p:out())
    local core = require "tidemill.core"
    local r = assert(core.ckpt.open(dir .. "/once"))
    assert.is_true(r:verify())
    assert.equal(1, r:read("one", 999, 1):totable()[1][256])
    r:close()
    stop(t)
  end)

  it("fails as unavailable, naming the ps that died in the middle, and leaves no trace", function()
    local env = environments(1, 2)
    local t = tasks(env)
    os.execute("rm -rf " .. dir .. "/once")
    local go = P.dir() .. "/go"
    local p = P.run({ single, dir, "80000", go }, env("chief", 0))
    assert.truthy(p:says("ready", 20))
    io.open(go, "w"):close()
    assert.truthy(P.eventually(10, function()
      local list = files "once.tmp-*/data-00001.safetensors"
      local f = list[1] and io.open(list[1])
      if not f then return nil end
      local size = f:seek "end"
      f:close()
      return size > 1000000
    end), p:out() .. p:err())
    t.ps1:kill "KILL"
    assert.truthy(p:wait(30), p:out() .. p:err())
    assert.matches("saved%s+nil%s+unavailable%s+/job:ps/task:1", p:out())
    assert.same({}, files "once*")
    stop(t)
  end)

  it("tells of a full disk of a ps: resource_exhausted, the path and the task", function()
    local env = environments(1, 2)
    local t = tasks(env, function(i) return i == 1 and "trap '' XFSZ; ulimit -f 2000;" or "" end)
    local p = P.run({ single, dir, "20000" }, env("chief", 0))
    assert.truthy(p:wait(30), p:out() .. p:err())
    assert.matches("saved%s+nil%s+resource_exhausted%s+/job:ps/task:1.*data%-0000%d.safetensors", p:out())
    assert.same({}, files "once*")
    stop(t)
  end)

  it("is given up by ps whose chief dies; the next chief saves", function()
    local env = environments(1, 2)
    local t = tasks(env)
    local go = P.dir() .. "/go"
    local p = P.run({ single, dir, "80000", go }, env("chief", 0))
    assert.truthy(p:says("ready", 20))
    io.open(go, "w"):close()
    assert.truthy(P.eventually(10, function() return #files "once.tmp-*/data-00001.safetensors" > 0 end))
    p:kill "KILL"
    p:wait(5)
    p = P.run({ single, dir, "1000" }, env("chief", 0))
    assert.equal(0, p:wait(30), p:out() .. p:err())
    assert.matches("saved%s+" .. dir:gsub("%p", "%%%0") .. "/once%s", p:out())
    os.execute("rm -rf " .. dir .. "/once*")
    stop(t)
  end)

  it("does not hang on a worker that stands still", function()
    local env = environments(1, 2)
    local t = tasks(env)
    local go = P.dir() .. "/go"
    local p = P.run({ single, dir, "1000", go }, env("chief", 0))
    assert.truthy(p:says("ready", 20))
    t.worker0:kill "STOP"
    io.open(go, "w"):close()
    assert.truthy(p:says("saved%s+%S+once", 20), p:out() .. p:err())
    t.worker0:kill "CONT"
    p:kill()
    p:wait(5)
    stop(t)
  end)
end)
