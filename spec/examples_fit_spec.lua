-- examples/adult_fit.lua, as people run it.

local process = require "spec.tools.process"
local tm = require "tidemill"

after_each(process.cleanup)

describe("examples/adult_fit.lua", function()
  it("reaches 0.85 on the test rows, by processes too", function()
    for _, how in ipairs { {}, { "launch", "--workers", "2", "--ps", "2" } } do
      how[#how + 1] = "examples/adult_fit.lua"
      local p = process.run(how)
      assert.equal(0, p:wait(60), p:err())
      local accuracy = p:out():match "test accuracy (%d%.%d+), AUC 0%.9%d+ after %d epochs"
      assert.is_true(tonumber(accuracy) > 0.85)
    end
  end)

  it("writes logs, the best model and a backup", function()
    local dir = process.dir()
    local lines = process.example("adult_fit", dir)
    assert.is_truthy(lines[#lines]:find "^test accuracy 0%.8[56]")
    local best = tm.models.load(dir .. "/best")
    assert.equal(1, best.outputs.shape[2])
  end)
end)

describe("examples", function()
  it("have each its result in its head comment", function()
    local list, n = assert(io.popen "ls examples/*.lua"), 0
    for path in list:lines() do
      local f = assert(io.open(path))
      local head = f:read("*a"):match "^(.-)\n[^%-\n]"
      f:close()
      if not path:find "_data%.lua$" then
        n = n + 1
        assert.is_truthy(head:find "Result:" or head:find "Results:", path)
        assert.is_truthy(head:find "%d%.%d%d", path)
      end
    end
    list:close()
    assert.is_true(n >= 9, n)
  end)
end)
