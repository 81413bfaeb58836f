-- docs/failures.md names tests and constants: they are there.  The README's example of
-- what outlives failures does.
local P = dofile "spec/tools/process.lua"
local named = dofile "spec/tools/named.lua"

local read = named.read

describe("docs/failures.md", function()
  local text = read "docs/failures.md"

  it("names tests that there are", function()
    assert.is_true(named.check(text) > 100)
  end)

  it("tells of each pain point from 1 to 43", function()
    local last = 0
    for number in text:gmatch "\n| (%d+) |" do
      assert.equal(last + 1, tonumber(number))
      last = last + 1
    end
    assert.equal(43, last)
  end)

  it("names constants that there are", function()
    local p = io.popen "cat core/*/*.c core/*/*.h"
    local source = p:read "a"
    p:close()
    for name in text:gmatch "`(%u[%u_]+%*?)`" do
      if name ~= "UPDATE" and name ~= "TM_CONFIG" then
        assert.is_truthy(source:find(name:gsub("%*", ""), 1, true), name)
      end
    end
  end)
end)

describe("README.md", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("has an example that outlives a worker, a ps and the chief", function()
    local text = read("README.md"):match "\n## When machines fail\n+```lua\n(.-)```"
    local dir = P.dir()
    text = text:gsub("2000", "200"):gsub("50000", "12000"):gsub('"runs/robust"', ("%q"):format(dir))
    text = text:gsub("local w = ", "tm.sleep(0.002)\n%0"):gsub("local x = ", "tm.sleep(0.0005)\n  %0")
    local p = P.run { "launch", "--restart-chief", "--workers", "3", "--ps", "2", P.script(text) }
    local saved = dir .. "/checkpoint"
    assert.is_truthy(P.eventually(5, function() return read(saved) end), p:err())
    P.signal("KILL", P.task("worker", 0))
    P.sleep(0.2)
    P.signal("KILL", P.task("ps", 0))
    assert.is_truthy(p:says "/job:ps/task:1 serves the shards of /job:ps/task:0 now", p:err())
    P.sleep(0.2)
    P.signal("TERM", P.task("chief", 0))
    assert.is_truthy(p:says "/job:chief/task:0 ended %(status 143%); starting it again", p:err())
    assert.equal(0, p:wait(20), p:out() .. p:err())
    assert.is_truthy(p:out():find "%[[%d%.]+, %-[%d%.]+%]", p:out())
    assert.is_truthy(p:out():find("SIGTERM", 1, true), p:out())
  end)
end)
