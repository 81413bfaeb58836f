-- The example that shows the modes.
describe("examples/sync_ssp.lua", function()
  it("learns as well in each mode, and says how", function()
    local lines = {}
    local env = setmetatable({
      arg = { [0] = "examples/sync_ssp.lua" },
      print = function(s) lines[#lines + 1] = s end,
    }, { __index = _G })
    assert(loadfile("examples/sync_ssp.lua", "t", env))()
    local got = {}
    for _, line in ipairs(lines) do
      local name, accuracy, updates, a, b, c =
        line:match "^(.-) +accuracy (%S+), +(%d+) updates, steps of each worker (%d+) (%d+) (%d+),"
      assert.is_true(tonumber(accuracy) >= 0.845, line)
      assert.equal(254, a + b + c, line)
      got[name] = { updates = tonumber(updates), apart = math.max(a, b, c) - math.min(a, b, c) }
    end
    assert.equal(254, got.async.updates)
    assert.equal(85, got.sync.updates)
    assert.is_true(got.sync.apart <= 1)
    assert.is_true(got["sync, 1 backup worker"].updates >= 85)
    assert.equal(254, got["ssp, staleness 2"].updates)
    assert.is_true(got["ssp, staleness 2"].apart <= 3)
  end)
end)
