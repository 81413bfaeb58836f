-- The example of convolution, run as it is.
describe("examples/optdigits.lua", function()
  it("reads at least 0.98 of the digits of other writers, fit on a cluster", function()
    local lines = {}
    local env = setmetatable({
      arg = { [0] = "examples/optdigits.lua", "1" },
      print = function(s) lines[#lines + 1] = tostring(s) end,
    }, { __index = _G })
    assert(loadfile("examples/optdigits.lua", "t", env))()
    local last = lines[#lines]
    local accuracy, rows = last:match "^test accuracy (%d%.%d+) on (%d+) digits"
    assert.equal("1797", rows)
    assert(tonumber(accuracy) >= 0.98, last)
  end)
end)
