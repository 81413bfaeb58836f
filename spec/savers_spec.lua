-- Several processes save in one directory: whatever is listed loads, whoever is killed.
local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"

local train = tm.train

-- Arguments: directory, name, how often, the value that this saver writes, what to keep.
local saver = [[
local tm = require "tidemill"
local dir, name, n, value, keep = arg[1], arg[2], tonumber(arg[3]), tonumber(arg[4]), tonumber(arg[5])
local v = tm.Variable(tm.ones{ 300, 10 } * value)
local m = tm.train.CheckpointManager(tm.train.Checkpoint{ v = v, who = value }, dir,
  { max_to_keep = keep or false, checkpoint_name = name })
print "ready"
io.stdout:flush()
for _ = 1, n do assert(m:save()) end
print "done"
]]

describe("several savers in one directory", function()
  local dir, file
  before_each(function()
    dir, file = P.dir(), P.script(saver)
  end)
  after_each(function() assert.same({}, P.cleanup()) end)

  local function start(...)
    local args = { file }
    for i, a in ipairs { dir, ... } do args[i + 1] = tostring(a) end
    return P.run(args)
  end

  --- Names on the list, all of which load and are whole: the values of one saver.
  local function listed()
    local names = {}
    for path in train.checkpoints_iterator(dir, { every = true, timeout = 0 }) do
      names[#names + 1] = path:match "[^/]*$"
      local v = tm.Variable(tm.zeros { 300, 10 })
      local c = train.Checkpoint { v = v, who = 0 }
      assert(c:restore(path)):assert_consumed()
      assert.equal(3000 * c.who, tm.reduce_sum(v):item())
    end
    assert.equal(names[#names], train.latest_checkpoint(dir):match "[^/]*$")
    return names
  end

  --- How many are on the list; they may be gone already.
  local function count()
    local n = 0
    for _ in train.checkpoints_iterator(dir, { every = true, timeout = 0 }) do n = n + 1 end
    return n
  end

  local function set(list)
    local out = {}
    for _, x in ipairs(list) do out[x] = (out[x] or 0) + 1 end
    return out
  end

  it("list what both of them saved, once", function()
    local a, b = start("a", 15, 1), start("b", 15, 2)
    assert.equal(0, a:wait(20), a:err())
    assert.equal(0, b:wait(20), b:err())
    local want = {}
    for i = 1, 15 do want["a-" .. i], want["b-" .. i] = 1, 1 end
    assert.same(want, set(listed()))
  end)

  it("may take the same names: each is one saver's, whole", function()
    local a, b = start("ckpt", 15, 1), start("ckpt", 15, 2)
    assert.equal(0, a:wait(20), a:err())
    assert.equal(0, b:wait(20), b:err())
    local want = {}
    for i = 1, 15 do want["ckpt-" .. i] = 1 end
    assert.same(want, set(listed()))
  end)

  it("keep their number each, and delete nothing of the other's", function()
    local a, b = start("a", 9, 1, 3), start("b", 6, 2, 2)
    assert.equal(0, a:wait(20), a:err())
    assert.equal(0, b:wait(20), b:err())
    assert.same(set { "a-7", "a-8", "a-9", "b-5", "b-6" }, set(listed()))
  end)

  it("may be killed at any time: the list loads, and the next saver clears up", function()
    for turn = 1, 5 do
      local a, b = start("a", 1000, 1, 2), start("b", 1000, 2, 2)
      assert.truthy(a:says "ready")
      assert.truthy(b:says "ready")
      assert.truthy(P.eventually(10, function() return count() >= 2 end))
      P.sleep(0.03 * turn)
      a:kill()
      b:kill()
      a:wait()
      b:wait()
      assert.is_true(#listed() >= 2)
    end
    local a, b = start("a", 3, 1, 2), start("b", 3, 2, 2)
    assert.equal(0, a:wait(20), a:err())
    assert.equal(0, b:wait(20), b:err())
    local names = set(listed())
    local p = io.popen(("ls -A '%s'"):format(dir))
    for name in p:lines() do
      assert.truthy(name == "checkpoint" or names[name] or name:match "^[ab]%-%d+$", name)
    end
    p:close()
  end)

  it("without a manager clear up too what saves of their name left", function()
    local text = P.script [[
      local tm = require "tidemill"
      local c = tm.train.Checkpoint{ v = tm.Variable(tm.ones{ 2000000 }) }
      print "ready"
      io.stdout:flush()
      for _ = 1, tonumber(arg[2]) do
        assert(c:save(arg[1] .. "/my ckpt"))
        assert(c:write(arg[1] .. "/w"))
      end
    ]]
    for turn = 1, 3 do
      local p = P.run { text, dir, "1000" }
      assert.truthy(p:says "ready")
      P.sleep(0.02 + 0.03 * turn)
      p:kill()
      p:wait()
    end
    local p = P.run { text, dir, "1" }
    assert.equal(0, p:wait(20), p:err())
    p = io.popen(("ls -A '%s' | grep -c tmp-"):format(dir))
    assert.equal(0, p:read "n")
    p:close()
  end)

  it("find their own in a directory full of other files", function()
    os.execute(("cd '%s' && mkdir ckpt-7 'ckpt 1' .tmp-1 && touch ckpt-3 checkpoint.json data-00000.safetensors x.tmp")
      :format(dir))
    local a = start("ckpt", 2, 1, 1)
    assert.equal(0, a:wait(20), a:err())
    assert.same({ "ckpt-2" }, listed())
    local p = io.popen(("ls -A '%s' | sort"):format(dir))
    local all = p:read "a"
    p:close()
    assert.equal(".tmp-1\ncheckpoint\ncheckpoint.json\nckpt 1\nckpt-2\nckpt-3\nckpt-7\n"
      .. "data-00000.safetensors\nx.tmp\n", all)
  end)
end)

describe("a save onto a disk", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  -- With a small disk of its own, in a name space where that needs no rights.
  it("that is full, or may not be written, fails and leaves the latest", function()
    local can = os.execute "unshare -rm true 2>/dev/null"
    if can ~= true and can ~= 0 then
      return pending "needs user and mount name spaces (unshare -rm)"
    end
    local dir = P.dir()
    local text = P.script [[
      local tm = require "tidemill"
      local dir = arg[1]
      local c = tm.train.Checkpoint{ v = tm.Variable(tm.ones{ 100 }), n = 1 }
      local m = tm.train.CheckpointManager(c, dir)
      local first = assert(m:save())
      local function files()
        local p = io.popen("ls -A '" .. dir .. "'")
        local list = p:read "a"
        p:close()
        return list
      end
      local before = files()
      local function fails(code)
        local path, e = m:save()
        assert(path == nil and tm.is_error(e, code), tostring(e))
        assert(tostring(e):find(dir, 1, true), tostring(e))
        assert(m.latest_checkpoint == first and tm.train.latest_checkpoint(dir) == first)
        assert(c.save_counter:read():item() == 1)
        local back = tm.train.Checkpoint{ v = tm.Variable(tm.zeros{ 100 }), n = 0 }
        assert(back:restore(first)):assert_consumed()
        assert(files() == before, files())
      end
      c.big = tm.Variable(tm.zeros{ 1000000 })
      fails "resource_exhausted"
      c.big = tm.Variable(1)
      assert(os.execute("mount -o remount,ro '" .. dir .. "'"))
      fails "permission_denied"
      assert(os.execute("mount -o remount,rw '" .. dir .. "'"))
      assert(m:save())
      print "kept"
    ]]
    local start = 'mount -t tmpfs -o size=1m none "$1" && exec "$2" "$3" "$1"'
    local p = P.start { "unshare", "-rm", "sh", "-c", start, "sh", dir, P.tidemill, text }
    assert.equal(0, p:wait(20), p:out() .. p:err())
    assert.equal("kept\n", p:out())
  end)
end)
