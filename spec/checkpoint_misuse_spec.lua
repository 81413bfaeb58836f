-- What tm.train is given by mistake: each is told by name, nothing is written elsewhere.
local tm = require "tidemill"

local train = tm.train

local raises = dofile("spec/tools/expect.lua").raises

local function invalid(text, fn, ...) raises("invalid_argument", text, fn, ...) end

describe("misuse of tm.train", function()
  local dir, c

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    c = train.Checkpoint { v = tm.Variable(1), x = 1 }
  end)
  after_each(function() os.execute("rm -rf '" .. dir .. "'") end)

  it("names what a path cannot be, also one with a zero byte", function()
    local takers = {
      latest_checkpoint = train.latest_checkpoint, checkpoints_iterator = train.checkpoints_iterator,
      list_variables = train.list_variables, load_variable = function(p) return train.load_variable(p, "v") end,
      save = function(p) return c:save(p) end, write = function(p) return c:write(p) end,
      read = function(p) return c:read(p) end, CheckpointManager = function(p) return train.CheckpointManager(c, p) end,
    }
    for name, fn in pairs(takers) do
      for _, x in ipairs { 3, true, {}, print, "", dir .. "\0b" } do invalid(name, fn, x) end
    end
    invalid("restore", function() return c:restore(dir .. "\0b") end)
    invalid("zero byte", train.CheckpointManager, c, dir, { checkpoint_name = "a\0b" })
    assert.is_nil(io.open(dir .. "/checkpoint.json"))
  end)

  it("says what a path is that holds no checkpoint", function()
    assert(c:save(dir .. "/a"))
    local function says(text, _, e)
      assert.is_true(tm.is_error(e, "not_found"), tostring(e))
      assert.truthy(tostring(e):find(text, 1, true), tostring(e))
    end
    says("there is no checkpoint", c:restore(dir .. "/b"))
    says("holds checkpoints and is none", c:restore(dir))
    says("list_variables tells", train.load_variable(dir .. "/a-1", "w"))
  end)

  it("names options of the wrong kind", function()
    local nan = 0 / 0
    for _, o in ipairs { { timeout = "1" }, { timeout = nan }, { timeout = -1 }, { min_interval_secs = "x" },
      { min_interval_secs = nan }, { timeout_fn = 3 }, { every = "yes" } } do
      invalid(next(o), train.checkpoints_iterator, dir, o)
    end
    for _, o in ipairs { { step_counter = "x" }, { step_counter = {} }, { stream = "no" },
      { checkpoint_interval = "2" }, { init_fn = 3 }, { checkpoint_name = 5 } } do
      invalid((next(o)), train.CheckpointManager, c, dir, o)
    end
    invalid("stream", train.Checkpoint, {}, { stream = 1 })
    invalid("load_variable takes a name", train.load_variable, dir, nil)
    local m = train.CheckpointManager(c, dir)
    for _, x in ipairs { "3", true, print, -1, 0.5, math.huge, nan } do
      invalid("checkpoint_number", m.save, m, x)
    end
    invalid("check_interval", m.save, m, { check_interval = "no" })
    invalid("save takes one table", c.save, c, dir .. "/a", 5)
    assert.is_nil(m.latest_checkpoint)
  end)

  it("lets no key take the place of what a Checkpoint needs itself", function()
    for _, key in ipairs { "_root", "_stream", "@alias/v", "@random/x/seed", "@x" } do c[key] = 7 end
    local path = assert(c:write(dir .. "/w"))
    local d = train.Checkpoint { v = tm.Variable(0) }
    assert(d:read(path)):assert_consumed()
    for _, key in ipairs { "_root", "_stream", "@alias/v", "@random/x/seed", "@x" } do assert.equal(7, d[key]) end
    assert.equal(1, d.v:read():item())
  end)

  it("refuses keys with a zero byte, and tables that are nested without end", function()
    local z = train.Checkpoint { t = { ["a\0b"] = 1 } }
    invalid("zero byte", z.write, z, dir .. "/z")
    local t = {}
    local root = t
    for _ = 1, 3000 do
      t.x = {}
      t = t.x
    end
    t.v = 1
    local deep = train.Checkpoint { r = root }
    invalid("nested more than", deep.write, deep, dir .. "/deep")
  end)

  it("never replaces a directory that holds something else", function()
    assert(c:save(dir .. "/ckpt"))
    local path, err = c:write(dir)
    assert.is_nil(path)
    assert.equal("already_exists", err.code)
    assert.equal(dir .. "/ckpt-1", train.latest_checkpoint(dir))
  end)

  it("is not held up by a pipe where a checkpoint should be", function()
    assert(c:save(dir .. "/ckpt"))
    os.execute(("rm '%s/ckpt-1/checkpoint.json' && mkfifo '%s/ckpt-1/checkpoint.json'"):format(dir, dir))
    assert.is_nil(train.latest_checkpoint(dir))
    assert.is_nil(train.load_variable(dir .. "/ckpt-1", "v"))
    assert.is_nil((c:read(dir .. "/ckpt-1")))
  end)

  it("takes no state of an iterator from inside a trace", function()
    local it = tm.data.range(4):iterator()
    local state = it:state()
    raises("failed_precondition", "inside a traced function", tm.func(function() return it:state() end))
    raises("failed_precondition", "inside a traced function", tm.func(function() it:restore(state) end))
  end)

  it("leaves variables as they are when the state of an iterator is refused", function()
    local v = tm.Variable(1)
    local it = tm.data.range(4):iterator()
    local path = assert(train.Checkpoint { v = v, it = it }:write(dir .. "/it"))
    v:assign(2)
    local other = tm.data.range(4):batch(2):iterator()
    local status, err = train.Checkpoint { v = v, it = other }:read(path)
    assert.is_nil(status)
    assert.equal("invalid_argument", err.code)
    assert.equal(2, v:read():item())
  end)

  it("saves no variable of workers as if it were one", function()
    local cluster = tm.distribute.local_cluster { workers = 1, ps = 1 }
    local coordinator = tm.distribute.ClusterCoordinator(tm.distribute.ParameterServerStrategy(cluster))
    local v
    coordinator:create_per_worker_resource(function()
      v = tm.Variable(3)
      return v
    end)
    local w = train.Checkpoint { v = v }
    invalid("variable of each worker", w.write, w, dir .. "/w")
    local path = assert(c:write(dir .. "/c"))
    invalid("variable of each worker", c.read, c, path, { names = { v = v } })
    coordinator:close()
  end)

  it("names a variable's name and shape of the wrong kind", function()
    invalid("name is a string", tm.Variable, 1, { name = {} })
    invalid("shape is a list", tm.Variable, 1, { shape = 3 })
  end)
end)
