-- Examples that people copy: each is run as it is, on the data that are shipped.

local function run(name, ...)
  local lines = {}
  local path = "examples/" .. name .. ".lua"
  local env = setmetatable({ arg = { [0] = path, ... }, print = function(s) lines[#lines + 1] = tostring(s) end },
    { __index = _G })
  assert(loadfile(path, "t", env))()
  return lines
end

describe("examples/movietweetings.lua", function()
  it("foretells ratings better than biases alone do", function()
    local lines = run("movietweetings", "1")
    local rmse, plain = lines[#lines]:match "^test RMSE (%d%.%d+) against (%d%.%d+)"
    assert.equal("1.5394", plain)
    assert.is_true(tonumber(rmse) < tonumber(plain) - 0.005, lines[#lines])
  end)
end)
