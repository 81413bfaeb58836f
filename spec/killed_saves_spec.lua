-- kill -9 at every system call of a save, of the chief and of a ps that writes its part.
local P = dofile "spec/tools/process.lua"
local tasks = dofile "spec/tools/tasks.lua"
local tm = require "tidemill"

local train = tm.train
local build = os.getenv "TM_BUILD" or "build"

-- Restores the latest, sets all to the next number, saves; a table with a slot, in shards,
-- and a dense variable, incrementally every second time.
local chief = [[
local tm = require "tidemill"
local dir = os.getenv "DIR"
local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver{ workers = 1, ps = 2 }, {
  variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner{ num_shards = 2 } })
local emb, w, optimizer = s:scope(function()
  return tm.Variable(tm.zeros{ 100, 8 }), tm.Variable(tm.zeros{ 10 }), tm.optimizers.Adagrad{ learning_rate = 1 }
end)
local function set(n)
  emb:scatter_update(tm.range(0, 100, 1, "int64"), tm.ones{ 100, 8 } * n)
  w:assign(tm.ones{ 10 } * n)
end
optimizer:apply_gradients({ tm.zeros{ 10 } }, { w })
local c = tm.train.Checkpoint{ emb = emb, w = w, optimizer = optimizer, n = 0 }
local m = tm.train.CheckpointManager(c, dir, { max_to_keep = 1, incremental = { full_every = 2 } })
assert(m:restore_or_initialize())
c.n = c.n + 1
set(c.n)
assert(m:save())
if os.getenv "TWICE" then
  c.n = c.n + 1
  set(c.n)
  assert(m:save())
end
print("saved", c.n)
]]

describe("a save that is killed", function()
  local T, dir, script
  before_each(function()
    script = P.script(chief)
    dir = P.dir() .. "/with spaces, имя"
    T = tasks.new(P, { workers = 1, ps = 2 })
    T.id = "killed"
  end)
  after_each(function() assert.same({}, P.cleanup()) end)

  local function start(kind, index, more, args)
    local env = T:env(kind, index)
    env.DIR = dir
    for k, v in pairs(more or {}) do env[k] = v end
    return P.run(args or { kind }, env)
  end

  local function killing(n) return { LD_PRELOAD = build .. "/killer.so", KILL_DIR = dir, KILL_AT = tostring(n) } end

  --- The number of the latest, which is whole.
  local function latest()
    local path = assert(train.latest_checkpoint(dir))
    local c = train.Checkpoint { n = 0, emb = tm.Variable(tm.zeros { 100, 8 }), w = tm.Variable(tm.zeros { 10 }) }
    assert(c:read(path)):expect_partial()
    assert.equal(800 * c.n, tm.reduce_sum(c.emb):item())
    assert.equal(10 * c.n, tm.reduce_sum(c.w):item())
    return c.n
  end

  local function first()
    local c = train.Checkpoint { n = 0, emb = tm.Variable(tm.zeros { 100, 8 }), w = tm.Variable(tm.zeros { 10 }) }
    assert(train.CheckpointManager(c, dir):save())
  end

  --- Run rounds, each in a directory with one checkpoint, until one comes through: fn(k)
  --- runs saves of which something dies at its k-th call; true when nothing died.
  local function every_call(fn)
    local root = dir
    for k = 0, 400 do
      dir = root .. "/" .. k
      first()
      if fn(k) then return k end
      local now = latest()
      assert.is_true(now >= 0 and now <= 3, now) -- two of its own, one more of who clears up
    end
    error "it dies however many calls are let through"
  end

  if build:find "san" then return end -- a sanitizer wants to be loaded before all else

  it("at any call of the chief's leaves a latest that loads", function()
    start("worker", 0)
    start("ps", 0)
    start("ps", 1)
    local deaths = every_call(function(k)
      local more = killing(k)
      more.TWICE = "1"
      local p = start("chief", 0, more, { script })
      local status = assert(p:wait(20))
      assert.is_true(status == 0 or status == 137, p:out() .. p:err())
      if status ~= 0 and k % 8 == 0 then -- what it left is cleared up
        local q = start("chief", 0, nil, { script })
        assert.equal(0, q:wait(20), q:err())
        local list = io.popen(("ls -A '%s' | grep -c tmp-"):format(dir))
        assert.equal(0, list:read "n")
        list:close()
      end
      return status == 0
    end)
    assert.is_true(deaths > 40, deaths)
  end)

  it("at any call of a ps's leaves a latest that loads", function()
    start("worker", 0)
    start("ps", 1)
    local deaths = every_call(function(k)
      local ps = start("ps", 0, killing(k))
      local p = start("chief", 0, { TWICE = "1" }, { script })
      local status = assert(p:wait(20))
      if status ~= 0 then
        assert.equal(137, ps:wait(5), p:err())
        assert.truthy(p:err():find("/job:ps/task:0", 1, true), p:err())
        return false
      end
      return true
    end)
    assert.is_true(deaths >= 8, deaths)
  end)
end)
