-- Ctrl-C that a script survives: SIGINT to real processes.
local P = dofile "spec/tools/process.lua"

local jit = _VERSION == "Lua 5.1"

local head = [[
local tm = require "tidemill"
local D = tm.distribute
io.stdout:setvbuf "no"
local interrupt = require "tidemill.lib.interrupt"
]]

local function run(text) return P.run { P.script(head .. text) } end

local function launch(text)
  return P.run { "launch", "--workers", "2", "--ps", "1", P.script(head .. text) }
end

local function ends(p, status, seconds)
  assert.equal(status, p:wait(seconds or 10), p:out() .. p:err())
end

local function says(p, pattern) assert.is_truthy(p:says(pattern, 20), p:out() .. p:err()) end

describe("Ctrl-C", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("that a pcall caught is taken note of, and the script goes on", function()
    local p = run [[
      for i = 1, 2 do
        print("go " .. i)
        print(pcall(tm.sleep, 60))
        print("noted " .. i, tm.interrupted())
        for _ = 1, 1e5 do local _ = i end
      end
      tm.sleep(0.01)
      print("none", tm.interrupted())
    ]]
    for i = 1, 2 do
      says(p, "go " .. i)
      P.sleep(0.25) -- two within 0.2 s are one
      p:kill "INT"
      says(p, "noted " .. i .. "\ttrue")
    end
    ends(p, 0)
    assert.is_truthy(p:out():find "none\tfalse")
  end)

  it("ends a catch also where the work catches its errors", function()
    if jit then return end -- loops that LuaJIT has compiled look at no hook
    local p = run [[
      local ok, e, interrupted = interrupt.catch(function()
        print "go"
        while true do pcall(function() while true do end end) end
      end)
      for _ = 1, 1e5 do local _ = ok end
      print(ok, tm.is_error(e, "cancelled"), interrupted)
      interrupt.over()
      print(interrupt.catch(function() error("mine", 0) end))
    ]]
    says(p, "go")
    p:kill "INT"
    ends(p, 0)
    assert.is_truthy(p:out():find "false\ttrue\ttrue\nfalse\tmine\tfalse\n", p:out())
  end)

  it("twice ends the program, unless the script went on after the first", function()
    local p = run [[
      interrupt.catch(function() print "go" tm.sleep(60) end)
      print "stopping"
      tm.sleep(60)
    ]]
    says(p, "go")
    p:kill "INT"
    says(p, "stopping")
    P.sleep(0.25)
    p:kill "INT"
    ends(p, 130)
  end)

  it("under launch leaves workers and ps to a chief that goes on", function()
    local p = launch [[
      local strategy = D.ParameterServerStrategy(D.resolver{ workers = 2, ps = 1 })
      local v = strategy:scope(function() return tm.Variable(0) end)
      local c = D.ClusterCoordinator(strategy)
      for i = 1, 2 do
        local _, _, interrupted = interrupt.catch(function()
          for _ = 1, 4 do c:schedule(function() tm.sleep(60) end) end
          print("go " .. i)
          c:join()
        end)
        c:cancel()
        interrupt.over()
        print("interrupted " .. i, interrupted)
        tm.sleep(1)
        for _ = 1, 10 do c:schedule(function() v:assign_add(1) end) end
        c:join()
        print("count " .. i, v:read():item())
      end
    ]]
    for i = 1, 2 do
      says(p, "go " .. i)
      p:kill "INT"
      says(p, "interrupted " .. i .. "\ttrue")
      says(p, "count " .. i)
    end
    ends(p, 0)
    assert.is_truthy(p:out():find "count 2\t20", p:out())
  end)

  it("under launch ends all when the chief does not answer", function()
    local p = launch [[
      print "go"
      interrupt.catch(function() tm.sleep(60) end)
      print "stopping"
      tm.sleep(60)
    ]]
    says(p, "go")
    P.sleep(0.1)
    p:kill "INT"
    says(p, "stopping")
    P.sleep(0.25)
    p:kill "INT"
    ends(p, 130)
  end)
end)

describe("coordinator:cancel", function()
  it("ends what is queued and what runs without an error", function()
    local tm = require "tidemill"
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 1 })
    local c = tm.distribute.ClusterCoordinator(strategy)
    local v = strategy:scope(function() return tm.Variable(0) end)
    local values = {}
    for i = 1, 10 do values[i] = c:schedule(function() tm.sleep(60) end) end
    local began = tm.time()
    c:cancel()
    assert.is_true(tm.time() - began < 10)
    for _, x in ipairs(values) do
      local ok, e = pcall(x.fetch, x)
      assert.is_true(not ok and tm.is_error(e, "cancelled"), tostring(e))
    end
    c:cancel()
    for _ = 1, 10 do c:schedule(function() v:assign_add(1) end) end
    c:join()
    assert.equal(10, v:read():item())
    c:schedule(function() tm.assert_true(tm.tensor(false), "mine") end)
    c:cancel()
    c:join()
    c:close()
  end)
end)
