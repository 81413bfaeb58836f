-- The example that `make run` trains.
describe("examples/adult.lua", function()
  it("reaches 0.85 on the test rows", function()
    local lines = {}
    local env = setmetatable({
      arg = { [0] = "examples/adult.lua", "1" },
      print = function(s) lines[#lines + 1] = s end,
    }, { __index = _G })
    assert(loadfile("examples/adult.lua", "t", env))()
    local last = lines[#lines]
    local accuracy, rows = last:match "^test accuracy (%d%.%d+) on (%d+) rows"
    assert.equal("16281", rows)
    assert(tonumber(accuracy) >= 0.85, last)
  end)
end)
